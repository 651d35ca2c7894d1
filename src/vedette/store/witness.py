"""The witness file: every signed head, appended after its commit, outside of the store.

It is what a store that was cut, or is an older one, is found out by
(`vedette.store.loss_detection`); copy it to where nobody who can write the store can write.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from vedette.domain.base import machine
from vedette.domain.base.errors import BadStore
from vedette.domain.base.fsync import sync
from vedette.domain.base.state_folder import open_file, refuse_link
from vedette.ledger.merkle import Checkpoint, ProofError, parse_note, read_notes

WITNESS_FILE = "witness.log"

# A note is some 250 bytes; its last line is a signature, behind an em dash, and an empty line
# parts it from the next.
_TAIL = 4096
_NOTE_END = re.compile(rb"^\xe2\x80\x94 [^\n]*\n\n", re.MULTILINE)


class Witness:
    """The witness file of a store's heads. `is_behind` says that the last one could not be written.

    `last_checkpoint` is the furthest head that was shown, or would have been. Any thread may show
    one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_behind = False
        self.last_checkpoint: Checkpoint | None = None
        self._lock = machine.Lock()

    def add_checkpoint(self, note: str, point: Checkpoint) -> None:
        """Append a note that says `point`, unless a further head was shown.

        Never raises for the file's sake: the commit stands.
        """
        with self._lock:
            if self.last_checkpoint is not None and point.size <= self.last_checkpoint.size:
                return
            self.last_checkpoint = point
            try:
                append_note(self.path, note)
            except (OSError, BadStore):
                self.is_behind = True
            else:
                self.is_behind = False


def append_note(witness: Path, note: str) -> None:
    """Append a note to a store's witness file, whole or not at all. Raises OSError, BadStore.

    The first is made durable: a file without one tells of a witness that was lost.
    """
    raw = (note + "\n").encode()
    file = open_file(witness, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        first = not os.fstat(file).st_size
        written = os.write(file, raw)
        if written != len(raw):
            # Nobody else appends: what stands behind the last whole note is ours.
            os.ftruncate(file, os.fstat(file).st_size - written)
            raise OSError("the witness file takes no more")
        if first:
            os.fsync(file)
            sync(witness.parent)
    finally:
        os.close(file)


def create_witness(witness: Path) -> None:
    """Make an empty witness file, durable, beside a store that holds nothing yet."""
    os.close(open_file(witness, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    sync(witness.parent)


def read_last_checkpoint(witness: Path) -> Checkpoint | None:
    """Return the last head in a store's witness file; cut off a note whose writing was broken off.

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
