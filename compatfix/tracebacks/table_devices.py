"""Errors of devices, dtypes, memory, kernels and packages."""

from __future__ import annotations

from compatfix.tracebacks.known import Known

DEVICES: tuple[Known, ...] = (
    Known(
        "flash-attention-is-missing",
        r"(?:FlashAttention ?\d? ?has been toggled on, but it cannot be used|flash_attn must be installed|No module "
        r"named 'flash_attn'|FlashAttention only support(?:s)? (?:fp16 and bf16|Ampere GPUs))",
        "",
        "FlashAttention is asked for by name and cannot run here",
        "every version",
        "measured",
        code="CF602",
        select="CF602",
        then="under sdpa or eager the draft's sliding-window layers get no mask: past the window acceptance falls, "
        "silently (CF408).",
    ),
    Known(
        "cuda-by-name",
        r"(?:Torch not compiled with CUDA enabled|Found no NVIDIA driver on your system|No CUDA GPUs are available)",
        "",
        "CUDA is asked for by name on a machine without it, as a rule by the timing (torch.cuda.synchronize)",
        "no matter of versions",
        "measured",
        code="CF601",
        select="CF601",
    ),
    Known(
        "fast-path-is-missing",
        r"The fast path is not available because",
        "The fast path is not available",
        "flash-linear-attention or causal-conv1d is not installed: linear layers run on reference kernels",
        "every version that warns so (up to 5.15 or later, by model)",
        "measured",
        code="CF002",
        do="nothing has to be done; faster: pip install flash-linear-attention causal-conv1d",
        real=False,
    ),
    Known(
        "reference-convolution",
        r"is falling back to its reference PyTorch implementation because (?P<name>causal[-_]conv1d) is not installed",
        "is falling back to its reference PyTorch implementation",
        "{name} is not installed: the short convolution runs in its reference form, slower and right",
        "5.24; earlier versions word it otherwise",
        "measured",
        code="CF003",
        do="nothing has to be done; faster: pip install causal-conv1d",
        real=False,
    ),
    Known(
        "reference-kernels",
        r"is falling back to its reference PyTorch implementation because "
        r"(?P<name>flash-linear-attention|[\w.-]{1,40}?)"
        r" is not installed",
        "is falling back to its reference PyTorch implementation",
        "{name} is not installed: a kernel runs in its reference form, slower and right",
        "5.24; earlier versions word it otherwise",
        "measured",
        code="CF002",
        do="nothing has to be done; faster: pip install flash-linear-attention causal-conv1d",
        real=False,
    ),
    Known(
        "kernel-package-is-missing",
        r"No module named '(?P<name>fla|causal_conv1d|mamba_ssm)(?:\.[\w.]{1,60})?'",
        "No module named '",
        "code of the tree imports {name} directly; transformers itself would fall back to reference kernels",
        "no matter of versions",
        "public notes",
        code="CF002",
        do="pip install flash-linear-attention causal-conv1d (they need a GPU), or guard the import",
    ),
    Known(
        "accelerate-is-missing",
        r"(?:requires? accelerate[.:]|requires Accelerate:|ImportError: accelerate|No module named 'accelerate')",
        "ccelerate",
        "device_map= needs accelerate, which is not installed",
        "every version",
        "measured",
        code="CF001",
        do="pip install accelerate",
    ),
    Known(
        "tensors-on-two-devices",
        r"Expected all tensors to be on the same device, but (?:found at least two devices|got \w+ is on)",
        "Expected all tensors to be on the same device",
        "tensors of draft and target, or of a target that is spread out, meet on different devices",
        "no matter of versions",
        "public notes",
        code="CF603",
        do="put draft and target on one device, or move hidden states, masks and tokens to where they are used",
    ),
    Known(
        "dtypes-differ",
        r"(?:mat1 and mat2 must have the same dtype|expected m1 and m2 to have the same dtype|expected scalar type \w+ "
        r"but found \w+|Expected query, key, and value to have the same dtype)",
        "",
        "two tensors of different dtype meet: target, draft and output head were not loaded in one dtype",
        "5.0 and later load in the checkpoint's dtype by default, float32 before; 5.4 to 5.11 ignore dtype= where a "
        "model with a vision part is loaded as text only",
        "public notes",
        do="compare the parameters' dtypes after loading, and cast hidden states to the draft's",
    ),
    Known(
        "out-of-memory",
        r"(?:(?:CUDA|HIP|XPU) out of memory|OutOfMemoryError:|MPS backend out of memory)",
        "emory",
        "the device has no memory left",
        "no matter of versions",
        "public notes",
        code="CF610",
        do="compatfix inspect MODEL --draft DIR --context N --devices GB,… holds the plan against your devices",
        then="output_hidden_states=True keeps every layer of a prefill, and recording from before the prefill the "
        "whole conv history: both cost gigabytes on long prompts.",
    ),
    Known(
        "operator-is-missing",
        r"(?:\"?\w{0,20}(?P<name>cumprod|multinomial|cumsum)\w{0,20}\"? not implemented for '\w{1,20}'|The operator "
        r"'aten::(?P<other>cumprod|multinomial|cumsum)[\w.]{0,40}' is not currently implemented for the)",
        "implemented for ",
        "{name}{other} is not there for this dtype on this device",
        "MPS and NPU back ends, by version of torch",
        "public notes",
        do="convert to int (for cumprod) or float on the CPU (for multinomial) first",
    ),
)
