"""The read model of a PostgreSQL store: tables of its own in the store's database.

It is written over a connection of its own, never by who commits. The follower's lock is the
server's, so that one follows whatever host it is on, and goes with the session.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from vedette.domain.base import machine
from vedette.domain.base.errors import StoreFailed, Unavailable, VedetteError
from vedette.store.postgres.database import PostgresDatabase, backoff_s

# Half of the advisory lock's number; the other half is the oid of the fleet's own table.
_LOCK = 0x76646676 << 32
_IS_LOCKED = (
    "SELECT COUNT(*) FROM pg_locks WHERE locktype='advisory' AND granted AND objsubid=1 AND "
    "database=(SELECT oid FROM pg_database WHERE datname=current_database()) AND "
    "CAST(classid AS BIGINT)=? AND CAST(objid AS BIGINT)=?"
)
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
        self._retry_at_s = 0.0

    def open(self) -> tuple[PostgresDatabase, PostgresDatabase]:
        """Return the connection, as that to the entries and as that to the model.

        Raises Unavailable where there is no server, and StoreFailed for a while after that: a loop
        that asks again and again does not wait for it each time.
        """
        if self._open is None:
            began_s = machine.monotonic_s()
            if began_s < self._retry_at_s:
                raise StoreFailed("PostgreSQL does not answer", mend="start it")
            try:
                made = self._connect()
            except Unavailable:
                now_s = machine.monotonic_s()
                self._retry_at_s = now_s + backoff_s(now_s - began_s)
                raise
            try:
                made.begin_script = _BEGIN
                # What a crash of the server takes is made again.
                made.execute_script("SET synchronous_commit=off")
                self._session = made.connection
            except BaseException:
                made.close()
                raise
            self._open = made
        return self._open, self._open

    def exists(self) -> bool:
        return True

    def is_current(self) -> bool:
        # The lock goes with the session, and what was set for it.
        return self._open is not None and self._open.has_session(self._session)

    def recover(self, error: Exception) -> bool:
        return False

    def try_lock(self) -> bool:
        database, _ = self.open()
        ((taken,),) = database.rows(f"SELECT pg_try_advisory_lock({self._lock_key(database)})")
        return bool(taken)

    def is_locked(self) -> bool:
        database, _ = self.open()
        ((number,),) = database.rows(_IS_LOCKED, divmod(self._lock_key(database), 1 << 32))
        return bool(number)

    def _lock_key(self, database: PostgresDatabase) -> int:
        if not self._key:
            ((oid,),) = database.rows("SELECT CAST(CAST('meta' AS regclass) AS oid)")
            self._key = _LOCK | int(oid)
        return self._key

    def unlock(self) -> None:
        if self._open is not None:
            with suppress(VedetteError, *self._open.lost_errors):  # it went with the session
                self._open.rows(f"SELECT pg_advisory_unlock({self._key})")

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None
