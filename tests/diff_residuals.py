"""The residuals of the shipped policy against OPA's Wasm: `make diff-residuals`.

For each granted (agent, tool) a residual is made, and asked as many questions as `--many` says,
around a right one: each number it compares with, one less and one more, and several changes at a
time. Whatever it permits, the Wasm must permit in the same words. Then, with `--mutants`, one
residual is spoilt in each place where it tests something or names a number: how many of these are
refused by the comparison that each residual meets before it answers, and how many of the others are
found by a comparison that is ten times longer. What neither finds is taken to decide the same.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.opa import find_opa
from tests.questions import BUNDLE

from vedette.adapters.policy_engines.opa_wasm import WasmEngine, compile_wasm
from vedette.adapters.policy_engines.regorus.residual.compiler import (
    BundleCompiler,
    CompiledResidual,
)
from vedette.domain.base.canonical import canonical_json
from vedette.domain.bundle import Bundle
from vedette.policy.bundle_data import mount
from vedette.policy.golden_requests import build_request
from vedette.policy.residuals import DRAWN, compare_residual

SEED = "20261127"
# A number that is no part of a name, an index of a slot or a text.
_NUMBER = re.compile(r"(?<![\w\['\"])\d+(?![\w'\"])")


def granted_requests(bundle: Bundle) -> list[dict[str, Any]]:
    """Return a right question for each tool that a bundle grants an agent."""
    data = mount(bundle.files)
    return [
        build_request(
            agent,
            tool,
            {**given, "owner": grant["owner"]},
            list(data["sinks"]["tools"].get(tool, [])),
        )
        for agent, grant in data["grants"].items()
        for tool, given in grant["tools"].items()
    ]


def mutants(residual: CompiledResidual) -> Iterator[tuple[str, CompiledResidual]]:
    """Yield residuals that are spoilt in one place each, with what was done to which line.

    A test is left out, a check of the guard is, a number is one more or less.
    """
    lines = residual.source.splitlines()
    for at, line in enumerate(lines):
        found = []
        if re.match(r"\s*if .*:$", line):
            found.append(f"{line[: len(line) - len(line.lstrip())]}if True:")
        if line.endswith(": return False"):
            found.append(f"{line[: len(line) - len(line.lstrip())]}pass")
        if not line.startswith("EMPTY"):
            for number in _NUMBER.finditer(line):
                found += [
                    f"{line[: number.start()]}{int(number[0]) + step}{line[number.end() :]}"
                    for step in (-1, 1)
                ]
        for other in found:
            source = "\n".join([*lines[:at], other, *lines[at + 1 :]]) + "\n"
            yield f"{line.strip()} -> {other.strip()}", CompiledResidual(source, residual.constants)


def main() -> int:
    """Compare on the shipped policies; exit 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--many", type=int, default=100_000, help="questions for each residual")
    parser.add_argument("--seed", default=SEED)
    parser.add_argument("--mutants", metavar="TOOL", help="spoil the residual of one tool instead")
    parser.add_argument("--every", type=int, default=1, help="with --mutants: only each n-th")
    args = parser.parse_args()
    engine = WasmEngine(BUNDLE, compile_wasm(find_opa(), BUNDLE))
    compiler = BundleCompiler(BUNDLE)
    if args.mutants:
        return _count_mutants(engine, compiler, args.mutants, args.every, args.seed)
    wrong = asked = permits = 0
    for request in granted_requests(BUNDLE):
        began = time.monotonic()
        residual = compiler.compile(request)
        compared, difference = compare_residual(
            residual, engine, [canonical_json(request)], args.seed, args.many
        )
        asked, permits = asked + args.many, permits + compared
        wrong += difference is not None
        print(
            f"{request['subject']['agent']} {request['action']['tool']}: {compared:,} permitted, "
            f"{difference or 'no difference'}; {time.monotonic() - began:.0f} s",
            flush=True,
        )
    print(f"{asked:,} questions, {permits:,} permitted by residuals, {wrong} residuals differ")
    return 1 if wrong else 0


def _count_mutants(
    engine: WasmEngine, compiler: BundleCompiler, tool: str, every: int, seed: str
) -> int:
    request = next(each for each in granted_requests(BUNDLE) if each["action"]["tool"] == tool)
    residual, recorded = compiler.compile(request), [canonical_json(request)]
    counts: Counter[str] = Counter()
    for number, (what, mutant) in enumerate(mutants(residual)):
        if number % every:
            continue
        if compare_residual(mutant, engine, recorded, seed)[1] is not None:
            counts["refused"] += 1
        elif compare_residual(mutant, engine, recorded, f"{seed} longer", 10 * DRAWN)[1] is None:
            counts["same"] += 1
        else:
            counts["missed"] += 1
            print(f"missed: {what}", flush=True)
    print(
        f"{tool}: {counts['refused']} of {counts.total()} mutants refused, {counts['missed']} "
        f"missed, {counts['same']} not told apart by {10 * DRAWN:,} questions either"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
