"""What a verdict is about, as statements: environment, classes, entry points, strategy, sampling, long text. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compatfix.model import Statement
from compatfix.validate.entry_statement import entry_statement
from compatfix.validate.judge_long_run import praise_long_run


def what_ran(versions: Mapping[str, str], ran: Mapping[str, Any]) -> tuple[Statement, ...]:
    """What the verdict is about: environment, classes, entry points, strategy."""
    topic = "what was run"
    environment = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [Statement(topic, "environment", environment, "measured")]
    if "target_class" in ran:
        loader = f", as {ran['loader_place']} loads it ({ran['loader']})" if ran.get("loader_place") else ""
        lines += [
            Statement(topic, "target class", f"tiny {ran['target_class']}{loader}", "measured"),
            entry_statement(ran),
        ]
    runtime = ran.get("runtime")
    if runtime and runtime.get("strategy"):
        numbers = f"noise {runtime['noise']:.2g}, smallest planted fault {runtime['fault']:.2g}"
        lines.append(Statement(topic, "strategy", f"verification by {runtime['strategy']} ({numbers})", "measured"))
    return tuple(lines)


def what_was_sampled(sections: Mapping[str, Any]) -> tuple[Statement, ...]:
    section = sections.get("sampling")
    if section is None:
        return ()
    told = ", ".join(f"{row['mode']} {row['status']} ({row['tokens']} tokens)" for row in section["modes"])
    text = f"sampling at {section['sampler']} against the target's exact chances: {told}"
    return (Statement("what was run", "sampling", text, "measured", section["modes"]),)


def how_it_drifted(sections: Mapping[str, Any]) -> tuple[Statement, ...]:
    section = sections.get("long_run")
    if section is None:
        return ()
    return (Statement("what was run", "long run", praise_long_run(section), "measured", section["modes"]),)
