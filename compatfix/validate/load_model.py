"""Loads a checkpoint as the user's own script would, with what the library says of it, and its progress."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

# At most so many steps of a load are told.
STEPS = 100

Progress = Callable[..., None]


class Incomplete(Exception):
    """The checkpoint cannot be judged: it does not load, keys are missing or of another shape, or it does not fit.

    `detail` may hold a "hint": what to do, where the code's own advice does not fit.
    """

    def __init__(self, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.detail = detail


def load(
    loader: Any,
    directory: Path,
    dtype: Any,
    what: str,
    progress: Progress,
    tolerated: list[str] | None = None,
    **placing: Any,
) -> tuple[Any, list[str]]:
    """The model and its surplus keys. Missing keys are an error, or are added to `tolerated` where that is given.

    Raises Incomplete.
    """
    with loading(what), _told(progress, f"loading the {what}"):
        model, info = loader.from_pretrained(
            directory, dtype=dtype, output_loading_info=True, local_files_only=True, **placing
        )
    missing = sorted(info.get("missing_keys", ()))
    mismatched = sorted(str(entry) for entry in info.get("mismatched_keys", ()))
    if tolerated is not None and not mismatched:
        tolerated += missing
    elif missing or mismatched:
        named = (missing or mismatched)[0]
        kind = "missing" if missing else "of another shape"
        count = len(missing) + len(mismatched)
        raise Incomplete(
            f"{count} keys of the {what} are {kind} for {type(model).__name__}: {named}, …",
            missing=missing[:20],
            mismatched=mismatched[:20],
        )
    return model, sorted(info.get("unexpected_keys", ()))


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Whatever the library raises over a checkpoint is said of the checkpoint; only want of memory is not its fault."""
    try:
        yield
    except Exception as error:
        lines = str(error).strip().splitlines()
        message = lines[0] if lines else ""
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in message:
            raise
        hint = {"hint": "install the package that is named, or do without"} if isinstance(error, ImportError) else {}
        raise Incomplete(f"the {what} did not load: {type(error).__name__}: {message}", **hint) from error


def check_values(model: Any, directory: Path) -> None:
    """Embeddings of zeros alone are no model's: files that have true headers and holes behind them load like this.

    Raises Incomplete.
    """
    weight = getattr(model.get_input_embeddings(), "weight", None)
    if isinstance(weight, torch.Tensor) and weight.device.type != "meta" and not torch.count_nonzero(weight):
        raise Incomplete(f"every value of the embeddings in {directory} is zero: its files hold headers and no weights")


def check_buffers(model: nn.Module, what: str) -> None:
    """Buffers that no checkpoint stores must be what the class makes: a load on the meta device may leave them unset.

    Raises Incomplete, which names the first that is not.
    """
    fresh = _fresh(model)
    if fresh is None:
        return
    made, stored = dict(fresh.named_buffers()), set(model.state_dict())
    for name, own in model.named_buffers():
        expected = made.get(name)
        if name in stored or expected is None or own.device.type == "meta" or own.shape != expected.shape:
            continue
        if not torch.allclose(own.cpu().double(), expected.double(), rtol=1e-2, atol=1e-6, equal_nan=True):
            raise Incomplete(
                f"buffer {name} of the {what} is not what {type(model).__name__} makes of its config",
                buffer=name,
                hint="compute it in __init__ from the config, or register it as persistent",
            )


def _fresh(model: nn.Module) -> nn.Module | None:
    """An instance made on the CPU with parameters that nothing fills; None where the class cannot be made so."""
    made: Any = type(model)
    with contextlib.suppress(Exception), _no_weights():
        found: nn.Module = made(model.config)
        return found
    return None


def _no_weights() -> contextlib.AbstractContextManager[Any]:
    try:
        from transformers.initialization import no_init_weights  # since transformers 5
    except ImportError:
        from transformers.modeling_utils import no_init_weights
    skipped: contextlib.AbstractContextManager[Any] = no_init_weights()
    return skipped


@contextmanager
def _told(progress: Progress, stage: str) -> Iterator[None]:
    """The library's progress bar, tensor by tensor or shard by shard, as steps of this tool's own."""
    from transformers.utils import logging

    bars = getattr(logging, "tqdm_lib", None)
    if bars is None:
        yield
        return

    class Bar:
        """As much of a tqdm as loading uses."""

        def __init__(self, iterable: Iterable[Any] = (), *args: Any, total: int | None = None, **options: Any) -> None:
            self._iterable, self.n = iterable, 0
            self.total = total if total is not None else len(iterable) if isinstance(iterable, Sized) else 0

        def __iter__(self) -> Iterator[Any]:
            for item in self._iterable:
                yield item
                self.update(1)

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *raised: Any) -> None:
            pass

        def update(self, count: int = 1) -> None:
            self.n += count
            if self.total and (self.n == self.total or self.n % max(1, self.total // STEPS) == 0):
                progress(stage, self.n, self.total)

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *args, **options: None

    own = logging.tqdm_lib
    logging.tqdm_lib = type("tqdm_lib", (), {"tqdm": Bar})
    try:
        yield
    finally:
        logging.tqdm_lib = own
