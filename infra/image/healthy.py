"""The image's health check: whoever serves is asked, whoever does not is alive if it runs."""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

# What serves HTTP; a worker, or a verb, does not. (`gateway`: `run --gateway`, as it was spelled.)
SERVES = frozenset({b"run", b"gateway"})
URL = "http://127.0.0.1:8088/healthz"
_TIMEOUT_S = 3


def healthy(command: bytes, url: str) -> bool:
    """Say whether the process of a command line (arguments ended by NUL) is well."""
    if not SERVES.intersection(command.split(b"\0")):
        return True
    if not url.startswith("http://127.0.0.1:"):
        raise ValueError(f"VEDETTE_HEALTH: {url!r} is not on this host")
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    running = Path("/proc/1/cmdline").read_bytes()
    sys.exit(0 if healthy(running, os.environ.get("VEDETTE_HEALTH", URL)) else 1)
