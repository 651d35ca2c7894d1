"""Schedules as a source: APScheduler wakes us, our own arithmetic says which ticks are due.

APScheduler's stores, its idea of a missed run and its dates are not used. It loses ticks that are
a second late by default, and fires twice in a repeated hour (docs/decisions tells the rest).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from vedette.domain.agent import Fleet, Schedule
from vedette.domain.base.clock import MICROS, Clock, from_iso, iso
from vedette.domain.base.errors import BadFleet
from vedette.domain.event import DATA, Event
from vedette.domain.ports.sources import Intake, Receipt
from vedette.domain.schedule import Calendar, NextWallTime, Tick, build_calendar, due_ticks

# APScheduler's timers go by the wall clock, which may be set, and by the event loop's, which does
# not count the time that a machine sleeps. So every schedule is looked at this often by fleet time.
HEARTBEAT_SECONDS = 30

# What happened between two instants, for an agent that may know; None if it may not.
Gather = Callable[[str, int, int], Awaitable[Any]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# A number that is not a step (`*/2`).
_WEEKDAY_NUMBER = re.compile(r"(?<![/0-9])[0-9]")


class _SchedulePlan(Struct, frozen=True):
    agent: str
    schedule: Schedule
    calendar: Calendar

    @property
    def position(self) -> str:
        return f"schedule:{self.agent}/{self.schedule.name}"


class ScheduleSource:
    """The schedules of a fleet as a source of ticks, which APScheduler wakes; never ends.

    The watermark of a schedule is the intake's position `schedule:AGENT/NAME`, an instant in
    RFC 3339. It moves in the commit that accepts the tick, so a tick is neither lost nor doubled.
    """

    name = "schedules"
    finite = False

    def __init__(self, fleet: Fleet, clock: Clock, gather: Gather | None = None) -> None:
        """Plan all schedules of the fleet. Raises BadFleet naming the agent and the schedule.

        `gather` tells a tick whose schedule asks for it (`data: {gather: true}`) what happened
        since the tick before.
        """
        self._gather = gather
        self._fleet = fleet.name
        self._clock = clock
        self._plans = {
            plan.position: plan
            for agent in fleet.agents.values()
            for plan in (_plan(agent.name, schedule) for schedule in agent.schedules)
        }

    async def wake(
        self, intake: Intake, now_us: int, only: Iterable[str] | None = None
    ) -> list[Receipt]:
        """Emit what is due at `now_us`, of all schedules or of those at the named positions."""
        receipts: list[Receipt] = []
        for position in sorted(self._plans if only is None else only):
            receipts += await self._emit(intake, self._plans[position], now_us)
        return receipts

    async def deliver(self, intake: Intake) -> None:
        """Emit ticks when they are due, until cancelled. Raises what the intake raises."""
        from apscheduler.schedulers.asyncio import AsyncIOScheduler

        ready: set[str] = set(self._plans)
        awake = asyncio.Event()
        awake.set()

        async def call(*positions: str) -> None:
            ready.update(positions)
            awake.set()

        scheduler = AsyncIOScheduler(timezone=UTC)
        once = {"misfire_grace_time": None, "coalesce": True, "max_instances": 1}
        for position, plan in self._plans.items():
            scheduler.add_job(call, _timer(plan.calendar), args=[position], **once)
        scheduler.start()
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_SECONDS):
                        await awake.wait()
                awake.clear()
                positions = set(ready or self._plans)
                ready.clear()
                await self.wake(intake, self._clock.now_us(), positions)
        finally:
            scheduler.shutdown(wait=False)
            # It only asks the loop to shut it down; give the loop the turn to do so.
            await asyncio.sleep(0)

    async def _emit(self, intake: Intake, plan: _SchedulePlan, now_us: int) -> list[Receipt]:
        known = intake.position(plan.position)
        if known is None:
            # Nothing was missed before the first start, and from now on something can be.
            await intake.accept([], position=(plan.position, iso(now_us)))
            return []
        last_us = from_iso(known)
        receipts: list[Receipt] = []
        while ticks := due_ticks(plan.agent, plan.schedule, last_us, now_us, plan.calendar):
            events = []
            for tick in ticks:
                events.append(await self._event(tick, last_us))
                last_us = tick.nominal_us
            receipts += await intake.accept(events, position=(plan.position, iso(last_us)))
        return receipts

    async def _event(self, tick: Tick, after_us: int) -> Event:
        """Return a tick's event; what was gathered came from outside, so nobody vouches for it."""
        event = tick.to_event(self._fleet)
        if self._gather is None or tick.schedule.data.get("gather") is not True:
            return event
        gathered = await self._gather(tick.agent, after_us, tick.nominal_us)
        return replace(
            event, data={**event.data, "gathered": gathered}, vouched=event.vouched - {DATA}
        )


def cron_walls(expression: str) -> NextWallTime:
    """Return the wall-clock times that a cron expression of five fields matches, by APScheduler.

    It is APScheduler's arithmetic, run as if in UTC: that way it never meets a change of the
    clocks, which it gets wrong. Raises ValueError if the expression is not one
    or never matches.
    """
    from apscheduler.triggers.cron import CronTrigger

    if _WEEKDAY_NUMBER.search((expression.split() or [""])[-1]):
        # APScheduler counts from Monday, cron from Sunday: nobody could tell which is meant.
        raise ValueError(f"cron: {expression!r} has a weekday by number; write sun, mon, …")
    try:
        trigger = CronTrigger.from_crontab(expression, timezone=UTC)
    except ValueError as error:
        raise ValueError(f"cron: {expression!r}: {error}") from error
    if trigger.get_next_fire_time(None, _EPOCH) is None:
        raise ValueError(f"cron: {expression!r} never comes")

    def next_wall(wall_us: int) -> int | None:
        found = trigger.get_next_fire_time(None, _moment(wall_us + 1))
        return None if found is None else _micros(found)

    return next_wall


def _plan(agent: str, schedule: Schedule) -> _SchedulePlan:
    try:
        walls = None if schedule.cron is None else cron_walls(schedule.cron)
        return _SchedulePlan(agent, schedule, build_calendar(schedule, walls))
    except ValueError as error:
        raise BadFleet(
            str(error), where=f"agent {agent}, schedule {schedule.name}", mend="see agent.yaml"
        ) from error


def _timer(calendar: Calendar) -> Any:
    """Return an APScheduler trigger that fires at the instants of a calendar."""
    from apscheduler.triggers.base import BaseTrigger

    class _Timer(BaseTrigger):  # type: ignore[misc]  # the package has no types
        def get_next_fire_time(
            self, previous_fire_time: datetime | None, now: datetime
        ) -> datetime | None:
            after = now if previous_fire_time is None else max(previous_fire_time, now)
            at = calendar(_micros(after))
            return None if at is None else _moment(at)

    return _Timer()


def _moment(at_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at_us)


def _micros(moment: datetime) -> int:
    since = moment.astimezone(UTC) - _EPOCH
    return (since.days * 86_400 + since.seconds) * MICROS + since.microseconds
