"""Wiring: makes one fleet out of settings, content and adapters. The only place that knows all.

`open_app` takes the store (the runner's lock), so a second runner is refused here, before it has
done anything. What comes out is idle: `vedette.runner.run_app` sets it to work.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

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
from vedette.line import Line
from vedette.memory import Memory
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
    """One opened fleet. Owns the store until `close`."""

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
    refused, the last good revision stays, and without one nothing is opened. Raises BadFleet,
    BadPolicy, StoreBusy, BadStore.
    """
    from vedette.adapters.keys import ledger_key
    from vedette.adapters.local_hands import LocalHands
    from vedette.adapters.prometheus import PrometheusMetrics
    from vedette.adapters.sqlite import SqliteStore
    from vedette.adapters.sqlite_bank import SqliteBank
    from vedette.load import load_fleet, load_module

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
        gateway = Gateway(_NoPolicy(), 0)
        line = Line(
            fleet=fleet,
            store=store,
            gateway=gateway,
            recall=Recall(banks, gateway),
            reasoners=reasoners or _reasoners(settings, loaded, banks, clock),
            performer=LocalHands(
                lambda agent: load_module(Path(fleet.agents[agent].folder), "tools")
            ),
            clock=clock,
            stops=Stops(),
            metrics=metrics,
            targets=settings.targets,
        )
        line.stops.restore(store.stop_epoch, store.stops())
        _restore_counts(line, store)
        rollout = await _roll_out(settings, store, line, stage)
        await store.note([_opened(store), _loaded(loaded, versions)])
    except BaseException:
        store.close()
        raise
    dispatcher = Dispatcher(line)
    intake = LineIntake(line, dispatcher, max_event_bytes=settings.max_event_bytes)
    from vedette.adapters.rego.stage import read_bundle

    commands = Commands(line, intake, rollout, read_bundle)
    return App(settings, loaded, line, store, banks, metrics, commands, intake, dispatcher, rollout)


# The digest of the policy folder as it was last offered.
POLICY_FOLDER = "policy_folder"


class _NoPolicy:
    """What is live before a first bundle is: nothing is decided, so everything is denied."""

    name = "none"
    digest = ""

    def decide(self, question: bytes) -> object:
        return None


def _reasoners(
    settings: Settings, loaded: Loaded, banks: SqliteBank, clock: Clock
) -> dict[str, Reasoner]:
    from vedette.adapters.local_judges import LocalJudges
    from vedette.judging import Judge
    from vedette.load import build_judge

    fleet = loaded.fleet

    def make(name: str) -> Judge:
        return build_judge(fleet.agents[name], lessons(loaded, banks, name, clock.now_us()))

    found: dict[str, Reasoner] = {"judge": LocalJudges(make)}
    folders = {
        agent.name: Path(agent.folder) for agent in fleet.agents.values() if agent.reasoner == "adk"
    }
    if folders:
        from vedette.adapters.adk.reasoner import AdkReasoner

        found["adk"] = AdkReasoner(folders)
    return found


def lessons(loaded: Loaded, banks: SqliteBank, agent: str, now_us: int) -> list[Memory]:
    """Return what an agent's judge is made of: all active memories of the scopes it may read."""
    scopes = dict.fromkeys((s.bank, s.scope) for s in loaded.fleet.agents[agent].scopes)
    return [memory for bank, scope in scopes for memory in banks.lessons(bank, scope, now_us)]


async def _roll_out(
    settings: Settings, store: SqliteStore, line: Line, given: PolicyStage | None
) -> Rollout:
    """Take up the live revision, then the folder if it says something else."""
    from vedette.adapters.rego.stage import SubprocessStage, read_bundle

    stage = given or SubprocessStage()

    def swap(engine: PolicyEngine, live: Revision) -> None:
        line.gateway.swap(engine, live.number)
        line.registry = registry(store, live.digest)
        line.metrics.gauge("policy_revision", live.number)

    number, digest = store.revision()
    rollout = Rollout(
        store,
        stage,
        line.clock,
        Revision(number, digest),
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
    offered = read_bundle(settings.policies)
    if number and offered.digest == store.meta(POLICY_FOLDER):
        # The folder says what it said before; what a person applied since stays live.
        return rollout
    published = await rollout.publish(offered, ENGINE, "found in the policy folder at start")
    await store.remember(POLICY_FOLDER, offered.digest)
    if not published.ok and not number:
        first = published.findings[0]
        raise BadPolicy(first.what, where=f"{first.file}:{first.line}", mend=first.mend or None)
    return rollout


def _feed(banks: SqliteBank, store: SqliteStore) -> None:
    """Bring candidates of committed steps into their banks; one that is there already stays."""
    from vedette.memory import Candidate

    for _, raw, _, data in store.walk(("memory.proposed",)):
        if data is None:
            continue
        entry, told = orjson.loads(raw), orjson.loads(data)
        topics = tuple(told["topics"])
        candidate = Candidate(
            entry["memory"], told["scope"], told["text"], topics, entry["agent"], entry["run"],
            entry["event"],
        )  # fmt: skip
        banks.propose(candidate, entry["at"])


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
