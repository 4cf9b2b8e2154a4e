"""The question that decides: is there a way to verify exactly?"""

from __future__ import annotations

import torch

from compatfix.introspect.probes.bench import Bench, Found, probe
from compatfix.introspect.words import one_line


@probe
def strategy_is_exact(bench: Bench) -> Found:
    """Which verification strategy agrees with plain decoding?

    The runtime's own measurement, as patched code does it at start-up, on the tiny model.
    """
    from compatfix.runtime import RuntimeRefusal, prepare

    try:
        # Strategies switch inference mode themselves where they need to.
        with torch.inference_mode(False), torch.no_grad():
            plan = prepare(bench.model)
    except RuntimeRefusal as refusal:
        return Found(f"none: {one_line(refusal)}", False, value={"strategy": None})
    numbers = {"noise": float(plan["noise"]), "fault": float(plan["fault"])}
    errors = [trial["error"] for trial in plan["trials"] if trial["accepted"] and trial["error"] is not None]
    if errors:
        numbers["difference"] = float(errors[0])
    tried = [f"{trial['strategy']} refused" for trial in plan["trials"] if not trial["accepted"]]
    after = f" ({'; '.join(tried)})" if tried else ""
    return Found(f"{plan['strategy']}{after}", True, numbers, {"strategy": plan["strategy"], "plan": plan})
