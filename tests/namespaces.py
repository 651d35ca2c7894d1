"""Namespaces of the kernel's for one test: a small disk, or a network, of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

import pytest


def may_run(command: Sequence[str]) -> bool:
    """Say whether `unshare` may do so much here."""
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(command, capture_output=True, timeout=30, check=False)
    return tried.returncode == 0


def need(may: bool, *, skip: str, fail: str, environ: Mapping[str, str] = os.environ) -> None:
    """Skip the test if it may not; fail it where CI is set."""
    if may:
        return
    if environ.get("CI"):
        pytest.fail(fail, pytrace=False)
    pytest.skip(skip)
