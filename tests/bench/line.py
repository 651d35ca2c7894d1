"""`python -m tests.bench.line`: the whole line, from accept to the durable end of every run.

As it is shipped: agents' code in processes of its own (`--in-process` has it in the engine's). With
`--matrix` every load on every store, isolated and not (`tests/bench/matrix.py`).

Nothing is switched off: dedupe, recall, the agent's judge, the shipped rules decided and recorded
for every action, ledger, effect, the effect's outcome. Events go through the intake in batches, as
a source hands them over, and at most `--in-flight` of them are on their way. The clock runs from
the first accept until every run is done and durable; the target's own record says what happened.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
from tests.bench.bench_fleet import (
    AGENT,
    KINDS,
    find_acting,
    readings,
    warm_readings,
    write_content,
)
from tests.bench.calibrate import Calibration, calibrate
from tests.bench.databases import Database, Follower, following, own_database, store_plan
from tests.bench.machine import CpuTimes, described, percentile
from tests.bench.matrix import run_matrix
from tests.bench.peers.work import server_cpu
from tests.bench.profiles import Calls, Samples, sampling
from tests.bench.spin import spinning
from tests.bench.target import happened, marks_file

from vedette.app.composition_root import App
from vedette.config.deployment import Deployment, PolicyPlan
from vedette.domain.event import Event
from vedette.interfaces.cli.run import GC_THRESHOLDS
from vedette.testing.harness import FleetHarness

STORES = ("sqlite", "postgresql")
STALLED_S = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """What is put through: `rate` events a second, or 0 for as fast as `count_in_flight` allows."""

    events: int = 20_000
    in_flight: int = 2048
    batch: int = 256
    rate: float = 0.0
    keys: int = 200
    size: int = 1000
    tool: str = "async"
    store: str = "sqlite"
    kind: str = "acting"
    isolated: bool = True
    residual: bool = False


@dataclass(slots=True)
class Measured:
    """One run of the line. Times in ms, CPU in µs per event; `lost` and `repeated` by the target.

    `acting` is how many events were to have an effect. `of_raw` is the share of the raw group
    commit measured just before and after. `server_us` is what the database server spent beside the
    line's own CPU; 0 without one. `follower_us` is that part of the CPU which made the read model,
    `written` the bytes that the line and its follower had written to the disk, per event.
    """

    events_per_s: float
    cpu_us: float
    server_us: float
    cpu_threads_us: dict[str, float]
    p50_ms: float
    p99_ms: float
    groups: int
    group_mean: float
    entries_per_event: float
    acting: int
    effects: int
    lost: int
    repeated: int
    seconds: float
    load: Load
    raw: list[Calibration] = field(default_factory=list)
    spin_ns: float = 0.0
    told: str = ""
    follower_us: float = 0.0
    written: float = 0.0

    @property
    def of_raw(self) -> float:
        """Return the share of the raw group commit."""
        per_s = [each.per_s for each in self.raw]
        return self.events_per_s / (sum(per_s) / len(per_s)) if per_s else 0.0

    def report(self) -> str:
        """Return it for people."""
        threads = ", ".join(
            f"{name} {spent:,.0f}"
            for name, spent in sorted(self.cpu_threads_us.items(), key=lambda item: -item[1])
            if spent >= 1
        )
        server = f" and {self.server_us:,.0f} in the server" if self.server_us else ""
        wanted = self.load
        pace = f"{wanted.rate:g}/s" if wanted.rate else f"{wanted.in_flight} in flight"
        lines = [
            f"line on {wanted.store} (full sync), {wanted.kind}, agents' code "
            f"{'in processes of its own' if wanted.isolated else 'in the engine'}: "
            f"{self.events_per_s:,.0f} durable events/s "
            f"({wanted.events:,} events in {self.seconds:.2f} s, {pace}, batches of "
            f"{wanted.batch}, {wanted.keys} keys, tool {wanted.tool})",
            f"  CPU      {self.cpu_us:,.0f} us/event ({threads}){server}",
            f"           until the read model had caught up; {self.follower_us:,.0f} of it in the "
            f"follower; {self.written:,.0f} bytes/event written to the disk",
            f"           a turn of an empty loop took {self.spin_ns:.0f} ns of CPU meanwhile; as "
            "far as that is more than at rest, every CPU figure is too high",
            f"  latency  accept to effect p50 {self.p50_ms:.1f} ms, p99 {self.p99_ms:.1f} ms",
            f"  groups   {self.groups:,}, mean {self.group_mean:.0f} items; "
            f"{self.entries_per_event:.1f} ledger entries/event",
            f"  effects  {self.effects:,} by the target's record, {self.lost} lost, "
            f"{self.repeated} repeated",
        ]
        if self.raw:
            lines.append(f"  of raw   {100 * self.of_raw:.1f} % of the raw group commit")
            lines += [f"           {each.line()}" for each in self.raw]
        return "\n".join([*lines, *([self.told] if self.told else [])])

    def json(self) -> str:
        """Return it as one line of JSON."""
        fields = asdict(self) | {"of_raw": self.of_raw}
        del fields["told"]
        return json.dumps(fields)


def open_bench_fleet(folder: Path, load: Load, database: Database | None = None) -> FleetHarness:
    """Write the bench fleet below `folder` and return it on the store that the load names.

    On PostgreSQL without a `database` a new one is made on this process's own server.
    """
    if load.store not in STORES:
        raise SystemExit(f"line: no store {load.store!r}; there are: {', '.join(STORES)}")
    content = folder / "content"
    write_content(content, tool=load.tool, kind=load.kind, inward=load.residual)
    targets = {"marks": {"kind": "file", "path": str(marks_file(folder))}}
    store = None
    if load.store == "postgresql":
        store = store_plan(folder, database or own_database())
    edges = Deployment(policy=PolicyPlan(residual=load.residual))
    return FleetHarness(
        folder, content=content, targets=targets, store=store, workers=load.isolated, edges=edges
    )


class Offer:
    """Hands events over as sources do, and keeps when each was handed over."""

    def __init__(self, app: App, load: Load) -> None:
        self._app = app
        self._load = load
        self._begun = app.dispatcher.handled_count
        self.at: dict[str, int] = {}

    @property
    def done(self) -> int:
        """Return how many runs are done."""
        return self._app.dispatcher.handled_count - self._begun

    async def all(self, events: list[Event]) -> None:
        """Hand over all events; return when every run of theirs is done."""
        load = self._load
        accepting: set[asyncio.Task[Any]] = set()
        source = iter(events)
        began = time.monotonic()
        offered = 0
        # A batch larger than what may be in flight would never find room.
        size = 1 if load.rate else min(load.batch, load.in_flight)
        while batch := list(islice(source, size)):
            if load.rate:
                await asyncio.sleep(max(0.0, began + offered / load.rate - time.monotonic()))
            await self._done(offered + len(batch) - load.in_flight)
            now = time.monotonic_ns()
            self.at.update((event.id, now) for event in batch)
            task = asyncio.create_task(self._app.intake.accept(batch))
            accepting.add(task)
            task.add_done_callback(accepting.discard)
            offered += len(batch)
            await asyncio.sleep(0)
        await asyncio.gather(*accepting)
        await self._done(offered)

    async def _done(self, runs: int) -> None:
        """Return when so many runs are done. Nobody tells; a look every ms costs 1 % of a core.

        Raises AssertionError if nothing gets done for a while: a hung line is no measurement.
        """
        seen, since = self.done, time.monotonic()
        while self.done < runs:
            await asyncio.sleep(0.001)
            if self.done != seen:
                seen, since = self.done, time.monotonic()
            elif time.monotonic() - since > STALLED_S:
                pending = self._app.dispatcher.pending
                raise AssertionError(
                    f"nothing was done for {STALLED_S:g} s: {seen} of {runs} runs done, "
                    f"{pending} pending, {self._app.store.tables.counts().get(AGENT)}"
                )


def check_all_done(fleet: FleetHarness, events: int, acting: int | None = None) -> None:
    """Raise AssertionError unless every event ended in a finished run, and `acting` of them (all
    unless it is said) in a done effect.
    """
    counts = fleet.app.store.tables.counts()[AGENT]
    wanted = events if acting is None else acting
    if (counts.get("run.done", 0), counts.get("effect.done", 0)) == (events, wanted):
        return
    dead = fleet.entries("run.dead")
    why = fleet.body(dead[0]["seq"]) if dead else "no run is dead"
    raise AssertionError(f"{events} events came to {counts}; {why}")


@dataclass(frozen=True, slots=True)
class Spent:
    """What it took to put events through; `told` is what a profile found.

    Seconds on the clock, of CPU here and in the database server; ns for a turn of an empty loop.
    """

    seconds: float
    cpu: CpuTimes
    server_s: float
    spin_ns: float
    told: str
    follower_s: float = 0.0
    written: int = 0


async def spend(
    offer: Offer,
    events: list[Event],
    server: int,
    profile: str | None,
    writer: Any,
    follower: Follower,
) -> Spent:
    """Put the events through and measure that alone, with a profile if one is asked for.

    The clock runs until the last event is done, CPU until the read model has caught up.
    """
    text = ""
    with ExitStack() as stack:
        samples, calls = Samples(), Calls(writer) if profile == "calls" else None
        if calls is not None:
            await calls.begin()
        if profile == "sample":
            stack.enter_context(sampling(samples))
        spin = stack.enter_context(spinning())
        followed, written = follower.spent_s, follower.written
        served, cpu, began = server_cpu(server), CpuTimes.now(), time.monotonic()
        await offer.all(events)
        seconds = time.monotonic() - began
        await follower.catch_up()
        spent = CpuTimes.now().since(cpu)
        followed, written = follower.spent_s - followed, follower.written - written
        served = server_cpu(server) - served
        if calls is not None:
            await calls.end()
            text = calls.table()
    if profile == "sample":
        text = samples.table()
    return Spent(seconds, spent, served, spin.ns, text, followed, written)


async def measure(
    folder: Path, load: Load, profile: str | None = None, database: Database | None = None
) -> Measured:
    """Run the line once below `folder`. Raises AssertionError if an event is not accounted for."""
    if load.store == "postgresql" and database is None:
        database = own_database()
    server = database.server if database else 0
    events = list(readings(load.events, keys=load.keys, size=load.size, kind=load.kind))
    warm = warm_readings(load.keys, size=load.size, kind=load.kind)
    acting = find_acting([*warm, *events], load.kind)
    residual_state = "no residuals"
    async with open_bench_fleet(folder, load, database) as fleet, following(fleet.app) as follower:
        # As `vedette run` does once its fleet is up.
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        app = fleet.app
        # Modules, recall of each key and the first WAL pages: what a fleet has once it is up.
        residuals = app.rollout.residuals.live
        if residuals is not None:
            residuals.threshold = len(warm) // 4
        await Offer(app, Load(events=len(warm))).all(warm)
        if residuals is not None:
            await residuals.make_next()
            residual_state = residuals.state
        await follower.catch_up()
        offer = Offer(app, load)
        writer = app.store.writer
        groups, items = writer.groups, writer.items
        head = app.store.ledger.last_seq()
        spent = await spend(offer, events, server, profile, writer, follower)
        check_all_done(fleet, load.events + len(warm), len(acting))
        groups, items = writer.groups - groups, writer.items - items
        entries = (app.store.ledger.last_seq() - head) / load.events
        engine_name = app.services.gateway.engine.name
    first, repeated = happened(marks_file(folder))
    latencies = sorted((first[name] - at) / 1e6 for name, at in offer.at.items() if name in first)
    per_event = 1e6 / load.events
    acting &= {event.id for event in events}
    # The follower is told by itself; without isolation nobody else works for the line.
    children = max(0.0, spent.cpu.children - spent.follower_s) if load.isolated else 0.0
    if server in (child.pid for child in psutil.Process().children(recursive=True)):
        # A server that this process had started is counted by itself.
        children = max(0.0, children - spent.server_s)
    return Measured(
        events_per_s=load.events / spent.seconds,
        cpu_us=(spent.cpu.process + children + spent.follower_s) * per_event,
        server_us=spent.server_s * per_event,
        cpu_threads_us={name: each * per_event for name, each in spent.cpu.threads.items()}
        | {"follower": spent.follower_s * per_event}
        | ({"child processes": children * per_event} if children else {}),
        p50_ms=percentile(latencies, 0.5),
        p99_ms=percentile(latencies, 0.99),
        groups=groups,
        group_mean=items / groups if groups else 0.0,
        entries_per_event=entries,
        acting=len(acting),
        effects=len(latencies),
        lost=len(acting - first.keys()),
        repeated=repeated,
        seconds=spent.seconds,
        load=load,
        told="\n".join(filter(None, [f"  policy   {engine_name}; {residual_state}", spent.told])),
        follower_us=spent.follower_s * per_event,
        written=spent.written * per_event / 1e6,
        spin_ns=spent.spin_ns,
    )


async def bench(
    load: Load, profile: str | None = None, *, raw: bool = True, database: Database | None = None
) -> Measured:
    """Measure the line in a temporary folder, with the raw group commit before and after."""
    folder = Path(tempfile.mkdtemp(prefix="vedette-bench-"))
    try:
        before = [await calibrate(folder)] if raw else []
        measured = await measure(folder, load, profile, database)
        measured.raw = [*before, await calibrate(folder)] if raw else []
        return measured
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _options(argv: list[str] | None) -> argparse.Namespace:
    usual = Load()
    parser = argparse.ArgumentParser(prog="tests.bench.line", description=__doc__)
    parser.add_argument("--events", type=int, default=usual.events)
    parser.add_argument("--in-flight", type=int, default=usual.in_flight)
    parser.add_argument("--batch", type=int, default=usual.batch)
    parser.add_argument("--rate", type=float, default=usual.rate, help="events/s; 0 is unpaced")
    parser.add_argument("--keys", type=int, default=usual.keys)
    parser.add_argument("--size", type=int, default=usual.size, help="bytes of an event's data")
    parser.add_argument("--tool", choices=("async", "thread"), default=usual.tool)
    parser.add_argument("--store", choices=STORES, default=usual.store)
    parser.add_argument("--kind", choices=KINDS, default=usual.kind, help="what the events ask")
    parser.add_argument(
        "--in-process", action="store_true", help="agents' code in the engine's process"
    )
    parser.add_argument(
        "--residual", action="store_true", help="as [policy] residual = true has it"
    )
    parser.add_argument("--url", help="of an empty database; without it a server is started")
    parser.add_argument("--server", type=int, default=0, help="process id of the URL's server")
    parser.add_argument("--repeat", type=int, default=1, help="runs; each is printed")
    parser.add_argument(
        "--profile", nargs="?", const="sample", choices=("sample", "calls"),
        help="sample the event loop, or count the calls of loop and writer (slower)",
    )  # fmt: skip
    parser.add_argument("--no-raw", action="store_true", help="leave the calibration out")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--matrix", nargs="?", const="", metavar="WORDS",
        help="every load, isolated and not, on every store; only cells with these words",
    )  # fmt: skip
    parser.add_argument("--against", type=Path, help="with --matrix: another checkout, in turns")
    options = parser.parse_args(argv)
    if options.against is not None and options.matrix is None:
        parser.error("--against goes with --matrix")
    if options.url and (options.store != "postgresql" or options.repeat > 1):
        parser.error("--url is one empty database: for one run with --store postgresql")
    return options


def main(argv: list[str] | None = None) -> int:
    """Print the table (or JSON); 1 if an effect was lost or repeated."""
    options = _options(argv)
    if options.matrix is not None:
        print(f"{described()}; {options.events:,} events, {options.repeat} in turn", flush=True)
        against = options.against and options.against.resolve()
        for line in run_matrix(options.events, options.repeat, options.matrix, against):
            print(line, flush=True)
        return 0
    load = Load(
        options.events, options.in_flight, options.batch, options.rate, options.keys,
        options.size, options.tool, options.store, options.kind, not options.in_process,
        options.residual,
    )  # fmt: skip
    database = Database(options.url, options.server) if options.url else None
    if not options.json:
        print(described())
    failed = False
    for _ in range(options.repeat):
        measured = asyncio.run(
            bench(load, options.profile, raw=not options.no_raw, database=database)
        )
        print(measured.json() if options.json else measured.report(), flush=True)
        failed = failed or bool(measured.lost or measured.repeated)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
