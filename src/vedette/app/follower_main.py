"""The follower's process: folds the ledger into the read model, until its runner has gone.

Started by a runner as `python -m vedette.app.follower_main`; what it reads from is its standard
input: one line of JSON that says where the store is, then a byte after each commit. It imports what
reads entries and writes the model, and holds no key.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vedette.store.readmodel.model import ViewHome

_MAX_LINE = 65_536
# Others may commit to a shared store, and their runners wake followers of their own.
SHARED_POLL_S = 0.25


def view_home(place: dict[str, Any]) -> ViewHome:
    """Return where the read model of a store lies: `url` of a server, or the folder `state`."""
    if "url" in place:
        from functools import partial

        from vedette.store.postgres.database import PostgresDatabase
        from vedette.store.postgres.view_tables import NAME, ViewTables

        return ViewTables(partial(PostgresDatabase, str(place["url"]), name=NAME))
    from vedette.store.sqlite.view_file import ViewFile

    return ViewFile(Path(place["state"]))


def main() -> int:
    """Be the follower of the store that the first line of standard input names."""
    # The runner's to answer, also where a whole control group is told: we end when it does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    place = _read_line(0)
    if place is None:
        return 0
    from vedette.store.readmodel.follower import follow

    try:
        follow(view_home(place), 0, SHARED_POLL_S if "url" in place else None)
    except Exception as error:
        sys.stderr.write(f"{_describe(error, place)}\n")
        return 1
    return 0


def _describe(error: Exception, place: dict[str, Any]) -> str:
    """Say in one line why the follower ends."""
    from vedette.domain.base.disk_errors import to_disk_error
    from vedette.domain.base.errors import VedetteError

    # A server's address may hold a password: no word of it.
    told = to_disk_error(error, str(place.get("state", "the read model"))) or error
    line = " ".join(str(told).split())
    return line if isinstance(told, VedetteError) else f"{type(told).__name__}: {line}"


def _read_line(descriptor: int) -> dict[str, Any] | None:
    """Return the line that the runner sends first; None if it has gone already."""
    line = b""
    while not line.endswith(b"\n"):
        # Byte by byte: what follows the line are wakes.
        read = os.read(descriptor, 1)
        if not read or len(line) > _MAX_LINE:
            return None
        line += read
    found: dict[str, Any] = json.loads(line)
    return found


if __name__ == "__main__":
    sys.exit(main())
