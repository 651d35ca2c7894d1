"""One trial: a fleet of real processes under a schedule of faults, and the history of it."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests import pg
from tests.jepsen.engines import Worker, vedette
from tests.jepsen.fleet import AGENTS, lay_fleet
from tests.jepsen.link import Link
from tests.jepsen.people import People
from tests.jepsen.producers import Producers, ask_ready
from tests.jepsen.schedule import ORDERS, TARGETS, Planned
from tests.jepsen.targets import Targets
from tests.jepsen.verification import verify
from tests.simulation.history import NEVER, Fault, History, Order

from vedette.interfaces.http.unix_socket import current_person
from vedette.store.sqlite import SqliteReader

WORKERS = {"sqlite": 1, "postgresql": 3}
LIVE_S = 60.0  # after the last fault everything is at its end
SOURCES = 4
GRACE_S = 0.5  # a call on its way to its target over loopback
_TICK_S = 0.05
_ENDS_S = 300.0  # the longest that a fault lasts beyond its time: people and a failover


@dataclass
class Seen:
    """What a trial came to, beside its history."""

    history: History = field(default_factory=History)
    live_after_s: float = NEVER
    waiting: list[str] = field(default_factory=list)
    sent_again: int = 0
    ended_by_themselves: int = 0
    lag_s: float = 0.0
    refusals: Counter[str] = field(default_factory=Counter)
    looks: list[str] = field(default_factory=list)


class Trial:
    """Runs a fleet in `folder` through a `schedule` of so many `seconds`.

    `told` is given a line of progress now and then.
    """

    def __init__(
        self, folder: Path, seed: int, schedule: Sequence[Planned], seconds: float, *,
        store: str, rate: float, told: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.folder, self.seed, self.rate = folder, seed, rate
        self.schedule, self.seconds = schedule, seconds
        self.database, self.told = store == "postgresql", told
        self.enough, self._over = asyncio.Event(), asyncio.Event()
        self.seen = Seen()
        self._began = time.monotonic()
        self._server: pg.Server | None = None
        self._copy: pg.Copy | None = None
        self._copied_s = 0.0
        self._url = ""
        self._links: list[Link] = []
        self._way: Link | None = None  # to the targets
        self._down: set[int] = set()
        self._one_at_a_time = defaultdict[tuple[str, str], asyncio.Lock](asyncio.Lock)
        self._planned: dict[asyncio.Task[None], Planned] = {}
        self._targets = Targets(self.now, random.Random(f"{seed} targets"))
        self._draw = random.Random(f"{seed} chances")

    def now(self) -> float:
        """Return the seconds since the trial began, on one clock for everybody."""
        return time.monotonic() - self._began

    async def run(self) -> Seen:
        """Run to the end, or until `enough` is set; heal everything, wait, and take it all down."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(32))
        await self._targets.open()
        tasks = [asyncio.create_task(self._measure_lag())]
        try:
            await self._start()
            tasks += [
                asyncio.create_task(self._people.answer_for_ever()),
                asyncio.create_task(self._watch()),
                asyncio.create_task(self._tell()),
            ]
            sources = asyncio.gather(*(self._producers.produce(n, SOURCES) for n in range(SOURCES)))
            await self._follow_schedule(sources)
            await self._heal()
            await self._come_to_an_end(sources, self._last_fault_s())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*(worker.end() for worker in getattr(self, "_workers", [])))
            self._targets.close()
            for link in (*self._links, *filter(None, [self._way])):
                link.close()
        self._collect()
        for server in filter(None, [self._copy, self._server]):
            server.stop()
        return self.seen

    async def _start(self) -> None:
        self._way = Link(self._targets.port)
        await self._way.open()
        url = f"http://127.0.0.1:{self._way.port}"
        laid = lay_fleet(self.folder / "fleet", url, database=self.database)
        self._laid = laid
        if self.database:
            self._server = await asyncio.to_thread(pg.Server, pg.find_bin())
            self._url = self._server.fresh()
            for _ in range(WORKERS["postgresql"]):
                link = Link(self._server.port)
                await link.open()
                self._links.append(link)
        ports = [str(link.port) for link in self._links]
        here = f":{self._server.port}/" if self._server else ""
        stores = [self._url.replace(here, f":{port}/") for port in ports] or [""]
        self._workers = [Worker(f"w{at}", laid, store=url) for at, url in enumerate(stores)]
        self._workers[0].start()
        await self._workers[0].ready()
        for worker in self._workers[1:]:
            worker.share_key(self._workers[0])
            worker.start()
        for worker in self._workers[1:]:
            await worker.ready()
        draw = random.Random(f"{self.seed} people")
        self._people = People(self._workers, self._targets, self._opened, self.now, draw)
        self._producers = Producers(self._workers, self.now, self.seed, rate=self.rate)

    @property
    def config(self) -> Path:
        """Return the settings file of the fleet."""
        return self._laid.config

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the environment of a verb that reaches the store past the links."""
        past_the_links = {"JEPSEN_STORE": self._url} if self.database else {}
        return {**self._workers[0].environment, **past_the_links}

    def _opened(self) -> Any:
        """Open the store to read, past the links."""
        if not self.database:
            return SqliteReader(self._workers[0].state)
        from vedette.store.postgres import PostgresReader

        return PostgresReader(self._url)

    # --- faults and orders ------------------------------------------------------------------------

    async def _follow_schedule(self, sources: asyncio.Future[Any]) -> None:
        start = self.now()
        for planned in [*self.schedule, Planned(self.seconds, "", 0, "")]:
            left_s = start + planned.at_s - self.now()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.enough.wait(), max(0.001, left_s))
            if sources.done():
                await sources  # a source that ends by itself has something to say
            if self.enough.is_set() or not planned.what:
                return
            task = asyncio.create_task(self._carry_out(planned))
            self._planned[task] = planned

    async def _carry_out(self, planned: Planned) -> None:
        fault = Fault(planned.what, planned.where, self.now(), NEVER)
        self.seen.history.faults.append(fault)
        # The same again begins when this has ended: a server is not shut down while it starts.
        async with self._one_at_a_time[planned.what, planned.where]:
            await self._do(planned)
        fault.to_s = self.now()

    async def _do(self, planned: Planned) -> None:
        what = planned.what
        number = int(planned.where) if planned.where.isdigit() else 0
        worker = self._workers[number]
        link = self._links[number] if self._links else None
        if what in TARGETS:
            self._targets.mode = what
            await asyncio.sleep(planned.for_s)
            self._targets.mode = ""
        elif what == "kill":
            self._down.add(number)
            worker.kill()
            await asyncio.sleep(planned.for_s)
            worker.start()
            self._down.discard(number)
        elif what == "freeze":
            worker.freeze()
            await asyncio.sleep(planned.for_s)
            worker.thaw()
        elif what == "worker death":
            worker.kill_forked(self._draw)
        elif what == "stop":
            await self._people.stop(planned.where)
            await self._last(planned.for_s)
            await self._people.resume(planned.where)
        elif what == "publish":
            await self._people.publish(self._laid.strict, strict=True)
            await self._last(planned.for_s)
            await self._people.publish(self._laid.base, strict=False)
        elif what == "burst":
            self._producers.burst()
        elif what == "stall" and link:
            link.stall()
            await asyncio.sleep(planned.for_s)
            link.resume()
        elif what == "drop" and link:
            link.drop()
        elif what == "slow" and link:
            link.delay_s = 0.03
            await asyncio.sleep(planned.for_s)
            link.resume()
        elif what == "cut":
            await self._cut(planned)
        elif what == "look":
            await self._look()
        elif what == "copy":
            self._copied_s = self.now()
            assert self._server is not None
            self._copy = await asyncio.to_thread(pg.Copy, self._server)
        elif what == "failover":
            await self._fail_over(planned)
        elif what == "shutdown" and self._server:
            await asyncio.to_thread(self._server.crash)
            await asyncio.sleep(planned.for_s)
            await asyncio.to_thread(self._server.restart)
        else:
            raise AssertionError(f"nobody knows how to do {planned}")

    async def _last(self, for_s: float) -> None:
        """Let an order last, and no longer than until faults end: then people take it back."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), for_s)

    async def _cut(self, planned: Planned) -> None:
        """Cut the network to the targets, to the store, or to both."""
        if planned.where != "store" and self._way:
            self._targets.cut = True
            # The engine relies on a target that does nothing after the timeout of a call.
            self._way.cut(loses=True)
        if planned.where != "targets":
            for link in self._links:
                link.cut(loses=self._draw.random() < 0.5)
        await asyncio.sleep(planned.for_s)
        self._mend()

    def _mend(self) -> None:
        self._targets.cut = False
        for link in (*self._links, *filter(None, [self._way])):
            link.resume()

    async def _fail_over(self, planned: Planned) -> None:
        """Lose the server for good, and let its copy take over, at the same address.

        Nobody ends the workers: each finds out by itself, and is started again. People do what the
        runbook says.
        """
        assert self._server is not None
        assert self._copy is not None
        restore = Order("restore", self.now(), what="failover", since_s=self._copied_s)
        self._people.orders.append(restore)
        starts = [worker.starts for worker in self._workers]
        await asyncio.to_thread(self._server.crash)
        await asyncio.sleep(planned.for_s)
        await asyncio.to_thread(partial(self._copy.begin, until=None))
        self._url = self._copy.url(self._url.rpartition("/")[2])
        for link in self._links:
            link.to = self._copy.port
        async with asyncio.timeout(LIVE_S):
            while any(w.starts == n for w, n in zip(self._workers, starts, strict=True)):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        for worker in self._workers:
            await worker.ready()
        restore.told_s = self.now()
        # From here on it is stopped, whoever is asked, until a person has looked. Nobody said so.
        stopped = Order("stop", restore.asked_s, self.now(), "all:", recorded=False)
        self._people.orders.append(stopped)
        await self._look()
        await self._people.go_on(partial(self._producers.deliver_again, self._copied_s))

    async def _look(self) -> None:
        """Keep what people are told who look now: at `status`, and at /readyz of each worker."""
        at_s, looks = self.now(), [self._look_at(worker) for worker in self._workers]
        for look in await asyncio.gather(*looks):
            self.seen.looks.append(f"at {at_s:.0f} s {look}")

    async def _look_at(self, worker: Worker) -> str:
        status, ready = await asyncio.gather(
            asyncio.to_thread(vedette, self.config, worker.environment, "status"),
            ask_ready(worker.port),
        )
        output = (status.stdout + status.stderr).strip().replace("\n", "\n    ")
        return f"{worker.name}: /readyz {ready}\n    {output}"

    async def _watch(self) -> None:
        """Start again who ended by itself: without a database, for one."""
        while True:
            for number, worker in enumerate(self._workers):
                if not worker.alive and number not in self._down:
                    self.seen.ended_by_themselves += 1
                    worker.start()
            await asyncio.sleep(1.0)

    # --- the end ----------------------------------------------------------------------------------

    async def _heal(self) -> None:
        """Let what was begun come to its end, and see that nothing is broken any more."""
        self._producers.finish()
        self._over.set()
        self.told("faults end")
        faults = [task for task, one in self._planned.items() if one.what not in ORDERS]
        for tasks, within_s in ((faults, _ENDS_S), (list(self._planned), 30)):
            if tasks:
                # (An order that nobody answers is no fault.)
                await asyncio.wait(tasks, timeout=within_s)
        for task in self._planned:
            if task.done() and task.exception() is not None:
                raise RuntimeError("a fault could not be made") from task.exception()
        self._targets.mode = ""
        self._mend()
        for worker in self._workers:
            worker.thaw()
            worker.start()

    def _last_fault_s(self) -> float:
        """Return when the last fault ended: an order that is still not answered is none."""
        faults = [fault for fault in self.seen.history.faults if fault.what not in ORDERS]
        return max((min(fault.to_s, self.now()) for fault in faults), default=self.now())

    async def _come_to_an_end(self, sources: asyncio.Future[Any], faults_s: float) -> None:
        """Wait until nothing is left to do, until so long after the last fault."""
        while self.now() - faults_s < LIVE_S:
            with suppress(Exception):  # the store is not back yet
                self.seen.waiting = await asyncio.to_thread(self._waiting)
                if sources.done() and not self.seen.waiting:
                    self.seen.live_after_s = self.now() - faults_s
                    break
            await asyncio.sleep(0.5)
        else:
            text = "; ".join(self.seen.waiting) or "what a source sent is not answered for"
            self.seen.history.errors.append(f"not live within {LIVE_S:.0f} s: {text}")
        self.seen.history.end_s = self.now()
        sources.cancel()
        with suppress(asyncio.CancelledError):
            await sources

    def _waiting(self) -> list[str]:
        store = self._opened()
        try:
            ready = [f"{run.id} is ready" for run in store.schedule.ready_runs(0, 50)]
            runs = store.runs.runs_page(agent=None, state="waiting", before=None, limit=50)
            return ready + [
                f"{run.id}: {row.tool} {row.effect} {row.hold} waits for {row.waits}"
                for run in runs
                for row in store.runs.actions(run.id)
                if row.waits
            ]
        finally:
            store.close()

    def _collect(self) -> None:
        """Fill the history with what the sources, the targets, the people and the ledger say."""
        history = self.seen.history
        history.events, history.acts = self._producers.events, self._targets.acts
        history.orders, history.person = self._people.orders, str(current_person())
        history.grace_s = GRACE_S + self.seen.lag_s
        self.seen.sent_again = self._producers.sent_again
        self.seen.refusals = self._people.refusals
        store = self._opened()
        try:
            for seq, raw, _, data in store.ledger.walk():
                history.entries.append(json.loads(raw))
                if data is not None:
                    history.bodies[seq] = json.loads(data)
            for agent in AGENTS:
                rows = store.database.rows(
                    'SELECT key, data FROM "row" WHERE collection=? ORDER BY key',
                    (f"{agent}_notes",),
                )
                for key, data in rows:
                    history.rows[agent, key] = list(json.loads(data)["texts"])
        finally:
            store.close()
        for worker in self._workers:
            text = worker.told.read_text(errors="replace")
            if "Traceback" in text:
                place = text.index("Traceback")
                history.errors.append(f"{worker.name} said: {text[place : place + 3000]}")
        history.errors += verify(self.config, self.environment)

    # --- beside -----------------------------------------------------------------------------------

    async def _measure_lag(self) -> None:
        """Measure how late we ourselves note things: by as much more a call may seem late."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(_TICK_S)
            self.seen.lag_s = max(self.seen.lag_s, time.monotonic() - before - _TICK_S)

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(5)
            events = self._producers.events
            count = sum(event.told_s < NEVER for event in events)
            done = sum(act.what == "done" for act in self._targets.acts)
            kinds = Counter(fault.what for fault in self.seen.history.faults)
            faults = ", ".join(f"{number} {what}" for what, number in sorted(kinds.items()))
            sent = f"{count} of {len(events)} events told, {done} effects"
            self.told(f"{self.now():5.0f} s  {sent}; {faults}")
