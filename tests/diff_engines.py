"""Every engine is asked the same, and every difference is told: `make diff-engines`.

The oracle is OPA itself. The compiled engine and the Wasm must say exactly what the server says,
reasons and obligations included; the interpreter may instead fail where OPA denies (it errs where
the others say undefined), which is a deny too.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from tests.engines import Engines
from tests.questions import BUNDLE, SEED, decide, questions

from vedette.adapters.policy_engines.regorus.engine import InterpreterEngine, RegorusEngine
from vedette.domain.bundle import Bundle
from vedette.domain.decision import Decision
from vedette.domain.ports.policy_engine import PolicyEngine

_BATCH = 500
KEPT = 20


@dataclass(slots=True)
class Compared:
    """What came of a comparison: `differences` are (engine, question, its answer, OPA's)."""

    asked: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    differed: Counter[str] = field(default_factory=Counter)
    differences: list[tuple[str, Any, Decision, Decision]] = field(default_factory=list)

    def note(self, engine: str, question: Any, said: Decision, oracle: Decision) -> None:
        self.differed[engine] += 1
        if len(self.differences) < KEPT:
            self.differences.append((engine, question, said, oracle))


def compare(
    oracle: Callable[[Sequence[Any]], Sequence[Decision]],
    others: Mapping[str, PolicyEngine],
    requests: Iterable[Any],
) -> Compared:
    """Ask `oracle` a batch at a time and every other engine one by one; count what differs."""
    found = Compared()
    todo = iter(requests)
    while batch := list(islice(todo, _BATCH)):
        for question, right in zip(batch, oracle(batch), strict=True):
            found.asked += 1
            found.outcomes[right.outcome] += 1
            for name, engine in others.items():
                answer = decide(engine, question)
                failed = answer.rule == "engine.failed"
                if failed and name == "interpreter" and right.outcome == "deny":
                    continue
                if answer != right:
                    found.note(name, question, answer, right)
    return found


def others(engines: Engines, bundle: Bundle, *, interpreter: bool) -> dict[str, PolicyEngine]:
    """Return the engines that are held against OPA's answers."""
    found: dict[str, PolicyEngine] = {
        "compiled": RegorusEngine(bundle),
        "wasm": engines.wasm(bundle),
    }
    return {**found, "interpreter": InterpreterEngine(bundle)} if interpreter else found


def main() -> int:
    """Compare on the shipped policies; exit 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--interpreter", action="store_true", help="the slow engine too")
    args = parser.parse_args()
    began = time.monotonic()
    with Engines() as engines:
        rest = others(engines, BUNDLE, interpreter=args.interpreter)
        found = compare(
            partial(engines.opa_says, BUNDLE), rest, islice(questions(args.seed), args.many)
        )
    took = time.monotonic() - began
    print(f"{found.asked:,} questions, seed {args.seed}: {dict(found.outcomes)}; {took:.0f} s")
    print(f"OPA server against {', '.join(rest)}: {sum(found.differed.values())} differences")
    for name, question, said, right in found.differences:
        print(f"  {name}: {said}\n    OPA: {right}\n    question: {question!r}")
    return 1 if found.differed else 0


if __name__ == "__main__":
    sys.exit(main())
