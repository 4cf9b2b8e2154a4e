"""What the files of a model directory hold, as sentences: checkpoints and tokenizer. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator

from compatfix.memory_plan import count_of, gigabytes
from compatfix.model import Evidence, Statement
from compatfix.profiles import CheckpointProfile, DraftProfile, Quantisation, TargetProfile, TokenizerProfile
from compatfix.serial import to_plain


def checkpoint_lines(topic: str, checkpoint: CheckpointProfile | None) -> Iterator[Statement]:
    if checkpoint is None:
        return
    files = f"{len(checkpoint.files)} {'file' if len(checkpoint.files) == 1 else 'files'}"
    if not checkpoint.tensors:
        text = f"{checkpoint.form}: {files}, {gigabytes(checkpoint.bytes)}; what they hold was not read"
        yield Statement(topic, "form", text, "read", {"form": checkpoint.form, "files": list(checkpoint.files)})
        return
    stored = ", ".join(
        f"{count_of(row[1])} in {dtype} ({gigabytes(row[2])})" for dtype, row in checkpoint.by_dtype.items()
    )
    text = f"{checkpoint.form} in {files}: {checkpoint.tensors} tensors, {stored}"
    value = {"files": list(checkpoint.files), "tensors": checkpoint.tensors, "bytes": checkpoint.bytes}
    yield Statement(topic, "form", text, "read", {**value, "by_dtype": dict(checkpoint.by_dtype)})
    match = checkpoint.match
    if match is None or match.error:
        return
    evidence: Evidence = "measured" if topic == "checkpoint" else "read"
    if not (match.missing or match.other_shape):
        text = f"every one of the {match.wanted} tensors of {match.class_name} is there, in its shape (headers alone)"
        yield Statement(topic, "complete", text, evidence, match.wanted)
    for part, count in match.left_out.items():
        text = f"{count} tensors of {part} are left out by {match.class_name}"
        yield Statement(topic, f"left out.{part}", text, "read", count)
    if match.tied:
        text = f"tied, filled from another tensor: {', '.join(match.tied)}" + (
            "; stored all the same" if match.tied_stored else "; not stored"
        )
        yield Statement(topic, "tied", text, "read", {"tied": list(match.tied), "stored": list(match.tied_stored)})


def quantisation_lines(
    quantisation: Quantisation | None, target: TargetProfile, draft: DraftProfile | None
) -> Iterator[Statement]:
    topic = "quantisation"
    if quantisation is None:
        return
    form = f" ({quantisation.form})" if quantisation.form else ""
    bits = f", {quantisation.bits} bits a weight" if quantisation.bits else ""
    yield Statement(topic, "method", f"{quantisation.method}{form}{bits}", "read", quantisation.method)
    if quantisation.shares:
        told = ", ".join(
            f"{share.part} {share.quantised} of {share.matrices} matrices" for share in quantisation.shares
        )
        yield Statement(topic, "shares", f"quantised by the headers: {told}", "read", to_plain(quantisation.shares))
    elif quantisation.kept:
        shown = ", ".join(quantisation.kept[:6]) + (" …" if len(quantisation.kept) > 6 else "")
        yield Statement(topic, "kept", f"the config keeps {shown} as they are", "read", list(quantisation.kept))
    seam = f"layers compute in {target.dtype}"
    seam += (
        f", the draft is stored in {draft.dtype} and takes hidden states, embeddings and head of it" if draft else ""
    )
    yield Statement(topic, "seams", seam, "read", {"target": target.dtype, "draft": draft.dtype if draft else None})
    text = "the tiny model is not quantised: these kernels stay unmeasured, and lossless means equal to plain decoding "
    yield Statement(topic, "unmeasured", f"{text}of the same quantised model (--on weights)", "assumed")


def tokenizer_lines(tokenizer: TokenizerProfile | None, rows: int, draft: DraftProfile | None) -> Iterator[Statement]:
    topic = "tokenizer"
    if tokenizer is None:
        return
    if tokenizer.highest is not None:
        spare = rows - 1 - tokenizer.highest
        text = f"{tokenizer.tokens} tokens, {tokenizer.special} of them special; {rows} rows of embeddings"
        text += f", {spare} of them above the highest id" if spare > 0 else ""
        yield Statement(topic, "tokens", text, "read", {"tokens": tokenizer.tokens, "spare": spare})
    else:
        text = f"{', '.join(tokenizer.files)}: what it holds was not read"
        yield Statement(topic, "tokens", text, "read", list(tokenizer.files))
    ends = tokenizer.ends.all
    text = f"end tokens {', '.join(map(str, ends))}" if ends else "no end token is named"
    yield Statement(topic, "ends", text, "read", list(ends))
    if draft is not None and draft.mask_token_id is not None and tokenizer.highest is not None:
        number, name = draft.mask_token_id, tokenizer.mask_token
        where = f"is {name!r} of the tokenizer" if name is not None else "lies outside the tokenizer: no prompt has it"
        yield Statement(topic, "mask token", f"the draft's mask token {number} {where}", "read", name)
    if tokenizer.template:
        named = ", ".join(tokenizer.switches)
        text = "a chat template without a thinking switch"
        if named:
            text = f"the chat template switches thinking by {named}; drafts are trained for one way of thinking"
        yield Statement(topic, "template", text, "read", list(tokenizer.switches))
    if tokenizer.returns is not None:
        text = f'apply_chat_template(return_tensors="pt") gives a {tokenizer.returns} here'
        yield Statement(topic, "template returns", text, "measured", tokenizer.returns)
