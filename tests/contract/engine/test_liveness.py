"""What may go on goes on: no wait is longer than its reason, whatever came before it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from tests.workers import JUDGE_PY

from vedette.domain.base.errors import StoreFailed
from vedette.domain.effect import Outcome
from vedette.domain.event import Event
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.run import Step
from vedette.interfaces.http.server import build_application
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import (
    World,
    intercept_commits,
    job,
    propose,
    send_proposal,
    toy_fleet,
    wait_until,
)

SECOND = 1_000_000


@pytest.fixture
def world() -> World:
    return World()


async def test_a_look_that_waited_for_the_store_is_not_followed_by_minutes_of_blindness(
    tmp_path: Path, world: World
) -> None:
    """The store's server stalled for 5.2 s once; what a person lets go on is seen soon after."""
    clock = ManualClock()
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        store: Any = fleet.app.store
        due, stalls = store.schedule.due_runs, [5.2]

        def stalled(now_us: int, limit: int, without: Collection[str] = ()) -> Any:
            if stalls:
                clock.advance(int(stalls.pop() * SECOND))
            return due(now_us, limit, without)

        store.schedule.due_runs = stalled
        await wait_until(lambda: not stalls)
        await fleet.app.commands.stop(fleet.order(), agent="worker")
        await fleet.send(job("1", send_proposal("late")))
        await fleet.app.commands.resume(fleet.order(), agent="worker")
        await wait_until(lambda: world.effects() == 1, 5)


async def test_what_waits_behind_other_attempts_of_its_key_takes_nobody_s_room(
    tmp_path: Path,
) -> None:
    """Nine keys that wait for another attempt, with more events behind them than are loaded."""
    clock = ManualClock()
    fleet = toy_fleet(tmp_path, World(), agents=("bad",), clock=clock)
    (fleet.content / "agents" / "bad" / "judge.py").write_text(JUDGE_PY)
    poison = [event(f"p{n}", f"p{n}", do="again") for n in range(9)]
    behind = [event(f"b{n}.{m}", f"p{n}") for m in range(40) for n in range(9)]
    healthy = [event(f"h{n}", f"h{n}") for n in range(150)]
    async with fleet:
        await fleet.app.commands.stop(fleet.order(), agent="bad")
        await fleet.send(*poison, *behind, *healthy)
        await fleet.app.commands.resume(fleet.order(), agent="bad")
        # No time passes, so no second attempt is made.
        await wait_until(lambda: closed(fleet) == 150, 20)
        for _ in range(8):
            clock.advance(30 * SECOND)
            await fleet.wait_until_idle()
        assert len(fleet.entries("run.dead")) == 9
        assert closed(fleet) == 150 + len(behind)
        assert labels(fleet, behind[-1]) == {f"seen {len(behind) // 9}"}


async def test_a_target_that_is_back_while_a_run_is_parked_for_it_wakes_that_run(
    tmp_path: Path,
) -> None:
    """The trial that closes the breaker ends before it is durable that the others wait for it."""
    clock, down = ManualClock(), [True]
    answer = Outcome("retry", error="503")
    world = World(answer=lambda call: answer if down else None)
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        await fleet.send(*(job(f"e{n}", send_proposal(f"t{n}"), key=f"k{n}") for n in range(8)))
        await fleet.wait_until_idle()
        assert fleet.app.services.breakers.list_tripped()
        down.clear()
        for _ in range(10):
            clock.advance(SECOND // 2)
            await fleet.wait_until_idle()
        assert world.effects() == 8


async def test_what_waits_for_two_targets_goes_on_when_either_is_back(tmp_path: Path) -> None:
    """One stays away: then only the oldest run of all that wait for it is tried now and then."""
    clock, down = ManualClock(), {"wire.send", "book.look"}
    answer = Outcome("retry", error="503")
    world = World(answer=lambda call: answer if call.tool in down else None)
    fleet = toy_fleet(tmp_path, world, clock=clock)
    path = fleet.content / "agents" / "worker" / "agent.yaml"
    before, look, after = path.read_text().partition("book.look")
    path.write_text(before + look + after.replace("target: world", "target: book", 1))
    fleet.targets = {name: {"kind": "world", "world": world} for name in ("world", "book")}
    async with fleet:
        both = [
            job(f"e{n}", send_proposal("a"), propose("book.look", name="b"), key=f"k{n}")
            for n in range(8)
        ]
        await fleet.send(*both)
        await fleet.wait_until_idle()
        assert len(fleet.app.services.breakers.list_tripped()) == 2
        down.discard("wire.send")
        for _ in range(15):
            clock.advance(2 * SECOND)
            await fleet.wait_until_idle()
        assert world.effects("wire.send") == 8


SILENT = Outcome("unknown", error="no answer")
TURNED_AWAY = Outcome("retry", error="503")


@pytest.mark.parametrize("tool", ["wire.send", "order.place"])
@pytest.mark.parametrize("answer", [SILENT, TURNED_AWAY], ids=lambda one: one.state)
async def test_a_trial_whose_end_is_not_durable_holds_its_key_no_longer_than_its_target_is_away(
    tmp_path: Path, tool: str, answer: Outcome
) -> None:
    """One commit fails, of the trial of a target; at that moment the target is back."""
    clock, failing = ManualClock(), [False]
    world = World(answer=lambda call: answer, query=lambda call: SILENT)
    # (What a silent target was asked to do may have happened: that key's next is not called.)
    keys = "a" if (tool, answer) == ("order.place", SILENT) else "abcdefgh"

    async def fail(step: Step) -> None:
        later_us = clock.now_us() + 1000 * SECOND
        if failing[0] and any(
            row.waits == "target" and row.not_before_us > later_us for row in step.actions
        ):
            failing[0], world.answer, world.query = False, None, None
            raise StoreFailed("the commit failed")

    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        intercept_commits(fleet, fail)
        events = [job(key, send_proposal(key, tool), key=key) for key in keys]
        await fleet.send(*events)
        breaker = fleet.app.services.breakers.for_target("world")
        while breaker.open_count < 4:
            clock.advance(SECOND)
            await fleet.wait_until_idle()
        failing[0] = True
        for _ in range(240):
            clock.advance(SECOND // 2)
            await fleet.wait_until_idle()
        assert not failing[0]
        assert [run.state for event in events for run in fleet.runs(event)] == ["done"] * len(keys)


# --- the watchdog ---------------------------------------------------------------------------------


class Silent(ScriptedReasoner):
    """A judge that answers nobody until it is told to; then with nothing to propose."""

    def __init__(self) -> None:
        super().__init__(())
        self.answers = asyncio.Event()

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        await self.answers.wait()
        return await super().reason(briefing)


async def pass_time(fleet: FleetHarness, clock: ManualClock, seconds: int) -> None:
    """Let time pass in steps, each followed by the looks that the runner takes."""
    for _ in range(seconds // 5):
        clock.advance(5 * SECOND)
        await asyncio.sleep(0.06)
        fleet.app.watchdog.check()


async def test_a_run_that_was_lost_sight_of_is_read_again_before_the_bound(
    tmp_path: Path, world: World
) -> None:
    clock = ManualClock()
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        app, store = fleet.app, cast(Any, fleet.app.store)
        backlog = store.schedule.ready_runs
        await app.commands.stop(fleet.order(), agent="worker")
        await fleet.send(*(job(f"{n}", send_proposal(f"{n}"), key=f"k{n % 3}") for n in range(6)))
        store.schedule.ready_runs = lambda *arguments: [
            run for run in backlog(*arguments) if run.key != "k1"
        ]
        await app.commands.resume(fleet.order(), agent="worker")
        await wait_until(lambda: world.effects() == 4, 10)
        store.schedule.ready_runs = backlog
        await pass_time(fleet, clock, 25)
        assert app.watchdog.problems == []
        assert world.effects() == 4, "nothing else finds them"
        await pass_time(fleet, clock, 20)
        await wait_until(lambda: world.effects() == 6, 10)
        assert world.texts()[-2:] == ["1", "4"]
        assert app.metrics.total("stuck_mended") == 1
        await pass_time(fleet, clock, 100)
        assert app.watchdog.problems == []


async def test_what_does_not_move_is_named_and_the_worker_is_not_ready_until_it_does(
    tmp_path: Path, world: World
) -> None:
    clock, judge = ManualClock(), Silent()
    fleet = toy_fleet(tmp_path, world, clock=clock, reasoners={"judge": judge})
    async with fleet:
        ready = Client(build_application(fleet.app))
        (receipt, *_) = await fleet.send(*(job(f"{n}", key=f"k{n}") for n in range(3)))
        # Three at a time may each take what a call may, thrice, beyond the bound.
        await pass_time(fleet, clock, 60 + 3 * 90)
        assert await ready.status() == 200
        await pass_time(fleet, clock, 200)
        assert await ready.status() == 503
        assert f"{receipt.runs[0]} of worker is with its judge" in ready.told
        assert "and 2 more" in ready.told
        assert fleet.app.metrics.total("stuck", reason="judge") == 3
        judge.answers.set()
        await fleet.wait_until_idle()
        await pass_time(fleet, clock, 10)
        assert await ready.status() == 200


@pytest.mark.parametrize("read", ["ready_runs", "due_runs"])
async def test_a_store_that_does_not_answer_is_told(
    tmp_path: Path, world: World, read: str
) -> None:
    """Neither which runs are ready nor which are due can be read."""
    clock = ManualClock()
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        schedule: Any = fleet.app.store.schedule
        before = getattr(schedule, read)

        def away(*arguments: Any) -> Any:
            raise StoreFailed("the server is away")

        setattr(schedule, read, away)
        await pass_time(fleet, clock, 55)
        assert fleet.app.watchdog.problems == []
        await pass_time(fleet, clock, 20)
        assert fleet.app.watchdog.problems == ["runs: the store does not answer"]
        setattr(schedule, read, before)
        await asyncio.sleep(1.1)  # for so long it looks for nothing after a failure
        await pass_time(fleet, clock, 10)
        assert fleet.app.watchdog.problems == []


@pytest.mark.parametrize("waits", [False, True], ids=["ready", "woken"])
async def test_a_run_that_its_store_refuses_again_and_again_is_named(
    tmp_path: Path, waits: bool
) -> None:
    """No attempt of it counts, so it would be tried for ever and nobody would hear of it."""
    clock = ManualClock()
    later = Outcome("retry", retry_after_us=20 * SECOND, error="503")
    world = World()
    world.answer = lambda call: later if waits and len(world.calls) == 1 else None
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        ready = Client(build_application(fleet.app))

        store = fleet.app.store
        part: Any = store.runs if waits else store.steps
        read = "turns" if waits else "send"
        before = getattr(part, read)

        tried: list[int] = []

        def broken(*arguments: Any) -> Any:
            tried.append(1)
            raise StoreFailed("a page of the file is broken")

        if not waits:
            part.send = broken
        (receipt,) = await fleet.send(job("1", send_proposal("x")))
        await fleet.wait_until_idle()
        if waits:
            assert fleet.runs(job("1"))[0].state == "waiting"
            part.turns = broken
            await pass_time(fleet, clock, 20)
        await wait_until(lambda: bool(tried))
        await pass_time(fleet, clock, 55)
        assert await ready.status() == 200
        await pass_time(fleet, clock, 20)
        assert await ready.status() == 503
        assert f"{receipt.runs[0]} of worker is tried again and again" in ready.told
        assert "a page of the file is broken" in ready.told
        assert fleet.app.metrics.total("stuck", reason="refused") == 1
        await fleet.app.commands.stop(fleet.order(), agent="worker")
        await pass_time(fleet, clock, 10)
        assert await ready.status() == 200, "it is not to go on"
        await fleet.app.commands.resume(fleet.order(), agent="worker")
        await pass_time(fleet, clock, 75)
        assert await ready.status() == 503
        setattr(part, read, before)
        await pass_time(fleet, clock, 10)
        await wait_until(lambda: fleet.runs(job("1"))[0].state == "done")
        await pass_time(fleet, clock, 10)
        assert (await ready.status(), world.effects()) == (200, 1)


async def test_a_woken_run_whose_outcome_is_never_recorded_is_named(tmp_path: Path) -> None:
    """It is not ready by what the store knows, and what came of its call is kept meanwhile."""
    clock, refuses = ManualClock(), [False]
    later = Outcome("retry", retry_after_us=20 * SECOND, error="503")
    world = World()
    world.answer = lambda call: later if len(world.calls) == 1 else None
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:

        async def work(step: Step) -> None:
            if refuses[0]:
                raise StoreFailed("a page of the file is broken")

        intercept_commits(fleet, work)
        (receipt,) = await fleet.send(job("1", send_proposal("x")))
        await fleet.wait_until_idle()
        refuses[0] = True
        await pass_time(fleet, clock, 20)
        await wait_until(lambda: len(world.calls) == 2)
        # As long as its call may take, thrice, beyond the bound, and for each that is in hand.
        await pass_time(fleet, clock, 60 + 90)
        assert fleet.app.watchdog.problems == []
        await pass_time(fleet, clock, 120)
        assert (
            f"{receipt.runs[0]} of worker has effects under way" in fleet.app.watchdog.problems[0]
        )
        refuses[0] = False
        await wait_until(lambda: fleet.runs(job("1"))[0].state == "done")
        await pass_time(fleet, clock, 10)
        assert (fleet.app.watchdog.problems, world.effects(), len(world.calls)) == ([], 1, 2)


async def test_a_key_whose_next_runs_cannot_be_read_is_named(tmp_path: Path, world: World) -> None:
    clock, refuses = ManualClock(), [True]
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        store: Any = fleet.app.store
        unjudged = store.schedule.unjudged_runs

        async def work(step: Step) -> None:
            if refuses[0]:
                raise StoreFailed("the commit failed")

        def broken(*arguments: Any) -> Any:
            raise StoreFailed("a page of the file is broken")

        intercept_commits(fleet, work)
        await fleet.send(*(job(f"{n}", send_proposal(f"{n}")) for n in range(3)))
        await fleet.wait_until_idle()
        store.schedule.unjudged_runs, refuses[0] = broken, False
        await pass_time(fleet, clock, 10)
        assert world.effects() == 1
        await pass_time(fleet, clock, 75)
        assert "is in the store and nobody reads it" in fleet.app.watchdog.problems[0]
        store.schedule.unjudged_runs = unjudged
        await pass_time(fleet, clock, 10)
        await wait_until(lambda: world.effects() == 3)
        await pass_time(fleet, clock, 10)
        assert fleet.app.watchdog.problems == []


async def test_a_store_that_says_it_cannot_commit_is_told_by_itself(
    tmp_path: Path, world: World
) -> None:
    """Neither for as long as that lasts nor once it is over are its runs accused."""
    clock, full = ManualClock(), [True]
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        store: Any = fleet.app.store
        probe = store.steps.probe

        def refuse() -> None:
            if full:
                store.writer.is_ready = False
                raise StoreFailed("the disk is full")

        async def work(step: Step) -> None:
            refuse()

        async def probed() -> None:
            refuse()
            await probe()

        store.steps.probe = probed
        intercept_commits(fleet, work)
        await fleet.send(job("1", send_proposal()))
        for _ in range(3):
            await pass_time(fleet, clock, 50)
            assert fleet.app.watchdog.problems == []
        assert not fleet.app.store.steps.is_ready
        assert fleet.runs(job("1"))[0].state == "ready"
        full.clear()
        for _ in range(4):
            await pass_time(fleet, clock, 5)
            assert fleet.app.watchdog.problems == []
        await wait_until(lambda: fleet.runs(job("1"))[0].state == "done")


async def test_what_a_person_has_repeated_is_woken_in_its_turn(tmp_path: Path) -> None:
    """It waits behind another run; when that is over an approval comes in the middle of a call."""
    clock, world = ManualClock(), World()
    lost, later = Outcome("unknown", error="lost"), Outcome("retry", retry_after_us=20 * SECOND)
    world.answer = lambda call: lost if call.tool == "bell.ring" else None
    front = job("1", send_proposal("front", tool="big.send"))
    rings = (send_proposal(text, tool="bell.ring") for text in ("one", "two"))
    behind = job("2", send_proposal("held", tool="big.send"), *rings)
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:

        def waits() -> list[str | None]:
            return [row.waits for event in (front, behind) for row in fleet.actions(event)]

        await fleet.send(front, behind)
        await fleet.wait_until_idle()
        await pass_time(fleet, clock, 60)
        await wait_until(lambda: waits() == 4 * ["approval"])
        (first,), (held, one, two) = fleet.actions(front), fleet.actions(behind)
        world.answer = lambda call: later
        for row in (first, held, one):
            await fleet.approve(row)
            await fleet.wait_until_idle()
        assert waits() == [*(3 * ["target"]), "approval"]
        world.answer = None
        given: list[str] = []

        async def work(step: Step) -> None:
            if not given and any((row.id, row.effect) == (held.id, "done") for row in step.actions):
                given.append(two.id)
                await fleet.approve(two)

        intercept_commits(fleet, work)
        await pass_time(fleet, clock, 25)
        await wait_until(lambda: waits() == 4 * [None])
        assert (given, world.effects()) == ([two.id], 4)


async def test_whose_turn_comes_is_tried_no_sooner_than_its_target_asked_for(
    tmp_path: Path,
) -> None:
    clock, world = ManualClock(), World()
    front = job("1", send_proposal("front", tool="big.send"))
    behind = job("2", send_proposal("put off"), send_proposal("held", tool="big.send"))
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:

        def texts() -> list[object]:
            return [call.args["text"] for call in world.calls]

        world.answer = lambda call: Outcome("retry", retry_after_us=100 * SECOND)
        await fleet.send(front, behind)
        await fleet.wait_until_idle()
        (first,), (_, held) = fleet.actions(front), fleet.actions(behind)
        world.answer = lambda call: Outcome("retry", retry_after_us=20 * SECOND)
        for row in (first, held):
            await fleet.approve(row)
            await fleet.wait_until_idle()
        assert texts() == ["put off", "front"]
        world.answer = None
        await pass_time(fleet, clock, 25)
        await wait_until(lambda: world.effects() == 2)
        await pass_time(fleet, clock, 25)
        assert texts() == ["put off", "front", "front", "held"]
        await pass_time(fleet, clock, 100)
        await wait_until(lambda: world.effects() == 3)
        assert fleet.runs(behind)[0].state == "done"


async def test_who_waits_with_reason_is_not_accused(tmp_path: Path) -> None:
    """Stopped, between attempts, for a target, behind others of a busy agent: each is sound."""
    clock, world = ManualClock(), World(answer=lambda call: Outcome("retry", error="503"))
    agents = ("worker", "bad", "halted")
    fleet = toy_fleet(tmp_path, world, agents=agents, clock=clock)
    (fleet.content / "agents" / "bad" / "judge.py").write_text(JUDGE_PY)
    async with fleet:
        await fleet.app.commands.stop(fleet.order(), agent="halted")
        await fleet.send(
            job("h", agent="halted"), job("w", send_proposal("w")), event("p", "p", do="again")
        )
        for number in range(60):
            await fleet.send(
                event(f"b{number}", f"k{number}"), job(f"w{number}", send_proposal("w"))
            )
            await pass_time(fleet, clock, 5)
            assert fleet.app.watchdog.problems == []
        assert fleet.app.metrics.total("stuck_mended") == 0


class Client:
    """Asks an ASGI application whether it is ready."""

    def __init__(self, app: Any) -> None:
        self._app, self.told = app, ""

    async def status(self) -> int:
        transport = httpx.ASGITransport(self._app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            answer = await client.get("/readyz")
        self.told = answer.text
        return answer.status_code


def event(name: str, key: str, **data: Any) -> Event:
    return Event("test", name, "bad.job", key, None, data)


def closed(fleet: FleetHarness) -> int:
    return fleet.app.store.tables.counts().get("bad", {}).get("run.done", 0)


def labels(fleet: FleetHarness, of: Event) -> set[str]:
    found = fleet.entries("run.closed", "turn.reasoned")
    return {entry["label"] for entry in found if entry["event"] == of.key and "label" in entry}
