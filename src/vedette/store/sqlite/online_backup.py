"""A consistent copy of a SQLite file that others may be writing."""

from __future__ import annotations

import os
from pathlib import Path

from vedette.domain.base.disk_errors import to_disk_error
from vedette.domain.base.errors import BadStore
from vedette.domain.base.failpoint import hit_failpoint
from vedette.domain.base.fsync import sync


def copy_database(source: Path, to: Path) -> None:
    """Copy a SQLite file as of one moment, with what its log holds, into a single new file.

    By SQLite's online backup in one step, so under one read transaction: writers go on meanwhile
    and what they commit is not in the copy. Durable on return. Raises BadStore, StoreFailed.
    """
    import apsw

    if to.exists():
        raise BadStore("there is such a file already", where=str(to), mend="name a new folder")
    hit_failpoint("copy:before")
    # Its content is the fleet's: nobody else is to read it, not even for a moment.
    os.close(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    reading = writing = None
    try:
        reading = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)
        reading.set_busy_timeout(10_000)
        writing = apsw.Connection(str(to))
        with writing.backup("main", reading, "main") as backup:
            while not backup.done:
                backup.step(-1)
        hit_failpoint("copy:mid")
        # The copy is one file: no log lies beside it that could be left behind.
        writing.execute("PRAGMA journal_mode=DELETE").fetchall()
    except apsw.Error as error:
        if (told := to_disk_error(error, to)) is not None:
            raise told from error
        mend = "see whether the file is a store and the disk has room"
        raise BadStore(f"cannot be copied: {error}", where=str(source), mend=mend) from error
    finally:
        for connection in (writing, reading):
            if connection is not None:
                connection.close()
    sync(to)
    hit_failpoint("copy:after")
