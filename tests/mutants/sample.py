"""`python -m tests.mutants.sample`: how many of a random sample of small faults the tests see.

A fault is one change of the engine's syntax tree (a comparison turned round, a condition that is
always true, a number one higher, a call left out …) at a place drawn by a seed; it is killed if a
test fails that imports its module. This says how close the tests hold the code, where the catalogue
says that each promise is held. To compare two checkouts run it in both with the same count: the
places differ, so compare the shares, with their intervals. Operators: Offutt et al., "An
Experimental Determination of Sufficient Mutant Operators" (1996).
"""

from __future__ import annotations

import argparse
import ast
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.__main__ import copies
from tests.mutants.catalogue import ROOT

SOURCE = ROOT / "src" / "vedette"
# In the order in which they are run: what fails soonest comes first.
FOLDERS = ("unit", "properties", "contract", "fleet", "acceptance/promises")
MOST_FILES = 12
DEADLINE_S = 300

_SWAPS: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Lt: ">=", ast.GtE: "<", ast.Gt: "<=", ast.LtE: ">",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """One change of a file: what stood there, and what stands there with it."""

    file: Path
    line: int
    old: str
    new: str
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}: {self.old!r} -> {self.new!r}"


def faults_in(path: Path) -> Iterator[Fault]:
    """Yield every fault that the operators make of a file."""
    raw = path.read_bytes()
    lines = [0]
    for line in raw.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))

    def place(node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = lines[node.lineno - 1] + node.col_offset
        return start, lines[node.end_lineno - 1] + node.end_col_offset

    def fault(node: ast.expr | ast.stmt, new: str) -> Fault:
        start, end = place(node)
        return Fault(path, node.lineno, raw[start:end].decode(), new, start, end)

    for node in ast.walk(ast.parse(raw)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.Compare) and len(inner.ops) == 1:
                left, right = inner.left, inner.comparators[0]
                sign = _SWAPS[type(inner.ops[0])]
                yield fault(inner, f"{ast.unparse(left)} {sign} {ast.unparse(right)}")
            elif isinstance(inner, ast.If | ast.IfExp | ast.While):
                yield fault(inner.test, "True")
                yield fault(inner.test, "False")
            elif isinstance(inner, ast.BoolOp):
                word = " or " if isinstance(inner.op, ast.And) else " and "
                yield fault(inner, f"({word.join(f'({ast.unparse(v)})' for v in inner.values)})")
            elif isinstance(inner, ast.Constant) and type(inner.value) is int:
                yield fault(inner, str(inner.value + 1))
            elif isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Call | ast.Await):
                yield fault(inner, "pass")
            elif isinstance(inner, ast.Return) and inner.value is not None:
                yield fault(inner, "return None")


def draw(count: int, seed: int) -> list[Fault]:
    """Draw faults by a seed: a file by its length, then a place in it."""
    dice = random.Random(seed)
    files = [path for path in sorted(SOURCE.rglob("*.py")) if "testing" not in path.parts]
    weights = [len(path.read_bytes()) for path in files]
    drawn: list[Fault] = []
    while len(drawn) < count:
        found = list(faults_in(dice.choices(files, weights)[0]))
        if found and (one := dice.choice(found)) not in drawn:
            drawn.append(one)
    return drawn


def tests_of(file: Path) -> list[Path]:
    """Return the files of tests that import a module, or else its package."""
    name = ".".join(file.relative_to(ROOT / "src").with_suffix("").parts)
    name = name.removesuffix(".__init__")
    found: list[Path] = []
    while not found and "." in name:
        for folder in FOLDERS:
            for path in sorted((ROOT / "tests" / folder).rglob("test_*.py")):
                text = path.read_text(encoding="utf-8")
                package, _, last = name.rpartition(".")
                if f"{name} " in text or f"from {package} import {last}" in text:
                    found.append(path)
        name = name.rpartition(".")[0]
    return found[:MOST_FILES]


def verdict(free: SimpleQueue[Path], fault: Fault) -> str:
    """Return `killed`, `survived`, `untested` or `unended` of one fault."""
    chosen = tests_of(fault.file)
    if not chosen:
        return "untested"
    copy = free.get()
    path = copy / fault.file.relative_to(ROOT)
    raw = path.read_bytes()
    environment = {name: value for name, value in os.environ.items() if name[:7] != "VEDETTE"}
    environment |= {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout",
               "60", *(str(copy / test.relative_to(ROOT)) for test in chosen)]  # fmt: skip
    try:
        path.write_bytes(raw[: fault.start] + fault.new.encode() + raw[fault.end :])
        with tempfile.TemporaryFile("w+") as out:
            code = subprocess.run(
                command, cwd=copy, env=environment, stdout=out, stderr=subprocess.STDOUT,
                timeout=DEADLINE_S, check=False,
            ).returncode  # fmt: skip
    except subprocess.TimeoutExpired:
        return "unended"
    finally:
        path.write_bytes(raw)
        free.put(copy)
    return "survived" if code == 0 else "killed"


def interval(killed: int, count: int) -> tuple[float, float]:
    """Return Wilson's interval of a share, 95 %."""
    z, share = 1.96, killed / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count**2))
    half /= 1 + z * z / count
    return middle - half, middle + half


def main() -> int:
    """Try a sample; print each fault that was not killed, and the share that was."""
    options = argparse.ArgumentParser(prog="tests.mutants.sample", description=__doc__)
    options.add_argument("--count", type=int, default=100)
    options.add_argument("--seed", type=int, default=7)
    options.add_argument("--jobs", type=int, default=2)
    given = options.parse_args()
    began = time.monotonic()
    faults, counts = draw(given.count, given.seed), dict[str, int]()
    with copies(given.jobs) as free, ThreadPoolExecutor(given.jobs) as pool:
        for at, (fault, found) in enumerate(
            zip(faults, pool.map(lambda one: verdict(free, one), faults), strict=True), start=1
        ):
            counts[found] = counts.get(found, 0) + 1
            print(f"[{at}/{len(faults)}] {found}: {fault}", flush=True)
    killed = counts.get("killed", 0)
    low, high = interval(killed, len(faults))
    print(f"{killed} of {len(faults)} killed ({low:.0%} to {high:.0%}), {counts}, seed "
          f"{given.seed}, {time.monotonic() - began:.0f} s, {given.jobs} at a time")  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
