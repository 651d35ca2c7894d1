"""`python -m tests.bench.pubsub`: messages of the emulator, from receive over commit to ack.

Three ways take the same events into the same fleet, each in a state folder of its own:
- the line itself: events handed straight to the intake, in batches of 256;
- the source: one for each of the subscriptions, over asynchronous streams;
- the textbook: the thread client, whose callback waits for the commit of its message and acks.
All are published before the clock starts. CPU is that of this whole process, all threads: nothing
but the way in differs, so what the source takes above the line is the client's. Rounds alternate.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.bench_fleet import readings
from tests.bench.calibrate import calibrate
from tests.bench.line import Load, open_bench_fleet
from tests.bench.machine import CpuTimes, described
from tests.bench.spin import spinning
from tests.contract.adapters.pubsub.test_pubsub_source import plan
from tests.pubsub import HOST_VARIABLE, Broker, Emulator, broker, find_emulator, message_of

from vedette.adapters.pubsub.decoder import Decoder
from vedette.adapters.pubsub.source import PubsubSource
from vedette.app.composition_root import App
from vedette.domain.event import Event
from vedette.interfaces.cli.run import GC_THRESHOLDS

GOAL_PER_S, GOAL_US = 5000.0, 60.0
BATCH = 256
STALLED_S = 60.0


@dataclass(frozen=True, slots=True)
class Options:
    """What is put through. `wake` has every event wake a small agent; else it wakes nobody."""

    events: int = 40_000
    subscriptions: int = 20
    textbook: int = 4_000
    rounds: int = 3
    size: int = 1000
    wake: bool = False


@dataclass(frozen=True, slots=True)
class Way:
    """One way in, measured once: CPU µs per event and events per second, to the last ack."""

    name: str
    events: int
    cpu_us: float
    per_s: float
    threads: int
    spin_ns: float


def made_up(options: Options, count: int) -> list[Event]:
    """Return the events of one round."""
    found = list(readings(count, keys=200, size=options.size))
    return found if options.wake else [replace(each, type="bench.unheard") for each in found]


async def settled(app: App, options: Options, count: int, acked: Callable[[], int]) -> None:
    """Return when all events are accepted, their runs done and their messages acknowledged.

    Raises AssertionError if nothing moves for a while.
    """

    def state() -> tuple[int, int, int]:
        accepted = app.metrics.total("events", outcome="accepted")
        return accepted, app.dispatcher.handled_count if options.wake else count, acked()

    seen, since = state(), time.monotonic()
    while min(seen) < count:
        await asyncio.sleep(0.002)
        now = state()
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > STALLED_S:
            raise AssertionError(f"stalled at {seen} of {count} accepted, handled, acknowledged")


async def straight(app: App, here: Broker, options: Options, events: list[Event]) -> int:
    """Hand events to the intake."""
    for at in range(0, len(events), BATCH):
        await app.intake.accept(events[at : at + BATCH])
    await settled(app, options, len(events), lambda: len(events))
    return threading.active_count()


async def sources(app: App, here: Broker, options: Options, events: list[Event]) -> int:
    """Receive them by the engine's source."""
    made = [
        PubsubSource(
            plan(here.project, name=f"s{n}", subscription=f"sub-{n}", type=None,
                 max_messages=2000, max_bytes=32 << 20, ack_deadline="60s"),
            Decoder(f"s{n}"), app.services.clock, app.metrics,
        )
        for n in range(options.subscriptions)
    ]  # fmt: skip
    tasks = [asyncio.create_task(source.deliver(app.intake)) for source in made]
    try:
        await settled(
            app, options, len(events), lambda: app.metrics.total("pubsub_acks", outcome="acked")
        )
        return threading.active_count()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def textbook(app: App, here: Broker, options: Options, events: list[Event]) -> int:
    """Receive them as the client's manual shows: a callback per message, on threads."""
    from google.cloud.pubsub_v1 import SubscriberClient  # type: ignore[import-untyped]

    loop = asyncio.get_running_loop()
    decoder = Decoder("textbook")
    acked = 0
    lock = threading.Lock()

    def callback(message: Any) -> None:
        nonlocal acked
        event = decoder.decode(
            message.message_id, message.data, dict(message.attributes), message.ordering_key, 0
        )
        asyncio.run_coroutine_threadsafe(app.intake.accept([event]), loop).result()
        message.ack()
        with lock:
            acked += 1

    client = SubscriberClient()
    futures = [
        client.subscribe(here.subscription_path(f"sub-{n}"), callback)
        for n in range(options.subscriptions)
    ]
    try:
        await settled(app, options, len(events), lambda: acked)
        return threading.active_count()
    finally:
        for future in futures:
            future.cancel()
        for future in futures:
            await asyncio.to_thread(future.result)
        await asyncio.to_thread(client.close)


Work = Callable[[App, Broker, Options, list[Event]], Awaitable[int]]
WAYS: dict[str, Work] = {"line": straight, "source": sources, "textbook": textbook}


async def measure(name: str, emulator: Emulator, options: Options) -> Way:
    """Measure one way in, on a new fleet and a new project."""
    count = options.textbook if name == "textbook" else options.events
    folder = Path(tempfile.mkdtemp(prefix="vedette-bench-"))
    events = made_up(options, count)
    try:
        async with broker(emulator) as here, open_bench_fleet(folder, Load()) as fleet:
            if name != "line":
                await published(here, options, events)
            gc.collect()
            gc.freeze()
            gc.set_threshold(*GC_THRESHOLDS)
            with spinning() as spin:
                cpu, began = CpuTimes.now(), time.monotonic()
                threads = await WAYS[name](fleet.app, here, options, events)
                seconds, spent = time.monotonic() - began, CpuTimes.now().since(cpu)
            accepted = fleet.app.metrics.total("events", outcome="accepted")
            assert accepted == count, f"{accepted} of {count} accepted"
        gc.unfreeze()
        return Way(name, count, spent.process / count * 1e6, count / seconds, threads, spin.ns)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def published(here: Broker, options: Options, events: list[Event]) -> None:
    """Spread events over topics with one subscription each."""
    for n in range(options.subscriptions):
        await here.topic(f"topic-{n}")
        await here.subscription(f"sub-{n}", f"topic-{n}", ack_deadline_seconds=60)
        share = events[n :: options.subscriptions]
        await here.publish(f"topic-{n}", *[message_of(here.connection, each) for each in share])


@dataclass(frozen=True, slots=True)
class Result:
    """All rounds of one kind of event."""

    options: Options
    ways: dict[str, list[Way]]

    def cpu_us(self, name: str) -> float:
        """Return the median CPU per event of a way."""
        return median(each.cpu_us for each in self.ways[name])

    def per_s(self, name: str) -> float:
        """Return the median events per second of a way."""
        return median(each.per_s for each in self.ways[name])

    @property
    def above_us(self) -> float:
        """Return what receiving costs above the line: the median of the rounds' differences."""
        pairs = zip(self.ways["source"], self.ways["line"], strict=True)
        return median(source.cpu_us - line.cpu_us for source, line in pairs)

    def report(self) -> str:
        """Return it for people."""
        options = self.options
        kind = "each wakes a small agent" if options.wake else "they wake nobody"
        lines = [
            f"Pub/Sub emulator, {options.subscriptions} subscriptions, {options.events:,} messages "
            f"of {options.size} B, {kind}; median of {options.rounds} rounds:"
        ]
        for name, ways in self.ways.items():
            each = " ".join(f"{way.cpu_us:.0f}" for way in ways)
            lines.append(
                f"  {name:<9}{self.per_s(name):>8,.0f} events/s {self.cpu_us(name):>7,.0f} us CPU "
                f"an event ({each}), {ways[0].threads} threads, "
                f"empty loop {median(way.spin_ns for way in ways):.0f} ns"
            )
        lines.append(
            f"  the source takes {self.above_us:,.0f} us above the line (goal: at most "
            f"{GOAL_US:.0f}) at {self.per_s('source'):,.0f} events/s (goal: {GOAL_PER_S:,.0f})"
        )
        if "textbook" in self.ways:
            above = self.cpu_us("textbook") - self.cpu_us("line")
            lines.append(
                f"  the textbook client takes {above:,.0f} us above the line, and the source is "
                f"{self.per_s('source') / self.per_s('textbook'):.1f} times as fast"
            )
        return "\n".join(lines)


async def bench(options: Options, emulator: Emulator) -> Result:
    """Measure all ways in turns."""
    names = [name for name in WAYS if name != "textbook" or options.textbook]
    warm = replace(options, events=2 * options.subscriptions, textbook=2 * options.subscriptions)
    for name in names:
        await measure(name, emulator, warm)
    ways: dict[str, list[Way]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in names:
            ways[name].append(await measure(name, emulator, options))
    return Result(options, ways)


async def _calibrated() -> str:
    folder = Path(tempfile.mkdtemp(prefix="vedette-bench-"))
    try:
        return (await calibrate(folder)).line()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(argv: list[str] | None = None) -> int:
    """Print the table; 1 if a goal is missed and --check is given."""
    usual = Options()
    parser = argparse.ArgumentParser(prog="tests.bench.pubsub", description=__doc__)
    parser.add_argument("--events", type=int, default=usual.events)
    parser.add_argument("--subscriptions", type=int, default=usual.subscriptions)
    parser.add_argument("--textbook", type=int, default=usual.textbook, help="0 leaves it out")
    parser.add_argument("--rounds", type=int, default=usual.rounds)
    parser.add_argument("--size", type=int, default=usual.size, help="bytes of an event's data")
    parser.add_argument("--only", choices=("nobody", "agent"), help="whom the events wake")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    options = Options(given.events, given.subscriptions, given.textbook, given.rounds, given.size)
    emulator = Emulator(find_emulator())
    os.environ[HOST_VARIABLE] = emulator.host
    missed = False
    try:
        if not given.json:
            print(described())
            print(asyncio.run(_calibrated()), flush=True)
        for wake in {"nobody": [False], "agent": [True], None: [False, True]}[given.only]:
            result = asyncio.run(bench(replace(options, wake=wake), emulator))
            fields = asdict(result) | {"above_us": result.above_us}
            print(json.dumps(fields) if given.json else result.report(), flush=True)
            if not wake:
                missed = result.above_us > GOAL_US or result.per_s("source") < GOAL_PER_S
        if not given.json:
            print(asyncio.run(_calibrated()))
    finally:
        emulator.close()
    return 1 if given.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
