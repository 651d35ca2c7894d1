"""The daemon sets an opened fleet to work: sources, dispatcher, policy watcher, servers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from typing import Any

import orjson

from vedette.app.composition_root import App
from vedette.app.follower_process import FollowerProcess
from vedette.app.sources import build_sources
from vedette.domain.base import machine
from vedette.domain.base.clock import aligned_delay_s, sleep_aligned
from vedette.domain.base.errors import BadPolicy, StoreFailed, Unavailable, VedetteError
from vedette.domain.base.fleet_clock import Jump, describe_jump
from vedette.domain.bundle import Revision
from vedette.domain.identity import ENGINE
from vedette.domain.ports.sources import Source
from vedette.engine.cluster import catch_up_with_cluster, follow_cluster
from vedette.interfaces.signals import Signals
from vedette.operations.curation import sync_banks
from vedette.policy.compatibility import (
    CHECK_MARK,
    build_check_mark,
    check_live,
    format_refusal,
    read_check,
)
from vedette.policy.folder import folder_wait_reason, is_folder_waiting, offer_folder
from vedette.policy.rollout import PublishRequest

TICK_S = 0.25
# The same while nothing happens: then with whoever else looks around, so that one wakeup is enough.
IDLE_TICK_S = 1.0
# How often the age of the oldest unfinished run is looked up.
AGE_INTERVAL_S = 2.0
RETRY_US = 1_000_000
# How often the agents' folders are looked at for what is not the release that runs.
CHECK_INTERVAL_S = 10.0
# When the live policy is tried by this version: the first events have the processors before it.
FIRST_CHECK_DELAY_S = 3.0
# How far off a retry or a limit may be for `until_idle` to stay up for it.
IDLE_HORIZON_US = 60_000_000
# What is loaded after the first event waits for it so long at most; or until nothing was to be
# done so many times, at 5 ms each: fewer if no source is left that could still deliver at once.
FIRST_WORK_S = 0.5
QUIET_POLLS, QUIET_POLLS_WITHOUT_SOURCES = 30, 3


class Daemon:
    """The daemon: one run of a fleet. `troubles` are what a person should see, newest last.

    `signals` are those of the caller, who has taken them already; without them the run takes
    SIGINT and SIGTERM itself for as long as it lasts. Without a `follower` whoever reads lists
    makes them.
    """

    def __init__(
        self,
        app: App,
        *,
        until_idle: bool,
        signals: Signals | None = None,
        follower: FollowerProcess | None = None,
    ) -> None:
        self.app = app
        self.signals = signals
        self.follower = follower
        self.failure: BaseException | None = None
        self.until_idle = until_idle
        self.stop_event = asyncio.Event()
        self.troubles: list[str] = list(app.troubles)
        for pool in app.pools:
            pool.set_trouble_callback(self.report_trouble)
        self.address: str | None = None
        self.next_age_at = 0.0
        self.store_ready = True
        self.bank_failure = ""
        self.clock_jump: Jump | None = None
        self.last_progress = (0, 0)
        self.start_us = app.services.clock.monotonic_us()
        self.start_cpu_s = machine.cpu_s()
        self.sources: list[Source] = []
        self.open_sources = 0
        # The revision that the policy folder was last compared with; how they came up was told.
        self.compared_revision = app.rollout.live.number
        self._compare_folder(report=False)

    # --- life -------------------------------------------------------------------------------

    async def run(self, on_tick: Callable[[Daemon], None] | None = None) -> None:
        """Work until stopped, or until nothing is left to do (`until_idle`).

        Raises what ended a part that should have gone on for as long as the run: without that
        part others would wait for ever. Unavailable if it was an error that says otherwise.
        """
        with ExitStack() as stack:
            signals = self.signals or stack.enter_context(Signals())
            loop = asyncio.get_running_loop()
            signals.set_handler(lambda: loop.call_soon_threadsafe(self.stop))
            stack.callback(signals.set_handler, lambda: None)
            stack.enter_context(self._supervise_threads())
            await self._run_until_stopped(on_tick)
        if self.failure is not None:
            raise _to_unavailable(self.failure)

    async def _run_until_stopped(self, on_tick: Callable[[Daemon], None] | None) -> None:
        app = self.app
        if app.containment is not None:
            for open_way in app.containment.gaps():
                self.report_trouble(f"not closed in: {open_way}")
        first, later = build_sources(app, until_idle=self.until_idle)
        self.sources = [*first, *later]
        self.open_sources = sum(source.finite for source in self.sources)
        for source in self.sources:
            if report_to := getattr(source, "report_to", None):
                report_to(self.report_trouble)
        async with AsyncExitStack() as stack:
            if self.follower is not None:
                # The loop never folds, or waits for who does: what it shows may be a moment old.
                stack.enter_context(app.store.view.without_waiting())
            tasks = await self._follow_cluster()
            tasks.append(asyncio.create_task(self._watch_state(), name="state folder"))
            self._supervise(tasks[-1])
            app.dispatcher.start(self.abort)
            tasks += [self._start_source(source) for source in first]
            try:
                await self._await_first_work(tasks)
                await self._start_servers(stack)
                tasks += [self._start_source(source) for source in later]
                tasks += self._start_followers()
                tasks.append(asyncio.create_task(self._watch_policy(), name="policy watcher"))
                self._supervise(tasks[-1])
                while not self.stop_event.is_set():
                    try:
                        self._report_store()
                        self._report_bank()
                        self._report_clock_jump()
                        app.watchdog.check()  # first: what cannot be gauged must not blind it
                        self._update_gauges()
                        if on_tick is not None:
                            with suppress(VedetteError):  # nor does it need what is shown
                                on_tick(self)
                        if self.until_idle and self._is_idle():
                            break
                    except StoreFailed:
                        # The database is away: the line goes on when it is back.
                        app.metrics.count("store_failures")
                    await self._wait_for_tick()
                interrupted = self.stop_event.is_set() and self.follower is not None
            finally:
                self.stop_event.set()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await app.rollout.second_opinions.samples.finish(
                    app.store.commands, self.report_trouble
                )
        if interrupted:  # whoever did waits for no lists, whose follower has ended too
            app.store.view.end_waiting()
        if on_tick is not None:
            with suppress(StoreFailed):  # what ended the run is told, not this
                on_tick(self)

    async def _follow_cluster(self) -> list[asyncio.Task[None]]:
        """Take up what other workers publish or stop, where there may be others."""
        services, rollout = self.app.services, self.app.rollout
        if not services.store.cluster.multi_worker:
            return []
        await catch_up_with_cluster(services, rollout)
        work = follow_cluster(
            services,
            rollout,
            build_bank_feed(self.app),
            self.report_trouble,
            self.app.releases.follow,
        )
        task = asyncio.create_task(work, name="follower")
        self._supervise(task)
        return [task]

    async def _watch_folders(self) -> None:
        """Tell once of each agent whose folder is not the release that runs any more."""
        releases, reported = self.app.commands.releases, set[tuple[str, str]]()
        assert releases is not None
        while True:
            changed = await asyncio.to_thread(releases.changed_agents)
            self.app.metrics.gauge("releases_changed", len(changed))
            for one in changed:
                if (one.agent, one.digest) not in reported:
                    reported.add((one.agent, one.digest))
                    self.report_trouble(
                        f"{one.agent} was changed on disk since release {one.release[:12]}, which "
                        f"runs on: see `vedette agent release {one.agent}`"
                    )
            await sleep_aligned(CHECK_INTERVAL_S)

    async def _check_policies(self) -> None:
        """Tell once of each live policy that this version's check refuses."""
        checked = -1
        await asyncio.sleep(FIRST_CHECK_DELAY_S)
        while True:
            live = self.app.rollout.live
            if live.number != checked:
                checked = live.number
                try:
                    await self._check_policy(live)
                except (VedetteError, OSError) as error:
                    # The fleet goes on as it would if nobody had looked.
                    self.report_trouble(
                        f"whether this version admits revision {live.number} is not known: {error}"
                    )
            await sleep_aligned(CHECK_INTERVAL_S)

    async def _check_policy(self, live: Revision) -> None:
        app = self.app
        found = await check_live(app.store, live.digest, app.rollout.stage.try_out)
        if found is None:
            return
        app.metrics.gauge("policy_live_refused", bool(found))
        if found:
            self.report_trouble(format_refusal(live.number, found))
        if read_check(app.store, live.digest) is None:
            marks, was = build_check_mark(live.digest, found), app.store.meta(CHECK_MARK)
            await app.store.commands.set_meta_if_live(live.number, marks, CHECK_MARK, was)

    def _start_followers(self) -> list[asyncio.Task[None]]:
        """Start what goes on beside the line: traces, logs, shipping, a look at the folders."""
        from vedette.app.ledger_followers import build_followers

        keeping = self.app.rollout.maintain_repository(
            lambda: self.app.store.cluster.is_leader, self.report_trouble
        )
        opinions = self.app.rollout.second_opinions
        comparing = opinions.samples.watch(self.app.store.commands, self.report_trouble)
        retrying = opinions.keep_retrying(self.app.services.clock, self.report_trouble)
        residuals = self.app.rollout.residuals.watch(self.report_trouble)
        works: list[tuple[str, Coroutine[Any, Any, None]]] = []
        if self.follower is not None:
            works.append(("read model", self.follower.run(self.report_trouble)))
        works += [
            *build_followers(self.app, self.report_trouble), ("policy shelf", keeping),
            ("folder watcher", self._watch_folders()), ("second opinion", comparing),
            ("residuals", residuals), ("second engine", retrying),
            ("policy check", self._check_policies()),
        ]  # fmt: skip
        tasks = [asyncio.create_task(work, name=name) for name, work in works]
        for task in tasks:
            self._supervise(task)
        return tasks

    def _start_source(self, source: Source) -> asyncio.Task[None]:
        return asyncio.create_task(self._run_source(source), name=source.name)

    async def _await_first_work(self, sources: Sequence[asyncio.Task[None]]) -> None:
        """Let what is there be begun before anything is loaded that an event can do without.

        Ends with the first effect, or when nothing is to be done, or after a moment.
        """
        app = self.app
        end = machine.monotonic_s() + FIRST_WORK_S
        quiet = 0
        while machine.monotonic_s() < end and not self.stop_event.is_set():
            await asyncio.sleep(0.005)
            quiet = quiet + 1 if app.dispatcher.is_idle else 0
            delivering = any(not task.done() for task in sources)
            if quiet >= (QUIET_POLLS if delivering else QUIET_POLLS_WITHOUT_SOURCES):
                return
            if app.metrics.total("effects", state="done"):
                return

    async def _start_servers(self, stack: AsyncExitStack) -> None:
        """Open the servers. What they are made of is loaded beside the line, which goes on."""
        from vedette.interfaces.http import preload

        await asyncio.to_thread(preload)
        from vedette.interfaces.http.local_api import serve_local
        from vedette.interfaces.http.server import serve_http
        from vedette.interfaces.http.worker_gateway import serve_workers

        app = self.app
        await stack.enter_async_context(serve_local(app, app.settings.state, self._supervise))
        self.address = await stack.enter_async_context(serve_http(app, self._supervise))
        await stack.enter_async_context(serve_workers(app, self.report_trouble))

    async def _watch_state(self) -> None:
        """Raise Unavailable once the state folder, or a file that is held open, was replaced."""
        identity = self.app.identity
        while identity is not None:
            identity.check()
            await sleep_aligned(IDLE_TICK_S)

    def stop(self) -> None:
        """Ask the run to end; what is not committed is found again by the next one."""
        self.stop_event.set()

    # --- parts that must not end before the run does -------------------------------------------

    def abort(self, part: str, error: BaseException | None) -> None:
        """End the run because a part of it ended; `error` is why, None if it just did."""
        if self.stop_event.is_set():
            return
        self.failure = error or Unavailable("it ended by itself", where=part)
        self.report_trouble(f"{part} ended: {type(self.failure).__name__}: {self.failure}")
        self.stop()

    def _supervise(self, task: asyncio.Task[None]) -> None:
        task.add_done_callback(
            lambda ended: self.abort(
                ended.get_name(),
                asyncio.CancelledError("cancelled by nobody we know")
                if ended.cancelled()
                else ended.exception(),
            )
        )

    @contextmanager
    def _supervise_threads(self) -> Iterator[None]:
        """End the run if one of our threads does: whoever waits for the writer waits for ever."""
        loop, before = asyncio.get_running_loop(), threading.excepthook

        def handle_exception(args: Any) -> None:
            before(args)
            name = args.thread.name if args.thread is not None else ""
            if name.startswith("vedette-") and not loop.is_closed():
                loop.call_soon_threadsafe(self.abort, name, args.exc_value)

        threading.excepthook = handle_exception
        try:
            yield
        finally:
            threading.excepthook = before

    async def _wait_for_tick(self) -> None:
        """Wait until it is time to look again, or the run is to end."""
        before, rests = self.last_progress, False
        with suppress(StoreFailed):  # it is looked for again soon
            self.last_progress = (self.app.store.ledger.last_seq(), self.app.dispatcher.pending)
            rests = self.last_progress == before and not self.until_idle
        try:
            async with asyncio.timeout(aligned_delay_s(IDLE_TICK_S) if rests else TICK_S):
                await self.stop_event.wait()
        except TimeoutError:
            return

    def _is_idle(self) -> bool:
        app = self.app
        if self.open_sources or not app.dispatcher.is_idle or app.dispatcher.is_due_soon:
            return False
        now_us, stops = app.services.clock.now_us(), app.services.stops
        # A target that is left alone may stay away for ever; what waits for it is found again.
        near = (
            {"time", "budget"}
            if app.services.breakers.list_tripped()
            else {"target", "model", "time", "budget"}
        )
        return not any(
            run.waits in near and not stops.is_agent_stopped(run.agent)
            for run in app.store.schedule.due_runs(now_us + IDLE_HORIZON_US, 1000)
        )

    def _report_store(self) -> None:
        """Tell once that the store cannot commit, and once that it can again."""
        writer = self.app.store.writer
        self.app.metrics.gauge("store_ready", writer.is_ready)
        if writer.is_ready != self.store_ready:
            self.store_ready = writer.is_ready
            self.report_trouble(
                "the store takes writes again"
                if writer.is_ready
                else f"the store cannot commit: {writer.failure}; nothing is accepted and nothing "
                "is called until it can"
            )

    def _report_bank(self) -> None:
        """Tell once that the memory banks are behind or unreadable, and once that they are not."""
        behind = self.app.services.recall.lag_reason
        if bool(behind) != bool(self.bank_failure):
            self.report_trouble(
                f"the memory bank is behind the ledger, or cannot be read: {behind}; agents who "
                "read it wait until it is well"
                if behind
                else "the memory bank can be read, and is what the ledger says, again"
            )
        self.bank_failure = behind

    def _report_clock_jump(self) -> None:
        """Tell once of a jump of the wall clock."""
        jump = self.app.services.clock.jump
        if jump != self.clock_jump:
            self.clock_jump = jump
            if jump is not None:
                self.report_trouble(
                    f"{describe_jump(jump)} until a person says `vedette resume --clock`"
                )

    def _update_gauges(self) -> None:
        app = self.app
        app.metrics.gauge("pending_runs", app.dispatcher.pending)
        app.metrics.gauge("ledger_head", app.store.ledger.last_seq())
        if (
            app.rollout.live.number != self.compared_revision
            and not app.commands.folder_lock.locked()
        ):
            self.compared_revision = app.rollout.live.number
            self._compare_folder(report=True)
        second = app.services.gateway.second_opinion
        app.metrics.gauge("second_opinion", second is not None and second.is_ready)
        app.metrics.gauge("second_opinion_missing", second is not None and second.is_missing)
        app.metrics.gauge("stops", len(app.services.stops.list_scopes()))
        app.metrics.gauge("parked_keys", app.services.parked_runs.key_count)
        app.metrics.gauge("breakers_open", len(app.services.breakers.list_tripped()))
        app.services.models.set_gauges(app.metrics, app.services.parked_runs.count_waiting)
        app.metrics.gauge("recall_postings", app.banks.held_postings)
        app.metrics.gauge("recall_scopes_in_file", app.banks.scopes_in_file)
        runs, octets = app.dispatcher.buffer.credits.total
        app.metrics.gauge("accepted_unfinished", runs)
        app.metrics.gauge("accepted_unfinished_bytes", octets)
        if (now := machine.monotonic_s()) >= self.next_age_at:
            self.next_age_at = now + AGE_INTERVAL_S
            app.metrics.gauge("oldest_unfinished_seconds", self._oldest_run_s())
            with suppress(VedetteError):  # the line does not need it
                lag = app.store.view.lag(app.services.clock.now_us())
                app.metrics.gauge("view_entries_behind", lag.entries)
                app.metrics.gauge("view_seconds_behind", lag.seconds)
            followed = self.follower is not None and self.follower.pid is not None
            app.metrics.gauge("view_follower", followed)

    def _oldest_run_s(self) -> float:
        """Return how long the oldest run that is ready has been accepted; 0 if none is."""
        store = self.app.store
        waiting = store.schedule.ready_runs(0, 1)
        accepted = store.ledger.entry(waiting[0].position) if waiting else None
        if accepted is None:
            return 0.0
        at = int(orjson.loads(accepted[1])["at"])
        return max(0.0, (self.app.services.clock.now_us() - at) / 1e6)

    # --- sources ----------------------------------------------------------------------------

    async def _run_source(self, source: Source) -> None:
        """Let a source deliver; start it again after a failure that may pass."""
        clock = self.app.services.clock
        try:
            while True:
                while not self.app.store.cluster.is_leader:  # noqa: ASYNC110 (a thread tells)
                    await asyncio.sleep(TICK_S)
                try:
                    await source.deliver(self.app.intake)
                    return
                except StoreFailed as error:
                    self.report_trouble(f"{source.name}: {error}")
                except VedetteError as error:
                    self.report_trouble(f"{source.name} ended: {error}")
                    return
                except Exception as error:
                    # A source is the edge of the world: whatever breaks there must not end the
                    # fleet, and what was not accepted is delivered again.
                    self.report_trouble(f"{source.name}: {type(error).__name__}: {error}")
                await clock.sleep_until(clock.now_us() + RETRY_US)
        finally:
            self.open_sources -= source.finite

    def report_trouble(self, message: str) -> None:
        """Keep something that a person should see."""
        self.troubles.append(message)
        del self.troubles[:-100]

    # --- policy -----------------------------------------------------------------------------

    async def _watch_policy(self) -> None:
        """Offer the policy folder whenever it was saved; a refusal keeps the last good one."""
        from vedette.adapters.bundles.watch import watch_folder

        folder = self.app.settings.policies
        clock = self.app.services.clock
        async for _ in watch_folder(folder):
            while True:
                try:
                    await self.offer_policy()
                    break
                except StoreFailed as error:
                    self.report_trouble(f"policy not published yet: {error}")
                    await clock.sleep_until(clock.now_us() + RETRY_US)
        if not self.stop_event.is_set():
            raise Unavailable("the policy folder is not watched any more", where=str(folder))

    async def offer_policy(self) -> None:
        """Read the policy folder and make it live if it is admitted and loosens nothing."""
        from vedette.adapters.policy_engines.regorus.stage import read_bundle

        app = self.app
        try:
            # Not beside an order that writes the folder: what was read before it would undo it.
            async with app.commands.folder_lock:
                bundle = await asyncio.to_thread(read_bundle, app.settings.policies)
                before = app.rollout.live.number
                wish = PublishRequest(ENGINE, "the policy folder was saved")
                why_not = await offer_folder(app.store, app.rollout, bundle, wish)
        except BadPolicy as error:
            await app.rollout.record_refusal(error, ENGINE)
            why_not = str(error)
        self.compared_revision = live = app.rollout.live.number
        self._compare_folder(report=False)
        if why_not:
            self.report_trouble(f"policy refused, revision {live} stays: {why_not}")
        elif live != before:
            self.report_trouble(f"policy revision {live} is live")

    def _compare_folder(self, *, report: bool) -> None:
        """Gauge whether the policy folder says what is live; `report` it where it has to wait."""
        from vedette.adapters.policy_engines.regorus.stage import read_bundle

        app = self.app
        try:
            differs = read_bundle(app.settings.policies).digest != app.rollout.live.digest
        except BadPolicy:
            differs = True
        app.metrics.gauge("policy_folder_differs", differs)
        if report and differs and is_folder_waiting(app.store, app.rollout.live):
            self.report_trouble(folder_wait_reason(app.rollout.live))


def build_bank_feed(app: App) -> Callable[[], None]:
    """Return the daemon's feed of the banks: what was ordered since they were fed, or at the start.

    Judges that were taught otherwise are made anew.
    """
    fed = app.banks_position

    def feed_banks() -> None:
        nonlocal fed
        fed = sync_banks(app.banks, app.store, fed)

    def refresh_banks() -> None:
        if (
            app.services.recall.update_banks(feed_banks, order=True)
            and app.commands.curation is not None
        ):
            app.commands.curation.refresh_judges()

    return refresh_banks


def _to_unavailable(error: BaseException) -> BaseException:
    """Return the error itself, or Unavailable where its own class would mean something else."""
    if isinstance(error, Exception) and not isinstance(error, VedetteError):
        return error
    if isinstance(error, Unavailable):
        return error
    what = f"a part of the fleet broke: {type(error).__name__}: {error}"
    broke = Unavailable(what, mend="start it again; what was committed is not lost")
    broke.__cause__ = error
    return broke


def describe_run(daemon: Daemon) -> dict[str, Any]:
    """Return what the daemon's run came to: counts per agent, and three ids to look at next."""
    app = daemon.app
    seconds = (app.services.clock.monotonic_us() - daemon.start_us) / 1e6
    cpu = machine.cpu_s() - daemon.start_cpu_s
    accepted, nobody = app.store.tables.event_counts()
    new = app.metrics.total("events", outcome="accepted")
    agents = {}
    counts = app.store.tables.counts()
    for name in app.services.fleet.agents:
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
        "address": daemon.address,
        "troubles": daemon.troubles[-10:],
        "try_next": app.store.tables.examples(),
    }
