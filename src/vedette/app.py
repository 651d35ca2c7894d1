"""Wiring: makes one fleet out of settings, content and adapters. The only place that knows all.

`open_app` takes the store (the runner's lock), so a second runner is refused here, before it has
done anything. What comes out is idle: `vedette.runner.run_app` sets it to work.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from vedette.agent import Agent, Fleet
from vedette.budget import DAY_US, MINUTE_US, window_start
from vedette.bundle import Bundle, Revision
from vedette.clock import Clock, SystemClock
from vedette.commands import Commands
from vedette.dispatch import Dispatcher
from vedette.entry import Draft
from vedette.errors import BadPolicy
from vedette.gateway import Gateway
from vedette.identity import ENGINE
from vedette.intake import LineIntake
from vedette.lessons import Lessons, Readable
from vedette.line import Line
from vedette.ports import PolicyEngine, PolicyStage, Reasoner
from vedette.recall import Recall
from vedette.rollout import Rollout
from vedette.stop import Stops

if TYPE_CHECKING:
    from vedette.adapters.prometheus import PrometheusMetrics
    from vedette.adapters.sqlite import SqliteStore
    from vedette.adapters.sqlite_bank import SqliteBank
    from vedette.load import Loaded, Settings


@dataclass(slots=True)
class App:
    """One opened fleet. Owns the store until `close`.

    `troubles` are what a person should see of how it came up.
    """

    settings: Settings
    loaded: Loaded
    line: Line
    store: SqliteStore
    banks: SqliteBank
    metrics: PrometheusMetrics
    commands: Commands
    intake: LineIntake
    dispatcher: Dispatcher
    rollout: Rollout
    troubles: list[str] = field(default_factory=list)

    async def close(self) -> None:
        """Stop handling, commit what is queued, and let go of the store."""
        await self.dispatcher.close()
        self.store.close()
        self.banks.close()
        hands: Any = self.line.performer
        hands.close()


async def open_app(
    settings: Settings,
    *,
    clock: Clock | None = None,
    reasoners: dict[str, Reasoner] | None = None,
    stage: PolicyStage | None = None,
) -> App:
    """Open the fleet that `settings` describe; what is given replaces the usual part.

    The policy folder is tried out and made live if it differs from the live revision; if it is
    refused or cannot be read, the last good revision stays and `App.troubles` says so; without
    one nothing is opened. Raises BadFleet, BadPolicy, StoreBusy, BadStore.
    """
    from vedette.adapters.keys import ledger_key
    from vedette.adapters.prometheus import PrometheusMetrics
    from vedette.adapters.rego.stage import read_bundle
    from vedette.adapters.sqlite import SqliteStore
    from vedette.adapters.sqlite_bank import SqliteBank
    from vedette.load import load_fleet

    clock = clock or SystemClock()
    loaded = load_fleet(settings.root, settings, now_us=clock.now_us())
    fleet = loaded.fleet
    key_name = f"vedette/{fleet.name}"
    settings.state.mkdir(parents=True, exist_ok=True)
    store = SqliteStore(
        settings.state,
        fleet=fleet.name,
        key=ledger_key(settings.state, key_name),
        key_name=key_name,
        now_us=clock.now_us,
    )
    try:
        banks = SqliteBank(settings.state / "memory.db")
        versions = banks.load(loaded.banks)
        _feed(banks, store)
        metrics = PrometheusMetrics()
        lessons = Lessons(banks, {} if reasoners else _judged(loaded))
        thinking = reasoners or _reasoners(loaded, lessons, clock)
        line = _line(settings, fleet, store, banks, thinking, clock, metrics)
        rollout, troubles = await _roll_out(settings, store, line, stage, lessons)
        read: list[Draft] = []
        if lessons.policy_rev != rollout.live.number:
            readable, read = lessons.decide(line.gateway, clock.now_us())
            lessons.take(readable, rollout.live.number)
        await store.note([_opened(store), _loaded(loaded, versions), *read])
    except BaseException:
        store.close()
        raise
    dispatcher = Dispatcher(line)
    intake = LineIntake(line, dispatcher, max_event_bytes=settings.max_event_bytes)
    commands = Commands(line, intake, rollout, read_bundle)
    return App(
        settings, loaded, line, store, banks, metrics, commands, intake, dispatcher, rollout,
        troubles,
    )  # fmt: skip


def _line(
    settings: Settings,
    fleet: Fleet,
    store: SqliteStore,
    banks: SqliteBank,
    reasoners: dict[str, Reasoner],
    clock: Clock,
    metrics: PrometheusMetrics,
) -> Line:
    """Make the line, with the stops and the counts that the store knows; no policy is live yet."""
    from vedette.adapters.local_hands import LocalHands
    from vedette.load import load_module

    gateway = Gateway(_NoPolicy(), 0)
    line = Line(
        fleet=fleet,
        store=store,
        gateway=gateway,
        recall=Recall(banks, gateway),
        reasoners=reasoners,
        performer=LocalHands(lambda agent: load_module(Path(fleet.agents[agent].folder), "tools")),
        clock=clock,
        stops=Stops(),
        metrics=metrics,
        targets=settings.targets,
    )
    line.stops.restore(store.stop_epoch, store.stops())
    _restore_counts(line, store)
    return line


# The digest of the policy folder as it was last offered.
POLICY_FOLDER = "policy_folder"


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


def _reasoners(loaded: Loaded, lessons: Lessons, clock: Clock) -> dict[str, Reasoner]:
    from vedette.adapters.local_judges import LocalJudges
    from vedette.judging import Judge
    from vedette.load import build_judge

    fleet = loaded.fleet

    def make(name: str) -> Judge:
        return build_judge(fleet.agents[name], lessons.of(name, clock.now_us()))

    found: dict[str, Reasoner] = {"judge": LocalJudges(make)}
    folders = {
        agent.name: Path(agent.folder) for agent in fleet.agents.values() if agent.reasoner == "adk"
    }
    if folders:
        from vedette.adapters.adk.reasoner import AdkReasoner

        found["adk"] = AdkReasoner(folders)
    return found


async def _roll_out(
    settings: Settings,
    store: SqliteStore,
    line: Line,
    given: PolicyStage | None,
    lessons: Lessons,
) -> tuple[Rollout, list[str]]:
    """Take up the live revision, then the folder if it says something else.

    Returns the troubles there were beside it.
    """
    from vedette.adapters.rego.stage import SubprocessStage

    stage = given or SubprocessStage()
    prepared: list[Readable] = []

    def prepare(engine: PolicyEngine, number: int) -> list[Draft]:
        gate = Gateway(engine, number, counts=line.gateway.counts)
        readable, drafts = lessons.decide(gate, line.clock.now_us())
        prepared[:] = [readable]
        return drafts

    def swap(engine: PolicyEngine, live: Revision) -> None:
        line.gateway.swap(engine, live.number)
        if prepared:
            for agent in lessons.take(prepared.pop(), live.number):
                judges: Any = line.reasoners["judge"]
                judges.renew(agent)
        line.registry = registry(store, live.digest)
        line.metrics.gauge("policy_revision", live.number)

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
        asyncio.Lock(),
    )
    if number:
        files = store.bundle(digest)
        if files is None:
            raise BadPolicy(f"the bytes of the live bundle {digest[:12]} are missing")
        swap(stage.load(Bundle.of(files)), rollout.live)
    return rollout, await _offer(settings, store, rollout)


async def _offer(settings: Settings, store: SqliteStore, rollout: Rollout) -> list[str]:
    """Offer the policy folder if it says something new; return why it was refused, if it was.

    Raises BadPolicy if no revision is live then.
    """
    from vedette.adapters.rego.stage import read_bundle

    stays = f"policy refused, revision {rollout.live.number} stays"
    try:
        offered = read_bundle(settings.policies)
    except BadPolicy as error:
        if not rollout.live.number:
            raise
        await rollout.refuse(error, ENGINE)
        return [f"{stays}: {error}"]
    if rollout.live.number and offered.digest == store.meta(POLICY_FOLDER):
        # The folder says what it said before; what a person applied since stays live.
        return []
    published = await rollout.publish(offered, ENGINE, "found in the policy folder at start")
    await store.remember(POLICY_FOLDER, offered.digest)
    if published.ok:
        return []
    first = published.findings[0]
    if not rollout.live.number:
        raise BadPolicy(first.what, where=f"{first.file}:{first.line}", mend=first.mend or None)
    return [f"{stays}: {first}"]


def _feed(banks: SqliteBank, store: SqliteStore) -> None:
    """Bring candidates of committed steps into their banks; one that is there already stays.

    Those whose content was erased go, should the runner have been killed between the two.
    """
    from vedette.memory import Candidate

    erased: set[str] = set()
    for _, raw, _, data in store.walk(("memory.proposed",)):
        entry = orjson.loads(raw)
        if data is None:
            erased.add(entry["event"])
            continue
        banks.propose(Candidate.told(entry, orjson.loads(data)), entry["at"])
    banks.forget(erased, store.candidates(erased))


def registry(store: SqliteStore, digest: str) -> dict[str, Any]:
    """Return the registry that a bundle carries (policies/registry/data.yaml)."""
    from vedette.adapters.rego.data import mount

    found = mount(store.bundle(digest) or {}).get("registry")
    return found if isinstance(found, dict) else {}


def _restore_counts(line: Line, store: SqliteStore) -> None:
    now = line.clock.now_us()
    for agent, unit, minute, amount in store.spent(window_start(now, DAY_US) // MINUTE_US):
        line.gateway.counts.add(agent, unit, minute * MINUTE_US, amount)


def _opened(store: SqliteStore) -> Draft:
    return Draft("store.opened", {"epoch": store.epoch})


def _loaded(loaded: Loaded, versions: Any) -> Draft:
    releases = {agent.name: agent.release for agent in loaded.fleet.agents.values()}
    return Draft("fleet.loaded", {"releases": releases, "banks": dict(versions)})
