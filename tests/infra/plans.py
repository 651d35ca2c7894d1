"""Runs tools/check-terraform on this project or on a changed copy of it, and reads what it planned.

One stand-in for the provider serves all checks of a test file. A missing terraform is a skip for a
person and a failure in CI.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools/check-terraform"
ENGINE = "src/vedette/adapters/bigquery"
_START_S = 60.0


def need_terraform(environ: Mapping[str, str] = os.environ) -> None:
    """Skip the test without terraform, and fail it where CI is set."""
    if shutil.which("terraform", path=environ.get("PATH", "")):
        return
    if environ.get("CI"):
        pytest.fail("terraform is missing. Mend: install Terraform 1.11 or newer", pytrace=False)
    pytest.skip("terraform is not here")


@contextmanager
def stand_in(folder: Path) -> Iterator[Mapping[str, str]]:
    """Serve the provider's schema; yields the environment in which terraform uses it."""
    if os.environ.get("VEDETTE_TF_REAL") == "1":
        yield dict(os.environ)
        return
    environ = {key: value for key, value in os.environ.items() if not key.startswith("TF_")}
    subprocess.run([ROOT / "tools/terraform-provider"], check=True, timeout=300)
    home = ROOT / ".tools/terraform"
    serve = ROOT / "tools/terraform_provider/serve.py"
    cut(home / "schema.json", folder / "schema.json")
    command: list[str | Path] = [
        home / "env/bin/python", "-I", serve, folder / "schema.json", folder / "provider.sock",
    ]  # fmt: skip
    path = folder / "reattach"
    with path.open("wb") as out, subprocess.Popen(command, stdout=out) as server:
        try:
            end = time.monotonic() + _START_S
            while not path.read_bytes().endswith(b"\n"):
                assert server.poll() is None, "the stand-in ended"
                assert time.monotonic() < end, "the stand-in does not start"
                time.sleep(0.05)
            yield {**environ, "TF_REATTACH_PROVIDERS": path.read_text("utf-8").strip()}
        finally:
            server.kill()


def cut(schema: Path, to: Path) -> None:
    """Cut the schema to what is in use: with a state Terraform prints all of it, for each run."""
    whole = json.loads(schema.read_text("utf-8"))
    used: set[str] = set()
    for file in (ROOT / "infra/terraform").rglob("*.tf"):
        used.update(re.findall(r'"(google_[a-z0-9_]+)"', file.read_text("utf-8")))
    for kind in ("resources", "data"):
        whole[kind] = {name: value for name, value in whole[kind].items() if name in used}
    to.write_text(json.dumps(whole), "utf-8")


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of one check: its exit code, all that it printed, and the state of each run."""

    code: int
    text: str
    states: Mapping[str, Mapping[str, Any]]

    def output(self, run: str, name: str) -> Any:
        """Return an output of a run."""
        return self.states[run]["outputs"][name]["value"]

    def resources(self, run: str) -> list[Mapping[str, Any]]:
        """Return every resource of a run: address, type, values."""
        found: list[Mapping[str, Any]] = []
        modules = [self.states[run]["root_module"]]
        while modules:
            module = modules.pop()
            found += module.get("resources", [])
            modules += module.get("child_modules", [])
        return found


def check(
    environ: Mapping[str, str], folder: str, root: Path = ROOT, *, told: bool = False
) -> Checked:
    """Run validate and test on one folder of infra/terraform; `told`: with the states of runs."""
    done = subprocess.run(
        ["sh", TOOL, "--root", root, folder],
        env={**environ, "JSON": str(int(told))}, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    states = {}
    for line in done.stdout.splitlines():
        found = json.loads(line) if told and line.startswith("{") else {}
        if found.get("type") == "test_state":
            states[found["@testrun"]] = found["test_state"]
    return Checked(done.returncode, done.stdout + done.stderr, states)


def copy(to: Path) -> Path:
    """Copy what infra/terraform consists of and reads; returns the copy's root."""
    shutil.copytree(ROOT / "infra/terraform", to / "infra/terraform")
    for part in ("schema", "views"):
        shutil.copytree(ROOT / ENGINE / part, to / ENGINE / part)
    for file in (ROOT / "agents").glob("*/agent.yaml"):
        (to / "agents" / file.parent.name).mkdir(parents=True)
        shutil.copyfile(file, to / "agents" / file.parent.name / "agent.yaml")
    return to


def edit(root: Path, path: str, old: str, new: str) -> None:
    """Replace a text that stands in a file of infra/terraform exactly once."""
    file = root / "infra/terraform" / path
    text = file.read_text("utf-8")
    assert text.count(old) == 1, f"{path} has {old!r} {text.count(old)} times"
    file.write_text(text.replace(old, new), "utf-8")
