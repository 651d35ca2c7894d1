"""The ledger of a real store proves itself: offline, against a public key and a witness file.

Whoever edits the file here owns it but has not the signing key, except where two histories are
signed with the same one. Every attack has its control: the same store, untouched, passes.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.segments import (
    add_entry,
    change_entries,
    edit_about,
    edit_content,
    edit_entry,
    read_entries,
    remove_content,
    remove_entries,
)

from vedette.adapters.ledger_export import (
    LedgerExport,
    export,
    prove_inclusion,
    verify_inclusion_proof,
    verify_store,
)
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import BadCommand, BadStore
from vedette.domain.entry import Body, Draft
from vedette.domain.erasure import ErasureTarget
from vedette.ledger.merkle import Frontier, ProofError, leaf_hash, read_notes, verifier_key
from vedette.ledger.verify import Code, Report
from vedette.store.read_ledger import LedgerReader
from vedette.store.sqlite import SqliteReader, SqliteStore
from vedette.testing.clock import ManualClock
from vedette.testing.sample_steps import (
    accept_events,
    agents_of,
    closing_step,
    entry,
    event,
    held_action,
    step,
)

NAME = "vedette/harbour"
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
VERIFIER = verifier_key(NAME, KEY.public_key().public_bytes_raw())
FORGER = verifier_key(NAME, OTHER.public_key().public_bytes_raw())


def open_store(folder: Path) -> SqliteStore:
    clock = ManualClock()
    return SqliteStore(
        folder, fleet="harbour", key=KEY, key_name=NAME, now_us=clock.now_us, synchronous="OFF"
    )


async def grow(folder: Path, numbers: range) -> None:
    """Let a store grow by some runs: quiet ones, and each third one with a hold and its answer."""
    store = open_store(folder)
    for number in numbers:
        (run,) = await accept_events(store, event(number))
        if number % 3:
            await store.steps.commit(closing_step(store, run))
            continue
        row = held_action(run)
        turn = entry(run, "turn.reasoned", turn=1, text=f"proposed {number}")
        await store.steps.commit(step(store, run, turn, actions=[row], state="waiting", turn=1))
        draft = Draft(
            "hold.denied",
            {"actor": "person:kim", "agent": run.agent, "action": row.id, "tool": row.tool},
            body=Body(canonical_json({"reason": "no"})),
        )
        await store.commands.transition_hold(
            row.id, "denied", draft, approver="person:kim", until_us=0
        )
    store.close()


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    await grow(path, range(12))
    return path


def verified(folder: Path, witness: Path | None = None, **options: bool) -> Report:
    store = SqliteReader(folder)
    try:
        return verify_store(store.ledger, VERIFIER, witness or folder / "witness.log", **options)
    finally:
        store.close()


@contextmanager
def edited(folder: Path) -> Iterator[apsw.Connection]:
    """Open a store's file to edit it, in one transaction."""
    connection = apsw.Connection(str(folder / "store.db"))
    with connection:
        yield connection
    connection.close()


def edit(folder: Path, *statements: tuple[str, tuple[Any, ...]]) -> None:
    with edited(folder) as connection:
        for sql, values in statements:
            connection.execute(sql, values)
            assert connection.changes() > 0


def bytes_of(folder: Path, seq: int) -> bytes:
    store = SqliteReader(folder)
    found = store.ledger.entry(seq)
    store.close()
    assert found is not None
    return found[1]


def size_of(folder: Path) -> int:
    store = SqliteReader(folder)
    try:
        return store.ledger.last_seq()
    finally:
        store.close()


# --- the control ----------------------------------------------------------------------------


def test_the_untouched_store_passes(folder: Path) -> None:
    report = verified(folder)
    assert report.findings == ()
    assert report.ok
    assert report.size == report.signed == report.witnessed == size_of(folder)
    assert (report.runs, report.bodies, report.erased) == (12, 12 + 4 + 4, 0)
    assert report.checkpoints == report.witness_checkpoints > 12


def test_it_passes_while_the_fleet_runs_on(folder: Path) -> None:
    """The control: without one snapshot the entries outrun the checkpoints that were read."""

    async def meanwhile() -> tuple[Report, Report]:
        store = open_store(folder)
        loop = asyncio.get_running_loop()
        fresh = iter(range(100, 200))

        class Busy(LedgerReader):
            def checkpoints(self) -> Iterator[str]:
                yield from super().checkpoints()
                work = accept_events(store, event(next(fresh)))
                asyncio.run_coroutine_threadsafe(work, loop).result(30)

        class Torn:
            """The same record without its snapshot."""

            def __init__(self, record: Busy) -> None:
                self.walk, self.checkpoints = record.walk, record.checkpoints

        reader = SqliteReader(folder)
        busy = Busy(reader.database)
        witness = folder / "witness.log"
        whole = await asyncio.to_thread(verify_store, busy, VERIFIER, witness)
        torn = await asyncio.to_thread(verify_store, Torn(busy), VERIFIER, witness)
        reader.close()
        store.close()
        return whole, torn

    whole, torn = asyncio.run(meanwhile())
    assert whole.ok
    assert set(torn.counts) == {Code.UNSIGNED_TAIL}
    assert verified(folder).ok


# --- changed, missing, reordered ------------------------------------------------------------


def test_a_changed_entry_is_found(folder: Path) -> None:
    seq = 7
    raw = bytes_of(folder, seq)
    changed = raw.replace(b'"agent":"watcher"', b'"agent":"Watcher"')
    assert changed != raw
    with edited(folder) as store:
        edit_entry(store, seq, changed)
    report = verified(folder)
    assert Code.ROOT_MISMATCH in report.counts
    first = min(f.seq or 0 for f in report.findings if f.code is Code.ROOT_MISMATCH)
    assert first >= seq
    assert report.signed < seq  # how far everything still holds
    with edited(folder) as store:
        edit_entry(store, seq, raw)
    assert verified(folder).ok


def test_a_missing_entry_is_found_and_named(folder: Path) -> None:
    with edited(folder) as store:
        remove_entries(store, {7})
    report = verified(folder)
    assert Code.SEQ_GAP in report.counts
    assert [f.seq for f in report.findings if f.code is Code.SEQ_GAP] == [8]
    assert Code.ROOT_MISMATCH in report.counts


def test_a_missing_entry_is_found_where_all_others_moved_up(folder: Path) -> None:
    size = size_of(folder)
    with edited(folder) as store:
        remove_entries(store, {7})
        change_entries(store, lambda one: one._replace(seq=one.seq - (one.seq > 7)))
    report = verified(folder)
    assert report.counts[Code.SEQ_MISMATCH] == size - 7
    assert Code.TAIL_CUT in report.counts


def test_reordered_entries_are_found(folder: Path) -> None:
    four, five = bytes_of(folder, 4), bytes_of(folder, 5)
    with edited(folder) as store:
        edit_entry(store, 4, five)
        edit_entry(store, 5, four)
    report = verified(folder)
    assert [f.seq for f in report.findings if f.code is Code.SEQ_MISMATCH] == [4, 5]
    assert Code.ROOT_MISMATCH in report.counts
    with edited(folder) as store:
        edit_entry(store, 4, four)
        edit_entry(store, 5, five)
    assert verified(folder).ok


def test_an_entry_too_many_is_found(folder: Path) -> None:
    size = size_of(folder)
    value = {"v": 1, "seq": size + 1, "at": 1, "kind": "run.dead", "agent": "watcher"}
    with edited(folder) as store:
        add_entry(store, canonical_json(value))
    assert set(verified(folder).counts) == {Code.UNSIGNED_TAIL}


# --- what entries are found by -------------------------------------------------------------


@pytest.mark.parametrize("seq", [2, 5, 7])
@pytest.mark.parametrize("about", [None, 1, 3, 10**6])
def test_what_a_segment_says_an_entry_is_about_is_compared(
    folder: Path, seq: int, about: int | None
) -> None:
    """Explaining, erasing and deciding find entries by it; the tree covers the bytes alone."""
    if orjson.loads(bytes_of(folder, seq)).get("about") == about:
        return
    with edited(folder) as store:
        edit_about(store, seq, about)
    report = verified(folder)
    assert set(report.counts) == {Code.ROW_MISMATCH}
    assert any(f"entry {seq}: about" in finding.sentence for finding in report.findings)


@pytest.mark.parametrize(
    ("sql", "table"),
    [
        ("DELETE FROM place WHERE (about,last)=(SELECT about,last FROM place LIMIT 1)", "place"),
        ("INSERT INTO place VALUES(2,20)", "place"),
        ("INSERT INTO place VALUES(1,1000000)", "place"),
        ("UPDATE place SET about=about+1000", "place"),
        ("UPDATE place SET last=last+1000", "place"),
        ("DELETE FROM rare_entry WHERE kind='hold.denied'", "rare_entry"),
        ("INSERT INTO rare_entry VALUES('stop.set',3)", "rare_entry"),
        ("INSERT INTO rare_entry VALUES('stop.set',1000000)", "rare_entry"),
        ("UPDATE rare_entry SET kind='stop.set'", "rare_entry"),
        ("UPDATE rare_entry SET seq=seq+1", "rare_entry"),
    ],
)
def test_an_edit_of_what_finds_entries_is_found(folder: Path, sql: str, table: str) -> None:
    edit(folder, (sql, ()))
    report = verified(folder)
    assert set(report.counts) == {Code.ROW_MISMATCH}
    assert all(finding.sentence.startswith(table) for finding in report.findings)


# --- bodies ---------------------------------------------------------------------------------


def test_a_changed_body_is_found(folder: Path) -> None:
    with edited(folder) as store:
        edit_content(store, 1, data=b'{"forged":1}')
    report = verified(folder)
    assert dict(report.counts) == {Code.BODY_MISMATCH: 1}
    assert report.findings[0].seq == 1
    assert verified(folder, bodies=False).ok  # the proof over the entries does not need them


def test_a_body_that_went_without_a_word_is_found(folder: Path) -> None:
    with edited(folder) as store:
        remove_content(store, 1)
    assert dict(verified(folder).counts) == {Code.BODY_MISSING: 1}


def test_a_body_beside_an_entry_that_has_none_is_found(folder: Path) -> None:
    seq = next(
        n for n in range(1, size_of(folder)) if "body" not in orjson.loads(bytes_of(folder, n))
    )
    with edited(folder) as store:
        edit_content(store, seq, data=b'{"why":"forged"}')
    report = verified(folder)
    assert [(f.code, f.seq) for f in report.findings] == [(Code.BODY_MISMATCH, seq)]
    assert not report.ok


async def test_after_an_erasure_it_passes_and_says_so(folder: Path) -> None:
    store = open_store(folder)
    before = verified(folder)
    draft = Draft(
        "body.erased", {"actor": "person:kim"}, body=Body(canonical_json({"reason": "law"}))
    )
    digests = (
        await store.commands.erase(
            ErasureTarget("event", event(1).key), draft, stateless=agents_of(store)
        )
    ).digests
    store.close()
    report = verified(folder)
    assert report.ok
    assert report.erased == len(digests) == 1
    assert before.bodies is not None
    assert report.bodies == before.bodies - len(digests) + 1  # the reason of the erasure is new
    assert report.to_json()["erased"] == 1
    # The control: the same body gone, and the entry that says so gone too.
    with edited(folder) as file:
        erased = {one.seq for one in read_entries(file) if b'"body.erased"' in one.raw}
        remove_entries(file, erased)
    assert Code.BODY_MISSING in verified(folder).counts


# --- cut and forked -------------------------------------------------------------------------


def cut(folder: Path, size: int) -> None:
    """Cut the store's end off so that it looks as if it had never been: entries and all."""
    tree = Frontier()
    for seq in range(1, size + 1):
        tree.append(leaf_hash(bytes_of(folder, seq)))
    with edited(folder) as store:
        remove_entries(store, range(size + 1, 10_000))
    edit(
        folder,
        ("DELETE FROM checkpoint WHERE size>?", (size,)),
        (
            "UPDATE checkpoint SET frontier=? WHERE size=(SELECT MAX(size) FROM checkpoint)",
            (tree.to_bytes(),),
        ),
    )


def test_a_tail_cut_is_found_by_the_witness(folder: Path, tmp_path: Path) -> None:
    size = size_of(folder)
    notes = read_notes((folder / "witness.log").read_text())
    kept = int(notes[-4].split("\n")[1])
    cut(folder, kept)
    report = verified(folder)
    assert Code.TAIL_CUT in report.counts
    assert max(f.seq or 0 for f in report.findings if f.code is Code.TAIL_CUT) == size
    with pytest.raises(BadStore, match="the witness saw"):
        open_store(folder)
    # What cannot be found: a cut after the last head that the witness saw.
    early = tmp_path / "early.log"
    early.write_text("".join(note + "\n" for note in notes[:-3]))
    blind = verified(folder, early)
    # (The entries stand; rows that nobody cut with them are more than they come to.)
    assert blind.counts.keys() <= {Code.ROW_MISMATCH, Code.POLICY_MISMATCH}
    assert blind.witnessed == kept


async def test_a_forked_tree_is_found(folder: Path, tmp_path: Path) -> None:
    """Two stores grown from one, by the same key: each alone is flawless."""
    twin = tmp_path / "twin"
    shutil.copytree(folder, twin)
    common = size_of(folder)
    await grow(folder, range(20, 26))
    await grow(twin, range(30, 36))
    assert verified(folder).ok
    assert verified(twin).ok
    report = verified(twin, folder / "witness.log")
    assert Code.FORK in report.counts
    assert report.witnessed == common
    # And the runner itself does not open the one beside the witness of the other.
    for name in ("store.db", "store.db-wal", "store.db-shm"):
        (folder / name).unlink(missing_ok=True)
    shutil.copy(twin / "store.db", folder / "store.db")
    with pytest.raises(BadStore, match="the witness saw"):
        open_store(folder)


def test_another_key_vouches_for_nothing(folder: Path) -> None:
    store = SqliteReader(folder)
    report = verify_store(store.ledger, FORGER, folder / "witness.log")
    assert report.counts[Code.BAD_NOTE] == report.checkpoints + report.witness_checkpoints
    assert (report.signed, report.witnessed) == (0, 0)
    with pytest.raises(ProofError):
        verify_store(store.ledger, "no key", folder / "witness.log")
    store.close()


# --- exports --------------------------------------------------------------------------------


@pytest.fixture
def exported(folder: Path, tmp_path: Path) -> Path:
    store = SqliteReader(folder)
    to = tmp_path / "export"
    answer = export(
        store.ledger, to, verifier_key=VERIFIER, witness=folder / "witness.log", bodies=True
    )
    store.close()
    assert answer["entries"] == size_of(folder)
    return to


def of_export(folder: Path) -> Report:
    read = LedgerExport(folder)
    return verify_store(read, read.key, read.witness, bodies=read.has_bodies)


def test_an_export_verifies_as_the_store_does(folder: Path, exported: Path) -> None:
    assert of_export(exported) == verified(folder)
    lines = (exported / "entries.jsonl").read_bytes().splitlines()
    assert lines[2] == bytes_of(folder, 3)
    (exported / "bodies.jsonl").unlink()
    bare = of_export(exported)
    assert (bare.ok, bare.bodies) == (True, None)


def test_every_change_to_an_export_is_found(exported: Path) -> None:
    path = exported / "entries.jsonl"
    text = path.read_bytes()
    lines = text.splitlines(keepends=True)
    swapped = [*lines[:3], lines[4], lines[3], *lines[5:]]
    changes = {
        b"".join(lines[:3] + lines[4:]): Code.SEQ_GAP,
        b"".join(swapped): Code.SEQ_GAP,
        b"".join(lines[:-2]): Code.TAIL_CUT,
        text.replace(b'"agent":"watcher"', b'"agent":"Watcher"', 1): Code.ROOT_MISMATCH,
        text.replace(b'{"', b'{ "', 1): Code.NOT_CANONICAL,
        text.replace(lines[4], b"no json\n"): Code.NOT_CANONICAL,
    }
    assert len(changes) == 6
    for changed, code in changes.items():
        path.write_bytes(changed)
        assert code in of_export(exported).counts
    path.write_bytes(text)
    assert of_export(exported).ok
    bodies = exported / "bodies.jsonl"
    kept = bodies.read_bytes()
    for broken in (kept.replace(b"pump", b"Pump", 1), kept.split(b"\n", 1)[1], b"x\n" + kept[9:]):
        bodies.write_bytes(broken)
        counts = of_export(exported).counts
        assert {Code.BODY_MISMATCH, Code.BODY_MISSING} & set(counts)


@pytest.mark.parametrize("seq", ["2", None, 2.5, [1], {}, True])
def test_a_body_of_no_place_is_found_and_breaks_nothing_off(exported: Path, seq: object) -> None:
    bodies = exported / "bodies.jsonl"
    lines = bodies.read_bytes().splitlines(keepends=True)
    changed = orjson.dumps({**orjson.loads(lines[1]), "seq": seq}) + b"\n"
    bodies.write_bytes(b"".join([lines[0], changed, *lines[2:]]))
    assert of_export(exported).counts == {Code.BODY_MISSING: 1}


@pytest.mark.parametrize("name", ["entries.jsonl", "checkpoints", "ledger.pub"])
def test_an_export_without_one_of_its_files_is_refused(exported: Path, name: str) -> None:
    kept = (exported / name).read_bytes()
    (exported / name).unlink()
    with pytest.raises(BadStore, match=name.replace(".", r"\.")):
        of_export(exported)
    (exported / name).write_bytes(kept)
    assert of_export(exported).ok


def test_what_is_no_complete_export_is_refused(exported: Path, tmp_path: Path) -> None:
    store = LedgerExport(exported)
    with pytest.raises(BadCommand, match="not empty"):
        export(store, exported, verifier_key=VERIFIER, witness=None)
    repeat = tmp_path / "again"
    export(store, repeat, verifier_key=VERIFIER, witness=store.witness)  # an export can be exported
    assert of_export(repeat).ok
    assert not LedgerExport(repeat).has_bodies
    (exported / "export.json").write_text('{"schema":"other"}')
    with pytest.raises(BadStore, match="not a complete"):
        LedgerExport(exported)
    (exported / "export.json").unlink()
    with pytest.raises(BadStore, match="not a complete"):
        LedgerExport(exported)


# --- proofs of one entry --------------------------------------------------------------------


def test_every_entry_can_be_proved_offline(folder: Path, exported: Path) -> None:
    store = SqliteReader(folder)
    for seq in range(1, size_of(folder) + 1):
        proof = orjson.loads(orjson.dumps(prove_inclusion(store.ledger, seq)))
        assert verify_inclusion_proof(proof, VERIFIER).size == size_of(folder)
        assert orjson.loads(proof["entry"])["seq"] == seq
    assert prove_inclusion(LedgerExport(exported), 3) == prove_inclusion(store.ledger, 3)
    for outside in (0, -1, size_of(folder) + 1):
        with pytest.raises(BadCommand, match="newest checkpoint"):
            prove_inclusion(store.ledger, outside)
    store.close()


def test_nothing_else_is_proved(folder: Path) -> None:
    store = SqliteReader(folder)
    proof, other = prove_inclusion(store.ledger, 5), prove_inclusion(store.ledger, 6)
    store.close()
    verify_inclusion_proof(proof, VERIFIER)
    twisted: list[dict[str, Any]] = [
        {**proof, "seq": 6},
        {**proof, "seq": True},
        {**proof, "entry": other["entry"]},
        {**proof, "entry": other["entry"], "seq": 6},
        {**proof, "proof": proof["proof"][:-1]},
        {**proof, "proof": ["zz", *proof["proof"][1:]]},
        {**proof, "schema": "other"},
        {**proof, "checkpoint": proof["checkpoint"].replace("harbour", "Harbour")},
        {name: value for name, value in proof.items() if name != "entry"},
    ]
    for bad in twisted:
        with pytest.raises(ProofError):
            verify_inclusion_proof(bad, VERIFIER)
    with pytest.raises(ProofError):
        verify_inclusion_proof(proof, FORGER)


def test_an_empty_ledger_has_nothing_to_prove(tmp_path: Path) -> None:
    open_store(tmp_path / "new").close()
    store = SqliteReader(tmp_path / "new")
    assert verify_store(store.ledger, VERIFIER, tmp_path / "nowhere").ok
    with pytest.raises(BadCommand, match="no checkpoint"):
        prove_inclusion(store.ledger, 1)
    store.close()
