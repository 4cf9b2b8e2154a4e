"""Suspect: the prompts have another form than the texts that the draft was trained on."""

from __future__ import annotations

from typing import Any

from compatfix.diagnose.pair import Pair
from compatfix.diagnose.toggle import NotHere, Suspect, Toggle

QUESTION = "Do the prompts have the form (chat template, thinking mode) that the draft was trained on?"
FORMS = ("raw", "template", "thinking", "no-thinking")
NAMES = {"raw": "raw text", "template": "the chat template", "thinking": "the template with thinking on",
         "no-thinking": "the template with thinking off"}  # fmt: skip


def suspects(pair: Pair) -> list[Suspect]:
    if pair.tokenizer is None:
        return [Suspect("prompt form", QUESTION, "CF954", unmeasured="the target's directory has no tokenizer")]
    if not getattr(pair.tokenizer, "chat_template", None):
        return [Suspect("prompt form", QUESTION, "CF954", reason="the tokenizer has no chat template")]
    own = formed(pair.tokenizer, pair.texts, pair.chat)
    toggles, seen = [], [own]
    for form in FORMS:
        prompts = formed(pair.tokenizer, pair.texts, form)
        if prompts not in seen:
            seen.append(prompts)
            step = f"give the prompts as {NAMES[form]}, for benchmarks and for users (--chat {form})"
            toggles.append(Toggle(f"prompts as {NAMES[form]}", step, prompts=prompts, own_text=True))
    return [Suspect("prompt form", QUESTION, "CF954", tuple(toggles), reason="every form gives the same tokens")]


def formed(tokenizer: Any, texts: tuple[str, ...], form: str) -> list[list[int]]:
    """The prompts as ids. Raises NotHere where the template refuses them."""
    if form == "raw":
        return [list(tokenizer.encode(text)) for text in texts]
    options = {"thinking": {"enable_thinking": True}, "no-thinking": {"enable_thinking": False}}.get(form, {})
    try:
        rendered = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False, **options
            )
            for text in texts
        ]
    except Exception as error:
        raise NotHere(f"the chat template refused a prompt: {type(error).__name__}: {error}") from error
    return [list(tokenizer.encode(text, add_special_tokens=False)) for text in rendered]
