"""An approval outlives a lost answer and a publication; what may be repeated is not left unknown.

Agents and target are those of the toy fleet; gateway, Rego and the stores are the real ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.engine.test_dead_letters import view_agrees
from tests.pg import server

from vedette.config.settings import StorePlan
from vedette.domain.effect import Outcome
from vedette.domain.event import Event
from vedette.domain.run import ActionRow
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import (
    World,
    deny_policy,
    job,
    propose,
    send_proposal,
    toy_fleet,
    write_policies,
)

SECOND = 1_000_000
HOUR_US = 3_600 * SECOND
CALL_US = 32 * SECOND


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["sqlite"])
async def fleet(
    request: pytest.FixtureRequest, tmp_path: Path, world: World, clock: ManualClock
) -> AsyncIterator[FleetHarness]:
    """A fleet whose queryable tool is held for a person, as its high-impact one is."""
    made = toy_fleet(tmp_path, world, clock=clock)
    yaml = made.content / "agents" / "worker" / "agent.yaml"
    settlement = "settles: queryable, function: act, query: ask, target: world,"
    text = yaml.read_text()
    assert settlement in text
    yaml.write_text(text.replace(settlement, settlement + " high_impact: true,"))
    if request.param == "postgresql":
        file = tmp_path / "url"
        file.write_text(server(fsync=False).fresh())
        made._store = StorePlan("postgresql", url_file=str(file))
    async with made as fleet:
        yield fleet


def row_of(fleet: FleetHarness, event: Event) -> ActionRow:
    (row,) = fleet.actions(event)
    return row


async def published(fleet: FleetHarness, name: str, *denied: str) -> None:
    """Publish another policy, which denies some tools."""
    extra = {path: text for tool in denied for path, text in deny_policy(tool).items()}
    extra = extra or {f"vedette/denies/{name}.rego": f"package vedette.denies\n\n# {name}\n"}
    await fleet.apply_policy(write_policies(fleet.folder / name, extra=extra))
    await fleet.wait_until_idle()


async def approved_and_lost(
    fleet: FleetHarness, world: World, tool: str, *, happened: bool
) -> Event:
    """Let a person approve a call whose answer is lost, behind the effect or before it."""
    event = job("1", send_proposal(tool=tool))
    await fleet.send(event)
    await fleet.wait_until_idle()
    world.answer, world.loses_answer = lambda _: ConnectionError("lost"), happened
    if tool == "big.send":
        world.answer = lambda _: Outcome("unknown", error="lost")
    await fleet.approve(row_of(fleet, event))
    await fleet.wait_until_idle()
    assert len(world.calls) == 1
    world.answer = None
    return event


async def later(fleet: FleetHarness, clock: ManualClock, by_us: int = CALL_US) -> None:
    clock.advance(by_us)
    await fleet.wait_until_idle()


@pytest.mark.parametrize(
    ("tool", "happened", "restart"),
    [
        ("order.place", True, False), ("order.place", False, True),
        ("big.send", True, True), ("big.send", False, False),
    ],
)  # fmt: skip
async def test_an_approved_call_whose_answer_was_lost_is_not_asked_for_again(
    fleet: FleetHarness, world: World, clock: ManualClock, tool: str, happened: bool, restart: bool
) -> None:
    event = await approved_and_lost(fleet, world, tool, happened=happened)
    await published(fleet, "p2")
    if restart:
        await fleet.restart()
    await published(fleet, "p3")
    await later(fleet, clock)
    row = row_of(fleet, event)
    assert (row.effect, row.hold, row.waits) == ("done", "used", None)
    assert len(world.keys()) == 1
    if tool == "order.place":
        assert len(world.calls) == (1 if happened else 2)
    assert len(fleet.entries("hold.approved")) == 1
    assert fleet.entries("effect.unknown") == [] or tool == "order.place"
    assert [run.state for run in fleet.runs(event)] == ["done"]
    view_agrees(fleet)


@pytest.mark.parametrize("fleet", ["sqlite", "postgresql"], indirect=True)
async def test_what_is_repeated_is_decided_with_the_approval_under_the_newest_policy(
    fleet: FleetHarness, world: World, clock: ManualClock
) -> None:
    event = await approved_and_lost(fleet, world, "order.place", happened=False)
    await published(fleet, "p2")
    await later(fleet, clock)
    decided = fleet.entries("action.decided")
    assert [entry["outcome"] for entry in decided] == ["hold", "permit", "permit"]
    assert decided[-1]["policy_rev"] > decided[-2]["policy_rev"]
    given = fleet.body(decided[-1]["seq"])["question"]["context"]["approvals"]
    assert [each["action_digest"] for each in given] == [row_of(fleet, event).digest]


async def test_a_newer_policy_that_denies_is_not_outdone_by_an_approval(
    fleet: FleetHarness, world: World, clock: ManualClock
) -> None:
    event = await approved_and_lost(fleet, world, "order.place", happened=False)
    await published(fleet, "p2", "order.place")
    await later(fleet, clock)
    row = row_of(fleet, event)
    assert (row.decided, row.effect, len(world.calls)) == ("deny", "cancelled", 1)


async def test_an_approval_that_has_ended_is_asked_for_again(
    fleet: FleetHarness, world: World, clock: ManualClock
) -> None:
    """The control: it stands until its end and no longer."""
    event = await approved_and_lost(fleet, world, "order.place", happened=False)
    world.query = lambda _: ConnectionError("not there")
    await later(fleet, clock, 73 * HOUR_US)
    await published(fleet, "p2")
    world.query = None
    await later(fleet, clock, HOUR_US)
    row = row_of(fleet, event)
    assert (row.hold, row.waits, row.approver, len(world.calls)) == ("open", "approval", None, 1)


async def test_an_approval_is_over_once_its_effect_is(
    fleet: FleetHarness, world: World, clock: ManualClock
) -> None:
    event = job("1", send_proposal(tool="big.send"))
    await fleet.send(event)
    await fleet.wait_until_idle()
    await fleet.approve(row_of(fleet, event))
    await fleet.wait_until_idle()
    repeat = job("2", send_proposal(tool="big.send"))
    await fleet.send(repeat)
    await fleet.wait_until_idle()
    assert row_of(fleet, repeat).hold == "open"
    await published(fleet, "p2")
    await later(fleet, clock)
    assert len(world.calls) == 1


# --- what may be repeated under its key -----------------------------------------------------------


async def lost(fleet: FleetHarness, world: World, event: Event, *, happened: bool) -> None:
    """Let the answer of an idempotent call be lost."""
    world.answer, world.loses_answer = lambda _: Outcome("unknown", error="lost"), happened
    await fleet.send(event)
    await fleet.wait_until_idle()
    world.answer = None


@pytest.mark.parametrize(
    ("fleet", "happened", "restart"),
    [("sqlite", True, False), ("sqlite", False, True), ("postgresql", True, True)],
    indirect=["fleet"],
)
async def test_a_denial_of_an_instant_leaves_nothing_unknown(
    fleet: FleetHarness, world: World, clock: ManualClock, happened: bool, restart: bool
) -> None:
    event = job("1", send_proposal())
    await lost(fleet, world, event, happened=happened)
    await published(fleet, "p2", "wire.send")
    await later(fleet, clock, SECOND)
    row = row_of(fleet, event)
    assert (row.waits, len(world.calls)) == ("policy", 1), "nothing is called while it is denied"
    if restart:
        await fleet.restart()
        await fleet.wait_until_idle()
    await published(fleet, "p3")
    await later(fleet, clock, 2 * SECOND)
    assert (row_of(fleet, event).effect, len(world.keys())) == ("done", 1)
    assert fleet.entries("effect.unknown") == []
    assert [run.state for run in fleet.runs(event)] == ["done"]
    view_agrees(fleet)


async def test_a_denial_that_lasts_says_that_nobody_knows(
    fleet: FleetHarness, world: World, clock: ManualClock
) -> None:
    event = job("1", send_proposal())
    await lost(fleet, world, event, happened=True)
    await published(fleet, "p2", "wire.send")
    for _ in range(40):
        await later(fleet, clock, SECOND)
    row = row_of(fleet, event)
    assert (row.decided, row.effect, row.waits) == ("deny", "cancelled", None)
    assert len(fleet.entries("effect.unknown")) == 1
    assert [run.state for run in fleet.runs(event)] == ["done"]
    denied = [e for e in fleet.entries("action.decided") if e["outcome"] == "deny"]
    assert len(denied) == 2, "as it was denied first, and for good"
    assert list(fleet.app.store.ledger.row_mismatches()) == []


@pytest.mark.parametrize("fleet", ["sqlite", "postgresql"], indirect=True)
async def test_what_never_began_is_cancelled_at_once(
    fleet: FleetHarness, world: World, clock: ManualClock
) -> None:
    """The control: only what may have happened is looked at again."""
    world.answer = lambda _: Outcome("retry", error="not now")
    for number in range(6):
        await fleet.send(job(f"b{number}", propose("book.look", name="x"), key=f"b{number}"))
        await fleet.wait_until_idle()
    event = job("1", send_proposal(), key="other")
    await fleet.send(event)
    await fleet.wait_until_idle()
    assert row_of(fleet, event).tries == 0, "its target is left alone"
    await published(fleet, "p2", "wire.send")
    await later(fleet, clock, 2 * HOUR_US)
    if fleet.app.store.cluster.multi_worker:
        # What this process did not decide itself another worker may have begun.
        assert row_of(fleet, event).waits == "policy"
    else:
        row = row_of(fleet, event)
        assert (row.decided, row.effect) == ("deny", "cancelled")
        assert len(fleet.entries("effect.cancelled")) == 1
    assert all(call.tool == "book.look" for call in world.calls)


async def test_a_burial_of_what_is_denied_says_that_nobody_knows(
    fleet: FleetHarness, world: World, clock: ManualClock
) -> None:
    from vedette.engine.scheduler.failure_policy import dead_letter

    event = job("1", send_proposal())
    await lost(fleet, world, event, happened=False)
    await published(fleet, "p2", "wire.send")
    await later(fleet, clock, SECOND)
    (run,) = fleet.runs(event)
    epoch = fleet.app.store.cluster.lease_epoch(run)
    assert epoch is not None
    await dead_letter(fleet.app.services, run, epoch, "a test")
    assert len(fleet.entries("effect.unknown")) == 1
    await published(fleet, "p3")
    await fleet.submit_confirmed("redrive", runs=[run.id])
    await later(fleet, clock, SECOND)
    assert (row_of(fleet, event).effect, len(world.keys())) == ("done", 1)
    view_agrees(fleet)
