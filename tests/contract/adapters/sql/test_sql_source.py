"""Rows of SQLite and of a real PostgreSQL as events, each once: late rows and restarts, too."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import socket
import sqlite3
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests import pg

from vedette.adapters.sql import postgres, sqlite
from vedette.adapters.sql import source as module
from vedette.adapters.sql.config import SqlFile
from vedette.adapters.sql.postgres import PostgresTable
from vedette.adapters.sql.rows import row_instant
from vedette.adapters.sql.source import SqlSource, open_table, probe
from vedette.adapters.sql.sqlite import create_file
from vedette.adapters.sql.tables import SourceUnavailable
from vedette.adapters.sql.watermark import Watermark
from vedette.config.settings import load_settings
from vedette.domain.base.clock import MICROS
from vedette.domain.base.errors import BadEvent, BadFleet, StoreFailed, Unavailable
from vedette.domain.base.fsync import sync
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.intake import ListIntake
from vedette.testing.toy_fleet import World, toy_fleet

COLUMNS = "id TEXT PRIMARY KEY, author TEXT, text TEXT, posted_at TEXT"
PLAN = SqlFile(
    name="board", table="comment", type="comment.posted", id_column="id", order_column="seq"
)
LITE = f"CREATE TABLE comment ({COLUMNS}, seq INTEGER UNIQUE);"


@functools.cache
def _database() -> str:
    return pg.server(fsync=False).fresh()


class Board:
    """A table of comments: a file of SQLite, or a database of the server."""

    def __init__(self, kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kind = kind
        self._count = 0
        common = PLAN.replace(time_column="posted_at", subject_column="author")
        if kind == "sqlite":
            self.plan = common.replace(path=str(folder / "board.db"))
            self.ask(LITE)
        else:
            self.url = _database()
            monkeypatch.setenv("BOARD_URL", self.url)
            self.plan = common.replace(url_env="BOARD_URL", overlap="60s")
            self.ask("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
            self.ask(f"CREATE TABLE comment ({COLUMNS}, seq BIGSERIAL UNIQUE)")

    @contextlib.contextmanager
    def connect(self) -> Iterator[Any]:
        """Return a connection of one's own; what it did is committed at the end."""
        if self.kind == "sqlite":
            assert self.plan.path is not None
            with contextlib.closing(sqlite3.connect(self.plan.path)) as lite, lite:
                yield lite
        else:
            import psycopg

            with psycopg.connect(self.url) as server:
                yield server

    def ask(self, text: str, values: Sequence[Any] = ()) -> None:
        with self.connect() as connection:
            # psycopg takes per cent signs as they stand where there are no values at all.
            connection.execute(*((self._marked(text), values) if values else (text,)))

    def post(self, *ids: str, connection: Any = None, **more: Any) -> None:
        """Insert comments, numbered in order."""
        for name in ids:
            self._count += 1
            row = {"id": name, "author": f"by {name}", "text": "fair winds",
                   "posted_at": "2026-03-01T06:00:00Z", "seq": self._count, **more}  # fmt: skip
            text = f"INSERT INTO comment ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
            values = tuple(row.values())
            if connection is None:
                self.ask(text, values)
            else:
                connection.execute(self._marked(text), values)

    def _marked(self, text: str) -> str:
        return text if self.kind == "sqlite" else text.replace("?", "%s")


@pytest.fixture(params=["sqlite", "postgres"])
def board(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    return Board(request.param, tmp_path, monkeypatch)


@pytest.fixture
def lite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    return Board("sqlite", tmp_path, monkeypatch)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    return Board("postgres", tmp_path, monkeypatch)


def once(plan: SqlFile, clock: ManualClock | None = None, **more: Any) -> SqlSource:
    return SqlSource(plan, clock or ManualClock(), watch=False, **more)


def ids(intake: ListIntake) -> list[str]:
    return [event.id.removeprefix("comment/") for event in intake.events]


# --- once each -----------------------------------------------------------------------------------


async def test_a_row_is_an_event(board: Board) -> None:
    """Its columns are the data; who posted is the subject, and none of the data is vouched for."""
    board.post("c1", text="ahoy")
    intake = ListIntake()
    await once(board.plan).deliver(intake)
    (event,) = intake.events
    assert (event.source, event.id, event.type) == ("sql:board", "comment/c1", "comment.posted")
    assert (event.subject, event.time) == ("by c1", "2026-03-01T06:00:00.000000Z")
    assert event.vouched == {"source", "type"}, "all else is of a column, which anybody may fill"
    assert event.data == {
        "id": "c1", "author": "by c1", "text": "ahoy", "posted_at": "2026-03-01T06:00:00Z",
        "seq": 1,
    }  # fmt: skip


async def test_each_row_once_over_pages_and_restarts(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 3)
    intake, clock = ListIntake(), ManualClock()
    board.post(*(f"a{number}" for number in range(8)))
    source = once(board.plan, clock)
    await source.deliver(intake)
    board.post("b1", "b2")
    await source.deliver(intake)
    await source.deliver(intake)
    repeat = once(board.plan, clock)  # the same position, nothing in memory
    board.post("c1")
    await repeat.deliver(intake)
    assert ids(intake) == [f"a{number}" for number in range(8)] + ["b1", "b2", "c1"]


async def test_it_goes_on_behind_what_is_durable(board: Board) -> None:
    """The store fails in the middle: nothing of it is taken for handed over."""
    board.post("a", "b")
    intake, source = ListIntake(), once(board.plan)
    await source.deliver(intake)
    board.post("c")
    intake.failure = StoreFailed("no space")
    with pytest.raises(StoreFailed):
        await source.deliver(intake)
    intake.failure = None
    board.post("d")
    await source.deliver(intake)
    assert ids(intake) == ["a", "b", "c", "d"]


async def test_begin_now_leaves_out_what_was_there(board: Board) -> None:
    board.post("old")
    plan, intake = board.plan.replace(begin="now"), ListIntake()
    await once(plan).deliver(intake)
    board.post("new")
    await once(plan).deliver(intake)
    assert ids(intake) == ["new"]


async def test_rows_wake_an_agent_once_each(tmp_path: Path, lite: Board) -> None:
    """Through a real store, closed and opened again between."""
    async with toy_fleet(tmp_path / "fleet", World()) as fleet:
        lite.post("a", "b")
        await once(lite.plan).deliver(fleet.app.intake)
        await fleet.wait_until_idle()
        await fleet.restart()
        lite.post("c")
        await once(lite.plan).deliver(fleet.app.intake)
        await fleet.wait_until_idle()
        assert _accepted(fleet) == ["comment/a", "comment/b", "comment/c"]


def _accepted(fleet: FleetHarness) -> list[str]:
    entries = fleet.entries("event.accepted")
    events = [fleet.app.store.runs.event(entry["event"]) for entry in entries]
    return [event.id for event in events if event is not None]


# --- late commits --------------------------------------------------------------------------------


async def _late(server: Board, plan: SqlFile) -> list[str]:
    """Number a row, read a later one, then commit; return what was handed over."""
    intake, clock = ListIntake(), ManualClock()
    source = once(plan, clock)
    server.post("first")
    await source.deliver(intake)
    clock.advance(3600 * MICROS)
    await source.deliver(intake)
    with server.connect() as slow:
        server.post("late", connection=slow)
        server.post("early")
        await source.deliver(intake)
        clock.advance(50 * MICROS)
    await source.deliver(intake)
    return ids(intake)


async def test_a_row_that_is_committed_late_is_seen(server: Board) -> None:
    assert await _late(server, server.plan) == ["first", "early", "late"]


async def test_without_looking_back_it_is_lost(server: Board) -> None:
    """The control: what finds the late row is the overlap."""
    assert await _late(server, server.plan.replace(overlap="0s")) == ["first", "early"]


async def test_a_late_row_is_seen_after_a_long_stop(server: Board) -> None:
    """Counted is the time between asking and asking, not the time that nobody asked."""
    intake, clock = ListIntake(), ManualClock()
    server.post("first")
    source = once(server.plan, clock)
    await source.deliver(intake)
    clock.advance(3600 * MICROS)
    with server.connect() as slow:
        server.post("late", connection=slow)
        server.post("early")
        await source.deliver(intake)
    clock.advance(24 * 3600 * MICROS)
    await once(server.plan, clock).deliver(intake)
    assert ids(intake) == ["first", "early", "late"]


def test_what_is_asked_again_stays_small() -> None:
    """An hour of rows, one a second, asked for each second: a minute of it is looked at again."""
    marks = Watermark(60 * MICROS)
    for second in range(3600):
        marks.record_mark(second * MICROS, second)
        marks.finish_poll(second * MICROS)
        assert len(marks.marks) < 40
    floor = marks.floor()
    assert isinstance(floor, int)
    assert 3600 - 70 < floor <= 3600 - 60


def test_a_page_begins_at_its_floor_and_behind_all_else(board: Board) -> None:
    board.post("c1", "c2", "c3")
    with contextlib.closing(open_table(board.plan)) as table:
        first, second, third = table.page(None, None, None, 9)
        assert table.page(second.number, first.number, None, 9) == [second, third]
        assert table.page(None, second.number, None, 9) == [third]
        assert table.page(first.number, None, second, 9) == [third]


# --- rows that are no events ---------------------------------------------------------------------


async def test_a_row_that_is_no_event_is_told_once(board: Board) -> None:
    board.post("bad", posted_at="yesterday")
    board.post("good")
    intake, clock = ListIntake(), ManualClock()
    for _ in range(2):
        await once(board.plan, clock).deliver(intake)
        clock.advance(MICROS)
    assert ids(intake) == ["good"]
    (refused,) = intake.refusals
    assert "'posted_at'" in refused.why
    assert "2026-03-01" in refused.why


@pytest.mark.parametrize(
    ("value", "time"),
    [(1772344800, "06:00:00.000000"), (1772344800.5, "06:00:00.500000"),
     (1772344800.123456, "06:00:00.123456"), (1772344799.9999996, "05:59:59.999999")],
)  # fmt: skip
async def test_seconds_may_have_a_fraction(board: Board, value: float, time: str) -> None:
    board.ask("ALTER TABLE comment ADD COLUMN at DOUBLE PRECISION")
    board.post("c", at=value)
    intake = ListIntake()
    await once(board.plan.replace(time_column="at")).deliver(intake)
    assert [event.time for event in intake.events] == [f"2026-03-01T{time}Z"]


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e300, -1e12, "999999999999.5", "1.5e3"])
def test_seconds_that_are_no_instant_are_refused(value: object) -> None:
    with pytest.raises(BadEvent, match="no instant"):
        row_instant(value, "at")
    assert row_instant(-0.5, "at") == "1969-12-31T23:59:59.500000Z"


async def test_too_large_a_row_does_not_stop_the_others(lite: Board) -> None:
    lite.post("long", text="x" * 5000)
    lite.post("short")
    intake = ListIntake()
    await once(lite.plan, max_bytes=4096).deliver(intake)
    assert ids(intake) == ["short"]
    assert "the limit is 4096" in intake.refusals[0].why


async def test_bytes_that_are_no_text_do_not_stop_the_others(lite: Board) -> None:
    lite.ask("INSERT INTO comment VALUES ('b', CAST(x'ff41' AS TEXT), x'00ff', '2026-03-01', 1)")
    lite.post("c", seq=2)
    intake = ListIntake()
    await once(lite.plan).deliver(intake)
    assert ids(intake) == ["b", "c"]
    assert intake.events[0].data["author"] == "�A"
    assert intake.events[0].data["text"] == "AP8="


async def test_values_of_postgres_have_a_json_form(server: Board) -> None:
    server.ask(
        "CREATE TABLE odd (id UUID, at TIMESTAMPTZ, n NUMERIC, f FLOAT8, far TIMESTAMP, j JSONB)"
    )
    server.ask(
        "INSERT INTO odd VALUES ('6f0c7f3e-0000-4000-8000-000000000001', '2026-03-01 07:00+01', "
        "0.10, 'NaN', 'infinity', '{\"a\": [1.5]}')"
    )
    # One that comes from the future would have every other row left out.
    server.ask(
        "INSERT INTO odd (id, at) VALUES ('6f0c7f3e-0000-4000-8000-000000000002', 'infinity')"
    )
    plan = server.plan.replace(
        table="public.odd", order_column="at", time_column="at", subject_column=None
    )
    intake = ListIntake()
    await once(plan).deliver(intake)
    (event,) = intake.events
    assert event.id == "public.odd/6f0c7f3e-0000-4000-8000-000000000001"
    assert event.time == "2026-03-01T06:00:00.000000Z"
    assert event.data["n"] == "0.10"
    assert (event.data["f"], event.data["far"]) == ("NaN", "infinity")
    assert event.data["j"] == {"a": ["1.5"]}


async def test_a_text_among_numbers_hides_no_number(lite: Board) -> None:
    """SQLite keeps any value in any column, and a text is greater than every number."""
    lite.ask("CREATE TABLE loose (id TEXT, seq)")
    lite.ask("INSERT INTO loose VALUES ('a', 1), ('x', 'zzz'), ('y', 9e999), ('z', NULL)")
    plan = lite.plan.replace(table="loose", time_column=None, subject_column=None)
    intake, source = ListIntake(), once(plan)
    await source.deliver(intake)
    lite.ask("INSERT INTO loose VALUES ('b', 2)")
    await source.deliver(intake)
    assert [event.id for event in intake.events] == ["loose/a", "loose/b"]
    assert "3 rows have no id or seq" in await probe(plan)
    lite.ask("DELETE FROM loose WHERE typeof(seq) <> 'text'")
    texts = ListIntake()
    await once(plan).deliver(texts)
    assert [event.id for event in texts.events] == ["loose/x"]


@pytest.mark.parametrize(
    ("kind", "first", "greatest", "second"),
    [
        ("NUMERIC", "1", "'NaN'", "2"),
        ("FLOAT8", "1", "'infinity'", "2"),
        ("DATE", "'2026-03-01'", "'infinity'", "'2026-03-02'"),
        ("TIMESTAMPTZ", "'2026-03-01'", "now() + interval '1 day'", "'2026-03-02'"),
        ("TIMESTAMP", "'2026-03-01'", "now() + interval '1 day'", "'2026-03-02'"),
        ("TIMESTAMP(3)", "'2026-03-01'", "'2206-03-01'", "'2026-03-02'"),
        ("DATE", "'2026-03-01'", "current_date + 2", "'2026-03-02'"),
    ],
)
async def test_the_greatest_of_all_hides_none_that_comes(
    server: Board, kind: str, first: str, greatest: str, second: str
) -> None:
    server.ask(f"CREATE TABLE loose (id CHAR(3), seq {kind})")
    server.ask(f"INSERT INTO loose VALUES ('a', {first}), ('x', {greatest})")
    plan = server.plan.replace(table="loose", time_column=None, subject_column=None, overlap="0s")
    intake, source = ListIntake(), once(plan)
    await source.deliver(intake)
    server.ask(f"INSERT INTO loose VALUES ('b', {second})")
    await source.deliver(intake)
    assert [event.data["id"].strip() for event in intake.events] == ["a", "b"]


# --- names are names -----------------------------------------------------------------------------


async def test_names_are_quoted_and_looked_up(board: Board) -> None:
    """A table may be called what it likes; a name that is not the catalogue's goes nowhere."""
    name = '"odd "" 50% --"'
    board.ask(f'CREATE TABLE {name} ("id;" TEXT, "number of" INTEGER)')
    board.ask(f"INSERT INTO {name} VALUES ('x', 1)")
    plan = board.plan.replace(table='odd " 50% --', id_column="id;", order_column="number of",
        time_column=None, subject_column=None,
    )  # fmt: skip
    intake = ListIntake()
    await once(plan).deliver(intake)
    assert [event.data for event in intake.events] == [{"id;": "x", "number of": 1}]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"table": "comments"}, "there is no table 'comments'"),
        ({"table": 'comment" WHERE 1=1 --'}, "there is no table"),
        ({"order_column": "seq, id"}, "has no column 'seq, id'"),
        ({"subject_column": "autor"}, "did you mean 'author'"),
        ({"columns": ("id", "txt")}, "has no column 'txt'"),
    ],
)
async def test_a_wrong_name_is_told(board: Board, given: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadFleet, match=expected):
        await once(board.plan.replace(**given)).deliver(ListIntake())


async def test_a_text_does_not_grow(server: Board) -> None:
    with pytest.raises(BadFleet, match="which does not grow"):
        await once(server.plan.replace(order_column="text")).deliver(ListIntake())


async def test_a_table_that_goes_for_a_while_is_waited_for(board: Board) -> None:
    """Only what was never right is wrong in the settings."""
    intake, clock = ListIntake(), ManualClock()
    source = once(board.plan, clock)
    board.post("a")
    await source.deliver(intake)
    board.ask("ALTER TABLE comment RENAME TO away")
    with pytest.raises(SourceUnavailable):
        await source.deliver(intake)
    board.ask("ALTER TABLE away RENAME TO comment")
    board.post("b")
    waiting = asyncio.create_task(source.deliver(intake))
    await clock.elapse(MICROS)
    await waiting
    assert ids(intake) == ["a", "b"]


# --- the file ------------------------------------------------------------------------------------


async def test_the_file_is_made_of_a_script_once(tmp_path: Path) -> None:
    script, path = tmp_path / "board.sql", tmp_path / "state" / "board.db"
    script.write_text(LITE + "INSERT INTO comment VALUES ('a', 'x', 'y', NULL, 1);")
    plan = PLAN.replace(path=str(path), create_from=str(script))
    intake = ListIntake()
    await once(plan).deliver(intake)
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("INSERT INTO comment VALUES ('b', 'x', 'y', NULL, 2)")
    await once(plan).deliver(intake)
    assert ids(intake) == ["a", "b"]
    assert _names(path.parent) == ["board.db"]


async def test_a_script_that_fails_leaves_no_file(tmp_path: Path) -> None:
    script, path = tmp_path / "board.sql", tmp_path / "board.db"
    script.write_text(LITE + "INSERT INTO nowhere VALUES (1);")
    plan = PLAN.replace(path=str(path), create_from=str(script))
    with pytest.raises(BadFleet, match="nowhere"):
        await once(plan).deliver(ListIntake())
    assert _names(tmp_path) == ["board.sql"]


def _names(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


def test_two_that_make_the_file_at_once(tmp_path: Path) -> None:
    """Both tables of one file are sources: the second must not put an empty file over the first."""
    script, path = tmp_path / "board.sql", tmp_path / "board.db"
    script.write_text(LITE)
    ready, threads = threading.Barrier(4), []
    for _ in range(4):

        def make() -> None:
            ready.wait()
            create_file(path, script, "sql:board")
            with contextlib.closing(sqlite3.connect(path, timeout=5)) as file, file:
                file.execute("INSERT INTO comment (id) VALUES (hex(randomblob(8)))")

        threads.append(threading.Thread(target=make))
        threads[-1].start()
    for thread in threads:
        thread.join()
    with contextlib.closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT count(*) FROM comment").fetchone() == (4,)


def test_the_file_is_whole_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, path = tmp_path / "board.sql", tmp_path / "board.db"
    script.write_text(LITE)
    synced: list[tuple[bool, int]] = []

    def seen(what: Path) -> None:
        sync(what)
        if what.is_file():
            with contextlib.closing(sqlite3.connect(what)) as file:
                (count,) = file.execute("SELECT count(*) FROM sqlite_master").fetchone()
            left = what.with_name(what.name + "-journal").exists()
            synced.append((path.exists() or left, count))

    monkeypatch.setattr(sqlite, "sync", seen)
    create_file(path, script, "sql:board")
    ((named, count),) = synced
    assert not named
    assert count > 0


async def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    plan = PLAN.replace(path=str(tmp_path / "none.db"))
    with pytest.raises(BadFleet, match="create_from"):
        await once(plan).deliver(ListIntake())
    assert not (tmp_path / "none.db").exists()


async def test_it_never_writes(lite: Board) -> None:
    """A view whose trigger or function writes is the nearest that a table comes to a command."""
    lite.post("a")
    assert lite.plan.path is not None
    file = Path(lite.plan.path)
    before = await asyncio.to_thread(file.read_bytes)
    await once(lite.plan).deliver(ListIntake())
    assert await asyncio.to_thread(file.read_bytes) == before
    table = module.open_table(lite.plan)
    any_table: Any = table
    with pytest.raises(SourceUnavailable, match=r"readonly|read-only"):
        any_table._rows("DELETE FROM comment")
    table.close()


# --- settings ------------------------------------------------------------------------------------

TOML = """
fleet = "harbour"

[[sources]]
kind = "sql"
name = "comments"
table = "comment"
type = "comment.posted"
id_column = "id"
order_column = "seq"
"""


def test_the_settings_name_it(tmp_path: Path) -> None:
    file = tmp_path / "vedette.toml"
    file.write_text(TOML + 'path = "@state/board.db"\ncreate_from = "samples/board.sql"\n')
    (plan,) = load_settings(file).sources
    assert isinstance(plan, SqlFile)
    assert plan.path == str(tmp_path / ".vedette" / "board.db")
    assert plan.create_from == str(tmp_path / "samples" / "board.sql")
    assert plan.overlap_us == 0
    file.write_text(TOML + 'url_env = "BOARD_URL"\n')
    (plan,) = load_settings(file).sources
    assert isinstance(plan, SqlFile)
    assert plan.overlap_us == 60 * MICROS


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", "needs one database"),
        ('path = "a.db"\nurl_env = "B"', "needs one database"),
        ('url_env = "B"\ncreate_from = "a.sql"', "is for a file of SQLite only"),
        ('path = "a.db"\ncolumns = ["text"]', "lacks the id 'id'"),
        ('path = "a.db"\noverlap = "soon"', "is not a duration"),
    ],
)
def test_wrong_settings_are_told(tmp_path: Path, more: str, expected: str) -> None:
    file = tmp_path / "vedette.toml"
    file.write_text(TOML + more + "\n")
    with pytest.raises(BadFleet, match=expected) as found:
        load_settings(file)
    assert (found.value.where or "").startswith("vedette.toml:")


async def test_probe_says_what_is_there(board: Board) -> None:
    assert await probe(board.plan) == "table comment answers, no row yet"
    board.post("a")
    board.ask("INSERT INTO comment (id, seq) VALUES ('n', NULL)" if board.kind == "sqlite"
              else "ALTER TABLE comment ALTER seq DROP NOT NULL")  # fmt: skip
    answer = await probe(board.plan)
    assert "the last row is at 1" in answer
    assert ("1 rows have no id or seq" in answer) == (board.kind == "sqlite")


@pytest.mark.parametrize("word", ["ge%heim", "geheim%zz"])
async def test_a_url_that_cannot_be_read_is_not_quoted(
    monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """The library's own words hold the password; ours say what to write."""
    monkeypatch.setenv("BOARD_URL", f"postgresql://me:{word}@127.0.0.1:1/none")
    plan = PLAN.replace(url_env="BOARD_URL")
    with pytest.raises(BadFleet, match="the URL cannot be read") as found:
        await once(plan).deliver(ListIntake())
    assert "%25" in (found.value.mend or "")
    text = "".join(traceback.format_exception(found.value))
    assert "heim" not in text


def test_no_error_of_the_database_tells_the_password(server: Board) -> None:
    """Not even one that quotes it, cut off in the middle of it."""
    from psycopg.conninfo import conninfo_to_dict

    word = str(conninfo_to_dict(server.url)["password"])
    with contextlib.closing(open_table(server.plan)) as table:
        assert isinstance(table, PostgresTable)
        for said in (word, server.url, "x" * 240 + word):
            with pytest.raises((BadFleet, SourceUnavailable)) as found:
                table._rows("SELECT %s::text::int", (said,))
            text = "".join(traceback.format_exception(found.value))
            assert ("[hid" in text, word in text) == (True, False)


@contextlib.contextmanager
def silent(answers: Sequence[bytes] = ()) -> Iterator[int]:
    """Take connections and answer each thing that is said with one of these, then nothing more."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = listening.accept()
                lines.append(line)
                for answer in answers:
                    line.recv(4096)
                    line.sendall(answer)

    lines: list[socket.socket] = []
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        for line in (*lines, listening):
            line.close()


# AuthenticationOk, and ReadyForQuery: it is logged in.
WELCOME = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I"


@pytest.mark.parametrize("answers", [(), (b"N",), (b"N", WELCOME)])
async def test_a_server_that_falls_silent_is_given_up(
    answers: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the login, within it, and when it is asked; nobody waits for longer."""
    monkeypatch.setattr(postgres, "_CONNECT_S", 2)  # the library's least
    monkeypatch.setattr(postgres, "_ANSWER_S", 0.1)
    plan = PLAN.replace(url_env="BOARD_URL")
    with silent(answers) as port:
        monkeypatch.setenv("BOARD_URL", f"postgresql://me:geheim@127.0.0.1:{port}/none")
        async with asyncio.timeout(8):
            with pytest.raises(SourceUnavailable):
                await once(plan).deliver(ListIntake())


async def test_a_secret_that_cannot_be_read_for_a_while_is_waited_for(
    server: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.post("c1")
    away = [True]

    def url(plan: SqlFile) -> str:
        if away[0]:
            raise Unavailable("Secret Manager does not answer")
        return server.url

    monkeypatch.setattr(SqlFile, "url", url)
    intake = ListIntake()
    with pytest.raises(SourceUnavailable, match="Secret Manager"):
        await once(server.plan).deliver(intake)
    away[0] = False
    await once(server.plan).deliver(intake)
    assert ids(intake) == ["c1"]


async def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The password of the URL is in no error."""
    monkeypatch.setenv("BOARD_URL", "postgresql://me:geheim@127.0.0.1:1/none")
    plan = PLAN.replace(url_env="BOARD_URL")
    with pytest.raises(SourceUnavailable) as found:
        await once(plan).deliver(ListIntake())
    assert "geheim" not in str(found.value)
