"""The work every peer does, and how it is driven and measured.

Three steps, as the line's: recall a small row for the event's series; judge the value and check
that the agent may act (a threshold and a set of grants: far less than our judge and our rules do);
bring about one effect at the target. What a peer makes durable between the steps is its own way of
doing so; an event is done when the peer has returned, by which time its result is durable.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sqlite3
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.target import Target, happened

Event = dict[str, Any]
Row = dict[str, Any]

KEYS = 200
_GRANTS = frozenset({("gauge_keeper", "mark.write")})


class Work:
    """The three steps, over the files of one folder. May be used by several threads."""

    def __init__(self, folder: Path) -> None:
        self.marks = folder / "marks.log"
        self._rows = folder / "rows.db"
        self._mine = threading.local()
        self._target = Target(str(self.marks))
        with sqlite3.connect(self._rows) as made:
            made.execute("CREATE TABLE row(series TEXT PRIMARY KEY, mean REAL, spread REAL)")
            rows = [(f"gauge-{number}", 20.0, 2.0) for number in range(KEYS)]
            made.executemany("INSERT INTO row VALUES(?,?,?)", rows)
        made.close()

    def recall(self, event: Event) -> Row:
        """Step 1: read the small row of the event's series."""
        rows: sqlite3.Connection | None = getattr(self._mine, "rows", None)
        if rows is None:
            rows = self._mine.rows = sqlite3.connect(f"file:{self._rows}?mode=ro", uri=True)
        found = rows.execute("SELECT mean, spread FROM row WHERE series=?", (event["series"],))
        mean, spread = found.fetchone()
        return {"mean": mean, "spread": spread}

    def judge(self, event: Event, row: Row) -> str:
        """Step 2: judge the value, and check that the agent may do what follows."""
        mark = "over" if abs(event["value"] - row["mean"]) > 3 * row["spread"] else "within"
        if ("gauge_keeper", "mark.write") not in _GRANTS:
            raise PermissionError("not granted")
        return mark

    def act(self, event: str) -> bool:
        """Step 3: the effect."""
        return self._target.append(event)


def events(count: int, prefix: str = "r") -> list[Event]:
    """Return events of about 1 KB, round robin over the series."""
    draw = random.Random(1)
    return [
        {
            "id": f"{prefix}{number}",
            "series": f"gauge-{number % KEYS}",
            "value": round(draw.gauss(20.0, 2.0), 3),
            "note": "x" * 960,
        }
        for number in range(count)
    ]


@dataclass(frozen=True, slots=True)
class Options:
    """What a driver is asked for; `folder` is empty and its own."""

    folder: Path
    variant: str
    concurrency: int
    events: int
    url: str
    server: int


def options(variants: tuple[str, ...]) -> Options:
    """Read the driver's command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--variant", choices=variants, default=variants[0])
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--url", default="", help="of the database; without it SQLite")
    parser.add_argument("--server", type=int, default=0, help="process id of its server")
    found = parser.parse_args()
    return Options(
        found.folder, found.variant, found.concurrency, found.events, found.url, found.server
    )


def server_cpu(pid: int) -> float:
    """Return the CPU seconds that a server and its children have spent; 0 without one."""
    if not pid:
        return 0.0
    import psutil

    server = psutil.Process(pid)
    own = server.cpu_times()
    # Back ends that have ended are counted by the server as its children.
    spent = own.user + own.system + own.children_user + own.children_system
    for child in server.children():
        try:
            times = child.cpu_times()
        except psutil.Error:
            continue
        spent += times.user + times.system
    return float(spent)


class Clock:
    """Keeps when each event began, and what the process and its database server spent meanwhile."""

    def __init__(self, server: int) -> None:
        self.began: dict[str, int] = {}
        self._server = server
        self._wall = time.monotonic()
        self._cpu = time.process_time()
        self._server_cpu = server_cpu(server)
        self.seconds = self.cpu = self.server = 0.0

    def begin(self, event: Event) -> None:
        """Note that an event is handed over now."""
        self.began[event["id"]] = time.monotonic_ns()

    def stop(self) -> None:
        """Note that all are done."""
        self.seconds = time.monotonic() - self._wall
        self.cpu = time.process_time() - self._cpu
        self.server = server_cpu(self._server) - self._server_cpu


def warm(given: Options) -> int:
    """Return how many events go before the timed ones: two for each that will be in flight.

    As many beside one another as later, so that every connection of a pool is open.
    """
    return 2 * max(8, given.concurrency)


def drive_threads(given: Options, handle: Callable[[Event], object]) -> Clock:
    """Handle all events on as many threads as asked for; some before, untimed."""
    with ThreadPoolExecutor(given.concurrency) as pool:
        list(pool.map(handle, events(warm(given), "w")))
        clock = Clock(given.server)

        def one(event: Event) -> None:
            clock.begin(event)
            handle(event)

        list(pool.map(one, events(given.events)))
        clock.stop()
    return clock


async def drive_tasks(given: Options, handle: Callable[[Event], Awaitable[object]]) -> Clock:
    """Handle all events in as many tasks as asked for; some before, untimed."""

    async def all_of(waiting: Iterator[Event], clock: Clock | None) -> None:
        for event in waiting:
            if clock is not None:
                clock.begin(event)
            await handle(event)

    async def run_lane(found: list[Event], clock: Clock | None) -> None:
        waiting = iter(found)
        await asyncio.gather(*(all_of(waiting, clock) for _ in range(given.concurrency)))

    await run_lane(events(warm(given), "w"), None)
    clock = Clock(given.server)
    await run_lane(events(given.events), clock)
    clock.stop()
    return clock


def report(given: Options, clock: Clock, work: Work, **more: object) -> None:
    """Print one line of JSON: what was reached, and what the target's record says."""
    first, repeated = happened(work.marks)
    latencies = sorted(
        (first[name] - at) / 1e6 for name, at in clock.began.items() if name in first
    )
    figures = {
        "variant": given.variant,
        "concurrency": given.concurrency,
        "events": given.events,
        "seconds": round(clock.seconds, 3),
        "events_per_s": given.events / clock.seconds,
        "cpu_us": clock.cpu * 1e6 / given.events,
        "server_us": clock.server * 1e6 / given.events,
        "p50_ms": latencies[len(latencies) // 2] if latencies else 0.0,
        "p99_ms": latencies[min(len(latencies) - 1, int(0.99 * len(latencies)))]
        if latencies
        else 0.0,
        "effects": len(latencies),
        "repeated": repeated,
        "python": sys.version.split()[0],
        **more,
    }
    print(json.dumps(figures), flush=True)
