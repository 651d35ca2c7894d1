"""The peers' own environment: made from requirements.lock, beside the project's tools.

The product never imports a peer, and nothing of this environment is on its path. No package index
is named here or in the lock: uv asks whichever one this machine is set up for. After a change of
requirements.in, or to move the pins:

    tools/uv pip compile tests/bench/peers/requirements.in --universal --python-version 3.11 \\
      --generate-hashes --no-header --no-emit-index-url --quiet --upgrade \\
      --output-file tests/bench/peers/requirements.lock
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LOCK = Path(__file__).with_name("requirements.lock")
HOME = ROOT / ".tools" / "peers"


def python(home: Path = HOME) -> Path:
    """Return the peers' interpreter, made now if the lock or ours has changed since.

    Raises RuntimeError with what uv said if it cannot be made.
    """
    found = home / "bin" / "python"
    stamp = home / "installed"
    base = f"{sys.base_prefix} {sys.version_info[:3]}"
    wanted = hashlib.sha256(LOCK.read_bytes() + base.encode()).hexdigest()
    if found.exists() and stamp.exists() and stamp.read_text() == wanted:
        return found
    stamp.unlink(missing_ok=True)
    uv = str(ROOT / "tools" / "uv")
    for command in (
        [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(home)],
        # Wheels only: what a source archive needs for its build is not in the lock, so not pinned.
        [uv, "pip", "sync", "--quiet", "--python", str(found), "--require-hashes", "--no-build",
         str(LOCK)],
    ):  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        if done.returncode:
            raise RuntimeError(f"the peers cannot be installed: {done.stderr[-2000:]}")
    stamp.write_text(wanted)
    return found


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
