"""Where the tests find the pinned opa; a missing one is a skip for a person and a failure in CI."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def find_opa(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> str:
    """Return the path of opa: VEDETTE_OPA, what tools/opa installed, or one on PATH.

    Skips the test if there is none, and fails it where CI is set.
    """
    named = environ.get("VEDETTE_OPA")
    found = named or shutil.which(str(root / ".tools/bin/opa"))
    found = found or shutil.which("opa", path=environ.get("PATH", ""))
    if found:
        return found
    if environ.get("CI"):
        pytest.fail("opa is missing. Mend: make setup", pytrace=False)
    pytest.skip("opa is not here; make setup installs it")
