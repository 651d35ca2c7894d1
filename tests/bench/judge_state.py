"""What naming a state costs, against digesting its bytes: `python -m tests.bench.judge_state`.

One series of the shipped judge of metrics, warm. Microseconds of this process's CPU for one event.
"""

from __future__ import annotations

import hashlib
import platform
import random
import time
from collections.abc import Callable
from pathlib import Path

from vedette.domain.judge_state import (
    advance_digest,
    format_state_name,
    initial_digest,
    is_state_name,
    judge_digest,
)
from vedette.judging.rank_anomaly import Ranks

TIMES = 20_000


def cost_us(work: Callable[[int], object], times: int = TIMES) -> float:
    """Return the least CPU time of one call in five rounds, in microseconds."""
    rounds = []
    for _ in range(5):
        began = time.process_time()
        for number in range(times):
            work(number)
        rounds.append((time.process_time() - began) / times * 1e6)
    return min(rounds)


def main() -> None:
    """Print both, with the conditions."""
    draw, state = random.Random(1), Ranks(3.86)
    for row in range(13_000):
        state.observe(draw.gauss(0, 1), row % 24)
    made, seen = judge_digest("0" * 64, ()), initial_digest(0)
    named = cost_us(
        lambda number: is_state_name(format_state_name(made, advance_digest(seen, number)))
    )
    whole = cost_us(lambda _: hashlib.sha256(state.dump()).hexdigest(), TIMES // 10)
    load = Path("/proc/loadavg").read_text().split()[0] if Path("/proc/loadavg").exists() else "?"
    print(f"Python {platform.python_version()}, {platform.machine()}, load {load}")
    print(f"name of a state, made and checked: {named:.1f} us")
    print(f"bytes of a state ({len(state.dump()):,}), written and digested: {whole:.1f} us")


if __name__ == "__main__":
    main()
