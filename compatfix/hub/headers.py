"""The headers of safetensors files on the hub, as files that read like the whole ones: the rest is a hole.

Two ranges for each: the eight bytes that tell the header's length, then the header. No byte of a tensor is asked for.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from compatfix.checkpoint.header import LONGEST_HEADER
from compatfix.errors import UsageError
from compatfix.hub.client import Hub

_LENGTH = 8
# Above it a file system that keeps no holes would fill a disk.
_WORTH_A_LOOK = 1 << 24


def fetch_header(hub: Hub, repo: str, commit: str, name: str, size: int | None, file: Path) -> int:
    """Writes `file` with the true header and the true size; returns the size.

    UsageError where what comes cannot be a header. What a header says is judged by who reads it.
    """
    if size is not None and size < _LENGTH:
        write_hole(file, size)
        return size
    head, told = hub.read(commit, name, 0, _LENGTH)
    whole = size if size is not None else told
    if whole is None:
        raise UsageError(f"the hub at {hub.endpoint} does not tell the size of {name} of {repo}")
    if told is not None and told != whole:
        raise UsageError(f"{name} of {repo} cannot be trusted: it is listed with {whole} bytes and has {told}")
    if len(head) < _LENGTH:
        raise UsageError(f"the answer of the hub at {hub.endpoint} broke off ({name} of {repo}: {len(head)} bytes)")
    length: int = struct.unpack("<Q", head)[0]
    if length > min(LONGEST_HEADER, whole - _LENGTH):
        raise UsageError(
            f"{name} of {repo} cannot be trusted: its header would be {length} bytes long, the file has {whole}"
        )
    header, _ = hub.read(commit, name, _LENGTH, length) if length else (b"", None)
    if len(header) < length:
        raise UsageError(
            f"the answer of the hub at {hub.endpoint} broke off ({name} of {repo}: {len(header)} of {length} bytes)"
        )
    write_hole(file, whole, head + header)
    return whole


def write_hole(file: Path, size: int, begin: bytes = b"") -> None:
    """A new file of this size that holds `begin`, and then nothing; never written through a link."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("xb") as handle:
        handle.write(begin)
        handle.truncate(size)
    if size > _WORTH_A_LOOK and os.stat(file).st_blocks * 512 > size // 2:
        file.unlink()
        raise UsageError(f"{file.parent} lies on a file system without sparse files; set XDG_CACHE_HOME to another one")
