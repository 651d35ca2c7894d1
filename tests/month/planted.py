"""`make planted-month`: bugs planted in a copy of the checkout, each found by a few days."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from tests.mutants.__main__ import copies
from tests.mutants.catalogue import Mutant

CATALOGUE = Path(__file__).with_name("planted.toml")
_KIND = re.compile(r"^(?:day [0-9]+: )?([a-z ]+): [0-9]+$", re.MULTILINE)
# The days at which a bug of each kind has come up, and how much happens on them.
_DAYS, _RATE, _SEED = "4", "0.15", "5"


def planted() -> list[tuple[Mutant, str]]:
    """Return the bugs, each with the kind as which it is found."""
    rows = tomllib.loads(CATALOGUE.read_text("utf-8"))["bug"]
    found = []
    for row in rows:
        kind = row.pop("finds")
        found.append((Mutant(promise=0, **row), kind))
    return found


def find(copy: Path, mutant: Mutant | None) -> set[str]:
    """Play some days over a copy with a bug in it; return the kinds of what is wrong with them."""
    file = copy / (mutant.file if mutant else "pyproject.toml")
    before = file.read_text("utf-8")
    if mutant is not None:
        file.write_text(mutant.apply(before), "utf-8")
    environment = {name: value for name, value in os.environ.items() if name[:7] != "VEDETTE"}
    environment |= {"PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy}"}
    try:
        with tempfile.TemporaryDirectory(prefix="vedette-month-") as folder:
            command = [
                sys.executable, "-m", "tests.month", "--days", _DAYS, "--rate", _RATE,
                "--seed", _SEED, "--folder", folder,
            ]  # fmt: skip
            done = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, check=False
            )
    finally:
        file.write_text(before, "utf-8")
    if "violations" not in done.stdout:
        raise RuntimeError(f"nothing could be judged:\n{done.stderr[-2000:]}")
    return set(_KIND.findall(done.stdout))


def main() -> int:
    """Plant the bugs that are asked for; return how many were not found, as an exit code."""
    options = argparse.ArgumentParser(prog="make planted-month", description=__doc__)
    options.add_argument("--only", default="", help="only bugs whose name contains this")
    given = options.parse_args()
    missed = 0
    print("| Bug | What it breaks | As |\n| --- | --- | --- |")
    with copies(1) as free:
        copy = free.get()
        assert not find(copy, None), "something is wrong without a bug"
        for mutant, kind in planted():
            if given.only in mutant.name:
                kinds = find(copy, mutant)
                missed += kind not in kinds
                print(
                    f"| `{mutant.name}` | {mutant.breaks} | {', '.join(sorted(kinds))} |",
                    flush=True,
                )
    print(f"{missed} not found as what they are")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
