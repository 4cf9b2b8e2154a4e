"""CF001 to CF004: what is not installed, and what that costs this target."""

from __future__ import annotations

from collections.abc import Iterator

from compatfix.checks.finding import found
from compatfix.model import Finding
from compatfix.profiles import Inspection

CODE_OF = {
    "accelerate": "CF001",
    "flash-linear-attention": "CF002",
    "causal-conv1d": "CF003",
    "flash-attn": "CF004",
}


def missing_packages(inspection: Inspection) -> Iterator[Finding]:
    for package in inspection.environment.packages:
        code = CODE_OF.get(package.name)
        if code is None or package.version is not None or not package.wanted:
            continue
        message = f"{package.name} is not installed ({package.effect}): {package.cost}"
        yield found(code, message, "measured", fix=package.command)
