"""Rows of BigQuery as events, each once: on the real emulator, late and duplicate rows too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.bigquery import PROJECT, Dataset
from tests.contract.adapters.bigquery.bigquery_child import SECOND, T0, kill, plan_of

from vedette.adapters.bigquery import source as module
from vedette.adapters.bigquery.clients import query_client
from vedette.adapters.bigquery.config import BigQueryFile
from vedette.adapters.bigquery.source import BigQuerySource, SourceUnavailable
from vedette.adapters.bigquery.sql import AT_COLUMN, ROW_COLUMN, build_query
from vedette.app.sources import build_source
from vedette.config.settings import load_settings
from vedette.domain.base.clock import iso
from vedette.domain.base.errors import BadFleet, StoreFailed
from vedette.domain.event import Event
from vedette.testing.clock import ManualClock, run_ready_tasks
from vedette.testing.harness import FleetHarness
from vedette.testing.intake import ListIntake
from vedette.testing.toy_fleet import World, toy_fleet

PLAN = BigQueryFile(
    name="n", project="p", dataset="d", table="t", type="x.y", time_column="at", behind="1ms",
    every="1ms",
)  # fmt: skip


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[FleetHarness]:
    async with toy_fleet(tmp_path, World()) as fleet:
        yield fleet


@pytest.fixture
def jobs(bigquery: Dataset) -> Dataset:
    """A table of jobs, partitioned by when they were inserted."""
    bigquery.ask(
        "CREATE TABLE `{d}.jobs` (id STRING, inserted TIMESTAMP, value INT64, share FLOAT64, "
        "price NUMERIC, raw BYTES, who STRUCT<name STRING, days ARRAY<DATE>>) "
        "PARTITION BY DATE(inserted) CLUSTER BY id"
    )
    return bigquery


def asking(jobs: Dataset, at_s: float, **more: Any) -> BigQuerySource:
    """Return a source that asks once, that many seconds after T0."""
    clock = ManualClock(T0 + int(at_s * SECOND))
    return BigQuerySource(plan_of(jobs.short).replace(**more), clock, watch=False)


def instant(at_s: float) -> str:
    """Return an instant so many seconds after T0, as SQL."""
    return f"TIMESTAMP_MICROS({T0 + int(at_s * SECOND)})"


def insert(jobs: Dataset, rows: Sequence[tuple[str | None, float]]) -> None:
    """Insert (id, seconds after T0)."""
    jobs.insert(
        "jobs",
        "id, inserted, value",
        [f"{'NULL' if name is None else repr(name)}, {instant(at)}, 1" for name, at in rows],
    )


def ids(events: Sequence[Event]) -> list[str]:
    return [str(event.subject) for event in events]


# --- once each ------------------------------------------------------------------------------


async def test_rows_wake_an_agent_once_each(fleet: FleetHarness, jobs: Dataset) -> None:
    """Late rows, rows written twice, the same place asked again, and a restart between."""
    source = asking(jobs, 100)
    insert(jobs, [("a", 10), ("b", 20), ("c", 30)])
    await source.deliver(fleet.app.intake)
    # d came late, behind c; a and c were written twice: the same row, and with a later instant.
    insert(jobs, [("d", 15), ("c", 30), ("a", 40), ("e", 50)])
    await source.deliver(fleet.app.intake)
    await source.deliver(fleet.app.intake)
    await fleet.wait_until_idle()
    await fleet.restart()
    insert(jobs, [("f", 35), ("b", 60)])
    repeat = asking(jobs, 100)
    await repeat.deliver(fleet.app.intake)
    await fleet.wait_until_idle()
    woken = [entry for entry in fleet.entries("event.accepted") if entry["woke"]]
    assert len(woken) == 6
    events = [fleet.app.store.runs.event(entry["event"]) for entry in woken]
    assert ids([event for event in events if event]) == ["a", "b", "c", "d", "e", "f"]
    assert fleet.app.store.tables.counts()["worker"]["run.done"] == 6


async def test_the_watermark_survives_a_kill(tmp_path: Path, jobs: Dataset) -> None:
    """kill -9 in the middle of the rows: it goes on behind what was committed."""
    insert(jobs, [(f"r{number:02}", number) for number in range(12)])
    await asyncio.to_thread(kill, "rows", tmp_path, jobs.short, "commit:after", 8)
    fleet = FleetHarness(
        tmp_path, content=tmp_path / "content", policies=tmp_path / "policies",
        targets={"world": {"kind": "world", "world": World()}},
    )  # fmt: skip
    async with fleet:
        had = len(fleet.entries("event.accepted"))
        assert 0 < had < 12
        position = fleet.app.store.runs.source_position("bigquery:jobs")
        assert position is not None
        assert json.loads(position)["at"] == T0 + (had - 1) * SECOND
        repeat = asking(jobs, 100, overlap="0s")
        await repeat.deliver(fleet.app.intake)
        await fleet.wait_until_idle()
        assert len(fleet.entries("event.accepted")) == 12
        assert fleet.app.store.tables.counts()["worker"]["run.done"] == 12


async def test_without_looking_back_a_late_row_is_lost(jobs: Dataset) -> None:
    """The control: what finds the late row above is the overlap."""
    intake, source = ListIntake(), asking(jobs, 100, overlap="0s")
    insert(jobs, [("a", 10), ("c", 30)])
    await source.deliver(intake)
    insert(jobs, [("d", 15), ("e", 50)])
    await source.deliver(intake)
    assert ids(intake.events) == ["a", "c", "e"]


async def test_without_an_id_a_row_is_its_content(jobs: Dataset) -> None:
    """The control: without the id a row that was written again later is another event."""
    intake, source = ListIntake(), asking(jobs, 100, id_column=None)
    insert(jobs, [("a", 10), ("a", 10), ("a", 11)])
    await source.deliver(intake)
    assert ids(intake.events) == ["a", "a"]
    assert [event.time for event in intake.events] == [iso(T0 + 10 * SECOND), iso(T0 + 11 * SECOND)]


async def test_rows_too_fresh_are_left_for_later(jobs: Dataset) -> None:
    intake = ListIntake()
    insert(jobs, [("a", 10), ("b", 99.5), ("future", 5000)])
    await asking(jobs, 100).deliver(intake)
    assert ids(intake.events) == ["a"]
    await asking(jobs, 102).deliver(intake)
    assert ids(intake.events) == ["a", "b"]


async def test_a_new_source_begins_at_the_present(jobs: Dataset) -> None:
    """And stays there over a restart that comes before its first row."""
    intake = ListIntake()
    insert(jobs, [("old", 10)])
    await asking(jobs, 100, begin="now").deliver(intake)
    insert(jobs, [("late", 97), ("new", 110)])
    await asking(jobs, 200, begin="now").deliver(intake)
    assert ids(intake.events) == ["new"]
    everything = ListIntake()
    await asking(jobs, 200, begin="start").deliver(everything)
    assert ids(everything.events) == ["old", "late", "new"]


async def test_pages_and_rounds_lose_nothing(
    jobs: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of one instant over the ends of pages and of queries; the position goes with each."""
    monkeypatch.setattr(module, "PAGE", 3)
    monkeypatch.setattr(module, "LIMIT", 7)
    insert(jobs, [(f"r{number:02}", number // 9) for number in range(20)])
    intake, source = ListIntake(), asking(jobs, 100)
    await source.deliver(intake)
    assert ids(intake.events) == [f"r{number:02}" for number in range(20)]
    assert max(len(batch) for batch in intake.batches) == 3
    assert json.loads(intake.positions["bigquery:jobs"])["at"] == T0 + 2 * SECOND


async def test_what_did_not_become_durable_is_handed_over_again(jobs: Dataset) -> None:
    insert(jobs, [("a", 10)])
    intake, source = ListIntake(), asking(jobs, 100)
    await source.deliver(intake)
    insert(jobs, [("b", 20)])
    intake.failure = StoreFailed("the disk is full")
    with pytest.raises(StoreFailed):
        await source.deliver(intake)
    intake.failure = None
    await source.deliver(intake)
    assert ids(intake.events) == ["a", "b"]


async def test_it_is_made_of_a_table_in_vedette_toml(
    tmp_path: Path, fleet: FleetHarness, jobs: Dataset
) -> None:
    """With the defaults that the tests here use, too."""
    path = tmp_path / "vedette.toml"
    path.write_text(
        f'fleet = "harbour"\n[[sources]]\nkind = "bigquery"\nname = "jobs"\n'
        f'project = "{PROJECT}"\ndataset = "{jobs.short}"\ntable = "jobs"\n'
        'type = "worker.job"\ntime_column = "inserted"\nbegin = "start"\n'
    )
    (plan,) = load_settings(path).sources
    assert isinstance(plan, BigQueryFile)
    assert plan == plan_of(jobs.short).replace(id_column=None, subject_column=None)
    insert(jobs, [("a", 10)])
    source = build_source(plan, fleet.app, until_idle=True)
    assert source.finite
    await source.deliver(fleet.app.intake)
    assert len(fleet.entries("event.accepted")) == 1


# --- what is in a row -----------------------------------------------------------------------


async def test_values_are_exact(jobs: Dataset) -> None:
    jobs.insert(
        "jobs",
        "id, inserted, value, share, price, raw, who",
        [
            "'x', TIMESTAMP '2026-09-21 14:00:00.000001 UTC', 9007199254740993, 0.1, "
            "NUMERIC '12.34', b'ab', STRUCT('ann', [DATE '2026-01-02'])"
        ],
    )
    intake = ListIntake()
    await asking(jobs, 1e6).deliver(intake)
    (event,) = intake.events
    assert event.id == f"{jobs.name}.jobs:x"
    assert (event.source, event.type) == ("bigquery:jobs", "worker.job")
    assert event.time == "2026-09-21T14:00:00.000001Z"
    price = event.data.pop("price")
    assert float(price) == 12.34
    assert event.data == {
        "id": "x",
        "inserted": "2026-09-21T14:00:00.000001Z",
        "value": 9007199254740993,
        "share": 0.1,
        "raw": "YWI=",
        "who": {"name": "ann", "days": ["2026-01-02"]},
    }


async def test_rows_that_are_no_events_are_refused_once(fleet: FleetHarness, jobs: Dataset) -> None:
    """With the column, and not again after a restart, though they are looked at again."""
    insert(jobs, [("a", 10), (None, 20), ("c", 30)])
    jobs.insert("jobs", "id, inserted, share", [f"'nan', {instant(15)}, CAST('NaN' AS FLOAT64)"])
    for _ in range(2):
        source = asking(jobs, 100)
        await source.deliver(fleet.app.intake)
        await source.deliver(fleet.app.intake)
        await fleet.wait_until_idle()
        await fleet.restart()
    refused = [fleet.body(entry["seq"])["why"] for entry in fleet.entries("event.refused")]
    assert len(refused) == 2
    assert "'share' holds nan" in refused[0]
    assert "'id' is NULL" in refused[1]
    assert len(fleet.entries("event.accepted")) == 2


# --- when BigQuery does not answer ----------------------------------------------------------


async def test_a_wrong_column_ends_the_source(jobs: Dataset) -> None:
    with pytest.raises(BadFleet, match="nowhere"):
        await asking(jobs, 100, subject_column=None, id_column="nowhere").deliver(ListIntake())


async def test_a_subject_that_is_no_column_ends_the_source(jobs: Dataset) -> None:
    insert(jobs, [("a", 10)])
    with pytest.raises(BadFleet, match="subject_column"):
        await asking(jobs, 100, subject_column="nowhere").deliver(ListIntake())


async def test_a_missing_table_may_come(jobs: Dataset) -> None:
    source = asking(jobs, 100, table="later")
    with pytest.raises(SourceUnavailable, match="later"):
        await source.deliver(ListIntake())


async def wind(clock: ManualClock, true: Callable[[], bool], within_s: float = 30) -> None:
    """Let time go on until something is true: a thread says when the source waits, not the loop."""
    async with asyncio.timeout(within_s):
        while not true():
            clock.advance(SECOND)
            await asyncio.sleep(0.005)


async def test_it_waits_longer_while_nobody_answers(jobs: Dataset) -> None:
    """And goes on by itself when somebody does."""
    clock, intake = ManualClock(T0 + 100 * SECOND), ListIntake()
    away = {"BIGQUERY_EMULATOR_HOST": "127.0.0.1:9"}
    here = jobs.emulator.environ
    answers = [away, away, here]

    source = BigQuerySource(
        plan_of(jobs.short), clock, client=lambda: query_client(PROJECT, environ=answers.pop(0))
    )
    insert(jobs, [("a", 10)])
    waits = []
    for _ in range(2):
        before = clock.now_us()
        task = asyncio.create_task(source.deliver(intake))
        while not task.done():
            await run_ready_tasks()
            clock.advance(SECOND // 10)
            await asyncio.sleep(0.001)
        with pytest.raises(SourceUnavailable):
            task.result()
        waits.append(clock.now_us() - before)
        source._client = None
    task = asyncio.create_task(source.deliver(intake))
    await run_ready_tasks()
    assert not intake.events
    await wind(clock, lambda: ids(intake.events) == ["a"])
    insert(jobs, [("b", 101)])
    await wind(clock, lambda: ids(intake.events) == ["a", "b"])
    task.cancel()
    assert waits[0] < waits[1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"table": "jobs` WHERE TRUE --"},
        {"time_column": "inserted`"},
        {"id_column": "id; DROP"},
        {"project": "P`"},
    ],
)
def test_names_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    plan = PLAN
    BigQuerySource(plan, ManualClock())
    with pytest.raises(BadFleet, match="is no"):
        BigQuerySource(plan.replace(**wrong), ManualClock())


# --- APPENDS: the emulator has none, so its text and its paging are looked at without it -------


def test_the_text_of_appends() -> None:
    """As in the reference: open at its end, from the last row on, ordered by the commit."""
    plan = PLAN.replace(id_column="id", method="appends")
    assert build_query(plan, limit=7, after_row=False) == (
        "SELECT t.*, UNIX_MICROS(t._CHANGE_TIMESTAMP) AS vedette__at_us, "
        "IFNULL(CAST(t.`id` AS STRING), TO_HEX(SHA256(TO_JSON_STRING(t)))) AS vedette__row\n"
        "FROM APPENDS(TABLE `p.d.t`, TIMESTAMP_MICROS(@after), TIMESTAMP_MICROS(@until)) AS t\n"
        "WHERE t._CHANGE_TIMESTAMP >= TIMESTAMP_MICROS(@after) "
        "AND t._CHANGE_TIMESTAMP < TIMESTAMP_MICROS(@until)\n"
        "ORDER BY t._CHANGE_TIMESTAMP, "
        "IFNULL(CAST(t.`id` AS STRING), TO_HEX(SHA256(TO_JSON_STRING(t))))\n"
        "LIMIT 7"
    )
    onward = build_query(plan.replace(id_column=None), limit=7, after_row=True)
    assert "APPENDS(TABLE `p.d.t`, TIMESTAMP_MICROS(@last), TIMESTAMP_MICROS(@until))" in onward
    assert (
        "WHERE t._CHANGE_TIMESTAMP >= TIMESTAMP_MICROS(@last) AND "
        "(t._CHANGE_TIMESTAMP > TIMESTAMP_MICROS(@last) OR "
        "TO_HEX(SHA256(TO_JSON_STRING(t))) > @row)"
    ) in onward


class Appends:
    """A client that answers as APPENDS would: rows by their commits."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, str]] = []
        self.asked: list[dict[str, Any]] = []

    def query(self, text: str, *, job_config: Any, **more: Any) -> Appends:
        assert "FROM APPENDS(" in text
        self.asked.append({each.name: each.value for each in job_config.query_parameters})
        return self

    def result(self, **more: Any) -> list[dict[str, Any]]:
        given = self.asked[-1]
        last = given.get("last", given.get("after")), given.get("row", "")
        rows = [row for row in sorted(self.rows) if row > last and row[0] < given["until"]]
        return [
            {
                "id": name,
                "_CHANGE_TYPE": "INSERT",
                "_CHANGE_TIMESTAMP": at,
                AT_COLUMN: at,
                ROW_COLUMN: name,
            }
            for at, name in rows[: module.LIMIT]
        ]


async def test_appends_goes_from_commit_to_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT", 3)
    client: Any = Appends()
    client.rows = [(T0 + number // 2, f"r{number}") for number in range(8)]
    plan = PLAN.replace(id_column="id", method="appends", begin="start")
    clock, intake = ManualClock(T0 + 60 * SECOND), ListIntake()
    source = BigQuerySource(plan, clock, watch=False, client=lambda: client)
    await source.deliver(intake)
    assert [event.data for event in intake.events] == [{"id": f"r{n}"} for n in range(8)]
    assert [given.get("row") for given in client.asked] == [None, "r2", "r5"]
    # It looks no further back than the last commit; what was seen of that one is known.
    client.rows += [(T0 + 3, "r9"), (T0 + 4, "ra")]
    await source.deliver(intake)
    assert client.asked[3]["after"] == T0 + 3
    assert [event.data["id"] for event in intake.events[8:]] == ["r9", "ra"]
