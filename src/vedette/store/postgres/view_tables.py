"""The read model of a PostgreSQL store: tables of its own in the store's database.

It is written over a connection of its own, never by who commits. The follower's lock is the
server's, so that one follows whatever host it is on, and goes with the session.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from vedette.domain.base.errors import VedetteError
from vedette.store.postgres.database import PostgresDatabase

# Half of the advisory lock's number; the other half is the oid of the fleet's own table.
_LOCK = 0x76646676 << 32
# Alone among all who write the model; the line goes on.
_BEGIN = "BEGIN; SELECT reached FROM view_state FOR UPDATE"
NAME = "vedette view"


class ViewTables:
    """Fits `vedette.store.readmodel.model.ViewHome`."""

    def __init__(self, connect: Callable[[], PostgresDatabase]) -> None:
        self._connect = connect
        self._open: PostgresDatabase | None = None
        self._session: object = None
        self._key = 0

    def open(self) -> tuple[PostgresDatabase, PostgresDatabase]:
        """Return the connection, as that to the entries and as that to the model."""
        if self._open is None:
            self._open = self._connect()
            self._open.begin_script = _BEGIN
            # What a crash of the server takes is made again.
            self._open.execute_script("SET synchronous_commit=off")
            self._session = self._open.connection
        return self._open, self._open

    def exists(self) -> bool:
        return True

    def is_current(self) -> bool:
        # The lock goes with the session, and what was set for it.
        return self._open is not None and self._open.connection is self._session

    def recover(self, error: Exception) -> bool:
        return False

    def try_lock(self) -> bool:
        database, _ = self.open()
        if not self._key:
            ((oid,),) = database.rows("SELECT CAST(CAST('meta' AS regclass) AS oid)")
            self._key = _LOCK | int(oid)
        ((taken,),) = database.rows(f"SELECT pg_try_advisory_lock({self._key})")
        return bool(taken)

    def unlock(self) -> None:
        if self._open is not None:
            with suppress(VedetteError, *self._open.lost_errors):  # it went with the session
                self._open.rows(f"SELECT pg_advisory_unlock({self._key})")

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None
