"""Compiles a bundle to Wasm by `opa build -t wasm`, in a folder of its own that then goes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

import orjson

from vedette.bundle import ENTRYPOINT, Bundle
from vedette.errors import BadFleet, BadPolicy
from vedette.load.policy_data import mount

DEADLINE_S = 30.0
# What a program needs to start; no secret of this process is among it.
_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "TMPDIR")

_PLACE = re.compile(r"(?P<file>[^\s:]+\.rego):(?P<line>\d+): (?P<what>.+)")


def find_opa(root: Path, environ: Mapping[str, str] = os.environ) -> str:
    """Return the path of opa: VEDETTE_OPA, what tools/opa installed under `root`, or on PATH.

    Raises BadFleet with the mend if there is none.
    """
    named = environ.get("VEDETTE_OPA")
    if named:
        if found := shutil.which(named):
            return str(Path(found).absolute())
        mend = "name an opa that can be run, or unset it"
        raise BadFleet(f"VEDETTE_OPA={named} cannot be run", where="[policy] engine", mend=mend)
    found = shutil.which(str(root / ".tools/bin/opa"))
    found = found or shutil.which("opa", path=environ.get("PATH", ""))
    if found:
        return str(Path(found).absolute())
    raise BadFleet(
        'engine = "wasm" needs opa to compile the policy, and there is none',
        where="[policy] engine",
        mend='put opa on PATH or name it in VEDETTE_OPA, or write engine = "embedded"',
    )


def build(opa: str, bundle: Bundle) -> bytes:
    """Return the Wasm module of a bundle: its modules, tests left out; its data is not in it.

    Takes 50-100 ms. Raises BadPolicy for what opa refuses, by file and line where it tells them.
    """
    with tempfile.TemporaryDirectory(prefix="vedette-wasm-") as name:
        folder, out = Path(name) / "bundle", Path(name) / "out.tar.gz"
        modules = {path: text.encode("utf-8") for path, text in bundle.modules().items()}
        # The data is there so that the compiler knows what the rules refer to.
        for path, raw in {**modules, "data.json": orjson.dumps(mount(bundle.files))}.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(raw)
        entry = ENTRYPOINT.removeprefix("data.").replace(".", "/")
        command = [opa, "build", "-t", "wasm", "-e", entry, "-b", ".", "-o", str(out)]
        try:
            done = subprocess.run(  # noqa: S603 - the opa that the settings lead to
                command,
                cwd=folder,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                capture_output=True,
                timeout=DEADLINE_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BadPolicy(f"opa build did not end well: {error}") from error
        if done.returncode != 0:
            raise _refused((done.stdout + done.stderr).decode("utf-8", "replace"))
        with tarfile.open(out) as archive:
            member = archive.extractfile("/policy.wasm")
            if member is None:
                raise BadPolicy("opa build wrote no policy.wasm")
            return member.read()


def _refused(said: str) -> BadPolicy:
    place = _PLACE.search(said)
    if place:
        what = f"does not compile to Wasm: {place['what']}"
        return BadPolicy(what, where=f"{place['file']}:{place['line']}")
    words = " ".join(said.split())[:400]
    return BadPolicy(f"does not compile to Wasm: {words}", where="policies:1")
