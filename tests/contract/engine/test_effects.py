"""Effects on the whole line: verified or claimed, whatever a tool raises, and what nobody knows.

Agents and target are those of the toy fleet; gateway, Rego and store are the real ones.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vedette.adapters.tools.in_process import InProcessTools
from vedette.domain.base.errors import BadFleet
from vedette.domain.effect import Call, Outcome
from vedette.domain.event import Event
from vedette.domain.run import ActionRow
from vedette.domain.tool import Tool
from vedette.engine.scheduler.failure_policy import dead_letter
from vedette.engine.tool_calls import make_call
from vedette.interfaces.render.explain_text import explain_text
from vedette.ledger.history.explain import explain
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import (
    World,
    deny_policy,
    job,
    note_proposal,
    send_proposal,
    toy_fleet,
    wait_until,
    write_policies,
)

HOUR_US = 3_600_000_000
OBLIGES = {
    "vedette/gateway/verify.rego": (
        "package vedette.gateway\n\n"
        'obligations contains {"type": "verify"} if input.action.tool in {"wire.send", "bell.ring",'
        ' "order.place", "note.add"}\n'
    )
}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def fleet_with(
    folder: Path,
    world: World,
    clock: ManualClock,
    *verified: str,
    extra: dict[str, str] | None = None,
) -> FleetHarness:
    """Return a toy fleet whose tools of these names declare `verify`."""
    fleet = toy_fleet(folder, world, clock=clock, extra=extra)
    declare(fleet, *verified)
    return fleet


def declare(fleet: FleetHarness, *names: str, verify: str = "ask") -> None:
    path = fleet.content / "agents" / "worker" / "agent.yaml"
    text = path.read_text()
    for name in names:
        assert text.count(f"name: {name},") == 1
        text = text.replace(f"name: {name},", f"name: {name}, verify: {verify},")
    path.write_text(text)


def only_row(fleet: FleetHarness, event: Event) -> ActionRow:
    (row,) = fleet.actions(event)
    return row


async def handled(fleet: FleetHarness, *events: Event) -> None:
    await fleet.send(*events)
    await fleet.wait_until_idle()


async def in_time(fleet: FleetHarness, clock: ManualClock, hours: int = 6) -> None:
    """Let retries come back."""
    for _ in range(hours):
        clock.advance(HOUR_US)
        await fleet.wait_until_idle()


def word(fleet: FleetHarness, event: Event) -> str | None:
    explanation = explain(fleet.app.store, event.key)
    found: str | None = explanation["runs"][0]["actions"][0]["effect"]["word"]
    return found


# --- verified or claimed ------------------------------------------------------------------------


async def test_an_outcome_is_the_targets_word_or_only_the_tools(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    async with fleet_with(tmp_path, world, clock, "wire.send", "bell.ring") as fleet:
        sent, looked = job("1", send_proposal()), job("2", send_proposal(tool="slow.send"))
        rung, noted = job("3", send_proposal(tool="bell.ring")), job("4", note_proposal("x"))
        await handled(fleet, sent, looked, rung, noted)
        words = [word(fleet, event) for event in (sent, looked, rung, noted)]
        assert words == ["verified", "claimed", "verified", "verified"]
        assert sorted(call.tool for call in world.queries) == ["bell.ring", "wire.send"]
        assert {only_row(fleet, e).effect for e in (sent, looked, rung, noted)} == {"done"}
        verified = {e["tool"]: e.get("verified") for e in fleet.entries("effect.done")}
        assert verified["wire.send"] is True
        assert verified["slow.send"] is None
        lines = [line for _, line in explain_text(explain(fleet.app.store, sent.key))]
        assert "  verified at its target" in lines
        assert "verify" in fleet.app.services.fleet.agents["worker"].tools["wire.send"].facts()
        assert "verify" not in fleet.app.services.fleet.agents["worker"].tools["slow.send"].facts()


@pytest.mark.parametrize("misses", [1, 2, 9])
async def test_what_the_target_does_not_know_of_is_repeated_under_its_key_while_tries_last(
    tmp_path: Path, world: World, clock: ManualClock, misses: int
) -> None:
    def know(call: Call) -> Outcome | None:
        return None if len(world.queries) <= misses else Outcome("done")

    world.query = know
    async with fleet_with(tmp_path, world, clock, "wire.send") as fleet:
        event = job("1", send_proposal())
        await handled(fleet, event)
        assert only_row(fleet, event).effect == "intended"
        await in_time(fleet, clock)
        row = only_row(fleet, event)
        assert len(world.keys()) == 1
        if misses < 3:
            assert (row.effect, len(world.calls)) == ("done", misses + 1)
            assert word(fleet, event) == "verified"
        else:
            assert (row.effect, len(world.calls)) == ("failed", 3), "tries are bounded"
            assert b"the target does not know of it" in (row.answer or b"")


async def test_what_can_be_asked_about_is_unknown_until_it_was(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    answers: list[Outcome | None] = [None, Outcome("done", {"id": "late"})]
    world.query = lambda _: answers.pop(0)
    async with fleet_with(tmp_path, world, clock, "order.place") as fleet:
        event = job("1", send_proposal(tool="order.place"))
        await handled(fleet, event)
        assert only_row(fleet, event).effect == "unknown"
        assert len(fleet.entries("effect.unknown")) == 1
        await in_time(fleet, clock)
        assert (only_row(fleet, event).effect, len(world.calls)) == ("done", 1)
        assert word(fleet, event) == "verified"


async def test_what_nobody_can_repeat_is_left_to_a_person(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    world.query = lambda _: None
    async with fleet_with(tmp_path, world, clock, "bell.ring") as fleet:
        event = job("1", send_proposal(tool="bell.ring"))
        await handled(fleet, event)
        row = only_row(fleet, event)
        assert (row.effect, row.hold) == ("unknown", None), "it may still be on its way"
        await in_time(fleet, clock)
        row = only_row(fleet, event)
        assert (row.effect, row.hold, row.waits) == ("unknown", "open", "approval")
        assert len(world.calls) == 1
        world.query = None
        await fleet.approve(row, "again")
        await fleet.wait_until_idle()
        assert (only_row(fleet, event).effect, len(world.calls)) == ("done", 2)


async def test_a_target_that_says_it_failed_is_believed(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    world.query = lambda _: Outcome("failed", error="it bounced")
    async with fleet_with(tmp_path, world, clock, "wire.send") as fleet:
        event = job("1", send_proposal())
        await handled(fleet, event)
        assert only_row(fleet, event).effect == "failed"
        assert b"it bounced" in (only_row(fleet, event).answer or b"")


@pytest.mark.parametrize("tool", ["wire.send", "order.place"])
async def test_without_an_answer_it_is_claimed_unless_policy_obliges_to_verify(
    tmp_path: Path, world: World, clock: ManualClock, tool: str
) -> None:
    world.query = lambda _: ConnectionError("not there")
    async with fleet_with(tmp_path / "plain", world, clock, tool) as fleet:
        event = job("1", send_proposal(tool=tool))
        await handled(fleet, event)
        assert (only_row(fleet, event).effect, word(fleet, event)) == ("done", "claimed")
    async with fleet_with(tmp_path / "strict", world, clock, tool, extra=OBLIGES) as fleet:
        await handled(fleet, event)
        assert only_row(fleet, event).effect in ("intended", "unknown")
        world.query = None
        await in_time(fleet, clock)
        assert (only_row(fleet, event).effect, word(fleet, event)) == ("done", "verified")
        assert set(world.keys().values()) <= {1, 2, 3}


async def test_a_permit_that_obliges_to_verify_is_refused_where_nothing_can(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    async with fleet_with(tmp_path, world, clock, extra=OBLIGES) as fleet:
        blind, event = job("1", send_proposal()), job("2", send_proposal(tool="order.place"))
        noted = job("3", note_proposal("x"))
        await handled(fleet, blind, event, noted)
        row = only_row(fleet, blind)
        assert (row.decided, row.effect) == ("deny", None)
        assert [call.tool for call in world.calls] == ["order.place"], "its query verifies"
        assert (word(fleet, event), word(fleet, noted)) == ("verified", "verified")
        (refused,) = fleet.entries("action.refused")
        assert "declares no verify" in fleet.body(refused["seq"])["why"]
        assert [run.state for run in fleet.runs(blind)] == ["done"]
        assert (
            fleet.app.services.gateway.counts.totals("worker", "actions", clock.now_us())["hour"]
            == 2
        )


@pytest.mark.parametrize(
    ("tool", "verify", "said"),
    [
        ("wire.send", "nowhere", "defines no 'nowhere'"),
        ("wire.send", "add_note", "must take (call)"),
        ("note.add", "ask", "is part of the commit"),
    ],
)
async def test_a_verify_that_cannot_be_is_refused_at_load(
    tmp_path: Path, world: World, clock: ManualClock, tool: str, verify: str, said: str
) -> None:
    fleet = fleet_with(tmp_path, world, clock)
    declare(fleet, tool, verify=verify)
    with pytest.raises(BadFleet) as caught:
        await fleet.open()
    assert said in str(caught.value)


async def test_a_late_answer_of_the_tool_verifies_nothing() -> None:
    """Negative control: where a query may take it, it is taken."""
    requests: list[Call] = []

    class Module:
        @staticmethod
        def ask(call: Call) -> Outcome | None:
            requests.append(call)
            return None

    tools = InProcessTools(lambda _: Module)  # type: ignore[arg-type,return-value]
    call = Call("t", {}, "key", "a", "run_1", {}, ("a",), 1, 1_000_000)
    tools._stored_outcomes[("a", "t", "key")] = Outcome("done")
    query = Tool("t", "do", "thing", {}, (), "queryable", "f", query="ask")
    assert (await tools.query(query, call)) == Outcome("done")
    assert requests == []
    verify = Tool("t", "do", "thing", {}, (), "queryable", "f", query="ask", verify="ask")
    assert await tools.query(verify, call) is None
    assert requests == [call]
    tools.close()


# --- whatever a tool raises ---------------------------------------------------------------------


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
@pytest.mark.parametrize(
    ("tool", "effect", "hold"),
    [("wire.send", "done", None), ("order.place", "done", None), ("bell.ring", "unknown", "open")],
)
async def test_a_tool_that_wants_to_end_the_process_ends_its_call_only(
    tmp_path: Path, world: World, clock: ManualClock, tool: str, effect: str, hold: str | None,
    error: BaseException,
) -> None:  # fmt: skip
    world.answer = lambda _: error if len(world.calls) == 1 else None
    async with fleet_with(tmp_path, world, clock) as fleet:
        event, other = (
            job("1", send_proposal(tool=tool)),
            job("2", send_proposal("other"), key="other"),
        )
        await handled(fleet, event)
        await in_time(fleet, clock)
        row = only_row(fleet, event)
        assert (row.effect, row.hold) == (effect, hold)
        assert not fleet.entries("run.dead")
        await handled(fleet, other)
        assert only_row(fleet, other).effect == "done"


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
async def test_a_coroutine_that_wants_to_end_the_process_does_not(
    kind: type[BaseException],
) -> None:
    class Module:
        @staticmethod
        async def act(call: Call) -> Outcome:
            raise kind

    tools = InProcessTools(lambda _: Module)  # type: ignore[arg-type,return-value]
    call = Call("t", {}, "key", "a", "run_1", {}, ("a",), 1, 1_000_000)
    outcome = await make_call(
        tools, Tool("t", "do", "thing", {}, (), "none", "act"), call, lambda: True
    )
    assert outcome is not None
    assert outcome.state == "unknown"
    tools.close()


async def test_a_handler_that_is_told_to_end_still_does() -> None:
    """Negative control: a cancellation that is not the tool's own goes through."""

    class Tools:
        async def perform(self, tool: Tool, call: Call, may: Callable[[], bool]) -> Outcome | None:
            await asyncio.Event().wait()
            return None

        def compute_rows(self, tool: Tool, call: Call, row: Any) -> list[Any]:
            raise AssertionError

        async def query(self, tool: Tool, call: Call) -> Outcome | None:
            raise AssertionError

    call = Call("t", {}, "key", "a", "run_1", {}, ("a",), 1, 1_000_000)
    tool = Tool("t", "do", "thing", {}, (), "none", "act")
    task = asyncio.create_task(make_call(Tools(), tool, call, lambda: True))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# --- what nobody knows --------------------------------------------------------------------------


class Lost:
    """A performer whose calls are made, and whose answers never come."""

    def __init__(self, tools: Any) -> None:
        self.tools, self.made = tools, 0
        self.compute_rows, self.query, self.close = tools.compute_rows, tools.query, tools.close

    async def perform(self, tool: Tool, call: Call, may_start: Callable[[], bool]) -> Outcome:
        """Call, and then wait for ever."""
        await self.tools.perform(tool, call, may_start)
        self.made += 1
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")


def lose(fleet: FleetHarness) -> Lost:
    lost = Lost(fleet.app.services.tool_executor)
    fleet.app.services.tool_executor = lost
    return lost


async def test_an_effect_in_flight_at_a_crash_and_denied_since_is_unknown_not_cancelled(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    fleet = fleet_with(tmp_path, world, clock)
    await fleet.open()
    lost, event = lose(fleet), job("1", send_proposal())
    await fleet.send(event)
    await wait_until(lambda: lost.made == 1)
    await fleet.close()
    # What a folder says at a start is live by itself only where it loosens nothing, as a deny does.
    denied = {"denies/data.yaml": "agents: []\ntools: [wire.send]\ncomplete: true\n"}
    fleet.policies = write_policies(tmp_path / "stricter", extra=denied)
    async with fleet:
        await fleet.wait_until_idle()
        assert only_row(fleet, event).waits == "policy", "it could still be known"
        await in_time(fleet, clock, 2)
        assert (only_row(fleet, event).decided, len(world.calls)) == ("deny", 1)
        kinds = [e["kind"] for e in fleet.entries("effect.unknown", "effect.cancelled")]
        assert kinds == ["effect.unknown"]
        assert [run.state for run in fleet.runs(event)] == ["done"]


async def test_what_is_known_not_to_have_begun_is_cancelled(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    """Negative control: the revision changes between the permit and the call, which is not made."""
    async with fleet_with(tmp_path, world, clock) as fleet:
        tools = fleet.app.services.tool_executor
        stricter = write_policies(tmp_path / "stricter", extra=deny_policy("wire.send"))

        applied: list[asyncio.Task[Any]] = []

        class Late(Lost):
            async def perform(self, tool: Tool, call: Call, may: Callable[[], bool]) -> Any:
                # Its end waits for this call.
                applied.append(asyncio.create_task(fleet.apply_policy(stricter)))
                revision = fleet.app.services.gateway.policy_rev
                await wait_until(lambda: fleet.app.services.gateway.policy_rev > revision)
                return await tools.perform(tool, call, may)

        fleet.app.services.tool_executor = Late(tools)
        event = job("1", send_proposal())
        await handled(fleet, event)
        assert (only_row(fleet, event).decided, world.calls) == ("deny", [])
        kinds = [e["kind"] for e in fleet.entries("effect.unknown", "effect.cancelled")]
        assert kinds == ["effect.cancelled"]
        assert not fleet.app.services.calls.unrecorded
        assert (await applied[0])["ok"]


@pytest.mark.parametrize(("restarted", "effect"), [(True, "unknown"), (False, "cancelled")])
async def test_a_burial_says_what_is_not_known(
    tmp_path: Path, world: World, clock: ManualClock, restarted: bool, effect: str
) -> None:
    fleet = fleet_with(tmp_path, world, clock)
    await fleet.open()
    stuck = Stuck(fleet.app.services.tool_executor)
    fleet.app.services.tool_executor, event = stuck, job("1", send_proposal())
    await fleet.send(event)
    await wait_until(lambda: stuck.reached)
    await fleet.app.dispatcher.close()
    if restarted:
        await fleet.close()
        await fleet.open()
        await fleet.app.dispatcher.close()
    (run,) = fleet.runs(event)
    await dead_letter(
        fleet.app.services,
        run,
        fleet.app.store.cluster.lease_epoch(run) or 0,
        "Test: buried by hand",
    )
    assert only_row(fleet, event).effect == effect
    await fleet.close()


class Stuck(Lost):
    """A performer that never comes as far as to ask whether it may start."""

    def __init__(self, tools: Any) -> None:
        super().__init__(tools)
        self.reached = False

    async def perform(self, tool: Tool, call: Call, may_start: Callable[[], bool]) -> Outcome:
        """Wait before the call."""
        self.reached = True
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")


# --- who is to be told --------------------------------------------------------------------------


async def test_a_permit_that_a_person_is_to_be_told_of_is_an_entry(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    async with fleet_with(tmp_path, world, clock) as fleet:
        event = job("1", send_proposal(tool="big.send"), send_proposal("plain"))
        await handled(fleet, event)
        assert not fleet.entries("notice.raised"), "it is only held so far"
        held = next(row for row in fleet.actions(event) if row.hold == "open")
        await fleet.approve(held)
        await fleet.wait_until_idle()
        (notice,) = fleet.entries("notice.raised")
        assert (notice["action"], notice["tool"]) == (held.id, "big.send")
        caused = fleet.entries("action.decided")[-1]
        assert (notice["cause"], caused["outcome"]) == (caused["seq"], "permit")


async def test_a_run_that_a_person_moved_on_while_it_called_keeps_its_place_in_the_key(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    """The answer makes it be read anew; that it waits for its target is known all the same."""
    answered = threading.Event()

    def busy_once(call: Call) -> Outcome | None:
        if call.args["text"] != "first" or len(world.texts("wire.send")) > 1:
            return None
        answered.wait(20)
        return Outcome("retry", error="busy")

    world.answer = busy_once
    first = job("1", send_proposal("first"), send_proposal("big", tool="big.send"))
    async with fleet_with(tmp_path, world, clock) as fleet:
        await fleet.send(first)
        await wait_until(lambda: len(world.calls) == 1)
        (held,) = (row for row in fleet.actions(first) if row.tool == "big.send")
        await fleet.approve(held)
        answered.set()
        await wait_until(lambda: world.effects("big.send") == 1)
        await fleet.wait_until_idle()
        assert fleet.app.services.parked_runs.key_count == 1
        await fleet.send(job("2", send_proposal("second")))
        await fleet.wait_until_idle()
        assert world.texts("wire.send") == ["first"]
        clock.advance(HOUR_US)
        await wait_until(lambda: world.effects("wire.send") == 2)
        assert world.texts("wire.send") == ["first", "first", "second"]
