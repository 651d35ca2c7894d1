"""The second opinion: a permit counts only where a second policy engine says the same.

The engine that decides is given a planted fault through its port: it permits what the policy
denies. Each net is shown by itself, with the control that the fault does its harm without it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
from msgspec.structs import replace
from tests.opa import ROOT, find_opa
from tests.questions import BUNDLE
from tests.said import Said, said

from vedette.adapters.policy_engines import opa_wasm
from vedette.adapters.policy_engines.opa import LocalOpaServer
from vedette.adapters.policy_engines.opa_wasm import repository
from vedette.adapters.telemetry.prometheus import PrometheusMetrics
from vedette.app.policy_engines import close_stage, policy_stage, second_engine_maker
from vedette.config.deployment import Deployment, PolicyPlan
from vedette.config.settings import Settings
from vedette.domain.agent import MemoryScope
from vedette.domain.base.errors import BadPolicy, StoreFailed
from vedette.domain.bundle import Bundle
from vedette.domain.decision import (
    DecisionContext,
    DecisionRecord,
    build_denial,
    build_difference_entry,
    parse_decision,
)
from vedette.domain.entry import Draft
from vedette.domain.ports.policy_engine import PolicyEngine
from vedette.interfaces.daemon import Daemon
from vedette.memory.retrieval import recall_entries
from vedette.policy.replay import ReplayReport, replay
from vedette.policy.second_opinion import (
    RETRY_US,
    SampledDecisions,
    SecondOpinion,
    SecondOpinionFactory,
    inward_tools,
)
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness, TrustingStage
from vedette.testing.toy_fleet import DENY_TOOL, DESK, World, job, propose, toy_fleet

PERMIT = {
    "schema": "vedette.decision/1", "outcome": "permit", "rule": "permit.tool",
    "reasons": ["permit.tool:wire.send"], "wait": None, "until": 0, "would": None,
    "obligations": [],
}  # fmt: skip
INWARD = "  inward: [wire.send, big.send]\n"


class Faulty:
    """An engine that answers otherwise than its policy says, where `wrong` gives an answer."""

    def __init__(
        self, honest: PolicyEngine, wrong: Callable[[dict[str, Any]], object], name: str
    ) -> None:
        self.honest, self.wrong = honest, wrong
        self.digest, self.name = honest.digest, name
        self.asked = 0

    def decide(self, question: bytes) -> object:
        self.asked += 1
        answer = self.wrong(orjson.loads(question)) if question != b"{}" else None
        return self.honest.decide(question) if answer is None else answer


class FaultyStage(TrustingStage):
    def __init__(self, wrong: Callable[[dict[str, Any]], object] = lambda question: None) -> None:
        self.wrong = wrong
        self.made: list[Faulty] = []
        self.name = "faulty"

    def load(self, bundle: Bundle) -> PolicyEngine:
        self.made.append(Faulty(super().load(bundle), self.wrong, self.name))
        return self.made[-1]


def permits_what_is_denied(question: dict[str, Any]) -> object:
    """The planted fault: a deny rule of the policy is not taken for a text of this kind."""
    action = question["action"]
    return PERMIT if action["args"].get("text") == "slips through" else None


def fails(question: dict[str, Any]) -> object:
    raise RuntimeError("the second engine broke")


NIGHT = (
    'package vedette.denies\n\ndeny contains "denies.night" if '
    'input.action.args.text == "slips through"\n'
)


def fleet_of(
    folder: Path, world: World, *, second: FaultyStage | None, decides: FaultyStage | None = None,
    inward: str = "",
) -> FleetHarness:  # fmt: skip
    fleet = toy_fleet(folder, world, extra={"vedette/denies/night.rego": NIGHT})
    if inward:
        grants = fleet.policies / "grants" / "data.yaml"
        head, _, rest = grants.read_text().partition("  tools:\n")
        grants.write_text(f"{head}{inward}  tools:\n{rest}")
    fleet.stage = decides or FaultyStage(permits_what_is_denied)
    if second is not None:
        second.name = "the other"
    fleet.second = second
    return fleet


async def send(fleet: FleetHarness, id: str, text: str, tool: str = "wire.send") -> Any:
    event = job(id, propose(tool, to=DESK, text=text))
    await fleet.send(event)
    await fleet.wait_until_idle()
    (row,) = fleet.actions(event)
    return row


def replay_with(fleet: FleetHarness, load: Callable[[Bundle], PolicyEngine]) -> ReplayReport:
    return replay(fleet.app.store, load)


async def test_without_a_second_engine_the_fault_has_its_effect_and_its_own_replay_agrees(
    tmp_path: Path,
) -> None:
    """The control of everything below."""
    world = World()
    async with fleet_of(tmp_path, world, second=None) as fleet:
        assert (await send(fleet, "1", "slips through")).decided == "permit"
        assert world.effects("wire.send") == 1
        assert replay_with(fleet, FaultyStage(permits_what_is_denied).load).ok
        assert fleet.entries("engine.differed") == []


async def test_replay_by_opa_alone_finds_what_the_deciding_engine_got_wrong(
    tmp_path: Path,
) -> None:
    opa = find_opa()
    async with fleet_of(tmp_path, World(), second=None) as fleet:
        await send(fleet, "1", "slips through")
        await send(fleet, "2", "hello")
        with LocalOpaServer(opa) as server:
            report = replay_with(fleet, server.load)
        assert (report.decisions, report.agreed, report.differed) == (2, 1, 1)
        assert report.differences[0].replayed["rule"] == "denies.night"
        assert report.engine == {f"opa/{server.version} server"}


async def test_a_permit_on_which_the_engines_differ_is_a_deny_an_alarm_and_an_entry(
    tmp_path: Path,
) -> None:
    world = World()
    async with fleet_of(tmp_path, world, second=FaultyStage()) as fleet:
        row = await send(fleet, "1", "slips through")
        assert (row.decided, row.rule) == ("deny", "engine.differs")
        assert (await send(fleet, "2", "hello")).decided == "permit"
        assert world.effects("wire.send") == 1
        (entry,) = fleet.entries("engine.differed")
        (decided, _) = fleet.entries("action.decided")
        assert entry["cause"] == decided["seq"]
        assert (entry["what"], entry["engine"], entry["outcome"]) == ("permit", "faulty", "permit")
        assert (entry["tool"], entry["agent"], entry["action"]) == ("wire.send", "worker", row.id)
        answers = fleet.body(entry["seq"])["answers"]
        assert [one["decision"]["outcome"] for one in answers] == ["permit", "deny"]
        assert answers[1]["decision"]["rule"] == "denies.night"
        assert fleet.app.metrics.total("engine_differences", where="permit") == 1
        assert fleet.app.metrics.total("second_opinions", where="permit") == 2


async def test_a_difference_is_decided_again_with_the_same_answer(tmp_path: Path) -> None:
    """By the engine that decided and by the other one; not by a third that says else."""
    async with fleet_of(tmp_path, World(), second=FaultyStage()) as fleet:
        await send(fleet, "1", "slips through")
        for load in (FaultyStage(permits_what_is_denied).load, TrustingStage().load):
            report = replay_with(fleet, load)
            assert (report.ok, report.agreed, report.disputed) == (True, 1, 1)
        third = FaultyStage(lambda question: {**PERMIT, "rule": "another"})
        report = replay_with(fleet, third.load)
        assert (report.differed, report.disputed) == (1, 0)


@pytest.mark.parametrize("wrong", [fails, lambda question: {"outcome": "permit"}])
async def test_a_second_engine_that_fails_or_answers_no_decision_agrees_with_nothing(
    tmp_path: Path, wrong: Callable[[dict[str, Any]], object]
) -> None:
    world = World()
    async with fleet_of(tmp_path, world, second=FaultyStage(wrong)) as fleet:
        assert (await send(fleet, "1", "hello")).rule == "engine.differs"
        assert world.effects() == 0


async def test_an_engine_that_cannot_be_made_at_the_start_agrees_with_nothing(
    tmp_path: Path,
) -> None:
    class Missing(FaultyStage):
        def load(self, bundle: Bundle) -> PolicyEngine:
            raise BadPolicy("does not compile")

    world = World()
    fleet = fleet_of(tmp_path, world, second=FaultyStage())
    async with fleet:
        assert (await send(fleet, "1", "hello")).decided == "permit"
        await fleet.close()
        fleet.second = Missing()
        await fleet.open()
        assert (await send(fleet, "2", "hello")).rule == "engine.differs"
        assert world.effects() == 1
        (fleet.policies / "vedette/denies/more.rego").write_text(DENY_TOOL.format("bell.ring"))
        done = await fleet.apply_policy(fleet.policies)
        assert not done["ok"]  # what the other engine does not take is refused
        assert "does not compile" in done["findings"][0]


async def test_a_missing_engine_denies_what_is_outward_and_nothing_else() -> None:
    """An answer that nobody gave is no difference that a sample could find."""
    metrics = PrometheusMetrics()
    samples = SampledDecisions(metrics)
    second = SecondOpinion(BadPolicy("opa took 30 s"), {}, metrics, samples, one_in=1)
    permit = DecisionRecord(parse_decision(PERMIT), b"{}", 1, BUNDLE.digest, "faulty")
    no = replace(permit, decision=build_denial("no"))
    noted: list[Draft] = []

    class Store:
        async def append_entries(self, drafts: list[Draft]) -> int:
            noted.extend(drafts)
            return 1

    for decided in (permit, no):
        assert second.review(decided, outward=False) == decided
        samples.add(second, decided)  # as one that was put aside before
    await samples.finish(cast(Any, Store()), pytest.fail)
    assert (noted, second.has_differed) == ([], False)
    assert second.review(permit, outward=False) == permit
    denial = second.review(permit, outward=True)
    assert denial.decision.rule == "engine.differs"
    assert build_difference_entry(denial, "permit").fields["what"] == "alone"
    assert metrics.total("engine_differences", where="alone") == 1
    assert metrics.total("engine_differences", where="sample") == 0


class Passing(FaultyStage):
    """A second engine that cannot be made while `away`."""

    away = True

    def load(self, bundle: Bundle) -> PolicyEngine:
        if self.away:
            raise BadPolicy("opa took 30 s")
        return super().load(bundle)


@pytest.mark.parametrize("by", ["time", "publication"])
async def test_an_engine_that_could_not_be_made_at_the_start_is_told_and_made_again(
    tmp_path: Path, by: str
) -> None:
    world, clock = World(), ManualClock()
    fleet = fleet_of(tmp_path, world, second=FaultyStage(), decides=FaultyStage(), inward=INWARD)
    fleet._clock = clock
    async with fleet:
        await fleet.close()
        fleet.second = passing = Passing()
        passing.name = "the other"
        await fleet.open()
        opinions, gateway = fleet.app.rollout.second_opinions, fleet.app.services.gateway
        assert any(
            "so nothing outward is permitted: opa took" in message for message in fleet.app.troubles
        )
        opinion = gateway.second_opinion
        assert opinion is not None
        opinion.one_in = 1
        for number in range(3):
            assert (await send(fleet, f"in {number}", "hello")).decided == "permit"
            await opinions.samples.finish(fleet.app.store.commands, pytest.fail)
        assert (await send(fleet, "1", "hello", "order.place")).rule == "engine.differs"
        assert not await opinions.retry()  # still away
        passing.away = False
        if by == "time":
            running = Daemon(fleet.app, until_idle=False)
            task = asyncio.create_task(running.run())
            async with asyncio.timeout(30):
                while not opinion.is_ready:
                    await clock.elapse(RETRY_US)
                    await asyncio.sleep(0.02)
            running.stop()
            await task
            assert any("second policy engine is there" in message for message in running.troubles)
        else:
            done = await fleet.apply_policy(fleet.policies)
            assert (done["ok"], done["changed"]) == (True, False)
        assert opinion.is_ready
        assert not await opinions.retry()  # nobody misses it any more
        assert (await send(fleet, "2", "hello", "order.place")).decided == "permit"
        assert world.effects("order.place") == 1


async def test_an_engine_that_is_missing_is_not_replaced_by_none() -> None:
    engines = list[None]()

    def load(bundle: Bundle) -> PolicyEngine | None:
        if not engines:
            raise BadPolicy("away")
        return engines[0]

    made = SecondOpinionFactory(load, lambda files: {}, PrometheusMetrics())
    made.live = await made.create_live(BUNDLE)
    engines.append(None)
    assert not await made.retry()
    assert made.live.is_missing


async def test_what_nobody_waits_for_any_more_is_not_made_again() -> None:
    stage = Passing()
    made = SecondOpinionFactory(stage.load, lambda files: {}, PrometheusMetrics())
    older = await made.create_live(BUNDLE)
    stage.away = False
    made.live = await made.create_live(BUNDLE)
    assert not await made.retry()
    assert (older.is_missing, len(stage.made)) == (True, 1)


async def test_a_store_that_is_away_does_not_end_the_comparing(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, World(), second=None) as fleet:
        metrics = PrometheusMetrics()
        samples = SampledDecisions(metrics)
        engine = FaultyStage(fails).load(BUNDLE)
        second = SecondOpinion(engine, {}, metrics, samples, one_in=1)
        sampled = DecisionRecord(parse_decision(PERMIT), b'{"a":1}', 1, BUNDLE.digest, "another")

        class Away:
            async def append_entries(self, drafts: list[Draft]) -> int:
                if not metrics.total("store_failures"):
                    raise StoreFailed("the database is away")
                return await fleet.app.store.commands.append_entries(drafts)

        messages: list[str] = []
        second.sample(sampled)
        watching = asyncio.create_task(samples.watch(cast(Any, Away()), messages.append))
        async with asyncio.timeout(20):
            while not metrics.total("store_failures"):  # noqa: ASYNC110 (another task counts)
                await asyncio.sleep(0.01)
            second.sample(sampled)
            while not messages:  # noqa: ASYNC110 (as above)
                await asyncio.sleep(0.01)
        assert not watching.done()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert fleet.entries("engine.differed")


class SlowStage(FaultyStage):
    """A second engine that is made only once the event loop has turned: whoever blocks it fails."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "the other"
        self.turned, self.wanted = threading.Event(), threading.Event()

    def load(self, bundle: Bundle) -> PolicyEngine:
        self.wanted.set()
        if not self.turned.wait(20):
            raise BadPolicy("the event loop was blocked")
        return super().load(bundle)


async def turn(slow_stage: SlowStage) -> None:
    """Let an engine be made from the event loop, a while after somebody wanted it."""
    async with asyncio.timeout(20):
        while not slow_stage.wanted.is_set():  # noqa: ASYNC110 (another thread wants it)
            await asyncio.sleep(0.01)
    slow_stage.turned.set()


async def test_a_start_waits_for_a_second_engine_beside_the_event_loop(tmp_path: Path) -> None:
    world = World()
    fleet = fleet_of(tmp_path, world, second=FaultyStage())
    async with fleet:
        await fleet.close()
        fleet.second = slow_stage = SlowStage()
        turning = asyncio.create_task(turn(slow_stage))
        await fleet.open()
        await turning
        assert (await send(fleet, "1", "hello")).decided == "permit"
        assert (await send(fleet, "2", "slips through")).rule == "engine.differs"


async def test_what_another_worker_published_waits_for_one_in_the_same_way(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path, World(), second=FaultyStage())
    async with fleet:
        rollout, gateway = fleet.app.rollout, fleet.app.services.gateway
        files = fleet.app.store.policy.bundle_files(rollout.live.digest)
        assert files is not None
        other = Bundle.of({**files, "vedette/more.rego": b"package vedette.more\n\none := 1\n"})
        slow_stage, before = SlowStage(), gateway.second_opinion
        rollout.second_opinions = SecondOpinionFactory(
            slow_stage.load, lambda files: {}, fleet.app.metrics
        )
        following = asyncio.create_task(rollout.follow_revision(other, rollout.live.number + 1))
        await asyncio.to_thread(slow_stage.wanted.wait, 20)
        assert gateway.second_opinion is before  # no decision under the new revision without it
        slow_stage.turned.set()
        await asyncio.wait_for(following, 20)
        assert gateway.second_opinion is not None
        assert gateway.second_opinion.is_ready


async def test_an_engine_does_not_agree_with_itself(tmp_path: Path) -> None:
    """Where the one that is asked is the one that stands in for a server that is away."""
    world = World()
    fleet = fleet_of(tmp_path, world, second=None, decides=FaultyStage(), inward=INWARD)
    fleet.second = FaultyStage()  # of the same name
    async with fleet:
        opinion = fleet.app.services.gateway.second_opinion
        assert opinion is not None
        opinion.one_in = 1
        assert (await send(fleet, "1", "hello", "order.place")).rule == "engine.differs"
        assert (await send(fleet, "2", "hello")).decided == "permit"
        (entry,) = fleet.entries("engine.differed")
        assert fleet.body(entry["seq"])["answers"][1]["engine"] == "none"
        # Nothing differed, and so nobody is told to roll a policy back.
        assert entry["what"] == "alone"
        assert fleet.app.metrics.total("engine_differences", where="alone") == 1
        assert fleet.app.metrics.total("engine_differences", where="permit") == 0
        # What nobody else can be asked about is no sample, and no difference.
        await fleet.app.rollout.second_opinions.samples.finish(
            fleet.app.store.commands, pytest.fail
        )
        assert not opinion.has_differed
        assert replay_with(fleet, TrustingStage().load).ok


def test_without_wasm_the_engine_behind_a_server_is_the_other_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """So what it decides while the server is away is no agreement; no server listens here."""
    monkeypatch.setattr(opa_wasm, "find_opa", lambda root: None)
    monkeypatch.setattr(repository, "SHIPPED_FOLDER", tmp_path)
    plan = PolicyPlan(engine="opa", opa_url="http://127.0.0.1:9")
    settings = replace(
        Settings.of(ROOT, "harbour"), deployment=Deployment(policy=plan), state=tmp_path
    )
    metrics = PrometheusMetrics()
    stage = policy_stage(settings, TrustingStage(), metrics)
    try:
        engine = stage.load(BUNDLE)
        other = second_engine_maker(settings, stage, TrustingStage())(BUNDLE)
        assert other is not None
        assert engine.decide(b"{}")
        assert engine.name == other.name
        second = SecondOpinion(other, {}, metrics)
        permit = DecisionRecord(parse_decision(PERMIT), b"{}", 1, BUNDLE.digest, engine.name)
        assert second.review(permit, outward=True).decision.rule == "engine.differs"
        assert second.compare(permit) is None
    finally:
        close_stage(stage)


async def test_samples_outlive_their_revision_and_the_run(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, World(), second=FaultyStage(), inward=INWARD) as fleet:

        def sampled() -> Any:
            opinion = fleet.app.services.gateway.second_opinion
            assert opinion is not None
            opinion.one_in = 1

        sampled()
        await send(fleet, "1", "slips through")
        (fleet.policies / "vedette/denies/more.rego").write_text(DENY_TOOL.format("bell.ring"))
        assert (await fleet.apply_policy(fleet.policies))["ok"]
        sampled()
        await send(fleet, "2", "slips through")
        assert fleet.entries("engine.differed") == []
        await fleet.restart()
        differed = fleet.entries("engine.differed")
        assert [entry["policy_rev"] for entry in differed] == [1, 2]


async def test_a_run_that_ends_while_samples_are_compared_loses_none(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path, World(), second=None)
    async with fleet:
        began, go = threading.Event(), threading.Event()

        def slow(question: dict[str, Any]) -> object:
            began.set()
            assert go.wait(20)
            return None

        metrics = PrometheusMetrics()
        samples, slowly = SampledDecisions(metrics), FaultyStage(slow).load(BUNDLE)
        second = SecondOpinion(slowly, {}, metrics, samples, one_in=1)
        question = b'{"action":{"args":{}}}'
        second.sample(DecisionRecord(parse_decision(PERMIT), question, 1, BUNDLE.digest, "another"))
        watching = asyncio.create_task(samples.watch(fleet.app.store.commands, pytest.fail))
        await asyncio.to_thread(began.wait, 20)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        go.set()
        troubles: list[str] = []
        await samples.finish(fleet.app.store.commands, troubles.append)
        assert len(troubles) == len(fleet.entries("engine.differed")) == 1


async def test_a_difference_that_could_not_be_written_is_compared_again_with_all_after_it() -> None:
    class Away:
        """A store that takes the first difference, and none after it until it is back."""

        noted = 0
        back = False

        async def append_entries(self, drafts: list[Draft]) -> int:
            if self.noted and not self.back:
                raise StoreFailed("the store does not answer")
            self.noted += len(drafts)
            return self.noted

    metrics, store = PrometheusMetrics(), Away()
    samples = SampledDecisions(metrics)
    second = SecondOpinion(TrustingStage().load(BUNDLE), {}, metrics, samples, one_in=1)
    for _ in range(3):
        second.sample(DecisionRecord(parse_decision(PERMIT), b"{}", 1, BUNDLE.digest, "another"))
    troubles: list[str] = []
    with pytest.raises(StoreFailed):
        await samples.compare_batch(cast(Any, store), troubles.append)
    assert (store.noted, len(troubles)) == (1, 1)
    store.back = True
    assert await samples.compare_batch(cast(Any, store), troubles.append)
    assert (store.noted, len(troubles)) == (3, 3)
    assert not await samples.compare_batch(cast(Any, store), troubles.append)


def test_what_is_not_compared_for_want_of_room_is_counted() -> None:
    metrics = PrometheusMetrics()
    second = SecondOpinion(TrustingStage().load(BUNDLE), {}, metrics, one_in=1)
    denial = DecisionRecord(build_denial("no"), b"{}", 1, BUNDLE.digest, "another")
    for _ in range(1007):
        second.review(denial, outward=True)
    assert metrics.total("samples_dropped") == 7


async def test_a_memory_read_is_asked_of_both_after_a_difference(tmp_path: Path) -> None:
    def lets_read(question: dict[str, Any]) -> object:
        return PERMIT if question["action"]["tool"] == "memory.read" else None

    fleet = fleet_of(tmp_path, World(), second=FaultyStage(), decides=FaultyStage(lets_read))
    async with fleet:
        gateway, agent = fleet.app.services.gateway, fleet.app.services.fleet.agent("worker")
        assert gateway.second_opinion is not None
        situation = DecisionContext(agent, job("1"), 1, fleet.app.services.clock.now_us())
        before = gateway.may_read(situation, "desk", "notes")
        assert before.decision.outcome == "permit"
        assert len(recall_entries(agent, MemoryScope("desk", "notes"), before)) == 1
        gateway.second_opinion.has_differed = True
        read = gateway.may_read(situation, "desk", "notes")
        assert read.decision.rule == "engine.differs"
        entries = recall_entries(agent, MemoryScope("desk", "notes"), read)
        assert [draft.kind for draft in entries] == ["recall.decided", "engine.differed"]
        assert entries[1].fields["memory"] == "desk/notes"


# --- replay, as it is typed -----------------------------------------------------------------------


def typed(fleet_folder: Path, *more: str) -> Said:
    """Type `vedette replay --engine opa` beside a fleet that has ended."""
    (fleet_folder / "vedette.toml").write_text(
        'fleet = "harbour"\nstate = "state"\n[content]\nagents = "content/agents"\n'
        'policies = "policies"\nmemory = "content/memory"\n'
    )
    return said(fleet_folder, "verify", "decisions", "--engine", "opa", *more)


@pytest.mark.parametrize("text", ["hello", "slips through"])
async def test_the_verb_replays_by_a_real_opa(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clean record, and one with a planted difference: exit code and sentence."""
    opa = find_opa()
    async with fleet_of(tmp_path, World(), second=None) as fleet:
        await send(fleet, "1", "good morning")
        await send(fleet, "2", text)
    monkeypatch.setenv("VEDETTE_OPA", opa)  # only now, or the fault were found before its effect
    with LocalOpaServer(opa) as server:
        version = server.version
    wrong = int(text == "slips through")
    done = typed(tmp_path)
    assert done.code == wrong
    assert f"2 decisions: {2 - wrong} agreed, {wrong} differed, 0 unreplayable" in done.out
    assert f"decided by opa/{version} server" in done.out
    assert ('"rule": "denies.night"' in done.out) is bool(wrong)
    document = typed(tmp_path, "--json").json
    assert (document["ok"], document["differed"]) == (not wrong, wrong)


async def test_what_is_inward_and_of_low_impact_is_sampled_and_one_difference_ends_that(
    tmp_path: Path,
) -> None:
    world = World()
    second = FaultyStage()
    async with fleet_of(tmp_path, world, second=second, inward=INWARD) as fleet:
        opinion = fleet.app.services.gateway.second_opinion
        assert opinion is not None
        opinion.one_in = 1
        assert (await send(fleet, "1", "slips through")).decided == "permit"
        assert world.effects("wire.send") == 1
        assert second.made[-1].asked == 0  # nothing waited for it
        troubles: list[str] = []
        samples = fleet.app.rollout.second_opinions.samples
        task = asyncio.create_task(samples.watch(fleet.app.store.commands, troubles.append))
        async with asyncio.timeout(20):
            while not troubles:  # noqa: ASYNC110 (another task tells)
                await asyncio.sleep(0.01)
        task.cancel()
        (entry,) = fleet.entries("engine.differed")
        assert (entry["what"], entry["engine"]) == ("sample", "faulty")
        assert len(fleet.body(entry["seq"])["answers"]) == 2
        assert fleet.app.metrics.total("engine_differences", where="sample") == 1
        assert (await send(fleet, "2", "slips through")).rule == "engine.differs"
        assert world.effects("wire.send") == 1


async def test_high_impact_is_asked_of_both_whatever_is_called_inward(tmp_path: Path) -> None:
    """Also the permit that a person's approval gives."""
    world, second = World(), FaultyStage(fails)
    async with fleet_of(tmp_path, world, second=second, inward=INWARD) as fleet:
        row = await send(fleet, "1", "hello", "big.send")
        assert row.decided == "hold"
        assert second.made[-1].asked == 0
        await fleet.approve(row)
        await fleet.wait_until_idle()
        found = fleet.app.store.runs.action(row.id)
        assert found is not None
        assert (found.decided, found.rule) == ("deny", "engine.differs")
        assert world.effects() == 0


async def test_a_running_fleet_compares_its_sample(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, World(), second=FaultyStage(), inward=INWARD) as fleet:
        opinion = fleet.app.services.gateway.second_opinion
        assert opinion is not None
        opinion.one_in = 1
        await send(fleet, "1", "slips through")
        running = Daemon(fleet.app, until_idle=False)
        task = asyncio.create_task(running.run())
        async with asyncio.timeout(30):
            while not fleet.entries("engine.differed"):  # noqa: ASYNC110 (as above)
                await asyncio.sleep(0.02)
        running.stop()
        await task
        assert any("policy engines differ" in message for message in running.troubles)


@pytest.mark.parametrize(
    ("grants", "found"),
    [
        ({"a": {"inward": ["t"], "tools": {"t": {"impact": "low"}}}}, {("a", "t")}),
        ({"a": {"inward": ["t"], "tools": {"t": {"impact": "high"}}}}, set()),
        ({"a": {"inward": ["t"], "tools": {"t": {}}}}, set()),
        ({"a": {"inward": ["t"], "tools": {}}}, set()),
        ({"a": {"inward": "t", "tools": {"t": {"impact": "low"}}}}, set()),
        ({"a": {"inward": {"t": 1}, "tools": {"t": {"impact": "low"}}}}, set()),
        ({"a": {"inward": [["t"]], "tools": {"t": {"impact": "low"}}}}, set()),
        ({"a": {"tools": {"t": {"impact": "low"}}}}, set()),
        ({"a": ["inward"], "b": None}, set()),
        (None, set()),
        ([], set()),
    ],
)
def test_what_is_not_plainly_called_inward_is_outward(grants: object, found: object) -> None:
    assert inward_tools(grants) == found


def test_the_deny_names_both() -> None:
    from vedette.domain.decision import EngineAnswer, build_difference_denial

    answers = [
        EngineAnswer("x", build_denial("a")).to_json(),
        EngineAnswer("y", build_denial("b")).to_json(),
    ]
    assert build_difference_denial(answers).reasons == ("x: deny by a", "y: deny by b")
