"""Loss: history that a witness saw and the store does not hold, or that may be lost unseen.

A backup that was put back, a point in time, a copy that took over: the store is older than what
was done. Its witness says so (`vedette.store.witness`); a store without one may be anything, and
so may one at a server that was promoted or restored: a witness says nothing of what others did
after its last head. Either way the store goes on stopped and in doubt
(`vedette.domain.run`), with an entry that says why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace

from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.clock import iso
from vedette.domain.base.errors import BadCommand, BadStore
from vedette.domain.entry import Body, Draft
from vedette.domain.identity import ENGINE
from vedette.ledger.merkle import Checkpoint, ProofError, parse_note, read_notes, verify_note
from vedette.ledger.pruned_log import ArchivedPrefix
from vedette.store.dialect import Database, Row
from vedette.store.group_commit import CommitHooks
from vedette.store.meta import ARCHIVED, INSTANCE, RESTORED, read_meta, write_meta
from vedette.store.stored_entries import EntryReader, at_us_of
from vedette.store.witness import append_note, create_witness, read_last_checkpoint
from vedette.store.write_parts import WriteParts

Head = tuple[int, str]
# A head that was told to be lost, and the last entry before its history parted from the store's.
LostHead = tuple[int, str, int]


class Loss(Struct, frozen=True):
    """A store's lost history: of the entries behind `size` those up to the furthest of `heads`.

    `heads` are the last (size, root) of every stretch that the witness saw beyond; none if no
    witness tells. `since_us` is when entry `size` was written, `seen_us` when the witness was shown
    a head last; 0 where that is not known. `has_moved` says that the store is another instance of
    its database than it was.
    """

    size: int
    heads: tuple[Head, ...] = ()
    since_us: int = 0
    seen_us: int = 0
    has_moved: bool = False

    @property
    def last(self) -> int:
        """Return the last entry known to be lost; 0 if none is."""
        return max((size for size, _ in self.heads), default=0)

    @property
    def sentence(self) -> str:
        """Return in one sentence what was lost, and how far that is known."""
        after = f"entry {self.size}" + (f", of {iso(self.since_us)}" if self.since_us else "")
        if not self.heads:
            moved = (
                "the server was promoted or the database restored, and " if self.has_moved else ""
            )
            return f"{moved}no witness tells whether anything was lost after {after}"
        seen = f", at {iso(self.seen_us)}" if self.seen_us else ""
        return (
            f"entries {self.size + 1} to {self.last} are lost: the store goes no further than "
            f"{after}, and the witness saw entry {self.last}{seen}"
        )


class WitnessComparison(Struct, frozen=True):
    """What came of holding a store against its witness.

    `loss` is what is lost and was not told before; `last` the last head of both. `has_diverged`
    says that the witness, or what else lies beside it, may be of a history that the store does not
    hold.
    """

    loss: Loss | None = None
    last: Checkpoint | None = None
    has_diverged: bool = False


def find_loss(
    database: Database, witness: Path, key: str, may_join: Callable[[], bool]
) -> WitnessComparison:
    """Hold a store against its witness file, and its database against the instance that it was.

    `key` is the verifier key in force. `may_join` says whether a folder without a witness may go on
    all the same, as others vouch for the store. Only the last note is compared, at the cost of one
    row; `vedette verify` compares all. Raises BadStore if the witness is of another store.
    """
    found = _compare_witness(database, witness, key, may_join)
    if found.loss is None and _has_moved(database):
        head, at = _last_entry(database)
        return replace(found, loss=Loss(head, (), at, has_moved=True), has_diverged=True)
    return found


def _last_entry(database: Database) -> tuple[int, int]:
    """Return the last entry and when it was written, in microseconds; zeros before the first."""
    entries = EntryReader(database, content=False)
    return entries.last_seq(), entries.last_at_us()


def _has_moved(database: Database) -> bool:
    """Say whether the store was written last on another instance; one of before names none."""
    instance = read_meta(database, INSTANCE)
    return instance is not None and instance != database.instance()


def _compare_witness(
    database: Database, witness: Path, key: str, may_join: Callable[[], bool]
) -> WitnessComparison:
    point = read_last_checkpoint(witness)
    head, at = _last_entry(database)
    if point is None:
        if not head:
            create_witness(witness)
        elif witness.exists() and (first := _only_note(database)):
            # Who was killed then had shown nothing yet. Killed again, this would look like a loss.
            append_note(witness, first)
        elif not may_join():
            return WitnessComparison(Loss(head, (), at), has_diverged=True)
        return WitnessComparison(last=read_last_checkpoint(witness))
    if holds_checkpoint(database.rows, point):
        return WitnessComparison(last=point)
    if not head:
        raise BadStore(
            f"the witness saw a ledger of {point.size} entries, and the store here holds none",
            where=str(witness),
            mend="name the store of this fleet, or restore one",
        )
    branch = _find_branch(database, witness, head)
    if _is_known_loss(_read_lost_heads(database), point, branch.common):
        return WitnessComparison(has_diverged=True)
    return WitnessComparison(_measure_loss(database, witness, key, branch), has_diverged=True)


def _only_note(database: Database) -> str | None:
    """Return the note of a store that has had one group only, None of any other."""
    few = database.rows("SELECT note FROM checkpoint LIMIT 2")
    return str(few[0][0]) if len(few) == 1 else None


def holds_checkpoint(ask: Callable[[str, Sequence[Any]], list[Row]], point: Checkpoint) -> bool:
    """Say whether a store holds a head; one within what it has archived is taken to be held."""
    rows = ask(
        "SELECT (SELECT note FROM checkpoint WHERE size=?), (SELECT MAX(last) FROM segment), "
        "(SELECT value FROM meta WHERE name=?)",
        (point.size, ARCHIVED),
    )
    ((note, last, archived),) = rows
    if note is None:
        return (
            archived is not None and point.size <= ArchivedPrefix.from_bytes(archived.encode()).size
        )
    held = Checkpoint.from_body(parse_note(note).body)
    return held == point and last is not None and last >= point.size


def _read_lost_heads(database: Database) -> list[LostHead]:
    """Return the heads of history that this store has recorded as lost."""
    restored = read_meta(database, RESTORED)
    heads = orjson.loads(restored).get("heads", []) if restored is not None else []
    return [(size, root, after) for size, root, after in heads]


def _is_known_loss(lost_heads: Collection[LostHead], point: Checkpoint, common: int) -> bool:
    """Say whether a head is one that is known to be lost, or lies before one.

    `common` is the last head that its witness shares with the store, 0 if it shares none. Who has
    seen the store go on after a loss saw another history than the one that was lost then, however
    short it is; who came later than the last they share may have seen either.
    """
    return any(
        (size, root) == (point.size, point.root.hex())
        or (point.size < size and 0 < common <= after)
        for size, root, after in lost_heads
    )


class _Branch(Struct, frozen=True):
    """What a witness saw that the store does not hold: its notes behind the last `common` head.

    `size` is how far the store is of the history that the witness saw.
    """

    common: int
    notes: list[str]
    size: int


def _find_branch(database: Database, witness: Path, head: int) -> _Branch:
    """Return where a store that ends at `head` and what its witness saw part."""
    notes = read_notes(witness.read_text(encoding="utf-8", errors="replace"))
    common, forked, at = 0, False, len(notes)
    for note in reversed(notes):
        point = Checkpoint.from_body(parse_note(note).body)
        if holds_checkpoint(database.rows, point):
            common = point.size
            break
        at -= 1
        forked = forked or point.size <= head
    # Others have written here since, or none of them has: then all of the store is ours.
    return _Branch(common, notes[at:], common if forked else head)


def _measure_loss(database: Database, witness: Path, key: str, branch: _Branch) -> Loss:
    """Return what a witness saw beyond the store. Raises BadStore for what it may not have."""
    try:
        heads = heads_beyond(branch.notes, branch.size, key)
    except ProofError as error:
        raise BadStore(
            f"a head that the witness saw beyond the store does not hold: {error}",
            where=str(witness),
            mend="put the key in its place that was in force then; if the key was rotated since, "
            "this store cannot go on: restore one from after the rotation",
        ) from error
    last = EntryReader(database, content=False).find(branch.size)
    seen_us = witness.stat().st_mtime_ns // 1000
    return Loss(branch.size, heads, at_us_of(last.raw) if last is not None else 0, seen_us)


def record_instance(database: Database) -> None:
    """Write which instance of its database a store is from now on, inside a transaction."""
    if instance := database.instance():
        write_meta(database, INSTANCE, instance)


def note_size(note: str) -> int:
    """Return the size that a note of the witness file claims; 0 for one that claims none."""
    try:
        return Checkpoint.from_body(parse_note(note).body).size
    except ProofError:
        return 0


def heads_beyond(notes: Sequence[str], size: int, key: str) -> tuple[Head, ...]:
    """Return the last head of every stretch of a witness's notes that reaches beyond a size.

    Raises ProofError for one that `key` has not signed.
    """
    sizes = [note_size(note) for note in notes]
    found = []
    for at, note in enumerate(notes):
        if sizes[at] > size and (at + 1 == len(notes) or sizes[at + 1] < sizes[at]):
            point = Checkpoint.from_body(verify_note(note, key))
            found.append((point.size, point.root.hex()))
    return tuple(found)


def quarantine_database(file: Path) -> None:
    """Put a SQLite file that was made of the lost history out of the way, to be made anew."""
    for end in ("", "-wal", "-shm"):
        path = file.with_name(file.name + end)
        if path.exists():
            path.replace(file.with_name(f"lost-{file.name}{end}"))


def record_loss(parts: WriteParts, loss: Loss, *, actor: str, reason: str) -> int:
    """Write the entry that a store lost history, and stop everything; return the entry's seq.

    Inside the writer's transaction. What any earlier loss named stays named; the doubt begins anew,
    and a stop that would lift itself is replaced: it is no reason to be sure of what happened.
    """
    database = parts.database
    body = Body(canonical_json({"reason": reason}))
    heads = [list(head) for head in loss.heads]
    fields = {"size": loss.size, "heads": heads or None, "actor": actor}
    draft = Draft("store.restored", fields, body=body)
    seq = parts.ledger.append([draft], None, 0, parts.now_us())
    named = [*_read_lost_heads(database), *((size, root, loss.size) for size, root in loss.heads)]
    kept = {"seq": seq, "heads": list(dict.fromkeys(named))}
    write_meta(database, RESTORED, orjson.dumps(kept).decode())
    record_instance(database)
    stopped = Draft("stop.set", {"what": "all:", "actor": actor}, body=body)
    with suppress(BadCommand):  # it is stopped already, without an end
        parts.commands.stop(stopped, "all", "", True)
    return seq


def record_found_loss(
    parts: WriteParts, hooks: CommitHooks, key: str, may_join: Callable[[], bool] | None = None
) -> Loss | None:
    """Record what a store has lost of the history its witness saw; return it. Raises BadStore.

    Before the group writer begins. Without `may_join` the store is a file, see `_find_new_loss`.
    """
    if _find_new_loss(parts, key, may_join) is None:
        return None
    parts.database.begin()
    try:
        parts.reload()  # the stop comes after those that there were
        hooks.on_begin(())
        loss = _find_new_loss(parts, key, may_join)  # another worker may have recorded it meanwhile
        if loss is not None:
            record_loss(parts, loss, actor=str(ENGINE), reason=loss.sentence)
            parts.buffer.flush()
            parts.ledger.close_group()
            parts.database.commit()
    finally:
        parts.database.rollback()
    if loss is not None:
        parts.ledger.confirm_group()
    return loss


def _find_new_loss(parts: WriteParts, key: str, may_join: Callable[[], bool] | None) -> Loss | None:
    witness = parts.witness
    found = find_loss(parts.database, witness.path, key, may_join or (lambda: False))
    loss, witness.last_checkpoint = found.loss, found.last
    if loss is not None and loss.heads and may_join is None:
        # A server goes back by itself; a file does not: somebody put it there.
        raise BadStore(
            f"the witness saw a ledger of {loss.last} entries that this store does not hold",
            where=str(witness.path),
            mend="put the store's whole folder back, or `vedette restore` a backup",
        )
    if found.has_diverged:
        # Before any head is shown: whoever is killed now finds it again.
        quarantine_database(witness.path.with_name("memory.db"))
    return loss
