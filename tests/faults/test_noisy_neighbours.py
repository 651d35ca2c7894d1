"""One agent goes wrong, or one target hangs: the other agents hardly notice, and nothing is lost.

`python -m tests.bench.neighbours` prints the same numbers over a longer time and holds them to the
promise (p99 at most twice the quiet one). Here the bound has some slack in absolute terms, since
other processes may have the machine just then; what is not fair is far beyond it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.acceptance.promises.common import WIDE
from tests.faults.noise import FILE_TOOLS, QUIET, Filed, Seen, latency_line, measure, share

from vedette.domain.effect import Call
from vedette.domain.event import Event
from vedette.domain.run import Run
from vedette.domain.tool import Tool
from vedette.engine.calls_in_flight import CallsInFlight, CallSlot
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import job, send_proposal, toy_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

SECONDS = 3.0
PER_SECOND = 40.0
STORM = 3000
SLACK_MS = 400.0
OPEN = {"limits/data.yaml": WIDE}

SPINS = """
    def judge(self, seen, briefing):
        data = briefing.event.data
        if data.get("spin"):
            while True:
                pass
        if data.get("eat"):
            eaten = []
            while True:
                eaten.append(bytearray(16 << 20))
"""


@pytest.fixture
def world() -> Seen:
    return Seen()


def fleet_of(folder: Path, world: Seen, *, workers: bool = False) -> FleetHarness:
    """Return a fleet of quiet agents and one noisy one, whose tools have a target of their own."""
    fleet = toy_fleet(folder, world, agents=(*QUIET, "noisy"), extra=OPEN)
    fleet._workers = workers
    noisy = fleet.content / "agents" / "noisy"
    text = (noisy / "agent.yaml").read_text().replace("target: world", "target: slow")
    text += "limits: {time: 1s, memory: 512MiB}\nceilings: {errors_per_hour: null}\n"
    (noisy / "agent.yaml").write_text(text)
    judge = (noisy / "judge.py").read_text()
    head = "    def judge(self, seen, briefing):\n        data = briefing.event.data\n"
    assert head in judge
    (noisy / "judge.py").write_text(judge.replace(head, SPINS.lstrip("\n")))
    target: dict[str, Any] = {"kind": "world", "world": world}
    if isinstance(world, Filed):
        target = {"kind": "file", "path": str(world.path)}
        for name in (*QUIET, "noisy"):
            (noisy.parent / name / "tools.py").write_text(FILE_TOOLS)
    fleet.targets = {**fleet.targets, "world": target, "slow": target}
    return fleet


def fair(quiet: list[float], noisy: list[float]) -> bool:
    return share(noisy, 0.99) <= 2 * share(quiet, 0.99) + SLACK_MS


async def storm(fleet: FleetHarness, already: asyncio.Event, keys: int) -> None:
    """Hand over events of the noisy agent as fast as they are taken, one in ten with an effect."""
    number = 0

    def batch() -> list[Event]:
        nonlocal number
        number += 64
        return [
            job(
                f"s{n}",
                *([send_proposal(f"s{n}")] if n % 10 == 0 else []),
                key=f"k{n % keys}",
                agent="noisy",
            )
            for n in range(number - 64, number)
        ]

    while True:
        await asyncio.gather(*(fleet.send(*batch()) for _ in range(8)))
        if number >= STORM:
            already.set()


async def under_storm(
    fleet: FleetHarness, world: Seen, *, keys: int = 50
) -> tuple[list[float], list[float]]:
    """Return how long the quiet agents' events took without a storm and with one."""
    pace: Any = {"seconds": SECONDS, "per_second": PER_SECOND}
    await measure(fleet, world, seconds=1, per_second=PER_SECOND, name="warm")
    quiet = await measure(fleet, world, **pace)
    already = asyncio.Event()
    making = asyncio.create_task(storm(fleet, already, keys))
    try:
        await asyncio.wait_for(already.wait(), 60)
        noisy = await measure(fleet, world, **pace, name="noisy")
    finally:
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)
    return quiet, noisy


async def fair_in_one_of_six(
    folder: Path,
    what: str,
    once: Callable[[FleetHarness, Seen], Awaitable[tuple[list[float], list[float]]]],
    world: Callable[[Path], Seen] = lambda folder: Seen(),
    *,
    workers: bool = False,
) -> None:
    """Hold a fleet to the bound, in up to six trials, the later ones the further apart.

    Another program on the machine may hold all of a trial up; what is unfair is so every time, and
    what is lost once is lost.
    """
    tried = []
    for attempt in range(6):
        await asyncio.sleep(4 * attempt)
        (folder / str(attempt)).mkdir()
        seen = world(folder / str(attempt))
        async with fleet_of(folder / str(attempt), seen, workers=workers) as fleet:
            quiet, noisy = await once(fleet, seen)
        tried.append(latency_line(what, quiet, noisy))
        print(tried[-1])
        if fair(quiet, noisy):
            return
    raise AssertionError("; ".join(tried))


async def test_a_storm_of_one_agent_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async def once(fleet: FleetHarness, world: Seen) -> tuple[list[float], list[float]]:
        quiet, noisy = await under_storm(fleet, world)
        await fleet.wait_until_idle(90)
        nothing_is_lost(fleet, world)
        return quiet, noisy

    await fair_in_one_of_six(tmp_path, "storm", once)


class Fifo:
    """What `FairScheduler` would be without fairness: first come, first served."""

    def __init__(self, handlers: int) -> None:
        self.free = handlers
        self.queue: deque[tuple[str, Any]] = deque()

    @property
    def has_queued(self) -> bool:
        return bool(self.queue)

    def enqueue(self, agent: str, what: Any, now_us: int, cost: int = 1) -> None:
        self.queue.append((agent, what))

    def pop_next(self, now_us: int) -> tuple[str, Any] | None:
        if not self.queue or not self.free:
            return None
        self.free -= 1
        return self.queue.popleft()

    def mark_slow(self, agent: str) -> None:
        """First come, first served: who waits for long keeps its handler as well."""

    def release_handler(self, agent: str, *, was_slow: bool = False) -> None:
        self.free += 1

    def has_light_agent(self, now_us: int) -> bool:
        return False


async def test_control_first_come_first_served_holds_up_the_others(
    tmp_path: Path, world: Seen
) -> None:
    async with fleet_of(tmp_path, world) as fleet:
        dispatcher: Any = fleet.app.dispatcher
        dispatcher.scheduler = Fifo(256)
        dispatcher.buffer.memory.events = dispatcher.buffer.credits.events = 1 << 20
        # As many wait at a time as there are keys, and a fast machine is through with few at once.
        quiet, noisy = await under_storm(fleet, world, keys=1500)
        assert not fair(quiet, noisy), latency_line("storm, first come first served", quiet, noisy)


async def hang(fleet: FleetHarness) -> None:
    """Let calls hang at the noisy agent's target, many more than there are slots."""
    for number in range(200):
        await fleet.send(
            job(f"h{number}", send_proposal(f"h{number}"), key=f"k{number}", agent="noisy")
        )
    await asyncio.Event().wait()


async def with_a_target_that_hangs(
    fleet: FleetHarness, world: Seen
) -> tuple[list[float], list[float]]:
    release = threading.Event()

    def hook(call: Call) -> None:
        if call.agent == "noisy":
            release.wait(60)

    world.hook = hook
    pace: Any = {"seconds": SECONDS, "per_second": PER_SECOND}
    try:
        await measure(fleet, world, seconds=1, per_second=PER_SECOND, name="warm")
        quiet = await measure(fleet, world, **pace)
        noisy = await measure(fleet, world, **pace, name="noisy", noise=lambda: hang(fleet))
    finally:
        release.set()
    return quiet, noisy


async def test_a_target_that_hangs_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async def once(fleet: FleetHarness, world: Seen) -> tuple[list[float], list[float]]:
        quiet, noisy = await with_a_target_that_hangs(fleet, world)
        await fleet.wait_until_idle(60)
        nothing_is_lost(fleet, world)
        return quiet, noisy

    await fair_in_one_of_six(tmp_path, "hanging target", once)


async def test_control_slots_that_all_share_are_all_taken(tmp_path: Path, world: Seen) -> None:
    async with fleet_of(tmp_path, world) as fleet:
        fleet.app.services.calls = _SharedSlots(fleet.app.services.clock)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(with_a_target_that_hangs(fleet, world), 10)


class _SharedSlots(CallsInFlight):
    """What the slots of calls would be if all agents and targets had them together."""

    def slot(self, run: Run, tool: Tool, target: str, policy_rev: int) -> CallSlot:
        return super().slot(replace(run, agent="everybody"), tool, "everything", policy_rev)


@pytest.mark.parametrize("how", ["spin", "eat"])
async def test_a_judge_that_loops_or_eats_memory_does_not_hold_up_the_others(
    tmp_path: Path, how: str
) -> None:
    """In processes of their own: what ends there is one run of the agent, and no other's."""

    async def misbehave(fleet: FleetHarness) -> None:
        wild: dict[str, Any] = {how: True}
        for number in range(1000):
            await fleet.send(job(f"b{number}", key=f"b{number}", agent="noisy", **wild))
            await asyncio.sleep(0.2)

    def filed(folder: Path) -> Filed:
        # A folder of its own: in their box tools reach it, and nothing of the fleet's lies there.
        (folder / "target").mkdir()
        return Filed(path=folder / "target" / "record.txt")

    async def once(fleet: FleetHarness, world: Seen) -> tuple[list[float], list[float]]:
        pace: Any = {"seconds": SECONDS, "per_second": PER_SECOND}
        await measure(fleet, world, seconds=1, per_second=PER_SECOND, name="warm")
        quiet = await measure(fleet, world, **pace)
        noisy = await measure(fleet, world, **pace, name="noisy", noise=lambda: misbehave(fleet))
        texts = [text for text in world.at if text.startswith(("quiet", "noisy"))]
        assert len(texts) == 2 * int(SECONDS * PER_SECOND)
        errors = fleet.app.metrics.total("runs", agent="noisy", state="dead")
        assert errors == len(fleet.entries("run.dead"))
        return quiet, noisy

    await fair_in_one_of_six(tmp_path, how, once, filed, workers=True)


def nothing_is_lost(fleet: FleetHarness, world: Seen) -> None:
    """Every accepted event is done, and every permitted effect came about once."""
    states = fleet.app.store.tables.counts()
    for agent in (*QUIET, "noisy"):
        runs = {k: v for k, v in states.get(agent, {}).items() if k.startswith("run.")}
        assert set(runs) <= {"run.done"}, (agent, runs)
    assert set(world.keys().values()) == {1}
    assert len(world.keys()) == fleet.outcomes()["permit"]
    assert fleet.app.dispatcher.buffer.credits.total == (0, 0)


# --- time to stop -----------------------------------------------------------------------------


@pytest.mark.parametrize("stops", [6, 20])
async def test_time_to_stop_at_500_events_a_second(tmp_path: Path, stops: int) -> None:
    """Stops under load: told within a second (all but one), and no call starts once one is told.

    Of so few stops the 99th percentile is the slowest, and a neighbour on the machine makes one
    slow now and then: one may be. As above, what holds a whole trial up is tried again; that no
    call is late and nothing lost holds for each trial.
    """
    tried = []
    for attempt in range(6):
        await asyncio.sleep(4 * attempt)
        (tmp_path / str(attempt)).mkdir()
        took_ms = sorted(await stop_under_load(tmp_path / str(attempt), stops))
        tried.append(f"p50 {share(took_ms, 0.5):.1f} p99 {share(took_ms, 0.99):.1f} ms")
        print(f"time to stop: {tried[-1]}")
        if took_ms[-2] <= 1000:
            return
    raise AssertionError("; ".join(tried))


async def stop_under_load(folder: Path, stops: int) -> list[float]:
    """Return how long each of some stops took in ms; hold them to what each one promises."""
    world = Seen()
    async with fleet_of(folder, world) as fleet:
        stopping = asyncio.Event()

        async def load() -> None:
            began, number = time.monotonic(), 0
            while not stopping.is_set():
                due = int((time.monotonic() - began) * 500)
                batch = [
                    job(f"e{n}", send_proposal(f"e{n}"), key=f"k{n % 64}", agent=QUIET[n % 4])
                    for n in range(number, min(due, number + 64))
                ]
                number += len(batch)
                if batch:
                    await fleet.send(*batch)
                await asyncio.sleep(0.002)

        pouring = asyncio.create_task(load())
        took_ms, late_calls = [], 0
        commands = fleet.app.commands
        for _ in range(stops):
            await asyncio.sleep(0.2)
            ordered_at = time.monotonic()
            await commands.stop(fleet.order("enough"), all=True)
            reported_at = time.monotonic()
            took_ms.append((reported_at - ordered_at) * 1000)
            await asyncio.sleep(0.05)
            late_calls += sum(at > reported_at for at in list(world.at.values()))
            await commands.resume(fleet.order("go on"), all=True)
        await commands.stop(fleet.order("for the night"), all=True)
        stopping.set()
        await pouring
        called = len(world.at)
        await fleet.restart()
        await asyncio.sleep(0.3)
        await fleet.wait_until_idle()
        assert len(world.at) == called, "a restart starts nothing either"
        assert called > 100, "there was no load"
        assert late_calls == 0
        await fleet.app.commands.resume(fleet.order("morning"), all=True)
        await fleet.wait_until_idle(90)
        nothing_is_lost(fleet, world)
    return took_ms
