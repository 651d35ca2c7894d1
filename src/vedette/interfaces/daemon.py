"""Sets an opened fleet to work: sources, dispatcher, policy watcher, servers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from typing import Any

import orjson

from vedette.app.composition_root import App
from vedette.app.sources import make_sources
from vedette.domain.base import machine
from vedette.domain.base.clock import next_beat, until_beat
from vedette.domain.base.errors import BadPolicy, StoreFailed, Unavailable, VedetteError
from vedette.domain.base.fleet_clock import Jump, told_jump
from vedette.domain.bundle import Revision
from vedette.domain.identity import ENGINE
from vedette.domain.ports import Source
from vedette.engine.cluster import catch_up, follow
from vedette.interfaces.signals import Signals
from vedette.operations.curation import feed
from vedette.policy.compatibility import CHECKED, check_live, checked_mark, read_check, told_check
from vedette.policy.folder import offer_folder, waiting, waits
from vedette.policy.rollout import Wish

TICK_S = 0.25
# The same while nothing happens: then with whoever else looks around, so that one wakeup is enough.
REST_S = 1.0
# How often the age of the oldest unfinished run is looked up.
AGE_S = 2.0
RETRY_US = 1_000_000
# How often the agents' folders are looked at for what is not the release that runs.
LOOK_S = 10.0
# When the live policy is tried by this version: the first events have the processors before it.
CHECK_S = 3.0
# How far off a retry or a limit may be for `until_idle` to stay up for it.
SOON_US = 60_000_000
# What is loaded after the first event waits for it so long at most; or until nothing was to be
# done so many times, at 5 ms each: fewer if no source is left that could still deliver at once.
FIRST_WORK_S = 0.5
QUIET, QUIET_WITHOUT_SOURCES = 30, 3


class Running:
    """One run of a fleet. `troubles` are what a person should see, newest last.

    `signals` are those of the caller, who has taken them already; without them the run takes
    SIGINT and SIGTERM itself for as long as it lasts.
    """

    def __init__(self, app: App, *, until_idle: bool, signals: Signals | None = None) -> None:
        self.app = app
        self.signals = signals
        self.failure: BaseException | None = None
        self.until_idle = until_idle
        self.stopping = asyncio.Event()
        self.troubles: list[str] = list(app.troubles)
        if app.pool is not None:
            app.pool.tell(self.trouble)
        self.address: str | None = None
        self.aged_at = 0.0
        self.committing = True
        self.behind = ""
        self.jump: Jump | None = None
        self.seen = (0, 0)
        self.began_us = app.line.clock.monotonic_us()
        self.began_cpu = machine.cpu_s()
        self.sources: list[Source] = []
        self.open_sources = 0
        # The revision that the policy folder was last compared with; how they came up was told.
        self.compared = app.rollout.live.number
        self._compare_folder(tell=False)

    # --- life -------------------------------------------------------------------------------

    async def run(self, on_tick: Callable[[Running], None] | None = None) -> None:
        """Work until stopped, or until nothing is left to do (`until_idle`).

        Raises what ended a part that should have gone on for as long as the run: without that
        part others would wait for ever. Unavailable if it was an error that says otherwise.
        """
        with ExitStack() as stack:
            signals = self.signals or stack.enter_context(Signals())
            loop = asyncio.get_running_loop()
            signals.ask(lambda: loop.call_soon_threadsafe(self.stop))
            stack.callback(signals.ask, lambda: None)
            stack.enter_context(self._minding_threads())
            await self._run(on_tick)
        if self.failure is not None:
            raise _as_unavailable(self.failure)

    async def _run(self, on_tick: Callable[[Running], None] | None) -> None:
        app = self.app
        if app.containment is not None:
            for open_way in app.containment.lacks():
                self.trouble(f"not closed in: {open_way}")
        first, later = make_sources(app, until_idle=self.until_idle)
        self.sources = [*first, *later]
        self.open_sources = sum(source.finite for source in self.sources)
        for source in self.sources:
            if tell := getattr(source, "tell", None):
                tell(self.trouble)
        async with AsyncExitStack() as stack:
            tasks = await self._follow()
            tasks.append(asyncio.create_task(self._watch_state(), name="state folder"))
            self._mind(tasks[-1])
            app.dispatcher.start(self.failed)
            tasks += [self._source(source) for source in first]
            try:
                await self._first_work(tasks)
                await self._serve(stack)
                tasks += [self._source(source) for source in later]
                tasks += self._beside()
                tasks.append(asyncio.create_task(self._watch_policy(), name="policy watcher"))
                self._mind(tasks[-1])
                while not self.stopping.is_set():
                    try:
                        self._tell_store()
                        self._tell_bank()
                        self._tell_clock()
                        app.watchdog.look()  # first: what cannot be gauged must not blind it
                        self._gauges()
                        if on_tick is not None:
                            on_tick(self)
                        if self.until_idle and self._idle():
                            break
                    except StoreFailed:
                        # The database is away: the line goes on when it is back.
                        app.metrics.count("store_failures")
                    await self._pause()
            finally:
                self.stopping.set()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await app.rollout.opinions.samples.finish(app.store, self.trouble)
        if on_tick is not None:
            with suppress(StoreFailed):  # what ended the run is told, not this
                on_tick(self)

    async def _follow(self) -> list[asyncio.Task[None]]:
        """Take up what other workers publish or stop, where there may be others."""
        line, rollout = self.app.line, self.app.rollout
        if not line.store.several:
            return []
        await catch_up(line, rollout)
        work = follow(line, rollout, feeding(self.app), self.trouble, self.app.releases.follow)
        task = asyncio.create_task(work, name="follower")
        self._mind(task)
        return [task]

    async def _watch_folders(self) -> None:
        """Tell once of each agent whose folder is not the release that runs any more."""
        releases, told = self.app.commands.releases, set[tuple[str, str]]()
        assert releases is not None
        while True:
            changed = await asyncio.to_thread(releases.changed)
            self.app.metrics.gauge("releases_changed", len(changed))
            for one in changed:
                if (one.agent, one.now) not in told:
                    told.add((one.agent, one.now))
                    self.trouble(
                        f"{one.agent} was changed on disk since release {one.release[:12]}, which "
                        f"runs on: see `vedette agent release {one.agent}`"
                    )
            await next_beat(LOOK_S)

    async def _check_policies(self) -> None:
        """Tell once of each live policy that this version's check refuses."""
        checked = -1
        await asyncio.sleep(CHECK_S)
        while True:
            live = self.app.rollout.live
            if live.number != checked:
                checked = live.number
                try:
                    await self._check_policy(live)
                except (VedetteError, OSError) as error:
                    # The fleet goes on as it would if nobody had looked.
                    self.trouble(
                        f"whether this version admits revision {live.number} is not known: {error}"
                    )
            await next_beat(LOOK_S)

    async def _check_policy(self, live: Revision) -> None:
        app = self.app
        found = await check_live(app.store, live.digest, app.rollout.stage.try_out)
        if found is None:
            return
        app.metrics.gauge("policy_live_refused", bool(found))
        if found:
            self.trouble(told_check(live.number, found))
        if read_check(app.store, live.digest) is None:
            marks, was = checked_mark(live.digest, found), app.store.meta(CHECKED)
            await app.store.mark_live(live.number, marks, CHECKED, was)

    def _beside(self) -> list[asyncio.Task[None]]:
        """Start what goes on beside the line: traces, logs, shipping, a look at the folders."""
        from vedette.app.source_plans import followers

        keeping = self.app.rollout.keep_shelf(lambda: self.app.store.leads, self.trouble)
        opinions = self.app.rollout.opinions
        comparing = opinions.samples.watch(self.app.store, self.trouble)
        retrying = opinions.keep(self.app.line.clock, self.trouble)
        works = [
            *followers(self.app, self.trouble), ("policy shelf", keeping),
            ("folder watcher", self._watch_folders()), ("second opinion", comparing),
            ("second engine", retrying), ("policy check", self._check_policies()),
        ]  # fmt: skip
        tasks = [asyncio.create_task(work, name=name) for name, work in works]
        for task in tasks:
            self._mind(task)
        return tasks

    def _source(self, source: Source) -> asyncio.Task[None]:
        return asyncio.create_task(self._deliver(source), name=source.name)

    async def _first_work(self, sources: Sequence[asyncio.Task[None]]) -> None:
        """Let what is there be begun before anything is loaded that an event can do without.

        Ends with the first effect, or when nothing is to be done, or after a moment.
        """
        app = self.app
        end = machine.monotonic_s() + FIRST_WORK_S
        quiet = 0
        while machine.monotonic_s() < end and not self.stopping.is_set():
            await asyncio.sleep(0.005)
            quiet = quiet + 1 if app.dispatcher.idle else 0
            delivering = any(not task.done() for task in sources)
            if quiet >= (QUIET if delivering else QUIET_WITHOUT_SOURCES):
                return
            if app.metrics.total("effects", state="done"):
                return

    async def _serve(self, stack: AsyncExitStack) -> None:
        """Open the doors. What they are made of is loaded beside the line, which goes on."""
        from vedette.interfaces.http import preload

        await asyncio.to_thread(preload)
        from vedette.interfaces.http.local_api import serve_local
        from vedette.interfaces.http.server import serve_http
        from vedette.interfaces.http.worker_gateway import serve_workers

        app = self.app
        await stack.enter_async_context(serve_local(app, app.settings.state, self._mind))
        self.address = await stack.enter_async_context(serve_http(app, self._mind))
        await stack.enter_async_context(serve_workers(app, self.trouble))

    async def _watch_state(self) -> None:
        """Raise Unavailable once the state folder, or a file that is held open, was replaced."""
        identity = self.app.identity
        while identity is not None:
            identity.check()
            await next_beat(REST_S)

    def stop(self) -> None:
        """Ask the run to end; what is not committed is found again by the next one."""
        self.stopping.set()

    # --- parts that must not end before the run does -------------------------------------------

    def failed(self, part: str, error: BaseException | None) -> None:
        """End the run because a part of it ended; `error` is why, None if it just did."""
        if self.stopping.is_set():
            return
        self.failure = error or Unavailable("it ended by itself", where=part)
        self.trouble(f"{part} ended: {type(self.failure).__name__}: {self.failure}")
        self.stop()

    def _mind(self, task: asyncio.Task[None]) -> None:
        task.add_done_callback(
            lambda ended: self.failed(
                ended.get_name(),
                asyncio.CancelledError("cancelled by nobody we know")
                if ended.cancelled()
                else ended.exception(),
            )
        )

    @contextmanager
    def _minding_threads(self) -> Iterator[None]:
        """End the run if one of our threads does: whoever waits for the writer waits for ever."""
        loop, before = asyncio.get_running_loop(), threading.excepthook

        def told(args: Any) -> None:
            before(args)
            name = args.thread.name if args.thread is not None else ""
            if name.startswith("vedette-") and not loop.is_closed():
                loop.call_soon_threadsafe(self.failed, name, args.exc_value)

        threading.excepthook = told
        try:
            yield
        finally:
            threading.excepthook = before

    async def _pause(self) -> None:
        """Wait until it is time to look again, or the run is to end."""
        moved, rests = self.seen, False
        with suppress(StoreFailed):  # it is looked for again soon
            self.seen = (self.app.store.head(), self.app.dispatcher.pending)
            rests = self.seen == moved and not self.until_idle
        try:
            async with asyncio.timeout(until_beat(REST_S) if rests else TICK_S):
                await self.stopping.wait()
        except TimeoutError:
            return

    def _idle(self) -> bool:
        app = self.app
        if self.open_sources or not app.dispatcher.idle or app.dispatcher.soon:
            return False
        now_us, stops = app.line.clock.now_us(), app.line.stops
        # A target that is left alone may stay away for ever; what waits for it is found again.
        near = {"time", "budget"} if app.line.breakers.listed() else {"target", "time", "budget"}
        return not any(
            run.waits in near and not stops.agent(run.agent)
            for run in app.store.due(now_us + SOON_US, 1000)
        )

    def _tell_store(self) -> None:
        """Tell once that the store cannot commit, and once that it can again."""
        writer = self.app.store.writer
        self.app.metrics.gauge("store_ready", writer.ready)
        if writer.ready != self.committing:
            self.committing = writer.ready
            self.trouble(
                "the store takes writes again"
                if writer.ready
                else f"the store cannot commit: {writer.failure}; nothing is accepted and nothing "
                "is called until it can"
            )

    def _tell_bank(self) -> None:
        """Tell once that the memory banks are behind or unreadable, and once that they are not."""
        behind = self.app.line.recall.behind
        if bool(behind) != bool(self.behind):
            self.trouble(
                f"the memory bank is behind the ledger, or cannot be read: {behind}; agents who "
                "read it wait until it is well"
                if behind
                else "the memory bank can be read, and is what the ledger says, again"
            )
        self.behind = behind

    def _tell_clock(self) -> None:
        """Tell once of a jump of the wall clock."""
        jump = self.app.line.clock.jump
        if jump != self.jump:
            self.jump = jump
            if jump is not None:
                self.trouble(f"{told_jump(jump)} until a person says `vedette clock confirm`")

    def _gauges(self) -> None:
        app = self.app
        app.metrics.gauge("pending_runs", app.dispatcher.pending)
        app.metrics.gauge("ledger_head", app.store.head())
        if app.rollout.live.number != self.compared and not app.commands.folder_alone.locked():
            self.compared = app.rollout.live.number
            self._compare_folder(tell=True)
        second = app.line.gateway.second
        app.metrics.gauge("second_opinion", second is not None and second.ready)
        app.metrics.gauge("second_opinion_missing", second is not None and second.missing)
        app.metrics.gauge("stops", len(app.line.stops.listed()))
        app.metrics.gauge("parked_keys", app.line.parking.keys)
        app.metrics.gauge("breakers_open", len(app.line.breakers.listed()))
        runs, octets = app.dispatcher.supply.credits.room.total
        app.metrics.gauge("accepted_unfinished", runs)
        app.metrics.gauge("accepted_unfinished_bytes", octets)
        if (now := machine.monotonic_s()) >= self.aged_at:
            self.aged_at = now + AGE_S
            app.metrics.gauge("oldest_unfinished_seconds", self._oldest_s())

    def _oldest_s(self) -> float:
        """Return how long the oldest run that is ready has been accepted; 0 if none is."""
        store = self.app.store
        waiting = store.backlog(0, 1)
        accepted = store.entry(waiting[0].position) if waiting else None
        if accepted is None:
            return 0.0
        at = int(orjson.loads(accepted[1])["at"])
        return max(0.0, (self.app.line.clock.now_us() - at) / 1e6)

    # --- sources ----------------------------------------------------------------------------

    async def _deliver(self, source: Source) -> None:
        """Let a source deliver; start it again after a failure that may pass."""
        clock = self.app.line.clock
        try:
            while True:
                while not self.app.store.leads:  # noqa: ASYNC110 (a thread tells)
                    await asyncio.sleep(TICK_S)
                try:
                    await source.deliver(self.app.intake)
                    return
                except StoreFailed as error:
                    self.trouble(f"{source.name}: {error}")
                except VedetteError as error:
                    self.trouble(f"{source.name} ended: {error}")
                    return
                except Exception as error:
                    # A source is the edge of the world: whatever breaks there must not end the
                    # fleet, and what was not accepted is delivered again.
                    self.trouble(f"{source.name}: {type(error).__name__}: {error}")
                await clock.sleep_until(clock.now_us() + RETRY_US)
        finally:
            self.open_sources -= source.finite

    def trouble(self, told: str) -> None:
        """Keep something that a person should see."""
        self.troubles.append(told)
        del self.troubles[:-100]

    # --- policy -----------------------------------------------------------------------------

    async def _watch_policy(self) -> None:
        """Offer the policy folder whenever it was saved; a refusal keeps the last good one."""
        from vedette.adapters.bundles.watch import saved

        folder = self.app.settings.policies
        clock = self.app.line.clock
        async for _ in saved(folder):
            while True:
                try:
                    await self.offer_policy()
                    break
                except StoreFailed as error:
                    self.trouble(f"policy not published yet: {error}")
                    await clock.sleep_until(clock.now_us() + RETRY_US)
        if not self.stopping.is_set():
            raise Unavailable("the policy folder is not watched any more", where=str(folder))

    async def offer_policy(self) -> None:
        """Read the policy folder and make it live if it is admitted and loosens nothing."""
        from vedette.adapters.policy_engines.regorus.stage import read_bundle

        app = self.app
        try:
            # Not beside an order that writes the folder: what was read before it would undo it.
            async with app.commands.folder_alone:
                bundle = await asyncio.to_thread(read_bundle, app.settings.policies)
                before = app.rollout.live.number
                wish = Wish(ENGINE, "the policy folder was saved")
                why_not = await offer_folder(app.store, app.rollout, bundle, wish)
        except BadPolicy as error:
            await app.rollout.refuse(error, ENGINE)
            why_not = str(error)
        self.compared = live = app.rollout.live.number
        self._compare_folder(tell=False)
        if why_not:
            self.trouble(f"policy refused, revision {live} stays: {why_not}")
        elif live != before:
            self.trouble(f"policy revision {live} is live")

    def _compare_folder(self, *, tell: bool) -> None:
        """Gauge whether the policy folder says what is live; `tell` it where it has to wait."""
        from vedette.adapters.policy_engines.regorus.stage import read_bundle

        app = self.app
        try:
            differs = read_bundle(app.settings.policies).digest != app.rollout.live.digest
        except BadPolicy:
            differs = True
        app.metrics.gauge("policy_folder_differs", differs)
        if tell and differs and waits(app.store, app.rollout.live):
            self.trouble(waiting(app.rollout.live))


def feeding(app: App) -> Callable[[], None]:
    """Return what brings into the banks what was ordered since they were fed, be it at the start.

    Judges that were taught otherwise are made anew.
    """
    fed = app.fed

    def bring() -> None:
        nonlocal fed
        fed = feed(app.banks, app.store, fed)

    def look() -> None:
        if app.line.recall.follow(bring, order=True) and app.commands.curating is not None:
            app.commands.curating.refresh()

    return look


def _as_unavailable(error: BaseException) -> BaseException:
    """Return the error itself, or Unavailable where its own class would mean something else."""
    if isinstance(error, Exception) and not isinstance(error, VedetteError):
        return error
    if isinstance(error, Unavailable):
        return error
    what = f"a part of the fleet broke: {type(error).__name__}: {error}"
    broke = Unavailable(what, mend="start it again; what was committed is not lost")
    broke.__cause__ = error
    return broke


def summary(running: Running) -> dict[str, Any]:
    """Return what the run came to: counts per agent, and three ids to look at next."""
    app = running.app
    seconds = (app.line.clock.monotonic_us() - running.began_us) / 1e6
    cpu = machine.cpu_s() - running.began_cpu
    accepted, nobody = app.store.events_counted()
    new = app.metrics.total("events", outcome="accepted")
    agents = {}
    counts = app.store.counts()
    for name in app.line.fleet.agents:
        found = counts.get(name, {})
        agents[name] = {
            "runs": sum(v for k, v in found.items() if k.startswith("run.")),
            "waiting": found.get("run.waiting", 0),
            "dead": found.get("run.dead", 0),
            "actions": sum(v for k, v in found.items() if k.startswith("decided.")),
            "permits": found.get("decided.permit", 0),
            "holds": found.get("decided.hold", 0),
            "denials": found.get("decided.deny", 0),
            "would": app.metrics.total("would", agent=name),
            "effects": found.get("effect.done", 0),
            "failed": found.get("effect.failed", 0),
        }
    return {
        "agents": agents,
        "events": {
            "accepted": accepted,
            "woke_nobody": nobody,
            "this_run": new,
            "duplicates": app.metrics.total("events", outcome="duplicate"),
            "refused": app.metrics.total("events", outcome="refused"),
        },
        "seconds": round(seconds, 3),
        "events_per_second": round(new / seconds, 1) if seconds else 0.0,
        "cpu_us_per_event": round(cpu / new * 1e6, 1) if new else 0.0,
        "policy_revision": app.rollout.live.number,
        "address": running.address,
        "troubles": running.troubles[-10:],
        "try_next": app.store.examples(),
    }
