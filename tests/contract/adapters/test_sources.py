"""The sources: each that is registered fits the port; schedules, files and the host deliver."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from vedette.adapters.files.config import JsonlFile
from vedette.adapters.files.plugin import JSONL
from vedette.adapters.files.source import BATCH, CsvSource, JsonlSource
from vedette.adapters.host.source import HostSource
from vedette.adapters.schedule.source import ScheduleSource, cron_walls
from vedette.config.field import json_schema
from vedette.config.plugins import plugins
from vedette.config.reserved_names import source_kinds
from vedette.domain.agent import Agent, Fleet, MissedTickPolicy, Schedule
from vedette.domain.base.clock import MICROS, SystemClock, from_iso, iso
from vedette.domain.base.errors import BadFleet, StoreFailed
from vedette.domain.base.fleet_clock import FleetClock
from vedette.domain.budget import Budget
from vedette.domain.event import ENVELOPE, Event
from vedette.domain.identity import Identity
from vedette.domain.ports.plugin import SOURCES, PushedSource, SourceContext, TableContext
from vedette.domain.ports.sources import Intake, Receipt, Refused, Source
from vedette.domain.schedule import build_calendar
from vedette.testing.clock import ManualClock, run_ready_tasks
from vedette.testing.intake import ListIntake

T0 = from_iso("2026-03-01T06:00:00Z")
HOUR = 3600 * MICROS


def fleet(*schedules: Schedule) -> Fleet:
    agent = Agent(
        name="desk",
        identity=Identity("harbour", "desk"),
        title="t",
        owner="o",
        release="r",
        folder="f",
        instruction="",
        charter={},
        subscriptions=(),
        schedules=schedules,
        tools={},
        scopes=(),
        budget=Budget(),
        requested_mode="observe",
    )
    return Fleet("harbour", {"desk": agent})


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("kind", source_kinds())
def test_each_that_is_registered_fits_the_port(tmp_path: Path, kind: str) -> None:
    """A table with no more than what it needs comes to a plan, and that to a source."""
    (tmp_path / "abc").write_text("timestamp,value\n")
    anything: Any = None
    clock, plugin = ManualClock(), plugins(SOURCES).get(kind)
    shape = json_schema(plugin.table)
    needed: dict[str, Any] = {
        key: [] if shape["properties"][key]["type"] == "array" else "abc"
        for key in shape["required"]
    }
    context = TableContext(
        lambda path: tmp_path / path, lambda path: str(tmp_path / path), True, {}
    )
    plan = plugin.plan(plugin.table(**{**needed, "kind": kind}), context)
    assert (plan.kind, plan.name) == (kind, "abc")
    for watch in (True, False):
        outside = SourceContext(clock, anything, watch, 1000, bool, fleet(), bool, cron_walls)
        built: Source = plugin.build(plan, outside)
        # Under the name that its events' source has, which is reserved; others push to a route.
        assert built.name == ("abc" if isinstance(built, PushedSource) else f"{kind}:abc")
        assert isinstance(built.finite, bool)
        assert inspect.iscoroutinefunction(built.deliver)
    assert [path.name for path in tmp_path.iterdir()] == ["abc"], "nothing was made yet"


def test_files_end_and_schedules_and_the_host_do_not(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("timestamp,value\n")
    clock = ManualClock()
    sources: list[tuple[Source, bool]] = [
        (ScheduleSource(fleet(), clock), False),
        (CsvSource("m", str(tmp_path / "*.csv"), clock), True),
        (JsonlSource("m", str(tmp_path / "*.csv"), clock), True),
        (HostSource("here", clock), False),
    ]
    assert [source.finite for source, _ in sources] == [finite for _, finite in sources]
    assert len({source.name for source, _ in sources}) == 4


# --- schedules -------------------------------------------------------------------------------


async def test_a_first_start_only_sets_the_watermark() -> None:
    source, intake = (
        ScheduleSource(fleet(Schedule("s", every_us=HOUR)), ManualClock()),
        ListIntake(),
    )
    assert await source.wake(intake, T0 + 1) == []
    assert intake.events == []
    assert intake.positions == {"schedule:desk/s": iso(T0 + 1)}


@pytest.mark.parametrize(("missed", "hours"), [("all", [1, 2, 3]), ("latest", [3]), ("skip", [])])
async def test_missed_ticks_after_a_restart(missed: MissedTickPolicy, hours: list[int]) -> None:
    planned = fleet(Schedule("s", every_us=HOUR, missed=missed))
    intake = ListIntake()
    await ScheduleSource(planned, ManualClock()).wake(intake, T0)
    await ScheduleSource(planned, ManualClock()).wake(intake, T0 + 3 * HOUR + HOUR // 2)
    assert [event.time for event in intake.events] == [iso(T0 + hour * HOUR) for hour in hours]


async def test_a_tick_is_emitted_once_however_often_we_wake() -> None:
    source, intake = (
        ScheduleSource(fleet(Schedule("s", every_us=HOUR)), ManualClock()),
        ListIntake(),
    )
    for now in (T0, T0 + HOUR, T0 + HOUR, T0 + HOUR + 5, T0 + HOUR - 5):
        await source.wake(intake, now)
    assert [event.id for event in intake.events] == [f"desk/s@{iso(T0 + HOUR)}"]
    assert intake.positions["schedule:desk/s"] == iso(T0 + HOUR)


async def test_a_tick_that_was_not_made_durable_comes_again() -> None:
    source, intake = (
        ScheduleSource(fleet(Schedule("s", every_us=HOUR)), ManualClock()),
        ListIntake(),
    )
    await source.wake(intake, T0)
    intake.failure = StoreFailed("the disk is full")
    with pytest.raises(StoreFailed):
        await source.wake(intake, T0 + HOUR)
    intake.failure = None
    (receipt,) = await source.wake(intake, T0 + HOUR + 1)
    assert receipt.status == "accepted"


async def test_an_edited_schedule_does_not_repeat_a_tick() -> None:
    intake = ListIntake()
    before, after = (Schedule("s", every_us=HOUR, data={"depth": depth}) for depth in (1, 2))
    source = ScheduleSource(fleet(before), ManualClock())
    await source.wake(intake, T0)
    await source.wake(intake, T0 + HOUR)
    intake.positions["schedule:desk/s"] = iso(T0)  # as if the position were from an old backup
    (receipt,) = await ScheduleSource(fleet(after), ManualClock()).wake(intake, T0 + HOUR)
    assert receipt.status == "duplicate"


@pytest.mark.parametrize(("hours", "made_up"), [(80, [81]), (-3, [])])
async def test_a_jump_brings_no_tick_and_a_confirmed_one_repeats_none(
    hours: int, made_up: list[int]
) -> None:
    machine, intake = ManualClock(T0), ListIntake()
    clock = FleetClock(machine)
    source = ScheduleSource(fleet(Schedule("s", every_us=HOUR, missed="latest")), clock)
    ticked: list[int] = []

    async def look() -> list[int]:
        intake.events.clear()
        await source.wake(intake, clock.now_us())
        clock.check_wall_clock()
        return [(from_iso(str(event.time)) - T0) // HOUR for event in intake.events]

    ticked += await look()
    machine.advance(HOUR)
    ticked += await look()
    machine.set_wall(machine.now_us() + hours * HOUR)
    ticked += await look()
    assert ticked == [1]
    machine.advance(HOUR)
    assert await look() == [2]
    assert clock.jump is not None
    clock.confirm(clock.jump)
    assert await look() == [hour + 1 for hour in made_up]
    machine.advance(2 * HOUR)
    assert await look() == ([84] if hours > 0 else [])


async def test_the_scheduler_wakes_us_in_time() -> None:
    """APScheduler itself, for about a second and a half."""
    every = 200_000
    planned = fleet(Schedule("fast", every_us=every, missed="all"), Schedule("slow", every_us=HOUR))
    enough = asyncio.Event()

    class Counting(ListIntake):
        async def accept(
            self, deliveries: Sequence[Event | Refused], *, position: tuple[str, str] | None = None
        ) -> list[Receipt]:
            receipts = await super().accept(deliveries, position=position)
            if len(self.events) >= 6:
                enough.set()
            return receipts

    intake, clock = Counting(), SystemClock()
    begun = clock.now_us()
    task = asyncio.create_task(ScheduleSource(planned, clock).deliver(intake))
    await asyncio.wait_for(enough.wait(), 10)
    taken = clock.now_us() - begun
    await stop(task)
    nominal = [from_iso(event.time or "") for event in intake.events if event.subject == "fast"]
    assert nominal == list(range(nominal[0], nominal[-1] + 1, every))
    assert taken < 5 * MICROS
    count = len(intake.events)
    await asyncio.sleep(0.3)
    assert len(intake.events) == count  # a cancelled source has stopped its timers


async def test_what_the_intake_raises_ends_the_source() -> None:
    intake = ListIntake()
    intake.failure = StoreFailed("the disk is full")
    with pytest.raises(StoreFailed):
        await ScheduleSource(fleet(Schedule("s", every_us=HOUR)), SystemClock()).deliver(intake)


def cron(expression: str, zone: str, after: str, count: int) -> list[str]:
    calendar = build_calendar(Schedule("s", cron=expression, zone=zone), cron_walls(expression))
    at, found = from_iso(after), []
    for _ in range(count):
        at = calendar(at) or 0
        found.append(iso(at)[:16])
    return found


NEW_YORK = "America/New_York"


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        # 1 November repeats 01:00 to 02:00, 8 March skips 02:00 to 03:00.
        ("30 1 * * *", "2026-10-31T12:00Z", ["2026-11-01T05:30", "2026-11-02T06:30"]),
        ("30 1 * * *", "2026-11-01T05:30Z", ["2026-11-02T06:30"]),
        ("30 2 * * *", "2026-03-07T12:00Z", ["2026-03-08T07:00", "2026-03-09T06:30"]),
        ("30 2 * * *", "2026-03-08T07:00Z", ["2026-03-09T06:30"]),
        (
            "*/30 * * * *",
            "2026-11-01T05:00Z",
            ["2026-11-01T05:30", "2026-11-01T06:00", "2026-11-01T06:30", "2026-11-01T07:00"],
        ),
        (
            "*/30 * * * *",
            "2026-03-08T06:00Z",
            ["2026-03-08T06:30", "2026-03-08T07:00", "2026-03-08T07:30"],
        ),
        ("0 6 * * mon", "2026-03-07T00:00Z", ["2026-03-09T10:00", "2026-03-16T10:00"]),
        ("0 0 29 feb *", "2026-03-07T00:00Z", ["2028-02-29T05:00"]),
    ],
)
def test_cron_in_a_zone(expression: str, after: str, expected: list[str]) -> None:
    assert cron(expression, NEW_YORK, after, len(expected)) == expected


def test_cron_sunday_is_sunday() -> None:
    (found,) = cron("0 0 * * sun", "UTC", "2026-03-01T06:00Z", 1)
    assert found == "2026-03-08T00:00"  # a Sunday


@pytest.mark.parametrize(
    ("schedule", "word"),
    [
        (Schedule("s", cron="0 6 * * 1"), "weekday by number"),
        (Schedule("s", cron="0 6 * * mon-5"), "weekday by number"),
        (Schedule("s", cron="0 6 * *"), "fields"),
        (Schedule("s", cron="61 6 * * *"), "maximum"),
        (Schedule("s", cron="0 0 30 feb *"), "never"),
        (Schedule("s", daily="6.30"), "HH:MM"),
        (Schedule("s", every_us=HOUR, zone="Mars/Olympus"), "zone"),
        (Schedule("s", cron="0 6 * * mon", zone="Mars/Olympus"), "zone"),
    ],
)
def test_a_bad_schedule_is_named(schedule: Schedule, word: str) -> None:
    with pytest.raises(BadFleet, match=rf"agent desk, schedule s: .*{word}"):
        ScheduleSource(fleet(schedule), ManualClock())


# --- files -----------------------------------------------------------------------------------


def series(folder: Path, name: str, rows: int) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"2026-03-01 {row // 60:02d}:{row % 60:02d}:00,{row}.5" for row in range(rows)]
    path.write_text("\n".join(["timestamp,value", *lines, ""]))
    return path


async def test_csv_rows_become_metric_points(tmp_path: Path) -> None:
    path = tmp_path / "cpu.csv"
    path.write_bytes(
        b'\xef\xbb\xbfhost,"timestamp",value\r\nh1,2026-03-01 06:00:00,19.5\r\n\r\n'
        b'"a, b",2026-03-01T07:00:00.25+01:00,"-3"\r\nh1,2026-03-01,1e3'
    )
    intake = ListIntake()
    source = CsvSource("lab", str(tmp_path / "*.csv"), ManualClock())
    await source.deliver(intake)
    assert intake.refusals == []
    assert intake.events[0] == Event(
        source="csv:lab",
        id="cpu:0000002",
        type="metric.point",
        subject="cpu",
        time="2026-03-01T06:00:00Z",
        data={"value": 19.5},
        vouched=ENVELOPE,
    )
    assert [(event.id, event.time, event.data["value"]) for event in intake.events[1:]] == [
        ("cpu:0000004", "2026-03-01T06:00:00.250000Z", -3.0),
        ("cpu:0000005", "2026-03-01T00:00:00Z", 1000.0),
    ]


BAD_ROWS = [
    (b"2026-03-01 06:00:00,\xff", "UTF-8"),
    (b"2026-03-01 06:00:00", "1 columns instead of 2"),
    (b"2026-03-01 06:00:00,1,2", "3 columns instead of 2"),
    (b"yesterday,1", "no instant"),
    (b"2026-03-01 06:00:00,nan", "finite"),
    (b"2026-03-01 06:00:00,-Infinity", "finite"),
    (b"2026-03-01 06:00:00,1e999", "finite"),
    (b"2026-03-01 06:00:00,1_000", "finite"),
    (b"2026-03-01 06:00:00,", "finite"),
    ("2026-03-01 06:00:00,١".encode(), "finite"),
    (b'2026-03-01 06:00:00,"1', "not CSV"),
    (b"9" * 5000, "longer than 1000 bytes"),
]


async def test_bad_rows_are_refused_by_file_and_line_and_the_rest_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "cpu.csv"
    good = b"2026-03-01 06:00:00,1"
    lines = [b"timestamp,value"]
    for row, _ in BAD_ROWS:
        lines += [row, good]
    path.write_bytes(b"\n".join(lines))
    intake = ListIntake()
    await CsvSource("lab", str(path), ManualClock(), max_bytes=1000).deliver(intake)
    assert len(intake.events) == len(BAD_ROWS)
    assert len(intake.refusals) == len(BAD_ROWS)
    for at, (refused, (row, word)) in enumerate(zip(intake.refusals, BAD_ROWS, strict=True)):
        assert refused.where == f"{path}:{2 * at + 2}"
        assert word in refused.why
        assert refused.why.endswith(")"), "the mend"
        assert refused.raw == (row + b"\n")[:256]


async def test_a_file_without_the_columns_is_refused_once(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time;value\n1;2\n")
    (tmp_path / "b.csv").write_bytes(b"")
    series(tmp_path, "c.csv", 3)
    intake = ListIntake()
    for _ in range(2):
        await CsvSource("lab", str(tmp_path / "*.csv"), ManualClock()).deliver(intake)
    assert [Path(refused.where).name for refused in intake.refusals] == ["a.csv:1", "b.csv:0"]
    assert "timestamp and value" in intake.refusals[0].why
    assert len(intake.events) == 3


async def test_files_are_read_in_turns_and_each_in_order(tmp_path: Path) -> None:
    for name in ("a/x.csv", "b/x.csv", "b/y.csv"):
        series(tmp_path, name, 400)
    intake = ListIntake()
    await CsvSource("lab", str(tmp_path / "**" / "*.csv"), ManualClock()).deliver(intake)
    by_subject: dict[str, list[str]] = {}
    for event in intake.events:
        by_subject.setdefault(event.subject or "", []).append(event.id)
    assert set(by_subject) == {"a/x", "b/x", "y"}
    assert all(ids == sorted(ids) and len(ids) == 400 for ids in by_subject.values())
    assert len({event.subject for event in intake.events[:BATCH]}) == 3
    assert max(len(batch) for batch in intake.batches) <= BATCH


@pytest.mark.parametrize("cut", [1, 7, 170, 171])
async def test_a_restart_reads_on_from_the_position(tmp_path: Path, cut: int) -> None:
    for name in ("x.csv", "y.csv"):
        path = series(tmp_path, name, 40)
        path.write_text(path.read_text().replace("07.5", "oops"))

    class Stopping(ListIntake):
        async def accept(
            self, deliveries: Sequence[Event | Refused], *, position: tuple[str, str] | None = None
        ) -> list[Receipt]:
            if len(self.batches) >= cut:
                self.failure = StoreFailed("killed")
            return await super().accept(deliveries, position=position)

    def source(clock: ManualClock) -> CsvSource:
        return CsvSource("lab", str(tmp_path / "*.csv"), clock, rate=100)

    async def run(intake: Intake) -> None:
        clock = ManualClock()
        task = asyncio.create_task(source(clock).deliver(intake))
        while not task.done():
            await clock.elapse(100_000)
        await task

    whole, first = ListIntake(), Stopping()
    await run(whole)
    with contextlib.suppress(StoreFailed):
        await run(first)
    second = ListIntake()
    second.positions = first.positions
    await run(second)
    ids = [event.id for event in first.events + second.events]
    assert sorted(ids) == sorted(event.id for event in whole.events)
    assert len(first.refusals) + len(second.refusals) == len(whole.refusals)


async def test_a_file_that_shrank_is_refused(tmp_path: Path) -> None:
    path = series(tmp_path, "x.csv", 40)
    intake = ListIntake()
    await CsvSource("lab", str(path), ManualClock()).deliver(intake)
    series(tmp_path, "x.csv", 4)
    await CsvSource("lab", str(path), ManualClock()).deliver(intake)
    assert "shorter" in intake.refusals[0].why
    assert len(intake.events) == 40


async def test_a_rate_is_kept_by_the_clock(tmp_path: Path) -> None:
    for name in ("x.csv", "y.csv", "z.csv"):
        series(tmp_path, name, 1000)
    intake, clock = ListIntake(), ManualClock()
    source = CsvSource("lab", str(tmp_path / "*.csv"), clock, rate=400)
    task = asyncio.create_task(source.deliver(intake))
    for second in range(1, 4):
        await clock.elapse(MICROS)
        assert abs(len(intake.events) - 400 * second) <= 11
    await stop(task)


def test_no_file_is_an_error_of_the_settings(tmp_path: Path) -> None:
    with pytest.raises(BadFleet, match="no file matches"):
        CsvSource("lab", str(tmp_path / "*.csv"), ManualClock())


def line(**more: Any) -> str:
    base = {"specversion": "1.0", "id": "1", "source": "a:b", "type": "t"}
    return json.dumps(base | more)


async def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    bad = ["{", line(id=""), line(type="t", time="now"), '{"a":1,"a":2}', "[]"]
    path.write_text("\n".join([line(id="1", data={"x": 1}), "", *bad, line(id="2")]))
    intake = ListIntake()
    await JsonlSource("log", str(path), ManualClock()).deliver(intake)
    assert [(event.id, event.source) for event in intake.events] == [("1", "a:b"), ("2", "a:b")]
    assert intake.events[0].vouched == ENVELOPE
    assert [refused.where for refused in intake.refusals] == [f"{path}:{at}" for at in range(3, 8)]


@pytest.mark.parametrize(
    ("claim", "named"),
    [
        ({"type": "vedette.tick", "source": "vedette://harbour/schedule/a"}, "type 'vedette.tick'"),
        ({"type": "vedette.tick", "source": "jsonl:log"}, "type 'vedette.tick'"),
        ({"source": "vedette:engine"}, "source 'vedette:engine'"),
        ({"source": "maildir:mail"}, "source 'maildir:mail'"),
        ({"source": "csv:lab"}, "source 'csv:lab'"),
        ({"source": "host:here"}, "source 'host:here'"),
        ({"source": "imap:desk"}, "source 'imap:desk'"),
        ({"source": "jsonl:log2"}, "source 'jsonl:log2'"),
        ({"vedetteprincipal": "person:kim"}, "attribute 'vedetteprincipal'"),
    ],
)
async def test_a_line_claims_nothing_of_the_engine_or_of_another_source(
    tmp_path: Path, claim: dict[str, str], named: str
) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text("\n".join([line(id="1"), line(**claim), line(id="3", source="jsonl:log")]))
    intake = ListIntake()
    await JsonlSource("log", str(path), ManualClock()).deliver(intake)
    assert [event.id for event in intake.events] == ["1", "3"]  # its own name it may use
    (refused,) = intake.refusals
    assert refused.where == f"{path}:2"
    assert named in refused.why
    assert "of your own" in refused.why or "leave it out" in refused.why


def bare_lines(path: Path, type: str) -> Source:
    """Return the source that a table of [[sources]] with a type comes to."""
    plan = JsonlFile(kind="jsonl", name="log", path=str(path), type=type)
    anything: Any = None
    context = SourceContext(
        ManualClock(), anything, False, 262_144, lambda: True, anything, anything, anything
    )
    return JSONL.build(plan, context)


async def test_bare_json_lines_cannot_be_declared_the_engines_own(tmp_path: Path) -> None:
    path = tmp_path / "door.jsonl"
    path.write_text('{"open": true}\n')
    intake = ListIntake()
    await bare_lines(path, "vedette.tick").deliver(intake)
    assert intake.events == []
    assert [refused.where for refused in intake.refusals] == [f"{path}:1"]


async def test_bare_json_lines_become_events_of_the_declared_type(tmp_path: Path) -> None:
    path = tmp_path / "door.jsonl"
    path.write_text('{"open": true}\n[1.5]\nNaN\n')
    intake = ListIntake()
    await bare_lines(path, "door.moved").deliver(intake)
    assert [(event.id, event.subject, event.data) for event in intake.events] == [
        ("door:0000001", "door", {"open": True}),
        ("door:0000002", "door", [1.5]),
    ]
    assert {event.type for event in intake.events} == {"door.moved"}
    assert {event.source for event in intake.events} == {"jsonl:log"}
    assert len(intake.refusals) == 1


# --- the host --------------------------------------------------------------------------------


async def test_the_host_is_sampled_on_whole_periods() -> None:
    clock, intake = ManualClock(T0 + 300_000), ListIntake()
    source = HostSource("here", clock, MICROS)
    task = asyncio.create_task(source.deliver(intake))
    await clock.elapse(3 * MICROS)
    await stop(task)
    cpu = [event for event in intake.events if event.subject == "host/cpu"]
    assert [event.time for event in cpu] == [iso(T0 + at * MICROS) for at in (1, 2, 3)]
    assert cpu[0].id == f"cpu:{iso(T0 + MICROS)}"
    assert cpu[0].source == "host:here"
    subjects = {event.subject for event in intake.events}
    assert {"host/cpu", "host/memory", "host/load1"} <= subjects
    for event in intake.events:
        assert event.data["value"] >= 0
        assert event.vouched == ENVELOPE


async def test_two_samples_of_one_second_are_one() -> None:
    clock, intake = ManualClock(T0), ListIntake()
    source = HostSource("here", clock)
    source.sample(T0)
    first = await intake.accept(source.sample(T0 + 1))
    repeat = await intake.accept(source.sample(T0 + 900_000))
    assert {receipt.status for receipt in first} == {"accepted"}
    assert {receipt.status for receipt in repeat} == {"duplicate"}
    await run_ready_tasks()
