"""Clocks that are set under a fleet: waits go by what has passed, and nothing expires by a jump."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from vedette.domain.base.errors import BadCommand, StoreFailed
from vedette.domain.effect import Outcome
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.interfaces.http.local_api import live_status
from vedette.testing.clock import ManualClock, run_ready_tasks
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet, wait_until

SECOND = 1_000_000
HOUR = 3600 * SECOND
DOWN = Outcome("retry", error="503")


async def pass_time(fleet: FleetHarness, clock: ManualClock, seconds: float) -> None:
    """Let time pass in steps, each followed by all that is due then."""
    for _ in range(int(seconds * 2)):
        clock.advance(SECOND // 2)
        await fleet.wait_until_idle()


async def notices_of(fleet: FleetHarness) -> list[str]:
    """Return what was recorded of jumps, once the fleet has looked."""
    await wait_until(lambda: fleet.app.services.clock.jump is not None)
    await wait_until(lambda: bool(fleet.entries("clock.jumped")))
    return [entry["what"] for entry in fleet.entries("clock.jumped")]


async def failing(fleet: FleetHarness, world: World, keys: int) -> None:
    """Have effects fail for now: with five and more their target is left alone."""
    world.answer = lambda call: DOWN
    for number in range(keys):
        await fleet.send(job(f"e{number}", send_proposal(f"t{number}"), key=f"k{number}"))
    await fleet.wait_until_idle()
    assert world.effects() == 0
    world.answer = None


@pytest.mark.parametrize("hours", [-3, 80])
@pytest.mark.parametrize("keys", [4, 6], ids=["retry", "breaker"])
async def test_a_retry_comes_after_its_time_whatever_the_wall_clock_says(
    tmp_path: Path, hours: int, keys: int
) -> None:
    """What waits for its own time, and what waits for a target that is left alone."""
    clock, world = ManualClock(), World()
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        await failing(fleet, world, keys)
        clock.set_wall(clock.now_us() + hours * HOUR)
        await fleet.wait_until_idle()
        assert world.effects() == 0  # a jump forward is no wait that is over
        await pass_time(fleet, clock, 10)
        assert world.effects() >= (4 if keys == 4 else 1)
        assert await notices_of(fleet) == [f"{hours * 3600:+d}"]


@pytest.mark.parametrize("hours", [-3, 80])
@pytest.mark.parametrize("keys", [4, 6], ids=["retry", "breaker"])
async def test_what_waits_moves_with_a_confirmed_clock(
    tmp_path: Path, hours: int, keys: int
) -> None:
    clock, world = ManualClock(), World()
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        await failing(fleet, world, keys)
        wall = clock.now_us() + hours * HOUR
        clock.set_wall(wall)
        await notices_of(fleet)
        done = await dispatch(fleet.app.commands, "clock_confirm", fleet.order(), {})
        assert done["by_us"] == hours * HOUR
        assert fleet.app.services.clock.now_us() == wall
        assert live_status(fleet.app.commands)["clock"] is None
        await asyncio.sleep(0.1)  # the waker looks
        await pass_time(fleet, clock, 10)
        assert world.effects() >= (4 if keys == 4 else 1)
        (entry,) = fleet.entries("clock.confirmed")
        assert entry["actor"] == "person:tester"
        with pytest.raises(BadCommand, match="nothing to confirm"):
            await fleet.app.commands.clock_confirm(fleet.order())


@pytest.mark.parametrize("hours", [-3, 80])
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_stop_holds_over_a_jump_and_nothing_is_done_twice(
    tmp_path: Path, hours: int, restarted: bool
) -> None:
    """Also a stop with an end, of which nobody can tell whether it is over. A person says so."""
    clock, world = ManualClock(boot="one"), World(loses_answer=True)
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        world.answer = lambda call: Outcome("unknown", error="the answer was lost")
        world.query = lambda call: Outcome("unknown", error="no answer")
        tools = ("wire.send", "order.place")
        for number in range(8):
            doing = send_proposal(f"t{number}", tool=tools[number % 2])
            await fleet.send(job(f"e{number}", doing, key=f"k{number}"))
        await fleet.wait_until_idle()
        await fleet.app.commands.stop(fleet.order(), all=True, for_us=2 * HOUR)
        calls = len(world.calls)
        clock.set_wall(clock.now_us() + hours * HOUR)
        if restarted:
            await fleet.restart()
        assert await notices_of(fleet) == [f"{hours * 3600:+d}"]
        world.answer = world.query = None
        await pass_time(fleet, clock, 60)
        assert len(world.calls) == calls
        assert fleet.app.store.policy.stop_scopes() == [("all", "")]
        await dispatch(fleet.app.commands, "clock_confirm", fleet.order(), {})
        await wait_until(lambda: bool(fleet.app.store.policy.stop_scopes()) is (hours < 0))
        if hours < 0:
            assert len(world.calls) == calls
            await fleet.app.commands.resume(fleet.order(), all=True)
        await asyncio.sleep(0.1)  # the waker looks
        await pass_time(fleet, clock, 60)
        assert len(world.keys()) == 8
        assert world.keys("order.place") == Counter(dict.fromkeys(world.keys("order.place"), 1))
        assert not fleet.app.store.runs.runs_page(agent=None, state="waiting", before=None, limit=9)


async def held(fleet: FleetHarness, name: str = "h") -> str:
    """Have an action wait for a person; return its hold."""
    event = job(name, send_proposal(name, tool="big.send"), key=name)
    await fleet.send(event)
    await fleet.wait_until_idle()
    (row,) = fleet.actions(event)
    assert row.hold == "open"
    return row.id


async def test_no_approval_expires_by_a_jump_and_all_do_in_their_time(tmp_path: Path) -> None:
    clock = ManualClock()
    world = World()
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        kept, answered = await held(fleet, "kept"), await held(fleet, "answered")
        clock.set_wall(clock.now_us() + 80 * HOUR)
        assert await notices_of(fleet) == ["+288000"]
        await pass_time(fleet, clock, 5)
        assert "clock" in live_status(fleet.app.commands)["clock"]
        row = fleet.app.store.runs.action(answered)
        assert row is not None
        await fleet.approve(row)
        await fleet.wait_until_idle()
        assert world.effects("big.send") == 1
        found = fleet.app.store.runs.action(kept)
        assert found is not None
        assert found.hold == "open"
        # In its own time it is over, though nobody has confirmed anything.
        clock.advance(73 * HOUR)
        await fleet.wait_until_idle()
        found = fleet.app.store.runs.action(kept)
        assert found is not None
        assert found.hold == "expired"


async def test_what_is_over_by_the_confirmed_time_expires_then(tmp_path: Path) -> None:
    clock = ManualClock()
    async with toy_fleet(tmp_path, World(), clock=clock) as fleet:
        waits = await held(fleet)
        await fleet.app.commands.stop(fleet.order(), tool="bell.ring", for_us=2 * HOUR)
        clock.set_wall(clock.now_us() + 80 * HOUR)
        await notices_of(fleet)
        await run_ready_tasks()
        assert fleet.app.store.policy.stop_scopes() == [
            ("tool", "bell.ring")
        ]  # it does not lift itself either
        await fleet.app.commands.clock_confirm(fleet.order())
        await wait_until(lambda: not fleet.app.store.policy.stop_scopes())
        await fleet.wait_until_idle()
        row = fleet.app.store.runs.action(waits)
        assert row is not None
        assert row.hold == "expired"


async def test_a_clock_that_is_slewed_or_comes_back_is_no_jump(tmp_path: Path) -> None:
    clock = ManualClock()
    async with toy_fleet(tmp_path, World(), clock=clock) as fleet:
        line = fleet.app.services
        for _ in range(60):  # 500 parts in a million, for an hour: 1.8 s in all
            clock.advance(60 * SECOND)
            clock.set_wall(clock.now_us() + 30_000)
            line.clock.check_wall_clock()
        assert line.clock.jump is None
        assert abs(line.clock.now_us() - clock.now_us()) < 100_000
        clock.set_wall(clock.now_us() - HOUR)
        await notices_of(fleet)
        assert b"vedette_clock_jump_seconds -3600.0" in fleet.app.metrics.scrape()[0]
        clock.set_wall(clock.now_us() + HOUR)
        await wait_until(lambda: line.clock.jump is None)
        assert not fleet.entries("clock.confirmed")
        assert b"vedette_clock_jump_seconds 0.0" in fleet.app.metrics.scrape()[0]


async def test_a_jump_that_cannot_be_recorded_is_told_as_soon_as_it_can(tmp_path: Path) -> None:
    clock = ManualClock()
    async with toy_fleet(tmp_path, World(), clock=clock) as fleet:
        store: Any = fleet.app.store
        note, tried = store.commands.append_entries, []

        async def away(drafts: Any) -> int:
            tried.append(drafts)
            raise StoreFailed("the server is away")

        store.commands.append_entries = away
        clock.set_wall(clock.now_us() - HOUR)
        await wait_until(lambda: bool(tried))
        clock.set_wall(clock.now_us() - 2 * HOUR)
        await wait_until(
            lambda: b"vedette_clock_jump_seconds -10800.0" in fleet.app.metrics.scrape()[0]
        )
        assert fleet.app.metrics.total("clock_jumps") == 0
        store.commands.append_entries = note
        # Counted a moment after it is durable.
        await wait_until(lambda: fleet.app.metrics.total("clock_jumps") == 2)
        assert await notices_of(fleet) == ["-3600", "-10800"]


@pytest.mark.parametrize("hours", [-3, 80])
async def test_a_restart_within_a_boot_goes_on_with_the_time_that_has_passed(
    tmp_path: Path, hours: int
) -> None:
    """Also where the clock was set while no fleet ran."""
    clock = ManualClock(boot="one")
    async with toy_fleet(tmp_path, World(), clock=clock) as fleet:
        waits = await held(fleet)
        before = fleet.app.services.clock.now_us()
        await fleet.close()
        clock.advance(HOUR)
        clock.set_wall(clock.now_us() + hours * HOUR)
        await fleet.open()
        assert fleet.app.services.clock.now_us() == before + HOUR
        assert await notices_of(fleet) == [f"{hours * 3600:+d}"]
        await fleet.wait_until_idle()
        await fleet.restart()  # it is not forgotten either
        assert fleet.app.services.clock.jump is not None
        await fleet.wait_until_idle()
        row = fleet.app.store.runs.action(waits)
        assert row is not None
        assert row.hold == "open"


async def test_after_a_reboot_time_begins_no_earlier_than_the_ledger_ends(tmp_path: Path) -> None:
    clock = ManualClock(boot="one")
    async with toy_fleet(tmp_path, World(), clock=clock) as fleet:
        await held(fleet)
        last = clock.now_us()
        await fleet.close()
        clock.boot = "two"
        clock.set_wall(last - 3 * HOUR)
        await fleet.open()
        assert await notices_of(fleet) == ["-10800"]
        ats = [entry["at"] for entry in fleet.entries()]
        assert ats == sorted(ats)


@pytest.mark.parametrize("answer", ["confirm", "approve"])
async def test_a_start_a_day_later_lets_nothing_expire_before_a_person_has_looked(
    tmp_path: Path, answer: str
) -> None:
    """After a reboot nobody can tell whether the fleet was away or the clock is wrong."""
    clock, world = ManualClock(boot="one"), World()
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        waits = await held(fleet)
        await fleet.close()
        clock.boot = "two"
        clock.set_wall(clock.now_us() + 80 * HOUR)
        await fleet.open()
        assert await notices_of(fleet) == ["away"]
        clock.advance(HOUR)
        await fleet.wait_until_idle()
        await fleet.restart()
        await fleet.wait_until_idle()
        row = fleet.app.store.runs.action(waits)
        assert row is not None
        assert row.hold == "open"
        if answer == "approve":
            await fleet.approve(row)
            await fleet.wait_until_idle()
            assert world.effects("big.send") == 1
            return
        await fleet.app.commands.clock_confirm(fleet.order())
        await fleet.wait_until_idle()
        row = fleet.app.store.runs.action(waits)
        assert row is not None
        assert row.hold == "expired"


@pytest.mark.parametrize("hours", [-3, 0, 3])
@pytest.mark.parametrize("running", [False, True], ids=["set while it was down", "set as it ran"])
async def test_nothing_expires_by_a_jump_that_was_not_confirmed_before_a_reboot(
    tmp_path: Path, hours: int, running: bool
) -> None:
    """Whatever the wall clock says by then; the ledger may have entries of the wrong time."""
    clock, world = ManualClock(boot="one"), World()
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        waits = await held(fleet)
        if running:
            clock.set_wall(clock.now_us() + 80 * HOUR)
            assert await notices_of(fleet) == ["+288000"]
            await fleet.close()
        else:
            await fleet.close()
            clock.boot = "two"
            clock.set_wall(clock.now_us() + 80 * HOUR)
            await fleet.open()
            assert await notices_of(fleet) == ["away"]
            await fleet.close()
        clock.boot = "three"
        clock.set_wall(clock.now_us() + hours * HOUR)
        await fleet.open()
        await fleet.wait_until_idle()
        row = fleet.app.store.runs.action(waits)
        assert row is not None
        assert row.hold == "open"
        await fleet.app.commands.clock_confirm(fleet.order())
        await fleet.wait_until_idle()
        row = fleet.app.store.runs.action(waits)
        assert row is not None
        assert row.hold == "expired"


async def test_nothing_expires_by_entries_that_are_later_than_the_wall_clock(
    tmp_path: Path,
) -> None:
    """As another machine's may be, whose clock is wrong; the file of that one is not here."""
    clock, world = ManualClock(boot="one"), World()
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        waits = await held(fleet)
        right = clock.now_us()
        await fleet.close()
        clock.boot = "two"
        clock.set_wall(right + 80 * HOUR)
        await fleet.open()
        await fleet.close()
        (tmp_path / "state" / "clock.json").unlink()
        clock.boot = "three"
        clock.set_wall(right + HOUR)
        await fleet.open()
        await fleet.wait_until_idle()
        row = fleet.app.store.runs.action(waits)
        assert row is not None
        assert row.hold == "open"


async def test_a_fleet_that_was_away_with_nothing_waiting_asks_nobody(tmp_path: Path) -> None:
    clock = ManualClock(boot="one")
    async with toy_fleet(tmp_path, World(), clock=clock) as fleet:
        await fleet.send(job("1", send_proposal()))
        await fleet.wait_until_idle()
        await fleet.close()
        clock.boot = "two"
        clock.set_wall(clock.now_us() + 80 * HOUR)
        await fleet.open()
        assert fleet.app.services.clock.jump is None
        assert fleet.app.services.clock.now_us() == clock.now_us()


# --- a confirmation is of one jump -------------------------------------------------------------


@pytest.mark.parametrize(("away", "years"), [(False, 1), (True, -1)], ids=["a minute", "away"])
async def test_a_jump_that_comes_while_another_is_confirmed_is_not_confirmed_with_it(
    tmp_path: Path, away: bool, years: int
) -> None:
    """A person said of a minute, or of an absence, that it is right, and of nothing else."""
    clock, ahead = ManualClock(boot="one"), 60
    async with toy_fleet(tmp_path, World(), clock=clock) as fleet:
        waits = await held(fleet)
        if away:
            await fleet.close()
            clock.boot = "two"
            clock.set_wall(clock.now_us() + 80 * HOUR)
            await fleet.open()
        else:
            clock.set_wall(clock.now_us() + ahead * SECOND)
        assert await notices_of(fleet) == ["away" if away else f"+{ahead}"]
        store: Any = fleet.app.store
        note = store.commands.append_entries

        async def commit_slowly(drafts: Any, **more: Any) -> int:
            seq: int = await note(drafts, **more)
            if drafts[0].kind == "clock.confirmed":
                # Something sets the clock wrong meanwhile, and the fleet looks.
                clock.set_wall(clock.now_us() + years * 365 * 24 * HOUR)
                await wait_until(lambda: len(fleet.entries("clock.jumped")) == 2)
            return seq

        store.commands.append_entries = commit_slowly
        before = fleet.app.services.clock.now_us()
        done = await dispatch(fleet.app.commands, "clock_confirm", fleet.order("a look"), {})
        store.commands.append_entries = note
        (entry,) = fleet.entries("clock.confirmed")
        said = fleet.body(entry["seq"])
        assert done["by_us"] == said["by_us"] == (0 if away else ahead * SECOND)
        assert fleet.app.services.clock.now_us() == before + done["by_us"]
        await fleet.wait_until_idle()
        row = fleet.app.store.runs.action(waits)
        assert row is not None
        assert row.hold == ("expired" if away else "open")
        # What is off since then is a jump of its own, to be confirmed by itself.
        await wait_until(lambda: fleet.app.services.clock.jump is not None)
        jump = fleet.app.services.clock.jump
        assert jump is not None
        assert jump.by_us == years * 365 * 24 * HOUR


async def test_two_confirmations_at_once_move_the_clock_once(tmp_path: Path) -> None:
    clock = ManualClock()
    async with toy_fleet(tmp_path, World(), clock=clock) as fleet:
        wall = clock.now_us() + HOUR
        clock.set_wall(wall)
        await notices_of(fleet)
        confirm = fleet.app.commands.clock_confirm
        both = [confirm(fleet.order(name)) for name in ("one", "other")]
        answers = await asyncio.gather(*both, return_exceptions=True)
        assert [type(answer) for answer in answers] == [dict, BadCommand]
        assert fleet.app.services.clock.now_us() == wall
        assert len(fleet.entries("clock.confirmed")) == 1
