from __future__ import annotations

import ast

from compatfix.rewrites.cases import draft, target
from compatfix.rewrites.code import Code
from compatfix.rewrites.rule import Case, Outcome, Rule, Unfixed


class SingleDeviceBuffers(Rule):
    """Makes the target's tokens, masks and positions on the draft's device.

    ## What it does
    Reports, once for each function, buffers made with `device=draft.device`. Nothing is rewritten.

    ## Why it breaks
    On one device it does not. With draft and target apart, or a target spread over devices, tensors meet on different
    devices: a RuntimeError at the first forward.

    ## Example
        output_ids = torch.full((1, length), mask_id, device=draft.device)
    ## Use instead
        output_ids = torch.full((1, length), mask_id, device=input_ids.device)

    ## Fix safety
    No fix: which device each tensor belongs on is the author's decision.
    """

    code = "CF603"
    name = "single-device-buffers"
    trigger = (b"device=", b"device =")
    VALID = (
        Case("ids = torch.full((1, 8), 0, device=input_ids.device)", given="import torch\n" + target() + draft()),
        Case("ids = torch.full((1, 8), 0, device=target.device)", given="import torch\n" + target() + draft()),
    )
    UNFIXABLE = (
        Case(
            "ids = torch.full((1, 8), 0, device=draft.device)",
            given="import torch\n" + target() + draft(),
            reason="draft's device",
        ),
    )

    def visit_call(self, node: ast.Call, code: Code) -> Outcome:
        if not self._is_buffer(node, code):
            return None
        function = code.scope(node)
        first = min(
            (n for n in ast.walk(function.node) if isinstance(n, ast.Call) and self._is_buffer(n, code)),
            key=lambda n: (n.lineno, n.col_offset),
        )
        if first is not node or not any(site.scope is function for site in code.roles.target_calls.values()):
            return None
        return Unfixed(node, "buffers for the target are made on the draft's device: right only while both share one")

    @staticmethod
    def _is_buffer(node: ast.Call, code: Code) -> bool:
        if not any(name.startswith("torch.") for name in code.qualified(node.func)):
            return False
        device = next((k.value for k in node.keywords if k.arg == "device"), None)
        return isinstance(device, ast.Attribute) and device.attr == "device" and code.is_draft(device.value)
