"""Tables of the section "doctor"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from compatfix.memory_plan import gigabytes
from compatfix.report.plaintext import one_line
from compatfix.report.table import Table

REASON = 60


def doctor_tables(section: Mapping[str, Any]) -> Iterator[Table]:
    yield from _packages(section["packages"])
    if section["machine"] is not None:
        yield _devices(section["machine"]["devices"])
    if section["attention"] is not None:
        yield from _attention(section["attention"])
    if section["memory"] is not None:
        yield _memory(section["memory"])


def _packages(packages: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    shown = [row for row in packages if row["state"] != "absent" or row["wanted"]]
    rows = tuple(
        (
            row["name"],
            row["version"] or "–",
            "not installed" if row["state"] == "absent" else row["state"],
            row["purpose"],
            row["error"] or (row["command"] if row["state"] == "absent" else ""),
        )
        for row in shown
    )
    rest = ", ".join(row["name"] for row in packages if row not in shown)
    note = "measured: each was imported in a process of its own"
    note += f"; not installed and not needed here: {rest}" if rest else ""
    if rows:
        yield Table("Packages", ("package", "version", "import", "for", "what to do"), rows, note)


def _devices(devices: Sequence[Mapping[str, Any]]) -> Table:
    rows = tuple((row["name"], gigabytes(row["bytes"]), gigabytes(row["free"] or 0)) for row in devices)
    return Table("Devices", ("device", "memory", "free now"), rows, "measured")


def _attention(attention: Mapping[str, Any]) -> Iterator[Table]:
    by_name: dict[str, dict[str, Mapping[str, Any]]] = {}
    for trial in attention["trials"]:
        by_name.setdefault(trial["name"], {})[trial["form"]] = trial
    rows = tuple(
        (name, *(_state(forms.get(form)) for form in ("float", "bool")), _remark(forms))
        for name, forms in by_name.items()
    )
    note = f"measured on a tiny {attention['class_name']}, on {attention['device']}"
    note += f", against {attention['reference']}; the default here is {attention['default']}"
    if rows:
        columns = ("implementation", "float tree mask", "bool tree mask", "remark")
        yield Table("Attention implementations that honour a tree mask", columns, rows, note)


def _state(trial: Mapping[str, Any] | None) -> str:
    if trial is None:
        return ""
    gap = trial["difference"]
    words = {"right": "right", "wrong": "accepted and WRONG", "undecided": "undecided"}.get(
        trial["state"], trial["state"]
    )
    return words if gap is None else f"{words} ({gap:.1g})"


def _remark(forms: Mapping[str, Mapping[str, Any]]) -> str:
    remarks = []
    for trial in forms.values():
        if trial["state"] in ("refused", "not taken"):
            text = one_line(trial["text"])
            remarks.append(text if len(text) <= REASON else text[: REASON - 1].rstrip() + "…")
        if trial["ignored"]:
            remarks.append(f"{trial['form']}: siblings see one another")
        if trial["uncompiled"]:
            remarks.append("run without torch.compile")
        if trial["difference"] is not None and trial["dtype"] != "float32":
            remarks.append(f"in {trial['dtype']}")
    return "; ".join(dict.fromkeys(remarks))


def _memory(memory: Mapping[str, Any]) -> Table:
    rows = [(item["text"], gigabytes(item["bytes"]), _counted(item)) for item in memory["items"]]
    rows.append(("in all", gigabytes(memory["total"]), ""))
    rows += [(f"free on {room['where']}", gigabytes(room["free"]), _short(room["short"])) for room in memory["rooms"]]
    title = f"Memory at {memory['context']} tokens, tree of {memory['tree_budget']} nodes"
    return Table(title, ("part", "size", ""), tuple(rows), memory["verdict"])


def _counted(item: Mapping[str, Any]) -> str:
    return "" if item["counted"] else "not in the sum"


def _short(short: int) -> str:
    return f"{gigabytes(short)} short" if short else "fits"
