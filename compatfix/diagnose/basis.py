"""Suspect: the target's residual stream was rotated (norms fused, then an orthogonal matrix), and the draft's was not.

A rotated checkpoint computes the same logits, so nothing shows but acceptance: the draft is given features and
embeddings in another basis than that of its training, and its states meet a head of that basis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from compatfix.diagnose.pair import Pair, head_of_draft
from compatfix.diagnose.toggle import NotHere, Read, Suspect, Toggle
from compatfix.validate.watch import Tamper, Watch

EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
HEADS = ("lm_head.weight", "embed_out.weight")
# A least-squares fit this far from orthogonal is no rotation.
ORTHOGONAL = 0.05
QUESTION = "Does the target keep its hidden states in the basis that the draft was trained on?"


class Rotated(Tamper):
    """Features and embeddings are turned by `matrix` (H, H) before the draft sees them: x becomes x @ matrix."""

    def __init__(self, matrix: Tensor) -> None:
        self._matrix = matrix

    def around_draft(self, watch: Watch, call: Callable[[dict[str, Any]], Any], given: dict[str, Any]) -> Any:
        turned = {name: self._turned(given[name]) for name in ("target_hidden", "noise_embedding")}
        return call({**given, **turned})

    def _turned(self, rows: Tensor) -> Tensor:
        size = self._matrix.shape[0]
        parts = rows.reshape(*rows.shape[:-1], -1, size).float() @ self._matrix.to(rows.device)
        return parts.reshape(rows.shape).to(rows.dtype)


def suspects(pair: Pair) -> list[Suspect]:
    size = int(pair.config.hidden_size)
    toggles = []
    for name, matrix in candidates(size):
        step = f"the target's basis is turned by {name}: use an unrotated checkpoint, or turn the draft's inputs back"
        toggles.append(_toggle(pair, f"inputs and head turned by {name}", step, _known(matrix)))
    if pair.reference_dir is not None:
        directory = pair.reference_dir
        step = (
            f"use the checkpoint in {directory} for this draft, or turn the draft's inputs back by the fitted rotation"
        )
        toggles.append(_toggle(pair, "basis and head of the reference", step, lambda: fitted(pair, directory)))
    constant = fused_norms(pair)
    read = None
    if constant:
        text = f"all {constant} norms of the target's layers are constant, as they are once fused into a rotated basis"
        read = Read("hint", text)
    step = "diagnose with --reference DIR, the target's unrotated checkpoint, to measure it; or use that checkpoint"
    return [Suspect("rotated basis", QUESTION, "CF953", tuple(toggles), read=read, step=step)]


Made = Callable[[], tuple[Tensor, Tensor | None]]


def _known(matrix: Tensor) -> Made:
    return lambda: (matrix, None)


def _toggle(pair: Pair, name: str, step: str, make: Made) -> Toggle:
    known: list[tuple[Tensor, Tensor | None]] = []

    def made() -> tuple[Tensor, Tensor | None]:
        if not known:
            known.append(make())
        return known[0]

    @contextmanager
    def around() -> Iterator[None]:
        matrix, head = made()
        weight = head if head is not None else pair.head_weight.float() @ matrix

        def ranked(states: Tensor, logits: Tensor) -> Tensor:
            return (states.float() @ weight.to(states.device).T).to(logits.dtype)

        with ExitStack() as stack:
            stack.enter_context(head_of_draft(pair, ranked))
            yield

    return Toggle(name, step, lambda: Rotated(made()[0]), around)


def candidates(size: int) -> list[tuple[str, Tensor]]:
    """Hadamard matrices of the hidden size, and their transposes where these differ."""
    matrix = hadamard(size)
    if matrix is None:
        return []
    found = [(f"a Hadamard matrix of order {size}", matrix)]
    if not torch.equal(matrix, matrix.T):
        found.append((f"a transposed Hadamard matrix of order {size}", matrix.T.contiguous()))
    return found


def hadamard(size: int) -> Tensor | None:
    """(size, size), orthonormal; Sylvester's doubling of order 1, or of Paley's order q + 1 for a prime q = 3 mod 4."""
    odd = size
    while odd % 2 == 0:
        odd //= 2
    base = torch.ones(1, 1)
    if odd > 1:
        order = odd * 4
        if size % order:
            return None
        made = _paley(order)
        if made is None:
            return None
        base = made
    while base.shape[0] < size:
        base = torch.cat([torch.cat([base, base], 1), torch.cat([base, -base], 1)])
    scaled: Tensor = base * float(size) ** -0.5
    return scaled


def _paley(order: int) -> Tensor | None:
    q = order - 1
    if q % 4 != 3 or any(q % d == 0 for d in range(2, int(q**0.5) + 1)):
        return None
    squares = {i * i % q for i in range(1, q)}
    sign = [0.0] + [1.0 if i in squares else -1.0 for i in range(1, q)]
    skew = torch.zeros(order, order)
    skew[0, 1:], skew[1:, 0] = 1.0, -1.0
    skew[1:, 1:] = torch.tensor([[sign[(i - j) % q] for j in range(q)] for i in range(q)])
    return skew + torch.eye(order)


def fitted(pair: Pair, directory: Path) -> tuple[Tensor, Tensor]:
    """The rotation from the target's embeddings to the reference's, and the reference's head. Raises NotHere."""
    ours = pair.embedding_weight.float().cpu()
    embedding = _tensor(directory, EMBEDDINGS)
    if embedding is None:
        raise NotHere(f"{directory} has no embeddings that could be read")
    head = _tensor(directory, HEADS)
    head = embedding if head is None else head
    if embedding.shape[1] != ours.shape[1]:
        raise NotHere(f"the reference has a hidden size of {embedding.shape[1]}, the target of {ours.shape[1]}")
    rows = min(len(embedding), len(ours))
    left, _, right = torch.linalg.svd(ours[:rows].T @ embedding[:rows])
    matrix = left @ right
    off = float((ours[:rows] @ matrix - embedding[:rows]).norm() / embedding[:rows].norm())
    if off > ORTHOGONAL:
        raise NotHere(f"no rotation takes the target's embeddings to the reference's (relative error {off:.2f})")
    return matrix, head[: pair.head_weight.shape[0]]


def _tensor(directory: Path, names: tuple[str, ...]) -> Tensor | None:
    from safetensors import safe_open

    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 - not a mapping
                if key.endswith(names):
                    found: Tensor = file.get_tensor(key).float()
                    return found
    return None


def fused_norms(pair: Pair) -> int:
    """How many norms of the hidden size the target's layers have, if each of them is constant; else 0."""
    size, count = int(pair.config.hidden_size), 0
    for name, module in pair.target.named_modules():
        weight = getattr(module, "weight", None)
        if "norm" in type(module).__name__.lower() and isinstance(weight, Tensor) and weight.shape == (size,):
            if not bool((weight == weight[0]).all()) or not any(part.isdigit() for part in name.split(".")):
                if any(part.isdigit() for part in name.split(".")):
                    return 0
                continue
            count += 1
    return count
