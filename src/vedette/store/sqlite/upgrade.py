"""The upgrade of a store's file to this program's schema: a new file, proved, takes its place.

Nothing of the old file is changed until then. In `upgrade/` of the state folder a new file is
filled from it (schema 3; from a copy that is brought to 3 first, if it is older), in chunks, so
that who was killed goes on. Once the new file is proved to hold what the old one does, the old one
is kept in `before/schema-N`, and one rename puts the new one in its place: at any moment there is a
whole store of one schema or the other. The caller holds the runner's lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vedette.domain.base.errors import BadStore, StoreBusy, StoreFailed
from vedette.domain.base.failpoint import hit_failpoint
from vedette.domain.base.fsync import sync
from vedette.domain.base.state_folder import create_file, refuse_link
from vedette.store.entry_upgrade import (
    OLD_FRONTIER,
    UPGRADED,
    OldEntries,
    Progress,
    UpgradeDifference,
    UpgradeResult,
    begin_anew,
    fill_segments,
    move_frontier,
    prove_entries,
)
from vedette.store.meta import read_meta
from vedette.store.old_schemas import ONE_TO_THREE, RENAMED_TABLES, SCHEMA_3, TWO_TO_THREE
from vedette.store.schema import (
    ENTRY_TABLES,
    NEWEST_FRONTIER,
    SCHEMA,
    TABLES,
    UNJUDGED_INDEX,
    list_tables,
    refuse_newer,
    tag,
)
from vedette.store.sqlite.database import BUSY_MS, SqliteDatabase
from vedette.store.sqlite.online_backup import copy_database
from vedette.store.sqlite.previous_state import keep_state
from vedette.store.sqlite.schema import read_schema
from vedette.store.sqlite.upgrade_folder import FOLDER, drop_work, make_work

if TYPE_CHECKING:
    import apsw

    from vedette.ledger.verify import Report

_STORE, _COPY, _NEW = "store.db", "copy.db", "new.db"
# How long the last moment, in which the file is changed, waits for who reads it.
_EXCLUSIVE_MS = 5_000
_BATCH = 1000
_LIST_TABLES = "SELECT name FROM sqlite_schema WHERE type='table'"


def upgrade_file(
    state: Path, verifier_key: str, progress: Progress, *, by_order: bool = True
) -> UpgradeResult | None:
    """Upgrade a state folder's store; None if it has this program's schema already.

    `verifier_key` is the fleet's first. With `by_order` the store says from then on which schema it
    had. Raises BadStore for a store that does not verify, and StoreFailed (`no-space`) where there
    is no room: then nothing was changed.
    """
    path = state / _STORE
    refuse_link(path)
    schema, old_bytes = _look(path)
    if schema == SCHEMA:
        # Somebody may have been killed who had put it in its place.
        drop_work(state)
        return None
    hit_failpoint("upgrade:before")
    _require_room(state, state / FOLDER, schema, old_bytes)
    work = make_work(state)
    try:
        report, entries = _make_new_file(path, work, schema, verifier_key, progress, by_order)
    except BadStore:
        drop_work(state)
        raise
    hit_failpoint("upgrade:proved")
    new_bytes = (work / _NEW).stat().st_size
    _fold_log(path)
    kept = keep_state(state, schema)
    hit_failpoint("upgrade:kept")
    (work / _NEW).replace(path)
    hit_failpoint("upgrade:renamed")
    sync(state)
    drop_work(state)
    hit_failpoint("upgrade:after")
    return UpgradeResult(
        schema, report.size, entries, report.root.hex(), old_bytes, new_bytes, str(kept)
    )


def _look(path: Path) -> tuple[int, int]:
    """Return the schema of a store's file, and how many bytes it takes. Raises BadStore."""
    import apsw

    try:
        with _connection(path, apsw.SQLITE_OPEN_READONLY) as connection:
            schema = read_schema(connection)
    except apsw.NotADBError as error:
        raise BadStore("this file is not a store", where=str(path)) from error
    refuse_newer(schema, str(path))
    if schema == 0:
        raise BadStore("there is no store here", where=str(path), mend="start `vedette run` once")
    log = path.with_name(f"{path.name}-wal")
    return schema, path.stat().st_size + (log.stat().st_size if log.exists() else 0)


def _require_room(state: Path, work: Path, schema: int, size: int) -> None:
    """Refuse to begin where the new file may find no room, nor the copy of an older schema.

    A copy grows while it is brought up, as its rows are written once more. Raises StoreFailed.
    """
    made = sum(file.stat().st_size for file in work.glob("*")) if work.exists() else 0
    bank = state / "memory.db"
    needed = size * (1 if schema == SCHEMA - 1 else 3) + (
        bank.stat().st_size if bank.exists() else 0
    )
    room = os.statvfs(state)
    free = room.f_bavail * room.f_frsize + made
    if free < needed:
        raise StoreFailed(
            f"the store has the older schema {schema}: to upgrade it takes {needed:,} bytes, and "
            f"{free:,} are free", where=str(state), code="no-space",
            mend="make room, then start again; nothing was changed",
        )  # fmt: skip


# --- the new file ---------------------------------------------------------------------------------


def _make_new_file(
    path: Path, work: Path, schema: int, verifier_key: str, progress: Progress, by_order: bool
) -> tuple[Report, int]:
    """Fill and prove the new file; return the proof, and how many entries there are."""
    import apsw

    source_path = path
    if schema < SCHEMA - 1:
        source_path = work / _COPY
        _copy_older(path, source_path, schema)
    with _reader(source_path) as source:
        for attempt in (1, 2):
            try:
                with _open_new(work / _NEW) as target:
                    fill_segments(source, target, progress)
                    _copy_tables(source, target, schema if by_order else None)
                    hit_failpoint("upgrade:mid")
                    report = prove_entries(source, target, verifier_key, progress)
                    _prove_tables(source, target)
                    count = OldEntries(source).count()
                sync(work / _NEW)
                return report, count
            except (UpgradeDifference, apsw.CorruptError, apsw.NotADBError) as error:
                # The older program has run since it was begun, or the file is spoilt.
                (work / _NEW).unlink()
                (work / f"{_NEW}-journal").unlink(missing_ok=True)
                begin_anew(error, attempt)
    raise AssertionError("unreachable")


def _copy_older(path: Path, copy: Path, schema: int) -> None:
    """Copy a store of schema 1 or 2 and bring the copy to 3.

    Each time anew: the older program may have run since.
    """
    import apsw

    for name in (copy.name, f"{copy.name}-journal"):
        copy.with_name(name).unlink(missing_ok=True)
    copy_database(path, copy)
    with _connection(copy, apsw.SQLITE_OPEN_READWRITE) as connection:
        # One that is broken off is thrown away.
        connection.execute("PRAGMA journal_mode=OFF")
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("BEGIN")
        if schema == 1:
            _bring_from_one(connection)
        else:
            connection.execute(TWO_TO_THREE)
        connection.execute(f"PRAGMA user_version={SCHEMA - 1}")
        connection.execute("COMMIT")
    hit_failpoint("upgrade:copied")


def _bring_from_one(connection: apsw.Connection) -> None:
    connection.create_scalar_function(
        "event_tag", lambda *ids: tag(str(ids[0])), 1, deterministic=True
    )
    indexes: list[Any] = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type='index' AND sql IS NOT NULL"
    ).fetchall()
    for (name,) in indexes:
        connection.execute(f"DROP INDEX {name}")
    for name in RENAMED_TABLES:
        connection.execute(f'ALTER TABLE "{name}" RENAME TO old_{name}')
    connection.execute("DROP TABLE candidate")
    connection.execute(SCHEMA_3)
    connection.execute(ONE_TO_THREE)
    for name in RENAMED_TABLES:
        connection.execute(f"DROP TABLE old_{name}")


@contextmanager
def _open_new(path: Path) -> Iterator[SqliteDatabase]:
    """Open the new file, with this program's tables; without a log, so that it is one file.

    Raises UpgradeDifference for one that another program made.
    """
    import apsw

    create_file(path)
    with _connection(path, apsw.SQLITE_OPEN_READWRITE) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA fullfsync=1")
        # As of every store's file: what moves from page to page here may be erased later.
        connection.execute("PRAGMA secure_delete=ON")
        connection.execute("PRAGMA cache_size=-65536")
        tables = {str(name) for (name,) in connection.execute(_LIST_TABLES)}
        if tables and (read_schema(connection) != SCHEMA or not tables >= {*list_tables(TABLES)}):
            raise UpgradeDifference("the new file has not this version's tables")
        if not tables:
            with connection:
                connection.execute(TABLES)
                connection.execute(UNJUDGED_INDEX)
                connection.execute(f"PRAGMA user_version={SCHEMA}")
        yield SqliteDatabase(connection)


def _other_tables() -> list[str]:
    """Return the names of the tables that are as they were in schema 3."""
    changed = list_tables(ENTRY_TABLES)
    return [name for name in list_tables(TABLES) if name not in changed]


def _copy_tables(source: SqliteDatabase, target: SqliteDatabase, upgraded: int | None) -> None:
    """Copy all tables but those of the entries, in one transaction, in the place of any before."""
    target.begin()
    try:
        for name in _other_tables():
            target.execute(f'DELETE FROM "{name}"')
            columns, _ = _columns(source, name)
            marks = ",".join("?" * len(columns))
            names = ",".join(f'"{column}"' for column in columns)
            insert = f'INSERT INTO "{name}"({names}) VALUES({marks})'
            rows = source.iterate_rows(f'SELECT {names} FROM "{name}"')
            while batch := list(islice(rows, _BATCH)):
                target.execute_many(insert, batch)
        move_frontier(target)
        if upgraded is not None:
            target.execute("INSERT INTO meta VALUES(?,?)", (UPGRADED, str(upgraded)))
        target.commit()
    finally:
        target.rollback()
    hit_failpoint("upgrade:tables")


def _prove_tables(source: SqliteDatabase, target: SqliteDatabase) -> None:
    """Hold each row of the other tables against its copy. Raises UpgradeDifference."""
    with source.snapshot(), target.snapshot():
        for name in _other_tables():
            columns, key = _columns(source, name)
            names, order = (",".join(f'"{one}"' for one in each) for each in (columns, key))
            sql = f'SELECT {names} FROM "{name}" ORDER BY {order}'
            both = [database.iterate_rows(sql) for database in (source, target)]
            if name == "meta":
                # What an upgrade moves, and what it adds.
                gone = (OLD_FRONTIER, UPGRADED)
                both = [(row for row in rows if row[0] not in gone) for rows in both]
            for old, new in zip_longest(*both):
                if old != new:
                    raise UpgradeDifference(f"a row of {name} differs: {(old or new)[:2]}")
        tree = target.rows(NEWEST_FRONTIER)
        if (bytes(tree[0][0] or b"").hex() if tree else None) != read_meta(source, OLD_FRONTIER):
            raise UpgradeDifference("the tree differs")


def _columns(database: SqliteDatabase, name: str) -> tuple[list[str], list[str]]:
    """Return the columns of a table, and those of its key."""
    found = database.rows("SELECT name, pk FROM pragma_table_info(?) ORDER BY cid", (name,))
    key = sorted((int(pk), str(column)) for column, pk in found if pk)
    return [str(column) for column, _ in found], [column for _, column in key]


# --- the old file ---------------------------------------------------------------------------------


def _fold_log(path: Path) -> None:
    """Write a store's log back and remove it: none may lie beside the file that comes.

    SQLite does that for who is alone with the file. Raises StoreBusy where somebody reads it.
    """
    import apsw

    try:
        with _connection(path, apsw.SQLITE_OPEN_READWRITE) as connection:
            connection.set_busy_timeout(_EXCLUSIVE_MS)
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA fullfsync=1")
            rows: list[Any] = connection.execute("PRAGMA journal_mode=DELETE").fetchall()
            alone = rows == [("delete",)]
    except apsw.BusyError:
        alone = False
    left = [name for name in ("wal", "shm", "journal") if _beside(path, name).exists()]
    if not alone or left:
        raise StoreBusy(
            "somebody reads the store", where=str(path),
            mend="end what does, then `vedette upgrade` again: it goes on from here",
        )  # fmt: skip
    sync(path)
    sync(path.parent)
    hit_failpoint("upgrade:folded")


def _beside(path: Path, name: str) -> Path:
    return path.with_name(f"{path.name}-{name}")


@contextmanager
def _reader(path: Path) -> Iterator[SqliteDatabase]:
    import apsw

    with _connection(path, apsw.SQLITE_OPEN_READONLY) as connection:
        connection.execute("PRAGMA query_only=1")
        yield SqliteDatabase(connection, reads=True)


@contextmanager
def _connection(path: Path, flags: int) -> Iterator[apsw.Connection]:
    import apsw

    connection = apsw.Connection(str(path), flags=flags, statementcachesize=256)
    with ExitStack() as undo:
        undo.callback(connection.close)
        connection.set_busy_timeout(BUSY_MS)
        yield connection
