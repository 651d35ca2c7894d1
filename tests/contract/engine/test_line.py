"""The line as a whole: handle, dispatch and the steps between them, on the real SQLite store.

Agents and target are those of the toy fleet; judge, gateway, Rego and store are the real ones.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from vedette.adapters.reasoners.in_process import InProcessReasoner
from vedette.config.agent_loader import build_judge
from vedette.domain.base.errors import BadCommand, StoreFailed
from vedette.domain.budget import DAY_US, MINUTE_US
from vedette.domain.effect import Call, Outcome
from vedette.domain.event import Event
from vedette.domain.memory import Briefing
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.run import ActionRow, Step
from vedette.engine.action_holds import FIRST_STOP_RETRY_US, HOLD_EXPIRY_US, MAX_STOP_RETRY_US
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import (
    World,
    block_calls,
    deny_policy,
    intercept_commits,
    job,
    note_proposal,
    propose,
    send_proposal,
    toy_fleet,
    wait_until,
    write_policies,
)

SECOND = 1_000_000


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def first(fleet: FleetHarness, event: Event) -> ActionRow:
    return fleet.actions(event)[0]


def state(fleet: FleetHarness, event: Event) -> str:
    return fleet.runs(event)[0].state


def labels(fleet: FleetHarness, *events: Event) -> list[str]:
    runs = [fleet.runs(event)[0].id for event in events]
    by_run = {entry["run"]: entry["label"] for entry in fleet.entries("turn.reasoned", "run.closed")
            if "label" in entry}  # fmt: skip
    return [by_run[run] for run in runs]


async def approve(fleet: FleetHarness, row: ActionRow) -> None:
    await fleet.approve(row)


# --- order ------------------------------------------------------------------------------------


async def test_events_of_one_key_are_handled_in_order_and_keys_beside_one_another(
    tmp_path: Path, world: World
) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        events = [
            job(f"{key}{n}", send_proposal(f"{key}{n}"), key=key)
            for n in range(15)
            for key in "abcde"
        ]
        await fleet.send(*events)
        await fleet.wait_until_idle()
        texts = world.texts()
        assert len(texts) == 75
        for key in "abcde":
            mine = [text for text in texts if text.startswith(key)]
            assert mine == [f"{key}{n}" for n in range(15)]


async def test_a_call_that_hangs_holds_up_its_own_key_only(tmp_path: Path, world: World) -> None:
    release = threading.Event()

    def answer(call: Call) -> None:
        if call.args["text"] == "a1":
            release.wait(10)

    world.answer = answer
    async with toy_fleet(tmp_path, world) as fleet:
        await fleet.send(
            job("a1", send_proposal("a1"), key="a"),
            job("a2", send_proposal("a2"), key="a"),
            job("b1", send_proposal("b1"), key="b"),
        )
        await wait_until(lambda: "b1" in world.texts() and "a1" in world.texts())
        assert "a2" not in world.texts()
        release.set()
        await fleet.wait_until_idle()
        assert world.texts() == ["a1", "b1", "a2"] or world.texts() == ["b1", "a1", "a2"]


async def test_a_held_run_does_not_block_its_key(tmp_path: Path, world: World) -> None:
    held, other = job("1", send_proposal(tool="big.send")), job("2", send_proposal("after"))
    async with toy_fleet(tmp_path, world) as fleet:
        await fleet.send(held, other)
        await fleet.wait_until_idle()
        assert (state(fleet, held), state(fleet, other)) == ("waiting", "done")
        assert world.texts() == ["after"]
        await approve(fleet, first(fleet, held))
        await fleet.wait_until_idle()
        assert state(fleet, held) == "done"
        assert world.effects("big.send") == 1


async def test_a_delivery_that_comes_twice_makes_one_run(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        repeat = job("1", send_proposal())
        receipts = await fleet.send(repeat, repeat)
        await fleet.wait_until_idle()
        later = await fleet.send(repeat)
        await fleet.restart()
        latest = await fleet.send(repeat)
        await fleet.wait_until_idle()
        assert [r.status for r in [*receipts, *later, *latest]] == [
            "accepted", "duplicate", "duplicate", "duplicate",
        ]  # fmt: skip
        assert len(fleet.entries("event.accepted")) == 1
        assert world.effects() == 1


# --- the judge --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["poison", "raise"])
async def test_a_judge_that_raises_ends_its_run_only(
    tmp_path: Path, world: World, how: str
) -> None:
    """`poison` breaks off in `observe`, when the state is already half-way."""
    broken: dict[str, Any] = {how: True}
    before, bad, after = (
        job("1", value=1), job("2", send_proposal(), value=100, **broken), job("3", value=3),
    )  # fmt: skip
    async with toy_fleet(tmp_path, world) as fleet:
        await fleet.send(before, bad, after)
        await fleet.wait_until_idle()
        assert [state(fleet, event) for event in (before, bad, after)] == ["done", "dead", "done"]
        (dead,) = fleet.entries("run.dead")
        assert "RuntimeError: the judge" in fleet.body(dead["seq"])["why"]
        # What the dead run's judge saw is no part of what the next one builds on.
        assert labels(fleet, before, after) == ["sum 1 of 1", "sum 4 of 2"]
        assert world.effects() == 0


@pytest.mark.parametrize("every", [1, 3, 256])
async def test_judgements_after_a_restart_are_those_of_an_undisturbed_run(
    tmp_path: Path, world: World, every: int
) -> None:
    events = [job(str(n), value=n * n) for n in range(12)]

    def fleet_in(folder: Path) -> FleetHarness:
        folder.mkdir()
        fleet = toy_fleet(folder, world)

        def make(name: str) -> Any:
            return build_judge(fleet.app.services.fleet.agents[name], ())

        class Fresh(dict[str, Any]):
            """Judges anew for each opening, as a new process has them."""

            def __getitem__(self, kind: str) -> Any:
                made = judges.get(id(fleet.app))
                if made is None:
                    made = judges[id(fleet.app)] = InProcessReasoner(make, checkpoint_every=every)
                return made

        judges: dict[int, InProcessReasoner] = {}
        fleet._reasoners = Fresh(judge=None)
        return fleet

    async with fleet_in(tmp_path / "calm") as fleet:
        await fleet.send(*events)
        await fleet.wait_until_idle()
        calm = labels(fleet, *events)
    async with fleet_in(tmp_path / "disturbed") as fleet:
        for at, event in enumerate(events):
            await fleet.send(event)
            if at % 5 == 2:
                await fleet.restart()
        await fleet.wait_until_idle()
        assert labels(fleet, *events) == calm
    assert calm[-1] == f"sum {sum(n * n for n in range(12))} of 12"


async def test_a_judge_that_cannot_take_up_its_state_ends_the_run(
    tmp_path: Path, world: World
) -> None:
    lost = ScriptedReasoner([ReasonerJudgement(needs_state=True, observed=False)])
    async with toy_fleet(tmp_path, world, reasoners={"judge": lost}) as fleet:
        event = job("1", send_proposal())
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert state(fleet, event) == "dead"


async def test_what_is_no_action_is_refused_and_the_rest_goes_on(
    tmp_path: Path, world: World
) -> None:
    wrong = [
        propose("nope.at_all", x=1),
        send_proposal(to=Ref("/event/data/nowhere")),
        send_proposal(to=Ref("/secrets/key")),
        send_proposal(to=Ref("/event")),
        propose("wire.send", to=Ref("/charter/desk")),
        propose("wire.send", to=Ref("/charter/desk"), text="x", cc="y"),
        send_proposal(to=["a", "b"]),
        send_proposal(to={"ref": "/charter/desk", "also": {"é": 1}}),
    ]
    event = job("1", *wrong, send_proposal("good"))
    async with toy_fleet(tmp_path, world) as fleet:
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert state(fleet, event) == "done"
        refused = fleet.entries("action.refused")
        assert [entry["ordinal"] for entry in refused] == list(range(len(wrong)))
        whys = [fleet.body(entry["seq"])["why"] for entry in refused]
        assert "declares no tool 'nope.at_all'" in whys[0]
        assert "leads nowhere" in whys[1]
        assert world.texts() == ["good"]


# --- transactional ----------------------------------------------------------------------------


async def test_rows_are_written_in_the_step_that_decides(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        store = fleet.app.store
        event = job("1", note_proposal("one"), note_proposal("two"))
        refused: list[Step] = []

        async def lossy(step: Step) -> Step | None:
            if step.rows and not refused:
                refused.append(step)
                raise StoreFailed("the disk is full")
            return None

        intercept_commits(fleet, lossy)
        await fleet.send(event)
        await wait_until(lambda: bool(refused))
        assert store.runs.row("worker_notes", "k") is None
        assert fleet.entries("action.decided", "effect.done") == []
        await wait_until(lambda: state(fleet, event) == "done")
        # The step that failed left nothing: neither in the store nor in what the line remembers.
        assert store.runs.row("worker_notes", "k") == {"texts": ["one", "two"]}
        kinds = [entry["kind"] for entry in fleet.entries()][-6:]
        assert kinds == [
            "turn.reasoned", "action.decided", "effect.done", "action.decided", "effect.done",
            "run.closed",
        ]  # fmt: skip


async def test_a_transactional_tool_that_fails_fails_alone(tmp_path: Path, world: World) -> None:
    event = job(
        "1",
        note_proposal("raise"),
        propose("note.add", key="another", text="x"),
        note_proposal("good"),
    )
    async with toy_fleet(tmp_path, world) as fleet:
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert [row.effect for row in fleet.actions(event)] == ["failed", "failed", "done"]
        assert fleet.app.store.runs.row("worker_notes", "k") == {"texts": ["good"]}


async def test_a_woken_run_and_its_key_do_not_overwrite_each_other_s_rows(
    tmp_path: Path, world: World
) -> None:
    """A held run that wakes is handled beside its key: both add to the same row."""
    async with toy_fleet(tmp_path, world, mode="ask") as fleet:
        held = [job(f"h{n}", note_proposal(f"h{n}")) for n in range(6)]
        await fleet.send(*held)
        await fleet.wait_until_idle()
        rows = [first(fleet, event) for event in held]
        await fleet.apply_policy(write_policies(tmp_path / "acting", mode="act"))
        fresh = [job(f"n{n}", note_proposal(f"n{n}")) for n in range(6)]
        await asyncio.gather(fleet.send(*fresh), *(approve(fleet, row) for row in rows))
        await fleet.wait_until_idle()
        found = fleet.app.store.runs.row("worker_notes", "k")
        assert found is not None
        assert sorted(found["texts"]) == sorted(f"{c}{n}" for c in "hn" for n in range(6))


# --- calls and their outcomes -----------------------------------------------------------------


async def test_a_retry_waits_longer_each_time_and_ends(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    world.answer = lambda call: Outcome("retry", error="busy")
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        event = job("1", send_proposal())
        await fleet.send(event)
        await fleet.wait_until_idle()
        waits = []
        while state(fleet, event) != "done":
            row = first(fleet, event)
            assert (row.waits, row.effect) == ("target", "intended")
            waits.append(row.not_before_us - clock.now_us())
            calls = len(world.calls)
            clock.advance(waits[-1] - 1)
            await fleet.wait_until_idle()
            assert len(world.calls) == calls, "it did not wait for its time"
            clock.advance(1)
            await fleet.wait_until_idle()
        assert len(world.calls) == 3, "agent.yaml allows three tries"
        assert len({call.key for call in world.calls}) == 1
        assert [call.attempt for call in world.calls] == [1, 2, 3]
        assert 0 < waits[0] < 2 * SECOND
        assert waits[0] < waits[1] * 2
        assert first(fleet, event).effect == "failed"


async def test_a_retry_that_succeeds(tmp_path: Path, world: World, clock: ManualClock) -> None:
    world.answer = lambda call: Outcome("retry") if call.attempt == 1 else None
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        event = job("1", send_proposal())
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert world.effects() == 0
        await fleet.restart()
        clock.advance(10 * SECOND)
        await fleet.wait_until_idle()
        assert (first(fleet, event).effect, world.effects()) == ("done", 1)


async def test_a_call_without_an_answer_in_time_is_repeated_under_its_key(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    gone = threading.Event()

    def answer(call: Call) -> None:
        if call.attempt == 1:
            gone.wait(5)

    world.answer = answer
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        event = job("1", send_proposal(tool="slow.send"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert first(fleet, event).waits == "target"
        gone.set()
        clock.advance(10 * SECOND)
        await fleet.wait_until_idle()
        assert first(fleet, event).effect == "done"
        assert len(world.keys()) == 1


async def test_a_tool_that_raises_has_failed_or_is_unknown(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    world.answer = lambda call: ValueError("a bug")
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        plain, once = job("1", send_proposal()), job("2", send_proposal(tool="bell.ring"), key="z")
        await fleet.send(plain, once)
        await fleet.wait_until_idle()
        assert first(fleet, plain).effect == "failed"
        assert "ValueError: a bug" in str(first(fleet, plain).answer)
        assert (first(fleet, once).effect, first(fleet, once).waits) == ("unknown", "target")
        clock.advance(600 * SECOND)
        await fleet.wait_until_idle()
        assert (first(fleet, once).effect, first(fleet, once).waits) == ("unknown", "approval")


async def crash_in_call(fleet: FleetHarness, world: World, event: Event, *, done: bool) -> None:
    """Let a call come as far as the target (or not quite) and break off there."""
    release = threading.Event()

    def answer(call: Call) -> None:
        if done:
            world.record.append((call.tool, call.key))
        release.wait(10)
        raise ConnectionError("broken off")

    world.answer = answer
    await fleet.send(event)
    await wait_until(lambda: len(world.calls) == 1)
    if done:
        await wait_until(lambda: len(world.record) == 1)
    await fleet.close()
    release.set()
    world.answer = None
    await fleet.open()
    await fleet.wait_until_idle()


@pytest.mark.parametrize("done", [True, False])
async def test_a_queryable_call_found_started_is_asked_about(
    tmp_path: Path, world: World, clock: ManualClock, done: bool
) -> None:
    fleet = toy_fleet(tmp_path, world, clock=clock)
    await fleet.open()
    try:
        event = job("1", send_proposal(tool="order.place"))
        await crash_in_call(fleet, world, event, done=done)
        assert (world.queries, first(fleet, event).waits) == ([], "target"), "it may still be at it"
        clock.advance(31 * SECOND)
        await fleet.wait_until_idle()
        assert len(world.queries) == 1
        assert first(fleet, event).effect == "done"
        assert len(world.calls) == (1 if done else 2), "marked, or repeated"
        assert world.effects() == 1
    finally:
        await fleet.close()


async def test_a_question_that_fails_is_asked_again_and_never_taken_for_no(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    fleet = toy_fleet(tmp_path, world, clock=clock)
    await fleet.open()
    try:
        world.query = lambda call: ConnectionError("not now")
        event = job("1", send_proposal(tool="order.place"))
        await crash_in_call(fleet, world, event, done=True)
        for _ in range(5):
            clock.advance(600 * SECOND)
            await fleet.wait_until_idle()
        assert len(world.queries) == 5
        world.query = None
        clock.advance(600 * SECOND)
        await fleet.wait_until_idle()
        assert first(fleet, event).effect == "done"
        assert (len(world.calls), world.effects()) == (1, 1)
    finally:
        await fleet.close()


async def test_an_unknown_call_is_not_repeated_because_policy_changed(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    """A new decision says that an effect may be; it says nothing of whether it was."""
    fleet = toy_fleet(tmp_path, world, clock=clock)
    await fleet.open()
    try:
        world.query = lambda call: ConnectionError("not now")
        event = job("1", send_proposal(tool="order.place"))
        await crash_in_call(fleet, world, event, done=True)
        await fleet.apply_policy(write_policies(tmp_path / "p2", extra=deny_policy("nothing.real")))
        world.query = None
        clock.advance(600 * SECOND)
        await fleet.wait_until_idle()
        assert (first(fleet, event).effect, world.effects()) == ("done", 1)
    finally:
        await fleet.close()


@pytest.mark.parametrize("answer", ["approve", "deny"])
async def test_a_call_that_nobody_can_be_asked_about_is_for_a_person(
    tmp_path: Path, world: World, clock: ManualClock, answer: str
) -> None:
    fleet = toy_fleet(tmp_path, world, clock=clock)
    await fleet.open()
    try:
        event = job("1", send_proposal(tool="bell.ring"))
        await crash_in_call(fleet, world, event, done=True)
        clock.advance(600 * SECOND)
        await fleet.wait_until_idle()
        row = first(fleet, event)
        assert (row.effect, row.waits, row.hold) == ("unknown", "approval", "open")
        assert world.effects() == 1
        assert [e["kind"] for e in fleet.entries("effect.started", "effect.unknown")] == [
            "effect.started", "effect.unknown",
        ]  # fmt: skip
        command = getattr(fleet.app.commands, answer)
        await command(fleet.order("I looked"), row.id, fleet.shown_digest(row))
        await fleet.wait_until_idle()
        assert state(fleet, event) == "done"
        assert world.effects() == (2 if answer == "approve" else 1)
        assert first(fleet, event).effect == ("done" if answer == "approve" else "failed")
    finally:
        await fleet.close()


async def test_started_is_durable_before_a_call_that_cannot_be_repeated(
    tmp_path: Path, world: World
) -> None:
    seen: dict[str, list[str]] = {}
    async with toy_fleet(tmp_path, world) as fleet:

        def answer(call: Call) -> None:
            from vedette.store.sqlite import SqliteReader

            store = SqliteReader(fleet.folder / "state")
            seen[call.tool] = [a.effect or "" for a in store.runs.actions(call.run)]
            store.close()

        world.answer = answer
        for at, tool in enumerate(("wire.send", "order.place", "bell.ring")):
            await fleet.send(job(str(at), send_proposal(tool=tool), key=tool))
        await fleet.wait_until_idle()
    assert seen == {
        "wire.send": ["intended"], "order.place": ["started"], "bell.ring": ["started"],
    }  # fmt: skip


# --- stops ------------------------------------------------------------------------------------


STOP_TOOL = """package vedette.holds

stops contains "house" if input.action.tool == "wire.send"
"""


async def test_what_a_rule_stops_is_decided_again_now_and_then_and_a_resume_lifts_none_of_it(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    """No order says when a rule's stop is over. Asked at once, it filled the ledger."""
    extra = {"vedette/holds/house.rego": STOP_TOOL}
    async with toy_fleet(tmp_path, world, clock=clock, extra=extra) as fleet:
        event = job("1", send_proposal("hello"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert [(row.decided, row.waits) for row in fleet.actions(event)] == [("hold", "resume")]

        def decided() -> int:
            return len(fleet.entries("action.decided"))

        assert decided() == 1
        await fleet.app.commands.stop(fleet.order(), agent="worker")
        clock.advance(2 * FIRST_STOP_RETRY_US)
        await fleet.wait_until_idle()
        assert decided() == 1, "nothing is decided while a person's stop stands"
        await fleet.app.commands.resume(fleet.order(), agent="worker")
        await fleet.wait_until_idle()
        for _ in range(24 * 60):
            clock.advance(FIRST_STOP_RETRY_US)
            await fleet.wait_until_idle()
        # It is asked ever more seldom, once an hour at last, and nothing is said twice.
        (row,) = fleet.actions(event)
        assert 24 <= row.decisions <= 32
        assert decided() == 1
        assert world.effects() == 0
        assert list(fleet.app.store.ledger.row_mismatches()) == []
        (fleet.policies / "vedette/holds/house.rego").unlink()
        await fleet.apply_policy(fleet.policies)
        clock.advance(MAX_STOP_RETRY_US)
        await fleet.wait_until_idle()
        assert world.effects() == 1
        assert decided() == 2


@pytest.mark.parametrize("what", [{"agent": "worker"}, {"all": True}])
async def test_a_stopped_agent_keeps_its_events_in_order(
    tmp_path: Path, world: World, what: dict[str, Any]
) -> None:
    async with toy_fleet(tmp_path, world, agents=("worker", "helper")) as fleet:
        await fleet.app.commands.stop(fleet.order(), **what)
        mine = [job(f"w{n}", send_proposal(f"w{n}")) for n in range(5)]
        await fleet.send(*mine, job("h", send_proposal("h"), agent="helper"))
        await fleet.wait_until_idle()
        assert world.texts() == ([] if "all" in what else ["h"])
        assert all(state(fleet, event) == "ready" for event in mine)
        await fleet.restart()
        await fleet.wait_until_idle()
        assert all(state(fleet, event) == "ready" for event in mine), "a stop outlives a restart"
        await fleet.app.commands.resume(fleet.order(), **what)
        await fleet.wait_until_idle()
        assert [text for text in world.texts() if text != "h"] == [f"w{n}" for n in range(5)]
        assert "h" in world.texts()


async def test_a_stopped_tool_holds_its_actions_until_it_is_resumed(
    tmp_path: Path, world: World
) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        await fleet.app.commands.stop(fleet.order(), tool="wire.send")
        event, other = (
            job("1", send_proposal("one"), note_proposal("x")),
            job("2", send_proposal("two")),
        )
        await fleet.send(event, other)
        await fleet.wait_until_idle()
        rows = fleet.actions(event)
        assert [(row.decided, row.waits) for row in rows] == [("hold", "resume"), ("permit", None)]
        assert world.effects() == 0
        await fleet.app.commands.resume(fleet.order(), tool="wire.send")
        await fleet.wait_until_idle()
        assert sorted(world.texts()) == ["one", "two"]
        assert first(fleet, event).decisions == 2, "decided again"


async def test_resuming_wakes_an_action_beside_one_that_waits_for_a_person(
    tmp_path: Path, world: World
) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        await fleet.app.commands.stop(fleet.order(), tool="wire.send")
        event = job("1", send_proposal("big", tool="big.send"), send_proposal("small"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert [row.waits for row in fleet.actions(event)] == ["approval", "resume"]
        await fleet.app.commands.resume(fleet.order(), tool="wire.send")
        await fleet.wait_until_idle()
        assert world.texts() == ["small"]
        assert state(fleet, event) == "waiting"


async def test_a_resumed_action_is_decided_under_the_policy_of_that_moment(
    tmp_path: Path, world: World
) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        await fleet.app.commands.stop(fleet.order(), tool="wire.send")
        event = job("1", send_proposal())
        await fleet.send(event)
        await fleet.wait_until_idle()
        await fleet.apply_policy(write_policies(tmp_path / "p2", extra=deny_policy("wire.send")))
        await fleet.app.commands.resume(fleet.order(), tool="wire.send")
        await fleet.wait_until_idle()
        assert (first(fleet, event).decided, first(fleet, event).rule) == ("deny", "denies.test")
        assert world.effects() == 0
        assert state(fleet, event) == "done"


async def test_a_stopped_agent_asks_its_model_for_no_further_turn(
    tmp_path: Path, world: World
) -> None:
    fleet = toy_fleet(tmp_path, world)

    async def stop_then_think(briefing: Briefing) -> ReasonerJudgement:
        script.briefings.append(briefing)
        if len(script.briefings) == 1:
            await fleet.app.commands.stop(fleet.order(), agent="worker")
        return ReasonerJudgement(confidence=1.0, final=briefing.turn >= 3)

    script = ScriptedReasoner([])
    script.reason = stop_then_think  # type: ignore[method-assign]
    fleet._reasoners = {"judge": script}
    async with fleet:
        event = job("1")
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert len(script.briefings) == 1
        assert state(fleet, event) == "ready"
        await fleet.app.commands.resume(fleet.order(), agent="worker")
        await fleet.wait_until_idle()
        assert state(fleet, event) == "done"


# --- modes, limits, hops ----------------------------------------------------------------------


async def test_observe_counts_what_would_be_and_does_nothing(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world, mode="observe") as fleet:
        event = job(
            "1",
            send_proposal(),
            send_proposal(tool="big.send"),
            send_proposal(to="x@evil.example"),
            note_proposal("x"),
        )
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert [entry.get("would") for entry in fleet.entries("action.decided")] == [
            "permit", "hold", "deny", "permit",
        ]  # fmt: skip
        assert fleet.outcomes() == {"deny": 4}
        assert fleet.app.store.runs.row("worker_notes", "k") is None
        assert world.calls == []


async def test_ask_holds_everything(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world, mode="ask") as fleet:
        event = job("1", send_proposal(), note_proposal("x"), send_proposal(to="x@evil.example"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert [row.decided for row in fleet.actions(event)] == ["hold", "hold", "deny"]
        assert (world.calls, fleet.app.store.runs.row("worker_notes", "k")) == ([], None)
        for row in fleet.actions(event)[:2]:
            assert row.rule == "mode.ask"
            await approve(fleet, row)
        await fleet.wait_until_idle()
        assert world.effects() == 1
        assert fleet.app.store.runs.row("worker_notes", "k") == {"texts": ["x"]}
        assert state(fleet, event) == "done"


LIMITS = """\
hops: 8
actions: {default: {minute: 2, hour: 100, day: 100}}
confidence_milli: {default: 800}
complete: true
"""


async def test_a_full_rate_limit_holds_until_its_window_ends(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    extra = {"limits/data.yaml": LIMITS}
    async with toy_fleet(tmp_path, world, extra=extra, clock=clock) as fleet:
        events = [job(str(n), send_proposal(str(n)), key=str(n)) for n in range(5)]
        for event in events:
            await fleet.send(event)
            await fleet.wait_until_idle()
        assert world.texts() == ["0", "1"]
        held = first(fleet, events[4])
        end = clock.now_us() - clock.now_us() % MINUTE_US + MINUTE_US
        assert (held.decided, held.rule, held.waits) == ("hold", "limits.minute", "time")
        assert held.not_before_us == end
        clock.advance(end - clock.now_us() - 1)
        await fleet.wait_until_idle()
        assert len(world.texts()) == 2
        await fleet.restart()
        clock.advance(1)
        await fleet.wait_until_idle()
        assert len(world.texts()) == 4, "the next window takes two more"
        clock.advance(MINUTE_US)
        await fleet.wait_until_idle()
        assert sorted(world.texts()) == [str(n) for n in range(5)], "none is lost"


@pytest.mark.parametrize("answer", ["deny", "approve"])
async def test_a_person_may_answer_a_hold_that_waits_for_time(
    tmp_path: Path, world: World, clock: ManualClock, answer: str
) -> None:
    """No is no, now. Yes does not undo a limit, and does not lose the action either."""
    extra = {"limits/data.yaml": LIMITS.replace("minute: 2", "minute: 1")}
    async with toy_fleet(tmp_path, world, extra=extra, clock=clock) as fleet:
        event = job("2", send_proposal("two"))
        await fleet.send(job("1", send_proposal("one")), event)
        await fleet.wait_until_idle()
        assert first(fleet, event).waits == "time"
        row = first(fleet, event)
        command = getattr(fleet.app.commands, answer)
        await command(fleet.order(), row.id, fleet.shown_digest(row))
        await fleet.wait_until_idle()
        assert world.texts() == ["one"]
        assert state(fleet, event) == ("done" if answer == "deny" else "waiting")
        clock.advance(MINUTE_US)
        await fleet.wait_until_idle()
        assert world.texts() == (["one"] if answer == "deny" else ["one", "two"])
        assert state(fleet, event) == "done"


async def test_hops_and_own_effects_wake_nobody(tmp_path: Path, world: World) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        far = replace(job("far", send_proposal("far")), hops=9, lineage=("a",))
        own = replace(job("own", send_proposal("own")), hops=1, lineage=("worker",))
        through = replace(job("through", send_proposal("ok")), hops=2, lineage=("x", "y"))
        receipts = await fleet.send(far, own, through)
        await fleet.wait_until_idle()
        assert [len(r.runs) for r in receipts] == [0, 0, 1]
        assert [e["woke"] for e in fleet.entries("event.accepted")] == [0, 0, 1]
        assert world.texts() == ["ok"]
        assert world.calls[0].lineage == ("x", "y", "worker"), "what it sends names the way here"


# --- budget -----------------------------------------------------------------------------------


async def test_a_run_without_budget_goes_on_the_next_day(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    thinks = ScriptedReasoner([ReasonerJudgement(model_calls=2)])
    fleet = toy_fleet(
        tmp_path, world, reasoner="adk", reasoners={"adk": thinks}, model_calls=4, clock=clock
    )
    async with fleet:
        events = [job(str(n), key=str(n)) for n in range(5)]
        for event in events[:3]:
            await fleet.send(event)
            await fleet.wait_until_idle()
        assert [state(fleet, event) for event in events[:3]] == ["done", "done", "waiting"]
        assert len(thinks.briefings) == 2
        await fleet.restart()
        await fleet.wait_until_idle()
        assert len(thinks.briefings) == 2, "what was spent is remembered"
        clock.advance(DAY_US)
        await fleet.wait_until_idle()
        assert state(fleet, events[2]) == "done"
        reserved = fleet.entries("budget.reserved")
        assert [entry["spend"] for entry in reserved] == [{"model_calls": 2}] * 3


async def test_what_was_reserved_and_not_used_is_given_back(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    thinks = ScriptedReasoner([ReasonerJudgement(model_calls=1)])
    fleet = toy_fleet(
        tmp_path, world, reasoner="adk", reasoners={"adk": thinks}, model_calls=4, clock=clock
    )
    async with fleet:
        for n in range(6):
            await fleet.send(job(str(n), key=str(n)))
            await fleet.wait_until_idle()
        # 3 used leave room for one, the worst case is two: the fourth has to wait.
        assert len(thinks.briefings) == 3


async def test_a_run_that_wants_too_many_turns_is_a_dead_letter(
    tmp_path: Path, world: World
) -> None:
    thinks = ScriptedReasoner([ReasonerJudgement(final=False)] * 10)
    fleet = toy_fleet(tmp_path, world, reasoner="adk", reasoners={"adk": thinks}, max_turns=3)
    async with fleet:
        event = job("1")
        await fleet.send(event)
        await fleet.wait_until_idle()
        assert state(fleet, event) == "dead"
        assert len(thinks.briefings) == 3


# --- ends in the middle -----------------------------------------------------------------------


async def test_a_close_in_the_middle_loses_nothing(tmp_path: Path, world: World) -> None:
    events = [
        job(f"{key}{n}", send_proposal(f"{key}{n}"), key=key) for n in range(30) for key in "abcd"
    ]
    fleet = toy_fleet(tmp_path, world)
    await fleet.open()
    try:
        await fleet.send(*events)
        for goal in (10, 40, 70):
            await wait_until(lambda goal=goal: len(world.calls) >= goal)  # type: ignore[misc]
            await fleet.restart()
        await fleet.wait_until_idle()
        assert all(state(fleet, event) == "done" for event in events)
        # A call in flight at the close may be repeated: under the same key, so at an idempotent
        # target it is one effect.
        assert len(world.keys()) == len(events)
        for key in "abcd":
            order = list(dict.fromkeys(text for text in world.texts() if text[0] == key))
            assert order == [f"{key}{n}" for n in range(30)]
    finally:
        await fleet.close()


async def test_an_effect_committed_and_not_begun_is_done_after_the_restart(
    tmp_path: Path, world: World
) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        stuck = block_calls(fleet)
        event = job("1", send_proposal("one"), note_proposal("x"))
        await fleet.send(event)
        await wait_until(lambda: bool(stuck.reached_keys))
        assert world.effects() == 0
        await fleet.restart()
        await fleet.wait_until_idle()
        assert (world.effects(), state(fleet, event)) == (1, "done")
        assert list(world.keys()) == stuck.reached_keys
        assert fleet.app.store.runs.row("worker_notes", "k") == {"texts": ["x"]}
        assert len(fleet.entries("turn.reasoned")) == 1, "a recorded turn is not asked again"


async def test_a_failing_store_delays_and_loses_nothing(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        failing = [True]

        async def lossy(step: Step) -> Step | None:
            if failing[0]:
                raise StoreFailed("the disk is full")
            return None

        intercept_commits(fleet, lossy)
        events = [job(str(n), send_proposal(str(n)), value=n) for n in range(4)]
        await fleet.send(*events)
        for _ in range(3):
            clock.advance(SECOND)
            await fleet.wait_until_idle()
        assert world.calls == []
        failing[0] = False
        clock.advance(SECOND)
        await fleet.wait_until_idle()
        assert world.texts() == ["0", "1", "2", "3"]
        assert labels(fleet, *events)[-1] == "sum 6 of 4", "nothing was learned twice"
        # The permits of the failed commits were given back.
        assert fleet.app.services.gateway.counts.totals("worker", "actions", clock.now_us())[
            "day"
        ] == len(events)


# --- answers of people ------------------------------------------------------------------------


async def test_an_answer_while_a_call_is_under_way_is_not_lost(
    tmp_path: Path, world: World
) -> None:
    """The person's entry moves the run on; the outcome of the call is written after it."""
    release = threading.Event()

    def answer(call: Call) -> None:
        if call.args["text"] == "slow":
            release.wait(10)

    world.answer = answer
    async with toy_fleet(tmp_path, world) as fleet:
        event = job("1", send_proposal("big", tool="big.send"), send_proposal("slow"))
        await fleet.send(event)
        await wait_until(lambda: "slow" in world.texts())
        await approve(fleet, first(fleet, event))
        release.set()
        await wait_until(lambda: state(fleet, event) == "done")
        assert sorted(world.texts()) == ["big", "slow"]
        assert world.effects() == 2


async def test_a_hold_that_nobody_answers_expires_to_deny(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        event = job("1", send_proposal(tool="big.send"))
        await fleet.send(event)
        await fleet.wait_until_idle()
        clock.advance(HOLD_EXPIRY_US)
        await fleet.wait_until_idle()
        row = first(fleet, event)
        assert (row.decided, row.hold, row.rule) == ("deny", "expired", "hold.expired")
        assert state(fleet, event) == "done"
        with pytest.raises(BadCommand):
            await approve(fleet, row)
        assert world.effects() == 0


# --- many at once -----------------------------------------------------------------------------


async def test_more_runs_than_there_is_room_for_come_from_the_store_in_order(
    tmp_path: Path, world: World
) -> None:
    fleet = toy_fleet(tmp_path, world)
    await fleet.open()
    try:
        await fleet.app.commands.stop(fleet.order(), all=True)
        events = [job(f"{n}", value=1, key=f"k{n % 7}") for n in range(300)]
        await fleet.send(*events)
        await fleet.close()
        await fleet.open()
        await fleet.app.dispatcher.close()
        from vedette.engine.ingest import EventIntake
        from vedette.engine.scheduler.backpressure import Bounds
        from vedette.engine.scheduler.dispatcher import Dispatcher

        small = Dispatcher(fleet.app.services, handlers=4, bounds=Bounds(room=40))
        fleet.app.dispatcher = small
        fleet.app.intake = EventIntake(fleet.app.services, small, max_event_bytes=262_144)
        small.start()
        await fleet.app.commands.resume(fleet.order(), all=True)
        await fleet.wait_until_idle()
        assert all(state(fleet, event) == "done" for event in events)
        assert (
            labels(fleet, *events[-7:]) == [f"sum {n} of {n}" for n in (43, 43, 43, 43, 43, 43, 42)]
            or len({*labels(fleet, *events)}) == 43
        )
    finally:
        await fleet.close()
