"""Tests that need the real opa skip without it on a person's machine, and never in CI."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.opa import find_opa

NOWHERE = {"PATH": ""}


def install(at: Path) -> str:
    at.parent.mkdir(parents=True)
    at.write_text("#!/bin/sh\n")
    at.chmod(0o755)
    return str(at)


def test_the_installed_one_is_found(tmp_path: Path) -> None:
    installed = install(tmp_path / ".tools/bin/opa")
    assert find_opa(tmp_path, NOWHERE) == installed
    assert find_opa(tmp_path, {"PATH": "", "CI": "true"}) == installed


def test_one_that_is_named_comes_first(tmp_path: Path) -> None:
    install(tmp_path / ".tools/bin/opa")
    assert find_opa(tmp_path, {"PATH": "", "VEDETTE_OPA": "/elsewhere/opa"}) == "/elsewhere/opa"


def test_one_on_the_path_is_found(tmp_path: Path) -> None:
    installed = install(tmp_path / "bin/opa")
    assert find_opa(tmp_path, {"PATH": str(tmp_path / "bin")}) == installed


def test_without_opa_a_person_skips(tmp_path: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match="make setup"):
        find_opa(tmp_path, NOWHERE)


def test_without_opa_ci_fails(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="opa is missing"):
        find_opa(tmp_path, {"PATH": "", "CI": "true"})
