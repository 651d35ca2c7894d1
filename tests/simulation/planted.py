"""`make planted`: bugs that are planted in a copy of the checkout, and how soon each is found.

A seed counts if its history is wrong with the bug and right without it. The table says how many
seeds it took to the first, and of how many that were played how many showed it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.mutants.__main__ import copies
from tests.mutants.catalogue import Mutant, load
from tests.simulation.plan import make_plan
from tests.simulation.play import player
from tests.simulation.search import SIZES

CATALOGUE = Path(__file__).with_name("planted.toml")
# How many seeds are played at once, and how many that show a bug are enough for its share.
_AT_ONCE, _ENOUGH = 40, 5


@dataclass(frozen=True)
class Bug:
    """A bug: the texts that it changes, which finding it was (0: none), and on which store."""

    mutant: Mutant
    finding: int
    store: str
    size: str = "short"
    also: tuple[Mutant, ...] = ()

    def files(self, root: Path) -> dict[str, str]:
        """Return the files of a checkout with the bug in them. Raises ValueError if it fits not."""
        texts: dict[str, str] = {}
        for each in (self.mutant, *self.also):
            text = texts.get(each.file) or (root / each.file).read_text(encoding="utf-8")
            texts[each.file] = each.apply(text)
        return texts


@dataclass(frozen=True)
class Found:
    """How a bug was found: after how many seeds (0: not at all), in how many of those played."""

    first: int
    showed: int
    played: int
    kinds: tuple[str, ...]
    seconds: float


def planted() -> list[Bug]:
    """Return all bugs, in the order of their file."""
    known = {(one.promise, one.name): one for one in load()}
    bugs = []
    for fields in tomllib.loads(CATALOGUE.read_text("utf-8"))["bug"]:
        finding, store = fields.pop("finding", 0), fields.pop("store")
        size, also = fields.pop("size", "short"), fields.pop("also", ())
        mutant = Mutant(**fields) if "find" in fields else known[fields["promise"], fields["name"]]
        rest = tuple(replace(mutant, **each) for each in also)
        bugs.append(Bug(mutant, finding, store, size, rest))
    return bugs


def find(bug: Bug, copy: Path, most: int) -> Found:
    """Play seeds over a copy with the bug in it until it has shown, or `most` have been played."""
    began, played = time.monotonic(), 0
    showing: list[int] = []
    kinds: set[str] = set()
    before = {name: (copy / name).read_text(encoding="utf-8") for name in bug.files(copy)}
    _write(copy, bug.files(copy))
    try:
        with player() as play:
            while played < most and len(showing) < _ENOUGH:
                number = min(_AT_ONCE, most - played)
                for result in _searched(copy, bug, played, number):
                    plan = make_plan(result["seed"], SIZES[bug.size], bug.store)
                    if result["wrong"] and not play(plan).wrong:
                        showing.append(result["seed"])
                        kinds |= {kind for kind, _ in result["wrong"]}
                played += number
                if showing and played >= 2 * _AT_ONCE:
                    break
    finally:
        _write(copy, before)
    first = min(showing, default=-1) + 1
    return Found(first, len(showing), played, tuple(sorted(kinds)), time.monotonic() - began)


def _write(copy: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (copy / name).write_text(text, encoding="utf-8")


def _searched(copy: Path, bug: Bug, first: int, number: int) -> Iterator[dict[str, Any]]:
    """Search seeds in a copy of the checkout; give what came of each."""
    environment = {name: value for name, value in os.environ.items() if name[:7] != "VEDETTE"}
    environment |= {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory(prefix="vedette-planted-") as folder:
        command = [
            sys.executable, "-m", "tests.simulation.search", "--histories", str(number),
            "--first", str(first), "--size", bug.size, "--store", bug.store, "--processes", "1",
            "--tries", "0", "--folder", folder,
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, check=False
        )
        files = sorted(Path(folder).glob("*.jsonl"))
        if not files:
            raise RuntimeError(
                f"{bug.mutant.name}: nothing could be played:\n{done.stderr[-2000:]}"
            )
        for line in files[0].read_text("utf-8").splitlines():
            yield json.loads(line)


def row(bug: Bug, found: Found) -> str:
    """Return a row of the table."""
    mutant = bug.mutant
    what = f"finding {bug.finding}" if bug.finding else f"promise {mutant.promise}"
    share = f"{found.showed} of {found.played}"
    kinds = ", ".join(found.kinds) or "not found"
    return (
        f"| `{mutant.name}` | {what} | {mutant.breaks} | {bug.store} | {found.first or '-'} | "
        f"{share} | {kinds} |"
    )


def main() -> int:
    """Plant the bugs that are asked for; return how many were not found, as an exit code."""
    options = argparse.ArgumentParser(prog="make planted", description=__doc__)
    options.add_argument("--only", default="", help="only bugs whose name contains this")
    options.add_argument("--most", type=int, default=1000, help="seeds for each")
    given = options.parse_args()
    missed = 0
    print("| Bug | Of | What it breaks | Store | Seeds to the first | Shown by | As |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with copies(1) as free:
        copy = free.get()
        for bug in planted():
            if given.only in bug.mutant.name:
                found = find(bug, copy, given.most)
                missed += not found.first
                print(row(bug, found), flush=True)
    print(f"{missed} not found within {given.most} seeds")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
