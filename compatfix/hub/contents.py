"""What a repository's list of files comes to: which are small and wanted, which are weights. Pure; trusts no name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compatfix.checkpoint.directory import FORMS, INDEX, NOT_WEIGHTS, PICKLES, WEIGHTS, inside
from compatfix.checkpoint.tokenizer import CONFIG as TOKENIZER_CONFIG
from compatfix.checkpoint.tokenizer import FILES as TOKENIZER_FILES
from compatfix.checkpoint.tokenizer import GENERATION, TEMPLATE
from compatfix.errors import UsageError
from compatfix.hub.client import Listing

CONFIG = "config.json"
# Whole files that inspection and a tokenizer's loader read.
SMALL = (
    CONFIG,
    GENERATION,
    *TOKENIZER_FILES,
    TOKENIZER_CONFIG,
    TEMPLATE,
    "chat_template.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    *(name for _, name in FORMS if name.endswith(INDEX)),
)
# No tokenizer and no index is larger; a small file that is was not meant as one.
LARGEST_SMALL = 256_000_000


@dataclass(frozen=True)
class Contents:
    """Names by what is done with them: `small` are fetched whole, of `weights` at most the headers.

    `first` is the file by which the library finds the weights, None without any. `pickles` and `code` are named only.
    """

    small: tuple[str, ...]
    weights: Mapping[str, int | None]
    first: str | None
    pickles: tuple[str, ...]
    code: tuple[str, ...]


def contents_of(listing: Listing, repo: str) -> Contents:
    """UsageError where the list has names that no repository can have, or no model in the library's form."""
    for name in listing.files:
        if not _is_plain(name):
            raise UsageError(f"the hub's list of files of {repo} cannot be trusted: it names {name[:80]!r}")
    if CONFIG not in listing.files:
        raise UsageError(f"no {CONFIG} in {repo} on the hub (is it a model in the library's own format?)")
    for name in SMALL:
        size = listing.files.get(name)
        if size is not None and size > LARGEST_SMALL:
            raise UsageError(f"{name} of {repo} is not fetched: the hub says that it has {size / 1e9:.1f} GB")
    top = {name: size for name, size in listing.files.items() if "/" not in name}
    weights = {name: size for name, size in top.items() if name.endswith(WEIGHTS) and name not in NOT_WEIGHTS}
    return Contents(
        small=tuple(name for name in SMALL if name in listing.files),
        weights=weights,
        first=next((name for _, name in FORMS if name in listing.files), None),
        pickles=tuple(sorted(name for name in weights if name.endswith(PICKLES))),
        code=tuple(sorted(name for name in listing.files if name.endswith(".py"))),
    )


def loaded(contents: Contents, listing: Listing, where: Mapping[str, str], repo: str) -> tuple[str, ...]:
    """The weight files that the library would load, as far as the repository has them; `where` is its index.

    UsageError where the index points out of the repository.
    """
    if contents.first is None:
        return ()
    if not contents.first.endswith(INDEX):
        return (contents.first,)
    named = sorted(set(where.values()))
    for name in named:
        if not (inside(name) and _is_plain(name)):
            raise UsageError(f"{contents.first} of {repo} cannot be trusted: it names {name[:80]!r} outside of it")
    # What is no weight file by its name stays unread; the reader of checkpoints says that it is not there.
    return tuple(name for name in named if name in listing.files and name.endswith(WEIGHTS))


def _is_plain(name: str) -> bool:
    """Whether a name can be a file's below a directory: no way up, no second spelling, nothing unprintable."""
    parts = name.split("/")
    return all(part not in ("", ".", "..") for part in parts) and "\\" not in name and name.isprintable()
