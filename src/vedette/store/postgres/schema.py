"""The fleet's tables on PostgreSQL: the shared ones, and what several workers need to share them.

The shared tables are written once (`vedette.store.schema`) and translated here: whole numbers
are BIGINT, bytes BYTEA, and text is ordered by its bytes, as SQLite does it. A run carries the
shard of its key, so that a worker reads only what is its own.
"""

from __future__ import annotations

import hashlib
import re

from vedette.domain.base.errors import BadStore
from vedette.store.postgres.database import PostgresDatabase
from vedette.store.readmodel.schema import VIEW_SCHEMA, VIEW_TABLES
from vedette.store.schema import (
    ENTRY_TABLES,
    SCHEMA,
    TABLES,
    UNJUDGED_INDEX,
    list_tables,
    refuse_newer,
    refuse_older,
)

SHARDS = 64

# Where the fleet's own table lies, and whether it is where new ones would.
FIND_NAMESPACE = (
    "SELECT quote_ident(nspname), nspname=current_schema() FROM pg_namespace "
    "WHERE oid=(SELECT relnamespace FROM pg_class WHERE oid=CAST('meta' AS regclass))"
)

# `beat` moves for as long as a worker lives; `life` is that of one process. `policy_rev` and
# `stop_epoch` are those under which it may still start a call; it says so when they moved.
_WORKER_TABLES = """
CREATE FUNCTION shard_of(agent TEXT, key TEXT) RETURNS INT
  LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
  $$ SELECT get_byte(sha256(convert_to(agent || chr(1) || key, 'UTF8')), 0) & 63 $$;
ALTER TABLE run ADD COLUMN shard INT GENERATED ALWAYS AS (shard_of(agent, key)) STORED;
CREATE TABLE worker(
  id TEXT COLLATE "C" PRIMARY KEY, life BIGINT NOT NULL, beat BIGINT NOT NULL,
  policy_rev BIGINT NOT NULL, stop_epoch BIGINT NOT NULL, name TEXT NOT NULL);
CREATE TABLE lease(shard INT PRIMARY KEY, worker TEXT COLLATE "C", epoch BIGINT NOT NULL);
INSERT INTO lease(shard, epoch) SELECT n, 0 FROM generate_series(0, 63) AS n;
CREATE TABLE leasing(one INT PRIMARY KEY CHECK(one = 1), life BIGINT NOT NULL, rev BIGINT NOT NULL);
INSERT INTO leasing VALUES(1, 0, 0);
"""


def shard_of(agent: str, key: str) -> int:
    """Return the shard of a key: the last six bits of the first byte of SHA-256."""
    return hashlib.sha256(f"{agent}\x01{key}".encode()).digest()[0] % SHARDS


def translate_tables(tables: str) -> str:
    """Return the store's shared tables in PostgreSQL's words."""
    text = re.sub(r"\) STRICT(, WITHOUT ROWID)?", ")", tables)
    text = re.sub(r"\bINTEGER\b", "BIGINT", text)
    text = re.sub(r"\bBLOB\b", "BYTEA", text)
    return re.sub(r"\bTEXT\b", 'TEXT COLLATE "C"', text)


def create_tables(database: PostgresDatabase) -> None:
    """Create the store's tables on PostgreSQL, or raise BadStore for another schema or encoding.

    Workers that start together wait for one another here.
    """
    ((encoding,),) = database.rows("SELECT current_setting('server_encoding')")
    if encoding != "UTF8":
        raise BadStore(
            f"the database is encoded as {encoding}",
            mend="make one with ENCODING 'UTF8'",
        )
    database.execute_script("BEGIN; SELECT pg_advisory_xact_lock(2003134836)")
    try:
        found = read_schema(database)
        if found is None:
            shared = TABLES.replace(ENTRY_TABLES, "")
            database.execute_script(translate_tables(shared) + _WORKER_TABLES)
            create_entry_tables(database)
            database.execute("INSERT INTO meta VALUES('schema', ?)", (str(SCHEMA),))
        else:
            _refuse_other(found)
        database.execute_script(UNJUDGED_INDEX)
        create_view_tables(database)
        database.commit()
    finally:
        database.rollback()


def create_entry_tables(database: PostgresDatabase) -> None:
    """Create the tables of the entries, within a transaction.

    Their bytes are packed already: the server is not to try to compress them again.
    """
    database.execute_script(
        translate_tables(ENTRY_TABLES)
        + "ALTER TABLE segment ALTER COLUMN entries SET STORAGE EXTERNAL, "
        "ALTER COLUMN bodies SET STORAGE EXTERNAL"
    )


def create_view_tables(database: PostgresDatabase) -> None:
    """Make the read model's tables; those of another program go, as the entries have it all."""
    namespace = find_namespace(database)
    state = f"{namespace}.view_state"
    if has_table(database, state):
        found = database.rows(f"SELECT schema FROM {state}")
        if found and found[0][0] == VIEW_SCHEMA:
            return
        tables = ", ".join(f"{namespace}.{name}" for name in list_tables(VIEW_TABLES))
        database.execute_script(f"DROP TABLE {tables}")
    find_namespace(database, to_create=True)
    database.execute_script(translate_tables(VIEW_TABLES))


def find_namespace(database: PostgresDatabase, *, to_create: bool = False) -> str:
    """Return which of the database's schemas the fleet's tables lie in, quoted as SQL wants it.

    Several fleets may share a database, and a table that one has not may be another's, which the
    search path leads to. With `to_create` it must be the one where new tables come to lie: raises
    BadStore if the search path begins with another.
    """
    ((namespace, current),) = database.rows(FIND_NAMESPACE)
    if to_create and not current:
        raise BadStore(
            f"the fleet's tables lie in the schema {namespace}, and the search path begins with "
            "another", where="[store]",
            mend=f"put {namespace} first into the search_path of the URL",
        )  # fmt: skip
    return str(namespace)


def has_table(database: PostgresDatabase, name: str) -> bool:
    """Say whether there is a table of a name, with its namespace."""
    ((there,),) = database.rows("SELECT to_regclass(?) IS NOT NULL", (name,))
    return bool(there)


def check_schema(database: PostgresDatabase) -> None:
    """Check, for whoever only reads, that there is a store of our schema. Raises BadStore."""
    found = read_schema(database)
    if found is None:
        raise BadStore("there is no store here", mend="start `vedette run` once")
    _refuse_other(found)


def _refuse_other(found: int) -> None:
    """Raise BadStore for a store of another schema: it is upgraded by hand."""
    refuse_newer(found, "[store]")
    refuse_older(found, "[store]")


def has_schema(database: PostgresDatabase) -> bool:
    """Say whether a PostgreSQL database has the store's tables."""
    return read_schema(database) is not None


def read_schema(database: PostgresDatabase) -> int | None:
    """Return the schema of the store's tables; None if there are none."""
    ((there,),) = database.rows("SELECT to_regclass('meta') IS NOT NULL")
    if not there:
        return None
    rows = database.rows("SELECT value FROM meta WHERE name='schema'")
    return int(rows[0][0]) if rows else None
