"""Small questions that patched code asks of a target: its embeddings, its head, its hidden states, its device."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .attest import note_draft
from .draft_config import draft_number
from .mixers import replaced_forwards
from .refusal import RuntimeRefusal

log = logging.getLogger(__name__)


def input_embeddings(target: Any, draft: Any = None) -> nn.Module:
    """The module that embeds the target's tokens, wherever the class keeps it.

    With a draft whose config has an `input_embedding_scale`, a module that gives the target's raw rows times that
    scale: such a draft was trained on them, whatever the target's own module does to its rows.
    """
    try:
        embeddings = target.get_input_embeddings()
    except (AttributeError, NotImplementedError) as error:
        raise RuntimeRefusal(f"{type(target).__name__} does not tell its input embeddings: {error}") from error
    if not isinstance(embeddings, nn.Module):
        raise RuntimeRefusal(f"{type(target).__name__}.get_input_embeddings() gives {embeddings!r}, not a module")
    scale = draft_number(draft, "input_embedding_scale")
    return embeddings if scale is None else ScaledRows(embeddings, scale)


class ScaledRows(nn.Module):
    """Raw rows of an embedding, times a scale: ids (…) to (…, H) in the dtype of the rows."""

    def __init__(self, embeddings: nn.Module, scale: float) -> None:
        super().__init__()
        self.__dict__["embeddings"] = embeddings  # the target's, and no part of this module
        self.scale = scale

    def forward(self, ids: Tensor) -> Tensor:
        embeddings = self.__dict__["embeddings"]
        if not isinstance(embeddings, nn.Embedding):
            raise RuntimeRefusal(f"{type(embeddings).__name__} is no plain embedding; its raw rows cannot be had")
        # Inside whatever hook fetches the weights.
        with replaced_forwards({embeddings: lambda _: lambda given: nn.Embedding.forward(embeddings, given)}):
            rows: Tensor = embeddings(ids)
        return rows * self.scale


def draft_logits(target: Any, hidden: Tensor, draft: Any = None) -> Tensor:
    """The target's output head on the draft's hidden states (…, H), moved to the head's dtype and device: (…, V).

    With a draft, its config's `output_multiplier`, then its `final_logit_softcapping`. What the target does between its
    head and its logits is no part of this: the draft's training decides.
    """
    note_draft(draft)
    head = target.get_output_embeddings() if hasattr(target, "get_output_embeddings") else None
    if not callable(head):
        raise RuntimeRefusal(
            f"{type(target).__name__}.get_output_embeddings() gives {head!r}; a draft without its own head needs one"
        )
    weight = getattr(head, "weight", None)
    if isinstance(weight, Tensor):
        # Quantised weights are integers: they dequantise to whatever the input is. Offloaded ones lie nowhere: hooks
        # bring them, and the input, to where they are used.
        dtype = weight.dtype if weight.dtype.is_floating_point else hidden.dtype
        hidden = hidden.to(device=weight.device if weight.device.type != "meta" else hidden.device, dtype=dtype)
    logits: Tensor = head(hidden)
    multiplier, cap = draft_number(draft, "output_multiplier"), draft_number(draft, "final_logit_softcapping")
    if multiplier is not None:
        logits = logits * multiplier
    if cap is not None and cap > 0:
        logits = torch.tanh(logits / cap) * cap
    return logits


def hidden_state(hidden_states: Sequence[Tensor | None] | None, index: int) -> Tensor:
    """Entry `index` of a target's hidden states (0 is the embedding output), on the device of the first entry."""
    if hidden_states is None:
        raise RuntimeRefusal("the target returned no hidden states; call it with output_hidden_states=True")
    if not -len(hidden_states) <= index < len(hidden_states):
        raise RuntimeRefusal(f"hidden state {index} was asked for, but the target returned {len(hidden_states)}")
    entry = hidden_states[index]
    if entry is None:
        raise RuntimeRefusal(f"hidden state {index} is missing: output_hidden_states asked for other entries only")
    if not isinstance(hidden_states, tuple):
        return entry
    first = next(state for state in hidden_states if state is not None)
    return entry.to(first.device)


def synchronize(device: Any = None) -> None:
    """Waits for the accelerator, if there is one: `device`'s, or the one that torch uses here."""
    accelerator = getattr(torch, "accelerator", None)  # older versions of torch ask each kind for itself
    kinds = [torch.device(device).type] if device is not None else ["cuda", "npu", "xpu", "mps"]
    if accelerator is not None and accelerator.is_available() and kinds != ["cpu"]:
        accelerator.synchronize(None if device is None else torch.device(device))
        return
    for kind in kinds:
        backend = getattr(torch, kind, None)
        if backend is not None and hasattr(backend, "synchronize") and kind != "cpu" and backend.is_available():
            if device is not None and kind != "mps":
                backend.synchronize(device)
            else:
                backend.synchronize()
            return


def attention(preferred: str) -> str:
    """The attention implementation to load with: `preferred` if it can run here, else "sdpa" with a line in the log."""
    reason = _missing(preferred)
    if reason is None:
        return preferred
    log.warning("attention %r cannot be used here (%s); using 'sdpa'", preferred, reason)
    return "sdpa"


def _missing(implementation: str) -> str | None:
    packages = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}
    if implementation in packages:
        if importlib.util.find_spec(packages[implementation]) is None:
            return f"no module {packages[implementation]}"
        return None if torch.cuda.is_available() else "no CUDA device"
    if implementation in ("eager", "sdpa"):
        return None
    try:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as known
    except ImportError:
        return "this transformers has no registry of implementations"
    if implementation not in known.valid_keys():
        return "not known to this transformers"
    return None
