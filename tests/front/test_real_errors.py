"""Errors that the installed libraries really raise are recognised: the texts of the table are not only remembered."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from compatfix.tracebacks import answer

from .conftest import ROOT

HERE = Path(__file__).parent
ERA = os.environ.get("COMPATFIX_ERA_457") or str(ROOT / ".venv-era" / "4.57.6" / "bin" / "python")

# What each mistake must be taken for; None: that version runs it. Two depend on the machine and are left out there.
ON_524 = {
    "crop_length": "crop-with-a-length",
    "crop_keyword": "crop-by-keyword",
    "crop_hybrid": "crop-on-recurrent-layers",
    "crop_window": "crop-past-the-window",
    "bare_cache": "bare-cache-newer",
    "assisted": "assisted-decoding-refuses",
    "key_cache": "cache-lists-are-gone",
    "subscript": "cache-as-a-list",
    "state_is_dict": "state-is-a-dict",
    "length_of_layer": None,
    "long_mask": "mask-and-keys-differ-in-length",
    "wrapped_config": "nested-config",
    "wrapped_model": "embedding-path",
    "head": "head-path",
    "block_size": "draft-block-size",
    "rope_theta": "rope-parameters",
    "chat_template": "chat-template-returns-an-encoding",
    "layer_id": "layer-id-out-of-range",
    "synchronize": "cuda-by-name",
    "flash_attention": "flash-attention-is-missing",
    "unknown_type": "unknown-model-type",
    "attention_type": "attention-type",
    "rotary": "rotary-device",
}
ON_457 = {
    **ON_524,
    "crop_length": None,
    "crop_keyword": None,
    "crop_hybrid": "cache-without-crop",
    "crop_window": "crop-past-the-window-older",
    "bare_cache": "bare-cache-older",
    "state_is_dict": "own-cache-has-no-layers",
    "long_mask": None,
    "rope_theta": None,
    "attention_type": None,
    "rotary": None,
}


def told(python, directory):
    shutil.copy(HERE / "mistakes.py", directory)
    run = subprocess.run(
        [python, "-I", str(HERE / "provoke.py"), str(directory)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    lines = [json.loads(line[5:]) for line in run.stdout.splitlines() if line.startswith("TOLD ")]
    return {line["name"]: line for line in lines}, run.stderr


@pytest.fixture(scope="module")
def on_this(tmp_path_factory):
    return told(sys.executable, tmp_path_factory.mktemp("ddtree"))


@pytest.fixture(scope="module")
def on_457(tmp_path_factory):
    if not Path(ERA).exists():
        pytest.fail(f"no interpreter with transformers 4.57 at {ERA}: run `make era`", pytrace=False)
    return told(ERA, tmp_path_factory.mktemp("ddtree"))


def assert_recognised(mistake, key):
    if key is None:
        assert mistake["plain"] is None
        return
    if mistake["plain"] is None and mistake["name"] in ("synchronize", "flash_attention"):
        pytest.skip("this machine has what the mistake needs")
    for form in ("plain", "drawn"):
        if mistake[form] is None:
            continue
        answered = answer(mistake[form])
        assert [one.known.key for one in answered.recognised] == [key], mistake[form]
        assert answered.unknown == (), mistake[form]
        user = answered.recognised[0].user
        assert user.file.endswith("mistakes.py"), mistake[form]
        assert user.function in (f"mistake_{mistake['name']}", "<listcomp>", "prefilled")


@pytest.mark.parametrize("name", ON_524)
def test_errors_of_this_transformers(on_this, name):
    assert_recognised(on_this[0][name], ON_524[name])


@pytest.mark.era
@pytest.mark.parametrize("name", ON_457)
def test_errors_of_transformers_457(on_457, name):
    assert_recognised(on_457[0][name], ON_457[name])


def test_a_bug_of_ones_own_is_not_recognised(on_this):
    for form in ("plain", "drawn"):
        answered = answer(on_this[0]["own_bug"][form])
        assert answered.recognised == ()
        assert [one.message for one in answered.unknown] == ["the batch must not be empty"]


def test_warnings_of_this_transformers_are_cosmetic(on_this):
    answered = answer(on_this[0]["bare_cache"]["warned"] + on_this[0]["crop_hybrid"]["warned"] + on_this[1])
    assert answered.recognised
    assert not any(one.known.real for one in answered.recognised)
