"""Laws of ticks: nothing lost, nothing doubled, whatever the zone and whenever we are woken."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from vedette.domain.agent import MissedTickPolicy, Schedule
from vedette.domain.base.clock import MICROS, from_iso
from vedette.domain.schedule import DAY_US, Calendar, Tick, build_calendar, due_ticks

# Zones that change on the hour and on the half, at midnight, twice a year, in odd years, never.
ZONES = (
    "UTC",
    "Europe/London",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Beirut",
    "Africa/Casablanca",
    "America/Sao_Paulo",
    "America/Havana",
    "Pacific/Apia",
    "America/Nuuk",
    "Asia/Kathmandu",
)
START = from_iso("2005-01-01T00:00:00Z")
HOUR = 3600 * MICROS
SPAN = 20 * 365 * DAY_US

instants = st.integers(START, START + SPAN)
times = st.builds("{:02d}:{:02d}".format, st.integers(0, 23), st.integers(0, 59))
zones = st.sampled_from(ZONES)
dailies = st.builds(lambda at, zone: Schedule("s", daily=at, zone=zone, missed="all"), times, zones)
periods = st.builds(
    lambda every: Schedule("s", every_us=every, missed="all", max_age_us=10 * SPAN),
    st.integers(HOUR, 40 * DAY_US),
)
schedules = st.one_of(dailies, periods)


def with_policy(schedule: Schedule, missed: MissedTickPolicy) -> Schedule:
    return Schedule(
        schedule.name,
        every_us=schedule.every_us,
        daily=schedule.daily,
        zone=schedule.zone,
        missed=missed,
        max_age_us=10 * SPAN,
    )


def emitted(schedule: Schedule, calendar: Calendar, last_us: int, wakes: list[int]) -> list[Tick]:
    """Return what a runner emits that is woken at these instants."""
    out: list[Tick] = []
    for now_us in sorted(wakes):
        while part := due_ticks("a", schedule, last_us, now_us, calendar):
            out += part
            last_us = part[-1].nominal_us
    return out


@settings(deadline=None)
@given(schedules, instants, st.lists(st.integers(0, 400 * DAY_US), min_size=1, max_size=6))
def test_when_we_are_woken_does_not_matter(schedule: Schedule, last: int, gaps: list[int]) -> None:
    schedule = with_policy(schedule, "all")
    calendar = build_calendar(schedule)
    wakes = [last + gap for gap in gaps]
    at_once = emitted(schedule, calendar, last, [max(wakes)])
    in_parts = emitted(schedule, calendar, last, wakes)
    assert in_parts == at_once
    ids = [tick.id for tick in at_once]
    assert len(set(ids)) == len(ids)
    nominal = [tick.nominal_us for tick in at_once]
    assert nominal == sorted(nominal)
    assert all(last < at <= max(wakes) for at in nominal)


@settings(deadline=None)
@given(schedules, instants, st.integers(0, 400 * DAY_US))
def test_latest_is_the_last_of_all(schedule: Schedule, last: int, gap: int) -> None:
    calendar = build_calendar(schedule)
    now = last + gap
    whole = emitted(with_policy(schedule, "all"), calendar, last, [now])
    latest = due_ticks("a", with_policy(schedule, "latest"), last, now, calendar)
    skip = due_ticks("a", with_policy(schedule, "skip"), last, now, calendar)
    assert [tick.nominal_us for tick in latest] == [tick.nominal_us for tick in whole[-1:]]
    assert [tick.nominal_us for tick in skip] == [
        tick.nominal_us for tick in whole[-1:] if now - tick.nominal_us <= 60 * MICROS
    ]


@settings(deadline=None)
@given(schedules, instants, st.floats(0, 1))
def test_a_calendar_gives_the_same_next_instant_from_anywhere_before_it(
    schedule: Schedule, after: int, part: float
) -> None:
    calendar = build_calendar(schedule)
    found = calendar(after)
    assert found is not None
    assert found > after
    between = after + int((found - after - 1) * part)
    assert calendar(between) == found


def dates_of(schedule: Schedule, calendar: Calendar, first: date, days: int) -> list[str | None]:
    """Return the dates of the ticks of some days."""
    begin = int(datetime(first.year, first.month, first.day, tzinfo=UTC).timestamp()) * MICROS
    schedule = with_policy(schedule, "all")
    return [tick.date for tick in emitted(schedule, calendar, begin, [begin + days * DAY_US])]


def each_once(dates: list[str | None]) -> bool:
    """Say whether these are consecutive dates without a gap or a repetition."""
    first = date.fromisoformat(dates[0] or "")
    return dates == [(first + timedelta(days=at)).isoformat() for at in range(len(dates))]


@settings(deadline=None)
@example("13:01", "Pacific/Apia", date(2011, 9, 1))
@given(times, zones, st.dates(date(2006, 1, 1), date(2023, 1, 1)))
def test_every_local_date_has_one_daily_tick(at: str, zone: str, first: date) -> None:
    # The midnights of the day that Samoa skipped and of the next are one instant, and one tick.
    assume((at, zone) != ("00:00", "Pacific/Apia"))
    schedule = Schedule("s", daily=at, zone=zone)
    dates = dates_of(schedule, build_calendar(schedule), first, 400)
    assert each_once(dates)
    # Samoa's clocks went a whole day ahead within its time: one date more has room.
    assert 399 <= len(dates) <= 401 + (zone == "Pacific/Apia")


def test_the_naive_calendar_breaks_that_law() -> None:
    """The control: arithmetic on the hours of a day finds a repeated hour twice."""
    schedule = Schedule("s", daily="01:30", zone="America/New_York")
    zone = ZoneInfo(schedule.zone)

    def naive(after_us: int) -> int:
        at = after_us // HOUR * HOUR + HOUR // 2
        while at <= after_us or datetime.fromtimestamp(at // MICROS, zone).hour != 1:
            at += HOUR
        return at

    assert each_once(dates_of(schedule, naive, date(2026, 6, 1), 60))
    assert not each_once(dates_of(schedule, naive, date(2026, 10, 1), 60))
