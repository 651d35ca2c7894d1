"""Who writes a group: the event loop if it is little work, the writer's thread if it is much."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from vedette.domain.base.errors import StoreFailed
from vedette.domain.run import CommitStatus
from vedette.store import witness
from vedette.store.group_commit import GATHER_TURNS
from vedette.store.sqlite import FileHooks, SqliteStore
from vedette.testing.clock import ManualClock
from vedette.testing.sample_steps import accept_events, closing_step, entry, event, step

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(
        tmp_path / "state", fleet="harbour", key=KEY, key_name="vedette/harbour",
        now_us=ManualClock().now_us,
    )  # fmt: skip
    yield opened
    opened.close()


@pytest.fixture
def committers(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that made groups durable."""
    seen: list[str] = []
    commit = store.parts.database.commit

    def noted() -> None:
        seen.append(threading.current_thread().name)
        commit()

    monkeypatch.setattr(store.parts.database, "commit", noted)
    return seen


def who() -> str:
    return threading.current_thread().name


async def test_little_is_written_by_the_loop_and_made_durable_by_the_thread(
    store: SqliteStore, committers: list[str]
) -> None:
    loop, enqueue = who(), store.writer.enqueue
    assert await enqueue(who, in_savepoint=False) == loop
    assert await enqueue(who, in_savepoint=False, size=FileHooks.inline_limit) == loop
    assert committers == ["vedette-writer"] * 2
    # The controls: much, and what may write as it goes, would hold up the loop.
    assert (
        await enqueue(who, in_savepoint=False, size=FileHooks.inline_limit + 1) == "vedette-writer"
    )
    assert await enqueue(who, in_savepoint=True) == "vedette-writer"
    many = [enqueue(who, in_savepoint=False) for _ in range(FileHooks.inline_limit + 1)]
    assert set(await asyncio.gather(*many)) == {"vedette-writer"}
    mixed = [enqueue(who, in_savepoint=guarded) for guarded in (False, True)]
    assert set(await asyncio.gather(*mixed)) == {"vedette-writer"}


async def test_what_is_a_few_turns_of_the_loop_behind_shares_the_commit(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vedette.store.group_commit.GATHER_S", 60.0)
    groups = store.writer.groups
    first = store.writer.enqueue(who, in_savepoint=False)
    for _ in range(GATHER_TURNS - 1):
        await asyncio.sleep(0)
    await asyncio.gather(first, store.writer.enqueue(who, in_savepoint=False))
    assert store.writer.groups == groups + 1
    # The control: a loop that is busy for long does not let anybody wait for its turns.
    monkeypatch.setattr("vedette.store.group_commit.GATHER_S", 0.0)
    first = store.writer.enqueue(who, in_savepoint=False)
    for _ in range(GATHER_TURNS - 1):
        await asyncio.sleep(0)
    await asyncio.gather(first, store.writer.enqueue(who, in_savepoint=False))
    assert store.writer.groups == groups + 3


async def test_a_bad_row_of_what_the_loop_wrote_loses_only_its_own_item(
    store: SqliteStore,
) -> None:
    good, other = await accept_events(store, event(1), event(2))

    def bad() -> None:
        store.parts.buffer.events.append((None, None, None, None))  # type: ignore[arg-type]

    first = store.steps.send(closing_step(store, good))
    refused = store.writer.enqueue(bad, in_savepoint=False)
    last = store.steps.send(closing_step(store, other))
    with pytest.raises(apsw.ConstraintError):
        await refused
    assert [(await first).status, (await last).status] == [CommitStatus.COMMITTED] * 2
    assert (store.steps.is_ready, store.ledger.last_seq()) == (True, 4)


class Ends(BaseException):
    """What is no error of an item: somebody ends the program."""


async def test_a_group_that_is_interrupted_on_the_loop_is_lost_whole(store: SqliteStore) -> None:
    (run,) = await accept_events(store, event(1))
    heard: list[BaseException] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, told: heard.append(told["exception"]))

    def ends() -> None:
        raise Ends

    step, ended = (
        store.steps.send(closing_step(store, run)),
        store.writer.enqueue(ends, in_savepoint=False),
    )
    for lost in (step, ended):
        with pytest.raises(StoreFailed, match="interrupted"):
            await lost
    assert [type(each) for each in heard] == [Ends]
    assert (await store.steps.commit(closing_step(store, run))).status is CommitStatus.COMMITTED
    assert (store.steps.is_ready, store.ledger.last_seq()) == (True, 2)


async def test_the_loop_waits_for_nobody_who_holds_the_file(
    store: SqliteStore, tmp_path: Path
) -> None:
    other = apsw.Connection(str(tmp_path / "state" / "store.db"))
    other.execute("BEGIN IMMEDIATE")
    written = store.writer.enqueue(who, in_savepoint=False)
    # Were it the loop that waits, the one who lets go here would never come to it.
    for _ in range(2 * GATHER_TURNS):
        await asyncio.sleep(0)
    assert not written.done()
    other.execute("ROLLBACK")
    assert await written == "vedette-writer"
    other.close()


def test_a_loop_that_ended_leaves_nothing_to_wait_for(store: SqliteStore) -> None:
    async def leave() -> None:
        store.writer.enqueue(who, in_savepoint=False)

    async def come() -> str:
        return await asyncio.wait_for(store.writer.enqueue(who, in_savepoint=False), 10)

    for work in (leave, come):
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(work())
        finally:
            loop.close()


async def test_what_is_queued_at_the_end_is_committed(tmp_path: Path) -> None:
    store = SqliteStore(
        tmp_path / "state", fleet="harbour", key=KEY, key_name="vedette/harbour",
        now_us=ManualClock().now_us,
    )  # fmt: skip
    answer = store.writer.enqueue(who, in_savepoint=False)
    store.close()
    assert await answer == "vedette-writer"
    with pytest.raises(StoreFailed, match="closed"):
        store.writer.enqueue(who, in_savepoint=False)


async def test_what_is_large_is_written_by_the_thread(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few items may be much work: the loop would stand still for it."""
    wrote, write = [], store.writer._write

    def noted(*given: Any) -> Any:
        wrote.append(who())
        return write(*given)

    monkeypatch.setattr(store.writer, "_write", noted)
    loop, long = who(), "x" * 300_000
    (small,) = await accept_events(store, event(1))
    (large,) = await accept_events(store, replace(event(2), data={"value": long}))
    told = entry(small, "turn.reasoned", text=long, label="loud", confidence_milli=1)
    await store.steps.commit(step(store, small, told, turn=1, state="ready"))
    await store.steps.commit(closing_step(store, large))
    assert wrote == [loop, "vedette-writer", "vedette-writer", loop]


def test_answers_reach_those_behind_a_loop_that_is_gone(store: SqliteStore) -> None:
    gone = asyncio.new_event_loop()
    left: asyncio.Future[str] = gone.create_future()
    left.add_done_callback(lambda _: None)  # somebody waits for it still
    gone.close()

    async def answers() -> str:
        loop = asyncio.get_running_loop()
        behind: asyncio.Future[str] = loop.create_future()
        store.writer._resolve_items(loop, [(left, "one", None), (behind, "two", None)], False)
        return await behind

    assert asyncio.run(answers()) == "two"


async def test_a_store_closes_though_its_loop_was_ended_in_the_midst_of_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between taking a group and beginning to write it, say by Ctrl-C."""
    store = SqliteStore(
        tmp_path / "state", fleet="harbour", key=KEY, key_name="vedette/harbour",
        now_us=ManualClock().now_us,
    )  # fmt: skip
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)

    def ends(_: object) -> None:
        raise Ends

    monkeypatch.setattr(store.writer, "_write_inline", ends)
    lost = store.writer.enqueue(who, in_savepoint=False)
    for _ in range(2 * GATHER_TURNS):
        await asyncio.sleep(0)
    store.close()
    with pytest.raises(StoreFailed, match="interrupted"):
        await lost


def test_the_witness_takes_a_note_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, write = tmp_path / "witness.log", os.write
    witness.append_note(file, "one\n")
    monkeypatch.setattr(os, "write", lambda to, raw: write(to, raw[:3]))
    with pytest.raises(OSError, match="no more"):
        witness.append_note(file, "two\n")
    assert file.read_text() == "one\n\n"
