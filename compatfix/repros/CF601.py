"""`torch.cuda.synchronize()`, as timing code calls it, raises on a torch without CUDA.

Expected: code that only measures time runs on every device.
Observed: AssertionError on builds without CUDA. torch.accelerator.synchronize() asks the device that there is.
"""

import sys

import torch

print(f"torch {torch.__version__}")
try:
    torch.cuda.synchronize()
except (AssertionError, RuntimeError) as error:
    print(f"FAULT SHOWN: torch.cuda.synchronize() raised {type(error).__name__}: {error}")
    sys.exit(1)
print("cannot tell: this machine has CUDA")
sys.exit(2)
