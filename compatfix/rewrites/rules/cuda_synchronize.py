from __future__ import annotations

import ast

from compatfix.rewrites.code import Code
from compatfix.rewrites.guards import is_for_cuda
from compatfix.rewrites.rule import Case, Outcome, Rule, Unfixed

_NEEDS_CUDA = {"set_device", "Event", "reset_peak_memory_stats", "max_memory_allocated", "current_stream"}


class CudaSynchronize(Rule):
    """Asks for CUDA by name, for timing.

    ## What it does
    Finds `torch.cuda.synchronize()` that nothing guards and calls the runtime's `synchronize`, which waits for whatever
    accelerator there is. Other unguarded uses of `torch.cuda` that fail without CUDA are reported.

    ## Why it breaks
    `AssertionError: Torch not compiled with CUDA enabled` on a CPU, and the wrong clock on other accelerators.

    ## Example
        torch.cuda.synchronize()
    ## Use instead
        synchronize()

    ## Fix safety
    Safe: on CUDA it is the same call.
    """

    code = "CF601"
    name = "cuda-synchronize"
    trigger = (b"cuda",)
    VALID = (
        Case("if torch.cuda.is_available():\n    torch.cuda.synchronize()", given="import torch\n"),
        Case("if x.device.type == 'cuda':\n    torch.cuda.synchronize(x.device)", given="import torch\n"),
        Case("torch.cuda.is_available() and torch.cuda.synchronize()", given="import torch\n"),
        Case(
            "def wait():\n    if not torch.cuda.is_available():\n        return\n    torch.cuda.synchronize()",
            given="import torch\n",
        ),
        Case("torch.cuda.manual_seed_all(0)\ntorch.cuda.empty_cache()", given="import torch\n"),
        Case("from compatfix_runtime import synchronize\nsynchronize()"),
        Case("cuda.synchronize()"),
    )
    INVALID = (
        Case("torch.cuda.synchronize()", "synchronize()", given="import torch\n"),
        Case("t.cuda.synchronize(0)", "synchronize()", given="import torch as t\n"),
        Case("wait()", "synchronize()", given="from torch.cuda import synchronize as wait\n"),
        Case("if fast:\n    torch.cuda.synchronize()", "if fast:\n    synchronize()", given="import torch\n"),
    )
    UNFIXABLE = (Case("torch.cuda.set_device(0)", given="import torch\n", reason="fails where there is no CUDA"),)

    def visit_call(self, node: ast.Call, code: Code) -> Outcome:
        called = code.qualified(node.func)
        if "torch.cuda.synchronize" in called and not is_for_cuda(node, code):
            return self.replace(node, "$synchronize()")
        needs = {name for name in called if name.startswith("torch.cuda.") and name.rpartition(".")[2] in _NEEDS_CUDA}
        if needs and not is_for_cuda(node, code):
            name = min(needs)
            return Unfixed(node, f"{name} fails where there is no CUDA; guard it with torch.cuda.is_available()")
        return None
