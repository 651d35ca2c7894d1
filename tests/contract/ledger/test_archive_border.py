"""Before the first entry that a store still has there is nothing that anybody goes by."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest
from tests.contract.ledger.test_archive import clock as clock
from tests.contract.ledger.test_archive import folder as folder
from tests.contract.ledger.test_archive import put_away, verified
from tests.segments import SEGMENTS, entries_of, pack

from vedette.ledger.verify import Code
from vedette.testing.clock import ManualClock

PUT = "INSERT INTO segment(last,first,entries,bodies) VALUES(?,?,?,?)"
FORGED = b'{"v":1,"seq":%d,"at":1,"kind":"hold.approved","about":%d}'


def forge(file: apsw.Connection, size: int, how: str) -> None:
    """Put entries of one's own before the first that the store has, or say that it has others."""
    row = next(file.execute(SEGMENTS))
    old = list(entries_of([row]))
    first = old[0].seq
    if how.startswith("an "):
        file.execute("INSERT INTO rare_entry VALUES('hold.approved',?)", (size,))
    if how == "another beginning":
        file.execute(PUT, (0, first + 9, b"", None))
    elif how == "an approval of later":
        file.execute(PUT, (size, size, pack([[FORGED % (size, first)], [first]]), None))
    elif how == "an entry before the first":
        raws = [FORGED % (size, size), *(one.raw for one in old)]
        packed = pack([raws, [size, *(one.about for one in old)]])
        file.execute("UPDATE segment SET first=?, entries=? WHERE last=?", (size, packed, row[0]))
    else:
        file.execute(PUT, (size, size, b"nonsense", None))


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("another beginning", Code.ROW_MISMATCH),
        ("an approval of later", Code.ROW_MISMATCH),
        ("an entry before the first", Code.ROW_MISMATCH),
        ("what cannot be read", Code.DAMAGED_SEGMENT),
    ],
)
async def test_entries_that_nothing_vouches_for_are_found_before_the_first(
    folder: Path, tmp_path: Path, clock: ManualClock, how: str, code: Code
) -> None:
    """The archive vouches for what was there, and the tree for what is behind it."""
    archived = await put_away(folder, tmp_path / "archive", clock, 4)
    assert verified(folder).ok
    connection = apsw.Connection(str(folder / "store.db"))
    forge(connection, archived.size, how)
    connection.close()
    assert code in verified(folder).counts
