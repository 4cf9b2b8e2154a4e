"""Which stored tensors belong to a choice of decoder layers, and their names in a model that has only those."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

_INDEXED = re.compile(r"^(?P<list>.*?\.?(?:layers|blocks|h))\.(?P<index>\d+)\.(?P<rest>.+)$")


def tensors_of_layers(names: Iterable[str], layers: Sequence[int], depth: int) -> dict[str, str]:
    """Stored name -> name in the slice, for the layers chosen and for all that belongs to no decoder layer.

    The decoder's layers are the one numbered list with exactly `depth` entries; towers and prediction heads keep
    theirs. Raises ValueError where no list or more than one has that many.
    """
    names = list(names)
    indices: dict[str, set[int]] = defaultdict(set)
    for name in names:
        match = _INDEXED.match(name)
        if match:
            indices[match["list"]].add(int(match["index"]))
    lists = [name for name, found in indices.items() if found == set(range(depth))]
    if len(lists) != 1:
        told = ", ".join(lists) or "none"
        raise ValueError(f"the checkpoint's {depth} decoder layers are not one numbered list of tensors ({told})")
    place = {layer: at for at, layer in enumerate(layers)}
    chosen = {}
    for name in names:
        match = _INDEXED.match(name)
        if match is None or match["list"] != lists[0]:
            chosen[name] = name
        elif int(match["index"]) in place:
            chosen[name] = f"{match['list']}.{place[int(match['index'])]}.{match['rest']}"
    return chosen
