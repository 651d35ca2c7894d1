"""What the box of agents' code costs: `make bench-box`.

The shipped anomaly judge in a worker process, with and without a box, in turns (A B A B …): CPU of
a worker's start (in its fork server and in itself, until its first answer), the time until then,
CPU of a judged event (of the engine and of the worker), and what of a start is spent on entering.
"""

from __future__ import annotations

import asyncio
import os
import platform
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from tests.bench.workers import FOLDER, all_lanes, briefings

from vedette.adapters.reasoners.workers.reasoner_client import JudgeSpec, WorkerReasoner
from vedette.adapters.reasoners.workers.sandbox import Sandbox, enter_sandbox, prepare_sandbox
from vedette.adapters.reasoners.workers.sandbox_probe import protection
from vedette.adapters.reasoners.workers.supervisor import WorkerPool
from vedette.config.yaml import parse_yaml
from vedette.domain.memory import Briefing

ROUNDS, BIRTHS, ENTRIES = 6, 10, 50


def main() -> None:
    """Print all of it, with its conditions."""
    kernel = protection()
    print(
        f"Linux {platform.release()}, Landlock ABI {kernel.landlock}, seccomp "
        f"{'yes' if kernel.seccomp else 'no'}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    for name, ports in (("a judge", ()), ("tools with a port", (443,))):
        times = sorted(entering(ports) for _ in range(ENTRIES))
        print(
            f"entering the box of {name}: {median(times):.2f} ms CPU "
            f"(median of {ENTRIES}; {times[0]:.2f} to {times[-1]:.2f})"
        )
    charter = parse_yaml((FOLDER / "agent.yaml").read_text(), "agent.yaml")[0].value["charter"]
    cases = briefings(charter)
    found: dict[bool, dict[str, list[float]]] = {False: {}, True: {}}
    for _ in range(ROUNDS):
        for boxed in (False, True):
            for name, values in asyncio.run(judged(charter, cases, boxed)).items():
                found[boxed].setdefault(name, []).extend(values)
    for name, without in found[False].items():
        bare, boxed_ = median(without), median(found[True][name])
        print(
            f"{name}: {bare:.2f} without, {boxed_:.2f} in a box, {boxed_ - bare:+.2f}, "
            f"ratio {boxed_ / bare:.3f} (medians of {len(without)}, in turns; "
            f"without {min(without):.2f} to {max(without):.2f}, "
            f"in a box {min(found[True][name]):.2f} to {max(found[True][name]):.2f})"
        )


async def judged(
    charter: Mapping[str, Any], cases: list[list[Briefing]], boxed: bool
) -> dict[str, list[float]]:
    """Start workers and judge all events once; return what was measured, by its name and unit."""
    starts, waits = [], []
    with tempfile.TemporaryDirectory() as state:
        pool = WorkerPool(Path(state), sandboxed=boxed)
        judges = WorkerReasoner(pool, lambda _: JudgeSpec(str(FOLDER), charter))
        first = cases[0][0]
        await judges.reason(first)
        fork_server = psutil.Process(pool.worker_pids["watcher", "judge"]).ppid()
        await asyncio.sleep(2)  # it has imported what most judges need
        for _ in range(BIRTHS):
            judges.renew("watcher")
            before, began = cpu_ms(fork_server), time.monotonic()
            await judges.reason(first)
            waits.append((time.monotonic() - began) * 1e3)
            starts.append(
                cpu_ms(fork_server) - before + cpu_ms(pool.worker_pids["watcher", "judge"])
            )
        judges.drop_state("watcher", first.key)
        pid, number = pool.worker_pids["watcher", "judge"], sum(map(len, cases))
        there, here = cpu_ms(pid), time.process_time()
        await all_lanes(judges, cases)
        spent = (cpu_ms(pid) - there) * 1e3 + (time.process_time() - here) * 1e6
        pool.close()
    return {
        "start, ms CPU": starts, "start to first answer, ms": waits,
        "judged event, us CPU": [spent / number],
    }  # fmt: skip


def cpu_ms(pid: int) -> float:
    """Return how many milliseconds of CPU the main thread of a process has used."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def entering(ports: tuple[int, ...]) -> float:
    """Return how many ms of CPU a process takes to enter, as a fork server prepares it."""
    there, here = os.pipe()
    with tempfile.TemporaryDirectory() as scratch:
        box = Sandbox(scratch, read=(str(FOLDER),), ports=ports)
        prepare_sandbox(box)
        pid = os.fork()
        if pid == 0:
            with suppress(BaseException):
                began = time.process_time()
                enter_sandbox(box, (here,))
                os.write(here, repr((time.process_time() - began) * 1e3).encode())
            os._exit(0)
        os.close(here)
        took = float(os.read(there, 64))
        os.close(there)
        os.waitpid(pid, 0)
    return took


if __name__ == "__main__":
    main()
