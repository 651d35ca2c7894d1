"""An answer to a hold is for what was shown: compared in its commit, whatever was read before."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.contract.store.test_store import ADAPTERS, by_person

from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import AlreadyDone, BadCommand, DisplayMismatch
from vedette.domain.decision import Decision
from vedette.domain.display import DISPLAYS_KEY, Display
from vedette.domain.effect import Outcome
from vedette.domain.entry import Draft
from vedette.domain.run import ActionRow
from vedette.ledger.history.lists import hold_item
from vedette.operations.commands import Order
from vedette.testing import toy_fleet as toy
from vedette.testing.harness import FleetHarness
from vedette.testing.sample_steps import (
    accept_events,
    decision_entry,
    entry,
    event,
    held_action,
    step,
)
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet, wait_until

LOST = Outcome("unknown", error="no answer")


# --- the commit of an answer, on every store -------------------------------------------------


async def hold_one(store: Any) -> ActionRow:
    (run,) = await accept_events(store, event(1))
    row = held_action(run)
    question = decision_entry(
        run, row, Decision("hold", "impact.high", ("high impact",), wait="approval"), back=1
    )
    turn = entry(run, "turn.reasoned", turn=1, text="t")
    waiting = step(
        store, run, turn, question, actions=[row], state="waiting", waits="approval", turn=1
    )
    await store.steps.commit(waiting)
    return row


def shown_of(store: Any, id: str) -> str:
    digest: str = hold_item(store, store.runs.action(id), 0)["shown_digest"]
    return digest


async def move_on(store: Any, id: str, *drafts: Draft, **fields: Any) -> None:
    """Commit a step of the action's run that makes its row another, as a worker does."""
    row = store.runs.action(id)
    for name, value in fields.items():
        setattr(row, name, value)
    run = store.runs.run(row.run)
    await store.steps.commit(
        step(store, run, *drafts, actions=[row], state="waiting", waits="approval")
    )


async def make_call(store: Any, id: str) -> None:
    """Act on an approval: the call's answer is lost, and a person is asked again."""
    run = store.runs.run(store.runs.action(id).run)
    draft = entry(run, "effect.unknown", action=id)
    await move_on(store, id, draft, hold="open", waits="approval", approver=None, effect="unknown")


async def answer(store: Any, id: str, to: Any, shown: str | None, **more: Any) -> None:
    draft = by_person(f"hold.{to}", agent="watcher", action=id, shown_digest=shown)
    await store.commands.transition_hold(
        id, to, draft, approver="person:kim", until_us=2**50, **more
    )


@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS.keys())
@pytest.mark.parametrize("to", ["approved", "denied"])
@pytest.mark.parametrize("became", ["tried", "tried again", "held again", "shown otherwise"])
async def test_an_answer_to_what_became_another_is_refused_in_its_commit(
    adapter: Any, tmp_path: Path, to: str, became: str
) -> None:
    store = adapter(tmp_path / "state")
    row = await hold_one(store)
    if became == "tried again":
        await answer(store, row.id, "approved", shown_of(store, row.id))
        await make_call(store, row.id)
    shown = shown_of(store, row.id)
    if became == "shown otherwise":
        other = Display("metric.point", title="/data/value").to_json()
        await store.commands.set_meta(DISPLAYS_KEY, canonical_json([other]).decode())
    else:
        # Another person was faster, for the very same.
        await answer(store, row.id, "approved", shown)
        if became == "held again":
            await move_on(store, row.id, hold="open", approver=None)
        else:
            await make_call(store, row.id)
    head, before = store.ledger.last_seq(), store.runs.action(row.id)
    assert before.hold == "open"
    with pytest.raises(DisplayMismatch, match="is not what was shown"):
        await answer(store, row.id, to, shown, command="late")
    assert (store.ledger.last_seq(), store.runs.action(row.id)) == (head, before)
    # The control: what is there by now is answered, by the same order.
    await answer(store, row.id, to, shown_of(store, row.id), command="late")
    assert store.runs.action(row.id).hold == to
    with pytest.raises(AlreadyDone):
        await answer(store, row.id, to, shown, command="late")
    store.close()


@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS.keys())
async def test_a_no_to_what_was_shown_takes_an_approval_back(adapter: Any, tmp_path: Path) -> None:
    """An approval that nobody has acted on makes no other hold of it: a no is always the safer."""
    store = adapter(tmp_path / "state")
    row = await hold_one(store)
    shown = shown_of(store, row.id)
    await answer(store, row.id, "approved", shown)
    with pytest.raises(BadCommand, match="is approved and cannot become approved"):
        await answer(store, row.id, "approved", shown)
    await answer(store, row.id, "denied", shown)
    assert store.runs.action(row.id).hold == "denied"
    store.close()


# --- a whole fleet ----------------------------------------------------------------------------


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """The bell can be neither asked about nor rung again by itself; its answer is lost."""
    short = "{name: bell.ring", "timeout: 30s", "timeout: 100ms"
    at = toy.AGENT_YAML.index(short[0])
    yaml = toy.AGENT_YAML[:at] + toy.AGENT_YAML[at:].replace(*short[1:], 1)
    monkeypatch.setattr(toy, "AGENT_YAML", yaml)
    return World(answer=lambda call: LOST, loses_answer=True)


async def hold_bell(fleet: FleetHarness) -> ActionRow:
    await fleet.send(job("1", send_proposal("hello", tool="bell.ring")))
    await fleet.wait_until_idle()
    (row,) = fleet.actions(job("1"))
    assert (row.hold, row.waits, row.effect) == ("open", "approval", None)
    return row


def by(fleet: FleetHarness, name: str) -> Order:
    return fleet.order(f"{name} looked")


def is_held_anew(fleet: FleetHarness, id: str, rung: int, world: World) -> bool:
    row = fleet.app.store.runs.action(id)
    assert row is not None
    return (row.hold, row.effect, world.effects()) == ("open", "unknown", rung)


@pytest.mark.parametrize("verb", ["approve", "deny"])
@pytest.mark.parametrize(("rung", "races"), [(0, True), (1, False)])
async def test_two_people_saw_one_hold_and_the_slower_answers_no_other(
    tmp_path: Path, world: World, verb: str, rung: int, races: bool
) -> None:
    """The faster one's approval was acted on; the hold is open again, for a repeat of the call.

    With `races` all of that comes between what the slower one's order reads and its commit.
    """
    async with toy_fleet(tmp_path, world, mode="ask") as fleet:
        row, commands = await hold_bell(fleet), fleet.app.commands
        if rung:  # then both holds look alike: nobody knows whether it rang
            await fleet.approve(row)
            await wait_until(lambda: is_held_anew(fleet, row.id, 1, world))
        now = fleet.app.store.runs.action(row.id)
        assert now is not None
        digest = fleet.shown_digest(now)
        store: Any = fleet.app.store
        settle_hold = store.commands.transition_hold

        async def be_faster() -> None:
            store.commands.transition_hold = settle_hold
            await commands.approve(by(fleet, "kim"), row.id, digest)
            await wait_until(lambda: is_held_anew(fleet, row.id, rung + 1, world))

        async def commit_later(*args: Any, **more: Any) -> Any:
            await be_faster()
            return await settle_hold(*args, **more)

        if races:
            store.commands.transition_hold = commit_later
        else:
            await be_faster()
        with pytest.raises(DisplayMismatch):
            await getattr(commands, verb)(by(fleet, "dee"), row.id, digest)
        await fleet.wait_until_idle()
        assert is_held_anew(fleet, row.id, rung + 1, world)


async def test_an_answer_while_the_call_is_under_way_is_for_no_hold_that_comes_of_it(
    tmp_path: Path, world: World
) -> None:
    """It is read as used; the step that asks again commits before whatever is sent then."""
    gate = threading.Event()

    def answer(call: Any) -> Outcome:
        gate.wait(5)
        return LOST

    world.answer = answer
    async with toy_fleet(tmp_path, world, mode="ask") as fleet:
        row, commands = await hold_bell(fleet), fleet.app.commands
        digest = fleet.shown_digest(row)
        store: Any = fleet.app.store
        await commands.approve(by(fleet, "kim"), row.id, digest)
        await wait_until(lambda: bool(world.calls))
        assert store.runs.action(row.id).hold == "used"
        settle_hold = store.commands.transition_hold

        async def commit_later(*args: Any, **more: Any) -> Any:
            gate.set()
            await wait_until(lambda: is_held_anew(fleet, row.id, 1, world))
            return await settle_hold(*args, **more)

        store.commands.transition_hold = commit_later
        with pytest.raises(BadCommand):
            await commands.approve(by(fleet, "dee"), row.id, digest)
        gate.set()
        await wait_until(lambda: is_held_anew(fleet, row.id, 1, world))
        await fleet.wait_until_idle()
        assert len(fleet.entries("hold.approved")) == world.effects() == 1


async def test_a_repeated_answer_is_one_also_where_it_was_acted_on(
    tmp_path: Path, world: World
) -> None:
    async with toy_fleet(tmp_path, world, mode="ask") as fleet:
        row, commands = await hold_bell(fleet), fleet.app.commands
        order = Order(fleet.order().principal, "once", "c1")
        digest = fleet.shown_digest(row)
        await commands.approve(order, row.id, digest)
        with pytest.raises(AlreadyDone):
            await commands.approve(order, row.id, digest)
        await wait_until(lambda: is_held_anew(fleet, row.id, 1, world))
        with pytest.raises(AlreadyDone):
            await commands.approve(order, row.id, digest)
