"""Environments of a bench's own: made from a lock pinned by hash, beside the project's tools.

The product never imports what is in one, and nothing of it is on the product's path. No package
index is named in a lock: uv asks whichever one this machine is set up for.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from tests.said import ROOT


def install_lock(lock: Path, home: Path) -> Path:
    """Return the interpreter of the environment in `home`.

    The environment is made now if the lock, or this interpreter, has changed since it was made.
    Raises RuntimeError with what uv said if it cannot be made.
    """
    found, stamp = home / "bin" / "python", home / "installed"
    base = f"{sys.base_prefix} {sys.version_info[:3]}"
    wanted = hashlib.sha256(lock.read_bytes() + base.encode()).hexdigest()
    if found.exists() and stamp.exists() and stamp.read_text() == wanted:
        return found
    stamp.unlink(missing_ok=True)
    uv = str(ROOT / "tools" / "uv")
    for command in (
        [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(home)],
        # Wheels only: what a source archive needs for its build is not in the lock, so not pinned.
        [uv, "pip", "sync", "--quiet", "--python", str(found), "--require-hashes", "--no-build",
         str(lock)],
    ):  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        if done.returncode:
            raise RuntimeError(f"{lock} cannot be installed: {done.stderr[-2000:]}")
    stamp.write_text(wanted)
    return found
