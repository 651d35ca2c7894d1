"""Compiles the rules of policies/ to Wasm: for the wheel (a build hook), and for this checkout.

    python tools/policy_wasm.py      writes src/vedette/_wasm/DIGEST.wasm, unless it is there

A fleet that keeps the shipped rules then decides by OPA's Wasm without an opa; its grants and modes
are data and may differ. Of the standard library alone: where a wheel is built nothing else is. The
digest is that of `Bundle.rules_digest`, and a test compares them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ENTRY = "vedette/gateway/decision"
MEND = "put opa on PATH, or name it: VEDETTE_OPA=/path/to/opa (make setup brings one)"


def rules(policies: Path) -> dict[str, bytes]:
    """Return the modules of a policy folder by their path, tests left out."""
    return {
        path.relative_to(policies).as_posix(): path.read_bytes()
        for path in sorted(policies.rglob("*.rego"))
        if not path.name.endswith("_test.rego")
    }


def digest(modules: dict[str, bytes]) -> str:
    """Return the digest of modules, as `Bundle.rules_digest` has it."""
    named = {path: hashlib.sha256(raw).hexdigest() for path, raw in modules.items()}
    text = json.dumps(named, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def find_opa(root: Path) -> str:
    """Return the path of opa, or end with the mend."""
    found = os.environ.get("VEDETTE_OPA") or shutil.which(str(root / ".tools/bin/opa"))
    found = shutil.which(found or "opa")
    if found is None:
        raise SystemExit(
            f"policy_wasm: the policies are compiled by opa, and none is here\n  Mend: {MEND}"
        )
    return str(Path(found).absolute())


def compile_rules(opa: str, modules: dict[str, bytes]) -> bytes:
    """Return the Wasm of modules."""
    with tempfile.TemporaryDirectory(prefix="vedette-wasm-") as name:
        folder, out = Path(name) / "rules", Path(name) / "out.tar.gz"
        for path, raw in modules.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(raw)
        build = ["build", "-t", "wasm", "-e", ENTRY, "-b", ".", "-o", str(out)]
        for order in (["check", "--strict", "-b", "."], build):
            subprocess.run([opa, *order], cwd=folder, check=True, timeout=120)
        with tarfile.open(out) as archive:
            member = archive.extractfile("/policy.wasm")
            assert member is not None
            return member.read()


def write(root: Path, folder: Path) -> Path:
    """Write the Wasm of `root`'s policies into a folder, unless it is there; return its path."""
    modules = rules(root / "policies")
    path = folder / f"{digest(modules)}.wasm"
    if not path.exists():
        raw = compile_rules(find_opa(root), modules)
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.wasm"):
            old.unlink()
        path.write_bytes(raw)
    return path


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # it is a program then, and no hook
    pass
else:

    class PolicyWasm(BuildHookInterface[Any]):
        """Puts the Wasm into the wheel. An editable installation is a checkout: it needs none."""

        PLUGIN_NAME = "custom"

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Compile, and name the file for inclusion."""
            if version == "editable":
                return
            self._folder = tempfile.TemporaryDirectory(prefix="vedette-wasm-")
            path = write(Path(self.root), Path(self._folder.name))
            build_data["force_include"][str(path)] = f"vedette/_wasm/{path.name}"

        def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
            """Let go of what was compiled."""
            if version != "editable":
                self._folder.cleanup()


if __name__ == "__main__":
    print(write(ROOT, ROOT / "src/vedette/_wasm").relative_to(ROOT))
    sys.exit(0)
