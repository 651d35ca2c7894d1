"""Compiles a bundle's rules to Wasm by `opa`, in a folder of its own that then goes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from vedette.domain.base import machine
from vedette.domain.base.errors import BadFleet, BadPolicy
from vedette.domain.bundle import ENTRY_PATH, Bundle
from vedette.policy.bundle_data import write_bundle_folder

DEADLINE_S = 30.0
_PLACE = re.compile(r"(?P<file>[^\s:]+\.rego):(?P<line>\d+): (?P<what>.+)")


def find_opa(root: Path, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the path of opa: VEDETTE_OPA, what tools/opa installed under `root`, or on PATH.

    None if there is none. Raises BadFleet for a VEDETTE_OPA that cannot be run.
    """
    named = environ.get("VEDETTE_OPA")
    if named:
        if found := shutil.which(named):
            return str(Path(found).absolute())
        mend = "name an opa that can be run, or unset it"
        raise BadFleet(f"VEDETTE_OPA={named} cannot be run", where="[policy] engine", mend=mend)
    found = shutil.which(str(root / ".tools/bin/opa"))
    found = found or shutil.which("opa", path=environ.get("PATH", ""))
    return str(Path(found).absolute()) if found else None


def compile_wasm(opa: str, bundle: Bundle) -> bytes:
    """Return the Wasm module of a bundle's rules: tests are left out, and data is not in it.

    The rules are checked first, as `opa check --strict` does, with opa's types; both together take
    0.1 to 0.3 s. Raises BadPolicy for what opa refuses, by file and line where it tells them.
    """
    with tempfile.TemporaryDirectory(prefix="vedette-wasm-") as name:
        folder, out = Path(name) / "bundle", Path(name) / "out.tar.gz"
        # The data is there so that opa sees where rules and data are in each other's way.
        write_bundle_folder(bundle, folder)
        _run([opa, "check", "--strict", "--bundle", "."], folder)
        _run([opa, "build", "-t", "wasm", "-e", ENTRY_PATH, "-b", ".", "-o", str(out)], folder)
        with tarfile.open(out) as archive:
            member = archive.extractfile("/policy.wasm")
            if member is None:
                raise BadPolicy("opa build wrote no policy.wasm")
            return member.read()


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - the opa that the settings lead to
            command,
            cwd=folder,
            env=machine.program_environment(),
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadPolicy(f"opa {command[1]} did not end well: {error}") from error
    if done.returncode != 0:
        raise _refusal((done.stdout + done.stderr).decode("utf-8", "replace"))


def _refusal(output: str) -> BadPolicy:
    place = _PLACE.search(output)
    if place:
        where = f"{place['file'].removeprefix('./')}:{place['line']}"
        return BadPolicy(f"opa refuses it: {place['what']}", where=where)
    words = " ".join(output.split())[:400]
    return BadPolicy(f"opa refuses it: {words}", where="policies:1")
