"""The same answers with the huggingface_hub of before 1.0, which speaks HTTP with another library."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ERA = os.environ.get("COMPATFIX_ERA_457") or str(ROOT / ".venv-era" / "4.57.6" / "bin" / "python")


@pytest.mark.era
def test_of_resolving_and_of_every_failure():
    if not Path(ERA).exists():
        pytest.fail(f"no interpreter with transformers 4.57 at {ERA}: run `make era`", pytrace=False)
    asked = [ERA, "-c", "import huggingface_hub as hub; assert hub.__version__ < '1', hub.__version__"]
    assert subprocess.run(asked, check=False).returncode == 0
    files = ["tests/hub/test_resolve.py", "tests/hub/test_failures.py"]
    command = [ERA, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
