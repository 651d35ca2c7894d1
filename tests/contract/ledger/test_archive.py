"""Old entries go into an archive, old content goes for good; the proof holds over both."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace
from tests.segments import is_in, read_entries, remove_entries

from vedette.adapters.ledger_export import (
    Archive,
    JoinedLedger,
    LedgerExport,
    archived_part,
    checkpoint_size_before,
    export,
    prove_consistency,
    prove_inclusion,
    verify_consistency_proof,
    verify_inclusion_proof,
    verify_store,
    write_segment,
)
from vedette.adapters.signing_keys import format_verifier_key
from vedette.config.settings import Settings
from vedette.domain.base import failpoint
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import BadCommand, BadStore
from vedette.domain.entry import Body, Draft
from vedette.ledger.merkle import Frontier
from vedette.ledger.pruned_log import EMPTY_PREFIX, ArchivedPrefix
from vedette.ledger.verify import Code, Report
from vedette.store.sqlite import SqliteReader, SqliteStore
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.sample_steps import (
    accept_events,
    agents_of,
    closing_step,
    entry,
    event,
    held_action,
    step,
)
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet

NAME = "vedette/harbour"
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
NEXT = Ed25519PrivateKey.from_private_bytes(bytes(range(2, 34)))
VERIFIER = format_verifier_key(NAME, KEY)
DAY = 86_400_000_000


def draft(kind: str) -> Draft:
    return Draft(kind, {"actor": "person:kim"}, body=Body(canonical_json({"reason": "old"})))


def open_store(folder: Path, clock: ManualClock, key: Ed25519PrivateKey = KEY) -> SqliteStore:
    return SqliteStore(
        folder, fleet="harbour", key=key, key_name=NAME, now_us=clock.now_us, synchronous="OFF"
    )


async def grow(store: SqliteStore, numbers: range) -> None:
    for number in numbers:
        (run,) = await accept_events(store, event(number))
        await store.steps.commit(closing_step(store, run))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def folder(tmp_path: Path, clock: ManualClock) -> Path:
    """Ten days, four runs a day."""
    path = tmp_path / "state"
    store = open_store(path, clock)
    for day in range(10):
        await grow(store, range(day * 4, day * 4 + 4))
        clock.advance(DAY)
    store.close()
    return path


def verified(folder: Path, archives: Path | None = None) -> Report:
    store = SqliteReader(folder)
    try:
        record = store.ledger if archives is None else JoinedLedger(Archive(archives), store.ledger)
        return verify_store(record, VERIFIER, folder / "witness.log")
    finally:
        store.close()


async def put_away(
    folder: Path, archives: Path, clock: ManualClock, days: int, key: Ed25519PrivateKey = KEY
) -> ArchivedPrefix:
    """Archive everything but the last days, as the verb does."""
    reading = SqliteReader(folder)
    size = checkpoint_size_before(
        reading.ledger, clock.now_us() - days * DAY, reading.ledger.first_open_entry()
    )
    archived = write_segment(reading.ledger, archives, size, VERIFIER)
    reading.close()
    store = open_store(folder, clock, key)
    while rows := store.maintenance.expiring_bodies(archived.size):
        await store.maintenance.expire(rows, draft("body.erased"), stateless=agents_of(store))
    await store.maintenance.record_archive(archived, draft("ledger.archived"))
    while await store.maintenance.trim():
        pass
    store.close()
    return archived


def counted(folder: Path, table: str) -> int:
    connection = apsw.Connection(str(folder / "store.db"))
    ((number,),) = connection.execute(f"SELECT COUNT(*) FROM {table}").fetchall()
    connection.close()
    assert isinstance(number, int)
    return number


def kept(folder: Path) -> int:
    """Return how many entries a store's file holds."""
    connection = apsw.Connection(str(folder / "store.db"))
    entries = read_entries(connection)
    connection.close()
    return len(entries)


async def test_store_and_archive_verify_together_and_each_by_itself(
    folder: Path, tmp_path: Path, clock: ManualClock
) -> None:
    before = verified(folder)
    archives = tmp_path / "archive"
    archived = await put_away(folder, archives, clock, 4)
    assert 48 <= archived.size < before.size
    alone = verified(folder)
    assert alone.findings == ()
    assert (alone.archived, alone.size) == (archived.size, before.size + 2)
    together = verified(folder, archives)
    assert together.findings == ()
    assert (together.archived, together.size, together.root) == (0, alone.size, alone.root)
    assert together.erased == archived.size // 2  # each event's body
    (segment,) = archives.iterdir()
    read = LedgerExport(segment)
    assert verify_store(read, VERIFIER, None, bodies=False).ok
    # The rows are gone, and what a later event is compared with is not.
    assert kept(folder) == alone.size - archived.size
    assert counted(folder, "checkpoint") < before.checkpoints
    store = open_store(folder, clock)
    assert await accept_events(store, event(0)) == []
    await grow(store, range(200, 203))
    store.close()
    assert verified(folder, archives).ok


async def test_an_archive_grows_segment_by_segment(
    folder: Path, tmp_path: Path, clock: ManualClock
) -> None:
    archives = tmp_path / "archive"
    first = await put_away(folder, archives, clock, 7)
    second = await put_away(folder, archives, clock, 3)
    assert first.size < second.size
    assert [path.name for path in sorted(archives.iterdir())] == [
        f"{1:012}-{first.size:012}",
        f"{first.size + 1:012}-{second.size:012}",
    ]
    assert verified(folder).ok
    assert verified(folder, archives).ok
    for path in archives.iterdir():
        report = verify_store(LedgerExport(path), VERIFIER, None, bodies=False)
        assert report.findings == ()
        growth = json.loads((path / "growth.json").read_bytes())
        before, after = verify_consistency_proof(growth, VERIFIER)
        assert (before.size, before.root) == (report.size, report.root)
        assert after.size > before.size


async def test_proofs_reach_over_the_archive(
    folder: Path, tmp_path: Path, clock: ManualClock
) -> None:
    archives = tmp_path / "archive"
    archived = await put_away(folder, archives, clock, 4)
    store = SqliteReader(folder)
    size = store.ledger.last_seq()
    for seq in (archived.size + 1, size - 7, size):
        assert verify_inclusion_proof(prove_inclusion(store.ledger, seq), VERIFIER).size == size
    with pytest.raises(BadCommand, match="was archived"):
        prove_inclusion(store.ledger, archived.size)
    joined = JoinedLedger(Archive(archives), store.ledger)
    for seq in (1, archived.size, archived.size + 1, size):
        assert verify_inclusion_proof(prove_inclusion(joined, seq), VERIFIER).size == size
    before, after = verify_consistency_proof(
        prove_consistency(store.ledger, archived.size), VERIFIER
    )
    assert (before.size, after.size) == (archived.size, size)
    store.close()


async def test_an_export_of_what_is_left_verifies(
    folder: Path, tmp_path: Path, clock: ManualClock
) -> None:
    archives = tmp_path / "archive"
    archived = await put_away(folder, archives, clock, 4)
    store = SqliteReader(folder)
    out = tmp_path / "out"
    export(store.ledger, out, verifier_key=VERIFIER, witness=folder / "witness.log", bodies=True)
    store.close()
    read = LedgerExport(out)
    report = verify_store(read, VERIFIER, read.witness)
    assert (report.ok, report.archived) == (True, archived.size)
    assert verify_store(JoinedLedger(Archive(archives), read), VERIFIER, read.witness).ok


async def test_keys_are_followed_over_an_archived_rotation(
    tmp_path: Path, clock: ManualClock
) -> None:
    folder, archives = tmp_path / "state", tmp_path / "archive"
    store = open_store(folder, clock)
    await grow(store, range(3))
    await store.maintenance.rotate(NEXT, format_verifier_key(NAME, NEXT), draft("key.rotated"))
    await grow(store, range(3, 6))
    store.close()
    clock.advance(9 * DAY)
    store = open_store(folder, clock, NEXT)
    await grow(store, range(6, 9))
    store.close()
    archived = await put_away(folder, archives, clock, 4, NEXT)
    assert len(archived.handovers) == 1
    report = verified(folder)
    assert (report.ok, report.keys) == (True, 2)
    assert verified(folder, archives).ok
    reading = SqliteReader(folder)
    assert (
        verify_inclusion_proof(
            prove_inclusion(reading.ledger, reading.ledger.last_seq()), VERIFIER
        ).size
        == reading.ledger.last_seq()
    )
    reading.close()
    # Without the handover nobody can know the key that signs now.
    edit(folder, ArchivedPrefix(archived.size, archived.peaks))
    assert Code.BAD_NOTE in verified(folder).counts


# --- what is not archived -------------------------------------------------------------------


async def test_an_open_run_keeps_everything_from_its_event_on(
    tmp_path: Path, clock: ManualClock
) -> None:
    folder = tmp_path / "state"
    store = open_store(folder, clock)
    await grow(store, range(5))
    (run,) = await accept_events(store, event(100))
    row = held_action(run)
    turn = entry(run, "turn.reasoned", turn=1, text="proposed")
    await store.steps.commit(step(store, run, turn, actions=[row], state="waiting", turn=1))
    clock.advance(DAY)
    await grow(store, range(5, 10))
    clock.advance(9 * DAY)
    rows = store.maintenance.expiring_bodies(store.ledger.last_seq())
    assert run.position not in [row[0] for row in rows]
    store.close()
    archived = await put_away(folder, tmp_path / "archive", clock, 1)
    assert archived.size < run.position
    store = open_store(folder, clock)
    assert store.runs.event(run.event) is not None
    assert store.ledger.first_open_entry() == run.position
    fields = {"actor": "person:kim", "agent": run.agent, "action": row.id, "tool": row.tool}
    answer = Draft("hold.denied", fields, body=Body(canonical_json({"reason": "no"})))
    await store.commands.transition_hold(
        row.id, "denied", answer, approver="person:kim", until_us=0
    )
    store.close()
    assert verified(folder, tmp_path / "archive").ok


async def test_nothing_old_is_nothing_to_archive(
    folder: Path, tmp_path: Path, clock: ManualClock
) -> None:
    store = SqliteReader(folder)
    assert checkpoint_size_before(store.ledger, clock.now_us() - 100 * DAY, None) == 0
    assert archived_part(store.ledger) == EMPTY_PREFIX
    store.close()


async def test_what_is_not_let_go_loses_no_content(tmp_path: Path) -> None:
    async with toy_fleet(tmp_path, World(), clock=ManualClock()) as fleet:
        upkeep, store = fleet.app.commands.maintenance, fleet.app.store
        assert upkeep is not None
        await fleet.send(job("1", send_proposal("one"), value=1))
        await fleet.wait_until_idle()
        order = replace(fleet.order("a while"), command_id=None)
        await fleet.app.commands.stop(order, agent="worker")
        await fleet.send(job("2", send_proposal("two"), value=2))  # it stays open
        line = (tmp_path / "state" / "ledger.pub").read_text().strip()
        reading = SqliteReader(tmp_path / "state")
        archived = write_segment(
            reading.ledger, tmp_path / "archive", reading.ledger.last_seq(), line
        )
        reading.close()
        with pytest.raises(BadCommand, match="open again"):
            await upkeep.prune_archived(order.principal, "old", archived)
        assert fleet.entries("body.erased", "ledger.archived") == []
        # The control: once it has ended the same archive is taken.
        await fleet.app.commands.resume(order, agent="worker")
        await fleet.wait_until_idle()
        assert store.ledger.first_open_entry() is None
        done = await upkeep.prune_archived(order.principal, "old", archived)
        assert done["archived"] == archived.size
        assert fleet.entries("body.erased")


async def test_what_is_refused_leaves_no_segment_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next archiving ends elsewhere; of two segments that overlap no archive is made."""
    from vedette.interfaces.cli import archive as verb
    from vedette.interfaces.cli.orders import OrderOptions

    world, clock = World(), ManualClock()
    settings = replace(Settings.of(tmp_path / "content", "harbour"), state=tmp_path / "state")
    archives = tmp_path / "archive"
    given = OrderOptions("old")
    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        await fleet.send(*(job(str(n), send_proposal(f"{n}"), value=n) for n in range(3)))
        await fleet.wait_until_idle()
        end = clock.now_us() + DAY
        upkeep = fleet.app.commands.maintenance
        assert upkeep is not None

        def refused(*_: Any) -> dict[str, Any]:
            (segment,) = archives.iterdir()
            assert LedgerExport(segment).summary["entries"] > 0
            raise BadCommand("a run is open again", mend="archive again")

        monkeypatch.setattr(verb, "submit_command", refused)
        with pytest.raises(BadCommand, match="open again"):
            verb._archive_entries(settings, archives, end, given, {"erased": 0})
        assert list(archives.iterdir()) == []
        # The control: an answer that is lost after the entries went; they are only there now.
        loop = asyncio.get_running_loop()

        def unheard(_: Settings, __: str, args: Any, order: OrderOptions) -> dict[str, Any]:
            archived = ArchivedPrefix.from_bytes(args["archived"].encode())
            doing = upkeep.prune_archived(fleet.order().principal, order.reason or "", archived)
            asyncio.run_coroutine_threadsafe(doing, loop).result()
            raise BadCommand("carried out before")

        monkeypatch.setattr(verb, "submit_command", unheard)
        with pytest.raises(BadCommand, match="carried out before"):
            await asyncio.to_thread(
                verb._archive_entries, settings, archives, end, given, {"erased": 0}
            )
        assert len(list(archives.iterdir())) == 1
    store = SqliteReader(tmp_path / "state")
    line = (tmp_path / "state" / "ledger.pub").read_text().strip()
    assert verify_store(JoinedLedger(Archive(archives), store.ledger), line).ok
    store.close()


# --- what is refused, and found ---------------------------------------------------------------


def edit(folder: Path, archived: ArchivedPrefix) -> None:
    connection = apsw.Connection(str(folder / "store.db"))
    connection.execute(
        "UPDATE meta SET value=? WHERE name='archived'", (archived.to_bytes().decode(),)
    )
    connection.close()


def shorter(archived: ArchivedPrefix) -> ArchivedPrefix:
    return ArchivedPrefix(archived.size - 1, _peaks(archived.size - 1), archived.handovers)


def other(archived: ArchivedPrefix) -> ArchivedPrefix:
    return ArchivedPrefix(archived.size, _peaks(archived.size), archived.handovers)


def _peaks(size: int) -> tuple[bytes, ...]:
    tree = Frontier()
    for number in range(size):
        tree.append(number.to_bytes(32, "big"))
    return tree.peaks


@pytest.mark.parametrize("change", [shorter, other])
async def test_another_beginning_than_the_archived_one_is_found(
    folder: Path,
    tmp_path: Path,
    clock: ManualClock,
    change: Callable[[ArchivedPrefix], ArchivedPrefix],
) -> None:
    archived = await put_away(folder, tmp_path / "archive", clock, 4)
    edit(folder, change(archived))
    assert not verified(folder).ok


async def test_a_store_that_never_let_go_cannot_be_cut_at_its_beginning(
    folder: Path, tmp_path: Path
) -> None:
    """The tail's witness does not see it; the tree does."""
    connection = apsw.Connection(str(folder / "store.db"))
    remove_entries(connection, range(21))
    connection.close()
    assert {Code.SEQ_GAP, Code.ROOT_MISMATCH} <= set(verified(folder).counts)


async def test_a_changed_segment_is_found(folder: Path, tmp_path: Path, clock: ManualClock) -> None:
    archives = tmp_path / "archive"
    await put_away(folder, archives, clock, 4)
    (segment,) = archives.iterdir()
    entries = segment / "entries.jsonl"
    whole = entries.read_bytes()
    lines = whole.splitlines(keepends=True)
    for changed in (
        whole.replace(b'"watcher"', b'"watches"', 1),
        b"".join(lines[1:]),
        b"".join(lines[:-1]),
        b"".join([lines[1], lines[0], *lines[2:]]),
    ):
        entries.write_bytes(changed)
        assert not verified(folder, archives).ok
        assert verified(folder).ok  # the store alone does not need it
    entries.write_bytes(whole)
    assert verified(folder, archives).ok


async def test_a_segment_that_does_not_verify_lets_nothing_go(
    folder: Path, tmp_path: Path, clock: ManualClock
) -> None:
    archives = tmp_path / "archive"
    reading = SqliteReader(folder)
    size = checkpoint_size_before(reading.ledger, clock.now_us() - 4 * DAY, None)
    archived = write_segment(reading.ledger, archives, size, VERIFIER)
    (segment,) = archives.iterdir()
    path = segment / "entries.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"watcher"', b'"watches"', 1))
    with pytest.raises(BadStore, match="does not verify"):
        write_segment(reading.ledger, archives, size, VERIFIER)
    reading.close()
    store = open_store(folder, clock)
    head = store.ledger.last_seq()
    with pytest.raises(BadCommand, match="not those of this store"):
        await store.maintenance.record_archive(other(archived), draft("ledger.archived"))
    with pytest.raises(BadCommand, match="not those of this store"):
        await store.maintenance.record_archive(shorter(archived), draft("ledger.archived"))
    assert (store.ledger.last_seq(), await store.maintenance.trim()) == (head, 0)
    store.close()
    assert verified(folder).ok


async def test_missing_segments_are_named(folder: Path, tmp_path: Path, clock: ManualClock) -> None:
    archives = tmp_path / "archive"
    for days in (8, 6, 4):
        await put_away(folder, archives, clock, days)
    paths = sorted(archives.iterdir())
    shutil.move(paths[1], tmp_path / "elsewhere")
    with pytest.raises(BadStore, match="are missing"):
        verified(folder, archives)
    shutil.rmtree(paths[2])
    with pytest.raises(BadCommand, match="the archive ends at entry"):
        verified(folder, archives)
    with pytest.raises(BadStore, match="no archive here"):
        verified(folder, tmp_path / "nowhere")


# --- broken off -------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["segment:before", "segment:mid", "segment:after"])
async def test_an_archiving_broken_off_is_done_again(
    folder: Path, tmp_path: Path, clock: ManualClock, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(BaseException):
        pass

    def die(reached: str) -> None:
        if reached == point:
            raise Died

    archives = tmp_path / "archive"
    monkeypatch.setattr(failpoint, "hook", die)
    with pytest.raises(Died):
        await put_away(folder, archives, clock, 4)
    monkeypatch.setattr(failpoint, "hook", None)
    assert verified(folder).archived == 0
    archived = await put_away(folder, archives, clock, 4)
    assert verified(folder, archives).ok
    assert verified(folder).archived == archived.size


async def test_a_segment_whose_entries_were_not_let_go_of_is_taken_up(
    folder: Path, tmp_path: Path, clock: ManualClock
) -> None:
    archives = tmp_path / "archive"
    reading = SqliteReader(folder)
    size = checkpoint_size_before(
        reading.ledger, clock.now_us() - 8 * DAY, reading.ledger.first_open_entry()
    )
    write_segment(reading.ledger, archives, size, VERIFIER)
    with pytest.raises(BadCommand, match=f"up to entry {size} was written"):
        write_segment(
            reading.ledger,
            archives,
            checkpoint_size_before(reading.ledger, clock.now_us() - 9 * DAY, None),
            VERIFIER,
        )
    reading.close()
    assert (await put_away(folder, archives, clock, 4)).size == size
    assert (await put_away(folder, archives, clock, 4)).size > size
    assert verified(folder, archives).ok


async def test_a_trimming_broken_off_shows_no_difference(
    folder: Path, tmp_path: Path, clock: ManualClock
) -> None:
    """From the entry on, what is still to be deleted is not looked at any more."""
    archives = tmp_path / "archive"
    reading = SqliteReader(folder)
    size = checkpoint_size_before(reading.ledger, clock.now_us() - 4 * DAY, None)
    archived = write_segment(reading.ledger, archives, size, VERIFIER)
    reading.close()
    store = open_store(folder, clock)
    while rows := store.maintenance.expiring_bodies(size):
        await store.maintenance.expire(rows, draft("body.erased"), stateless=agents_of(store))
    await store.maintenance.record_archive(archived, draft("ledger.archived"))
    store.close()
    assert verified(folder).ok
    assert verified(folder, archives).ok
    assert kept(folder) > verified(folder).size - size


# --- content ----------------------------------------------------------------------------------


async def test_expiring_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from the beginning again for each thousand bodies."""
    monkeypatch.setattr("vedette.store.retention.CHUNK", 3)
    clock = ManualClock()
    async with toy_fleet(tmp_path, World(), clock=clock) as fleet:
        upkeep = fleet.app.commands.maintenance
        assert upkeep is not None
        await fleet.send(*(job(str(n), send_proposal(str(n)), value=n) for n in range(4)))
        await fleet.wait_until_idle()
        clock.advance(10 * DAY)
        real, afters, ends = fleet.app.store.maintenance.expiring_bodies, [], [0]

        def expiring(upto: int, *, after: int = 0) -> Any:
            afters.append(after)
            rows = real(upto, after=after)
            ends.extend([rows[-1][0]] if rows else [])
            return rows

        monkeypatch.setattr(fleet.app.store.maintenance, "expiring_bodies", expiring)
        done = await upkeep.expire(fleet.order().principal, "ten days", clock.now_us())
        assert done["erased"] > 6
        assert afters == ends
        assert len(set(afters)) == len(afters) > 2
        assert real(fleet.app.store.ledger.seq_at(clock.now_us() - 1)) == []


async def test_content_expires_and_judges_keep_what_they_learned(tmp_path: Path) -> None:
    clock, world = ManualClock(), World()

    def values(fleet: FleetHarness) -> list[str]:
        return [
            one["label"] for one in fleet.entries("turn.reasoned", "run.closed") if "label" in one
        ]

    async with toy_fleet(tmp_path, world, clock=clock) as fleet:
        upkeep = fleet.app.commands.maintenance
        assert upkeep is not None
        await fleet.send(*(job(str(n), send_proposal("a phrase"), value=n) for n in range(1, 4)))
        await fleet.wait_until_idle()
        clock.advance(10 * DAY)
        await fleet.send(job("4", send_proposal("another"), value=4))
        await fleet.wait_until_idle()
        done = await upkeep.expire(fleet.order().principal, "ten days", clock.now_us() - DAY)
        assert done["erased"] >= 3
        assert not is_in(b"a phrase", (tmp_path / "state" / "store.db").read_bytes())
        runs = fleet.runs(job("1"))
        assert fleet.app.store.runs.event(runs[0].event) is None
        await fleet.restart()
        await fleet.send(job("5", send_proposal("last"), value=5))
        await fleet.wait_until_idle()
        assert any("sum 15 of 5" in label for label in values(fleet))
    store = SqliteReader(tmp_path / "state")
    line = (tmp_path / "state" / "ledger.pub").read_text().strip()
    report = verify_store(store.ledger, line, tmp_path / "state" / "witness.log")
    store.close()
    assert report.ok
    assert report.erased == done["erased"]
