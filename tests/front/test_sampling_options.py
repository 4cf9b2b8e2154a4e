"""How sampling is asked for on the command line."""

import pytest

from tests.front.conftest import TARGETS


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--top-p", "0.9"], "--top-p and --top-k say how to sample: give --temperature too"),
        (["--top-k", "5"], "give --temperature too"),
        (["--temperature", "0"], "a temperature to sample at is at least 0.01"),
        (["--temperature", "nan"], "a temperature to sample at is at least 0.01"),
        (["--temperature", "1", "--top-p", "1.5"], "top-p is above 0 and at most 1"),
        (["--temperature", "1", "--top-k", "-1"], "-1 is not in the range"),
    ],
)
@pytest.mark.parametrize("command", ["validate", "gate"])
def test_bad_samplers_are_refused_before_anything_is_measured(compatfix, tree, command, options, words):
    run = compatfix(command, tree, "--target", TARGETS / "qwen3-8b", *options)
    assert run.code == 2
    assert words in run.err
    assert not (compatfix.directory / "reports").exists()
