"""Dead letters on the whole line: taken up again, nothing lost and nothing repeated; or closed.

Agents and target are those of the toy fleet; gateway, Rego and store are the real ones, the store
on SQLite and on PostgreSQL.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.pg import server

from vedette.config.settings import StorePlan
from vedette.domain.base.errors import AlreadyDone, BadCommand, Forbidden, StoreFailed
from vedette.domain.effect import Outcome
from vedette.domain.event import Event
from vedette.domain.identity import Principal
from vedette.domain.run import ActionRow, CommitResult, Run, Step
from vedette.engine.scheduler.failure_policy import dead_letter
from vedette.ledger.history.dead_letters import (
    dead_letter_page,
    list_dead_letters,
    show_dead_letter,
)
from vedette.ledger.history.explain import explain
from vedette.ledger.history.ledger_entry import to_ledger_entry
from vedette.ledger.history.projection import Projection
from vedette.store import dead_letters as dead_orders
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import (
    JUDGE_PY,
    World,
    deny_policy,
    job,
    note_proposal,
    send_proposal,
    toy_fleet,
    write_policies,
)

# What makes the judge fail.
# More than a call of the toy fleet takes, and what is waited for beyond it.
A_CALL_US = 32_000_000
FAILS: dict[str, Any] = {"raise": True}
# A judge that fails as long as a file is there: whoever mends it takes that away. It lies outside
# of the agent's folder, of which a snapshot runs that no edit reaches.
MENDABLE = JUDGE_PY.replace(
    'if data.get("raise"):',
    'if data.get("raise") and __import__("pathlib").Path({broken!r}).exists():',
)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["sqlite", "postgresql"])
async def fleet(
    request: pytest.FixtureRequest, tmp_path: Path, world: World, clock: ManualClock
) -> AsyncIterator[FleetHarness]:
    """An open fleet whose judge fails for events that say so, until `mend`."""
    made = toy_fleet(tmp_path, world, clock=clock)
    assert MENDABLE != JUDGE_PY
    judge = MENDABLE.replace("{broken!r}", repr(str(broken(made))))
    (made.content / "agents" / "worker" / "judge.py").write_text(judge)
    broken(made).touch()
    if request.param == "postgresql":
        url_file = tmp_path / "url"
        url_file.write_text(server(fsync=False).fresh())
        made._store = StorePlan("postgresql", url_file=str(url_file))
    async with made:
        yield made


def broken(fleet: FleetHarness) -> Path:
    return fleet.folder / "broken"


def mend(fleet: FleetHarness) -> None:
    broken(fleet).unlink()


def only_run(fleet: FleetHarness, event: Event) -> Run:
    (run,) = fleet.runs(event)
    return run


def only_row(fleet: FleetHarness, event: Event) -> ActionRow:
    (row,) = fleet.actions(event)
    return row


async def handled(fleet: FleetHarness, *events: Event) -> None:
    await fleet.send(*events)
    await fleet.wait_until_idle()


async def buried(fleet: FleetHarness, event: Event) -> Run:
    """Bury a run that waits, as a handler does that meets what it cannot handle."""
    run = only_run(fleet, event)
    assert run.state == "waiting"
    epoch = fleet.app.store.cluster.lease_epoch(run)
    assert epoch is not None
    await dead_letter(fleet.app.services, run, epoch, "Test: buried by hand")
    fleet.app.services.parked_runs.unpark(run)
    store: Any = fleet.app.store
    assert list(store.ledger.row_mismatches()) == []
    return only_run(fleet, event)


async def redriven(
    fleet: FleetHarness, *events: Event, command_id: str | None = None, stands: bool = True
) -> dict[str, Any]:
    """Have runs taken up again; the rows are then what the entries say, or `stands` is false."""
    runs = [only_run(fleet, event).id for event in events]
    order = replace(fleet.order("mended"), command_id=command_id)
    done = await fleet.app.commands.redrive(order, runs)
    store: Any = fleet.app.store
    assert (list(store.ledger.row_mismatches()) == []) is stands
    await fleet.wait_until_idle()
    return done


def labels(fleet: FleetHarness) -> dict[str, str]:
    return {
        entry["event"]: fleet.body(entry["seq"])["label"]
        for entry in fleet.entries("turn.reasoned")
    }


def view_agrees(fleet: FleetHarness) -> None:
    """What is counted from the entries is what the tables of present state say."""
    store: Any = fleet.app.store
    assert list(store.ledger.row_mismatches()) == []
    walked = store.ledger.walk()
    projection = Projection()
    projection.add_entries(to_ledger_entry(seq, raw) for seq, raw, _, _ in walked)
    rows = projection.rows
    by_place = {
        name: number
        for name, number in rows[("agent", "worker")].data.items()
        if name.startswith(("decided.", "hold.", "effect."))
    }
    counted = fleet.app.store.tables.counts()["worker"]
    assert by_place == {
        name: number
        for name, number in counted.items()
        if name.startswith(("decided.", "hold.", "effect."))
    }


# --- a first turn that was never recorded -------------------------------------------------------


async def test_a_run_that_was_never_judged_is_judged_anew_in_its_place(
    fleet: FleetHarness, world: World
) -> None:
    first = job("1", send_proposal("one"), value=1, **FAILS)
    second, third = (
        job("2", send_proposal("two"), value=2),
        job("3", send_proposal("three"), value=4),
    )
    await handled(fleet, first, second)
    assert only_run(fleet, first).state == "dead"
    assert world.texts() == ["two"]
    mend(fleet)
    assert (await redriven(fleet, first))["moved"] == [only_run(fleet, first).id]
    await handled(fleet, third)
    assert world.texts() == ["two", "one", "three"]
    assert set(world.keys().values()) == {1}
    # It was judged without what came after it, and what comes after now includes it.
    assert labels(fleet) == {
        second.key: "sum 2 of 1", first.key: "sum 1 of 1", third.key: "sum 7 of 3",
    }  # fmt: skip
    assert {only_run(fleet, event).state for event in (first, second, third)} == {"done"}
    (entry,) = fleet.entries("run.redriven")
    assert entry["actor"] == "person:tester"
    assert fleet.body(entry["seq"]) == {"reason": "mended"}
    view_agrees(fleet)


async def test_a_dead_letter_is_handled_no_more_though_nobody_heard_of_its_burial(
    fleet: FleetHarness, clock: ManualClock
) -> None:
    """Its commit stands and raises; then nothing but a person's order may take it up again."""
    store: Any = fleet.app.store
    commit = store.steps.commit

    async def unheard(step: Step) -> CommitResult:
        answer: CommitResult = await commit(step)
        if step.state != "dead":
            return answer
        store.steps.commit = commit
        mend(fleet)
        raise StoreFailed("the connection broke")

    store.steps.commit = unheard
    dead, after = job("1", note_proposal("a"), **FAILS), job("2", note_proposal("b"))
    await fleet.send(dead, after)
    for _ in range(10):
        clock.advance(200_000)
        await asyncio.sleep(0.06)
        await fleet.wait_until_idle()
    assert [run.state for each in (dead, after) for run in fleet.runs(each)] == ["dead", "done"]
    (entries,) = fleet.entries("turn.reasoned")
    assert entries["event"] == after.key


async def test_the_order_survives_a_restart_before_it_is_acted_on(
    fleet: FleetHarness, world: World
) -> None:
    event = job("1", send_proposal("one"), **FAILS)
    await handled(fleet, event)
    mend(fleet)
    await fleet.app.dispatcher.close()
    await fleet.app.commands.redrive(fleet.order(), [only_run(fleet, event).id])
    assert only_run(fleet, event).state == "waiting"
    await fleet.restart()
    await fleet.wait_until_idle()
    assert only_run(fleet, event).state == "done"
    assert world.texts() == ["one"]


async def test_what_is_not_mended_dies_again_and_may_be_taken_up_again(
    fleet: FleetHarness, world: World
) -> None:
    event = job("1", send_proposal("one"), **FAILS)
    await handled(fleet, event)
    await redriven(fleet, event, command_id="first")
    assert only_run(fleet, event).state == "dead"
    mend(fleet)
    with pytest.raises(AlreadyDone):
        await redriven(fleet, event, command_id="first")
    assert (only_run(fleet, event).state, world.calls) == ("dead", [])
    await redriven(fleet, event, command_id="second")
    assert only_run(fleet, event).state == "done"
    assert len(fleet.entries("run.redriven")) == 2
    assert explain(fleet.app.store, event.key)["runs"][0]["dead"] is None
    view_agrees(fleet)


# --- effects that may have happened -------------------------------------------------------------


async def test_a_queryable_effect_that_happened_is_found_and_not_repeated(
    fleet: FleetHarness, world: World, clock: ManualClock
) -> None:
    world.answer, world.loses_answer = lambda _: ConnectionError("lost"), True
    world.query = lambda _: ConnectionError("not there")
    event = job("1", send_proposal(tool="order.place"))
    await handled(fleet, event)
    run = await buried(fleet, event)
    assert (run.state, only_row(fleet, event).effect) == ("dead", "unknown")
    world.answer, world.query = None, None
    clock.advance(A_CALL_US)
    await redriven(fleet, event)
    assert (only_row(fleet, event).effect, world.effects()) == ("done", 1)
    (done,) = fleet.entries("effect.done")
    assert done["verified"] is True, "it is the target's word"
    assert only_run(fleet, event).state == "done"
    view_agrees(fleet)


async def test_a_queryable_effect_that_did_not_happen_is_decided_again_and_made(
    fleet: FleetHarness, world: World, clock: ManualClock
) -> None:
    world.answer = lambda _: ConnectionError("lost")
    world.query = lambda _: ConnectionError("not there")
    event = job("1", send_proposal(tool="order.place"))
    await handled(fleet, event)
    await buried(fleet, event)
    world.answer, world.query = None, None
    question, decided = len(world.queries), len(fleet.entries("action.decided"))
    clock.advance(A_CALL_US)
    await redriven(fleet, event)
    assert len(world.queries) > question, "it is asked before anything is repeated"
    assert len(fleet.entries("action.decided")) == decided + 1
    assert (only_row(fleet, event).effect, world.effects()) == ("done", 1)
    view_agrees(fleet)


async def test_an_effect_that_nobody_can_ask_about_is_left_to_a_person(
    fleet: FleetHarness, world: World, clock: ManualClock
) -> None:
    world.answer, world.loses_answer = lambda _: ConnectionError("lost"), True
    event = job("1", send_proposal(tool="bell.ring"))
    await handled(fleet, event)
    await buried(fleet, event)
    world.answer = None
    await redriven(fleet, event)
    clock.advance(600 * 1_000_000)
    await fleet.wait_until_idle()
    row = only_row(fleet, event)
    assert (row.effect, row.hold, row.waits) == ("unknown", "open", "approval")
    assert world.effects() == 1, "nothing is repeated before somebody says so"
    await fleet.approve(row, "ring again")
    await fleet.wait_until_idle()
    assert world.effects() == 2
    assert only_run(fleet, event).state == "done"
    view_agrees(fleet)


async def test_an_idempotent_effect_is_decided_again_and_repeated_under_its_key(
    fleet: FleetHarness, world: World, clock: ManualClock
) -> None:
    world.answer, world.loses_answer = lambda _: Outcome("unknown", error="lost"), True
    event = job("1", send_proposal())
    await handled(fleet, event)
    await buried(fleet, event)
    world.answer = None
    decided = len(fleet.entries("action.decided"))
    await redriven(fleet, event)
    assert len(fleet.entries("action.decided")) == decided + 1
    assert len(world.keys()) == 1
    assert only_row(fleet, event).effect == "done"
    view_agrees(fleet)


async def test_what_policy_denies_by_now_is_not_repeated(
    fleet: FleetHarness, world: World, tmp_path: Path, clock: ManualClock
) -> None:
    world.answer = lambda _: Outcome("unknown", error="lost")
    event = job("1", send_proposal())
    await handled(fleet, event)
    await buried(fleet, event)
    calls = len(world.calls)
    await fleet.apply_policy(write_policies(tmp_path / "stricter", extra=deny_policy("wire.send")))
    await redriven(fleet, event)
    for _ in range(2):
        clock.advance(A_CALL_US)
        await fleet.wait_until_idle()
    row = only_row(fleet, event)
    assert (len(world.calls), row.decided) == (calls, "deny")
    entries = [entry["kind"] for entry in fleet.entries("effect.unknown", "effect.cancelled")]
    assert set(entries) == {"effect.unknown"}, "nobody knows whether it happened"
    assert only_run(fleet, event).state == "done"


async def test_what_waited_for_a_person_waits_for_one_again(
    fleet: FleetHarness, world: World
) -> None:
    event = job("1", send_proposal(tool="big.send"), note_proposal("kept"))
    await handled(fleet, event)
    held = next(row for row in fleet.actions(event) if row.tool == "big.send")
    await fleet.app.dispatcher.close()
    await fleet.approve(held)
    run = only_run(fleet, event)
    await dead_letter(
        fleet.app.services,
        run,
        fleet.app.store.cluster.lease_epoch(run) or 0,
        "Test: buried by hand",
    )
    await fleet.restart()
    await redriven(fleet, event)
    held = next(row for row in fleet.actions(event) if row.tool == "big.send")
    assert (held.hold, held.waits, world.calls) == ("open", "approval", [])
    texts = fleet.app.store.runs.row("worker_notes", "k")
    assert texts == {"texts": ["kept"]}, "what was done stays done, once"
    await fleet.approve(held)
    await fleet.wait_until_idle()
    assert world.effects("big.send") == 1
    view_agrees(fleet)


async def test_without_finding_out_first_it_would_happen_twice(
    fleet: FleetHarness, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: a redrive that takes what is unknown for not begun repeats it."""

    def forgetful(row: ActionRow) -> None:
        row.decided, row.rule, row.effect, row.hold, row.waits = None, "", None, None, None
        row.not_before_us = 0

    monkeypatch.setattr(dead_orders, "reopen_action", forgetful)
    world.answer, world.loses_answer = lambda _: ConnectionError("lost"), True
    event = job("1", send_proposal(tool="bell.ring"))
    await handled(fleet, event)
    await buried(fleet, event)
    world.answer = None
    await redriven(fleet, event, stands=False)
    assert world.effects() == 2


# --- closing for good ---------------------------------------------------------------------------


async def test_a_dropped_run_stays_closed_and_its_content_can_go(
    fleet: FleetHarness, world: World
) -> None:
    world.answer = lambda _: ConnectionError("lost")
    event = job("1", send_proposal(tool="bell.ring"))
    await handled(fleet, event)
    run = await buried(fleet, event)
    calls = len(world.calls)
    done = await fleet.app.commands.drop(fleet.order("of no use any more"), [run.id])
    assert done == {"moved": [run.id], "refused": []}
    await fleet.wait_until_idle()
    assert (only_run(fleet, event).state, len(world.calls)) == ("done", calls)
    (entry,) = fleet.entries("run.dropped")
    assert fleet.body(entry["seq"])["reason"] == "of no use any more"
    for verb in (fleet.app.commands.redrive, fleet.app.commands.drop):
        with pytest.raises(BadCommand, match="no dead letter, it is done"):
            await verb(fleet.order(), [run.id])
    assert (await fleet.app.commands.erase(fleet.order(), event=event.key))["erased"]
    view_agrees(fleet)


async def test_a_run_without_its_content_cannot_be_taken_up_again(fleet: FleetHarness) -> None:
    event = job("1", **FAILS)
    await handled(fleet, event)
    await fleet.app.commands.erase(fleet.order(), event=event.key)
    with pytest.raises(BadCommand, match="its content was erased"):
        await redriven(fleet, event)
    assert only_run(fleet, event).state == "dead"
    assert not fleet.entries("run.redriven")
    await fleet.app.commands.drop(fleet.order(), [only_run(fleet, event).id])
    assert only_run(fleet, event).state == "done"


async def test_who_may_order_and_what_is_no_order(fleet: FleetHarness) -> None:
    event = job("1", **FAILS)
    await handled(fleet, event, job("2"))
    run, done = only_run(fleet, event), only_run(fleet, job("2"))
    commands, order = fleet.app.commands, fleet.order()
    with pytest.raises(BadCommand, match="there is no run 'run_0'"):
        await commands.redrive(order, ["run_0"])
    with pytest.raises(BadCommand, match="it is done"):
        await commands.redrive(order, [done.id])
    with pytest.raises(BadCommand, match="names 1 to 1000 runs"):
        await commands.redrive(order, [])
    with pytest.raises(BadCommand, match="reason is missing"):
        await commands.redrive(replace(order, reason=" "), [run.id])
    with pytest.raises(Forbidden):
        await commands.drop(replace(order, principal=Principal("engine", "line")), [run.id])
    # Of several those that can be are moved, and it is said why others are not.
    answer = await commands.redrive(order, [done.id, run.id])
    assert answer["moved"] == [run.id]
    assert answer["refused"] == [{"run": done.id, "why": "it is no dead letter, it is done"}]


# --- what people see ----------------------------------------------------------------------------


async def test_pages_filters_and_one_letter(
    fleet: FleetHarness, world: World, clock: ManualClock
) -> None:
    poisoned = [job(f"p{n}", key=f"p{n}", poison=True) for n in range(3)]
    raising = [job(f"r{n}", key=f"r{n}", **FAILS) for n in range(4)]
    world.answer = lambda _: ConnectionError("lost")
    ringing = job("1", send_proposal(tool="bell.ring"), key="bell")
    await handled(fleet, *poisoned, *raising, ringing, job("fine"))
    await buried(fleet, ringing)
    store, now = fleet.app.store, clock.now_us()
    found: list[str] = []
    cursor = None
    for _ in range(3):
        page = dead_letter_page(store, now, before=cursor, limit=3)
        found += [item["run"] for item in page["items"]]
        cursor = page["older"]
    assert cursor is None
    expected = [only_run(fleet, event).id for event in (*poisoned, *raising, ringing)]
    assert found == expected[::-1]
    by_error = dead_letter_page(store, now, error="Test")["items"]
    assert [item["run"] for item in by_error] == [only_run(fleet, ringing).id]
    assert by_error[0]["unknown"] == [only_row(fleet, ringing).id]
    assert (
        dead_letter_page(store, now, agent="worker", error="RuntimeError", limit=200)["older"]
        is None
    )
    assert list_dead_letters(store, error="RuntimeError", most=7) == (expected[-2::-1], False)
    assert list_dead_letters(store, error="RuntimeError", most=6) == (expected[-2:0:-1], True)
    assert list_dead_letters(store, error="KeyError") == ([], False)
    assert list_dead_letters(store, agent="nobody") == ([], False)
    shown = show_dead_letter(store, expected[3][:24])
    assert (shown["error"], shown["why"]) == ("RuntimeError", "RuntimeError: the judge gave up")
    assert "judge.py" in shown["trace"]
    assert shown["timeline"][-1]["kind"] == "run.dead"
    with pytest.raises(BadCommand, match="is no dead letter, it is done"):
        show_dead_letter(store, only_run(fleet, job("fine")).id)
    wrong: list[dict[str, Any]] = [{"limit": 0}, {"limit": 201}, {"before": "x"}]
    for bad in wrong:
        with pytest.raises(BadCommand):
            dead_letter_page(store, now, **bad)
