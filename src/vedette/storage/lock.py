"""The runner's lock: whoever holds it owns the state folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from vedette.errors import StoreBusy
from vedette.state_folder import open_text

LOCK = "runner.lock"


def own(
    path: Path, what: str = "this store", mend: str = "stop it, or use another state folder"
) -> IO[str]:
    """Hold the runner's lock.

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
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
