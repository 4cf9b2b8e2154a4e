"""What a model directory says about tokens: vocabulary, special and end tokens, chat template. Free of torch."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from compatfix.profiles import EndTokens, TokenizerProfile

FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model")
CONFIG, GENERATION, TEMPLATE = "tokenizer_config.json", "generation_config.json", "chat_template.jinja"
ROLES = ("bos_token", "eos_token", "pad_token", "unk_token", "mask_token")
# Variables of a template that switch a model's thinking on or off.
SWITCH = re.compile(r"\b(enable_thinking|thinking(?:_budget|_mode)?|reasoning_effort)\b(?!\s*[(=]\s*['\"])")


def read_tokenizer(path: str, config: Mapping[str, Any]) -> TokenizerProfile | None:
    """The tokenizer of a model directory; None where it has none. Never raises for what the files hold.

    `config` is the model's config.json, which names end tokens too.
    """
    place = Path(path)
    files = tuple(name for name in FILES if (place / name).is_file()) if place.is_dir() else ()
    ends = _end_tokens(place, config)
    if not files:
        return None
    problems: list[str] = []
    settings = _json(place / CONFIG, problems) if (place / CONFIG).is_file() else {}
    tokens: dict[int, str] = {}
    special: set[int] = set()
    if "tokenizer.json" in files:
        tokens, special = _tokens(_json(place / "tokenizer.json", problems))
    elif "vocab.json" in files:
        tokens = {i: text for text, i in _json(place / "vocab.json", problems).items() if isinstance(i, int)}
    ids = {text: number for number, text in tokens.items()}
    roles = {role: ids.get(str(text)) for role in ROLES if (text := _text(settings.get(role))) is not None}
    template = _template(place, settings, problems)
    return TokenizerProfile(
        path=path,
        files=files,
        tokens=len(tokens),
        highest=max(tokens, default=None),
        special=len(special),
        roles=roles,
        ends=EndTokens(config=ends[0], generation=ends[1], tokenizer=roles.get("eos_token")),
        template=template is not None,
        switches=tuple(sorted({match.group(1) for match in SWITCH.finditer(template or "")})),
        digest=hashlib.sha256(json.dumps(sorted(tokens.items())).encode()).hexdigest() if tokens else None,
        problems=tuple(problems),
    )


def token_text(path: str, number: int) -> str | None:
    """What token `number` of a directory's tokenizer is; None where there is no such token."""
    file = Path(path) / "tokenizer.json"
    if not file.is_file():
        return None
    return _tokens(_json(file, []))[0].get(number)


def _tokens(data: Mapping[str, Any]) -> tuple[dict[int, str], set[int]]:
    """Text by id, and the ids of special tokens, of a tokenizer.json: a map of texts, or a list of pairs (Unigram)."""
    model = data.get("model")
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    tokens: dict[int, str] = {}
    if isinstance(vocabulary, Mapping):
        tokens = {number: str(text) for text, number in vocabulary.items() if isinstance(number, int)}
    elif isinstance(vocabulary, list):
        tokens = {number: str(pair[0]) for number, pair in enumerate(vocabulary) if isinstance(pair, list) and pair}
    special = set()
    added = data.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        if isinstance(token, Mapping) and isinstance(token.get("id"), int):
            tokens[token["id"]] = str(token.get("content"))
            if token.get("special"):
                special.add(token["id"])
    return tokens, special


def _end_tokens(place: Path, config: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Of config.json (its text part first), and of generation_config.json; None without that file."""
    inner = config.get("text_config")
    own = inner.get("eos_token_id") if isinstance(inner, Mapping) else None
    of_config = _numbers(own if own is not None else config.get("eos_token_id"))
    file = place / GENERATION
    if not place.is_dir() or not file.is_file():
        return of_config, None
    return of_config, _numbers(_json(file, []).get("eos_token_id"))


def _numbers(value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(number for number in values if isinstance(number, int) and not isinstance(number, bool))


def _template(place: Path, settings: Mapping[str, Any], problems: list[str]) -> str | None:
    file = place / TEMPLATE
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"{TEMPLATE} cannot be read: {error}")
    told = settings.get("chat_template")
    if isinstance(told, list):  # several templates by name
        return "\n".join(_texts(told))
    return told if isinstance(told, str) else None


def _texts(templates: list[Any]) -> Iterator[str]:
    for entry in templates:
        if isinstance(entry, Mapping):
            yield str(entry.get("template", ""))


def _text(told: Any) -> str | None:
    """A token in tokenizer_config.json is its text, or an object that holds it."""
    content = told.get("content") if isinstance(told, Mapping) else told
    return content if isinstance(content, str) else None


def _json(file: Path, problems: list[str]) -> dict[str, Any]:
    try:
        data = json.loads(file.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        problems.append(f"{file.name} cannot be read: {error.strerror or error}")
        return {}
    except (ValueError, RecursionError) as error:
        problems.append(f"{file.name} is not valid JSON: {error}")
        return {}
    if not isinstance(data, dict):
        problems.append(f"{file.name} holds a {type(data).__name__}, not an object")
        return {}
    return data
