"""What the SQLite store has to prove for itself: crashes, full disks, cut files, the witness."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import apsw
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.namespaces import may_run, need
from tests.segments import remove_entries

from vedette.adapters.ledger_export import verify_store
from vedette.domain.base.errors import BadStore, StoreBusy, StoreFailed
from vedette.domain.bundle import Bundle
from vedette.domain.entry import Draft
from vedette.domain.run import CommitResult, CommitStatus, Run, Step
from vedette.ledger.merkle import read_notes, verifier_key
from vedette.store.schema import NEWEST_FRONTIER
from vedette.store.sqlite import SqliteReader, SqliteStore
from vedette.store.witness import append_note, read_last_checkpoint
from vedette.testing.clock import ManualClock
from vedette.testing.sample_steps import accept_events, closing_step, entry, event, step

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
NAME = "vedette/harbour"
VERIFIER = verifier_key(NAME, KEY.public_key().public_bytes_raw())
CHILD = Path(__file__).parent / "store_child.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


def open_store(folder: Path) -> SqliteStore:
    clock = ManualClock()
    return SqliteStore(folder, fleet="harbour", key=KEY, key_name=NAME, now_us=clock.now_us)


@pytest.fixture
def store(folder: Path) -> Iterator[SqliteStore]:
    opened = open_store(folder)
    yield opened
    opened.close()


def raw(folder: Path) -> apsw.Connection:
    """Open the file of a store that nobody runs, to do to it what no program of ours does."""
    return apsw.Connection(str(folder / "store.db"))


async def filled(folder: Path, events: int = 6) -> list[str]:
    """Make a store of a few runs, one commit each; return the ids of the runs."""
    store = open_store(folder)
    runs = []
    for number in range(events):
        (run,) = await accept_events(store, event(number))
        await store.steps.commit(closing_step(store, run))
        runs.append(run.id)
    store.close()
    return runs


def whole(folder: Path) -> int:
    """Verify a store against its witness and hold its tables together; return its size."""
    store = SqliteReader(folder)
    try:
        report = verify_store(store.ledger, VERIFIER, folder / "witness.log")
        assert report.findings == ()
        for run in store.runs.runs_page(agent=None, state=None, before=None, limit=10**6):
            assert len(store.ledger.entries("run", run.id)) == run.entries
            assert store.runs.event(run.event) is not None
        return report.size
    finally:
        store.close()


# --- group commit ---------------------------------------------------------------------------


class Gate:
    """Keeps the writer's thread inside an open transaction until it is opened."""

    def __init__(self, store: SqliteStore) -> None:
        self.entered, self._open = threading.Event(), threading.Event()
        self.future = store.writer.enqueue(self._work, in_savepoint=True)

    def _work(self) -> None:
        self.entered.set()
        assert self._open.wait(30)

    def open(self) -> None:
        self._open.set()


async def test_no_answer_is_given_before_its_commit(store: SqliteStore, folder: Path) -> None:
    (run,) = await accept_events(store, event(1))
    made = closing_step(store, run)
    seen: list[tuple[CommitResult, int]] = []

    def look(future: asyncio.Future[CommitResult]) -> None:
        other = SqliteReader(folder)
        seen.append((future.result(), other.ledger.last_seq()))
        other.close()

    blocked = asyncio.Event()

    def work() -> CommitResult:
        committed = store.parts.steps.commit(made)
        loop.call_soon_threadsafe(blocked.set)
        assert hold.wait(30)
        return committed

    loop, hold = asyncio.get_running_loop(), threading.Event()
    answer = store.writer.enqueue(work, in_savepoint=True)
    answer.add_done_callback(look)
    await blocked.wait()
    # The control: all is written, nothing committed. Nobody sees it and nobody is answered.
    other = SqliteReader(folder)
    assert (other.ledger.last_seq(), answer.done()) == (1, False)
    other.close()
    hold.set()
    await answer
    await asyncio.sleep(0)
    assert seen == [(CommitResult(CommitStatus.COMMITTED, 2), 2)]


async def test_those_who_come_together_share_one_commit(store: SqliteStore) -> None:
    runs = await accept_events(store, *(event(n) for n in range(20)))
    groups = store.writer.groups
    gate = Gate(store)
    await asyncio.to_thread(gate.entered.wait, 30)
    steps = [asyncio.ensure_future(store.steps.commit(closing_step(store, run))) for run in runs]
    await asyncio.sleep(0)
    gate.open()
    answers = await asyncio.gather(*steps)
    assert {answer.status for answer in answers} == {CommitStatus.COMMITTED}
    assert store.writer.groups == groups + 2  # the gate's own, and one for all twenty


async def test_one_bad_step_of_a_group_fails_alone(store: SqliteStore) -> None:
    good, bad, other = await accept_events(store, *(event(n) for n in range(3)))
    gate = Gate(store)
    await asyncio.to_thread(gate.entered.wait, 30)
    groups = store.writer.groups

    def breaks_a_rule() -> None:
        store.parts.steps.commit(closing_step(store, bad))
        connection_of(store).execute("INSERT INTO event VALUES(NULL,NULL,NULL,NULL)")

    steps: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(store.steps.commit(closing_step(store, good))),
        asyncio.ensure_future(store.writer.submit(breaks_a_rule)),
        asyncio.ensure_future(store.steps.commit(closing_step(store, other))),
    ]
    await asyncio.sleep(0)
    gate.open()
    answers: list[Any] = await asyncio.gather(*steps, return_exceptions=True)
    first, failed, last = answers
    assert store.writer.groups == groups + 2
    assert isinstance(failed, apsw.ConstraintError)
    assert (first.last, last.last) == (4, 5)
    assert store.runs.run(bad.id) == bad
    assert store.steps.is_ready
    assert (await store.steps.commit(closing_step(store, bad))).last == 6


# --- a full disk ----------------------------------------------------------------------------


def connection_of(store: SqliteStore) -> apsw.Connection:
    database: Any = store.parts.database
    connection: apsw.Connection = database.connection
    return connection


def pages(store: SqliteStore, more: int | None) -> None:
    """Let the file grow by so many pages and no further; None lifts the limit."""
    rows: list[Any] = connection_of(store).execute("PRAGMA page_count").fetchall()
    most = 2**30 if more is None else rows[0][0] + more
    connection_of(store).execute(f"PRAGMA max_page_count={most}")


async def test_a_full_store_keeps_every_answer_and_recovers(
    store: SqliteStore, folder: Path
) -> None:
    answered: dict[str, int] = {}
    runs = await accept_events(store, *(event(n) for n in range(400)))
    pages(store, 10)

    def big(run: Run) -> Step:
        return step(store, run, entry(run, "run.closed", text="y" * 1500), state="done")

    answers = await asyncio.gather(
        *(store.steps.commit(big(run)) for run in runs[:3]), return_exceptions=True
    )
    assert not any(isinstance(answer, BaseException) for answer in answers)
    answers += await asyncio.gather(
        *(store.steps.commit(big(run)) for run in runs[3:203]), return_exceptions=True
    )
    for run in runs[203:]:
        answers += await asyncio.gather(store.steps.commit(big(run)), return_exceptions=True)
        if isinstance(answers[-1], BaseException):
            break
    failures = [answer for answer in answers if isinstance(answer, BaseException)]
    assert failures
    assert all(isinstance(failure, StoreFailed) for failure in failures)
    assert "full" in str(failures[-1])
    assert store.writer.failure
    for run, answer in zip(runs, answers, strict=False):
        if isinstance(answer, CommitResult):
            answered[run.id] = answer.last
    with pytest.raises(StoreFailed):
        await accept_events(store, *(event(1000 + n) for n in range(200)))
    told = store.ledger.last_seq()
    pages(store, None)
    (late,) = await accept_events(store, event(5000))
    assert not store.writer.failure
    assert late.position == told + 1
    store.close()
    for name, seq in answered.items():
        again = SqliteReader(folder)
        run_now = again.runs.run(name)
        again.close()
        assert run_now is not None
        assert (run_now.state, run_now.last) == ("done", seq)
    assert whole(folder) == told + 1


async def test_a_lost_publication_or_stop_leaves_no_fence_behind(store: SqliteStore) -> None:
    """Were the fences left ahead of the store, every later step would be refused for ever."""
    (run,) = await accept_events(store, event(1))
    huge = Bundle.of({"a.rego": os.urandom(100_000).hex().encode()})
    pages(store, 0)
    stop = Draft("stop.set", {"what": "all:"})

    def wide() -> None:
        store.parts.commands.stop(stop, "all", "", True)
        store.parts.commands.keep_bundle(huge)

    with pytest.raises(StoreFailed):
        await store.commands.publish(huge, [])
    with pytest.raises(StoreFailed):
        await store.writer.submit(wide)
    assert (store.cluster.policy_rev, store.cluster.stop_epoch) == (0, 0)
    pages(store, None)
    assert (await store.steps.commit(closing_step(store, run))).status is CommitStatus.COMMITTED
    assert await store.commands.publish(huge, []) == 1


def child(mode: str, folder: Path) -> list[str]:
    return [sys.executable, str(CHILD), mode, str(folder)]


def mounts() -> bool:
    """Say whether this process may mount a small file system in a namespace of its own."""
    return may_run(["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /mnt"])


def need_mounts(may: bool, environ: Mapping[str, str] = os.environ) -> None:
    """Skip the test if no small file system may be mounted; fail it where CI is set."""
    fail = "no tmpfs may be mounted here. Mend: let `unshare -rm` do so"
    need(may, skip="may not mount a small file system here", fail=fail, environ=environ)


def test_without_a_small_disk_a_person_skips_and_ci_fails() -> None:
    need_mounts(True, {"CI": "1"})
    with pytest.raises(pytest.skip.Exception):
        need_mounts(False, {})
    with pytest.raises(pytest.fail.Exception, match="Mend"):
        need_mounts(False, {"CI": "1"})


def test_on_a_really_full_disk_every_answer_given_is_durable(tmp_path: Path) -> None:
    need_mounts(mounts())
    small, copy = tmp_path / "small", tmp_path / "copy"
    small.mkdir()
    copy.mkdir()
    script = (
        f"mount -t tmpfs -o size=3m tmpfs {shlex.quote(str(small))} && "
        f"{shlex.join(child('full', small))} && cp -r {small}/state {copy}/"
    )
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told["failures"]) == 3
    assert all("full" in failure for failure in told["failures"])
    assert (told["ready_when_full"], told["ready_again"]) == (False, True)
    assert len(told["answered"]) > 10
    size = whole(copy / "state")
    assert_answered(copy / "state", told["answered"], size)
    open_store(copy / "state").close()


def assert_answered(folder: Path, answered: list[Any], size: int) -> None:
    store = SqliteReader(folder)
    for name, first, second in answered:
        run = store.runs.run(name)
        assert run is not None
        assert (run.state, run.last, run.entries) == ("done", second, 2)
        assert [seq for seq, _, _ in store.ledger.entries("run", name)] == [first, second]
        assert second <= size
    store.close()


# --- a killed process -----------------------------------------------------------------------


def test_what_was_answered_before_a_kill_is_there_after_it(folder: Path) -> None:
    answered: list[Any] = []
    for after in (1, 40, 150):
        with subprocess.Popen(child("loop", folder), stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(after)]
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.readlines()
        assert process.returncode == -signal.SIGKILL
        told = [line.split() for line in lines if line.endswith(b"\n")]
        assert len(told) >= after
        answered += [(name.decode(), int(first), int(second)) for name, first, second in told]
        size = whole(folder)
        assert_answered(folder, answered, size)
        open_store(folder).close()
        assert whole(folder) == size  # opening it again wrote no entry and lost none


def test_the_lock_of_a_killed_runner_is_free(folder: Path) -> None:
    with subprocess.Popen(child("loop", folder), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(StoreBusy, match=f"process {process.pid}"):
            open_store(folder)
        process.send_signal(signal.SIGKILL)
    open_store(folder).close()


# --- cut files and the witness --------------------------------------------------------------


async def test_a_store_shorter_than_its_witness_saw_is_refused(folder: Path) -> None:
    await filled(folder, 3)
    kept = folder.parent / "kept"
    shutil.copytree(folder, kept)
    store = open_store(folder)
    await accept_events(store, event(100))
    store.close()
    open_store(folder).close()  # the control
    (folder / "store.db").unlink()
    for name in ("store.db-wal", "store.db-shm"):
        (folder / name).unlink(missing_ok=True)
    shutil.copy(kept / "store.db", folder / "store.db")
    with pytest.raises(BadStore, match="the witness saw a ledger of 7 entries"):
        open_store(folder)
    (folder / "store.db").unlink()
    with pytest.raises(BadStore, match="the witness saw"):
        open_store(folder)


async def test_entries_cut_off_under_their_checkpoints_are_noticed_at_once(folder: Path) -> None:
    await filled(folder, 3)
    with raw(folder) as connection:
        remove_entries(connection, {6})
    connection.close()
    with pytest.raises(BadStore):
        open_store(folder)


@pytest.mark.parametrize(
    ("with_head", "told"),
    [(True, "the witness saw a ledger of 5 entries"), (False, "is not that of its signed head")],
)
async def test_a_tree_that_was_turned_back_with_the_entries_is_refused(
    folder: Path, *, with_head: bool, told: str
) -> None:
    await filled(folder, 2)
    with raw(folder) as connection:
        ((frontier,),) = connection.execute(NEWEST_FRONTIER).fetchall()
    connection.close()
    store = open_store(folder)
    await accept_events(store, event(50))
    store.close()
    with raw(folder) as connection:
        remove_entries(connection, {5})
        if with_head:
            connection.execute("DELETE FROM checkpoint WHERE size=5")
        # Only the newest head has a tree.
        sql = "UPDATE checkpoint SET frontier=? WHERE size=?"
        connection.execute(sql, (frontier, 4 if with_head else 5))
        assert connection.changes() == 1
    connection.close()
    with pytest.raises(BadStore, match=told):
        open_store(folder)


async def test_a_note_that_was_broken_off_is_cut_from_the_witness(folder: Path) -> None:
    await filled(folder, 3)
    witness = folder / "witness.log"
    text = witness.read_bytes()
    notes = read_notes(text.decode())
    last = len(notes[-1].encode()) + 1
    for kept in (1, 30, last - 40, last - 2, last - 1):
        witness.write_bytes(text[: len(text) - last + kept])
        store = open_store(folder)
        await accept_events(store, event(1000 + kept))
        store.close()
        assert read_notes(witness.read_text())[: len(notes) - 1] == notes[:-1]
        assert whole(folder) == store.parts.ledger.last_seq
        text = witness.read_bytes()
        notes = read_notes(text.decode())
        last = len(notes[-1].encode()) + 1


def test_the_first_note_of_all_may_be_broken_off(folder: Path) -> None:
    open_store(folder).close()
    witness = folder / "witness.log"
    for text in ("vedette/har", "vedette/harbour\n1\nabc\n\n\N{EM DASH} vedette/har"):
        witness.write_text(text, encoding="utf-8")
        open_store(folder).close()
        assert witness.read_text() == ""


@pytest.mark.parametrize("text", ["no note\n" * 1000, "one\ntwo\nthree\n\n\N{EM DASH} a AAAA\n\n"])
def test_a_witness_file_of_something_else_is_refused(folder: Path, text: str) -> None:
    open_store(folder).close()
    (folder / "witness.log").write_text(text, encoding="utf-8")
    with pytest.raises(BadStore, match="the witness file is not one"):
        open_store(folder)
    assert (folder / "witness.log").read_text() == text


async def test_the_witness_is_shown_whole_notes_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(folder)
    await accept_events(store, event(1))
    witness = folder / "witness.log"
    before = witness.read_bytes()
    ledger = store.parts.ledger

    def short(path: Path, note: str) -> None:
        with path.open("ab") as file:
            start = file.tell()
            file.write(note[:30].encode())
            file.flush()
            file.truncate(start)
        raise OSError("no space")

    monkeypatch.setattr("vedette.store.witness.append_note", short)
    await accept_events(store, event(2))
    assert (ledger.is_witness_behind, witness.read_bytes()) == (True, before)
    monkeypatch.undo()
    await accept_events(store, event(3))
    store.close()
    point = read_last_checkpoint(witness)
    assert point is not None
    assert (ledger.is_witness_behind, point.size, whole(folder)) == (False, 3, 3)


def test_a_disk_that_takes_half_a_note_gives_it_back(tmp_path: Path) -> None:
    witness = tmp_path / "witness.log"
    append_note(witness, "first\n")
    script = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from vedette.store.witness import append_note\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))\n"
        "try:\n    append_note(Path(sys.argv[1]), 'x' * 100)\n"
        "except OSError:\n    print('refused')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(witness)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("refused\n", "")
    assert witness.read_text() == "first\n\n"


def test_the_store_of_another_version_is_refused(folder: Path) -> None:
    open_store(folder).close()
    with raw(folder) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(BadStore, match="schema 99"):
        open_store(folder)


def test_a_file_that_is_no_store_is_refused(folder: Path) -> None:
    folder.mkdir()
    (folder / "store.db").write_bytes(b"not a database, but long enough to be read as one" * 100)
    with pytest.raises(BadStore, match="not a store"):
        open_store(folder)
    with pytest.raises(BadStore, match="there is no store"):
        SqliteReader(folder / "nowhere")


async def test_reads_within_a_snapshot_agree_with_one_another(
    store: SqliteStore, folder: Path
) -> None:
    await accept_events(store, event(1))
    other = SqliteReader(folder)
    with other.snapshot():
        assert other.ledger.last_seq() == 1
        await accept_events(store, event(2))
        assert other.ledger.last_seq() == 1
        # Lists are of the read model, which goes on; a page shows nothing that is not there yet.
        assert other.tables.event_counts() == (2, 0)
        page = other.ledger.entries_page({}, before=None, after=None, limit=9)
        assert [seq for seq, _ in page] == [1]
    assert other.ledger.last_seq() == 2
    other.close()


async def test_a_closed_store_takes_nothing_more(folder: Path) -> None:
    store = open_store(folder)
    (run,) = await accept_events(store, event(1))
    store.close()
    with pytest.raises(StoreFailed, match="closed"):
        await store.steps.commit(closing_step(store, run))
