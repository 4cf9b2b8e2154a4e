"""CF801 to CF807: whether the files of target and draft hold what their classes need, as far as headers tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compatfix.checks.finding import found
from compatfix.model import Finding
from compatfix.profiles import CheckpointProfile, Inspection


def files_unreadable(inspection: Inspection) -> Iterator[Finding]:
    for part, checkpoint in _both(inspection):
        for problem in checkpoint.problems:
            yield found("CF801", f"{part}: {problem}", "read")


def tensors_missing(inspection: Inspection) -> Iterator[Finding]:
    for part, checkpoint in _both(inspection):
        match = checkpoint.match
        if match is not None and match.missing:
            shown = _some(match.missing)
            message = (
                f"{part}: {len(match.missing)} of {match.wanted} tensors of {match.class_name} are missing: {shown}"
            )
            yield found("CF802", message, "measured" if part == "target" else "read")


def shapes_differ(inspection: Inspection) -> Iterator[Finding]:
    for part, checkpoint in _both(inspection):
        match = checkpoint.match
        if match is not None and match.other_shape:
            name, stored, wanted = match.other_shape[0]
            more = f" (and {len(match.other_shape) - 1} more)" if len(match.other_shape) > 1 else ""
            message = f"{part}: {name} is stored as {stored}, {match.class_name} has {wanted}{more}"
            yield found("CF803", message, "measured" if part == "target" else "read")


def tensors_surplus(inspection: Inspection) -> Iterator[Finding]:
    for part, checkpoint in _both(inspection):
        match = checkpoint.match
        if match is not None and match.surplus:
            message = (
                f"{part}: {len(match.surplus)} tensors have no place in {match.class_name}: {_some(match.surplus)}"
            )
            yield found("CF804", message, "measured" if part == "target" else "read")


def stored_oddly(inspection: Inspection) -> Iterator[Finding]:
    for part, checkpoint in _both(inspection):
        for remark in checkpoint.remarks:
            yield found("CF805", f"{part}: {remark}", "read")


def pickled(inspection: Inspection) -> Iterator[Finding]:
    for part, checkpoint in _both(inspection):
        if checkpoint.form == "pickle":
            message = f"{part}: the weights are pickles ({_some(checkpoint.pickles)}), which are not opened"
            yield found("CF806", message, "read")
        elif checkpoint.form == "other":
            message = (
                f"{part}: weight files ({_some(checkpoint.unread)}) under names that the library does not look for"
            )
            yield found("CF806", message, "read")


def not_matched(inspection: Inspection) -> Iterator[Finding]:
    for part, checkpoint in _both(inspection):
        if checkpoint.match is not None and checkpoint.match.error:
            message = f"{part}: {checkpoint.match.class_name} could not be held against its tensors: "
            yield found("CF807", message + checkpoint.match.error, "measured")


def _both(inspection: Inspection) -> Iterator[tuple[str, CheckpointProfile]]:
    for part, checkpoint in (("target", inspection.checkpoint), ("draft", inspection.draft_checkpoint)):
        if checkpoint is not None:
            yield part, checkpoint


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
