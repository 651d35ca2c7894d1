"""`make mutants`: each mutant must be killed by the test of its promise, or by that which it names.

Each mutant is put into a copy of the checkout, and there the promise's own test is run by itself,
without its controls: killed is a mutant under which a test of that file fails. One under which the
file cannot even be collected proves nothing and counts as broken. First the tests are run in the
copy as it is: they must pass. What was found is kept, by what it was found of, so that a run that
was broken off goes on where it was; --fresh forgets it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.catalogue import ROOT, Mutant, listed, load, load_tasks

KEPT = ROOT / ".tools" / "mutants.json"
# What a promise's test needs of the checkout.
_PARTS = (
    "src",
    "tests",
    "agents",
    "policies",
    "memory",
    "samples",
    "tools",
    "pyproject.toml",
    "vedette.toml",
)
_DEADLINE_S = 600
_PASSED, _FAILED = 0, 1  # pytest's exit codes: anything else is neither
_UNENDED = -1


@dataclass(frozen=True, slots=True)
class Ran:
    """How a run ended: `killed`, `survived`, `broken` or `unended`, and what it said."""

    verdict: str
    seconds: float
    said: str


@contextmanager
def copies(number: int) -> Iterator[SimpleQueue[Path]]:
    """Give copies of the checkout, each for one run at a time."""
    with tempfile.TemporaryDirectory(prefix="vedette-mutants-") as name:
        free: SimpleQueue[Path] = SimpleQueue()
        for at in range(number):
            copy = Path(name) / str(at)
            copy.mkdir()
            for part in _PARTS:
                source = ROOT / part
                if source.is_dir():
                    skip = shutil.ignore_patterns("__pycache__")
                    shutil.copytree(source, copy / part, ignore=skip)
                else:
                    shutil.copy2(source, copy / part)
            free.put(copy)
        yield free


def run_tests(copy: Path, *tests: str) -> Ran:
    """Run tests in a copy, without their controls."""
    began = time.monotonic()
    environment = {name: value for name, value in os.environ.items() if name[:7] != "VEDETTE"}
    environment |= {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-k", "not control", "-p",
               "no:cacheprovider", "--timeout", "200", *tests]  # fmt: skip
    # A file, no pipe: what a test leaves running would keep a pipe open, and be waited for.
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        try:
            code = subprocess.run(
                command, cwd=copy, env=environment, stdout=out, stderr=subprocess.STDOUT,
                timeout=_DEADLINE_S, check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            code = _UNENDED  # nobody saw it: neither killed nor known to be alive
        out.seek(0)
        said = out.read()
    verdict = {_PASSED: "survived", _FAILED: "killed", _UNENDED: "unended"}.get(code, "broken")
    if verdict == "killed" and " failed" not in said:
        verdict = "broken"
    return Ran(verdict, time.monotonic() - began, said)


def try_mutant(free: SimpleQueue[Path], mutant: Mutant) -> Ran:
    """Put a mutant into a copy, run its promise's test there, and take it out again."""
    copy = free.get()
    path = copy / mutant.file
    text = path.read_text(encoding="utf-8")
    try:
        path.write_text(mutant.apply(text), encoding="utf-8")
        return run_tests(copy, mutant.killer)
    except ValueError as error:
        return Ran("broken", 0, str(error))
    finally:
        path.write_text(text, encoding="utf-8")
        free.put(copy)


def try_all(
    mutants: Sequence[Mutant], jobs: int, known: dict[str, str]
) -> list[tuple[Mutant, str]]:
    """Try mutants side by side; return those that were not killed, with what happened instead."""
    alive: list[tuple[Mutant, str]] = []
    with copies(jobs) as free, ThreadPoolExecutor(jobs) as pool:
        whole: dict[int, set[str]] = {}
        for mutant in mutants:
            whole.setdefault(mutant.promise, set()).add(mutant.killer)

        def as_it_is(promise: int) -> Ran:
            copy = free.get()
            try:
                return run_tests(copy, *sorted(whole[promise]))
            finally:
                free.put(copy)

        for promise, ran in zip(whole, pool.map(as_it_is, whole), strict=True):
            of = _of(promise)
            print(f"{of}: as it is: {ran.verdict} ({ran.seconds:.1f} s)", flush=True)
            if ran.verdict != "survived":
                raise SystemExit(f"the tests of {of} fail as it is:\n{ran.said[-3000:]}")
        wanted = [mutant for mutant in mutants if known.get(key(mutant)) != "killed"]
        print(f"{len(mutants) - len(wanted)} of {len(mutants)} were killed before", flush=True)
        tried = pool.map(lambda mutant: try_mutant(free, mutant), wanted)
        for at, (mutant, ran) in enumerate(zip(wanted, tried, strict=True), start=1):
            print(
                f"[{at}/{len(wanted)}] {_of(mutant.promise)} {mutant.name}: {ran.verdict}"
                f" ({ran.seconds:.1f} s)",
                flush=True,
            )
            known[key(mutant)] = ran.verdict
            keep(known)
            if ran.verdict != "killed":
                alive.append((mutant, ran.verdict))
                if ran.verdict == "broken":
                    print(ran.said[-2000:], flush=True)
    return alive


def _of(promise: int) -> str:
    return f"promise {promise:2}" if promise else "tasks"


def key(mutant: Mutant) -> str:
    """Return under what a verdict is kept: the mutant, and all that it was found of."""
    return f"{mutant.promise:02} {mutant.name} {_digest(repr(mutant))} {_checkout()}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_KNOWN: list[str] = []


def _checkout() -> str:
    if not _KNOWN:
        whole = hashlib.sha256()
        for part in _PARTS:
            for path in sorted([ROOT / part, *(ROOT / part).rglob("*")]):
                if path.is_file() and "__pycache__" not in path.parts:
                    whole.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
        _KNOWN.append(whole.hexdigest()[:16])
    return _KNOWN[0]


def keep(known: dict[str, str]) -> None:
    """Keep what was found so far."""
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_text(json.dumps(known, indent=1, sort_keys=True), encoding="utf-8")


def main() -> int:
    """Try the mutants that are asked for; return how many are alive, as an exit code."""
    options = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    options.add_argument("--promise", type=int, action="append", help="only this promise's")
    options.add_argument("--tasks", action="store_true", help="only those of tasks")
    options.add_argument("--only", help="only mutants whose name contains this")
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--fresh", action="store_true", help="forget what was found before")
    options.add_argument("--list", action="store_true", help="print the table of faults.md")
    given = options.parse_args()
    if given.list:
        print(listed(load()), end="")
        return 0
    mutants = [
        mutant
        for mutant in [*([] if given.tasks else load()), *load_tasks()]
        if (not given.promise or mutant.promise in given.promise)
        and (given.only or "") in mutant.name
    ]
    known = {}
    if KEPT.is_file() and not given.fresh:
        known = json.loads(KEPT.read_text(encoding="utf-8"))
    began = time.monotonic()
    alive = try_all(mutants, given.jobs, known)
    for mutant, verdict in alive:
        print(f"NOT KILLED ({verdict}): {_of(mutant.promise)} {mutant.name}: {mutant.breaks}")
    print(
        f"{len(mutants) - len(alive)} of {len(mutants)} mutants killed by the test that is to,"
        f" {time.monotonic() - began:.0f} s, {given.jobs} at a time"
    )
    return 1 if alive else 0


if __name__ == "__main__":
    raise SystemExit(main())
