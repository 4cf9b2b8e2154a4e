"""What a safetensors header says, and every way in which a file can be broken."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from compatfix.checkpoint.header import read_header

from .made import ONE, of_header, safetensors


def entry(dtype="BF16", shape=(2, 3), offsets=(0, 12)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_names_dtypes_shapes_and_sizes_are_those_that_the_library_wrote(tmp_path):
    file = tmp_path / "x.safetensors"
    made = {
        "w": torch.zeros(3, 5, dtype=torch.bfloat16),
        "scalar": torch.zeros((), dtype=torch.float32),
        "empty": torch.zeros(0, 4, dtype=torch.float16),
        "narrow": torch.zeros(7, dtype=torch.float8_e4m3fn),
        "ids": torch.zeros(2, dtype=torch.int64),
    }
    save_file(made, file)
    header = read_header(file)
    assert header.problem is None
    assert header.bytes == file.stat().st_size
    found = {tensor.name: (tensor.dtype, tensor.shape, tensor.bytes) for tensor in header.tensors}
    assert found == {
        "w": ("BF16", (3, 5), 30),
        "scalar": ("F32", (), 4),
        "empty": ("F16", (0, 4), 0),
        "narrow": ("F8_E4M3", (7,), 7),
        "ids": ("I64", (2,), 16),
    }


BROKEN = {
    "empty": (b"", "is empty"),
    "a few bytes": (b"abc", "is truncated: 3 bytes"),
    "a git-lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git-lfs pointer"),
    "a page that was saved": (b"<!doctype html><html>" + b" " * 500, "is no safetensors file"),
    "its header cut": (ONE[:20], "is truncated inside its header"),
    "its tensors cut": (ONE[:-5], "is truncated: 7 bytes of tensors, its header speaks of 12"),
    "bytes behind it": (ONE + b"x", "has 1 bytes behind its last tensor"),
    "no JSON": (of_header(b"{nonsense"), "has a header that is not JSON"),
    "not UTF-8": (of_header(b"\xff\xfe{}"), "has a header that is not JSON"),
    "a list": (of_header([1]), "has a header that is a list"),
    "deep nesting": (of_header(b"[" * 200_000), "has a header that is"),
    "an entry without a shape": (of_header({"a": {"dtype": "F32"}}), "entry 'a' is not one of a tensor"),
    "a negative shape": (of_header({"a": entry(shape=(-2, 3))}, bytes(12)), "entry 'a' is not one of a tensor"),
    "numbers beyond the format": (of_header({"a": entry(shape=(10**4000, 1))}), "entry 'a' is not one of a tensor"),
    "more elements than the format can have": (
        of_header({"a": entry("ZZ", (2**60,) * 40)}, bytes(12)),
        "entry 'a' is not one of a tensor",
    ),
    "a shape of truths": (of_header({"a": entry(shape=(True, 6))}, bytes(12)), "entry 'a' is not one of a tensor"),
    "a size that does not fit": (of_header({"a": entry(offsets=(0, 10))}, bytes(10)), "in 10 bytes; it needs 12"),
    "a gap": (of_header({"a": entry(offsets=(4, 16))}, bytes(16)), "has a gap of 4 bytes before a"),
    "an overlap": (of_header({"a": entry(), "b": entry(offsets=(6, 18))}, bytes(18)), "lie over one another, b"),
    "a header of exabytes": (struct.pack("<Q", 2**62) + b"{}", "is no safetensors file"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_file_is_told_and_the_library_refuses_it_too(tmp_path, what):
    data, words = BROKEN[what]
    file = tmp_path / "x.safetensors"
    file.write_bytes(data)
    header = read_header(file)
    assert header.problem is not None
    assert words in header.problem
    assert "\n" not in header.problem
    with pytest.raises(Exception), safe_open(file, framework="pt"):  # noqa: B017 - whatever it raises
        pass


def test_a_file_that_is_not_there(tmp_path):
    assert read_header(tmp_path / "x.safetensors").problem == "cannot be read: No such file or directory"


def test_a_dtype_that_came_later_is_no_fault(tmp_path):
    file = tmp_path / "x.safetensors"
    file.write_bytes(of_header({"a": entry("F3_E1M1", (4,), (0, 2))}, bytes(2)))
    header = read_header(file)
    assert header.problem is None
    assert (header.tensors[0].dtype, header.tensors[0].bytes) == ("F3_E1M1", 2)


shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
tensors = st.dictionaries(st.text(max_size=8).filter(lambda n: n != "__metadata__"), st.tuples(st.just("F32"), shapes))


@given(tensors, st.integers(0, 400))
def test_a_whole_file_has_no_fault_and_a_cut_one_always_has(tmp_path_factory, made, cut):
    file: Path = tmp_path_factory.mktemp("any") / "x.safetensors"
    data = safetensors(made)
    file.write_bytes(data)
    header = read_header(file)
    assert header.problem is None
    assert {tensor.name: (tensor.dtype, tensor.shape) for tensor in header.tensors} == made
    if cut < len(data):
        file.write_bytes(data[:cut])
        assert read_header(file).problem is not None


@given(st.binary(max_size=200))
def test_no_bytes_raise(tmp_path_factory, data):
    file: Path = tmp_path_factory.mktemp("any") / "x.safetensors"
    file.write_bytes(data)
    read_header(file)
