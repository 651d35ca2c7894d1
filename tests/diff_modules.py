"""Generated modules, each engine that may decide against real `opa`: part of `make diff-engines`.

In batches: modules are made until so many are admitted by the profile, each is asked the same
questions by the OPA server, by OPA's Wasm, by regorus' compiled program and by its residuals, and
every difference is told with its module. A residual may give way instead. What was counted is kept
in a file after each batch, so that a run that was broken off goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson
from tests.engines import Engines
from tests.opa import find_opa
from tests.rego_compare import (
    FAILED,
    GAVE_WAY,
    REFUSED,
    UNDEFINED,
    by_regorus,
    by_residual,
    by_wasm,
    refusals,
    server,
)
from tests.rego_grammar import modules, questions

from vedette.adapters.policy_engines.regorus.engine import version

SEED = 20261122
BATCH = 50
ASKED = 50
KEPT = 20
ENGINES = ("wasm", "regorus", "residual")
STATE = Path("build/diff-modules.json")


@dataclass
class Counts:
    """What came of the batches so far; `differed` and `refused_by_opa` are modules."""

    seed: int
    batches: int = 0
    made: int = 0
    admitted: int = 0
    decisions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENGINES, 0))
    gave_way: int = 0
    values: int = 0
    undefined: int = 0
    failed: int = 0
    refused_by_opa: int = 0
    differed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENGINES, 0))
    seconds: float = 0.0
    examples: list[str] = field(default_factory=list)


def batch(counts: Counts, *, size: int = BATCH, questions_each: int = ASKED) -> None:
    """Compare one more batch, and count what came of it."""
    began = time.monotonic()
    number = counts.batches
    texts: dict[int, str] = {}
    for text in modules(counts.seed + number * 1_000_003):
        counts.made += 1
        if not refusals(text):
            texts[len(texts)] = text
            if len(texts) == size:
                break
    all_questions = questions(random.Random(counts.seed - number - 1), questions_each)
    with server(texts) as opa, Engines() as engines:
        right = {number: opa.answers(number, all_questions) for number in texts}
        compiled = {number: text for number, text in texts.items() if number not in opa.refused}
        wasm = by_wasm(engines, compiled, all_questions)
    said = {
        "regorus": {number: by_regorus(text, all_questions) for number, text in texts.items()},
        "wasm": wasm,
        "residual": {number: by_residual(text, all_questions) for number, text in texts.items()},
    }
    for refused, words in opa.refused.items():
        _example(counts, f"opa does not compile it: {words}\n{texts[refused]}")
    counts.refused_by_opa += len(opa.refused)
    for name, answers in said.items():
        _count(counts, name, answers, right, texts, all_questions)
    for number in compiled:
        counts.undefined += right[number].count(UNDEFINED)
        counts.failed += right[number].count(FAILED)
        counts.values += sum(each not in (UNDEFINED, FAILED) for each in right[number])
    counts.batches += 1
    counts.admitted += len(texts)
    counts.seconds += time.monotonic() - began


def _count(
    counts: Counts,
    name: str,
    said: Mapping[int, list[Any]],
    right: Mapping[int, list[Any]],
    texts: Mapping[int, str],
    requests: list[dict[str, Any]],
) -> None:
    for number, answers in said.items():
        if right[number][0] == REFUSED:
            continue
        given = [n for n, each in enumerate(answers) if each != GAVE_WAY]
        counts.decisions[name] += len(given)
        counts.gave_way += len(answers) - len(given)
        wrong = [n for n in given if answers[n] != right[number][n]]
        if wrong:
            counts.differed[name] += 1
            first = wrong[0]
            _example(
                counts,
                f"{name} says {answers[first]}\nopa says {right[number][first]}\n"
                f"asked {requests[first]!r}\n{texts[number]}",
            )


def _example(counts: Counts, words: str) -> None:
    if len(counts.examples) < KEPT:
        counts.examples.append(words)


def _read(path: Path, seed: int) -> Counts:
    if path.is_file():
        found = orjson.loads(path.read_bytes())
        if found["seed"] == seed and found["decisions"].keys() == set(ENGINES):
            return Counts(**found)
    return Counts(seed)


def _write(path: Path, counts: Counts) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part_path = path.with_suffix(".new")
    part_path.write_bytes(orjson.dumps(asdict(counts), option=orjson.OPT_INDENT_2))
    part_path.replace(path)


def _conditions() -> Iterator[str]:
    opa = subprocess.run([find_opa(), "version"], capture_output=True, text=True, check=True)
    yield f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores"
    yield f"load {os.getloadavg()[0]:.1f}; opa {opa.stdout.split()[1]}; regorus {version()}"


def main() -> int:
    """Compare until so many modules are done; exit 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modules", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--state", type=Path, default=STATE, help="where it goes on from")
    parser.add_argument("--anew", action="store_true", help="forget what was counted")
    args = parser.parse_args()
    counts = Counts(args.seed) if args.anew else _read(args.state, args.seed)
    print(f"modules of seed {args.seed}; {'; '.join(_conditions())}")
    if counts.batches:
        print(f"going on after {counts.admitted:,} modules ({args.state})")
    while counts.admitted < args.modules:
        batch(counts)
        _write(args.state, counts)
        if counts.batches % 10 == 0 or counts.admitted >= args.modules:
            count = sum(counts.differed.values()) + counts.refused_by_opa
            print(
                f"{counts.admitted:,} of {args.modules:,} modules, {counts.decisions['wasm']:,} "
                f"decisions each, {count} differ; {counts.seconds:.0f} s",
                flush=True,
            )
    print(
        f"{counts.made:,} modules made, {counts.admitted:,} admitted; the server answered "
        f"{counts.values:,} values, {counts.undefined:,} undefined, {counts.failed:,} errors"
    )
    print(f"admitted and not compiled by opa: {counts.refused_by_opa}")
    print(f"residuals gave way {counts.gave_way:,} times")
    for name, many in counts.decisions.items():
        print(
            f"OPA server against {name}: {many:,} decisions, {counts.differed[name]} modules differ"
        )
    for words in counts.examples:
        print(f"--- {words}")
    return 1 if counts.examples else 0


if __name__ == "__main__":
    sys.exit(main())
