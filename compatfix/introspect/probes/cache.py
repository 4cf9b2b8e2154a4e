"""Questions about the cache as an object: which one, what it holds, what it says about itself."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from typing import Any

from compatfix.introspect.caches import describe_cache, empty_cache, layer_types_of
from compatfix.introspect.probes.bench import PROMPT, Bench, Found, difference, logits_of, probe
from compatfix.introspect.words import one_line


@probe
def cache_argument(bench: Bench) -> Found:
    """Under which name does the forward take its cache?

    Fills a cache through each name and looks whether it got filled: a name that is swallowed leaves it empty.
    """
    filled: dict[str, bool | str] = {}
    for name in ("past_key_values", "cache"):
        cache = bench.new_cache()
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                bench.model(input_ids=bench.prompt, use_cache=True, **{name: cache})
            deprecated = any(name in str(w.message) for w in caught)
            filled[name] = "deprecated" if deprecated else int(cache.get_seq_length()) == PROMPT
        except Exception as error:
            filled[name] = one_line(error)
    works = [name for name, result in filled.items() if result is True or result == "deprecated"]
    text = f"{bench.argument}=" + (", and the other name still works" if len(works) == 2 else "")
    if "past_key_values" not in works:
        text += "; past_key_values= is swallowed and leaves the cache empty"
    value = {"argument": bench.argument, "filled": filled}
    return Found(text, "past_key_values" in works, value=value)


@probe
def bare_cache_works(bench: Bench) -> Found:
    """What does a bare DynamicCache() do?

    Prefills and decodes with a cache that was made without the config, and compares with plain decoding.
    """
    from transformers import DynamicCache

    cache = DynamicCache()
    try:
        bench.model(input_ids=bench.prompt, use_cache=True, **{bench.argument: cache})
        found = bench.decode(cache, bench.block)
    except Exception as error:
        return Found(f"it raises {one_line(error)}", False, value={"raises": one_line(error)})
    gap = difference(found, bench.steps)
    ok = bench.judge(gap)
    says = "it works" if ok else "it runs and gives other logits"
    return Found(says, ok, {"difference": gap, "noise": bench.noise}, {"raises": None})


@probe
def cache_kinds(bench: Bench) -> Found:
    """Which cache does the config give, and what do its layers keep?

    Built from the real config, without weights.
    """
    cache = empty_cache(bench.cache_class, bench.real_config)
    profile = describe_cache(cache, layer_types_of(bench.real_config))
    kinds = ", ".join(f"{count} {kind}" for kind, count in profile.kinds.items())
    return Found(f"{profile.class_name}: {kinds}", None, value=asdict(profile))


@probe
def seq_length_counts_tokens(bench: Bench) -> Found:
    """Does get_seq_length() count tokens whatever the first layer keeps?

    Prefills and asks, without an index and for every layer.
    """
    cache = bench.prefill()
    total = int(cache.get_seq_length())
    by_kind: dict[str, Any] = {}
    first = describe_cache(cache, layer_types_of(bench.model.config)).first
    for index, layer in enumerate(getattr(cache, "layers", ())):
        name = type(layer).__name__
        if name in by_kind:
            continue
        try:
            by_kind[name] = int(cache.get_seq_length(index))
        except Exception as error:
            by_kind[name] = one_line(error)
    ok = total == PROMPT
    text = f"yes: {total} after {PROMPT} tokens" if ok else f"no: {total} after {PROMPT} tokens"
    if first == "linear":
        text += ", although layer 0 is linear"
    return Found(text, ok, {"length": total, "tokens": PROMPT}, {"first": first, "by_layer_class": by_kind})


@probe
def empty_cache_is_initialized(bench: Bench) -> Found:
    """What does is_initialized say on an empty cache, and does it matter?

    Asks an empty cache made from the config; then uses the same cache, which is what matters.
    """
    cache = bench.new_cache()
    try:
        says: Any = bool(cache.is_initialized)
        text = f"is_initialized is {says}"
    except Exception as error:
        says = one_line(error)
        text = f"is_initialized raises {says}"
    logits = logits_of(bench.forward(bench.prompt, cache))
    gap = difference(logits, bench.plain[:PROMPT])
    ok = bench.judge(gap)
    text += "; cosmetic: the cache works all the same" if ok else "; real: the cache does not work either"
    return Found(text, ok, {"difference": gap, "noise": bench.noise}, {"says": says})
