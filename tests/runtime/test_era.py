"""The runtime on the transformers of the published code: what is chosen there, and whether it is exact."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from .blocks import TOLERANCE

ROOT = Path(__file__).parents[2]
ERA = os.environ.get("COMPATFIX_ERA_457") or str(ROOT / ".venv-era" / "4.57.6" / "bin" / "python")
# There, several tokens at once are wrong behind the states of most classes, and a mask of Jamba's is its own.
CHOSEN = {
    "mistral": "mask",
    "gemma3": "mask",
    "gpt_oss": "mask",
    "qwen3_next": "gated-delta tree",
    "lfm2": "mixer levels",
    "falcon_h1": "mixer levels",
    "bamba": "mixer levels",
    "minimax": "lightning tree",
    "jamba": "steps",
}
PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
import transformers
import compatfix.runtime as runtime
from tests.runtime import tiny
from tests.runtime.blocks import DEEP_WITH_SIBLINGS, Session, leaves, path_to
found = {}
for kind in sys.argv[2:]:
    model = tiny.build(kind)
    strategy, ids, worst = runtime.prepare(model)["strategy"], tiny.tokens(11), 0.0
    session = Session(model)
    prompt = session.prompt[0].tolist()
    def compare(logits, path):
        plain = tiny.full_logits(model, prompt + path)[-len(logits):]
        return float(((logits - plain).abs() / (1 + plain.abs())).max())
    output = session.verify(ids, DEEP_WITH_SIBLINGS).logits[0]
    for leaf in leaves(DEEP_WITH_SIBLINGS):
        path = path_to(DEEP_WITH_SIBLINGS, leaf)
        worst = max(worst, compare(output[path], [ids[node] for node in path]))
    runtime.commit(session.cache, [0, 1, 4])
    kept = [ids[0], ids[1], ids[4]]
    chain = session.verify_chain(ids[5:9]).logits[0]
    worst = max(worst, compare(chain, kept + ids[5:9]))
    runtime.crop_to(session.cache, session.start + 5)
    single = session.verify_chain(ids[9:10]).logits[0]
    worst = max(worst, compare(single, kept + ids[5:7] + ids[9:10]))
    found[kind] = [strategy, worst, session.cache.get_seq_length()]
print(json.dumps({"version": transformers.__version__, "found": found}))
"""


@cache
def found() -> dict[str, Any]:
    if not Path(ERA).exists():
        pytest.fail(f"no interpreter with transformers 4.57 at {ERA}: run `make era`", pytrace=False)
    run = subprocess.run([ERA, "-c", PROGRAM, str(ROOT), *CHOSEN], capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stderr[-3000:]
    told = json.loads(run.stdout.splitlines()[-1])
    assert told["version"].startswith("4.57.")
    result: dict[str, Any] = told["found"]
    return result


@pytest.mark.era
@pytest.mark.parametrize("kind", CHOSEN)
def test_nodes_commits_and_chains_are_exact(kind: str) -> None:
    strategy, worst, length = found()[kind]
    assert strategy == CHOSEN[kind]
    assert worst < TOLERANCE
    assert length == 12 + 6
