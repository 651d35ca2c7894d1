"""The ledger's end of a transaction: gives entries their place, grows the tree, signs the head.

All methods run on the writer's thread, inside its transaction. A savepoint that is rolled back
takes the places given in it back (`mark`, `back_to`); nothing is appended to the tree before the
whole group is about to commit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vedette.digest import SALT_BYTES, salted
from vedette.entry import Draft, seal
from vedette.errors import BadStore
from vedette.proof import (
    Checkpoint,
    Frontier,
    ProofError,
    SigningKey,
    leaf_hash,
    parse_note,
    read_notes,
    sign_note,
)

if TYPE_CHECKING:
    import apsw

_ENTRY = "INSERT INTO entry VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?)"
_BODY = "INSERT INTO body VALUES(?,?,?,?)"

# A note is some 250 bytes; its last line is a signature, behind an em dash, and an empty line
# parts it from the next.
_TAIL = 4096
_NOTE_END = re.compile(rb"^\xe2\x80\x94 [^\n]*\n\n", re.MULTILINE)


class Ledger:
    """Sequencer, tree and checkpoints of one store."""

    def __init__(
        self,
        connection: apsw.Connection,
        *,
        origin: str,
        key_name: str,
        key: SigningKey,
        witness: Path,
        now_us: Callable[[], int],
    ) -> None:
        self._connection = connection
        self._origin = origin
        self._key_name = key_name
        self._key = key
        self._witness = witness
        self._now_us = now_us
        self._frontier = Frontier()
        self._pending: list[bytes] = []
        self._note: str | None = None
        self.witness_behind = False
        self._load()

    def _load(self) -> None:
        rows: list[Any] = self._connection.execute(
            "SELECT value FROM meta WHERE name='frontier'"
        ).fetchall()
        if rows:
            self._frontier = Frontier.from_bytes(rows[0][0])
        last = self._connection.execute("SELECT COALESCE(MAX(seq),0) FROM entry").fetchall()[0][0]
        if last != self._frontier.size:
            raise BadStore(
                f"the ledger ends at {last}, its tree at {self._frontier.size}",
                mend="run `vedette ledger verify`",
            )
        self._next = self._frontier.size + 1

    @property
    def head(self) -> int:
        """Return the seq of the last entry that has a place (committed or about to be)."""
        return self._next - 1

    def mark(self) -> tuple[int, int]:
        """Return a mark to go back to."""
        return self._next, len(self._pending)

    def back_to(self, mark: tuple[int, int]) -> None:
        """Take back every place given since the mark."""
        self._next, kept = mark
        del self._pending[kept:]

    def append(self, drafts: Sequence[Draft], run: str | None, n: int, at_us: int) -> int:
        """Give each draft its place; return the last seq. `n` counts the run's entries before."""
        execute = self._connection.execute
        for draft in drafts:
            seq = self._next
            body = draft.body
            digest = None
            if body is not None:
                salt = os.urandom(SALT_BYTES)
                digest = salted(salt, body.data)
                execute(_BODY, (seq, salt, body.data, body.subject))
            n += 1
            raw = seal(draft, seq=seq, at_us=at_us, run=run, n=n, body=digest)
            get: Callable[[str], Any] = draft.fields.get
            cause = seq - draft.back if draft.back else draft.cause
            execute(
                _ENTRY,
                (
                    seq, at_us, draft.kind, run, get("event"), get("agent"), get("action"),
                    get("outcome"), get("rule"), get("policy_rev"), get("actor"), cause, raw,
                ),
            )  # fmt: skip
            self._pending.append(leaf_hash(raw))
            self._next = seq + 1
        return self._next - 1

    def close_group(self) -> None:
        """Grow the tree by the group's entries and sign its head, before COMMIT."""
        self._note = None
        if not self._pending:
            return
        grown = self._frontier.copy()
        for leaf in self._pending:
            grown.append(leaf)
        point = Checkpoint(self._origin, grown.size, grown.root())
        self._note = sign_note(point.body(), self._key_name, self._key)
        self._connection.execute("INSERT INTO checkpoint VALUES(?,?)", (grown.size, self._note))
        self._connection.execute(
            "INSERT OR REPLACE INTO meta VALUES('frontier',?)", (grown.to_bytes(),)
        )
        self._grown = grown

    def committed(self) -> None:
        """Take over the grown tree after COMMIT and show its head to the witness."""
        if self._note is None:
            return
        self._frontier = self._grown
        self._pending.clear()
        try:
            show(self._witness, self._note)
        except OSError:
            # The commit stands; the next group shows the witness a later head.
            self.witness_behind = True
        else:
            self.witness_behind = False
        self._note = None

    def failed(self) -> None:
        """Forget the group: its transaction does not stand."""
        self._pending.clear()
        self._note = None
        self._next = self._frontier.size + 1


def show(witness: Path, note: str) -> None:
    """Append a note to the witness file, whole or not at all. Raises OSError."""
    raw = (note + "\n").encode()
    with witness.open("ab", buffering=0) as file:
        start = file.seek(0, os.SEEK_END)
        if file.write(raw) != len(raw):
            file.truncate(start)
            raise OSError("the witness file takes no more")


def last_shown(witness: Path) -> Checkpoint | None:
    """Return the last head that the witness saw; cut off a note whose writing was broken off.

    Its signature is not looked at here. Raises BadStore for a file that holds something else.
    """
    if not witness.exists():
        return None
    with witness.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL))
        tail = file.read()
        ends = [match.end() for match in _NOTE_END.finditer(tail)]
        kept = size - len(tail) + (ends[-1] if ends else 0)
        try:
            if not ends and size > len(tail):
                raise ProofError("there is no note in its last part")
            point = None
            if ends:
                note = read_notes(tail[: ends[-1]].decode("utf-8", "replace"))[-1]
                point = Checkpoint.from_body(parse_note(note).body)
        except ProofError as error:
            raise BadStore(
                f"the witness file is not one: {error}",
                where=str(witness),
                mend="put the file back that was written beside this store",
            ) from error
        if kept < size:
            file.truncate(kept)
    return point


def check_witness(connection: apsw.Connection, witness: Path) -> None:
    """Refuse a store that is shorter than, or differs from, the last head the witness saw.

    Only the last note is compared here, at the cost of one row; `vedette ledger verify` compares
    all. Raises BadStore.
    """
    point = last_shown(witness)
    if point is None:
        return
    rows: list[Any] = connection.execute(
        "SELECT note, (SELECT MAX(seq) FROM entry) FROM checkpoint WHERE size=?", (point.size,)
    ).fetchall()
    held = Checkpoint.from_body(parse_note(rows[0][0]).body) if rows else None
    if held != point or rows[0][1] is None or rows[0][1] < point.size:
        raise BadStore(
            f"the witness saw a ledger of {point.size} entries that this store does not hold",
            where=str(witness),
            mend="restore the store's whole folder, or see `vedette ledger verify`",
        )
