"""Which files of a directory are the weights, and what is wrong with them."""

from __future__ import annotations

import pytest

from compatfix.checkpoint.directory import read_checkpoint

from .made import INDEX, ONE, directory, index, safetensors

A = safetensors({"a.weight": ("BF16", (2, 3))})
B = safetensors({"b.weight": ("F32", (4,)), "b.bias": ("BF16", (4,))})
WHERE = {"a.weight": "a.safetensors", "b.weight": "b.safetensors", "b.bias": "b.safetensors"}


def test_shards_are_read_through_their_index(tmp_path):
    found = read_checkpoint(directory(tmp_path, {INDEX: index(WHERE), "a.safetensors": A, "b.safetensors": B}))
    assert found.complete
    assert (found.form, found.index) == ("safetensors", INDEX)
    assert {name: (t.dtype, t.shape, t.file) for name, t in found.tensors.items()} == {
        "a.weight": ("BF16", (2, 3), "a.safetensors"),
        "b.weight": ("F32", (4,), "b.safetensors"),
        "b.bias": ("BF16", (4,), "b.safetensors"),
    }
    assert found.by_dtype() == {"BF16": (2, 10, 20), "F32": (1, 4, 16)}
    assert found.bytes == len(A) + len(B)
    assert found.remarks == ()


def test_the_single_file_comes_first_as_the_library_has_it(tmp_path):
    files = {"model.safetensors": A, INDEX: index({"x": "gone.safetensors"}), "pytorch_model.bin": b"x"}
    found = read_checkpoint(directory(tmp_path, files))
    assert found.complete
    assert set(found.tensors) == {"a.weight"}
    assert found.remarks == ("not read: pytorch_model.bin",)


def test_shards_may_be_links_as_in_a_hub_cache(tmp_path):
    (tmp_path / "blob").write_bytes(A)
    model = directory(tmp_path / "model", {INDEX: index({"a.weight": "a.safetensors"})})
    (model / "a.safetensors").symlink_to(tmp_path / "blob")
    assert read_checkpoint(model).complete


def test_shards_may_lie_below_the_directory(tmp_path):
    model = directory(tmp_path / "model", {INDEX: index({"a.weight": "part/a.safetensors"})})
    directory(model / "part", {"a.safetensors": A})
    found = read_checkpoint(model)
    assert found.complete
    assert found.tensors["a.weight"].file == "part/a.safetensors"


PROBLEMS = {
    "a name that no file can have": (
        {INDEX: index({"a": "a" * 5000 + ".safetensors"})},
        f"names {'a' * 117}…, which is not there: 1 of 1",
    ),
    "a shard is absent": ({INDEX: index(WHERE), "a.safetensors": A}, "b.safetensors, which is not there: 1 of 2"),
    "a shard is cut": (
        {INDEX: index(WHERE), "a.safetensors": A[:-1], "b.safetensors": B},
        "a.safetensors is truncated",
    ),
    "outside": ({INDEX: index({"a": "../model.safetensors"})}, "points outside its directory: ../model.safetensors"),
    "absolute": ({INDEX: index({"a": "/etc/passwd"})}, "points outside its directory: /etc/passwd"),
    "outside and back": ({INDEX: index({"a": "x/../../y"})}, "points outside its directory: x/../../y"),
    "no map": ({INDEX: b"{}"}, "has no weight_map"),
    "no JSON": ({INDEX: b"{"}, "is not valid JSON"),
    "an index that is a list": ({INDEX: b"[]"}, "has no weight_map"),
    "a tensor elsewhere": (
        {INDEX: index({**WHERE, "b.bias": "a.safetensors"}), "a.safetensors": A, "b.safetensors": B},
        "says that b.bias is in a.safetensors, which does not hold it",
    ),
}


@pytest.mark.parametrize("what", PROBLEMS)
def test_what_cannot_be_loaded_is_a_problem(tmp_path, what):
    files, words = PROBLEMS[what]
    found = read_checkpoint(directory(tmp_path, files))
    assert not found.complete
    assert len(found.problems) == 1
    assert words in found.problems[0]


def test_one_cut_shard_is_one_problem_and_not_one_for_each_of_its_tensors(tmp_path):
    found = read_checkpoint(directory(tmp_path, {INDEX: index(WHERE), "a.safetensors": A, "b.safetensors": b""}))
    assert found.problems == ("b.safetensors is empty",)


def test_what_may_surprise_is_a_remark(tmp_path):
    both = safetensors({"a.weight": ("BF16", (2, 3)), "more": ("F32", (1,))})
    files = {INDEX: index(WHERE), "a.safetensors": both, "b.safetensors": B, "consolidated.safetensors": ONE}
    found = read_checkpoint(directory(tmp_path, files))
    assert found.complete
    assert found.remarks == (
        f"{INDEX} does not name more, which its shards hold",
        "not read: consolidated.safetensors",
    )
    twice = safetensors({"a.weight": ("BF16", (2, 3)), "b.weight": ("F32", (4,)), "b.bias": ("BF16", (4,))})
    (tmp_path / "b.safetensors").write_bytes(twice)
    assert "a.weight is stored in more than one file" in read_checkpoint(tmp_path).remarks


@pytest.mark.parametrize(
    ("files", "form", "pickles"),
    [
        ({}, "none", ()),
        ({"config.json": b"{}", "training_args.bin": b"x", "optimizer.pt": b"x"}, "none", ()),
        ({"pytorch_model.bin": b"x"}, "pickle", ("pytorch_model.bin",)),
        ({"model.pt": b"x"}, "other", ("model.pt",)),
        ({"weights.safetensors": ONE}, "other", ()),
        ({"model.gguf": b"x"}, "other", ()),
    ],
)
def test_pickles_and_other_forms_are_named_and_not_opened(tmp_path, files, form, pickles, monkeypatch):
    directory(tmp_path, files)
    opened = []
    monkeypatch.setattr("pathlib.Path.open", lambda path, *more, **named: opened.append(path))
    found = read_checkpoint(tmp_path)
    assert (found.form, found.pickles, found.tensors, opened) == (form, pickles, {}, [])


def test_a_directory_that_is_not_there_has_no_weights(tmp_path):
    assert read_checkpoint(tmp_path / "none").form == "none"
