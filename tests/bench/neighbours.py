"""How much the others notice of an agent with a storm of events, and of a target that hangs.

    python -m tests.bench.neighbours [SECONDS]

Prints p50 and p99 from an event being handed over to its effect beginning at the target, quiet and
disturbed, over SECONDS each (default 20), and an fsync calibration. Ends with 1 if a disturbed p99
is more than twice the quiet one.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.faults import test_noisy_neighbours as cases
from tests.faults.noise import Seen, latency_line, share


def fsync_ms(folder: Path) -> float:
    """Return the p50 of 200 small appends with fdatasync, in milliseconds."""
    took = []
    with (folder / "calibration").open("ab") as file:
        for _ in range(200):
            began = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1000)
    return share(sorted(took), 0.5)


async def run(folder: Path) -> bool:
    """Measure both; return whether the promise is kept."""
    kept = True
    pairs = (("storm", cases.under_storm), ("hanging target", cases.with_a_target_that_hangs))
    for name, case in pairs:
        world = Seen()
        async with cases.fleet_of(folder / name.split()[0], world) as fleet:
            quiet, noisy = await case(fleet, world)
            await fleet.wait_until_idle(120)
            cases.nothing_is_lost(fleet, world)
        print(latency_line(name, quiet, noisy))
        kept = kept and share(noisy, 0.99) <= 2 * share(quiet, 0.99)
    return kept


def main() -> int:
    """Print the numbers."""
    cases.SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        folder = Path(name)
        print(
            f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
            f"append + fdatasync p50 {fsync_ms(folder):.2f} ms"
        )
        return 0 if asyncio.run(run(folder)) else 1


if __name__ == "__main__":
    sys.exit(main())
