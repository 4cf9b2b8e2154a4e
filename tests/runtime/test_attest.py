"""Patched code says at its start whether it is what was judged."""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import io
import json
import shutil
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import compatfix.runtime
from compatfix.attest.state import tree_state

from . import tiny
from .drafts import build as build_draft

SOURCE = Path(compatfix.runtime.__file__).parent


class Place:
    """A tree with its copy of the runtime, imported; a target and a draft that run through it."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.patch = root, patch
        self.runtime: Any = importlib.import_module("compatfix_runtime")
        self.attest: Any = importlib.import_module("compatfix_runtime.attest")
        self.surroundings: Any = importlib.import_module("compatfix_runtime.surroundings")
        self.generation: Any = importlib.import_module("generation_loop")
        self.target = tiny.build("qwen3")
        self.draft = build_draft()

    def start(self) -> None:
        """A prefill and a block, as a generation begins."""
        self.attest.note_draft(self.draft)
        cache = self.runtime.new_cache(self.target)
        self.generation.verify(self.target, cache)
        assert cache.get_seq_length() == 8

    def judge(self, scopes: tuple[str, ...] = ("code",), key: str = "target", **changes: Any) -> None:
        """Leaves the verdict of a run that saw exactly what there is now, but for `changes`."""
        strategy = self.runtime.describe(self.target)["strategy"]
        on = "weights" if "weights" in scopes else "tiny"
        run = self.surroundings.observed(self.target, self.draft, strategy, weights=on == "weights")
        states = {s: "passed" if s in scopes else "unmeasured" for s in ("code", "kernels", "weights")}
        entry = {"time": "2026-12-01T05:00", "scopes": states, "runs": [{"on": on, **json.loads(json.dumps(run))}]}
        entry["tree"] = {name: state for name, state in tree_state(self.root).items() if name.endswith(".py")}
        file = self.root / "compatfix_runtime" / "attest.json"
        kept = json.loads(file.read_text())["verdicts"] if file.exists() else {}
        file.write_text(json.dumps({"schema": 2, "verdicts": {**kept, key: {**entry, **changes}}}))


# The part of a tree that verifies.
LOOP = """
import torch
from compatfix_runtime import verify as verify_block

def verify(target, cache, sizes=(5, 3)):
    with torch.inference_mode():
        for size in sizes:
            verify_block(target, torch.arange(size)[None], past_key_values=cache)

def sample(logits):
    return logits.argmax(-1)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    shutil.copytree(SOURCE, tmp_path / "compatfix_runtime", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "generation_loop.py").write_text(LOOP)
    (tmp_path / "unused.py").write_text("")
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "__init__.py").write_text("")
    (tmp_path / "helpers" / "sampling.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("COMPATFIX_ATTEST", raising=False)
    before = set(sys.modules)
    yield Place(tmp_path, monkeypatch)
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("compatfix_runtime", "generation_loop", "helpers"):
            del sys.modules[name]


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("compatfix: ")]


def test_without_a_verdict_it_says_how_to_get_one(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.start()
    (line,) = lines(capsys)
    assert "no green verdict is kept for this tree" in line
    assert f"compatfix gate {place.root}" in line


def test_what_was_judged_is_said_to_be_so_once(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.judge()
    place.start()
    place.start()
    expected = "compatfix: as judged 2026-12-01T05:00 (code passed; kernels, weights unmeasured)"
    assert lines(capsys) == [expected]


def other_draft(place: Place) -> None:
    class DFlashDraftModel(type(place.draft)):  # type: ignore[misc] # the same name from another file
        pass

    DFlashDraftModel.__qualname__ = type(place.draft).__qualname__
    place.draft.__class__ = DFlashDraftModel


def shadowed(place: Place) -> None:
    elsewhere = types.ModuleType("helpers.sampling")
    elsewhere.__file__ = "/somewhere/site-packages/helpers/sampling.py"
    sys.modules["helpers.sampling"] = elsewhere


def with_package(place: Place) -> None:
    package = types.ModuleType("fla")
    package.__version__ = "0.4.1"  # type: ignore[attr-defined]
    sys.modules["fla"] = package


def edit(name: str) -> Callable[[Place], None]:
    return lambda place: (place.root / name).open("a").write("# edited\n") and None


def weight(part: str) -> Callable[[Place], None]:
    def change(place: Place) -> None:
        with torch.no_grad():
            next(getattr(place, part).parameters()).mul_(1.5)

    return change


def part_of(place: Place) -> torch.nn.Module:
    found: torch.nn.Module = place.target.model.layers[1].mlp
    return found


def other_forward(place: Place) -> None:
    """A subclass that gives itself out for the draft's class."""
    base = type(place.draft)

    class Other(base):  # type: ignore[misc, valid-type]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    Other.__qualname__, Other.__module__ = base.__qualname__, base.__module__
    place.draft.__class__ = Other


def other_method(place: Place) -> None:
    kind: Any = type(part_of(place))
    plain = kind.forward
    place.patch.setattr(kind, "forward", lambda self, x: plain(self, x) * 0.5)


def other_attention(place: Place) -> None:
    functions = sys.modules["transformers.modeling_utils"].ALL_ATTENTION_FUNCTIONS  # type: ignore[attr-defined]
    plain = functions["sdpa"]
    place.patch.setitem(functions, "sdpa", lambda *args, **more: plain(*args, **more))


def other_instance_forward(place: Place) -> None:
    part = part_of(place)
    plain = part.forward
    part.forward = lambda x: plain(x)


def part_in_float64(place: Place) -> None:
    head = place.target.lm_head.to(torch.float64)
    head.register_forward_pre_hook(lambda part, given: (given[0].to(torch.float64),))


def compiled_part(place: Place) -> None:
    place.target.model.layers[0].mlp = torch.compile(place.target.model.layers[0].mlp, backend="eager")


def without_a_layer(place: Place) -> None:
    del place.target.model.layers[-1]


CHANGES: dict[str, tuple[Callable[[Place], object], str]] = {
    "a file that is imported": (edit("generation_loop.py"), "generation_loop.py differs"),
    "the runtime itself": (edit("compatfix_runtime/masks.py"), "compatfix_runtime/masks.py differs"),
    "a module from elsewhere": (shadowed, "module helpers.sampling comes from /somewhere/site-packages/"),
    "a kernel package": (with_package, "fla is 0.4.1, judged without it"),
    "attention": (
        lambda place: place.target.set_attn_implementation("eager"),
        "target attention is eager, judged sdpa",
    ),
    "the target's dtype": (lambda place: place.target.to(torch.float64), "target dtype is float64, judged float32"),
    "the draft's dtype": (lambda place: place.draft.to(torch.bfloat16), "draft dtype is bfloat16, judged float32"),
    "the draft's mode": (lambda place: place.draft.train(), "draft training is True, judged False"),
    "a flag": (
        lambda place: torch.use_deterministic_algorithms(True),
        "deterministic algorithms is True, judged False",
    ),
    "a config": (lambda place: setattr(place.target.config, "rms_norm_eps", 0.5), "target rms_norm_eps is 0.5"),
    "an inner config": (
        lambda place: place.target.config.rope_parameters.update(rope_theta=77.0),
        "target rope_parameters.rope_theta is 77.0",
    ),
    "the target's weights": (weight("target"), "target weights differ"),
    "the draft's weights": (weight("draft"), "draft weights differ"),
    "the draft's class": (other_draft, "draft class is "),
    "the draft's forward": (other_forward, "the forward of DFlashDraftModel is other code"),
    "a method of a library's class": (other_method, "the forward of Qwen3MLP is other code"),
    "a forward of one module": (
        other_instance_forward,
        "the forward of one Qwen3MLP is other_instance_forward.<locals>.<lambda> of test_attest.py",
    ),
    "a hook": (
        lambda place: part_of(place).register_forward_hook(lambda part, given, output: output * 0.5),
        "Qwen3MLP is hooked by <lambda>.<locals>.<lambda> of test_attest.py",
    ),
    "the attention function": (other_attention, "the sdpa attention of the target is another function"),
    "a function of the tree": (
        lambda place: setattr(place.generation, "sample", lambda logits: logits.argmin(-1)),
        "function generation_loop.sample is that of test_attest.py:<lambda>.<locals>.<lambda>",
    ),
    "the dtype of a part": (part_in_float64, "target dtype is float32+float64, judged float32"),
    "the mode of a part": (lambda place: part_of(place).train(), "target training is True, judged False"),
    "a compiled part": (compiled_part, "target compiled is True, judged False"),
    "a layer is gone": (without_a_layer, "target has 2 layers, its config says 3"),
    "a key that only this config has": (
        lambda place: setattr(place.target.config, "logit_scale", 3.0),
        "target logit_scale is 3.0, judged None",
    ),
    "the rotary table": (
        lambda place: place.target.model.rotary_emb.inv_freq.mul_(0.5),
        "target buffer model.rotary_emb.inv_freq differs",
    ),
    "a switch of oneDNN": (
        lambda place: place.patch.setattr(torch.backends.mkldnn, "enabled", False),
        "oneDNN is False, judged True",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_named(what: str, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    change, words = CHANGES[what]
    place.judge(("code", "weights"))
    try:
        change(place)
        place.start()
    finally:
        torch.use_deterministic_algorithms(False)
        sys.modules.pop("fla", None)
        place.patch.undo()
    (line,) = lines(capsys)
    assert line.startswith("compatfix: not as judged 2026-12-01T05:00 (code, weights passed; kernels unmeasured): ")
    assert words in line


def test_a_function_that_says_it_wraps_the_trees_own_is_named(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.judge()
    plain = place.generation.sample
    place.generation.sample = functools.wraps(plain)(lambda logits: -plain(logits))
    place.start()
    assert "function generation_loop.sample is that of test_attest.py:sample of generation_loop.py" in lines(capsys)[0]


def test_the_attention_of_every_layer_counts(place: Place) -> None:
    for layer in place.target.model.layers[:1]:
        layer.self_attn.config = copy.deepcopy(place.target.config)
        layer.self_attn.config._attn_implementation = "eager"
    assert place.surroundings.model_of(place.target, weights=False)["attention"] == "eager+sdpa"


def test_a_loop_from_outside_the_tree_is_named(
    place: Place, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    place.judge()
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "my_loop.py"
    elsewhere.write_text(LOOP)
    spec = importlib.util.spec_from_file_location("my_loop", elsewhere)
    assert spec is not None and spec.loader is not None
    loop = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loop)
    place.attest.note_draft(place.draft)
    loop.verify(place.target, place.runtime.new_cache(place.target))
    (line,) = lines(capsys)
    assert line.endswith(f": verify is called from {elsewhere}, outside the tree")


def test_a_loop_in_the_tree_that_was_not_judged_is_named(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.judge()
    names: dict[str, Any] = {}
    exec(compile(LOOP, str(place.root / "made_up.py"), "exec"), names)
    place.attest.note_draft(place.draft)
    names["verify"](place.target, place.runtime.new_cache(place.target))
    assert lines(capsys)[0].endswith(": verify is called from made_up.py, which was not judged")


def test_a_key_that_one_config_does_not_have_is_as_none(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.judge()
    place.target.config.logit_scale = None
    place.start()
    assert "compatfix: as judged" in lines(capsys)[0]


def test_a_table_that_was_computed_on_another_device_is_the_same(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.judge(("code", "weights"))
    place.target.model.rotary_emb.inv_freq.mul_(1 + 2**-22)
    place.start()
    assert "compatfix: as judged" in lines(capsys)[0]


def test_another_draft_of_the_same_target_is_compared_too(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place.judge()
    place.start()
    assert "compatfix: as judged" in lines(capsys)[0]
    place.draft = build_draft().to(torch.float64)
    monkeypatch.setenv("COMPATFIX_ATTEST", "require")
    with pytest.raises(place.runtime.RuntimeRefusal, match="draft dtype is float64, judged float32"):
        place.start()


def test_files_that_are_not_imported_do_not_count(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.judge()
    edit("unused.py")(place)
    place.start()
    assert "compatfix: as judged" in lines(capsys)[0]


def test_a_tiny_run_says_nothing_of_weights(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.judge()
    weight("target")(place)
    place.start()
    assert "compatfix: as judged" in lines(capsys)[0]


def test_of_several_verdicts_the_nearest_speaks(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.judge(("code",), key="other", tree={})
    place.judge(("code", "weights"), key="same pair, with weights")
    place.judge(("code",), key="same pair", time="2025-01-01")
    place.start()
    assert "as judged 2026-12-01T05:00 (code, weights passed" in lines(capsys)[0]


def test_many_differences_are_counted_and_can_be_listed(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place.judge()
    place.target.to(torch.float64).train()
    place.draft.to(torch.float64)
    place.target.set_attn_implementation("eager")
    edit("generation_loop.py")(place)
    place.start()
    (line,) = lines(capsys)
    assert "; and 2 more, COMPATFIX_ATTEST=all lists them" in line
    place.target = tiny.build("qwen3").to(torch.float64).train()
    place.target.set_attn_implementation("eager")
    monkeypatch.setenv("COMPATFIX_ATTEST", "all")
    place.start()
    (line,) = lines(capsys)
    assert "more" not in line
    assert "target training is True" in line


def test_required_it_refuses_before_the_block_and_leaves_the_cache(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPATFIX_ATTEST", "require")
    place.judge()
    edit("generation_loop.py")(place)
    cache = place.runtime.new_cache(place.target)
    place.generation.verify(place.target, cache, (5,))
    for _ in range(2):  # asked again, it refuses again
        with pytest.raises(place.runtime.RuntimeRefusal, match=r"generation_loop\.py differs.*COMPATFIX_ATTEST=re"):
            place.generation.verify(place.target, cache, (3,))
    assert cache.get_seq_length() == 5


@pytest.mark.parametrize("value", ["require", " require", "Require ", "REQUIRE\n"])
def test_require_is_understood_however_it_is_typed(value: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPATFIX_ATTEST", value)
    with pytest.raises(place.runtime.RuntimeRefusal, match="no green verdict"):
        place.start()


@pytest.mark.parametrize("value", ["required", "1", "true", "no", "re\x1bquire"])
def test_what_is_none_of_the_three_values_is_refused(value: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPATFIX_ATTEST", value)
    for _ in range(2):
        with pytest.raises(place.runtime.RuntimeRefusal) as refused:
            place.start()
        told = value.replace("\x1b", "\\x1b")
        assert str(refused.value) == f"COMPATFIX_ATTEST={told} is none of off, all, require"


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("kind", ["none", "closed", "full"])
def test_a_standard_error_that_takes_nothing_ends_no_generation(
    kind: str, place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place.judge()
    stream = None if kind == "none" else Full() if kind == "full" else io.StringIO()
    if stream is not None and kind == "closed":
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    place.start()
    assert "compatfix" not in capsys.readouterr().out


def test_control_characters_of_a_verdict_do_not_reach_the_terminal(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.judge(time="\x1b[31m\nred\u202e")
    place.start()
    assert lines(capsys) == ["compatfix: as judged \\x1b[31m\\nred\\u202e (code passed; kernels, weights unmeasured)"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [("COMPATFIX_ATTEST", "off"), ("COMPATFIX_ATTEST", "OFF "), ("RANK", "3"), ("SLURM_PROCID", "1")],
)
def test_silence(
    variable: str, value: str, place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, value)
    place.start()
    assert lines(capsys) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2}', '{"schema": 2, "verdicts": {"a": {}}}', "\x00"])
def test_a_broken_verdict_ends_no_generation(text: str, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    (place.root / "compatfix_runtime" / "attest.json").write_text(text)
    place.start()
    (line,) = lines(capsys)
    assert "cannot be read" in line or "cannot compare" in line


def test_another_place_for_the_verdict(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path_factory: Any
) -> None:
    place.judge()
    kept = tmp_path_factory.mktemp("reports") / "attest.json"
    (place.root / "compatfix_runtime" / "attest.json").rename(kept)
    monkeypatch.setenv("COMPATFIX_VERDICT", str(kept))
    place.start()
    assert "compatfix: as judged" in lines(capsys)[0]


def test_without_a_draft_the_line_says_that_none_was_seen(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.judge()
    place.generation.verify(place.target, place.runtime.new_cache(place.target))
    assert "no draft was seen, judged with" in lines(capsys)[0]


def test_the_runtime_of_the_tool_itself_has_nothing_to_say(capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny.build("qwen3")
    cache = compatfix.runtime.new_cache(model)
    with torch.inference_mode():
        for size in (5, 3):
            compatfix.runtime.verify(model, torch.arange(size)[None], past_key_values=cache)
    assert lines(capsys) == []
