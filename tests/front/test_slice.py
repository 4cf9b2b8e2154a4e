"""`--on slice` from the command line: a few layers at real width, judged for kernels; what it is not heeded with."""

import json
import os

import pytest

from .conftest import ROOT, TARGETS
from .test_gate import newest, verdicts

PAIR = ROOT / "examples" / "pair"
SMALL = ("--patch", "copy", "--no-ladder", "--tree-budget", "16", "--prompts", "8", "--max-new-tokens", "16")


def test_the_pair_s_own_values_run_its_kernels(compatfix):
    tree = ROOT / "vendor" / "ddtree_ref"
    where = ("--target", PAIR / "target", "--draft", PAIR / "draft")
    run = compatfix(
        *("gate", tree, *where, *SMALL, "--on", "slice", "--slice-values", "checkpoint", "--require", "code,kernels")
    )
    assert run.code == 0, run.out + run.err
    report, page = newest(compatfix)
    assert verdicts(report) == {
        "code": "passed",
        "kernels": "passed",
        "weights": "unmeasured",
        "draft": "unmeasured",
        "speed": "unmeasured",
    }
    reason = report.verdict.of("kernels").reason
    assert "cpu, attention sdpa" in reason and "(bfloat16)" in reason and "values read from the checkpoint" in reason
    assert "for flash-linear-attention: torch_chunk_gated_delta_rule" in reason
    assert "A slice at real width" in page
    section = report.sections["slice"]
    assert (section["layers"], section["depth"]) == ([0, 1, 2, 3], 4)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--dtype", "float16"), "--dtype needs --on slice or --on weights"),
        (("--on", "slice", "--device", "nonsense"), "--device nonsense: give cpu, mps, cuda, cuda:1"),
        (("--on", "slice", "--device", "meta"), "--device meta: give cpu, mps, cuda, cuda:1"),
        (("--on", "slice", "--attn", "paged|eager"), "implementations for continuous batching do not run like this"),
        (("--on", "weights", "--device-map", '{"": "meta"}'), "an object of module names to devices"),
        (("--attn", "eager"), "--attn needs --on slice or --on weights"),
        (("--device", "cpu"), "--device needs --on slice or --on weights"),
        (("--device-map", "auto"), "--device-map needs --on weights, and no --device"),
        (("--on", "weights", "--device-map", "nowhere"), "--device-map nowhere: neither auto, balanced"),
        (("--on", "weights", "--device-map", "{"), "--device-map is not valid JSON"),
        (("--on", "weights", "--device-map", "{}"), "an object of module names to devices"),
        (("--slice-values", "checkpoint"), "--slice-values needs --on slice"),
        (
            ("--on", "slice", "--slice-values", "checkpoint"),
            "cannot be read for --slice-values checkpoint: no",
        ),
        (("--on", "slice", "--require", "weights"), "scope weights cannot pass with --on slice: use --on weights"),
        (("--require", "kernels"), "scope kernels cannot pass with --on tiny: use --on slice or --on weights"),
    ],
)
def test_what_would_not_be_heeded_is_refused(compatfix, args, words):
    run = compatfix("gate", ROOT / "vendor" / "ddtree_ref", "--target", TARGETS / "qwen3-8b", *args)
    assert run.code == 2
    assert words in run.err


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": {"load_in_4bit": True}}, "bitsandbytes"),
        ({"quantization_config": "fp8"}, "fp8"),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors"),
    ],
)
def test_a_quantised_target_has_no_slice(compatfix, section, told):
    config = json.loads((TARGETS / "qwen3-8b" / "config.json").read_text())
    (compatfix.directory / "config.json").write_text(json.dumps({**config, **section}))
    run = compatfix("gate", ROOT / "vendor" / "ddtree_ref", "--target", ".", "--on", "slice")
    assert run.code == 2
    assert f"is quantised ({told}): a slice has plain weights, which run other kernels; use --on weights" in run.err


def test_a_config_that_is_a_pipe_is_not_waited_for(compatfix):
    os.mkfifo(compatfix.directory / "config.json")
    run = compatfix("inspect", ".")
    assert (run.code, run.err) == (2, "error: config.json is no regular file\n")
