"""Disk errors as people are told them: which file was refused, and the mend."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vedette.domain.base.errors import StoreFailed, VedetteError

FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
# What a device, or the network that it lies behind, says when it fails.
FAILURE_ERRNOS = (errno.EIO, errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.EREMOTEIO)
FULL_MEND = "make room, then start again; nothing accepted is lost"
FAILURE_MEND = (
    "see that the disk is well and its files may be written, then do it again; nothing accepted is "
    "lost"
)
# As SQLite has them, by their names: which library reads the file is the adapter's business. The
# last two it also says of a file that nobody may open.
_SQLITE_ERRORS = ("IOError", "CantOpenError", "ReadOnlyError")


@contextmanager
def convert_disk_errors(where: Path | str) -> Iterator[None]:
    """Turn the errors of a disk into StoreFailed (`no-space`, `disk-failed`), for people.

    `where` is the file or folder, unless the error names one itself.
    """
    try:
        yield
    except Exception as error:
        failure = to_disk_error(error, where)
        if failure is None:
            raise
        raise failure from error


def to_disk_error(error: Exception, where: Path | str) -> StoreFailed | None:
    """Return an error that is the disk's as StoreFailed, for people; None for any other."""
    if isinstance(error, VedetteError):
        return None
    named = where
    if isinstance(error, OSError):
        full, broken = error.errno in FULL_ERRNOS, error.errno in FAILURE_ERRNOS
        named = error.filename or where
        why = error.strerror or str(error)
    else:
        ours = type(error).__module__ == "apsw"
        full = ours and type(error).__name__ == "FullError"
        broken = ours and type(error).__name__ in _SQLITE_ERRORS
        why = str(error)
    if full:
        return StoreFailed("the disk is full", where=str(named), mend=FULL_MEND, code="no-space")
    if broken:
        what = f"the disk failed: {why}"
        return StoreFailed(what, where=str(named), mend=FAILURE_MEND, code="disk-failed")
    return None
