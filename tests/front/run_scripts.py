"""Runs scripts one after the other, each in a fork of one process that has imported torch and transformers.

python run_scripts.py SCRIPT...

One JSON line says what the machine has that two scripts show the lack of; then one for each script: its name, exit
code, and what it printed.
"""

import importlib.util
import json
import os
import runpy
import sys
import tempfile
import warnings

import torch
import transformers.models.auto.modeling_auto  # noqa: F401 (imported here once, not in every fork)
from transformers.models.gemma3 import modeling_gemma3  # noqa: F401
from transformers.models.qwen3 import modeling_qwen3  # noqa: F401
from transformers.models.qwen3_next import modeling_qwen3_next  # noqa: F401

torch.set_num_threads(1)
warnings.simplefilter("ignore")


def run(script):
    with tempfile.TemporaryFile("w+") as printed:
        child = os.fork()
        if child == 0:
            os.dup2(printed.fileno(), 1)
            code = 0
            try:
                runpy.run_path(script, run_name="__main__")
            except SystemExit as end:
                code = int(end.code or 0)
            except BaseException:
                code = 99
                raise
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        printed.seek(0)
        return {"script": os.path.basename(script), "code": os.waitstatus_to_exitcode(status), "out": printed.read()}


kernels = {"CF601": torch.cuda.is_available(), "CF602": importlib.util.find_spec("flash_attn") is not None}
print(json.dumps(kernels), flush=True)
for path in sys.argv[1:]:
    print(json.dumps(run(path)), flush=True)
