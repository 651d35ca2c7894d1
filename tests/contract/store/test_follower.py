"""The read model is made beside the line: killed, rebuilt, behind, followed by two or by nobody.

Whatever happens, its rows and lists are what the entries come to, on every store.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests import pg
from tests.segments import is_in

from vedette.domain.base import machine
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import StoreFailed, Unavailable
from vedette.domain.decision import Decision
from vedette.domain.entry import Body, Draft
from vedette.domain.erasure import ErasureTarget
from vedette.store.postgres import PostgresReader, PostgresStore
from vedette.store.postgres.database import PostgresDatabase
from vedette.store.postgres.view_tables import ViewTables
from vedette.store.reader import StoreReader
from vedette.store.readmodel.follower import follow
from vedette.store.readmodel.model import ReadModel, ViewHome, ViewWriter
from vedette.store.row_check import RowMismatch
from vedette.store.sqlite import SqliteReader, SqliteStore
from vedette.store.sqlite.view_file import ViewFile
from vedette.testing.clock import ManualClock
from vedette.testing.sample_steps import (
    accept_events,
    action,
    closing_step,
    decision_entry,
    entry,
    event,
    step,
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PERMIT = Decision("permit", "permit.small", ("p",))
AnyStore = PostgresStore | SqliteStore


class Place:
    """Where a store lies, and how it is opened: `url` is None on SQLite."""

    def __init__(self, folder: Path, url: str | None) -> None:
        self.folder, self.url = folder, url
        self._open: list[Any] = []

    def store(self) -> AnyStore:
        names: dict[str, Any] = {"fleet": "harbour", "key": KEY, "key_name": "vedette/harbour"}
        names["now_us"] = ManualClock().now_us
        made: AnyStore
        if self.url is None:
            made = SqliteStore(self.folder, synchronous="OFF", **names)
        else:
            made = PostgresStore(self.url, self.folder, **names)
        self._open.append(made)
        return made

    def home(self) -> ViewHome:
        made: ViewHome = (
            ViewFile(self.folder)
            if self.url is None
            else ViewTables(partial(PostgresDatabase, self.url, name="view"))
        )
        self._open.append(made)
        return made

    def reader(self) -> StoreReader:
        made = SqliteReader(self.folder) if self.url is None else PostgresReader(self.url)
        self._open.append(made)
        return made

    def close(self) -> None:
        for one in reversed(self._open):
            one.close()


@pytest.fixture(params=["postgres", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, pg.database_for(tmp_path) if request.param == "postgres" else None)
    yield made
    made.close()


@pytest.fixture
def store(place: Place) -> AnyStore:
    return place.store()


async def work(store: AnyStore, first: int, number: int) -> None:
    """Have some events come to a permit and an effect, and some to nothing."""
    for at in range(first, first + number):
        (run,) = await accept_events(store, event(at))
        if at % 3:
            await store.steps.commit(closing_step(store, run))
            continue
        row = action(run)
        drafts = [
            entry(run, "turn.reasoned", text="t", turn=1),
            decision_entry(run, row, PERMIT, back=1),
            entry(run, "effect.done", back=1, action=row.id, tool=row.tool),
            entry(run, "run.closed", back=1, settled=1),
        ]
        await store.steps.commit(step(store, run, *drafts, actions=[row], turn=1, state="done"))


@contextmanager
def follower(home: ViewHome, poll_s: float | None = None) -> Iterator[Callable[[], None]]:
    """Have a thread follow; yields what wakes it. What it raises is raised here."""
    reading, writing = os.pipe()
    pipe = [writing]
    raised: list[BaseException] = []

    def run() -> None:
        try:
            follow(home, reading, poll_s)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: _wake(pipe)
    finally:
        os.close(pipe.pop())
        thread.join(30)
        os.close(reading)
    assert not thread.is_alive()
    assert raised == []


def _wake(pipe: list[int]) -> None:
    if pipe:
        os.write(pipe[0], b"\1")


def whole(store: StoreReader) -> bool:
    """Say whether rows and lists are what the entries come to, and the model is at their end."""
    assert store.view.refresh().entries == 0
    assert store.tables.find_wrong_rows() == []
    every = [orjson.loads(raw) for _, raw in store.ledger.entries_after(0, 10_000)]
    for filters in (
        {"agent": "watcher"}, {"agent": "watcher", "kind": "run.closed"}, {"kind": "run.closed"},
        {"kind": "action.decided"}, {"rule": "permit.small", "outcome": "permit"},
        {"policy_rev": 1, "outcome": "permit"}, {"actor": "person:kim"},
    ):  # fmt: skip
        page = store.ledger.entries_page(filters, before=None, after=None, limit=10_000)
        fitting = [one["seq"] for one in every if all(one.get(k) == v for k, v in filters.items())]
        assert [seq for seq, _ in page] == fitting[::-1], filters
    return True


# --- no follower ----------------------------------------------------------------------------


async def test_without_a_follower_a_reader_makes_the_model(place: Place, store: AnyStore) -> None:
    await work(store, 0, 9)
    told = store.tables.lag(0)
    assert (told["reached"], told["behind"]) == (0, store.ledger.last_seq())
    assert not told["followed"]
    assert place.reader().tables.counts() == {
        "watcher": {"run.done": 9, "decided.permit": 3, "effect.done": 3}
    }
    assert store.tables.lag(0)["behind"] == 0
    assert whole(store)


async def test_who_wrote_reads_what_it_wrote(place: Place, store: AnyStore) -> None:
    reader = place.reader()
    for at in range(4):
        await work(store, at, 1)
        assert reader.tables.event_counts() == (at + 1, 0)
        assert store.tables.event_counts() == (at + 1, 0)


async def test_who_may_not_write_reads_what_there_is(
    place: Place, store: AnyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await work(store, 0, 3)
    assert store.tables.event_counts() == (3, 0)
    await work(store, 3, 3)

    def refuse(*_: object) -> None:
        raise StoreFailed("this may not be written")

    reader = place.reader()
    with monkeypatch.context() as patch:
        patch.setattr(ViewWriter, "advance", refuse)
        assert reader.tables.event_counts() == (3, 0)
        assert reader.view.failure
        assert reader.tables.lag(0)["behind"] > 0
    assert reader.tables.event_counts() == (6, 0)


# --- killed ---------------------------------------------------------------------------------


# Folds a batch, and dies in the middle of the next.
KILLED = """
import json, os, sys
from vedette.app.follower_main import view_home
from vedette.domain.base import failpoint
from vedette.store.readmodel.model import ViewWriter

def die(point):
    if point == sys.argv[2]:
        os._exit(9)

writer = ViewWriter(*view_home(json.loads(sys.argv[1])).open())
writer.advance(7)
failpoint.hook = die
writer.advance(7)
"""


def _die_at(place: Place, point: str) -> int:
    where = {"state": str(place.folder)} if place.url is None else {"url": place.url}
    command = [sys.executable, "-c", KILLED, orjson.dumps(where).decode(), point]
    return subprocess.run(command, check=False).returncode


@pytest.mark.parametrize("when", ["before", "mid", "after"])
async def test_a_kill_loses_nothing_and_repeats_nothing(
    place: Place, store: AnyStore, when: str
) -> None:
    await work(store, 0, 30)
    reached: list[int] = []
    for _ in range(2):
        assert _die_at(place, f"view:{when}") == 9
        reached.append(store.view.lag().reached)
    assert 0 < reached[0] < reached[1] < store.ledger.last_seq()
    assert whole(store)


# --- rebuilt --------------------------------------------------------------------------------


async def test_it_is_rebuilt_while_the_fleet_runs(place: Place, store: AnyStore) -> None:
    await work(store, 0, 30)
    assert whole(store)
    with follower(place.home()) as wake:
        store.subscribe(wake)
        reader = place.reader()
        for at in range(30, 42, 3):
            await asyncio.gather(work(store, at, 3), asyncio.to_thread(reader.view.rebuild))
        await work(store, 42, 3)
        assert whole(store)
    assert store.tables.event_counts() == (45, 0)


async def test_a_model_of_another_history_is_begun_anew(place: Place, store: AnyStore) -> None:
    """As of before a restore: it has reached an entry that is another one now."""
    await work(store, 0, 9)
    assert whole(store)
    reached = store.view.lag().reached
    store.view.stored_rows("UPDATE view_row SET version=7 RETURNING 1")
    store.view.stored_rows("UPDATE view_state SET mark='another' RETURNING 1")
    assert store.view.lag().reached == 0
    assert place.reader().view.refresh().reached == reached
    assert whole(store)


async def test_a_model_ahead_of_its_ledger_is_begun_anew(place: Place, store: AnyStore) -> None:
    await work(store, 0, 9)
    assert whole(store)
    store.view.stored_rows("UPDATE view_state SET reached=reached+1000 RETURNING 1")
    assert whole(place.reader())


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
@pytest.mark.parametrize("spoilt", ["no database at all", "another program's", "gone"])
async def test_a_file_that_is_none_is_made_anew(place: Place, store: AnyStore, spoilt: str) -> None:
    await work(store, 0, 9)
    assert whole(store)
    reader = place.reader()
    assert whole(reader)
    path = place.folder / "view.db"
    if spoilt == "another program's":
        store.view.stored_rows("PRAGMA user_version=99")
    else:
        for file in place.folder.glob("view.db*"):
            file.unlink()
        if spoilt == "no database at all":
            path.write_bytes(b"this was something else " * 100)
    fresh = place.reader()
    assert whole(fresh)
    # Who had the old file open goes over to the new one.
    await work(store, 9, 3)
    assert fresh.tables.event_counts() == (12, 0)
    with reader.view.without_waiting():
        assert reader.tables.event_counts() == (12, 0)
    assert whole(reader)


async def test_an_edited_model_is_found(place: Place, store: AnyStore) -> None:
    await work(store, 0, 9)
    assert whole(store)

    def found() -> list[RowMismatch]:
        # The rows that the samples leave of actions are not looked at here.
        return [odd for odd in store.ledger.row_mismatches() if odd.table == "view_row"]

    assert found() == []
    store.view.stored_rows("UPDATE view_row SET version=7 WHERE name='agent' RETURNING 1")
    (odd,) = found()
    assert (odd.table, odd.row, odd.column, odd.actual) == (
        "view_row", "agent watcher", "version", 7,
    )  # fmt: skip
    # One that lags is right as far as it goes.
    assert store.view.rebuild() > 0
    await work(store, 9, 3)
    assert found() == []


# --- followed -------------------------------------------------------------------------------


async def test_a_follower_is_woken_and_readers_wait_for_it(place: Place, store: AnyStore) -> None:
    reader = place.reader()
    # It folds nothing by itself: what it reads the follower has made.
    reader.view.fold_s, reader.view.patience_s = 0.0, 30.0
    with follower(place.home()) as wake:
        store.subscribe(wake)
        for at in range(0, 12, 3):
            await work(store, at, 3)
            wake()
            counted = await asyncio.to_thread(reader.tables.event_counts)
            assert counted == (at + 3, 0)
        assert store.tables.lag(0)["followed"]
    assert not store.tables.lag(0)["followed"]
    assert whole(store)


async def test_two_followers_take_turns(place: Place, store: AnyStore) -> None:
    with follower(place.home()) as wake_second:
        with follower(place.home()) as wake_first:
            for wake in (wake_first, wake_second):
                store.subscribe(wake)
            await work(store, 0, 6)
            assert whole(store)
        # The first has ended; the other one takes the lock, which it looks for now and then.
        reader = place.reader()
        reader.view.fold_s, reader.view.patience_s = 0.0, 30.0
        await work(store, 6, 6)
        assert (await asyncio.to_thread(reader.tables.event_counts)) == (12, 0)
    assert whole(store)


async def test_two_who_write_at_once_come_to_the_same(place: Place, store: AnyStore) -> None:
    """The lock spares work; what keeps the rows right is each writer's own transaction."""
    await work(store, 0, 24)
    one, other = ViewWriter(*place.home().open()), ViewWriter(*place.home().open())
    turn = 0
    while (one, other)[turn % 2].advance(5):
        turn += 1
    assert turn > 6
    assert whole(store)


async def test_a_wait_has_an_end_and_is_told(place: Place, store: AnyStore) -> None:
    """A follower that hangs keeps nobody: what it has not folded is told."""
    await work(store, 0, 3)
    assert store.tables.event_counts() == (3, 0)
    hung = place.home()
    hung.open()
    assert hung.try_lock()
    await work(store, 3, 3)
    reader = place.reader()
    reader.view.patience_s = 0.05
    assert reader.tables.event_counts() == (3, 0)
    # Once: whoever asks several questions does not wait for each.
    reader.view.patience_s = 10_000.0
    lag = reader.view.refresh()
    assert (lag.reached, lag.entries) == (lag.head - lag.entries, lag.head - lag.reached)
    assert lag.entries > 0
    assert reader.tables.lag(2**51)["seconds"] > 0
    hung.unlock()
    assert reader.tables.event_counts() == (6, 0)


async def test_a_loop_with_a_follower_waits_for_nothing(place: Place, store: AnyStore) -> None:
    await work(store, 0, 3)
    with store.view.without_waiting():
        assert store.tables.event_counts() == (0, 0)
    assert store.tables.event_counts() == (3, 0)


async def test_who_asks_for_a_follower_takes_no_lock(
    place: Place, store: AnyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two who ask at once tell each other of one."""
    await work(store, 0, 3)
    home = place.home()
    assert not store.view.is_followed()
    assert home.try_lock()
    assert store.view.is_followed()
    home.unlock()

    def refuse(_: object) -> bool:
        raise AssertionError("the lock is taken")

    monkeypatch.setattr(type(home), "try_lock", refuse)
    assert not store.view.is_followed()


class _Held:
    """A home whose lock somebody else has; `asked` says when it was asked for."""

    def __init__(self, on_try: Callable[[int], None]) -> None:
        self.asked: list[float] = []
        self._on_try = on_try

    def open(self) -> tuple[Any, Any]:
        return None, None

    def try_lock(self) -> bool:
        self.asked.append(machine.monotonic_s())
        self._on_try(len(self.asked))
        return False

    def recover(self, error: Exception) -> bool:
        return isinstance(error, ValueError)

    def close(self) -> None:
        pass


def test_who_waits_for_the_lock_does_not_ask_at_each_commit() -> None:
    reading, writing = os.pipe()

    def wake(number: int) -> None:
        if number < 3:
            os.write(writing, b"\1" * 100)
        else:
            os.close(writing)

    home = _Held(wake)
    follow(home, reading)  # type: ignore[arg-type]
    os.close(reading)
    assert home.asked[2] - home.asked[0] > 0.4


def test_a_follower_that_recovers_again_and_again_sees_its_end() -> None:
    reading, writing = os.pipe()

    def fail(number: int) -> None:
        assert number < 3
        if number == 1:
            os.close(writing)
        raise ValueError("spoilt")

    home = _Held(fail)
    follow(home, reading)  # type: ignore[arg-type]
    os.close(reading)
    assert len(home.asked) == 1


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
async def test_a_server_that_is_away_is_a_failure_of_the_store(
    place: Place, store: AnyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fleet runs on through it by that one error; it does not wait for it at each question."""
    await work(store, 0, 3)
    assert place.url is not None
    home = ViewTables(partial(PostgresDatabase, place.url, name="view", patience_s=0.05))
    model = ReadModel(home)
    assert model.refresh().entries == 0
    tried: list[float] = []

    def refuse(_: object) -> None:
        tried.append(machine.monotonic_s())
        raise Unavailable("PostgreSQL does not answer: refused")

    questions: list[Callable[[], object]] = [
        lambda: model.rows("SELECT 1"), model.lag, model.is_followed, model.refresh,
    ]  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(PostgresDatabase, "_connect", refuse)
        home.open()[0].close()
        with model.without_waiting():
            assert not home.is_current()
            assert tried == []
            for ask in questions * 3:
                with pytest.raises(StoreFailed, match="does not answer"):
                    ask()
        assert len(tried) == 1
        # As far as the first question ever: there is no connection yet.
        with pytest.raises(StoreFailed, match="does not answer"):
            ReadModel(ViewTables(partial(PostgresDatabase, place.url, name="view"))).lag()
    monkeypatch.setattr(machine, "monotonic_s", lambda: tried[0] + 60)
    assert model.refresh().entries == 0
    model.close()


# --- what is in it --------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_no_content_is_in_the_model(place: Place, store: AnyStore) -> None:
    """So nothing has to be erased in it. The control: the store has the content until then."""
    secret = "a word that nobody else says"
    (run,) = await accept_events(store, event(1))
    turn = entry(run, "turn.reasoned", text=secret, turn=1)
    await store.steps.commit(step(store, run, turn, turn=1, state="done"))
    assert whole(store)

    def holding() -> set[str]:
        files = (path for path in place.folder.iterdir() if path.is_file())
        return {path.name for path in files if is_in(secret.encode(), path.read_bytes())}

    assert {name.partition("-")[0] for name in holding()} == {"store.db"}
    draft = Draft(
        "body.erased", {"actor": "person:kim"}, body=Body(canonical_json({"reason": "x"}))
    )
    await store.commands.erase(
        ErasureTarget.of(event=run.event, subject=None, entry=None), draft,
        stateless={"watcher"},
    )  # fmt: skip
    assert whole(store)
    assert holding() == set()


def test_a_store_that_is_not_there_makes_no_model(tmp_path: Path) -> None:
    model = ReadModel()
    with pytest.raises(StoreFailed, match="no lists are kept"):
        model.refresh()
    assert not model.can_be_compared()
