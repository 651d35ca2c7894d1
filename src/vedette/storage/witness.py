"""The witness file: every signed head, appended after its commit, outside of the store.

It is what a store that was cut is found out by; copy it to where nobody who can write the store
can write.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from vedette.errors import BadStore
from vedette.proof import Checkpoint, ProofError, parse_note, read_notes
from vedette.state_folder import open_file, refuse_link
from vedette.storage.database import Database

# A note is some 250 bytes; its last line is a signature, behind an em dash, and an empty line
# parts it from the next.
_TAIL = 4096
_NOTE_END = re.compile(rb"^\xe2\x80\x94 [^\n]*\n\n", re.MULTILINE)


class Witness:
    """Where heads are shown. `behind` says that the last one could not be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.behind = False

    def show(self, note: str) -> None:
        """Append a note. Never raises for the file's sake: the commit stands."""
        try:
            show(self.path, note)
        except (OSError, BadStore):
            self.behind = True
        else:
            self.behind = False


def show(witness: Path, note: str) -> None:
    """Append a note to the witness file, whole or not at all. Raises OSError, BadStore."""
    raw = (note + "\n").encode()
    file = open_file(witness, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        written = os.write(file, raw)
        if written != len(raw):
            # Nobody else appends: what stands behind the last whole note is ours.
            os.ftruncate(file, os.fstat(file).st_size - written)
            raise OSError("the witness file takes no more")
    finally:
        os.close(file)


def last_shown(witness: Path) -> Checkpoint | None:
    """Return the last head that the witness saw; cut off a note whose writing was broken off.

    Its signature is not looked at here. Raises BadStore for a file that holds something else.
    """
    refuse_link(witness)
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


def check_witness(database: Database, witness: Path) -> None:
    """Refuse a store that is shorter than, or differs from, the last head the witness saw.

    Only the last note is compared here, at the cost of one row; `vedette ledger verify` compares
    all. Raises BadStore.
    """
    point = last_shown(witness)
    if point is None:
        return
    rows = database.rows(
        "SELECT note, (SELECT MAX(seq) FROM entry) FROM checkpoint WHERE size=?", (point.size,)
    )
    held = Checkpoint.from_body(parse_note(rows[0][0]).body) if rows else None
    if held != point or rows[0][1] is None or rows[0][1] < point.size:
        raise BadStore(
            f"the witness saw a ledger of {point.size} entries that this store does not hold",
            where=str(witness),
            mend="restore the store's whole folder, or see `vedette ledger verify`",
        )
