"""Nobody asks what came of a call before its time is over, whoever asks and on whichever store.

A target that is still at it truthfully says that it knows nothing. The target here does what it is
asked late, but within the tool's time, and on its own: nothing that happens to the engine stops it.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct, field
from tests.pg import server

from vedette.config.settings import StorePlan
from vedette.domain.effect import Call, Outcome
from vedette.domain.event import Event
from vedette.domain.run import ActionRow
from vedette.domain.tool import Tool
from vedette.engine.calls_in_flight import MARGIN_US, CallsInFlight
from vedette.interfaces.render.explain_text import explain_text
from vedette.ledger.history.explain import explain
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import (
    World,
    deny_policy,
    job,
    send_proposal,
    toy_fleet,
    wait_until,
    write_policies,
)

SECOND = 1_000_000
TIMEOUT_US = 30 * SECOND  # of `order.place`
WHOLE_US = TIMEOUT_US + MARGIN_US


class Late(Struct):
    """A target that takes a call at once, does it `late_us` later, and never answers."""

    clock: ManualClock
    late_us: int = TIMEOUT_US - 1
    taken: list[tuple[str, int]] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    lost: threading.Event = field(default_factory=threading.Event)

    def act(self, call: Call) -> Outcome:
        """Take a call; come back without an answer when the test says so."""
        self.taken.append((call.key, self.clock.monotonic_us()))
        self.lost.wait(20)
        raise ConnectionError("lost")

    def ask(self, call: Call) -> Outcome | None:
        """Say whether a call was done by now."""
        now = self.clock.monotonic_us()
        self.asked.append(now)
        done = any(key == call.key and at + self.late_us <= now for key, at in self.taken)
        return Outcome("done", {}) if done else None


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def target(clock: ManualClock) -> Iterator[Late]:
    made = Late(clock)
    yield made
    made.lost.set()


@pytest.fixture(params=["sqlite"])
async def fleet(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock, target: Late
) -> AsyncIterator[FleetHarness]:
    """A fleet whose call was taken by the target; nobody knows more. On either store."""
    made = toy_fleet(tmp_path, World(), clock=clock)
    made.targets = {"world": {"kind": "world", "world": target}}
    if request.param == "postgresql":
        file = tmp_path / "url"
        file.write_text(server(fsync=False).fresh())
        made._store = StorePlan("postgresql", url_file=str(file), lease_us=1_000_000)
    await made.open()
    await made.send(ORDER)
    await wait_until(lambda: len(target.taken) == 1)
    yield made
    await made.close()


ORDER = job("1", send_proposal(tool="order.place"))


def row_of(fleet: FleetHarness, event: Event = ORDER) -> ActionRow:
    (row,) = fleet.actions(event)
    return row


async def restarted(fleet: FleetHarness) -> None:
    await fleet.restart()
    await fleet.wait_until_idle()


async def answer_lost(fleet: FleetHarness, target: Late) -> None:
    target.lost.set()
    await wait_until(lambda: row_of(fleet).effect == "unknown")
    await fleet.wait_until_idle()


async def restarted_after_the_answer_was_lost(fleet: FleetHarness, target: Late) -> None:
    await answer_lost(fleet, target)
    await restarted(fleet)


async def restarted_twice(fleet: FleetHarness, clock: ManualClock) -> None:
    await restarted(fleet)
    clock.advance(SECOND)
    await restarted(fleet)


async def redriven(fleet: FleetHarness, target: Late) -> None:
    """A person takes up the run again as soon as it was buried."""
    from vedette.engine.scheduler.failure_policy import dead_letter

    await answer_lost(fleet, target)
    (run,) = fleet.runs(ORDER)
    epoch = fleet.app.store.cluster.lease_epoch(run)
    assert epoch is not None
    await dead_letter(fleet.app.services, run, epoch, "a test")
    await fleet.submit_confirmed("redrive", runs=[run.id])
    await fleet.wait_until_idle()


async def published(fleet: FleetHarness, target: Late) -> None:
    await answer_lost(fleet, target)
    await fleet.apply_policy(
        write_policies(fleet.folder / "next", extra=deny_policy("nothing.real"))
    )
    await fleet.wait_until_idle()


async def wall_set(fleet: FleetHarness, target: Late, clock: ManualClock) -> None:
    """The wall clock is put forward by three days, over a restart."""
    await answer_lost(fleet, target)
    clock.set_wall(clock.now_us() + 80 * 3600 * SECOND)
    await restarted(fleet)


WAYS: dict[str, Callable[[FleetHarness, Late, ManualClock], Any]] = {
    "restart": lambda fleet, target, clock: restarted(fleet),
    "restart twice": lambda fleet, target, clock: restarted_twice(fleet, clock),
    "lost answer": lambda fleet, target, clock: answer_lost(fleet, target),
    "lost answer, restart": lambda fleet, target, clock: restarted_after_the_answer_was_lost(
        fleet, target
    ),
    "redrive": lambda fleet, target, clock: redriven(fleet, target),
    "publication": lambda fleet, target, clock: published(fleet, target),
    "wall clock put forward": wall_set,
}


# On a server, where a restart frees the keys at once, what has to do with that.
PLACES = [
    *(("sqlite", way) for way in WAYS),
    *(("postgresql", way) for way in ("restart twice", "lost answer, restart")),
]


@pytest.mark.parametrize(("fleet", "way"), PLACES, indirect=["fleet"])
async def test_a_late_effect_is_done_once_however_it_comes_to_be_asked_about(
    fleet: FleetHarness, target: Late, clock: ManualClock, way: str
) -> None:
    begun = clock.monotonic_us()
    await WAYS[way](fleet, target, clock)
    target.lost.set()
    for _ in range(40):
        clock.advance(SECOND)
        await fleet.wait_until_idle()
    assert min(target.asked) >= begun + WHOLE_US
    assert (len(target.taken), row_of(fleet).effect) == (1, "done")


async def test_what_never_happened_is_done_again_once_that_is_certain(
    fleet: FleetHarness, target: Late, clock: ManualClock
) -> None:
    target.late_us = 10 * WHOLE_US
    await restarted(fleet)
    clock.advance(WHOLE_US - 1)
    await fleet.wait_until_idle()
    assert (target.asked, len(target.taken)) == ([], 1)
    explanation = [line for _, line in explain_text(explain(fleet.app.store, ORDER.key))]
    assert any("nobody knows yet, and nobody is asked before" in line for line in explanation), (
        explanation
    )
    (run,) = fleet.runs(ORDER)
    assert (run.state, run.waits) == ("waiting", "target")
    clock.advance(1)
    await wait_until(lambda: len(target.taken) == 2)
    assert len(target.asked) == 1
    (absent,) = fleet.entries("effect.absent")
    assert (absent["what"], absent["action"]) == ("asked", row_of(fleet).id)


async def test_a_person_who_is_asked_instead_of_a_target_is_not_asked_sooner(
    fleet: FleetHarness, target: Late, clock: ManualClock
) -> None:
    """The tool is declared otherwise after the restart, so that its target cannot be asked."""
    await fleet.close()
    path = fleet.content / "agents" / "worker" / "agent.yaml"
    before, place, after = path.read_text().partition("name: order.place")
    path.write_text(before + place + after.replace("query: ask,", "query: ask, verify: ask,", 1))
    await fleet.open()
    await fleet.wait_until_idle()
    clock.advance(WHOLE_US - 1)
    await fleet.wait_until_idle()
    assert (row_of(fleet).effect, row_of(fleet).hold) == ("started", None)
    clock.advance(1)
    await fleet.wait_until_idle()
    assert (row_of(fleet).effect, row_of(fleet).hold) == ("unknown", "open")
    assert (len(target.taken), target.asked) == (1, [])


async def test_only_the_key_of_the_call_waits(
    fleet: FleetHarness, target: Late, clock: ManualClock
) -> None:
    await restarted(fleet)
    behind, beside = job("2", send_proposal("b")), job("3", send_proposal("c"), key="other")
    target.lost.set()
    await fleet.send(behind, beside)
    await wait_until(lambda: len(target.taken) == 2)
    assert target.taken[1][0] == row_of(fleet, beside).id.removeprefix("act_")
    clock.advance(WHOLE_US)
    await wait_until(lambda: any(key == row_of(fleet, behind).id[4:] for key, _ in target.taken))


async def test_the_time_that_counts_is_the_one_the_call_was_given(
    fleet: FleetHarness, target: Late, clock: ManualClock
) -> None:
    """A release that gives its tool less time says nothing of a call that was begun before."""
    (started,) = fleet.entries("effect.started")
    assert started["timeout"] == TIMEOUT_US
    path = fleet.content / "agents" / "worker" / "agent.yaml"
    path.write_text(path.read_text().replace("timeout: 30s", "timeout: 1s"))
    await fleet.close()
    await fleet.open()
    await fleet.wait_until_idle()
    clock.advance(WHOLE_US - 1)
    await fleet.wait_until_idle()
    assert target.asked == []
    clock.advance(1)
    await wait_until(lambda: row_of(fleet).effect == "done")
    assert len(target.taken) == 1


async def test_another_worker_asks_no_sooner_than_the_one_that_called(
    tmp_path: Path, clock: ManualClock, target: Late
) -> None:
    """The first worker is restarted, which frees its keys at once; the second takes them."""
    import shutil

    file = tmp_path / "url"
    file.write_text(server(fsync=False).fresh())
    made = []
    for name in ("one", "other"):
        fleet = toy_fleet(tmp_path / name, World(), clock=clock)
        fleet.targets = {"world": {"kind": "world", "world": target}}
        fleet._store = StorePlan("postgresql", url_file=str(file), lease_us=1_000_000)
        made.append(fleet)
    one, other = made
    jobs = [job(f"q{n}", send_proposal(tool="order.place"), key=f"k{n}") for n in range(6)]
    await one.open()
    await one.send(*jobs)
    await wait_until(lambda: len(target.taken) == len(jobs))
    state = other.content.parent / "state"
    state.mkdir()
    shutil.copy(one.content.parent / "state" / "ledger.key", state / "ledger.key")
    await other.open()
    await one.close()
    elapsed_us = clock.monotonic_us()
    target.lost.set()
    try:
        await wait_until(
            lambda: all(other.app.store.cluster.lease_epoch(other.runs(each)[0]) for each in jobs),
            60,
        )
        for _ in range(100):
            clock.advance(SECOND)
            await other.wait_until_idle()
            if all(row_of(other, each).effect == "done" for each in jobs):
                break
        assert len(target.asked) == len(target.taken) == len(jobs)
        assert min(target.asked) >= elapsed_us + WHOLE_US
    finally:
        await other.close()


# --- the arithmetic -----------------------------------------------------------------------------


def waits_us(calls: CallsInFlight, action: str, epoch: int, timeout_us: int) -> int:
    row = ActionRow(action, "run_1", 1, 0, "caller", "call", "", b"{}")
    tool = Tool("call", "do", "thing", {}, (), "none", "f", timeout_us=timeout_us)
    return calls.quiet_us(row, epoch, tool, ())


def test_a_call_of_ones_own_is_counted_from_when_it_began(clock: ManualClock) -> None:
    calls = CallsInFlight(clock)
    calls.note_lease(1, clock.monotonic_us())
    clock.advance(5 * SECOND)
    calls.begin("act_1", 1)
    clock.advance(SECOND)
    assert waits_us(calls, "act_1", 1, 2 * SECOND) == SECOND + MARGIN_US
    assert waits_us(calls, "act_2", 1, 2 * SECOND) == 0, "before this lease, if ever"
    clock.advance(SECOND + MARGIN_US)
    assert waits_us(calls, "act_1", 1, 2 * SECOND) == 0


def test_what_was_done_under_a_lease_that_was_lost_counts_for_nothing(clock: ManualClock) -> None:
    """Another worker may have called in between: the new lease begins a quiet time of its own."""
    calls = CallsInFlight(clock)
    calls.begin("act_1", 1)
    clock.advance(60 * SECOND)
    calls.note_lease(2, clock.monotonic_us())
    assert waits_us(calls, "act_1", 2, 2 * SECOND) == 2 * SECOND + MARGIN_US


def test_a_lease_is_held_since_it_was_first_seen_and_never_longer(clock: ManualClock) -> None:
    calls = CallsInFlight(clock)
    assert waits_us(calls, "act_1", 1, SECOND) == SECOND + MARGIN_US
    clock.advance(SECOND)
    assert waits_us(calls, "act_1", 1, SECOND) == MARGIN_US
    for epoch in range(2, 5000):
        calls.note_lease(epoch, clock.monotonic_us())
    clock.advance(10 * SECOND)
    assert waits_us(calls, "act_1", 1, SECOND) == SECOND + MARGIN_US


def test_what_came_of_a_call_is_known_and_its_beginning_forgotten(clock: ManualClock) -> None:
    calls = CallsInFlight(clock)
    calls.note_lease(1, clock.monotonic_us())
    clock.advance(9 * SECOND)
    calls.begin("act_1", 1)
    calls.end("act_1")
    assert waits_us(calls, "act_1", 1, SECOND) == 0
