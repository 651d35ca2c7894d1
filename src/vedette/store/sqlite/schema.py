"""The schema of a store's file: a new one gets this program's tables, any other must have them.

Nothing is brought up here: `vedette upgrade` does that, by hand (`vedette.store.sqlite.upgrade`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vedette.domain.base.errors import BadStore
from vedette.domain.base.failpoint import hit_failpoint
from vedette.store.schema import SCHEMA, TABLES, UNJUDGED_INDEX, refuse_newer, refuse_older

if TYPE_CHECKING:
    import apsw


def create_tables(connection: apsw.Connection, path: Path) -> None:
    """Make a new file's tables. Raises BadStore for a file of another schema."""
    if read_schema(connection) == 0:
        hit_failpoint("schema:before")
        with connection:
            connection.execute(TABLES)
            connection.execute(f"PRAGMA user_version={SCHEMA}")
            hit_failpoint("schema:mid")
        hit_failpoint("schema:after")
    check_schema(connection, path)
    connection.execute(UNJUDGED_INDEX)


def check_schema(connection: apsw.Connection, path: Path) -> None:
    """Raise BadStore for a store that this program cannot read."""
    found = read_schema(connection)
    if found == 0:
        raise BadStore("there is no store here", where=str(path), mend="start `vedette run` once")
    refuse_newer(found, str(path))
    refuse_older(found, str(path))


def read_schema(connection: apsw.Connection) -> int:
    """Return the schema of a file; 0 for one without tables."""
    found: Any = connection.execute("PRAGMA user_version").fetchall()[0][0]
    return int(found)
