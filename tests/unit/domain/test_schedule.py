"""Which ticks are due, and what a tick is."""

from __future__ import annotations

import pytest

from vedette.domain.agent import MissedTickPolicy, Schedule, schedule_source
from vedette.domain.base.clock import from_iso, iso
from vedette.domain.event import DATA, ENVELOPE, TICK_TYPE
from vedette.domain.schedule import DAY_US, MAX_TICKS, Tick, build_calendar, due_ticks

HOUR = 3_600_000_000
NEW_YORK = "America/New_York"


def ticks(schedule: Schedule, last: str | None, now: str) -> list[Tick]:
    last_us = None if last is None else from_iso(last)
    return due_ticks("desk", schedule, last_us, from_iso(now), build_calendar(schedule))


def nominals(schedule: Schedule, last: str | None, now: str) -> list[str]:
    return [iso(tick.nominal_us)[:16] for tick in ticks(schedule, last, now)]


def hourly(missed: MissedTickPolicy, max_age_us: int = 7 * DAY_US) -> Schedule:
    return Schedule("digest", every_us=HOUR, missed=missed, max_age_us=max_age_us)


def daily(at: str, zone: str, missed: MissedTickPolicy = "all") -> Schedule:
    return Schedule("digest", daily=at, zone=zone, missed=missed)


def test_a_first_start_has_missed_nothing() -> None:
    assert ticks(hourly("all"), None, "2026-03-01T06:00:00Z") == []


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("all", ["2026-03-01T03:00", "2026-03-01T04:00", "2026-03-01T05:00"]),
        ("latest", ["2026-03-01T05:00"]),
        ("skip", []),
    ],
)
def test_missed_ticks_follow_the_policy(missed: MissedTickPolicy, expected: list[str]) -> None:
    assert nominals(hourly(missed), "2026-03-01T02:00Z", "2026-03-01T05:30Z") == expected


def test_skip_still_runs_a_tick_that_is_on_time() -> None:
    instants = nominals(hourly("skip"), "2026-03-01T02:00Z", "2026-03-01T05:00:59Z")
    assert instants == ["2026-03-01T05:00"]


def test_an_instant_is_due_at_once_and_not_again() -> None:
    assert len(ticks(hourly("all"), "2026-03-01T02:00Z", "2026-03-01T03:00Z")) == 1
    assert ticks(hourly("all"), "2026-03-01T03:00Z", "2026-03-01T03:59:59.999999Z") == []


def test_a_wall_clock_that_was_set_back_makes_no_tick() -> None:
    assert ticks(hourly("all"), "2026-03-01T06:00Z", "2026-03-01T03:00Z") == []


def test_nothing_older_than_max_age_is_emitted() -> None:
    schedule = hourly("all", max_age_us=2 * HOUR)
    found = nominals(schedule, "2026-02-01T00:00Z", "2026-03-01T05:00Z")
    assert found == ["2026-03-01T03:00", "2026-03-01T04:00", "2026-03-01T05:00"]
    assert ticks(hourly("latest", max_age_us=1), "2026-03-01T00:00Z", "2026-03-01T05:30Z") == []


def test_all_comes_in_parts_that_join() -> None:
    schedule = Schedule("s", every_us=1_000_000, missed="all")
    calendar = build_calendar(schedule)
    start = from_iso("2026-03-01T00:00Z")
    end = start + 3 * MAX_TICKS * 1_000_000
    last, seen = start, []
    while part := due_ticks("desk", schedule, last, end, calendar):
        assert len(part) <= MAX_TICKS
        seen += [tick.nominal_us for tick in part]
        last = part[-1].nominal_us
    assert seen == list(range(start + 1_000_000, end + 1, 1_000_000))


def test_latest_of_a_fast_schedule_after_a_long_time_is_quick() -> None:
    schedule = Schedule("s", every_us=200_000, missed="latest", max_age_us=400 * DAY_US)
    calls = 0
    calendar = build_calendar(schedule)

    def counted(after_us: int) -> int | None:
        nonlocal calls
        calls += 1
        return calendar(after_us)

    now = from_iso("2026-03-01T00:00:00.1Z")
    assert [
        tick.nominal_us for tick in due_ticks("a", schedule, now - 300 * DAY_US, now, counted)
    ] == [from_iso("2026-03-01T00:00:00Z")]
    assert calls < 50


def test_daily_follows_the_local_clock() -> None:
    schedule = daily("06:30", "Europe/London")
    assert nominals(schedule, "2026-03-27T12:00Z", "2026-03-30T12:00Z") == [
        "2026-03-28T06:30",
        "2026-03-29T05:30",
        "2026-03-30T05:30",
    ]


def test_a_repeated_hour_runs_a_daily_schedule_once() -> None:
    found = ticks(daily("01:30", NEW_YORK), "2026-10-31T12:00Z", "2026-11-02T12:00Z")
    assert [iso(tick.nominal_us)[:16] for tick in found] == ["2026-11-01T05:30", "2026-11-02T06:30"]
    assert [tick.date for tick in found] == ["2026-11-01", "2026-11-02"]


def test_both_of_a_repeated_hour_would_have_one_id() -> None:
    schedule = daily("01:30", NEW_YORK)
    first, second = from_iso("2026-11-01T05:30Z"), from_iso("2026-11-01T06:30Z")
    made = {
        tick.id
        for at in (first, second)
        for tick in due_ticks("desk", schedule, at - 1, at, lambda after, at=at: at)  # type: ignore[misc]
    }
    assert made == {"desk/digest@2026-11-01"}


def test_a_skipped_hour_still_runs_a_daily_schedule_at_the_first_valid_instant() -> None:
    found = ticks(daily("02:30", NEW_YORK), "2026-03-07T12:00Z", "2026-03-09T12:00Z")
    assert [iso(tick.nominal_us)[:16] for tick in found] == ["2026-03-08T07:00", "2026-03-09T06:30"]
    assert [tick.date for tick in found] == ["2026-03-08", "2026-03-09"]


def test_a_watermark_inside_the_skipped_hour_does_not_lose_or_repeat_the_tick() -> None:
    schedule = daily("02:30", NEW_YORK)
    assert nominals(schedule, "2026-03-08T06:59:59Z", "2026-03-08T12:00Z") == ["2026-03-08T07:00"]
    assert nominals(schedule, "2026-03-08T07:00:00Z", "2026-03-08T12:00Z") == []


def test_a_skipped_day_runs_under_its_own_date() -> None:
    # Samoa went from 29 to 31 December 2011.
    found = ticks(daily("06:30", "Pacific/Apia"), "2011-12-29T20:00Z", "2011-12-31T00:00Z")
    assert [tick.date for tick in found] == ["2011-12-30", "2011-12-31"]


def test_clocks_set_back_at_midnight_keep_each_date_once() -> None:
    # In Beirut midnight of 25 October 2026 becomes 23:00 of the 24th.
    found = ticks(daily("23:00", "Asia/Beirut"), "2026-10-23T12:00Z", "2026-10-26T12:00Z")
    assert [tick.date for tick in found] == ["2026-10-23", "2026-10-24", "2026-10-25"]


def test_the_event_of_a_tick() -> None:
    schedule = Schedule("digest", every_us=HOUR, data={"depth": 2, "nominal": "forged"})
    (tick,) = due_ticks("desk", schedule, 0, HOUR, build_calendar(schedule))
    event = tick.to_event("harbour")
    assert event.id == "desk/digest@1970-01-01T01:00:00.000000Z"
    assert (event.type, event.source) == (TICK_TYPE, schedule_source("harbour", "desk"))
    assert (event.subject, event.time) == ("digest", "1970-01-01T01:00:00.000000Z")
    assert event.data == {"schedule": "digest", "nominal": event.time, "depth": 2}
    assert event.vouched == ENVELOPE | {DATA}


@pytest.mark.parametrize(
    ("schedule", "field"),
    [
        (Schedule("s", every_us=0), "every"),
        (Schedule("s", daily="25:00"), "daily"),
        (Schedule("s", daily="06:30", zone="Mars/Olympus"), "zone"),
        (Schedule("s", daily="06:30", zone="../etc"), "zone"),
        (Schedule("s"), "none of every, cron and daily"),
        (Schedule("s", cron="0 6 * * *"), "none of every, cron and daily"),
    ],
)
def test_a_schedule_without_a_calendar_is_refused(schedule: Schedule, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        build_calendar(schedule)
