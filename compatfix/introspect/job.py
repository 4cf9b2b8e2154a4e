"""The worker's job "inspect": from a model directory to an Inspection, without loading weights."""

from __future__ import annotations

from typing import Any

from compatfix.checkpoint.describe import checkpoint_in
from compatfix.checkpoint.quantisation import describe_quantisation
from compatfix.checkpoint.tokenizer import read_tokenizer
from compatfix.errors import UsageError
from compatfix.introspect.checkpoints import describe_draft_checkpoint, describe_target_checkpoint
from compatfix.introspect.classes import CAUSAL
from compatfix.introspect.configfile import read_config, read_target_config
from compatfix.introspect.draft import read_draft
from compatfix.introspect.dtypes import quantisation_of
from compatfix.introspect.environment import describe_environment
from compatfix.introspect.file_statements import checkpoint_lines, quantisation_lines, tokenizer_lines
from compatfix.introspect.memory import plan_memory
from compatfix.introspect.statements import statements_of
from compatfix.introspect.target import describe_target
from compatfix.introspect.tokens import describe_tokenizer
from compatfix.profiles import Inspection
from compatfix.serial import to_plain
from compatfix.worker import JobError, Progress

CONTEXT = 4096
TREE_BUDGET = 64


def run(args: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Args: target, draft (or None), loader, context, tree_budget, seed, devices (sizes in GB).

    Returns an Inspection as JSON, with the target's answers once more at the top. Raises JobError for bad input.
    """
    try:
        inspection = inspect(
            args["target"],
            args.get("draft"),
            progress,
            loader=args.get("loader") or CAUSAL,
            context=int(args.get("context") or CONTEXT),
            tree_budget=int(args.get("tree_budget") or TREE_BUDGET),
            seed=int(args.get("seed") or 0),
            devices=tuple(args.get("devices") or ()),
        )
    except UsageError as error:
        raise JobError(str(error)) from error
    plain: dict[str, Any] = to_plain(inspection)
    return {**plain, "answers": plain["target"]["answers"]}


def inspect(
    target_path: str,
    draft_path: str | None,
    progress: Progress,
    *,
    loader: str = CAUSAL,
    context: int = CONTEXT,
    tree_budget: int = TREE_BUDGET,
    seed: int = 0,
    devices: tuple[str | float, ...] = (),
) -> Inspection:
    progress("reading configs")
    config = read_target_config(target_path)
    draft = read_draft(draft_path) if draft_path is not None else None
    target = describe_target(config, target_path, progress, loader=loader, seed=seed)
    progress("looking at the environment")
    environment = describe_environment(target.kernels, devices)
    memory = plan_memory(
        target,
        draft if draft is not None and not draft.missing else None,
        environment.devices,
        context=context,
        tree_budget=tree_budget,
        weight_bytes=quantisation_of(config)[1],
    )
    progress("reading the checkpoint's headers")
    checkpoint = describe_target_checkpoint(config, target_path, loader)
    draft_checkpoint = describe_draft_checkpoint(draft)
    progress("reading the tokenizer")
    tokenizer = describe_tokenizer(target_path, config, draft.mask_token_id if draft is not None else None)
    draft_tokenizer = read_tokenizer(draft_path, read_config(draft_path)) if draft_path is not None else None
    stored = checkpoint_in(target_path)
    quantisation = describe_quantisation(config, stored.tensors if stored is not None and stored.tensors else None)
    lines = (
        *statements_of(target, draft, environment, memory),
        *checkpoint_lines("checkpoint", checkpoint),
        *checkpoint_lines("draft checkpoint", draft_checkpoint),
        *quantisation_lines(quantisation, target, draft),
        *tokenizer_lines(tokenizer, target.vocab_size, draft),
    )
    return Inspection(
        target,
        draft,
        environment,
        memory,
        lines,
        checkpoint,
        draft_checkpoint,
        tokenizer,
        draft_tokenizer,
        quantisation,
    )
