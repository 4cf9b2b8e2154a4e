"""CF808 to CF810: what a quantised target changes for draft, state and verdict."""

from __future__ import annotations

from collections.abc import Iterator

from compatfix.checks.finding import found
from compatfix.model import Finding
from compatfix.profiles import Inspection


def quantised_target(inspection: Inspection) -> Iterator[Finding]:
    quantisation = inspection.quantisation
    if quantisation is not None:
        form = f" ({quantisation.form})" if quantisation.form else ""
        yield found("CF808", f"the target is quantised by {quantisation.method}{form}; what is tiny is not", "read")


def rotated_basis(inspection: Inspection) -> Iterator[Finding]:
    quantisation = inspection.quantisation
    if quantisation is not None and quantisation.rotated and inspection.draft is not None:
        message = f"the checkpoint is rotated ({quantisation.rotated}): a draft of the plain model reads another basis"
        yield found("CF809", message, "read")


def recurrent_layers_quantised(inspection: Inspection) -> Iterator[Finding]:
    shares = inspection.quantisation.shares if inspection.quantisation is not None else ()
    for share in shares:
        if share.recurrent and share.quantised:
            count = f"{share.quantised} of {share.matrices}"
            yield found("CF810", f"{count} matrices of {share.part}, which is recurrent, are quantised", "read")
