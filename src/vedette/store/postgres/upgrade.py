"""The upgrade of a store's tables on PostgreSQL: segments are filled beside the old tables, proved,
and take their place in one transaction.

For the whole time a connection of its own holds the fleet's lock, so no worker of any version can
commit. Until the last transaction the old tables stand as they were; what was filled is committed
by chunks, and who was killed goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from vedette.domain.base import machine
from vedette.domain.base.errors import BadStore, StoreBusy
from vedette.domain.base.failpoint import hit_failpoint
from vedette.store.entry_upgrade import (
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
from vedette.store.meta import UPSERT_META
from vedette.store.old_schemas import VIEW_TO_BASE
from vedette.store.postgres.database import PostgresDatabase
from vedette.store.postgres.schema import (
    create_entry_tables,
    create_view_tables,
    find_namespace,
    has_table,
    read_schema,
    translate_tables,
)
from vedette.store.schema import SCHEMA, UNJUDGED_INDEX, refuse_newer

_POLL_S = 0.05
# How long the fleet's lock, and in the end the old tables, are waited for.
_LOCK_TIMEOUT = "SET lock_timeout='10s'"
# The tables that come, with their columns, and those that go.
_NEW = {
    "segment": ["last", "first", "entries", "bodies"],
    "place": ["about", "last"],
    "rare_entry": ["kind", "seq"],
}
_OLD = ("entry", "body")
_COLUMNS = (
    "SELECT attname FROM pg_attribute WHERE attrelid=to_regclass(?) AND attnum>0 "
    "AND NOT attisdropped ORDER BY attnum"
)


def upgrade_tables(
    url: str, verifier_key: str, progress: Progress, *, patience_s: float
) -> UpgradeResult | None:
    """Upgrade a fleet's store on PostgreSQL; None if it has this program's schema already.

    `verifier_key` is the fleet's first. A worker whose beat does not move for `patience_s` is taken
    to be dead. Raises StoreBusy if one lives, BadStore for a store that does not verify: then
    nothing was changed.
    """
    with ExitStack() as stack:

        def connect(what: str) -> PostgresDatabase:
            found = PostgresDatabase(url, name=f"vedette upgrade {what}", hold_ms=0)
            stack.callback(found.close)
            # Not within a group: the lock is held beside.
            found.begin_script = "BEGIN"
            return found

        guard = connect("lock")
        if _find_schema(guard) == SCHEMA:
            return None
        lives = _refuse_live_workers(guard, patience_s)
        session = _hold_lock(guard)
        if _read_beats(guard) != lives:
            raise _busy("a worker has started")
        schema = _find_schema(guard)
        if schema == SCHEMA:
            return None
        hit_failpoint("upgrade:before")
        source, target = connect("source"), connect("target")
        namespace = find_namespace(target, to_create=True)
        # What is made, moved and dropped is this fleet's, whatever else the search path leads to.
        target.begin_script = f"BEGIN; SET LOCAL search_path TO {namespace}"
        for attempt in (1, 2):
            _make_tables(target, namespace)
            try:
                fill_segments(source, target, progress)
                hit_failpoint("upgrade:mid")
                report = prove_entries(source, target, verifier_key, progress)
                break
            except UpgradeDifference as error:
                _drop_tables(target, namespace)
                begin_anew(error, attempt)
            except BadStore:
                _drop_tables(target, namespace)
                raise
        hit_failpoint("upgrade:proved")
        entries = OldEntries(source).count()
        sizes = _size(source, namespace, _OLD), _size(source, namespace, _NEW)
        _replace_tables(target, namespace, schema, session)
        hit_failpoint("upgrade:after")
    return UpgradeResult(schema, report.size, entries, report.root.hex(), *sizes)


def _find_schema(database: PostgresDatabase) -> int:
    found = read_schema(database)
    if found is None:
        raise BadStore("there is no store here", mend="start `vedette run` once")
    refuse_newer(found)
    return found


# --- nobody else ----------------------------------------------------------------------------------


def _read_beats(database: PostgresDatabase) -> dict[tuple[str, int], int]:
    rows = database.rows("SELECT id, life, beat FROM worker")
    return {(str(id), int(life)): int(beat) for id, life, beat in rows}


def _refuse_live_workers(
    database: PostgresDatabase, patience_s: float
) -> dict[tuple[str, int], int]:
    """Raise StoreBusy if a worker's beat moves; return the beats that stood still.

    Before the lock is held: a beat moves under it.
    """
    met, until = _read_beats(database), machine.monotonic_s() + patience_s
    while met and machine.monotonic_s() < until:
        if _read_beats(database) != met:
            raise _busy("a worker of this fleet lives")
        machine.sleep_s(_POLL_S)
    return met


def _busy(what: str) -> StoreBusy:
    mend = "stop every worker of the fleet, then `vedette upgrade` again; nothing was changed"
    return StoreBusy(what, where="[store]", mend=mend)


def _hold_lock(database: PostgresDatabase) -> int:
    """Hold the fleet's lock for as long as the connection lasts; return its server process."""
    import psycopg

    database.execute_script(_LOCK_TIMEOUT)
    try:
        database.execute("SELECT pg_advisory_lock(?)", (database.lock_key(),))
    except psycopg.errors.LockNotAvailable as error:
        raise _busy("somebody else holds the fleet's lock") from error
    ((process,),) = database.rows("SELECT pg_backend_pid()")
    return int(process)


# --- the tables -----------------------------------------------------------------------------------


def _make_tables(database: PostgresDatabase, namespace: str) -> None:
    """Create the tables that come, if they are not there. Raises BadStore for somebody else's."""
    there = _find_tables(database, namespace)
    if len(there) == len(_NEW):
        return
    _drop_tables(database, namespace)
    database.begin()
    try:
        create_entry_tables(database)
        database.commit()
    finally:
        database.rollback()


def _find_tables(database: PostgresDatabase, namespace: str) -> list[str]:
    """Return which of the tables that come are there. Raises BadStore for somebody else's."""
    names = {f"{namespace}.{name}": columns for name, columns in _NEW.items()}
    there = [name for name in names if has_table(database, name)]
    for name in there:
        if [str(column) for (column,) in database.rows(_COLUMNS, (name,))] != names[name]:
            raise BadStore(
                f"the database has a table {name} already, which is not the fleet's",
                where="[store]",
                mend="rename it or move it to another schema; nothing was changed",
            )
    return there


def _drop_tables(database: PostgresDatabase, namespace: str) -> None:
    there = _find_tables(database, namespace)
    if there:
        database.execute_script(f"DROP TABLE {', '.join(there)}")


def _size(database: PostgresDatabase, namespace: str, tables: Iterable[str]) -> int:
    sql = "SELECT CAST(SUM(pg_total_relation_size(to_regclass(name))) AS BIGINT) "
    sql += "FROM unnest(CAST(? AS text[])) AS name"
    ((size,),) = database.rows(sql, ([f"{namespace}.{name}" for name in tables],))
    return int(size)


def _replace_tables(database: PostgresDatabase, namespace: str, schema: int, session: int) -> None:
    """Drop the old tables and say which schema it is now, if the lock was held all the time."""
    import psycopg

    database.execute_script(_LOCK_TIMEOUT)
    old = ", ".join(f"{namespace}.{name}" for name in _OLD)
    database.begin()
    try:
        database.execute_script(f"LOCK TABLE {old} IN ACCESS EXCLUSIVE MODE")
        held = database.rows(
            "SELECT 1 FROM pg_locks WHERE locktype='advisory' AND granted AND pid=?", (session,)
        )
        if not held:
            raise _busy("the connection that held the fleet's lock was lost")
        if schema == SCHEMA - 2:
            database.execute_script(translate_tables(VIEW_TO_BASE))
        database.execute_script(f"DROP TABLE {old}")
        database.execute_script("ALTER TABLE checkpoint ADD COLUMN frontier BYTEA")
        move_frontier(database)
        database.execute_script(UNJUDGED_INDEX)
        create_view_tables(database)
        database.execute("UPDATE meta SET value=? WHERE name='schema'", (str(SCHEMA),))
        database.execute(UPSERT_META, (UPGRADED, str(schema)))
        hit_failpoint("upgrade:replaced")
        database.commit()
    except psycopg.errors.LockNotAvailable as error:
        raise _busy("somebody reads the store") from error
    finally:
        database.rollback()
