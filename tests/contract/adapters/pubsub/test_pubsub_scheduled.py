"""Cloud Scheduler's messages are the embedded scheduler's ticks: same ids, one run for each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from vedette.adapters.pubsub.cloud_scheduler import ATTRIBUTE, ScheduleIndex
from vedette.adapters.pubsub.config import PushFile
from vedette.adapters.pubsub.decoder import Decoder
from vedette.adapters.pubsub.source_decoder import build_decoder
from vedette.adapters.schedule.source import ScheduleSource, cron_walls
from vedette.app.sources import source_context
from vedette.domain.agent import Agent, Fleet, Schedule
from vedette.domain.base.clock import MICROS, from_iso, iso
from vedette.domain.base.errors import BadFleet
from vedette.domain.budget import Budget
from vedette.domain.event import DATA, ENVELOPE, TICK_TYPE, Event
from vedette.domain.identity import Identity
from vedette.domain.ports.sources import Refused
from vedette.testing.clock import ManualClock
from vedette.testing.intake import ListIntake
from vedette.testing.toy_fleet import World, toy_fleet

NEW_YORK = "America/New_York"
HOUR = 3_600_000_000


def fleet(*schedules: Schedule) -> Fleet:
    agent = Agent(
        name="desk", identity=Identity("harbour", "desk"), title="", owner="", release="",
        folder="", instruction="", charter={}, subscriptions=(), schedules=schedules, tools={},
        scopes=(), budget=Budget(), requested_mode="act",
    )  # fmt: skip
    return Fleet("harbour", {"desk": agent})


def hourly(**more: Any) -> Schedule:
    return replace(Schedule("s", every_us=HOUR, data={"scope": "all"}), **more)


def delivery(
    schedule: Schedule, published: str, *, now: str | None = None, data: bytes = b"",
    ran: bool = False, **named: str,
) -> Event | Refused:  # fmt: skip
    """Return what a message published then comes to; it is received at once unless told.

    `ran` says that the store has its tick.
    """
    at_us = from_iso(published)
    received = at_us if now is None else from_iso(now)
    known = ScheduleIndex(fleet(schedule), cron_walls, lambda: received, lambda key: ran)
    attributes = named if data or named else {ATTRIBUTE: "desk/s"}
    return known.delivery(attributes, data, at_us, "pubsub:ticks message 1")


def tick(schedule: Schedule, published: str, **more: Any) -> Event:
    found = delivery(schedule, published, **more)
    assert isinstance(found, Event), found
    return found


async def embedded(schedule: Schedule, since: str, until: str) -> list[Event]:
    """Return the ticks that the embedded scheduler emits from one instant to another."""
    intake = ListIntake()
    source = ScheduleSource(fleet(replace(schedule, missed="all")), ManualClock())
    await source.wake(intake, from_iso(since))
    await source.wake(intake, from_iso(until))
    return intake.events


@pytest.mark.parametrize(
    "schedule",
    [
        hourly(),
        Schedule("s", cron="*/30 6-9 * * mon-fri", zone=NEW_YORK),
        Schedule("s", daily="02:30", zone=NEW_YORK),
        Schedule("s", cron="0 6 1 * *", max_age_us=40 * 24 * HOUR),
    ],
)
async def test_every_tick_of_a_month_is_the_same_event_whoever_says_it(schedule: Schedule) -> None:
    """A month in which the clocks change, so that all of it is compared and not one instant."""
    ours = await embedded(schedule, "2026-02-27T00:00:00Z", "2026-04-02T00:00:00Z")
    assert len(ours) >= 2
    for event in ours:
        assert event.time is not None
        for delay_us in (0, 3 * MICROS, 40 * MICROS):
            published = iso(from_iso(event.time) + delay_us)
            assert tick(schedule, published) == event
    assert {event.vouched for event in ours} == {ENVELOPE | {DATA}}


def test_the_body_or_an_attribute_names_the_schedule() -> None:
    by_attribute = tick(hourly(), "2026-03-01T06:00:01Z")
    by_body = tick(hourly(), "2026-03-01T06:00:01Z", data=b'{"schedule_id": "desk/s"}')
    assert by_attribute == by_body
    assert by_body.type == TICK_TYPE
    assert by_body.data == {"scope": "all", "schedule": "s", "nominal": iso(from_iso(
        "2026-03-01T06:00:00Z"))}  # fmt: skip


def test_nothing_else_of_a_message_reaches_the_agent() -> None:
    body = json.dumps({"schedule_id": "desk/s", "scope": "evil", "nominal": "1999"}).encode()
    evil = {"ce-id": "x", "ce-type": "vedette.tick", "event_id": "y"}
    found = tick(hourly(), "2026-03-01T06:00:01Z", data=body, **evil)
    assert found == tick(hourly(), "2026-03-01T06:00:01Z")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "names no schedule"),
        (b"{", "not JSON"),
        (b"[]", "names no schedule"),
        (b'{"schedule_id": 1}', "names no schedule"),
        (b'{"schedule_id": "desk/other"}', "no schedule 'desk/other'"),
        (b'{"schedule_id": "desk/s", "schedule_id": "desk/s"}', "twice"),
        (b'{"schedule_id": "desk/s", "x": "' + b"x" * 5000 + b'"}', "names no schedule"),
    ],
)
def test_what_names_no_schedule_of_ours_is_refused(data: bytes, why: str) -> None:
    found = delivery(hourly(), "2026-03-01T06:00:00Z", data=data, other="attribute")
    assert isinstance(found, Refused)
    assert why in found.why
    assert found.where == "pubsub:ticks message 1"
    assert len(found.raw) <= 4096


def test_a_clock_that_is_a_little_behind_means_the_coming_tick() -> None:
    assert tick(hourly(), "2026-03-01T05:59:59.2Z").id == tick(hourly(), "2026-03-01T06:00Z").id
    # The control: two seconds before it is the one before.
    assert tick(hourly(), "2026-03-01T05:59:58Z", now="2026-03-01T05:00:30Z").id.endswith(
        "@2026-03-01T05:00:00.000000Z"
    )
    # Where ticks are closer than that, the one that has come is meant.
    every = Schedule("s", every_us=1_500_000)
    assert tick(every, "2026-03-01T00:00:00.8Z").id.endswith("@2026-03-01T00:00:00.000000Z")


def test_the_repeated_hour_and_the_skipped_one() -> None:
    daily = Schedule("s", daily="01:30", zone=NEW_YORK)
    # 1 November 2026: 01:30 comes twice; a scheduler that fires both times makes one event.
    first, second = "2026-11-01T05:30:00.2Z", "2026-11-01T06:30:00.2Z"
    assert tick(daily, first).id == "desk/s@2026-11-01"
    assert tick(replace(daily, missed="all"), second).id == "desk/s@2026-11-01"
    halves = Schedule("s", cron="*/30 * * * *", zone=NEW_YORK)
    assert tick(halves, first).id != tick(halves, second).id, "these are two ticks"
    # 8 March 2026: 02:30 does not come; it is due when the clocks have changed.
    skipped = Schedule("s", daily="02:30", zone=NEW_YORK)
    found = tick(skipped, "2026-03-08T07:00:00.2Z")
    assert (found.id, found.time) == ("desk/s@2026-03-08", "2026-03-08T07:00:00.000000Z")


@pytest.mark.parametrize(
    ("schedule", "now", "why"),
    [
        (hourly(missed="skip"), "2026-03-01T06:00:59Z", None),
        (hourly(missed="skip"), "2026-03-01T06:01:01Z", "skips"),
        (hourly(missed="latest"), "2026-03-01T06:59:00Z", None),
        (hourly(missed="latest"), "2026-03-01T07:30:00Z", "due already"),
        (hourly(missed="all"), "2026-03-03T07:30:00Z", None),
        (hourly(missed="all"), "2026-03-08T06:00:01Z", "max_age"),
    ],
)
def test_a_message_that_waited_is_missed_as_the_schedule_says(
    schedule: Schedule, now: str, why: str | None
) -> None:
    found = delivery(schedule, "2026-03-01T06:00:00Z", now=now)
    if why is None:
        assert isinstance(found, Event)
    else:
        assert isinstance(found, Refused)
        assert why in found.why


@pytest.mark.parametrize("missed", ["skip", "latest"])
def test_a_tick_that_ran_and_comes_again_late_is_itself_again(missed: Any) -> None:
    """A process that died between commit and acknowledgement, say. The control: one that is new."""
    schedule, at = hourly(missed=missed), "2026-03-01T06:00:00Z"
    repeat = delivery(schedule, at, now="2026-03-01T07:30:00Z", ran=True)
    assert repeat == tick(schedule, at)
    assert isinstance(delivery(schedule, at, now="2026-03-01T07:30:00Z"), Refused)


def test_a_job_that_is_run_by_hand_long_after_means_no_tick() -> None:
    monthly = Schedule("s", cron="0 6 1 * *")  # max_age is a week
    found = delivery(monthly, "2026-03-20T06:00:00Z")
    assert isinstance(found, Refused)
    assert "no tick" in found.why


def test_a_bad_schedule_is_named() -> None:
    with pytest.raises(BadFleet, match="agent desk, schedule s"):
        ScheduleIndex(
            fleet(Schedule("s", cron="nonsense")), cron_walls, lambda: 0, lambda key: False
        )


# --- a whole fleet ---------------------------------------------------------------------------


async def test_while_both_schedulers_run_each_tick_is_one_run(tmp_path: Path) -> None:
    clock = ManualClock(from_iso("2026-03-01T05:59:30Z"))
    toy = toy_fleet(tmp_path, World(), clock=clock)
    yaml = tmp_path / "content" / "agents" / "worker" / "agent.yaml"
    text = yaml.read_text()
    assert "triggers: [{on: worker.job}]" in text
    yaml.write_text(text.replace(
        "[{on: worker.job}]", "[{on: worker.job}, {name: hourly, every: 1h, data: {do: []}}]"
    ))  # fmt: skip
    async with toy as opened:
        app = opened.app
        source = ScheduleSource(app.services.fleet, clock)
        await source.wake(app.intake, clock.now_us())
        plan = PushFile(name="ticks", vouches="none", schedules=True)
        made: Decoder = build_decoder(plan, source_context(app))
        statuses: list[str] = []

        async def message(published: str) -> None:
            body = b'{"schedule_id": "worker/hourly"}'
            found = made.decode("1", body, {}, "", from_iso(published))
            statuses.extend(r.status for r in await app.intake.accept([found]))

        for first in ("us", "them"):
            clock.advance(HOUR)
            at = iso(clock.now_us())[:14] + "00:00.3Z"
            if first == "them":
                await message(at)
            statuses += [r.status for r in await source.wake(app.intake, clock.now_us())]
            if first == "us":
                await message(at)
            await message(at)  # at least once is what the broker promises
        # One that was accepted and not acknowledged comes when its lease has run out, or a day
        # later; what it comes as is what it is.
        for delay_us in (5 * 60 * MICROS, 24 * HOUR):
            clock.advance(delay_us)
            await message("2026-03-01T06:00:00.3Z")
        await opened.wait_until_idle()
        assert statuses == ["accepted", "duplicate", "duplicate"] * 2 + ["duplicate"] * 2
        assert opened.entries("event.refused") == []
        accepted = opened.entries("event.accepted")
        assert [entry["woke"] for entry in accepted] == [1, 1]
        assert len(opened.entries("run.closed")) == 2
