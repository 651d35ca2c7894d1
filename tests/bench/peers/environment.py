"""The peers' own environment: made from requirements.lock, beside the project's tools.

After a change of requirements.in, or to move the pins:

    tools/uv pip compile tests/bench/peers/requirements.in --universal --python-version 3.11 \\
      --generate-hashes --no-header --no-emit-index-url --quiet --upgrade \\
      --output-file tests/bench/peers/requirements.lock
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.bench.environments import install_lock
from tests.said import ROOT

LOCK = Path(__file__).with_name("requirements.lock")


def python() -> Path:
    """Return the peers' interpreter, made now if need be. Raises RuntimeError (`install_lock`)."""
    return install_lock(LOCK, ROOT / ".tools" / "peers")


def versions(interpreter: Path) -> dict[str, str]:
    """Return the versions of the peers as installed."""
    names = ("dbos", "langgraph", "langgraph-checkpoint-sqlite", "google-adk")
    code = (
        "import sys\nfrom importlib.metadata import version\n"
        "print(*(f'{name}={version(name)}' for name in sys.argv[1:]))"
    )
    done = subprocess.run(
        [str(interpreter), "-c", code, *names], capture_output=True, text=True, check=True
    )
    return dict(pair.split("=") for pair in done.stdout.split())
