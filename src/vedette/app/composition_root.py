"""The composition root: one fleet made of settings, content and adapters. It alone knows all.

`open_app` takes the store (the runner's lock), so a second runner is refused here, before it has
done anything. What comes out is idle: `vedette.interfaces.daemon.Daemon` sets it to work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from vedette.app.canaries import Canaries
from vedette.app.canary_code import OpenedCode, open_canary_code, stay_open
from vedette.app.model_workers import open_model_pool
from vedette.app.policy_engines import close_stage
from vedette.app.policy_rollout import NoPolicy, open_rollout
from vedette.app.reasoner_plugins import WorkerContext, build_reasoners, close_models
from vedette.app.release_archive import keep_in_store
from vedette.app.releases import Releases, record_start, snapshot_fleet
from vedette.app.remote_workers import add_google_tokens, add_remote_reasoners, close_remote_pools
from vedette.app.start_releases import apply_start_releases
from vedette.app.stores import ledger_key_name, open_store
from vedette.app.task_releases import FormerReleases
from vedette.app.workers import (
    Containment,
    assess_containment,
    build_run_journal,
    build_tool_executor,
    open_pool,
    require_foreign_box,
    require_sandbox,
)
from vedette.domain.agent import Agent, Fleet
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.clock import MachineClock, SystemClock
from vedette.domain.base.connections import ConnectionLimiter, connection_capacity
from vedette.domain.base.disk_errors import convert_disk_errors
from vedette.domain.base.fleet_clock import CLOCK_FILE, FleetClock, Jump
from vedette.domain.base.state_folder import StateIdentity, secure_folder
from vedette.domain.bundle import Bundle
from vedette.domain.display import DISPLAYS_KEY
from vedette.domain.entry import Draft
from vedette.domain.ports.policy_engine import PolicyEngine, PolicyStage
from vedette.domain.ports.reasoner import Reasoner, ToolExecutor
from vedette.domain.stop import StopState
from vedette.engine.calls_in_flight import CallsInFlight
from vedette.engine.ingest import EventIntake
from vedette.engine.key_state import KeyStates
from vedette.engine.kill_switch import reload_stops
from vedette.engine.model_calls import Models
from vedette.engine.scheduler.dispatcher import Dispatcher
from vedette.engine.scheduler.wakeups import jump_entry
from vedette.engine.scheduler.watchdog import Watchdog
from vedette.engine.services import CanaryCode, Services
from vedette.memory.retrieval import Recall
from vedette.memory.training_set import Lessons
from vedette.operations.commands import Commands
from vedette.operations.curation import Curation, sync_banks
from vedette.operations.maintenance import BrokerDeadLetters, Maintenance
from vedette.policy.gateway import Gateway
from vedette.policy.rollout import Rollout

if TYPE_CHECKING:
    from vedette.adapters.reasoners.workers.fork_server_start import ForkServerProcess
    from vedette.adapters.reasoners.workers.supervisor import WorkerPool
    from vedette.adapters.telemetry.prometheus import PrometheusMetrics
    from vedette.app.stores import FleetStore
    from vedette.config.fleet import LoadedFleet
    from vedette.config.settings import Settings
    from vedette.domain.ports.store import Store
    from vedette.store.banks import SqliteBank


@dataclass(slots=True)
class App:
    """One opened fleet, as the composition root wires it. Owns the store until `close`.

    `intake`, `dispatcher` and `services` are the line: the path of every event, from accept to
    the last outcome. What else runs is beside it, and never keeps it waiting.

    `troubles` are what a person should see of how it came up, `identity` the state folder that it
    was opened on. `banks_position` is the entry up to which the
    banks were brought to the ledger.
    """

    settings: Settings
    loaded_fleet: LoadedFleet
    services: Services
    store: FleetStore
    banks: SqliteBank
    metrics: PrometheusMetrics
    commands: Commands
    intake: EventIntake
    dispatcher: Dispatcher
    rollout: Rollout
    releases: Releases
    canaries: Canaries
    former_releases: FormerReleases
    troubles: list[str] = field(default_factory=list)
    pool: WorkerPool | None = None
    model_pool: WorkerPool | None = None
    banks_position: int = 0
    containment: Containment | None = None
    identity: StateIdentity | None = None
    connections: ConnectionLimiter = field(
        default_factory=lambda: ConnectionLimiter(connection_capacity())
    )
    watchdog: Watchdog = field(init=False)

    def __post_init__(self) -> None:
        self.watchdog = Watchdog(
            self.services, self.dispatcher, bound_us=self.settings.stuck_us,
            has_worker=self._has_worker, is_remote=self._is_remote,
        )  # fmt: skip

    def _is_remote(self, agent: str) -> bool:
        return self.settings.deployment.gateway.is_remote(agent)

    @property
    def pools(self) -> list[WorkerPool]:
        """Return the pools of workers that there are."""
        return [pool for pool in (self.pool, self.model_pool) if pool is not None]

    def _has_worker(self, agent: str) -> bool:
        own = {(agent, "judge"), (agent, "model")}
        return not self.pools or any(own & pool.worker_pids.keys() for pool in self.pools)

    async def close(self) -> None:
        """Stop handling, commit what is queued, and let go of the store."""
        await self.dispatcher.close()
        await self.canaries.close()
        await self.former_releases.close()
        await self.rollout.second_opinions.samples.finish(self.store.commands, self.troubles.append)
        close_stage(self.rollout.stage)
        close_remote_pools(self.services.reasoners)
        await close_models(self.services.reasoners)
        self.store.close()
        self.banks.close()
        tools: Any = self.services.tool_executor
        tools.close()
        for pool in self.pools:
            pool.close()
        held: Any = self.services.run_journal
        if held is not None:
            held.close()


async def open_app(
    settings: Settings,
    *,
    clock: MachineClock | None = None,
    reasoners: dict[str, Reasoner] | None = None,
    stage: PolicyStage | None = None,
    second_engine: Callable[[Bundle], PolicyEngine | None] | None = None,
    fork_server: ForkServerProcess | None = None,
) -> App:
    """Wire and open the fleet that `settings` describe; what is given or `fork_server` replaces the
    usual part.

    `stage` takes the embedded engine's place, `second_engine` makes the engine of the second
    opinion.

    The policy folder is tried out and made live if it differs from the live revision; if it is
    refused or cannot be read, the last good revision stays and `App.troubles` says so; without
    one nothing is opened. Raises BadFleet, BadPolicy, StoreBusy, BadStore, and StoreFailed where
    the disk refused something.
    """
    with convert_disk_errors(settings.state):
        return await _open_app(
            settings, clock or SystemClock(), reasoners, stage, second_engine, fork_server
        )


async def _open_app(
    settings: Settings,
    clock: MachineClock,
    reasoners: dict[str, Reasoner] | None,
    stage: PolicyStage | None,
    second_engine: Callable[[Bundle], PolicyEngine | None] | None,
    fork_server: ForkServerProcess | None,
) -> App:
    from vedette.adapters.identity.secrets import register_secret_manager, with_secrets
    from vedette.adapters.telemetry.prometheus import PrometheusMetrics
    from vedette.config.fleet import load_fleet
    from vedette.store.banks import SqliteBank

    register_secret_manager()
    fleet_clock = FleetClock(clock, settings.state / CLOCK_FILE)
    loaded = load_fleet(settings.root, settings, now_us=fleet_clock.now_us())
    fleet = loaded.fleet
    closed = secure_folder(settings.state)
    store = open_store(settings, fleet_clock.now_us)
    jump = _begin_clock(fleet_clock, store)
    metrics, pool, model_pool = PrometheusMetrics(), None, None
    try:
        waiting = apply_start_releases(loaded, settings, store)
        contained = assess_containment(settings, fleet.agents)
        require_sandbox(settings, contained)
        require_foreign_box(contained, fleet.agents)
        snapshot_fleet(loaded, settings.state)
        pool = open_pool(settings, fleet, metrics, fork_server)
        model_pool = None if reasoners else open_model_pool(settings, fleet, metrics)
        banks = SqliteBank(settings.state / "memory.db")
        versions = banks.load(loaded.banks)
        fed = sync_banks(banks, store)
        tools = build_tool_executor(settings, fleet, pool)
        tools = add_google_tokens(settings, with_secrets(tools, settings.targets))
        lessons = Lessons(banks, {} if reasoners else _judge_agents(loaded))
        all_reasoners = reasoners or await build_reasoners(
            WorkerContext(fleet, fleet_clock, metrics, settings, lessons, pool, model_pool, tools)
        )
        all_reasoners = add_remote_reasoners(settings, fleet, all_reasoners, lessons, fleet_clock)
        services = _build_services(
            settings, fleet, store, banks, all_reasoners, fleet_clock, metrics, tools
        )
        services.run_journal = build_run_journal(settings, fleet, pool)
        services.scope_readers = {
            (bank.name, scope): readers
            for bank in loaded.banks
            for scope, readers in bank.permitted_readers.items()
        }
        rollout, troubles = await open_rollout(
            settings, store, services, stage, second_engine, lessons
        )
        store.cluster.adopt(rollout.live.number, services.stops.epoch)
        what = "visit" if settings.store.visit else None
        opened = Draft("store.opened", {"epoch": store.cluster.epoch, "what": what})
        jumped = [] if jump is None or settings.store.visit else [jump_entry(jump)]
        for name in waiting.missing:
            services.stops.pause(name, "release")
        loads = _fleet_loaded_draft(loaded, versions, waiting.missing, settings.store.visit)
        if not settings.store.visit:
            await keep_in_store(store, fleet.agents.values())
        await record_start(services, rollout, lessons, [opened, loads, *jumped])
        await _store_displays(settings, store)
        if not settings.store.visit:
            await store.cluster.announce_agents(fleet.agents)
    except BaseException:
        store.close()
        for each in (pool, model_pool):
            if each is not None:
                each.close()
        raise
    troubles += [*waiting.told, *closed, *banks.remarks]
    if store.loss is not None:
        troubles.append(
            f"{store.loss.sentence}; everything is stopped, and what may have happened "
            "already is in doubt: see docs/guides/restore.md"
        )
    if settings.store.survives != "power-loss":
        troubles.append("[store] survives = kill: a power cut may take the last answered commits")
    dispatcher = Dispatcher(services)
    intake = EventIntake(
        services, dispatcher, max_event_bytes=settings.max_event_bytes, secrecy=settings.secrecy
    )
    services.accept_child = intake.accept_child
    commands = await _commands(settings, services, store, intake, rollout, lessons)
    scopes = frozenset((bank.name, scope) for bank in loaded.banks for scope in bank.scopes)
    missing = dict(waiting.missing)
    releases = Releases(settings, services, lessons, dispatcher, rollout, scopes, missing)
    open_code = partial(open_canary_code, settings, services, lessons)
    canaries = Canaries(releases, open_code)

    async def open_former(made: Agent) -> OpenedCode:
        if reasoners is None:
            return await open_code(made, place=f"former/{made.release[:16]}")
        # What reasons in the place of agents' code does so for every release of them.
        return OpenedCode(CanaryCode(made, reasoners, services.tool_executor), stay_open)

    former = FormerReleases(settings, services, dispatcher, open_former)
    services.task_releases = former
    commands.releases, commands.canaries = releases, canaries
    if not settings.store.visit:
        rollout.load_releases = releases.live_agents
        troubles += await canaries.restore()
    return App(
        settings, loaded, services, store, banks, metrics, commands, intake, dispatcher, rollout,
        releases, canaries, former, troubles, pool, model_pool, fed, contained,
        StateIdentity.of(settings.state),
    )  # fmt: skip


def _begin_clock(clock: FleetClock, store: Store) -> Jump | None:
    """Let fleet time begin after what the ledger saw; return what is to be confirmed."""
    last = store.ledger.entry(store.ledger.last_seq())

    def expires(since_us: int, until_us: int) -> bool:
        ends = [stop.until_us for stop in store.policy.active_stops()]
        place, beside = 0, ""
        while rows := store.runs.holds_page(after=place, beside=beside, limit=1000):
            ends += [row.until_us for row in rows if row.waits == "approval"]
            place, beside = rows[-1].seq, rows[-1].id
        return any(since_us < end_us <= until_us for end_us in ends)

    return clock.begin(int(orjson.loads(last[1])["at"]) if last else 0, expires)


async def _store_displays(settings: Settings, store: Store) -> None:
    """Keep with the record what people are shown of events, for all who read it or answer."""
    displays = canonical_json([display.to_json() for display in settings.displays]).decode()
    if displays != (store.meta(DISPLAYS_KEY) or "[]"):
        await store.commands.set_meta(DISPLAYS_KEY, displays)


async def _commands(
    settings: Settings,
    services: Services,
    store: FleetStore,
    intake: EventIntake,
    rollout: Rollout,
    lessons: Lessons,
) -> Commands:
    """Make what carries out people's orders; a trimming that was cut short is finished first."""
    from vedette.adapters.policy_engines.regorus.stage import read_bundle
    from vedette.adapters.signing_keys import KeyFolder

    keys = KeyFolder(settings.state, ledger_key_name(settings.fleet))
    upkeep = Maintenance(services, store.maintenance, keys, _find_dead_letters(settings))
    await upkeep.finish_trimming()
    commands = Commands(services, intake, rollout, read_bundle, upkeep, settings.policies)
    commands.curation = Curation(services, lessons)
    services.recall.rebuild_banks = commands.curation.synchronize
    if not store.cluster.multi_worker:  # else who follows the other workers does it
        services.catch_up_policy = rollout.retry_catch_up
    upkeep.unlearn = commands.curation.unlearn
    return commands


def _find_dead_letters(settings: Settings) -> BrokerDeadLetters | None:
    """Return what publishes a broker's dead letters again; nothing is loaded without a broker."""
    from vedette.config.plugins import plugins
    from vedette.domain.ports.plugin import SOURCES

    found = (plugins(SOURCES).get(plan.kind) for plan in settings.sources)
    letters = (plugin.dead_letters(settings.sources) for plugin in found)
    return next((one for one in letters if one is not None), None)


def _build_services(
    settings: Settings,
    fleet: Fleet,
    store: Store,
    banks: SqliteBank,
    reasoners: dict[str, Reasoner],
    clock: FleetClock,
    metrics: PrometheusMetrics,
    tools: ToolExecutor,
) -> Services:
    """Make the engine's services, with the stops and counts that the store knows, and no policy."""
    gateway = Gateway(NoPolicy(), 0)
    keys, calls = KeyStates(store.judge_states, store.runs), CallsInFlight(clock)
    services = Services(
        fleet=fleet,
        store=store,
        gateway=gateway,
        recall=Recall(banks, gateway),
        reasoners=reasoners,
        tool_executor=tools,
        clock=clock,
        stops=StopState(),
        metrics=metrics,
        targets=settings.targets,
        keys=keys,
        calls=calls,
        models=Models({name: plan.model for name, plan in settings.models.items()}),
    )
    store.cluster.watch_calls(calls.count_before, calls.keys_with_calls)
    reload_stops(services)
    if not store.cluster.multi_worker:
        # There is one lease, and this worker holds it from here on.
        calls.note_lease(store.cluster.epoch, clock.monotonic_us())
    calls.start_seq = store.ledger.last_seq()
    services.gateway.counts.read(store.spend.by_minute, clock.now_us())
    # What asks have set aside is in the totals alone.
    services.gateway.counts.raise_to_totals(store.spend.totals(), clock.now_us())
    return services


def _judge_agents(loaded: LoadedFleet) -> dict[str, Agent]:
    """Return the agents that have a judge: nobody else is made of memories."""
    agents = loaded.fleet.agents
    return {name: agent for name, agent in agents.items() if agent.has_judge}


def _fleet_loaded_draft(
    loaded: LoadedFleet, versions: Any, missing: Mapping[str, str], visit: bool
) -> Draft:
    # One whose release is not here is not replaced by what lies in its folder.
    releases = {agent.name: agent.release for agent in loaded.fleet.agents.values()}
    releases.update(missing)
    # Who comes for one command decides no release (see `vedette.app.releases`).
    what = "visit" if visit else None
    return Draft("fleet.loaded", {"releases": releases, "banks": dict(versions), "what": what})
