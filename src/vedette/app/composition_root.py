"""Wiring: makes one fleet out of settings, content and adapters. The only place that knows all.

`open_app` takes the store (the runner's lock), so a second runner is refused here, before it has
done anything. What comes out is idle: `vedette.interfaces.daemon.run_app` sets it to work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from vedette.app.policy_engines import (
    close_stage,
    engine_reason,
    policy_stage,
    second_engine_maker,
    wasm_trouble,
)
from vedette.app.policy_publication import build_distributor
from vedette.app.reasoner_plugins import WorkerContext, build_reasoners
from vedette.app.releases import Releases, record_start, snapshot_fleet
from vedette.app.remote_workers import add_google_tokens, add_remote_reasoners, close_remote_pools
from vedette.app.stores import open_reader, open_store, store_exists
from vedette.app.workers import (
    Containment,
    assess_containment,
    build_run_journal,
    build_tool_executor,
    open_pool,
    require_sandbox,
)
from vedette.domain.agent import Agent, Fleet
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.clock import Clock, MachineClock, SystemClock
from vedette.domain.base.connections import ConnectionLimiter, connection_capacity
from vedette.domain.base.disk_errors import convert_disk_errors
from vedette.domain.base.errors import BadPolicy
from vedette.domain.base.fleet_clock import CLOCK_FILE, FleetClock, Jump
from vedette.domain.base.state_folder import StateIdentity, secure_folder
from vedette.domain.budget import DAY_US, MINUTE_US, BudgetPolicy
from vedette.domain.bundle import Bundle, Finding, Revision, find_bundle
from vedette.domain.display import DISPLAYS_KEY
from vedette.domain.entry import Draft
from vedette.domain.identity import ENGINE
from vedette.domain.ports.policy_engine import PolicyEngine, PolicyStage
from vedette.domain.ports.reasoner import Reasoner, ToolExecutor
from vedette.domain.spend import window_start
from vedette.domain.stop import StopState
from vedette.engine.calls_in_flight import CallsInFlight
from vedette.engine.ingest import EventIntake
from vedette.engine.key_state import KeyStates
from vedette.engine.kill_switch import reload_stops
from vedette.engine.reservation import find_budget_gap, pause_unbounded_agents
from vedette.engine.scheduler.dispatcher import Dispatcher
from vedette.engine.scheduler.wakeups import jump_entry
from vedette.engine.scheduler.watchdog import Watchdog
from vedette.engine.services import Services
from vedette.memory.retrieval import Recall
from vedette.memory.training_set import Lessons, ReadableScopes
from vedette.operations.commands import Commands
from vedette.operations.curation import Curation, sync_banks
from vedette.operations.maintenance import BrokerDeadLetters, Maintenance
from vedette.policy.folder import offer_folder, remember_folder
from vedette.policy.gateway import Gateway
from vedette.policy.loosening import Loosening, find_loosening, find_looser_decisions
from vedette.policy.rollout import PublishRequest, Rollout
from vedette.policy.second_opinion import SecondOpinion, SecondOpinionFactory

if TYPE_CHECKING:
    from vedette.adapters.reasoners.workers.fork_server_start import ForkServerProcess
    from vedette.adapters.reasoners.workers.supervisor import WorkerPool
    from vedette.adapters.telemetry.prometheus import PrometheusMetrics
    from vedette.config.fleet import LoadedFleet
    from vedette.config.settings import Settings
    from vedette.store.banks import SqliteBank
    from vedette.store.store import SqlStore


# How many recorded questions are answered again to show what a bundle loosens.
EVIDENCE_LIMIT = 200


@dataclass(slots=True)
class App:
    """One opened fleet. Owns the store until `close`.

    `troubles` are what a person should see of how it came up, `identity` the state folder that it
    was opened on. `banks_position` is the entry up to which the
    banks were brought to the ledger.
    """

    settings: Settings
    loaded_fleet: LoadedFleet
    services: Services
    store: SqlStore
    banks: SqliteBank
    metrics: PrometheusMetrics
    commands: Commands
    intake: EventIntake
    dispatcher: Dispatcher
    rollout: Rollout
    releases: Releases
    troubles: list[str] = field(default_factory=list)
    pool: WorkerPool | None = None
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

    def _has_worker(self, agent: str) -> bool:
        return self.pool is None or (agent, "judge") in self.pool.worker_pids

    async def close(self) -> None:
        """Stop handling, commit what is queued, and let go of the store."""
        await self.dispatcher.close()
        await self.rollout.second_opinions.samples.finish(self.store, self.troubles.append)
        close_stage(self.rollout.stage)
        close_remote_pools(self.services.reasoners)
        self.store.close()
        self.banks.close()
        tools: Any = self.services.tool_executor
        tools.close()
        if self.pool is not None:
            self.pool.close()
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
    """Open the fleet that `settings` describe; what is given or `fork_server` replaces the usual
    part.

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
    fleet, key_name = loaded.fleet, f"vedette/{loaded.fleet.name}"
    contained = assess_containment(settings, fleet.agents)
    require_sandbox(settings, contained)
    closed = secure_folder(settings.state)
    store = _open_locked_store(settings, fleet.name, key_name, fleet_clock)
    jump = _begin_clock(fleet_clock, store)
    metrics, pool = PrometheusMetrics(), None
    try:
        snapshot_fleet(loaded, settings.state)
        pool = open_pool(settings, fleet, metrics, fork_server)
        banks = SqliteBank(settings.state / "memory.db")
        versions = banks.load(loaded.banks)
        fed = sync_banks(banks, store)
        tools = build_tool_executor(fleet, pool, settings.targets)
        tools = add_google_tokens(settings, with_secrets(tools, settings.targets))
        lessons = Lessons(banks, {} if reasoners else _judge_agents(loaded))
        all_reasoners = reasoners or await build_reasoners(
            WorkerContext(fleet, fleet_clock, metrics, settings, lessons, pool, tools)
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
        rollout, troubles = await _open_rollout(
            settings, store, services, stage, second_engine, lessons
        )
        store.adopt(rollout.live.number, services.stops.epoch)
        what = "visit" if settings.store.visit else None
        opened = Draft("store.opened", {"epoch": store.epoch, "what": what})
        jumped = [] if jump is None or settings.store.visit else [jump_entry(jump)]
        loads = _fleet_loaded_draft(loaded, versions, settings.store.visit)
        await record_start(services, rollout, lessons, [opened, loads, *jumped])
        await _store_displays(settings, store)
        if not settings.store.visit:
            await store.announce_agents(fleet.agents)
    except BaseException:
        store.close()
        if pool is not None:
            pool.close()
        raise
    troubles += [*closed, *store.remarks, *banks.remarks]
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
    commands = await _commands(settings, services, store, key_name, intake, rollout, lessons)
    scopes = frozenset((bank.name, scope) for bank in loaded.banks for scope in bank.scopes)
    releases = Releases(settings, services, lessons, dispatcher, rollout, scopes)
    commands.releases = releases
    if not settings.store.visit:
        rollout.load_releases = releases.live_agents
    return App(
        settings, loaded, services, store, banks, metrics, commands, intake, dispatcher, rollout,
        releases, troubles, pool, fed, contained, StateIdentity.of(settings.state),
    )  # fmt: skip


def _begin_clock(clock: FleetClock, store: SqlStore) -> Jump | None:
    """Let fleet time begin after what the ledger saw; return what is to be confirmed."""
    last = store.entry(store.last_seq())

    def expires(since_us: int, until_us: int) -> bool:
        ends = [stop.until_us for stop in store.active_stops()]
        place, beside = 0, ""
        while rows := store.holds_page(after=place, beside=beside, limit=1000):
            ends += [row.until_us for row in rows if row.waits == "approval"]
            place, beside = rows[-1].seq, rows[-1].id
        return any(since_us < end_us <= until_us for end_us in ends)

    return clock.begin(int(orjson.loads(last[1])["at"]) if last else 0, expires)


async def _store_displays(settings: Settings, store: SqlStore) -> None:
    """Keep with the record what people are shown of events, for all who read it or answer."""
    displays = canonical_json([display.to_json() for display in settings.displays]).decode()
    if displays != (store.meta(DISPLAYS_KEY) or "[]"):
        await store.remember(DISPLAYS_KEY, displays)


async def _commands(
    settings: Settings,
    services: Services,
    store: SqlStore,
    key_name: str,
    intake: EventIntake,
    rollout: Rollout,
    lessons: Lessons,
) -> Commands:
    """Make what carries out people's orders; a trimming that was cut short is finished first."""
    from vedette.adapters.policy_engines.regorus.stage import read_bundle
    from vedette.adapters.signing_keys import KeyFolder

    upkeep = Maintenance(
        services, store, KeyFolder(settings.state, key_name), _find_dead_letters(settings)
    )
    await upkeep.finish_trimming()
    commands = Commands(services, intake, rollout, read_bundle, upkeep, settings.policies)
    commands.curation = Curation(services, lessons)
    services.recall.rebuild_banks = commands.curation.synchronize
    if not store.multi_worker:  # else who follows the other workers does it
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


def _open_locked_store(settings: Settings, fleet: str, key_name: str, clock: Clock) -> SqlStore:
    """Open the store with the key that signs its ledger. Raises StoreBusy, BadStore."""
    from vedette.adapters.signing_keys import open_ledger_key
    from vedette.store.runner_lock import LOCK_FILE, acquire_lock

    # Under the lock: a runner that rotates the key now must not have it mended under its hands.
    # The store takes the lock again, and refuses a key that was rotated away in between.
    with acquire_lock(settings.state / LOCK_FILE):
        key = open_ledger_key(settings.state, key_name, lambda: key_in_force(settings))
    return open_store(settings, fleet=fleet, key=key, key_name=key_name, now_us=clock.now_us)


def _build_services(
    settings: Settings,
    fleet: Fleet,
    store: SqlStore,
    banks: SqliteBank,
    reasoners: dict[str, Reasoner],
    clock: FleetClock,
    metrics: PrometheusMetrics,
    tools: ToolExecutor,
) -> Services:
    """Make the engine's services, with the stops and counts that the store knows, and no policy."""
    gateway = Gateway(_NoPolicy(), 0)
    keys, calls = KeyStates(store), CallsInFlight(clock)
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
    )
    store.watch_calls(calls.count_before, calls.keys_with_calls)
    reload_stops(services)
    if not store.multi_worker:
        # There is one lease, and this worker holds it from here on.
        calls.note_lease(store.epoch, clock.monotonic_us())
    calls.start_seq = store.last_seq()
    _restore_counts(services, store)
    return services


class _NoPolicy:
    """What is live before a first bundle is: nothing is decided, so everything is denied."""

    name = "none"
    digest = ""

    def decide(self, request: bytes) -> object:
        return None


def _judge_agents(loaded: LoadedFleet) -> dict[str, Agent]:
    """Return the agents that have a judge: nobody else is made of memories."""
    agents = loaded.fleet.agents
    return {name: agent for name, agent in agents.items() if agent.has_judge}


async def _open_rollout(
    settings: Settings,
    store: SqlStore,
    services: Services,
    embedded_stage: PolicyStage | None,
    second_engine: Callable[[Bundle], PolicyEngine | None] | None,
    lessons: Lessons,
) -> tuple[Rollout, list[str]]:
    """Take up the live revision, then the folder if it says something else.

    Returns the troubles there were beside it.
    """
    from vedette.adapters.policy_engines.regorus.stage import SubprocessStage
    from vedette.policy.bundle_data import mount

    embedded = embedded_stage or SubprocessStage()
    stage = policy_stage(settings, embedded, services.metrics, store)
    load = second_engine or second_engine_maker(settings, stage, embedded)
    opinions = SecondOpinionFactory(
        load, mount, services.metrics, settings.deployment.policy.sample
    )
    prepared: list[ReadableScopes] = []

    def prepare(engine: PolicyEngine, number: int) -> list[Draft]:
        gate = Gateway(engine, number, counts=services.gateway.counts)
        readable, drafts = lessons.decide_scopes(gate, services.clock.now_us())
        prepared[:] = [readable]
        return drafts

    def admits(bundle: Bundle, agents: Mapping[str, Agent]) -> list[Finding]:
        # Who is unbounded already begins nothing; that keeps no other mend of the policy back.
        looked_at = {
            name: one
            for name, one in agents.items()
            if find_budget_gap(services.budgets, one) is None
        }
        return read_bundle_budgets(bundle.files, looked_at)[1]

    def swap(engine: PolicyEngine, second: SecondOpinion, live: Revision) -> None:
        services.gateway.swap(engine, live.number, second)
        rollout.engine_reason = engine_reason(stage)  # of the bundle loaded last: this one
        opinions.live = second
        if prepared:
            for agent in lessons.adopt(prepared.pop(), live.number):
                judges: Any = services.reasoners["judge"]
                judges.renew(agent)
        services.registry, services.budgets = read_engine_data(store, live.digest)
        pause_unbounded_agents(services)
        services.metrics.gauge("policy_revision", live.number)
        services.metrics.gauge("policy_engine_wasm", int(engine.name.startswith("opa wasm")))

    number, digest = store.live_revision()
    rollout = Rollout(
        store,
        stage,
        services.clock,
        Revision(number, digest),
        prepare,
        swap,
        services.calls.count_before,
        services.metrics,
        opinions,
        asyncio.Lock(),
        lambda: (services.fleet.agents, None),
        admits,
        build_distributor(settings, store, services.clock.now_us),
        lambda bundle: find_live_loosening(store, bundle),
        lambda engine: evidence(store, services.gateway.engine, engine),
    )
    if number:
        bundle = await _live_bundle(settings, store, digest)
        engine = stage.load(bundle)
        swap(engine, await opinions.create_live(bundle), rollout.live)
    troubles = await _offer_policy_folder(settings, store, rollout)
    if (trouble := wasm_trouble(rollout.engine_reason)) is not None:
        troubles.append(trouble)
    if opinions.live is not None and opinions.live.is_missing:
        troubles.append(f"the second policy engine is {opinions.live.name} (tried each minute)")
    return rollout, troubles


async def _live_bundle(settings: Settings, store: SqlStore, digest: str) -> Bundle:
    """Return the live bundle as it was recorded.

    Where its row was edited or is gone the policy folder's bytes make it right again, if they are
    that policy. Raises BadPolicy if they are not.
    """
    from vedette.adapters.policy_engines.regorus.stage import read_bundle

    recorded = find_bundle(store.bundle_files, digest)
    if recorded is not None:
        return recorded
    what = f"the recorded bundle {digest[:12]}, which is live, was changed or is gone"
    mend = "bring exactly that policy back into the policy folder, or the state from a backup"
    try:
        found = read_bundle(settings.policies)
    except BadPolicy as error:
        raise BadPolicy(what, mend=mend) from error
    if found.digest != digest:
        raise BadPolicy(what, mend=mend)
    await store.append_entries([], found)
    return found


async def _offer_policy_folder(settings: Settings, store: SqlStore, rollout: Rollout) -> list[str]:
    """Offer the policy folder if it says something new; return why it was refused, if it was.

    Raises BadPolicy if no revision is live then.
    """
    from vedette.adapters.policy_engines.regorus.stage import read_bundle

    stays = f"policy refused, revision {rollout.live.number} stays"
    try:
        bundle = read_bundle(settings.policies)
    except BadPolicy as error:
        if not rollout.live.number:
            raise
        await rollout.record_refusal(error, ENGINE)
        return [f"{stays}: {error}"]
    if rollout.live.number and settings.store.visit:
        # Who comes for one command publishes under that person's name, or nothing: the next `run`
        # takes up what a person left in the folder.
        return []
    wish = PublishRequest(ENGINE, "found in the policy folder at start")
    if rollout.live.number:
        why_not = await offer_folder(store, rollout, bundle, wish)
        return [f"{stays}: {why_not}"] if why_not else []
    published = await rollout.publish(bundle, wish)
    if published.findings:
        first = published.findings[0]
        raise BadPolicy(first.what, where=f"{first.file}:{first.line}", mend=first.mend or None)
    await remember_folder(store, bundle.digest, rollout.live)
    return []


def find_live_loosening(store: SqlStore, bundle: Bundle) -> Loosening:
    """Return what a bundle loosens against the live one; nothing is loosened by the first."""
    from vedette.policy.bundle_data import mount

    number, digest = store.live_revision()
    if not number:
        return Loosening()
    live = find_bundle(store.bundle_files, digest)
    if live is None:
        changes = ("the live policy's bytes are not in the store",)
        return Loosening(changes, bundle_digests=(digest, bundle.digest))
    return find_loosening(live, bundle, mount)


def evidence(store: SqlStore, live: PolicyEngine, other: PolicyEngine) -> tuple[str, ...]:
    """Say how the last recorded questions would be answered under another bundle."""
    requests = []
    for seq, _ in store.entries_page(
        {"kind": "action.decided"}, before=None, after=None, limit=EVIDENCE_LIMIT
    ):
        found = store.entry(seq)
        if found is not None and found[2] is not None:
            requests.append(canonical_json(orjson.loads(found[2])["question"]))
    return find_looser_decisions(live, other, requests)


def key_in_force(settings: Settings) -> str | None:
    """Return the verifier key that the store's last rotation named, if there is such a store."""
    if not store_exists(settings):
        return None
    store = open_reader(settings)
    try:
        return store.key_in_force()
    finally:
        store.close()


def read_engine_data(store: SqlStore, digest: str) -> tuple[dict[str, Any], BudgetPolicy]:
    """Return what an admitted bundle carries for the engine: the registry, and the budgets."""
    from vedette.policy.budget_data import parse_budgets
    from vedette.policy.bundle_data import mount

    data = mount(store.bundle_files(digest) or {})
    found = data.get("registry")
    return found if isinstance(found, dict) else {}, parse_budgets(data.get("budgets"))


def read_bundle_budgets(
    files: Mapping[str, bytes], agents: Mapping[str, Agent]
) -> tuple[BudgetPolicy, list[Finding]]:
    """Return the limits and prices of a bundle (policies/budgets/data.yaml), and what is wrong."""
    from vedette.policy.budget_data import parse_budgets
    from vedette.policy.bundle_data import mount

    file = "budgets/data.yaml"
    try:
        found = parse_budgets(mount(files).get("budgets"))
    except ValueError as error:
        return BudgetPolicy(), [Finding(file, 1, str(error), "see docs/design/budgets.md")]
    return found, [
        Finding(file, 1, f"{agent.name}: {gap}", "mend its agent.yaml, or the limits here")
        for agent in agents.values()
        if (gap := find_budget_gap(found, agent)) is not None
    ]


def _restore_counts(services: Services, store: SqlStore) -> None:
    now = services.clock.now_us()
    for agent, unit, minute, amount in store.spend_by_minute(
        window_start(now, DAY_US) // MINUTE_US
    ):
        services.gateway.counts.add(agent, unit, minute * MINUTE_US, amount)


def _fleet_loaded_draft(loaded: LoadedFleet, versions: Any, visit: bool) -> Draft:
    releases = {agent.name: agent.release for agent in loaded.fleet.agents.values()}
    # Who comes for one command decides no release (see `vedette.app.releases`).
    what = "visit" if visit else None
    return Draft("fleet.loaded", {"releases": releases, "banks": dict(versions), "what": what})
