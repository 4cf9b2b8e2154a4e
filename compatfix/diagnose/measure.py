"""Runs the tree with toggles around it, prompt by prompt, and keeps what was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from statistics import fmean

from compatfix.diagnose.pair import Pair
from compatfix.diagnose.ranking import Measured
from compatfix.diagnose.toggle import NotHere, Stack, Suspect, Toggle
from compatfix.validate.bench import Mode, Run
from compatfix.validate.bf16 import PlainText, kind_of, measured_noise, noisy_difference, plain_text
from compatfix.validate.compare import expected_tokens

# A toggle none of whose first prompts gains anything is not measured on the others.
SCREEN = 3


class Raised(Exception):
    """The tree raised under a toggle, or by itself; the message names the exception and the place."""


@dataclass(frozen=True)
class Outcome:
    """One generation: tokens accepted per round on average, and whether its text is wrong (None: not compared)."""

    accepted: float
    wrong: bool | None


Outcomes = dict[str, list[Outcome]]


@dataclass
class Bank:
    """Measures on one pair; plain texts are made once per prompt."""

    pair: Pair
    prompts: list[list[int]]
    tokens: int
    modes: list[Mode]
    stops: list[int]
    runs: int = 0
    _texts: dict[tuple[int, ...], PlainText] = field(default_factory=dict)

    def all(self, toggles: Sequence[Toggle]) -> Outcomes:
        """Every mode on every prompt. Raises Raised, NotHere."""
        return {mode.name: [self.one(toggles, mode, i) for i in range(len(self.prompts))] for mode in self.modes}

    def toggled(
        self, kept: Sequence[Toggle], suspect: Suspect, rank: int, toggle: Toggle, before: Outcomes
    ) -> list[Measured]:
        """One toggle on top of those that are kept, in each of its modes. Raises Raised, NotHere."""
        found = []
        for mode in self.modes:
            if mode.kind in toggle.modes:
                found.append(self._in_mode(kept, suspect, rank, toggle, mode, before[mode.name]))
        return found

    def one(self, toggles: Sequence[Toggle], mode: Mode, index: int) -> Outcome:
        forms = [toggle.prompts for toggle in toggles if toggle.prompts is not None]
        prompt = forms[-1][index] if forms else self.prompts[index]
        tampers = [toggle.tamper() for toggle in toggles if toggle.tamper is not None]
        with ExitStack() as stack:
            for toggle in toggles:
                stack.enter_context(toggle.around())
            self.runs += 1
            run = self.pair.bench.run(
                mode, prompt, self.tokens, profile=None, stops=self.stops, tamper=Stack(tampers) if tampers else None
            )
        if run.error is not None:
            if run.error["type"] == NotHere.__name__:
                raise NotHere(run.error["message"])
            raise Raised(_told(run.error))
        compared = not any(toggle.own_text for toggle in toggles)
        return Outcome(fmean(run.lengths) if run.lengths else 1.0, self._wrong(run, prompt) if compared else None)

    def _in_mode(
        self, kept: Sequence[Toggle], suspect: Suspect, rank: int, toggle: Toggle, mode: Mode, before: list[Outcome]
    ) -> Measured:
        after: list[Outcome] = []
        wrong = sum(bool(outcome.wrong) for outcome in before) if toggle.repairs_text else 0
        screened = False
        for index in range(len(self.prompts)):
            after.append(self.one([*kept, toggle], mode, index))
            gained = any(b.accepted > a.accepted for a, b in zip(before, after, strict=False))
            if len(after) == SCREEN < len(self.prompts) and not gained and not (wrong and not after[-1].wrong):
                screened = True
                break
        return Measured(
            suspect.name,
            toggle.name,
            mode.name,
            rank,
            tuple(outcome.accepted for outcome in before[: len(after)]),
            tuple(outcome.accepted for outcome in after),
            wrong,
            wrong if screened or not wrong else sum(bool(outcome.wrong) for outcome in after),
            screened,
        )

    def _wrong(self, run: Run, prompt: Sequence[int]) -> bool:
        """Whether the text leaves plain decoding's by more than rounding explains."""
        bench, key = self.pair.bench, tuple(prompt)
        if key not in self._texts:
            self._texts[key] = plain_text(bench, list(prompt), self.tokens)
        text = self._texts[key]
        length = len(expected_tokens(text.tokens, self.tokens, self.stops))
        # What stands behind a stop token is no matter of acceptance.
        found = noisy_difference(bench, replace(run, tokens=run.tokens[:length]), text, length)
        if found is None:
            return False
        noise = measured_noise(bench, list(self._texts.values()))
        return kind_of(bench, found, noise) == "corruption"


def _told(error: dict[str, object]) -> str:
    place = error.get("place")
    where = f" at {place['file']}:{place['line']}" if isinstance(place, dict) else ""
    return f"{error['type']}{where}: {error['message']}"
