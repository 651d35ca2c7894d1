"""Wiring: makes one fleet out of settings, content and adapters. The only place that knows all.

`open_app` takes the store (the runner's lock), so a second runner is refused here, before it has
done anything. What comes out is idle: `vedette.interfaces.daemon.run_app` sets it to work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from vedette.app.policy_engines import (
    close_stage,
    policy_stage,
    reason_of,
    second_maker,
    trouble_of,
)
from vedette.app.policy_publication import shelving
from vedette.app.releases import Releases, keep_all, record_start
from vedette.app.remote_workers import apart, close_apart, with_tokens
from vedette.app.stores import is_there, open_reading, open_store
from vedette.app.workers import (
    Containment,
    containment,
    in_hand,
    judges,
    open_pool,
    performer,
    require_box,
    root_agents,
)
from vedette.domain.agent import Agent, Fleet
from vedette.domain.base.canonical import canonical
from vedette.domain.base.clock import Clock, MachineClock, SystemClock
from vedette.domain.base.connections import Connections, room
from vedette.domain.base.dataclass import dataclass
from vedette.domain.base.disk_errors import told_of_disk
from vedette.domain.base.errors import BadPolicy
from vedette.domain.base.fleet_clock import FILE, FleetClock, Jump
from vedette.domain.base.state_folder import StateIdentity, secure
from vedette.domain.budget import DAY_US, MINUTE_US, Budgets, read_budgets, window_start
from vedette.domain.bundle import Bundle, Revision, find_bundle
from vedette.domain.display import DISPLAYS
from vedette.domain.entry import Draft
from vedette.domain.identity import ENGINE
from vedette.domain.ports import Finding, Performer, PolicyEngine, PolicyStage, Reasoner
from vedette.domain.stop import Stops
from vedette.engine.ingest import LineIntake
from vedette.engine.kill_switch import jump_entry, take_over
from vedette.engine.reservation import gap_of, pause_unbounded
from vedette.engine.scheduler.dispatcher import Dispatcher
from vedette.engine.scheduler.watchdog import Watchdog
from vedette.engine.services import Line
from vedette.memory.retrieval import Recall
from vedette.memory.training_set import Lessons, Readable
from vedette.operations.commands import Commands
from vedette.operations.curation import Curating, feed
from vedette.operations.maintenance import Letters, Upkeep
from vedette.policy.folder import offer_folder, remember_folder
from vedette.policy.gateway import Gateway
from vedette.policy.loosening import Loosening, loosened_decisions, loosening
from vedette.policy.rollout import Rollout, Wish
from vedette.policy.second_opinion import SecondOpinion, SecondOpinions

if TYPE_CHECKING:
    from vedette.adapters.reasoners.workers.fork_server_start import Begun
    from vedette.adapters.reasoners.workers.supervisor import WorkerPool
    from vedette.adapters.telemetry.prometheus import PrometheusMetrics
    from vedette.config import Loaded, Settings
    from vedette.store.banks import SqliteBank
    from vedette.store.store import SqlStore


# How many recorded questions are answered again to show what a bundle loosens.
RETRIED = 200


@dataclass(slots=True)
class App:
    """One opened fleet. Owns the store until `close`.

    `troubles` are what a person should see of how it came up, `identity` the state folder that it
    was opened on. `fed` is the entry up to which the
    banks were brought to the ledger.
    """

    settings: Settings
    loaded: Loaded
    line: Line
    store: SqlStore
    banks: SqliteBank
    metrics: PrometheusMetrics
    commands: Commands
    intake: LineIntake
    dispatcher: Dispatcher
    rollout: Rollout
    releases: Releases
    troubles: list[str] = field(default_factory=list)
    pool: WorkerPool | None = None
    fed: int = 0
    containment: Containment | None = None
    identity: StateIdentity | None = None
    connections: Connections = field(default_factory=lambda: Connections(room()))
    watchdog: Watchdog = field(init=False)

    def __post_init__(self) -> None:
        self.watchdog = Watchdog(
            self.line, self.dispatcher, bound_us=self.settings.stuck_us,
            has_worker=self._has_worker, far=self._is_far,
        )  # fmt: skip

    def _is_far(self, agent: str) -> bool:
        return self.settings.edges.gateway.remote(agent)

    def _has_worker(self, agent: str) -> bool:
        return self.pool is None or (agent, "judge") in self.pool.workers

    async def close(self) -> None:
        """Stop handling, commit what is queued, and let go of the store."""
        await self.dispatcher.close()
        await self.rollout.opinions.samples.finish(self.store, self.troubles.append)
        close_stage(self.rollout.stage)
        close_apart(self.line.reasoners)
        self.store.close()
        self.banks.close()
        hands: Any = self.line.performer
        hands.close()
        if self.pool is not None:
            self.pool.close()
        held: Any = self.line.in_hand
        if held is not None:
            held.close()


async def open_app(
    settings: Settings,
    *,
    clock: MachineClock | None = None,
    reasoners: dict[str, Reasoner] | None = None,
    stage: PolicyStage | None = None,
    second: Callable[[Bundle], PolicyEngine | None] | None = None,
    begun: Begun | None = None,
) -> App:
    """Open the fleet that `settings` describe; what is given or `begun` replaces the usual part.

    `stage` takes the embedded engine's place, `second` makes the engine of the second opinion.

    The policy folder is tried out and made live if it differs from the live revision; if it is
    refused or cannot be read, the last good revision stays and `App.troubles` says so; without
    one nothing is opened. Raises BadFleet, BadPolicy, StoreBusy, BadStore, and StoreFailed where
    the disk refused something.
    """
    with told_of_disk(settings.state):
        return await _open_app(settings, clock or SystemClock(), reasoners, stage, second, begun)


async def _open_app(
    settings: Settings,
    clock: MachineClock,
    reasoners: dict[str, Reasoner] | None,
    stage: PolicyStage | None,
    second: Callable[[Bundle], PolicyEngine | None] | None,
    begun: Begun | None,
) -> App:
    from vedette.adapters.identity.secrets import wire, with_secrets
    from vedette.adapters.telemetry.prometheus import PrometheusMetrics
    from vedette.config import load_fleet
    from vedette.store.banks import SqliteBank

    wire()
    time = FleetClock(clock, settings.state / FILE)
    loaded = load_fleet(settings.root, settings, now_us=time.now_us())
    fleet, key_name = loaded.fleet, f"vedette/{loaded.fleet.name}"
    contained = containment(settings, fleet.agents)
    require_box(settings, contained)
    closed = secure(settings.state)
    store = _own_store(settings, fleet.name, key_name, time)
    jump = _begin_clock(time, store)
    metrics, pool = PrometheusMetrics(), None
    try:
        keep_all(loaded, settings.state)
        pool = open_pool(settings, fleet, metrics, begun)
        banks = SqliteBank(settings.state / "memory.db")
        versions = banks.load(loaded.banks)
        fed = feed(banks, store)
        hands = performer(fleet, pool, settings.targets)
        hands = with_tokens(settings, with_secrets(hands, settings.targets))
        lessons = Lessons(banks, {} if reasoners else _judged(loaded))
        thinking = reasoners or await _reasoners(settings, loaded, lessons, time, pool, hands)
        thinking = apart(settings, fleet, thinking, lessons, time)
        line = _line(settings, fleet, store, banks, thinking, time, metrics, hands)
        line.in_hand = in_hand(settings, fleet, pool)
        line.scope_readers = {
            (bank.name, scope): readers
            for bank in loaded.banks
            for scope, readers in bank.permitted_readers.items()
        }
        rollout, troubles = await _roll_out(settings, store, line, stage, second, lessons)
        store.adopt(rollout.live.number, line.stops.epoch)
        what = "visit" if settings.store.visit else None
        opened = Draft("store.opened", {"epoch": store.epoch, "what": what})
        jumped = [] if jump is None or settings.store.visit else [jump_entry(jump)]
        loads = _loaded(loaded, versions, settings.store.visit)
        await record_start(line, rollout, lessons, [opened, loads, *jumped])
        await _keep_displays(settings, store)
        if not settings.store.visit:
            await store.tell_agents(fleet.agents)
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
    dispatcher = Dispatcher(line)
    intake = LineIntake(
        line, dispatcher, max_event_bytes=settings.max_event_bytes, secrecy=settings.secrecy
    )
    commands = await _commands(settings, line, store, key_name, intake, rollout, lessons)
    scopes = frozenset((bank.name, scope) for bank in loaded.banks for scope in bank.scopes)
    releases = Releases(settings, line, lessons, dispatcher, rollout, scopes)
    commands.releases = releases
    if not settings.store.visit:
        rollout.released = releases.live
    return App(
        settings, loaded, line, store, banks, metrics, commands, intake, dispatcher, rollout,
        releases, troubles, pool, fed, contained, StateIdentity.of(settings.state),
    )  # fmt: skip


def _begin_clock(clock: FleetClock, store: SqlStore) -> Jump | None:
    """Let fleet time begin after what the ledger saw; return what is to be confirmed."""
    last = store.entry(store.head())

    def expires(since_us: int, until_us: int) -> bool:
        ends = [stop.until_us for stop in store.stops_set()]
        place, beside = 0, ""
        while rows := store.holds_page(after=place, beside=beside, limit=1000):
            ends += [row.until_us for row in rows if row.waits == "approval"]
            place, beside = rows[-1].seq, rows[-1].id
        return any(since_us < end_us <= until_us for end_us in ends)

    return clock.begin(int(orjson.loads(last[1])["at"]) if last else 0, expires)


async def _keep_displays(settings: Settings, store: SqlStore) -> None:
    """Keep with the record what people are shown of events, for all who read it or answer."""
    told = canonical([display.to_json() for display in settings.displays]).decode()
    if told != (store.meta(DISPLAYS) or "[]"):
        await store.remember(DISPLAYS, told)


async def _commands(
    settings: Settings,
    line: Line,
    store: SqlStore,
    key_name: str,
    intake: LineIntake,
    rollout: Rollout,
    lessons: Lessons,
) -> Commands:
    """Make what carries out people's orders; a trimming that was cut short is finished first."""
    from vedette.adapters.policy_engines.regorus.stage import read_bundle
    from vedette.adapters.signing_keys import KeyFolder

    upkeep = Upkeep(line, store, KeyFolder(settings.state, key_name), _letters(settings))
    await upkeep.finish_trimming()
    commands = Commands(line, intake, rollout, read_bundle, upkeep, settings.policies)
    commands.curating = Curating(line, lessons)
    line.recall.bring_up = commands.curating.bring_up
    if not store.several:  # else who follows the other workers does it
        line.catch_up = rollout.retry
    upkeep.unlearn = commands.curating.unlearn
    return commands


def _letters(settings: Settings) -> Letters | None:
    """Return what publishes a broker's dead letters again; nothing is loaded without a broker."""
    from vedette.config.plugins import plugins
    from vedette.domain.ports.plugin import SOURCES

    found = (plugins(SOURCES).get(plan.kind) for plan in settings.sources)
    letters = (plugin.dead_letters(settings.sources) for plugin in found)
    return next((one for one in letters if one is not None), None)


def _own_store(settings: Settings, fleet: str, key_name: str, clock: Clock) -> SqlStore:
    """Open the store with the key that signs its ledger. Raises StoreBusy, BadStore."""
    from vedette.adapters.signing_keys import ledger_key
    from vedette.store.runner_lock import LOCK, own

    # Under the lock: a runner that rotates the key now must not have it mended under its hands.
    # The store takes the lock again, and refuses a key that was rotated away in between.
    with own(settings.state / LOCK):
        key = ledger_key(settings.state, key_name, lambda: key_in_force(settings))
    return open_store(settings, fleet=fleet, key=key, key_name=key_name, now_us=clock.now_us)


def _line(
    settings: Settings,
    fleet: Fleet,
    store: SqlStore,
    banks: SqliteBank,
    reasoners: dict[str, Reasoner],
    clock: FleetClock,
    metrics: PrometheusMetrics,
    hands: Performer,
) -> Line:
    """Make the line, with the stops and the counts that the store knows; no policy is live yet."""
    gateway = Gateway(_NoPolicy(), 0)
    line = Line(
        fleet=fleet,
        store=store,
        gateway=gateway,
        recall=Recall(banks, gateway),
        reasoners=reasoners,
        performer=hands,
        clock=clock,
        stops=Stops(),
        metrics=metrics,
        targets=settings.targets,
    )
    store.watch(line.in_flight_before, line.keys_calling)
    take_over(line)
    if not store.several:
        # There is one lease, and this worker holds it from here on.
        line.quiet.hold(store.epoch, clock.monotonic_us())
    line.since = store.head()
    _restore_counts(line, store)
    return line


class _NoPolicy:
    """What is live before a first bundle is: nothing is decided, so everything is denied."""

    name = "none"
    digest = ""

    def decide(self, question: bytes) -> object:
        return None


def _judged(loaded: Loaded) -> dict[str, Agent]:
    """Return the agents that have a judge: nobody else is made of memories."""
    agents = loaded.fleet.agents
    return {name: agent for name, agent in agents.items() if agent.reasoner == "judge"}


async def _reasoners(
    settings: Settings,
    loaded: Loaded,
    lessons: Lessons,
    clock: Clock,
    pool: WorkerPool | None,
    hands: Any,
) -> dict[str, Reasoner]:
    fleet = loaded.fleet
    prepare = hands.prepare if pool is not None else None
    found: dict[str, Reasoner] = {"judge": judges(fleet, lessons, clock, pool, prepare)}
    folders = {
        agent.name: Path(agent.folder) for agent in fleet.agents.values() if agent.reasoner == "adk"
    }
    if folders:
        from vedette.adapters.reasoners.adk.reasoner import AdkReasoner

        bounds = {
            agent.name: (agent.budget.input_tokens_per_call, agent.budget.output_tokens_per_call)
            for agent in fleet.agents.values()
        }
        releases = {name: fleet.agents[name].release for name in folders}
        if pool is None:
            found["adk"] = AdkReasoner(folders, bounds=bounds, releases=releases)
        else:
            found["adk"] = await AdkReasoner.of_workers(
                folders, root_agents(settings), bounds=bounds, releases=releases
            )
    return found


async def _roll_out(
    settings: Settings,
    store: SqlStore,
    line: Line,
    given: PolicyStage | None,
    second: Callable[[Bundle], PolicyEngine | None] | None,
    lessons: Lessons,
) -> tuple[Rollout, list[str]]:
    """Take up the live revision, then the folder if it says something else.

    Returns the troubles there were beside it.
    """
    from vedette.adapters.policy_engines.regorus.stage import SubprocessStage
    from vedette.policy.bundle_data import mount

    embedded = given or SubprocessStage()
    stage = policy_stage(settings, embedded, line.metrics, store)
    load = second or second_maker(settings, stage, embedded)
    opinions = SecondOpinions(load, mount, line.metrics, settings.edges.policy.sample)
    prepared: list[Readable] = []

    def prepare(engine: PolicyEngine, number: int) -> list[Draft]:
        gate = Gateway(engine, number, counts=line.gateway.counts)
        readable, drafts = lessons.decide(gate, line.clock.now_us())
        prepared[:] = [readable]
        return drafts

    def admits(bundle: Bundle, agents: Mapping[str, Agent]) -> list[Finding]:
        # Who is unbounded already begins nothing; that keeps no other mend of the policy back.
        looked_at = {name: one for name, one in agents.items() if gap_of(line.budgets, one) is None}
        return budgets(bundle.files, looked_at)[1]

    def swap(engine: PolicyEngine, second: SecondOpinion, live: Revision) -> None:
        line.gateway.swap(engine, live.number, second)
        rollout.why = reason_of(stage)  # of the bundle loaded last: this one
        opinions.live = second
        if prepared:
            for agent in lessons.take(prepared.pop(), live.number):
                judges: Any = line.reasoners["judge"]
                judges.renew(agent)
        line.registry, line.budgets = carried(store, live.digest)
        pause_unbounded(line)
        line.metrics.gauge("policy_revision", live.number)
        line.metrics.gauge("policy_engine_wasm", int(engine.name.startswith("opa wasm")))

    number, digest = store.revision()
    rollout = Rollout(
        store,
        stage,
        line.clock,
        Revision(number, digest),
        prepare,
        swap,
        line.in_flight_before,
        line.metrics,
        opinions,
        asyncio.Lock(),
        lambda: (line.fleet.agents, None),
        admits,
        shelving(settings, store, line.clock.now_us),
        lambda bundle: loosened(store, bundle),
        lambda engine: evidence(store, line.gateway.engine, engine),
    )
    if number:
        bundle = await _live_bundle(settings, store, digest)
        engine = stage.load(bundle)
        swap(engine, await opinions.make_live(bundle), rollout.live)
    troubles = await _offer(settings, store, rollout)
    if (told := trouble_of(rollout.why)) is not None:
        troubles.append(told)
    if opinions.live is not None and opinions.live.missing:
        troubles.append(f"the second policy engine is {opinions.live.name} (tried each minute)")
    return rollout, troubles


async def _live_bundle(settings: Settings, store: SqlStore, digest: str) -> Bundle:
    """Return the live bundle as it was recorded.

    Where its row was edited or is gone the policy folder's bytes make it right again, if they are
    that policy. Raises BadPolicy if they are not.
    """
    from vedette.adapters.policy_engines.regorus.stage import read_bundle

    kept = find_bundle(store.bundle, digest)
    if kept is not None:
        return kept
    what = f"the recorded bundle {digest[:12]}, which is live, was changed or is gone"
    mend = "bring exactly that policy back into the policy folder, or the state from a backup"
    try:
        found = read_bundle(settings.policies)
    except BadPolicy as error:
        raise BadPolicy(what, mend=mend) from error
    if found.digest != digest:
        raise BadPolicy(what, mend=mend)
    await store.note([], found)
    return found


async def _offer(settings: Settings, store: SqlStore, rollout: Rollout) -> list[str]:
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
        await rollout.refuse(error, ENGINE)
        return [f"{stays}: {error}"]
    if rollout.live.number and settings.store.visit:
        # Who comes for one command publishes under that person's name, or nothing: the next `run`
        # takes up what a person left in the folder.
        return []
    wish = Wish(ENGINE, "found in the policy folder at start")
    if rollout.live.number:
        why_not = await offer_folder(store, rollout, bundle, wish)
        return [f"{stays}: {why_not}"] if why_not else []
    published = await rollout.publish(bundle, wish)
    if published.findings:
        first = published.findings[0]
        raise BadPolicy(first.what, where=f"{first.file}:{first.line}", mend=first.mend or None)
    await remember_folder(store, bundle.digest, rollout.live)
    return []


def loosened(store: SqlStore, bundle: Bundle) -> Loosening:
    """Return what a bundle loosens against the live one; nothing is loosened by the first."""
    from vedette.policy.bundle_data import mount

    number, digest = store.revision()
    if not number:
        return Loosening()
    live = find_bundle(store.bundle, digest)
    if live is None:
        told = ("the live policy's bytes are not in the store",)
        return Loosening(told, between=(digest, bundle.digest))
    return loosening(live, bundle, mount)


def evidence(store: SqlStore, live: PolicyEngine, other: PolicyEngine) -> tuple[str, ...]:
    """Say how the last recorded questions would be answered under another bundle."""
    questions = []
    for seq, _ in store.entries_page(
        {"kind": "action.decided"}, before=None, after=None, limit=RETRIED
    ):
        found = store.entry(seq)
        if found is not None and found[2] is not None:
            questions.append(canonical(orjson.loads(found[2])["question"]))
    return loosened_decisions(live, other, questions)


def key_in_force(settings: Settings) -> str | None:
    """Return the verifier key that the store's last rotation named, if there is such a store."""
    if not is_there(settings):
        return None
    store = open_reading(settings)
    try:
        return store.key_in_force()
    finally:
        store.close()


def carried(store: SqlStore, digest: str) -> tuple[dict[str, Any], Budgets]:
    """Return what an admitted bundle carries for the engine: the registry, and the budgets."""
    from vedette.policy.bundle_data import mount

    data = mount(store.bundle(digest) or {})
    found = data.get("registry")
    return found if isinstance(found, dict) else {}, read_budgets(data.get("budgets"))


def budgets(
    files: Mapping[str, bytes], agents: Mapping[str, Agent]
) -> tuple[Budgets, list[Finding]]:
    """Return the limits and prices of a bundle (policies/budgets/data.yaml), and what is wrong."""
    from vedette.policy.bundle_data import mount

    file = "budgets/data.yaml"
    try:
        found = read_budgets(mount(files).get("budgets"))
    except ValueError as error:
        return Budgets(), [Finding(file, 1, str(error), "see docs/design/budgets.md")]
    return found, [
        Finding(file, 1, f"{agent.name}: {gap}", "mend its agent.yaml, or the limits here")
        for agent in agents.values()
        if (gap := gap_of(found, agent)) is not None
    ]


def _restore_counts(line: Line, store: SqlStore) -> None:
    now = line.clock.now_us()
    for agent, unit, minute, amount in store.spent(window_start(now, DAY_US) // MINUTE_US):
        line.gateway.counts.add(agent, unit, minute * MINUTE_US, amount)


def _loaded(loaded: Loaded, versions: Any, visit: bool) -> Draft:
    releases = {agent.name: agent.release for agent in loaded.fleet.agents.values()}
    # Who comes for one command decides no release (see `vedette.app.releases`).
    what = "visit" if visit else None
    return Draft("fleet.loaded", {"releases": releases, "banks": dict(versions), "what": what})
