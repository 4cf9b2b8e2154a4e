"""CF811 to CF815: whether tokenizer, embeddings, end tokens and draft speak of the same tokens."""

from __future__ import annotations

from collections.abc import Iterator

from compatfix.checks.finding import found
from compatfix.model import Finding
from compatfix.profiles import Inspection


def vocabulary_too_large(inspection: Inspection) -> Iterator[Finding]:
    tokenizer, rows = inspection.tokenizer, inspection.target.vocab_size
    if tokenizer is not None and tokenizer.highest is not None and tokenizer.highest >= rows:
        message = f"the tokenizer's highest id is {tokenizer.highest}, and the embeddings have {rows} rows"
        yield found("CF811", message, "read")


def mask_token_is_a_word(inspection: Inspection) -> Iterator[Finding]:
    """A mask token that prompts or texts can hold: then a drafted place and a real token look alike."""
    tokenizer, draft = inspection.tokenizer, inspection.draft
    if tokenizer is None or draft is None or draft.mask_token_id is None or tokenizer.mask_token is None:
        return
    number, text = draft.mask_token_id, tokenizer.mask_token
    ends = number in tokenizer.ends.all
    also = [role for role, value in tokenizer.roles.items() if value == number and role != "mask_token"]
    if ends or also:
        what = " and ".join([*(["an end token"] if ends else []), *also])
        message = f"the draft's mask token {number} is {text!r} of the target's tokenizer, which is {what}"
        yield found("CF812", message, "read")


def end_tokens_differ(inspection: Inspection) -> Iterator[Finding]:
    tokenizer = inspection.tokenizer
    if tokenizer is None:
        return
    ends = tokenizer.ends
    named = {"config.json": set(ends.config), "generation_config.json": set(ends.generation or ())}
    named["the tokenizer"] = {ends.tokenizer} if ends.tokenizer is not None else set()
    lacking = {who: sorted(set(ends.all) - ids) for who, ids in named.items() if ids and set(ends.all) - ids}
    if lacking:
        told = "; ".join(f"{who} lacks {', '.join(map(str, ids))}" for who, ids in lacking.items())
        message = f"end tokens are {', '.join(map(str, ends.all))}: {told}"
        yield found("CF813", message, "read")


def tokenizers_differ(inspection: Inspection) -> Iterator[Finding]:
    target, draft = inspection.tokenizer, inspection.draft_tokenizer
    if target is None or draft is None or None in (target.digest, draft.digest) or target.digest == draft.digest:
        return
    message = f"target and draft come with different tokenizers ({target.tokens} and {draft.tokens} tokens)"
    yield found("CF814", message, "read")


def tokenizer_unreadable(inspection: Inspection) -> Iterator[Finding]:
    for part, tokenizer in (("target", inspection.tokenizer), ("draft", inspection.draft_tokenizer)):
        for problem in tokenizer.problems if tokenizer is not None else ():
            yield found("CF815", f"{part}: {problem}", "read")
