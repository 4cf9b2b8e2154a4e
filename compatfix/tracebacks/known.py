"""What a known error is: how it reads, where it comes from, and what to do. The tables beside this file list them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Source = Literal["measured", "public notes"]


@dataclass(frozen=True)
class Known:
    """One error text.

    `says` is a pattern over the message as it reads, with single spaces; spaces and back-ticks are taken out of it, as
    they are out of the text it is held against, so it must not use them in classes. `needle` is a literal part of every
    match, so that most patterns are never tried. `where`, if given, must be found in one of the two deepest frames
    ("file function code"): texts such as "list index out of range" say nothing alone.
    `what`, `do` and `then` may name the groups of `says` in braces. `select` is what `compatfix patch --select` takes
    where a rule fixes it. `then` is what comes next, above all what stays silent once the exception is gone.
    `source` says how the versions are known: "measured" where the error was reproduced.
    """

    key: str
    says: str
    needle: str
    what: str
    versions: str
    source: Source
    code: str | None = None
    where: str = ""
    select: str = ""
    do: str = ""
    then: str = ""
    real: bool = True

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(self.says.replace(" ", "").replace("`", ""))

    @cached_property
    def squeezed_needle(self) -> str:
        return self.needle.replace(" ", "").replace("`", "")

    @cached_property
    def place(self) -> re.Pattern[str] | None:
        return re.compile(self.where) if self.where else None
