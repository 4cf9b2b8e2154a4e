"""Jobs that misbehave in every way that a model can."""

import os
import time


def echo(args, progress):
    print("noise on standard output must not reach the protocol")
    progress("echoing", 1, 2)
    return args


def crash(args, progress):
    progress("running layer 3")
    os.kill(os.getpid(), 11)


def leave(args, progress):
    progress("leaving")
    os._exit(7)


def hang(args, progress):
    progress("waiting", 2, 9)
    time.sleep(600)


def allocate(args, progress):
    import torch

    progress("allocating")
    return float(torch.zeros(int(args["bytes"]) // 4).sum())


def out_of_memory_kill(args, progress):
    progress("growing")
    os.kill(os.getpid(), 9)


def refuse(args, progress):
    from compatfix.worker import JobError

    raise JobError("no config.json in models/qwen (is this a model directory?)")


def fail(args, progress):
    progress("dividing")
    return 1 / 0


def module_state(args, progress):
    """Each job must start from clean modules."""
    import sys

    seen = "leftover" in sys.modules
    sys.modules["leftover"] = os
    return seen
