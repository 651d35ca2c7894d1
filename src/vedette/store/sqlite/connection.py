"""The connection to a store's SQLite file: its pragmas, and tables of this program's schema."""

from __future__ import annotations

from pathlib import Path

from vedette.domain.base.errors import BadStore
from vedette.domain.base.state_folder import create_file, refuse_link
from vedette.store.sqlite.database import BUSY_MS, SqliteDatabase
from vedette.store.sqlite.schema import check_schema, create_tables


def open_database(
    path: Path, *, write: bool, synchronous: str = "FULL", vfs: str | None = None
) -> SqliteDatabase:
    """Open the store's file; create its tables if it is new. Raises BadStore for another schema.

    WAL with synchronous=FULL: a commit that was answered survives power loss. On macOS fullfsync
    is set, since fsync alone does not reach the platter there. With secure_delete what is freed is
    overwritten, always: a row that is replaced or moved today may be erased later. The log is
    written back by the writer between groups, not within a commit.
    """
    import apsw

    refuse_link(path)
    if write:
        path.parent.mkdir(parents=True, exist_ok=True)
        if vfs is None:
            # SQLite gives its log and the index of that the mode of this file.
            create_file(path)
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    elif not path.exists():
        raise BadStore("there is no store here", where=str(path), mend="start `vedette run` once")
    else:
        flags = apsw.SQLITE_OPEN_READONLY
    connection = apsw.Connection(str(path), flags=flags, vfs=vfs, statementcachesize=256)
    connection.set_busy_timeout(BUSY_MS)
    # Else every execution of a query plans it anew for the values of that moment.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    try:
        if not write:
            connection.execute("PRAGMA query_only=1")
            check_schema(connection, path)
            return SqliteDatabase(connection, reads=True)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={synchronous}")
        connection.execute("PRAGMA fullfsync=1")
        connection.execute("PRAGMA secure_delete=ON")
        connection.execute("PRAGMA cache_size=-65536")
        connection.execute("PRAGMA wal_autocheckpoint=4000")
        create_tables(connection, path)
    except apsw.NotADBError as error:
        connection.close()
        raise BadStore(
            "this file is not a store", where=str(path), mend="use another state folder"
        ) from error
    except BaseException:
        connection.close()
        raise
    return SqliteDatabase(connection)


def read_value(path: Path, name: str) -> str | None:
    """Return a value of a store's meta table, of whatever schema the file is: before it is opened.

    None for a file that has none, or is no store: whoever opens it then says so.
    """
    import apsw

    refuse_link(path)
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        connection.set_busy_timeout(BUSY_MS)
        query = "SELECT CAST(value AS TEXT) FROM meta WHERE name=?"
        rows = connection.execute(query, (name,)).fetchall()
    except apsw.SQLError:
        return None
    finally:
        connection.close()
    return str(rows[0][0]) if rows else None
