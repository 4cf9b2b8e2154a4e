"""What every arranged situation needs: one mode's runs against the references, and a count of what occurred."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from compatfix.validate.bench import Bench, Mode, Run
from compatfix.validate.losslessness import compare_one
from compatfix.validate.oracle import ALWAYS, Profile
from compatfix.validate.references import Reference
from compatfix.validate.tally import Tally

CASE_PROMPTS = 3


@dataclass
class Cases:
    """One mode. `seen` counts situations that occurred; `lengths` are the tokens committed per round under forced
    rejections, by the index of the reference."""

    bench: Bench
    mode: Mode
    tally: Tally
    references: Sequence[Reference]
    lengths: Mapping[int, Sequence[int]]
    seen: dict[str, int] = field(default_factory=dict)

    def plan(self, *names: str) -> None:
        """A situation that was planned is counted, at zero for as long as it has not occurred."""
        for name in names:
            self.seen.setdefault(name, 0)

    def count(self, name: str, occurred: int) -> None:
        self.seen[name] = self.seen.get(name, 0) + occurred

    def run(
        self,
        reference: Reference,
        tokens: int,
        *,
        stops: Sequence[int] | None = (),
        mask: int | None = None,
        where: str,
        profile: Profile = ALWAYS,
    ) -> Run:
        self.tally["planned"] += 1
        self.tally["tokens_planned"] += tokens
        return compare_one(
            self.bench, self.mode, self.tally, reference, tokens, profile, mask=mask, stops=stops, where=where
        )

    def unused(self, reference: Reference, count: int) -> list[int]:
        """Tokens that occur neither in the prompt nor in the text."""
        known = {*reference.prompt, *reference.tokens}
        return [token for token in self.bench.plain_tokens if token not in known][:count]


def new_at(reference: Reference, places: Iterable[int]) -> list[int]:
    """Those of the places whose token is new there: neither in the prompt nor earlier in the text."""
    text = reference.tokens
    return [
        place
        for place in places
        if place < len(text) and text[place] not in text[:place] and text[place] not in reference.prompt
    ]
