"""A target's profile: its classes on the meta device, and its behaviour on a tiny model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import transformers

from compatfix.introspect.classes import CAUSAL, NoClass, Resolved, alternatives, config_from_dict, resolve
from compatfix.introspect.dtypes import bytes_of, dtype_of, quantisation_of
from compatfix.introspect.probes import Bench, run_probes
from compatfix.introspect.skeleton import build_skeleton, describe_class, kernel_packages
from compatfix.introspect.states import count_states
from compatfix.introspect.tiny import TinyError, build_tiny_target
from compatfix.introspect.words import one_line
from compatfix.model import Answer, Statement
from compatfix.profiles import CacheProfile, TargetProfile
from compatfix.worker import JobError, Progress

# Fields of configs that scale embeddings or logits, or cap logits.
TRANSFORMS = (
    "embedding_multiplier",
    "embedding_scale",
    "scale_emb",
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "output_multiplier_scale",
    "lm_head_multiplier",
)


def describe_target(
    config: Mapping[str, Any], path: str, progress: Progress, *, loader: str = CAUSAL, seed: int = 0
) -> TargetProfile:
    """Everything that can be known of a target without its weights. Raises JobError where it has no class here."""
    full, chosen = _resolved(config, path, loader)
    progress("building the skeleton")
    profile = _static_profile(config, full, chosen, path, progress)
    answers, tiny = _measure(full, chosen, seed, progress)
    strategy = next((a.value.get("strategy") for a in answers if a.probe == "strategy_is_exact" and a.value), None)
    return replace(profile, answers=answers, tiny=tiny, strategy=strategy, cache=_cache_profile(answers))


def static_profile(config: Mapping[str, Any], path: str, progress: Progress, *, loader: str = CAUSAL) -> TargetProfile:
    """What the meta device shows, without a tiny model: no answers, no strategy. Raises as describe_target does."""
    full, chosen = _resolved(config, path, loader)
    progress("building the skeleton")
    return _static_profile(config, full, chosen, path, progress)


def _resolved(config: Mapping[str, Any], path: str, loader: str) -> tuple[Any, Resolved]:
    full = _library_config(config, path)
    try:
        return full, resolve(full, loader)
    except NoClass as error:
        raise JobError(f"{error}; {path} cannot be inspected with it (CF005)") from error


def _library_config(config: Mapping[str, Any], path: str) -> Any:
    try:
        return config_from_dict(dict(config))
    except NoClass as error:
        if config.get("auto_map"):
            raise JobError(
                f"{path} needs remote code: transformers {transformers.__version__} has no class for model type "
                f"{config.get('model_type')!r} and its auto_map names files of its own, which are not run (CF006)"
            ) from error
        raise JobError(f"{error} of {path}; install a version that has it (CF005)") from error
    except Exception as error:
        raise JobError(f"config.json in {path} is not a config of its model type: {one_line(error)}") from error


def _static_profile(
    config: Mapping[str, Any], full: Any, chosen: Resolved, path: str, progress: Progress
) -> TargetProfile:
    dtype = dtype_of(config)
    try:
        skeleton = build_skeleton(chosen, dtype)
        description = describe_class(skeleton, _loaders(full, chosen))
        text = skeleton.config.get_text_config()
        numbers = {"hidden": text.hidden_size, "vocab": text.vocab_size, "layers": text.num_hidden_layers}
    except Exception as error:
        raise JobError(f"{chosen.name} cannot be built from config.json in {path}: {one_line(error)}") from error
    progress("counting states")
    states = count_states(chosen, dtype)
    kernels = kernel_packages(skeleton, description.layers)
    classes = [description]
    for other in alternatives(full):
        if other.name == chosen.name:
            continue
        progress(f"building the skeleton of {other.name}")
        try:
            classes.append(describe_class(build_skeleton(other, dtype), _loaders(full, other)))
        except Exception:
            continue
    return TargetProfile(
        path=path,
        model_type=full.model_type,
        architectures=tuple(full.architectures or ()),
        class_name=chosen.name,
        classes=tuple(classes),
        hidden_size=numbers["hidden"],
        vocab_size=numbers["vocab"],
        num_layers=numbers["layers"],
        layer_types=tuple(getattr(text, "layer_types", None) or ()),
        dtype=dtype,
        dtype_bytes=bytes_of(dtype),
        sliding_window=getattr(text, "sliding_window", None),
        quantised=quantisation_of(config)[0],
        cache=None,
        states=states,
        transforms=_transforms(text),
        kernels=kernels,
    )


def _measure(
    full: Any, chosen: Resolved, seed: int, progress: Progress
) -> tuple[tuple[Answer, ...], tuple[Statement, ...]]:
    progress(f"building a tiny {chosen.name}")
    try:
        target = build_tiny_target(full, chosen.loader, seed=seed)
    except TinyError as error:
        question = "Can a tiny model of this class be built?"
        return (Answer("tiny_model", question, str(error), False, error=str(error)),), ()
    on_step: Callable[[str, int, int], None] = progress
    answers = run_probes(Bench(target, chosen.config, seed), on_step)
    return answers, (*target.tiny.kept, *target.tiny.lost)


def _loaders(full: Any, resolved: Resolved) -> tuple[str, ...]:
    names = [resolved.loader]
    if resolved.name in (full.architectures or ()) and resolved.name not in names:
        names.append("config.architectures")
    return tuple(names)


def _cache_profile(answers: tuple[Answer, ...]) -> CacheProfile | None:
    """What the probe of the cache's kinds saw; None where it failed."""
    value = next((a.value for a in answers if a.probe == "cache_kinds"), None)
    return CacheProfile(**value) if isinstance(value, Mapping) else None


def _transforms(text: Any) -> dict[str, float]:
    values = {name: getattr(text, name, None) for name in TRANSFORMS}
    return {name: float(v) for name, v in values.items() if isinstance(v, (int, float)) and v != 1}
