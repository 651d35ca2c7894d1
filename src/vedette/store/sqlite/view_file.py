"""The read model of a SQLite store: view.db beside store.db, and the follower's lock.

Nobody trusts the file and no backup has it: one that is spoilt, or of another program, is emptied
and made anew from the entries. It is synced where SQLite writes its log back, so that a power cut
leaves an older model and no broken one.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

from vedette.domain.base.disk_errors import to_disk_error
from vedette.domain.base.errors import BadStore, StoreFailed
from vedette.domain.base.state_folder import create_file, open_file, refuse_link
from vedette.store.readmodel.schema import VIEW_SCHEMA, VIEW_TABLES
from vedette.store.sqlite.database import BUSY_MS, SqliteDatabase

if TYPE_CHECKING:
    import apsw

FILE, LOCK = "view.db", "follower.lock"


class ViewFile:
    """Fits `vedette.store.readmodel.model.ViewHome`."""

    def __init__(self, folder: Path, vfs: str | None = None) -> None:
        self._folder, self._vfs = folder, vfs
        self._path = folder / FILE
        self._lock = -1
        self._open: tuple[SqliteDatabase, SqliteDatabase] | None = None
        self._inode = 0

    def open(self) -> tuple[SqliteDatabase, SqliteDatabase]:
        """Return connections to store.db, to read, and to view.db."""
        import apsw

        from vedette.store.sqlite.connection import open_database

        if self._open is None:
            entries = open_database(self._folder / "store.db", write=False, vfs=self._vfs)
            try:
                view = SqliteDatabase(self._open_view(), reads=True)
            except apsw.Error as error:
                entries.close()
                raise self._failure(error) from error
            except BaseException:
                entries.close()
                raise
            self._open = entries, view
            self._inode = self._path.stat().st_ino
        return self._open

    def exists(self) -> bool:
        return self._path.exists()

    def is_current(self) -> bool:
        try:
            return self._path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def recover(self, error: Exception) -> bool:
        import apsw

        if not isinstance(error, apsw.CorruptError | apsw.NotADBError):
            return False
        self._reset()
        return True

    def _reset(self) -> None:
        """Empty the file, whatever it is; the entries have all that it had.

        In its place: a file that is removed leaves whoever has it open with the log of the next.
        """
        import apsw

        connection = apsw.Connection(
            str(self._path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=self._vfs
        )
        try:
            connection.set_busy_timeout(BUSY_MS)
            connection.config(apsw.SQLITE_DBCONFIG_RESET_DATABASE, 1)
            connection.execute("VACUUM").fetchall()
        finally:
            connection.close()

    def try_lock(self) -> bool:
        if self._lock < 0:
            try:
                self._lock = open_file(self._folder / LOCK, os.O_RDWR | os.O_CREAT)
            except OSError:
                return False  # who may not write here folds nothing
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def is_locked(self) -> bool:
        try:
            descriptor = open_file(self._folder / LOCK, os.O_RDONLY)
        except OSError:
            return False  # nobody has made it, or none that is ours to look at
        try:
            # Shared: two who look at once do not take each other for a follower.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def unlock(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._open is not None:
            for database in self._open:
                database.close()
            self._open = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _open_view(self) -> apsw.Connection:
        import apsw

        refuse_link(self._path)
        try:
            return self._open_file()
        except (apsw.NotADBError, apsw.CorruptError, _OtherModel):
            self._reset()
            return self._open_file()

    def _open_file(self) -> apsw.Connection:
        import apsw

        flags = apsw.SQLITE_OPEN_READWRITE
        try:
            if self._vfs is None:
                create_file(self._path)
            else:
                flags |= apsw.SQLITE_OPEN_CREATE
        except OSError as error:
            if not self._path.exists():
                raise self._failure(error) from error
            flags = apsw.SQLITE_OPEN_READONLY
        connection = apsw.Connection(
            str(self._path), flags=flags, vfs=self._vfs, statementcachesize=256
        )
        try:
            connection.set_busy_timeout(BUSY_MS)
            connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
            # Else who closes it last writes the log back, with a sync, and removes it: also where
            # the file was removed by hand, and the log is that of the next one.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            if flags != apsw.SQLITE_OPEN_READONLY:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=NORMAL")
                _create_tables(connection)
            elif _schema(connection) != VIEW_SCHEMA:
                raise StoreFailed(
                    "the read model is not one of this program, and cannot be written",
                    where=str(self._path), mend="let the user of the fleet run this verb once",
                )  # fmt: skip
        except BaseException:
            connection.close()
            raise
        return connection

    def _failure(self, error: Exception) -> StoreFailed | BadStore:
        told = to_disk_error(error, self._path)
        if told is not None:
            return told
        return StoreFailed(
            f"the read model cannot be opened: {error}",
            where=str(self._path), mend="see whether the folder can be written and has room",
        )  # fmt: skip


class _OtherModel(Exception):
    """The file is the model of another program."""


def _create_tables(connection: apsw.Connection) -> None:
    if _schema(connection) == VIEW_SCHEMA:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = _schema(connection)
        if found == 0:
            connection.execute(VIEW_TABLES)
            connection.execute(f"PRAGMA user_version={VIEW_SCHEMA}")
        elif found != VIEW_SCHEMA:  # else somebody else has made them meanwhile
            raise _OtherModel
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _schema(connection: apsw.Connection) -> int:
    ((found,),) = connection.execute("PRAGMA user_version").fetchall()
    return int(str(found))
