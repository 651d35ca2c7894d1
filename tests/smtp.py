"""A real SMTP server for tests: aiosmtpd, in an environment of its own, stopped by its pid.

tools/aiosmtpd makes the environment. Without it a test is skipped for a person and fails where CI
is set. `smtp_launcher.py` says which recipients are answered how.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.guarded import Guarded
from tests.imap import write_certificate

ROOT = Path(__file__).parents[1]
LAUNCHER = Path(__file__).with_name("smtp_launcher.py")


def find_python(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> str:
    """Return the Python that has aiosmtpd.

    Skips the test if there is none, and fails it where CI is set.
    """
    found = shutil.which(str(root / ".tools/aiosmtpd/bin/python"))
    if found and (root / ".tools/aiosmtpd/installed.lock").exists():
        return found
    if environ.get("CI"):
        pytest.fail("aiosmtpd is missing. Mend: make setup", pytrace=False)
    pytest.skip("aiosmtpd is not here; make setup installs it")


class SmtpServer(Guarded):
    """One server on three ports: without TLS, with STARTTLS and with TLS."""

    user, password = "relay", "sesame"

    def __init__(self, python: str) -> None:
        """Start it. Raises RuntimeError with what it said."""
        self._python = python
        super().__init__("smtp", 3)

    def table(self, tls: str = "none", **more: Any) -> dict[str, Any]:
        """Return what reaches it, as in vedette.toml, with the password in clear."""
        port = self.ports[("none", "starttls", "implicit").index(tls)]
        return {
            "kind": "smtp", "host": "127.0.0.1", "port": port, "tls": tls, "user": self.user,
            "password": self.password, "ca_file": str(self._folder / "cert.pem"), **more,
        }  # fmt: skip

    def mails(self, to: str | None = None) -> list[dict[str, Any]]:
        """Return what it took, in order, from the envelope on; all, or what was for one."""
        files = sorted((self._folder / "mails").glob("*.json"))
        found = [json.loads(file.read_text()) for file in files]
        return [mail for mail in found if to is None or to in mail["to"]]

    def command(self) -> list[str]:
        """Return what runs it."""
        if not (self._folder / "cert.pem").exists():
            write_certificate(self._folder)
        (self._folder / "mails").mkdir(exist_ok=True)
        ports = [str(port) for port in self.ports]
        return [
            self._python, str(LAUNCHER), str(self._folder), *ports, self.user, self.password
        ]  # fmt: skip

    def ready(self, log: bytes) -> bool:
        """Say whether all doors are open."""
        return b"serving" in log


@functools.cache
def server() -> SmtpServer:
    """Return this process's server; it ends with the process."""
    return SmtpServer(find_python())
