"""The store's writer of the ledger: it gives entries their place, grows the tree, signs the head.

Only who writes the group may call it (see `group_commit`). What a group writes is gathered here and
in `WriteBuffer`, and goes to the database at the group's end, table by table. What an item was
given is taken back with `rollback_to`; nothing is appended to the tree before the whole group is
about to commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vedette.domain.base import machine
from vedette.domain.base.canonical import SALT_BYTES, salted_digest
from vedette.domain.base.errors import BadCommand, BadStore
from vedette.domain.base.failpoint import hit_failpoint
from vedette.domain.entry import Draft, encode_entry
from vedette.ledger.merkle import (
    Checkpoint,
    Frontier,
    ProofError,
    SigningKey,
    is_signature,
    key_id,
    parse_note,
    verifier_key,
)
from vedette.store.dialect import Database
from vedette.store.schema import LINE_KINDS, NEWEST_FRONTIER
from vedette.store.segment import StoredEntry
from vedette.store.stored_entries import write_entries
from vedette.store.witness import Witness

# An upsert, so that the head before gives up its tree in the same statement.
_CHECKPOINT = (
    "INSERT INTO checkpoint(size,note,frontier) VALUES(?,?,?) "
    "ON CONFLICT(size) DO UPDATE SET frontier=excluded.frontier"
)
_LINE_KINDS = frozenset(LINE_KINDS)


class LedgerWriter:
    """Sequencer, tree and checkpoints of one store."""

    def __init__(
        self,
        database: Database,
        *,
        origin: str,
        key_name: str,
        key: SigningKey,
        witness: Witness,
        now_us: Callable[[], int],
    ) -> None:
        self._database = database
        self._origin = origin
        self._key_name = key_name
        self._key, self._key_id = key, _id_of(key_name, key)
        self._witness = witness
        self._now_us = now_us
        self._frontier = Frontier()
        # The newest signed head.
        self._head: str | None = None
        self._entries: list[StoredEntry] = []
        self._rare: list[tuple[str, int]] = []
        # The entries that the tree grows by when the group is closed.
        self._leaves: list[bytes] = []
        self._checkpoint: tuple[str, Checkpoint] | None = None
        self._handover: tuple[int, SigningKey] | None = None
        self._salts, self._salt_index = b"", 0
        self.load()
        self._check_first_key()

    def load(self) -> None:
        """Take up the tree as the store has it. Raises BadStore if it is not the ledger's."""
        # One statement: another worker may commit between two.
        ((frontier, note, key, last),) = self._database.rows(
            f"SELECT ({NEWEST_FRONTIER}), "
            "(SELECT note FROM checkpoint ORDER BY size DESC LIMIT 1), "
            "(SELECT value FROM meta WHERE name='ledger_key'), "
            "(SELECT COALESCE(MAX(last),0) FROM segment)"
        )
        self._frontier, self._head = _read_frontier(frontier, note), note
        self._check_key(key)
        if last != self._frontier.size:
            raise BadStore(
                f"the ledger ends at {last}, its tree at {self._frontier.size}",
                mend="run `vedette verify`",
            )
        self._next = self._frontier.size + 1

    def _check_key(self, in_force: str | None) -> None:
        """Refuse to sign by a key that was rotated away: nobody would believe it."""
        ours = self._key.public_key().public_bytes_raw() if in_force else b""
        if in_force and verifier_key(self._key_name, ours) != in_force:
            raise BadStore(
                "the signing key is not the one that the ledger's last rotation named",
                mend="put that key in its place; `vedette ledger rotate-key` wrote it",
            )

    def _check_first_key(self) -> None:
        """Refuse another key than the first, too, while that is in force: no rotation names it."""
        ((named, note),) = self._database.rows(
            "SELECT (SELECT value FROM meta WHERE name='ledger_key'), "
            "(SELECT note FROM checkpoint ORDER BY size DESC LIMIT 1)"
        )
        if named or not note:
            return
        ours = (self._key_name, self._key_id)
        if ours not in [(made.name, made.key_id) for made in parse_note(note).signatures]:
            raise BadStore(
                "this fleet signs with another key than its ledger's last checkpoint",
                mend="put the key in its place that signed it: from a backup with keys, or from "
                "another worker's state folder",
            )

    def sign(self, data: bytes) -> bytes:
        """Return the fleet's signature of something that is to be proved without the tree."""
        return self._key.sign(data)

    def is_signed(self, data: bytes, signature: bytes) -> bool:
        """Say whether `signature` is that of the key in force; one of before a rotation is not."""
        return is_signature(self._key.public_key(), data, signature)

    @property
    def last_seq(self) -> int:
        """Return the seq of the last entry that has a place (committed or about to be)."""
        return self._next - 1

    def mark(self) -> tuple[int, int, int, int]:
        """Return a mark to go back to."""
        return self._next, len(self._entries), len(self._rare), len(self._leaves)

    def rollback_to(self, mark: tuple[int, int, int, int]) -> None:
        """Take back every place given since the mark."""
        self._next, entries, rare, leaves = mark
        del self._entries[entries:]
        del self._rare[rare:]
        del self._leaves[leaves:]
        if self._handover is not None and self._handover[0] >= self._next:
            self._handover = None

    def rotate_key(self, seq: int, key: SigningKey) -> None:
        """Sign by another key from the next group on; the entry at `seq` names it.

        Raises BadCommand if this group hands over already: a key must sign one group at least.
        """
        if self._handover is not None:
            raise BadCommand("the key is being rotated already", mend="rotate again afterwards")
        self._handover = (seq, key)

    def append(
        self, drafts: Sequence[Draft], run: str | None, n: int, at_us: int, about: int | None = None
    ) -> int:
        """Give each draft its place; return the last seq. `n` counts the run's entries before.

        `about` is the seq of the event they belong to. Raises ValueError for a draft that has no
        canonical form; then none has a place.
        """
        mark = self.mark()
        try:
            for draft in drafts:
                n += 1
                self._append(draft, run, n, at_us, about)
        except BaseException:
            self.rollback_to(mark)
            raise
        return self._next - 1

    def _append(self, draft: Draft, run: str | None, n: int, at_us: int, about: int | None) -> None:
        seq = self._next
        salt = data = digest = None
        if draft.body is not None:
            salt, data = draft.body.salt or self._salt(), draft.body.data
            digest = salted_digest(salt, data)
        raw = encode_entry(draft, seq=seq, at_us=at_us, run=run, n=n, body=digest, about=about)
        self._entries.append(StoredEntry(seq, raw, about, salt, data))
        if draft.kind not in _LINE_KINDS:
            self._rare.append((draft.kind, seq))
        self._leaves.append(raw)
        self._next = seq + 1

    def _salt(self) -> bytes:
        at = self._salt_index
        if at == len(self._salts):
            self._salts, at = machine.random_bytes(SALT_BYTES * 256), 0
        self._salt_index = at + SALT_BYTES
        return self._salts[at : at + SALT_BYTES]

    def flush(self) -> None:
        """Write what has been given a place since the last time."""
        if self._entries:
            write_entries(self._database, self._entries, self._rare)
            self._entries.clear()
            self._rare.clear()

    def close_group(self) -> None:
        """Grow the tree by the group's entries and sign its head, before COMMIT."""
        self._checkpoint = None
        if not self._leaves:
            return
        grown = self._frontier.grow(self._leaves)
        point = grown.checkpoint(self._origin)
        note = point.sign(self._key_name, self._key, self._key_id)
        self._checkpoint = note, point
        heads: list[tuple[Any, ...]] = [(point.size, note, grown.to_bytes())]
        if self._head is not None:
            heads.append((self._frontier.size, self._head, None))
        self._database.execute_many(_CHECKPOINT, heads)
        self._next_frontier = grown

    def confirm_group(self) -> None:
        """Take over the grown tree after COMMIT and show its head to the witness."""
        if self._checkpoint is None:
            return
        self._frontier = self._next_frontier
        self._leaves.clear()
        if self._handover is not None:
            self._key, self._handover = self._handover[1], None
            self._key_id = _id_of(self._key_name, self._key)
        (note, point), self._checkpoint = self._checkpoint, None
        self._head = note
        hit_failpoint("witness:before")
        self._witness.add_checkpoint(note, point)
        hit_failpoint("witness:after")

    @property
    def is_witness_behind(self) -> bool:
        """Say whether the witness could not take the last head; the next one makes up for it."""
        return self._witness.is_behind

    def discard_group(self) -> None:
        """Forget the group: its transaction does not stand."""
        self._entries.clear()
        self._rare.clear()
        self._leaves.clear()
        self._checkpoint = self._handover = None
        self._next = self._frontier.size + 1


def _read_frontier(frontier: Any, note: str | None) -> Frontier:
    """Return the tree that a store keeps. Raises BadStore unless it is that of its signed head."""
    try:
        found = Frontier.from_bytes(bytes(frontier)) if frontier else Frontier()
        signed = Checkpoint.from_body(parse_note(note).body) if note is not None else None
    except ProofError as error:
        raise BadStore(
            f"the ledger's tree cannot be read: {error}", mend="run `vedette verify`"
        ) from error
    if signed is not None and (signed.size, signed.root) != (found.size, found.root()):
        raise BadStore(
            f"the tree that the store keeps is not that of its signed head at {signed.size}",
            mend="run `vedette verify`",
        )
    return found


def _id_of(name: str, key: SigningKey) -> bytes:
    return key_id(name, key.public_key().public_bytes_raw())
