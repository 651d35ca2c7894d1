"""What worker processes cost: `python -m tests.bench.workers`.

The shipped anomaly judge on a random walk, in this process and in a worker: CPU per judgement of
the engine and of the worker, the time of one judgement alone, the time until a first one, and the
p50 and p99 of one agent's judgements while another agent's judge hangs again and again. What a box
adds is told by `make bench-box`.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.workers import JUDGE_PY, brief, write_judge

from vedette.adapters.reasoners.in_process import InProcessReasoner
from vedette.adapters.reasoners.workers.pending_call import WorkerLost
from vedette.adapters.reasoners.workers.reasoner_client import JudgeSpec, WorkerReasoner
from vedette.adapters.reasoners.workers.supervisor import WorkerPool
from vedette.config.agent_loader import load_judge
from vedette.config.yaml import parse_yaml
from vedette.domain.agent import ResourceLimits
from vedette.domain.event import Event
from vedette.domain.memory import Briefing

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "agents" / "anomaly_detection"
LANES, EACH = 64, 300


def cpu(pid: int | None = None) -> float:
    """Return the seconds of CPU that this process, or another one, has used."""
    if pid is None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime
    import psutil

    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def briefings(charter: Mapping[str, Any]) -> list[list[Briefing]]:
    """Return a random walk for each lane."""
    draw = random.Random(7)
    found = []
    registry: dict[str, Any] = {"webhooks": {"oncall": "https://example.org"}}
    for lane in range(LANES):
        value, lane_briefings = 100.0, []
        for at in range(1, EACH + 1):
            value += draw.gauss(0, 1)
            key = f"pump/{lane}"
            data = {"value": repr(value)}
            event = Event("csv:s", f"{lane}.{at}", "metric.point", key, "2026-01-01", data)
            lane_briefings.append(
                Briefing(
                    f"run_{lane}_{at}", "watcher", key, at, at - 1, 1, event, charter, registry
                )
            )
        found.append(lane_briefings)
    return found


async def lane(judges: Any, lane_briefings: list[Briefing]) -> None:
    for briefing in lane_briefings:
        assert (await judges.reason(briefing)).label


async def all_lanes(judges: Any, lanes: list[list[Briefing]]) -> None:
    await asyncio.gather(*(lane(judges, one) for one in lanes))


async def measure() -> None:
    """Print all of it."""
    text = (FOLDER / "agent.yaml").read_text()
    charter = parse_yaml(text, "agent.yaml")[0].value["charter"]
    lanes = briefings(charter)
    number = LANES * EACH
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {number:,} judgements")
    before, began = cpu(), time.monotonic()
    await all_lanes(InProcessReasoner(lambda _: load_judge(FOLDER, charter, ())), lanes)
    near = (cpu() - before) / number * 1e6
    print(f"in this process: {near:.1f} us CPU, {number / (time.monotonic() - began):,.0f}/s")
    with tempfile.TemporaryDirectory() as state:
        began = time.monotonic()
        pool = WorkerPool(Path(state))
        start_ms = (time.monotonic() - began) * 1e3
        print(f"a start of the fork server keeps the engine for {start_ms:.1f} ms")
        judges = WorkerReasoner(pool, lambda _: JudgeSpec(str(FOLDER), charter))
        await judges.reason(lanes[0][0])
        print(f"first judgement after {(time.monotonic() - began) * 1e3:.0f} ms")
        judges.drop_state("watcher", lanes[0][0].key)
        pid = pool.worker_pids["watcher", "judge"]
        before, there, began = cpu(), cpu(pid), time.monotonic()
        await all_lanes(judges, lanes)
        engine, worker = cpu() - before, cpu(pid) - there
        far = (engine + worker) / number * 1e6
        print(
            f"in a worker: engine {engine / number * 1e6:.1f} us + worker "
            f"{worker / number * 1e6:.1f} us = {far:.1f} us CPU, {far - near:.1f} us added, "
            f"{number / (time.monotonic() - began):,.0f}/s"
        )
        pool.close()
    for wild in (False, True):
        await latency(wild)


async def latency(wild: bool) -> None:
    """Print one agent's times at 500 judgements a second, beside one that hangs or is quiet."""
    with tempfile.TemporaryDirectory() as folder:
        pool = WorkerPool(Path(folder) / "state")
        agents = Path(folder) / "agents"
        for name in ("worker", "other"):
            write_judge(agents, name, JUDGE_PY)
        judges = WorkerReasoner(
            pool,
            lambda name: JudgeSpec(str(agents / name), {}, (), ResourceLimits(500_000, 256 << 20)),
        )
        over = asyncio.Event()

        async def misbehave() -> None:
            at = 0
            while not over.is_set():
                at += 1
                try:
                    await judges.reason(brief(key=f"w{at}", agent="other", do="loop"))
                except WorkerLost:
                    continue

        await judges.reason(brief(key="warm"))
        storm = asyncio.create_task(misbehave()) if wild else None
        times: list[float] = []

        async def one(at: int) -> None:
            began = time.monotonic()
            await judges.reason(brief(key=f"k{at}"))
            times.append(time.monotonic() - began)

        running = []
        for at in range(2500):
            running.append(asyncio.create_task(one(at)))
            await asyncio.sleep(0.002)
        await asyncio.gather(*running)
        over.set()
        pool.close()
        if storm is not None:
            await asyncio.gather(storm, return_exceptions=True)
        times.sort()
        name = "beside an endless loop" if wild else "alone"
        p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
        print(f"{name}: p50 {p50 * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms")


if __name__ == "__main__":
    asyncio.run(measure())
