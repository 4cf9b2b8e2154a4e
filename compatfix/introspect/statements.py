"""Profiles as sentences with their evidence, grouped by topic for a report. Torch-free.

What probes measured is not repeated here: their answers stand for themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

from compatfix.memory_plan import count_of, gigabytes
from compatfix.model import Evidence, Statement
from compatfix.profiles import (
    ClassProfile,
    DraftProfile,
    EnvironmentProfile,
    MemoryPlan,
    TargetProfile,
)


def statements_of(
    target: TargetProfile, draft: DraftProfile | None, environment: EnvironmentProfile, memory: MemoryPlan
) -> tuple[Statement, ...]:
    return (
        *structure(target),
        *cache(target),
        *hidden_states(target, draft),
        *(draft_lines(draft) if draft is not None and not draft.missing else ()),
        *memory_lines(memory, shapes_seen=target.states is not None and target.states.counted),
        *environment_lines(environment),
        *target.tiny,
    )


def structure(target: TargetProfile) -> Iterator[Statement]:
    topic = "structure"
    named = ", ".join(target.architectures) or "none"
    yield Statement(topic, "architectures", f"architectures in the config: {named}", "read", list(target.architectures))
    for profile in target.classes:
        yield from _class_lines(topic, profile, profile.name == target.class_name)
    if target.absent_paths:
        real = "; ".join(f"{profile.embedding} in {profile.name}" for profile in target.classes)
        text = f"{', '.join(target.absent_paths)} exists in no class; the embeddings are {real}"
        yield Statement(topic, "absent paths", text, "measured", list(target.absent_paths))
    for name, value in target.transforms.items():
        yield Statement(topic, f"transform.{name}", f"{name} = {value:g} in the config", "read", value)
    if not target.transforms:
        text = "no embedding scale, logit scale or soft-cap in the config"
        yield Statement(topic, "transform", text, "read", {})


def _class_lines(topic: str, profile: ClassProfile, chosen: bool) -> Iterator[Statement]:
    which = f"{profile.loaders[0]} gives {profile.name}" if chosen else f"alternative: {profile.name}"
    which += f" ({', '.join(profile.loaders[chosen:])})" if profile.loaders[chosen:] else ""
    size = f"{profile.tensors} tensors, {count_of(profile.parameters)} parameters"
    key = f"class.{profile.name}"
    value = {"tensors": profile.tensors, "parameters": profile.parameters, "chosen": chosen}
    yield Statement(topic, key, f"{which}: {size}", "measured", value)
    yield Statement(topic, f"{key}.nesting", " > ".join(profile.nesting), "measured", list(profile.nesting))
    paths = {"embeddings": profile.embedding, "layers": profile.layers, "norm": profile.norm, "head": profile.head}
    text = ", ".join(f"{name} {path or 'none'}" for name, path in paths.items())
    tied = "; head and embeddings are one tensor" if profile.tied else "; head and embeddings are not tied"
    yield Statement(topic, f"{key}.paths", text + tied, "measured", {**paths, "tied": profile.tied})


def cache(target: TargetProfile) -> Iterator[Statement]:
    topic = "cache"
    if target.cache is not None:
        kinds = dict(target.cache.kinds)
        text = f"{target.cache.class_name}: {', '.join(f'{count} {kind}' for kind, count in kinds.items())} layers"
        yield Statement(topic, "kinds", text, "measured", kinds)
    if target.strategy is not None:
        yield Statement(topic, "strategy", f"verification strategy: {target.strategy}", "measured", target.strategy)


def hidden_states(target: TargetProfile, draft: DraftProfile | None) -> Iterator[Statement]:
    topic = "hidden states"
    count = target.num_layers + 1
    text = f"{count} entries for {target.num_layers} layers: the embedding output and every layer's"
    standard = target.value("hidden_states_layout", "count") == target.value("hidden_states_layout", "layers", -2) + 1
    if standard:
        yield Statement(topic, "count", text, "measured", count)
    if draft is None or not draft.layer_ids or draft.missing:
        return
    entries = [i + 1 for i in draft.layer_ids]
    text = f"the draft's layers {list(draft.layer_ids)} are entries {entries}"
    yield Statement(topic, "entries", text, "read", entries)
    text = "whether these ids mean the same as in the draft's training cannot be measured without weights"
    yield Statement(topic, "meaning", text, "assumed", list(draft.layer_ids))


def draft_lines(draft: DraftProfile) -> Iterator[Statement]:
    topic = "draft"
    size = f"{draft.num_layers} layers, hidden size {draft.hidden_size}, vocabulary {draft.vocab_size}, {draft.dtype}"
    yield Statement(topic, "size", size, "read", {"layers": draft.num_layers, "hidden": draft.hidden_size})
    block = f"block_size {draft.block_size}, stored at: {draft.block_size_at}"
    yield Statement(topic, "block_size", block, "read", {"value": draft.block_size, "at": draft.block_size_at})
    mask = f"mask token {draft.mask_token_id}, stored at: {draft.mask_token_at}"
    yield Statement(topic, "mask_token", mask, "read", {"value": draft.mask_token_id, "at": draft.mask_token_at})
    derived = draft.layer_ids_at == "nowhere"
    where = "derived by the published rule" if derived else f"stored at: {draft.layer_ids_at}"
    evidence: Evidence = "assumed" if derived else "read"
    ids = list(draft.layer_ids)
    yield Statement(topic, "layer_ids", f"target_layer_ids {ids}, {where}", evidence, ids)
    depth = draft.num_target_layers
    yield Statement(topic, "num_target_layers", f"made for a target of {depth} layers", "read", depth)
    if draft.sliding_layers:
        text = f"{draft.sliding_layers} of {draft.num_layers} layers slide over a window of {draft.sliding_window}"
        value = {"layers": draft.sliding_layers, "window": draft.sliding_window}
        yield Statement(topic, "windows", text, "read", value)
    yield Statement(topic, "rope", f"rope theta {draft.rope_theta:.0f}" if draft.rope_theta else "rope theta not given",
                    "read", draft.rope_theta)  # fmt: skip
    if draft.remote_code:
        yield Statement(topic, "auto_map", "auto_map names code of its own: not needed and not run", "read", True)


def memory_lines(plan: MemoryPlan, *, shapes_seen: bool) -> Iterator[Statement]:
    topic = "memory"
    seen = {"target", *(("kv", "states", "tree states", "tree records") if shapes_seen else ())}
    for item in plan.items:
        text = f"{gigabytes(item.bytes)} {item.text}" + ("" if item.counted else " (not in the sum)")
        yield Statement(topic, item.key, text, "measured" if item.key in seen else "read", item.bytes)
    text = f"{gigabytes(plan.total)} in all at {plan.context} tokens"
    yield Statement(topic, "total", text, "read", plan.total)
    for i, verdict in enumerate(plan.verdicts):
        yield Statement(topic, f"verdict.{i}", verdict, "read", plan.fits if i == 0 else None)


def environment_lines(environment: EnvironmentProfile) -> Iterator[Statement]:
    topic = "environment"
    versions = f"python {environment.python}, torch {environment.torch}, transformers {environment.transformers}"
    value = {"python": environment.python, "torch": environment.torch, "transformers": environment.transformers}
    yield Statement(topic, "versions", versions, "measured", value)
    for package in environment.packages:
        if package.version is not None:
            yield Statement(topic, package.name, f"{package.name} {package.version}", "measured", package.version)
        elif package.wanted:
            text = f"{package.name} missing, {package.effect}: {package.cost}; {package.command}"
            yield Statement(topic, package.name, text, "measured")
    idle = [package.name for package in environment.packages if package.version is None and not package.wanted]
    if idle:
        text = f"missing and not used by this target: {', '.join(idle)}"
        yield Statement(topic, "not used", text, "measured", idle)
