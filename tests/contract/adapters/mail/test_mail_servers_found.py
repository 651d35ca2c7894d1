"""Tests that need a mail server skip without it on a person's machine, and never in CI."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import imap, smtp


def test_what_is_installed_is_found(tmp_path: Path) -> None:
    dovecot = tmp_path / ".tools/dovecot"
    dovecot.mkdir(parents=True)
    (dovecot / "complete").touch()
    python = tmp_path / ".tools/aiosmtpd/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    (tmp_path / ".tools/aiosmtpd/installed.lock").touch()
    for environ in ({}, {"CI": "true"}):
        assert imap.find_dovecot(tmp_path, environ) == dovecot / "usr"
        assert smtp.find_python(tmp_path, environ) == str(python)


def test_what_is_half_installed_is_not_there(tmp_path: Path) -> None:
    (tmp_path / ".tools/dovecot/usr").mkdir(parents=True)
    (tmp_path / ".tools/aiosmtpd/bin").mkdir(parents=True)
    with pytest.raises(pytest.skip.Exception, match="make setup"):
        imap.find_dovecot(tmp_path, {})
    with pytest.raises(pytest.skip.Exception, match="make setup"):
        smtp.find_python(tmp_path, {})


def test_in_ci_a_missing_one_fails(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="Dovecot is missing"):
        imap.find_dovecot(tmp_path, {"CI": "true"})
    with pytest.raises(pytest.fail.Exception, match="aiosmtpd is missing"):
        smtp.find_python(tmp_path, {"CI": "true"})
