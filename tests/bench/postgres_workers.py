"""`python -m tests.bench.postgres_workers`: what several workers do on one PostgreSQL store.

Each worker is a process with leases of its own. It accepts events of the keys that it has and
commits for each the two steps of an acting event, with as many entries, rows and bytes as the line
makes, without an engine: this is the write path alone. With `--line` it is the whole line, with the
agent's code in processes of its own unless `--in-process`. One worker and four in turns; events a
second of all together, CPU of the workers and of the server, and how long a commit takes (with
`--line`: from accept to effect). `--against` measures another checkout in the same turns, with this
file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace
from tests.bench.bench_fleet import readings
from tests.bench.databases import Database, find_server, following, fresh
from tests.bench.line import Load, Offer, open_bench_fleet
from tests.bench.machine import CpuTimes, described, percentile
from tests.bench.peers.work import server_cpu
from tests.bench.publish_fleet import KEYS
from tests.bench.target import happened, marks_file
from tests.said import ROOT

from vedette.domain.base.canonical import canonical_json
from vedette.domain.entry import Body, Draft
from vedette.domain.event import Event
from vedette.domain.ports.run_store import Arrival
from vedette.domain.run import ActionRow, CommitStatus, Run, Step
from vedette.store.postgres import PostgresStore
from vedette.store.postgres.shards import fair_share

AGENT, UNIT = "gauge_keeper", "actions"
BATCH = 64
_FILL = "a reading of the gauge at the quay wall, taken once a minute and sent as it is; "
# The bytes of an acting event's bodies under `tests.bench.line`.
_EVENT_BODY, _TURN_BODY, _DECISION_BODY, _OUTCOME_BODY = 1000, 1100, 2600, 120


def _body(size: int, at: int) -> Body:
    text = f"{at} " + _FILL * (size // len(_FILL) + 1)
    return Body(canonical_json({"text": text[:size]}))


def arrivals(keys: Sequence[str], worker: int) -> Iterator[Arrival]:
    """Yield events without end, each of one of the keys in turn."""
    for at in count():
        key = keys[at % len(keys)]
        event = Event(f"{worker}:{at}", "bench:workers", "bench.reading", key, None, {})
        yield Arrival(event, _body(_EVENT_BODY, at).data, ((AGENT, key),), None)


def decided(store: PostgresStore, run: Run, before: int, at: int) -> Step:
    """Return the step that records a turn, decides its action and begins the effect."""
    action = f"act_{run.id[4:]}{0:04x}"
    row = ActionRow(
        action, run.id, 1, 0, AGENT, "mark.write", "d" * 64, _body(500, at).data, decided="permit",
        rule="vedette.grants", policy_rev=0, decisions=1, effect="started", tries=1,
    )  # fmt: skip
    named = {"agent": AGENT, "turn": 1, "action": action}
    drafts = [
        Draft("recall.decided", {"agent": AGENT, "outcome": "permit"}, run.last),
        Draft("turn.reasoned", {"agent": AGENT, "turn": 1}, None, 1, _body(_TURN_BODY, at)),
        Draft("action.decided", {**named, "outcome": "permit"}, None, 1, _body(_DECISION_BODY, at)),
        Draft("effect.started", {**named, "tries": 1}, None, 1),
    ]
    epoch = store.cluster.lease_epoch(run)
    return Step.following(
        run, -1 if epoch is None else epoch, drafts=drafts, actions=[row], turn=1, observed=True,
        order=(run.key, before, run.position), spend={UNIT: 1}, policy_rev=0, stop_epoch=0,
    )  # fmt: skip


def done(run: Run, step: Step, last: int, at: int) -> Step:
    """Return the step that records the outcome and closes the run."""
    row = step.actions[0]
    row.effect, row.answer = "done", b'{"status":"done"}'
    drafts = [
        Draft("effect.done", {"agent": AGENT, "action": row.id}, last, 0, _body(_OUTCOME_BODY, at)),
        Draft("run.closed", {"agent": AGENT}, None, 1),
    ]
    return Step(
        drafts, run.id, run.position, AGENT, 1, len(step.drafts), step.epoch, state="done", turn=1,
        observed=True, actions=[row],
    )  # fmt: skip


class Writer:
    """One worker that writes for a while; `took` are the seconds of its commits."""

    def __init__(self, store: PostgresStore, number: int, keys: Sequence[str]) -> None:
        self._store = store
        self._source = arrivals(keys, number)
        self._last: dict[str, int] = {}
        self.took: list[float] = []
        self.events = 0

    async def run(self, seconds: float, at_once: int) -> None:
        """Write, with so many batches on their way, until the time is over."""
        until = time.monotonic() + seconds
        await asyncio.gather(*(self._write(until) for _ in range(at_once)))

    async def _write(self, until: float) -> None:
        while time.monotonic() < until:
            batch = [next(self._source) for _ in range(BATCH)]
            accepted = await self._timed(self._store.steps.accept(batch, None))
            waits = [self._handle(result.runs[0]) for result in accepted]
            await asyncio.gather(*waits)
            self.events += len(batch)

    async def _handle(self, run: Run) -> None:
        before = self._last.get(run.key, 0)
        self._last[run.key] = run.position
        first = decided(self._store, run, before, run.position)
        answer = await self._timed(self._store.steps.commit(first))
        assert answer.status is CommitStatus.COMMITTED, answer
        last = await self._timed(
            self._store.steps.commit(done(run, first, answer.last, run.position))
        )
        assert last.status is CommitStatus.COMMITTED, last

    async def _timed(self, answer: Any) -> Any:
        began = time.perf_counter()
        found = await answer
        self.took.append(time.perf_counter() - began)
        return found


def _are_here(folder: Path, workers: int) -> bool:
    """Say whether every worker has come."""
    return len(list(folder.glob("*.ready"))) == workers


async def _meet(folder: Path, number: int, workers: int) -> None:
    """Return once every worker is here."""
    (folder / f"{number}.ready").touch()
    while not _are_here(folder, workers):  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def _find_keys(store: Any, workers: int, number: int) -> list[str]:
    """Return keys that this worker has, once each worker has its share."""
    leases = store.cluster.leases
    while len(leases.epochs) > fair_share(workers) or len(leases.peers) + 1 < workers:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    names = (f"gauge-{at}" for at in count())
    return list(islice((name for name in names if leases.epoch(AGENT, name)), number))


async def do_line(
    folder: Path, url: str, number: int, workers: int, seconds: float, *, isolated: bool
) -> dict[str, Any]:
    """Be one worker with the whole line; as `work` does."""
    load = Load(int(300 * seconds), in_flight=512, batch=64, store="postgresql", isolated=isolated)
    mine = folder / str(number)
    if number:
        while not (folder / "0.up").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        (mine / "state").mkdir(parents=True)
        for name in KEYS:
            shutil.copy(folder / "0" / "state" / name, mine / "state" / name)
    async with open_bench_fleet(mine, load, Database(url)) as fleet, following(fleet.app):
        (folder / f"{number}.up").touch()
        keys = await _find_keys(fleet.app.store, workers, 50)
        made = readings(load.events + 200, keys=len(keys))
        events = [
            replace(event, id=f"{number}:{event.id}", subject=keys[at % len(keys)])
            for at, event in enumerate(made)
        ]
        await Offer(fleet.app, load).all(events[:200])
        await _meet(folder, number, workers)
        offer, writer = Offer(fleet.app, load), fleet.app.store.writer
        groups, items, cpu = writer.groups, writer.items, CpuTimes.now()
        began = time.monotonic()
        await offer.all(events[200:])
        took_s, spent = time.monotonic() - began, CpuTimes.now().since(cpu)
        groups, items = writer.groups - groups, writer.items - items
    first, repeated = happened(marks_file(mine))
    assert (len(first), repeated) == (len(events), 0)
    took = sorted((first[name] - at) / 1e6 for name, at in offer.at.items())
    return {
        "events": load.events, "seconds": took_s, "cpu_s": spent.process + spent.children,
        "groups": groups, "items": items,
        "p50_ms": percentile(took, 0.5), "p99_ms": percentile(took, 0.99),
    }  # fmt: skip


async def work(folder: Path, url: str, number: int, workers: int, seconds: float) -> dict[str, Any]:
    """Be one worker: join, wait until each has its share, write, and return what it came to."""
    key = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
    store = PostgresStore(
        url, folder / str(number), fleet="bench", key=key, key_name="bench",
        now_us=lambda: time.time_ns() // 1000,
    )  # fmt: skip
    try:
        writer = Writer(store, number, await _find_keys(store, workers, 50))
        await writer.run(1.0, at_once=2)  # plans are made, connections warm
        await _meet(folder, number, workers)
        writer.took, writer.events = [], 0
        groups, items = store.writer.groups, store.writer.items
        cpu, began = time.process_time(), time.monotonic()
        await writer.run(seconds, at_once=2)
        took = sorted(writer.took)
        return {
            "events": writer.events, "seconds": time.monotonic() - began,
            "cpu_s": time.process_time() - cpu, "groups": store.writer.groups - groups,
            "items": store.writer.items - items,
            "p50_ms": percentile(took, 0.5) * 1e3, "p99_ms": percentile(took, 0.99) * 1e3,
        }  # fmt: skip
    finally:
        store.close()


def measure(
    checkout: Path, url: str, server: int, workers: int, seconds: float, options: Sequence[str]
) -> dict[str, Any]:
    """Let workers of a checkout work together; return events/s, CPU an event, times."""
    env = {**os.environ, "PYTHONPATH": f"{checkout / 'src'}:{ROOT}"}
    with tempfile.TemporaryDirectory(prefix="vedette-bench-") as name:
        command = [sys.executable, "-P", "-m", "tests.bench.postgres_workers", "--worker"]
        started = [
            subprocess.Popen(
                [*command, name, url, str(number), "--workers", str(workers), "--seconds",
                 str(seconds), *options],
                env=env, stdout=subprocess.PIPE, text=True,
            )
            for number in range(workers)
        ]  # fmt: skip
        while not _are_here(Path(name), workers):
            if any(process.poll() for process in started):
                raise SystemExit("a worker ended before it was ready")
            time.sleep(0.005)
        served = server_cpu(server)
        found = [json.loads(process.communicate()[0]) for process in started]
        served = server_cpu(server) - served
    events = sum(each["events"] for each in found)
    return {
        "per_s": sum(each["events"] / each["seconds"] for each in found),
        "cpu_us": sum(each["cpu_s"] for each in found) / events * 1e6,
        "server_us": served / events * 1e6,
        "group": sum(each["items"] for each in found) / sum(each["groups"] for each in found),
        "p50_ms": max(each["p50_ms"] for each in found),
        "p99_ms": max(each["p99_ms"] for each in found),
    }


def main() -> int:
    """Print a line for each round, and what four workers come to beside one."""
    parser = argparse.ArgumentParser(prog="tests.bench.postgres_workers", description=__doc__)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--line", action="store_true", help="the whole line")
    parser.add_argument("--in-process", action="store_true", help="agents' code in the workers")
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        folder, url, number = given.worker
        at = (Path(folder), url, int(number), given.workers, given.seconds)
        doing = do_line(*at, isolated=not given.in_process) if given.line else work(*at)
        found = asyncio.run(doing)
        print(json.dumps(found))
        return 0
    server = find_server()
    if server is None:
        raise SystemExit("PostgreSQL is not here: install it, or set VEDETTE_PG_BIN")
    checkouts = [ROOT] if given.against is None else [given.against.resolve(), ROOT]
    print(described())
    rates: dict[tuple[Path, int], list[float]] = {}
    for _ in range(given.turns):
        for checkout in checkouts:
            for workers in (1, given.workers):
                with fresh(server) as database:
                    found = measure(
                        checkout, database.url, database.server, workers, given.seconds,
                        [f"--{name.replace('_', '-')}" for name in ("line", "in_process")
                         if getattr(given, name)],
                    )  # fmt: skip
                rates.setdefault((checkout, workers), []).append(found["per_s"])
                name = "here " if checkout == ROOT else "other"
                print(
                    f"{name} {workers} workers: {found['per_s']:7,.0f} events/s, CPU an event "
                    f"{found['cpu_us']:,.0f} us in workers, {found['server_us']:,.0f} in the "
                    f"server; {found['group']:.0f} items a group; p50 "
                    f"{found['p50_ms']:.1f} ms, p99 {found['p99_ms']:.1f}",
                    flush=True,
                )
    for checkout in checkouts:
        one, many = (sum(rates[checkout, workers]) for workers in (1, given.workers))
        name = "here " if checkout == ROOT else "other"
        print(f"{name} {given.workers} workers do {many / one:.2f} times what one does")
    return 0


if __name__ == "__main__":
    sys.exit(main())
