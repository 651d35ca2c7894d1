"""Ticks: which nominal instants of a Schedule are due, and the event each becomes.

All arithmetic is on instants in UTC. A zone is used for two things only: to turn a wall-clock
time into an instant, and to name the local date of a schedule that runs once a day. Adding a
duration to a datetime of a zone drops its `fold` and repeats or loses the hour in which the
clocks change; nothing here does that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from msgspec import Struct

from vedette.domain.agent import Schedule, schedule_source
from vedette.domain.base.clock import MICROS, iso
from vedette.domain.event import DATA, ENVELOPE, TICK_TYPE, Event

# The next nominal instant strictly after a given one, or None if there is none.
Calendar = Callable[[int], int | None]

# The next matching wall-clock time strictly after a given one, or None. A wall-clock time is
# counted in microseconds as if the zone were UTC: it knows no zone and no change of the clocks.
NextWallTime = Callable[[int], int | None]

DAY_US = 86_400 * MICROS

# `missed: skip` still runs a tick that is late by no more than this: a busy runner is not a
# stopped one.
DELAY_TOLERANCE_US = 60 * MICROS

# How many ticks one call returns at most; the next call goes on from there.
MAX_TICKS = 512

_HH_MM = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")
_FIXED_TIME = re.compile(r"[0-9]+\s+[0-9]+\s.*")


class Tick(Struct, frozen=True):
    """One nominal instant of a schedule. `date` is its local date if it runs once a day."""

    agent: str
    schedule: Schedule
    nominal_us: int
    date: str | None

    @property
    def id(self) -> str:
        """Return the tick's id: schedule and nominal instant, or schedule and local date.

        No revision is part of it, so editing a schedule cannot repeat a tick; and a local date
        exists once, however often the clock shows its hours.
        """
        return f"{self.agent}/{self.schedule.name}@{self.date or iso(self.nominal_us)}"

    def to_event(self, fleet: str) -> Event:
        """Return the event that wakes the agent; the engine vouches for all of it.

        Its data is what the agent's own schedule says, so it is as trusted as the charter.
        """
        nominal = iso(self.nominal_us)
        return Event(
            source=schedule_source(fleet, self.agent),
            id=self.id,
            type=TICK_TYPE,
            subject=self.schedule.name,
            time=nominal,
            data={**self.schedule.data, "schedule": self.schedule.name, "nominal": nominal},
            vouched=ENVELOPE | {DATA},
        )


def due_ticks(
    agent: str, schedule: Schedule, last_us: int | None, now_us: int, calendar: Calendar
) -> list[Tick]:
    """Return the ticks to emit of those with a nominal instant in `(last_us, now_us]`.

    `last_us` is the last emitted instant, or when the schedule was first seen; None (never seen)
    has missed nothing. Instants older than the schedule's `max_age_us` are gone. Of the others
    `all` gives every one, oldest first, at most LIMIT a call; `latest` the newest; `skip` the
    newest if it is no later than ON_TIME_US.
    """
    if last_us is None:
        return []
    after = max(last_us, now_us - schedule.max_age_us - 1)
    if schedule.missed == "all":
        instants: list[int] = []
        while len(instants) < MAX_TICKS:
            at = calendar(after)
            if at is None or at > now_us:
                break
            instants.append(at)
            after = at
    else:
        newest = _latest_instant(calendar, after, now_us)
        is_late = newest is not None and newest < now_us - DELAY_TOLERANCE_US
        skipped = is_late and schedule.missed == "skip"
        instants = [] if newest is None or skipped else [newest]
    zone = ZoneInfo(schedule.zone) if is_daily(schedule) else None
    return [Tick(agent, schedule, at, _local_date(zone, at) if zone else None) for at in instants]


def is_daily(schedule: Schedule) -> bool:
    """Say whether the schedule has at most one tick per local date: its id is then the date."""
    return schedule.daily is not None or bool(_FIXED_TIME.fullmatch(schedule.cron or ""))


def build_calendar(schedule: Schedule, cron: NextWallTime | None = None) -> Calendar:
    """Return the calendar of a schedule; `cron` matches the wall clock for one that has `cron`.

    A wall-clock time that the clocks skip is due at the first valid instant after it. One that
    they repeat is due twice, as `*/30` must be, but for a schedule that runs once a day only the
    first time. Raises ValueError naming the field if the schedule has no calendar.
    """
    try:
        zone = ZoneInfo(schedule.zone)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"zone: {schedule.zone!r} is not an IANA time zone") from error
    if schedule.every_us is not None:
        every_us = schedule.every_us
        if every_us <= 0:
            raise ValueError(f"every: {every_us} us is not a period")
        return lambda after_us: (after_us // every_us + 1) * every_us
    if schedule.daily is not None:
        cron = _parse_daily(schedule.daily)
    elif schedule.cron is None or cron is None:
        raise ValueError(f"schedule {schedule.name!r} has none of every, cron and daily")
    calendar = _zone_calendar(cron, zone)
    return _skip_repeats(calendar, zone) if is_daily(schedule) else calendar


def _latest_instant(calendar: Calendar, after_us: int, now_us: int) -> int | None:
    """Return the last instant in `(after_us, now_us]`, looking back further and further."""
    for back in (MICROS, 60 * MICROS, 3600 * MICROS, DAY_US, 32 * DAY_US, now_us - after_us):
        start = max(after_us, now_us - back)
        found = None
        at = calendar(start)
        while at is not None and at <= now_us:
            found = at
            at = calendar(at)
        if found is not None or start == after_us:
            return found
    return None


def _parse_daily(text: str) -> NextWallTime:
    match = _HH_MM.fullmatch(text)
    if match is None:
        raise ValueError(f"daily: {text!r} is not a time of day, write HH:MM")
    into_day = (int(match[1]) * 60 + int(match[2])) * 60 * MICROS
    return lambda wall_us: ((wall_us - into_day) // DAY_US + 1) * DAY_US + into_day


def _zone_calendar(next_wall: NextWallTime, zone: ZoneInfo) -> Calendar:
    """Put a wall-clock pattern into a zone, one stretch of equal UTC offset after another."""

    def calendar(after_us: int) -> int | None:
        start = after_us + 1
        while True:
            offset = _offset(zone, start)
            wall = next_wall(start + offset - 1)
            if wall is None:
                return None
            change = _find_offset_change(zone, start, wall - offset)
            if change is None:
                return wall - offset
            # The clocks change first. What matches in the hour they skip is due at the change.
            skipped = next_wall(change + offset - 1)
            if skipped is not None and skipped < change + _offset(zone, change):
                return change
            start = change

    return calendar


def _skip_repeats(calendar: Calendar, zone: ZoneInfo) -> Calendar:
    def first(after_us: int) -> int | None:
        at = calendar(after_us)
        while at is not None and _local_datetime(zone, at).fold:
            at = calendar(at)
        return at

    return first


def _find_offset_change(zone: ZoneInfo, start_us: int, end_us: int) -> int | None:
    """Return the first instant in `(start_us, end_us]` at which the UTC offset is another."""
    low = start_us
    while low < end_us:
        high = min(low + DAY_US, end_us)
        before = _offset(zone, low)
        if _offset(zone, high) != before:
            # Offsets change on whole seconds.
            old, new = low // MICROS, high // MICROS
            while new - old > 1:
                middle = (old + new) // 2
                if _offset(zone, middle * MICROS) == before:
                    old = middle
                else:
                    new = middle
            return new * MICROS
        low = high
    return None


def _local_date(zone: ZoneInfo, at_us: int) -> str:
    """Return the local date of an instant.

    Where a change of the clocks skips a whole day, its tick is due at the first instant of the
    next day but belongs to the day that was skipped, hence the earlier of the two readings.
    """
    utc = datetime.fromtimestamp(at_us // MICROS, UTC).replace(tzinfo=None)
    before = utc + (_local_datetime(zone, at_us - MICROS).utcoffset() or UTC.utcoffset(None))
    return min(before.date(), _local_datetime(zone, at_us).date()).isoformat()


def _offset(zone: ZoneInfo, at_us: int) -> int:
    offset = _local_datetime(zone, at_us).utcoffset() or UTC.utcoffset(None)
    return (offset.days * 86_400 + offset.seconds) * MICROS


def _local_datetime(zone: ZoneInfo, at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us // MICROS, zone)
