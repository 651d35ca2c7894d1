"""The fleet stays on its feet: targets that are down, agents that go wrong, stops that end.

On the real store, gateway and hands; the target is the toy world, which keeps its own record.
"""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from vedette.domain.base.clock import iso
from vedette.domain.base.errors import BadCommand, Temporary
from vedette.domain.effect import Call, Outcome
from vedette.domain.event import Event
from vedette.domain.run import Run
from vedette.engine.circuit_breaker import BreakerLimits, CircuitBreakers
from vedette.engine.kill_switch import lift_expired_stops, park_agent
from vedette.engine.scheduler.backpressure import Bounds, RunBuffer
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import (
    World,
    job,
    note_proposal,
    send_proposal,
    toy_fleet,
    wait_until,
)

SECOND = 1_000_000
HOUR = 3600 * SECOND
DOWN = Outcome("retry", error="503")


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def state(fleet: FleetHarness, event: Event) -> str:
    return fleet.runs(event)[0].state


def breaker_state(fleet: FleetHarness) -> str:
    return fleet.app.services.breakers.for_target("world").state


def declare(fleet: FleetHarness, agent: str, old: str, new: str) -> None:
    """Change an agent's declaration before the fleet is opened."""
    file = fleet.content / "agents" / agent / "agent.yaml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


async def pass_time(fleet: FleetHarness, clock: ManualClock, seconds: float) -> None:
    """Let time pass in steps, each followed by all that is due then."""
    for _ in range(int(seconds * 2)):
        clock.advance(SECOND // 2)
        await fleet.wait_until_idle()


# --- targets ----------------------------------------------------------------------------------


async def test_a_target_that_is_down_is_left_alone_and_found_to_be_back(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    """Effects wait at no compute, other targets flow, and each comes about once, in order."""
    world.answer = lambda call: DOWN if call.args["text"].startswith("w") else None
    fleet = toy_fleet(tmp_path, world, clock=clock)
    declare(
        fleet,
        "worker",
        "settles: none, function: act, target: world",
        "settles: none, function: act, target: other",
    )
    fleet.targets = {**fleet.targets, "other": {"kind": "world", "world": world}}
    async with fleet:
        down = [
            job(f"{k}{n}", send_proposal(f"w{k}{n}"), key=k) for n in range(3) for k in "abcdefgh"
        ]
        await fleet.send(*down)
        await fleet.wait_until_idle()
        breaker = fleet.app.services.breakers.for_target("world")
        assert breaker_state(fleet) == "open"
        calls = len(world.calls)
        assert calls < 8 + 5, "one for each key at most, and no more once it was open"
        late = job("late", send_proposal("w late"), key="late")
        await fleet.send(late)
        await fleet.send(job("bell", send_proposal("ring", "bell.ring"), key="x"))
        await fleet.wait_until_idle()
        assert world.texts("bell.ring") == ["ring"]
        assert len(world.calls) == calls + 1, "the target that is down was not called again"
        assert {state(fleet, event) for event in [*down, late]} == {"waiting"}
        assert fleet.app.dispatcher.pending == 0

        await pass_time(fleet, clock, 100)
        assert breaker.open_count > 3
        assert len(world.calls) - calls < 25, "a trial now and then"
        world.answer = None
        await pass_time(fleet, clock, 400)
        assert {state(fleet, event) for event in [*down, late]} == {"done"}
        assert sorted(world.keys("wire.send").values()) == [1] * 25
        for key in "abcdefgh":
            done = [text for name, text in order(world) if text.startswith(f"w{key}")]
            assert done == [f"w{key}{n}" for n in range(3)]


NO_ANSWER = Outcome("unknown", error="no answer")


@pytest.mark.parametrize(
    ("tool", "lost", "keys"),
    [
        ("wire.send", NO_ANSWER, "abcdefgh"),
        ("wire.send", DOWN, "abcdefgh"),
        ("order.place", DOWN, "abcdefgh"),
        ("order.place", NO_ANSWER, "a"),  # one is asked about at every trial
    ],
    ids=["silent", "down", "down queryable", "silent queryable"],
)
async def test_soon_after_a_long_outage_everything_is_done(
    tmp_path: Path, world: World, clock: ManualClock, tool: str, lost: Outcome, keys: str
) -> None:
    """However long a target was away: no effect waits by how often it was tried meanwhile."""
    world.answer, world.query = lambda call: lost, lambda call: NO_ANSWER
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        events = [
            job(f"{k}{n}", send_proposal(f"{k}{n}", tool), key=k) for n in range(2) for k in keys
        ]
        await fleet.send(*events)
        breaker, tried = fleet.app.services.breakers.for_target("world"), 0
        for second in range(0, 1200, 2):
            # It comes back when it has just been tried.
            if second > 480 and breaker.open_count > tried:
                break
            tried = breaker.open_count
            clock.advance(2 * SECOND)
            await fleet.wait_until_idle()
        assert breaker_state(fleet) == "open"
        assert not world.record
        world.answer = world.query = None
        await pass_time(fleet, clock, 33)
        assert {state(fleet, event) for event in events} == {"done"}
        assert sorted(world.keys(tool).values()) == [1] * len(events)


def order(world: World) -> list[tuple[str, str]]:
    """Return (tool, text) of what happened, in the order in which it did."""
    texts = {call.key: str(call.args["text"]) for call in world.calls}
    return [(tool, texts[key]) for tool, key in world.record]


async def test_a_restart_finds_who_is_parked_and_tries_the_target_anew(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    world.answer = lambda call: DOWN
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        keys = "abcdefghijklmnopqrstuvwxyz"
        events = [job(f"{k}{n}", send_proposal(f"{k}{n}"), key=k) for n in range(2) for k in keys]
        await fleet.send(*events)
        await fleet.wait_until_idle()
        assert breaker_state(fleet) == "open"
        world.answer = None
        await fleet.restart()
        assert breaker_state(fleet) == "closed"
        await fleet.wait_until_idle()
        # Those that were tried and failed wait for their retry; the parked went on at once.
        assert len(world.record) >= 5
        await pass_time(fleet, clock, 5)
        assert {state(fleet, event) for event in events} == {"done"}
        assert sorted(world.keys().values()) == [1] * 52
        for key in keys:
            assert [text for _, text in order(world) if text[0] == key] == [f"{key}0", f"{key}1"]


async def test_effects_of_a_key_keep_their_order_over_retries(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    failures = iter([DOWN, DOWN])
    world.answer = lambda call: next(failures, None) if call.args["text"] == "1" else None
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        await fleet.send(*(job(str(n), send_proposal(str(n)), key="k") for n in range(1, 5)))
        await fleet.send(job("other", send_proposal("other"), key="free"))
        await fleet.wait_until_idle()
        assert [text for _, text in order(world)] == ["other"]
        await pass_time(fleet, clock, 5)
        assert [text for _, text in order(world)] == ["other", "1", "2", "3", "4"]


async def test_a_key_that_is_parked_goes_on_when_what_was_in_front_is_gone(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    """The one in front fails for good: it is settled too, and the key goes on."""
    world.answer = lambda call: DOWN if call.args["text"] == "1" else None
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        fleet.app.services.breakers = CircuitBreakers(BreakerLimits(in_a_row=100))
        await fleet.send(*(job(str(n), send_proposal(str(n)), key="k") for n in range(1, 4)))
        await pass_time(fleet, clock, 10)
        assert [text for _, text in order(world)] == ["2", "3"]
        assert len(fleet.entries("effect.failed")) == 1
        assert fleet.app.services.parked_runs.key_count == 0


async def test_an_effect_marked_as_started_but_not_called_is_not_in_doubt(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    """A tool nobody can ask: had its call been made, only a person could go on."""
    ring = send_proposal("ring", "bell.ring")
    world.answer = lambda call: DOWN
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        for n in range(6):
            await fleet.send(job(f"w{n}", send_proposal(f"w{n}"), key=f"w{n}"))
        await fleet.wait_until_idle()
        assert breaker_state(fleet) == "open"
        await fleet.send(job("bell", ring, key="bell"))
        await fleet.wait_until_idle()
        world.answer = None
        await pass_time(fleet, clock, 200)
        assert world.effects("bell.ring") == 1
        assert fleet.entries("effect.unknown") == []


async def test_one_that_hangs_at_its_target_takes_no_slot_from_others(
    tmp_path: Path, world: World
) -> None:
    release = threading.Event()

    def hang(call: Call) -> None:
        if call.agent == "worker":
            release.wait(20)

    world.answer = hang
    async with toy_fleet(tmp_path, world, agents=("worker", "helper")) as fleet:
        try:
            await fleet.send(
                *(job(f"h{n}", send_proposal(f"h{n}"), key=f"k{n}") for n in range(100))
            )
            await wait_until(lambda: len(world.calls) >= 12)
            others = [
                job(f"o{n}", send_proposal(f"o{n}"), key=f"k{n}", agent="helper") for n in range(40)
            ]
            await fleet.send(*others)
            await wait_until(lambda: all(state(fleet, event) == "done" for event in others))
            assert len([call for call in world.calls if call.agent == "worker"]) <= 16
        finally:
            release.set()
        await fleet.wait_until_idle()
        assert world.effects() == 140


# --- ceilings ---------------------------------------------------------------------------------


async def test_an_agent_over_its_error_ceiling_is_parked_and_its_events_are_kept(
    tmp_path: Path, world: World
) -> None:
    fleet = toy_fleet(tmp_path, world, agents=("worker", "helper"))
    declare(fleet, "worker", "max_turns: 4", "max_turns: 4\nceilings: {errors_per_hour: 5}")
    async with fleet:
        for n in range(20):
            bad: dict[str, Any] = {"raise": n < 12}
            await fleet.send(job(f"bad{n}", key=f"k{n}", **bad))
            await fleet.wait_until_idle()
        dead = len(fleet.entries("run.dead"))
        assert dead == 5
        (parked,) = fleet.entries("stop.set")
        assert (parked["what"], parked["actor"]) == ("agent:worker", "engine:vedette")
        assert "5 errors within an hour" in fleet.body(parked["seq"])["reason"]
        await fleet.send(job("ok", send_proposal("ok"), agent="helper"))
        await fleet.wait_until_idle()
        assert world.texts() == ["ok"]
        await fleet.restart()
        await fleet.wait_until_idle()
        assert fleet.app.store.schedule.ready_counts() == {"worker": 15}, "kept, over a restart too"

        await fleet.app.commands.resume(fleet.order("mended"), agent="worker")
        await wait_until(lambda: len(fleet.entries("stop.set")) == 2)
        # A clean sheet, and then the same again; what was in hand just then is counted too.
        assert 10 <= len(fleet.entries("run.dead")) <= 12
        await fleet.app.commands.resume(fleet.order("mended"), agent="worker")
        await fleet.wait_until_idle()
        assert len(fleet.entries("run.dead")) == 12
        assert fleet.app.store.schedule.ready_counts() == {}


async def test_an_agent_at_its_effect_ceiling_starts_no_call_more(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    fleet = toy_fleet(tmp_path, world, clock=clock)
    declare(fleet, "worker", "max_turns: 4", "max_turns: 4\nceilings: {effects_per_minute: 7}")
    async with fleet:
        await fleet.send(*(job(str(n), send_proposal(str(n)), key=f"k{n}") for n in range(20)))
        await fleet.wait_until_idle()
        assert [entry["what"] for entry in fleet.entries("stop.set")] == ["agent:worker"]
        minutes = [len(world.calls)]
        while ("agent", "worker") in fleet.app.services.stops.list_scopes():
            clock.advance(120 * SECOND)
            await fleet.app.commands.resume(fleet.order(), agent="worker")
            await fleet.wait_until_idle()
            minutes.append(len(world.calls) - sum(minutes))
        assert max(minutes) <= 7
        assert len(minutes) >= 3
        assert sorted(world.keys().values()) == [1] * 20


# --- stops ------------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True])
async def test_a_stop_for_some_time_lifts_itself(
    tmp_path: Path, world: World, clock: ManualClock, restart: bool
) -> None:
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        done = await fleet.app.commands.stop(
            fleet.order("a while"), agent="worker", for_us=2 * HOUR
        )
        assert done["until"] == clock.now_us() + 2 * HOUR
        await fleet.send(job("1", send_proposal("1"), note_proposal("1")))
        await fleet.wait_until_idle()
        if restart:
            await fleet.restart()
        clock.advance(2 * HOUR - 1)
        await asyncio.sleep(0.15)
        await fleet.wait_until_idle()
        assert world.calls == []
        clock.advance(1)
        await wait_until(lambda: world.effects() == 1)
        (was,) = fleet.entries("stop.set")
        (lifted,) = fleet.entries("stop.lifted")
        assert (lifted["actor"], lifted["cause"]) == ("engine:vedette", was["seq"])
        assert was["until"] == done["until"]
        await fleet.restart()
        assert fleet.app.services.stops.list_scopes() == []


async def test_a_stop_without_an_end_does_not_end(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    """The control of the test above, and one that a person lifted in time is lifted once."""
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        await fleet.app.commands.stop(fleet.order(), all=True)
        await fleet.app.commands.stop(fleet.order(), tool="wire.send", for_us=HOUR)
        await fleet.app.commands.resume(fleet.order(), tool="wire.send")
        clock.advance(1000 * HOUR)
        await asyncio.sleep(0.15)
        assert fleet.app.services.stops.list_scopes() == [("all", "")]
        assert len(fleet.entries("stop.lifted")) == 1
        for wrong in (0, -1, 4000 * 24 * HOUR):
            with pytest.raises(BadCommand):
                await fleet.app.commands.stop(fleet.order(), agent="worker", for_us=wrong)


@pytest.mark.parametrize("restart", [False, True])
async def test_a_stop_for_some_time_can_be_made_to_last(
    tmp_path: Path, world: World, clock: ManualClock, restart: bool
) -> None:
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        commands = fleet.app.commands
        ends = (await commands.stop(fleet.order(), all=True, for_us=2 * HOUR))["until"]
        with pytest.raises(BadCommand, match=f"already stopped until {re.escape(iso(ends))}"):
            await commands.stop(fleet.order(), all=True, for_us=HOUR)
        done = await commands.stop(fleet.order("for good"), all=True)
        assert done["until"] is None
        await fleet.send(job("1", send_proposal("1")))
        if restart:
            await fleet.restart()
        clock.advance(1000 * HOUR)
        await asyncio.sleep(0.15)
        await fleet.wait_until_idle()
        assert fleet.app.services.stops.list_scopes() == [("all", "")]
        assert (fleet.entries("stop.lifted"), world.calls) == ([], [])
        await fleet.app.commands.resume(fleet.order(), all=True)
        await wait_until(lambda: world.effects() == 1)


async def test_a_stop_made_longer_as_its_end_comes_is_not_lifted(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    """The engine still knows the old end when it lifts; what stands by then is another stop."""
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        line = fleet.app.services
        await fleet.app.commands.stop(fleet.order(), agent="worker", for_us=HOUR)
        known = line.stops.timed_stops
        await fleet.app.commands.stop(fleet.order(), agent="worker")
        assert line.stops.timed_stops == []
        line.stops.timed_stops = known
        await lift_expired_stops(line, clock.now_us() + HOUR)
        assert (line.stops.list_scopes(), line.stops.timed_stops) == ([("agent", "worker")], [])
        assert fleet.app.store.policy.stop_scopes() == [("agent", "worker")]


@pytest.mark.parametrize("what", [{"agent": "worker"}, {"all": True}])
@pytest.mark.parametrize("timed", [True, False])
async def test_who_is_over_a_ceiling_is_parked_though_stopped_for_some_time(
    tmp_path: Path, world: World, clock: ManualClock, what: dict[str, Any], timed: bool
) -> None:
    """Under a stop without an end there is nothing to add: a person looks at it anyway."""
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        await fleet.app.commands.stop(fleet.order(), **what, for_us=HOUR if timed else None)
        await park_agent(fleet.app.services, "worker", "5 errors within an hour")
        await park_agent(fleet.app.services, "worker", "5 errors within an hour")
        assert len(fleet.entries("stop.set")) == 1 + timed
        clock.advance(2 * HOUR)
        await fleet.wait_until_idle()
        await wait_until(lambda: fleet.app.services.stops.timed_stops == [])
        assert fleet.app.services.stops.is_agent_stopped("worker")
        assert fleet.app.services.stops.is_agent_stopped("helper") == (not timed and "all" in what)


async def test_a_stop_that_could_not_be_made_durable_holds_nobody_up(
    tmp_path: Path, world: World
) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        store: Any = fleet.app.store
        stop = store.commands.stop

        async def lost(*args: Any, **more: Any) -> int:
            raise Temporary("the commit failed")

        store.commands.stop = lost
        with pytest.raises(Temporary):
            await fleet.app.commands.stop(fleet.order(), all=True)
        store.commands.stop = stop
        await fleet.send(job("1", send_proposal("1")))
        await fleet.wait_until_idle()
        assert world.effects() == 1


# --- what is accepted and not finished --------------------------------------------------------


def narrow(fleet: FleetHarness, **bounds: int) -> RunBuffer:
    """Give a fleet that has nothing to do yet less room than usual."""
    buffer, less = fleet.app.dispatcher.buffer, Bounds(**bounds)
    buffer.memory.events, buffer.memory.octets = less.room, less.room_octets
    buffer.credits.events, buffer.credits.octets = less.credits, less.credit_octets
    return buffer


@pytest.mark.parametrize("bounds", [{"credits": 64}, {"credit_octets": 64 * 400}])
async def test_intake_waits_for_an_agent_that_is_slow_and_for_no_other(
    tmp_path: Path, world: World, bounds: dict[str, int]
) -> None:
    """In events, and in bytes."""
    release = threading.Event()

    def hang(call: Call) -> None:
        if call.agent == "worker":
            release.wait(20)

    world.answer = hang
    async with toy_fleet(tmp_path, world, agents=("worker", "helper")) as fleet:
        supply = narrow(fleet, **bounds)
        accepted = 0

        async def pour() -> None:
            nonlocal accepted
            for n in range(100):
                event = job(f"w{n}", send_proposal(f"w{n}"), key=f"k{n}", pad="x" * 100)
                await fleet.send(event)
                accepted += 1
                supply._last_release_us["worker"] = fleet.app.services.clock.monotonic_us()

        pouring = asyncio.create_task(pour())
        try:
            before = -1
            while before != accepted:
                before = accepted
                await asyncio.sleep(0.5)
            assert 15 < accepted < 60, accepted
            others = [
                job(f"o{n}", send_proposal(f"o{n}"), key=f"k{n}", agent="helper") for n in range(10)
            ]
            await asyncio.wait_for(fleet.send(*others), 5)
            await wait_until(lambda: all(state(fleet, event) == "done" for event in others))
            assert accepted == before
        finally:
            release.set()
        await asyncio.wait_for(pouring, 20)
        await fleet.wait_until_idle()
        assert world.effects() == 110
        assert supply.credits.total == (0, 0)
        assert supply.memory.total == (0, 0)


async def test_an_agent_that_finishes_nothing_holds_up_no_source_that_it_shares(
    tmp_path: Path, world: World, clock: ManualClock
) -> None:
    release = threading.Event()
    world.answer = lambda call: None if call.agent != "worker" else _wait(release)
    async with toy_fleet(tmp_path, world, agents=("worker", "helper"), clock=clock) as fleet:
        narrow(fleet, credits=32, room=32)
        clock.advance(60 * SECOND)
        try:
            for n in range(60):
                pair = [job(f"{a}{n}", send_proposal(f"{a}{n}"), key=f"k{n}", agent=a)
                        for a in ("worker", "helper")]  # fmt: skip
                await asyncio.wait_for(fleet.send(*pair), 5)
                await wait_until(lambda n=n: f"helper{n}" in world.texts())  # type: ignore[misc]
            assert len(fleet.app.dispatcher.buffer.loaded_runs) <= 32
        finally:
            release.set()
        await fleet.wait_until_idle()
        assert sorted(world.keys().values()) == [1] * 120


def _wait(release: threading.Event) -> None:
    release.wait(20)


async def test_one_agents_backlog_in_the_store_is_in_nobodys_way(
    tmp_path: Path, world: World
) -> None:
    async with toy_fleet(tmp_path, world, agents=("worker", "helper")) as fleet:
        await fleet.app.commands.stop(fleet.order(), all=True)
        await fleet.send(*(job(f"w{n}", key=f"k{n % 5}", value=1) for n in range(600)))
        await fleet.send(job("h", send_proposal("mine"), agent="helper"))
        await fleet.restart()
        await fleet.app.dispatcher.close()
        supply = narrow(fleet, room=64)
        read: list[tuple[str | None, int]] = []
        backlog = fleet.app.store.schedule.ready_runs

        def told(after: int, limit: int, agent: str | None = None) -> list[Run]:
            found = backlog(after, limit, agent)
            read.append((agent, len(found)))
            return found

        fleet.app.store.schedule.ready_runs = told  # type: ignore[method-assign]
        fleet.app.dispatcher.start()
        await fleet.app.commands.resume(fleet.order(), all=True)
        fleet.app.dispatcher.wake_due()
        assert ("helper", 1) in read
        assert len(supply.loaded_runs) <= 64
        await fleet.wait_until_idle()
        assert world.texts() == ["mine"]
        assert fleet.app.store.schedule.ready_counts() == {}
        labels = [entry["label"] for entry in fleet.entries("run.closed") if "label" in entry]
        assert labels.count("sum 120 of 120") == 5, "in the order of each key"


# --- attempts ---------------------------------------------------------------------------------


class Hand:
    """What a process before this one had in hand, and what this one has."""

    def __init__(self, left: list[str]) -> None:
        self.left = left
        self.now: list[str] = []
        self.seen: list[str] = []

    def begin(self, run: str) -> None:
        self.now.append(run)
        self.seen.append(run)

    def end(self, run: str) -> None:
        self.now.remove(run)

    def unfinished(self) -> list[str]:
        return self.left

    def close(self) -> None: ...


async def test_an_event_that_kills_its_process_is_given_up_and_others_are_not(
    tmp_path: Path, world: World
) -> None:
    bad, good = (
        job("bad", send_proposal("bad"), key="k"),
        job("good", send_proposal("good"), key="k"),
    )
    async with toy_fleet(tmp_path, world) as fleet:
        await fleet.app.commands.stop(fleet.order(), all=True)
        await fleet.send(bad, good)
        await fleet.app.commands.resume(fleet.order(), all=True)
        await fleet.close()
        run = None
        for died in range(1, 6):
            await fleet.open()
            await fleet.app.dispatcher.close()
            run = fleet.runs(bad)[0]
            assert (run.state, run.attempts) == ("ready", died - 1)
            fleet.app.services.run_journal = Hand([run.id])
            if died < 5:
                # The judge takes the process with it once more.
                async def dies(*_: Any) -> None:
                    await asyncio.Event().wait()

                fleet.app.services.reasoners["judge"].reason = dies  # type: ignore[method-assign, assignment]
            fleet.app.dispatcher.start()
            if died < 5:
                await wait_until(lambda: fleet.runs(bad)[0].attempts == died)  # noqa: B023
                await wait_until(lambda: fleet.app.services.run_journal.now != [])  # type: ignore[union-attr]
                await fleet.close()
        await fleet.wait_until_idle()
        (dead,) = fleet.entries("run.dead")
        assert dead["event"] == bad.key
        assert "died 5 times" in fleet.body(dead["seq"])["why"]
        assert state(fleet, good) == "done"
        assert world.texts() == ["good"]
        assert fleet.app.services.run_journal.now == []  # type: ignore[union-attr]


# --- leases -----------------------------------------------------------------------------------


async def test_runs_that_are_another_workers_are_let_go_and_taken_up_when_they_come_back(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with toy_fleet(tmp_path, world) as fleet:
        store: Any = fleet.app.store
        lease, ours = store.cluster.lease_epoch, {"a"}
        monkeypatch.setattr(type(store.cluster), "lease_rev", property(lambda _: len(ours) - 1))
        store.cluster.lease_epoch = lambda run: lease(run) if run.key in ours else None
        backlog, counts = store.schedule.ready_runs, store.schedule.ready_counts

        def mine(after: int, limit: int, agent: str | None = None) -> list[Run]:
            return [run for run in backlog(after, limit, agent) if run.key in ours]

        store.schedule.ready_runs = mine
        await fleet.send(
            *(job(f"{k}{n}", send_proposal(f"{k}{n}"), key=k) for n in range(5) for k in "ab")
        )
        await fleet.wait_until_idle()
        assert world.texts() == [f"a{n}" for n in range(5)]
        assert fleet.app.dispatcher.pending == 0
        assert counts() == {"worker": 5}
        ours.add("b")
        await fleet.wait_until_idle()
        assert world.texts()[5:] == [f"b{n}" for n in range(5)]
        assert fleet.app.dispatcher.buffer.credits.total == (0, 0)
