"""The upgrade of a store's tables on PostgreSQL: segments are filled beside the old tables, proved,
and take their place in one transaction.

For the whole time a connection of its own holds the fleet's lock, so no worker of any version can
commit. Until the last transaction the old tables stand as they were; what was filled is committed
by chunks, and who was killed goes on.
"""

from __future__ import annotations

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
    read_schema,
    translate_tables,
)
from vedette.store.schema import SCHEMA, UNJUDGED_INDEX, refuse_newer

_POLL_S = 0.05
# How long the fleet's lock, and in the end the old tables, are waited for.
_LOCK_TIMEOUT = "SET lock_timeout='10s'"
_NEW = ("segment", "place", "rare_entry")
_OLD = ("entry", "body")


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
        for attempt in (1, 2):
            _make_tables(target)
            try:
                fill_segments(source, target, progress)
                hit_failpoint("upgrade:mid")
                report = prove_entries(source, target, verifier_key, progress)
                break
            except UpgradeDifference as error:
                _drop_tables(target)
                begin_anew(error, attempt)
            except BadStore:
                _drop_tables(target)
                raise
        hit_failpoint("upgrade:proved")
        entries = OldEntries(source).count()
        sizes = _size(source, _OLD), _size(source, _NEW)
        _replace_tables(target, schema, session)
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


def _make_tables(database: PostgresDatabase) -> None:
    ((there,),) = database.rows("SELECT to_regclass('segment') IS NOT NULL")
    if there:
        return
    database.begin()
    try:
        create_entry_tables(database)
        database.commit()
    finally:
        database.rollback()


def _drop_tables(database: PostgresDatabase) -> None:
    database.execute_script(f"DROP TABLE {', '.join(_NEW)}")


def _size(database: PostgresDatabase, tables: tuple[str, ...]) -> int:
    sql = "SELECT CAST(SUM(pg_total_relation_size(to_regclass(name))) AS BIGINT) "
    sql += "FROM unnest(CAST(? AS text[])) AS name"
    ((size,),) = database.rows(sql, (list(tables),))
    return int(size)


def _replace_tables(database: PostgresDatabase, schema: int, session: int) -> None:
    """Drop the old tables and say which schema it is now, if the lock was held all the time."""
    import psycopg

    database.execute_script(_LOCK_TIMEOUT)
    database.begin()
    try:
        database.execute_script(f"LOCK TABLE {', '.join(_OLD)} IN ACCESS EXCLUSIVE MODE")
        held = database.rows(
            "SELECT 1 FROM pg_locks WHERE locktype='advisory' AND granted AND pid=?", (session,)
        )
        if not held:
            raise _busy("the connection that held the fleet's lock was lost")
        if schema == SCHEMA - 2:
            database.execute_script(translate_tables(VIEW_TO_BASE))
        database.execute_script(f"DROP TABLE {', '.join(_OLD)}")
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
