"""The runner's lock file: whoever holds it owns the state folder and its store."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from vedette.domain.base.errors import StoreBusy
from vedette.domain.base.state_folder import open_text

LOCK_FILE = "runner.lock"


def acquire_lock(
    path: Path, what: str = "this store", mend: str = "stop it, or use another state folder"
) -> IO[str]:
    """Hold the runner's lock file, beside the store that it guards.

    Raises StoreBusy, saying `what` another runner owns, and the mend; BadStore if the
    lock is a link.
    """
    file = open_text(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        file.close()
        raise StoreBusy(
            f"another runner (process {owner}) owns {what}",
            where=str(path.parent),
            mend=mend,
        ) from None
    # Who holds it is for people to read: a disk that takes no more keeps nobody from owning it.
    with suppress(OSError):
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), str(os.getpid()).encode())
    return file
