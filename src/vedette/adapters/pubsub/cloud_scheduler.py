"""Cloud Scheduler's messages as ticks: the same events as the embedded scheduler's.

A message says which schedule (`vedette-schedule` among its attributes, or a JSON body
`{"schedule_id": "AGENT/NAME"}`) and nothing else. Which instant is meant follows from the time at
which the broker took it, a time no publisher can choose: the latest nominal tick up to then. Id,
source, type and data are those of `vedette.domain.schedule`, so both schedulers may run at once:
whichever comes first makes the run, and the other one is a duplicate.

Whoever may publish to the topic can at most bring a tick forward that is due within SKEW_US, or
repeat one that was; what the agent reads is its own schedule's data, never the message's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from vedette.domain.agent import Fleet, Schedule
from vedette.domain.base.clock import MICROS, iso
from vedette.domain.base.errors import BadEvent, BadFleet
from vedette.domain.cloudevents import load_json
from vedette.domain.event import Event
from vedette.domain.ports.sources import Refused
from vedette.domain.schedule import (
    DELAY_TOLERANCE_US,
    Calendar,
    NextWallTime,
    Tick,
    build_calendar,
    due_ticks,
)

ATTRIBUTE = "vedette-schedule"
BODY_KEY = "schedule_id"

# How far two clocks of the provider may be apart. Cloud Scheduler knows no period below a minute.
SKEW_US = 1 * MICROS

# A message that names a schedule is short; of any other one this much is kept with its refusal.
_RAW = 4096


class _SchedulePlan(Struct, frozen=True):
    agent: str
    schedule: Schedule
    calendar: Calendar


class ScheduleIndex:
    """A fleet's schedules, by the id that Cloud Scheduler's message names: `AGENT/NAME`."""

    def __init__(
        self,
        fleet: Fleet,
        walls: Callable[[str], NextWallTime],
        now_us: Callable[[], int],
        is_known: Callable[[str], bool],
    ) -> None:
        """Plan all schedules. `walls` matches a cron expression's wall-clock times.

        `is_known` says whether an event was accepted, by its key; it may raise StoreFailed.
        Raises BadFleet naming the agent and the schedule.
        """
        self._fleet = fleet.name
        self._now_us = now_us
        self._is_known = is_known
        self._plans = {
            f"{agent.name}/{schedule.name}": _plan(agent.name, schedule, walls)
            for agent in fleet.agents.values()
            for schedule in agent.schedules
        }

    def delivery(
        self, attributes: Mapping[str, str], data: bytes, published_us: int, where: str
    ) -> Event | Refused:
        """Return the tick that a message stands for, or why it stands for none.

        `where` names the message. A tick that is late is handled as `missed` of its schedule says
        of the embedded scheduler's; one that ran in time and comes again late is itself again.
        """
        try:
            named = named_schedule(attributes, data)
        except BadEvent as error:
            return Refused(where, str(error), data[:_RAW])
        plan = self._plans.get(named)
        if plan is None:
            why = f"there is no schedule {named[:200]!r} in this fleet"
            return Refused(where, why, data[:_RAW])
        tick = _nominal_tick(plan, published_us)
        if tick is None:
            why = f"{named} had no tick in the time before {iso(published_us)}"
            return Refused(where, why, data[:_RAW])
        event = tick.to_event(self._fleet)
        why_not = _missed_reason(plan, tick, self._now_us())
        if why_not and not self._is_known(event.key):
            return Refused(where, why_not, data[:_RAW])
        return event


def named_schedule(attributes: Mapping[str, str], data: bytes) -> str:
    """Return the schedule id that Cloud Scheduler's message names. Raises BadEvent without one."""
    if named := attributes.get(ATTRIBUTE):
        return named
    mend = f'send {{"{BODY_KEY}": "AGENT/NAME"}}, or the attribute {ATTRIBUTE}'
    if not 0 < len(data) <= _RAW:
        raise BadEvent("the message names no schedule", mend=mend)
    body = load_json(data)
    named = body.get(BODY_KEY) if isinstance(body, dict) else None
    if not isinstance(named, str) or not named:
        raise BadEvent("the message names no schedule", mend=mend)
    return named


def _plan(agent: str, schedule: Schedule, walls: Callable[[str], NextWallTime]) -> _SchedulePlan:
    try:
        cron = None if schedule.cron is None else walls(schedule.cron)
        return _SchedulePlan(agent, schedule, build_calendar(schedule, cron))
    except ValueError as error:
        raise BadFleet(
            str(error), where=f"agent {agent}, schedule {schedule.name}", mend="see agent.yaml"
        ) from error


def _nominal_tick(plan: _SchedulePlan, published_us: int) -> Tick | None:
    """Return the tick that a message published then stands for, None if there is none so young.

    One that comes within SKEW_US is meant if none has come as lately: the broker's clock may be
    behind the scheduler's.
    """
    last = _latest_tick(plan, published_us)
    if last is not None and published_us - last.nominal_us <= SKEW_US:
        return last
    coming = plan.calendar(published_us)
    if coming is not None and coming <= published_us + SKEW_US:
        return _latest_tick(plan, coming)
    return last


def _latest_tick(plan: _SchedulePlan, at_us: int) -> Tick | None:
    """Return the newest tick up to an instant that is not older than the schedule's max_age."""
    schedule = replace(plan.schedule, missed="latest")
    ticks = due_ticks(plan.agent, schedule, -1, at_us, plan.calendar)
    return replace(ticks[-1], schedule=plan.schedule) if ticks else None


def _missed_reason(plan: _SchedulePlan, tick: Tick, now_us: int) -> str | None:
    """Say why a tick is not handled any more, None if it is."""
    schedule = plan.schedule
    delay_us = now_us - tick.nominal_us
    if delay_us <= DELAY_TOLERANCE_US:
        return None
    lateness = f"tick {tick.id} comes {delay_us // MICROS} s late"
    if delay_us > schedule.max_age_us:
        return f"{lateness}, which is more than its schedule's max_age"
    if schedule.missed == "skip":
        return f"{lateness}, and its schedule skips those"
    newest = _latest_tick(plan, now_us) if schedule.missed == "latest" else tick
    if newest is not None and newest.nominal_us > tick.nominal_us:
        return f"{lateness}, and {newest.id} is due already"
    return None
