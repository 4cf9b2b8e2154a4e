"""`compatfix explain` on what people paste: how the argument is read, what is printed, how it ends."""

import json

import pytest

from .surroundings import Accident, narrow, plain
from .test_cli import imports

CROP = Accident(
    "ValueError",
    "Calling `crop` with a positive value (`37`) is not supported. Please use a negative integer to remove that number "
    "of tokens from the cache instead.",
    "cache.crop(start)",
    ("transformers/cache_utils.py", 170, "crop", "raise ValueError("),
)
OWN = Accident("ValueError", "the batch must not be empty", "raise ValueError(text)")


def written(compatfix, text, name="log.txt"):
    path = compatfix.directory / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_traceback_says_what_where_and_what_to_do(compatfix):
    run = compatfix("explain", written(compatfix, plain(CROP)))
    assert (run.code, run.err) == (0, "")
    lines = run.out.splitlines()
    assert lines[0].startswith("CF203 absolute-crop (real): crop(37) means a length")
    assert "  where     /home/u/ddtree/dflash.py:102 in dflash_generate: cache.crop(start)" in lines
    assert "            raised in transformers/cache_utils.py:170 in crop" in lines
    assert any(line.startswith("  versions  5.20 and later") and line.endswith("(measured)") for line in lines)
    assert any(line.startswith("  fix       compatfix patch --select CF2 TREE") for line in lines)
    assert "(CF204)" in run.out, "what stays silent once the exception is gone"
    assert lines[-2:] == ["  more      compatfix explain CF203", "            compatfix repro CF203"]
    assert len(lines) <= 24


def test_standard_input(compatfix):
    run = compatfix("explain", "-", stdin=narrow(CROP))
    assert run.code == 0
    assert run.out.startswith("CF203 absolute-crop (real)")


def test_a_known_code_comes_before_a_file_of_that_name(compatfix):
    written(compatfix, plain(CROP), "CF201")
    assert compatfix("explain", "CF201").out.startswith("# CF201 bare-dynamic-cache\n")
    assert compatfix("explain", "./CF201").out.startswith("CF203 absolute-crop")


def test_json(compatfix):
    run = compatfix("explain", "--format", "json", written(compatfix, plain(CROP) + "\n" + plain(OWN)))
    told = json.loads(run.out)
    (one,) = told["recognised"]
    assert (one["code"], one["name"], one["real"], one["exception"]) == ("CF203", "absolute-crop", True, "ValueError")
    assert one["where"] == {
        "file": "/home/u/ddtree/dflash.py",
        "line": 102,
        "function": "dflash_generate",
        "code": "cache.crop(start)",
    }
    assert one["fix"] == "compatfix patch --select CF2 TREE"
    assert (one["count"], one["source"]) == (1, "measured")
    (unknown,) = told["unknown"]
    assert (unknown["exception"], unknown["message"]) == ("ValueError", "the batch must not be empty")


def test_json_of_a_page(compatfix):
    told = json.loads(compatfix("explain", "absolute-crop", "--format", "json").out)
    assert told["code"] == "CF203"
    assert told["page"] == compatfix("explain", "CF203").out


@pytest.mark.parametrize(
    "text", [plain(OWN), "no error at all\n", "", b"\x00\xff\xfe\x01"], ids=["own", "none", "empty", "bytes"]
)
def test_what_is_not_recognised_is_one_line_and_exit_1(compatfix, text):
    run = compatfix("explain", written(compatfix, text))
    assert (run.code, run.err) == (1, "")
    assert run.out.startswith("not recognised: ")
    assert run.out.count("\n") == 1
    assert "compatfix inspect MODEL" in run.out


def test_a_line_that_means_nothing_alone_asks_for_more(compatfix):
    run = compatfix("explain", "-", stdin="IndexError: list index out of range\n")
    assert run.code == 1
    assert "paste the whole traceback" in run.out


def test_cosmetic_warnings_say_so(compatfix):
    warning = "The fast path is not available because one of the required library is not installed."
    run = compatfix("explain", "-", stdin=warning)
    assert run.code == 0
    assert "(cosmetic)" in run.out
    assert "nothing has to be done" in run.out


def test_what_cannot_be_read_is_exit_2(compatfix):
    (compatfix.directory / "directory").mkdir()
    for subject, words in (
        ("nowhere.log", "no code, name or file nowhere.log"),
        ("directory", "cannot read directory"),
    ):
        run = compatfix("explain", subject)
        assert (run.code, run.out) == (2, "")
        assert run.err.startswith(f"error: {words}")
        assert run.err.count("\n") == 1


def test_an_explanation_needs_no_heavy_imports(tmp_path):
    log = tmp_path / "log"
    log.write_text(plain(CROP))
    assert not imports("explain", str(log)) & {"torch", "transformers", "numpy", "libcst", "rich"}


def test_a_cached_copy_of_remote_code_is_named(compatfix):
    text = plain(CROP).replace("/home/u/ddtree/", "/home/u/.cache/huggingface/modules/transformers_modules/draft/")
    assert "cached copy" in compatfix("explain", "-", stdin=text).out
