"""`import vedette` and `vedette --help` load no vendor.

A fleet's start, and every short verb, would else pay for what it does not use, and a missing or
broken vendor would take down commands that never needed it.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

VENDORS = frozenset(
    {
        "aiohttp",
        "apscheduler",
        "apsw",
        "cryptography",
        "google",
        "grpc",
        "httpx",
        "numpy",
        "opa_client",
        "prometheus_client",
        "psutil",
        "pydantic",
        "pydantic_settings",
        "regorus",
        "rich",
        "ruamel",
        "snowballstemmer",
        "sqlite3",
        "stamina",
        "starlette",
        "uvicorn",
        "watchfiles",
    }
)

IMPORT = "import vedette"
HELP = """
sys.argv = ["vedette", "--help"]
from vedette.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""
# Last line of the output, since --help prints too.
REPORT = "\nprint(*sorted({name.partition('.')[0] for name in sys.modules}))"


def loaded(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after running `code`."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys\n" + code + REPORT],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("code", [IMPORT, HELP], ids=["import", "help"])
def test_no_vendor_is_loaded(code: str) -> None:
    modules = loaded(code)
    assert "vedette" in modules
    assert not modules & VENDORS


@pytest.mark.parametrize("vendor", ["psutil", "google.auth", "ruamel.yaml"])
def test_a_loaded_vendor_would_be_seen(vendor: str) -> None:
    assert loaded(f"import {vendor}") & VENDORS


def test_help_is_really_run() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys\n" + HELP],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Usage: vedette" in done.stdout
