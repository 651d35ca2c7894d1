"""A store of today turned back into one of schema 3 or 2, as the program of then would have it.

What tests/fixtures has no store of, such as archives, erased content and many groups, is made by
today's program and turned back here; the state folder's read model goes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from vedette.store.dialect import Database
from vedette.store.entry_upgrade import OLD_FRONTIER, UPGRADED
from vedette.store.meta import UPSERT_META
from vedette.store.old_schemas import SCHEMA_3
from vedette.store.postgres.database import PostgresDatabase
from vedette.store.postgres.schema import translate_tables
from vedette.store.schema import NEWEST_FRONTIER
from vedette.store.sqlite.database import SqliteDatabase
from vedette.store.stored_entries import EntryReader

_COLUMNS = ("at", "kind", "agent", "outcome", "rule", "policy_rev", "actor", "cause")
# What the tables of entries were, of all that schema 3 had.
_ENTRY_TABLES = SCHEMA_3[SCHEMA_3.index("CREATE TABLE entry") : SCHEMA_3.index("CREATE TABLE chec")]

# What schema 2 had, and schema 3 has not.
SCHEMA_2 = """
CREATE TABLE view(
  name TEXT NOT NULL, id TEXT NOT NULL, version INTEGER NOT NULL, sort INTEGER NOT NULL,
  data BLOB NOT NULL, PRIMARY KEY(name, id)
) STRICT, WITHOUT ROWID;
DROP INDEX entry_rare;
CREATE INDEX entry_agent ON entry(agent, kind, seq) WHERE agent IS NOT NULL;
CREATE INDEX entry_kind ON entry(kind, seq) WHERE kind NOT IN ('event.accepted', 'run.closed');
CREATE INDEX entry_rule ON entry(rule, outcome, seq) WHERE kind = 'action.decided';
CREATE INDEX entry_rev ON entry(policy_rev, outcome, seq) WHERE kind = 'action.decided';
CREATE INDEX entry_actor ON entry(actor, seq) WHERE actor IS NOT NULL;
DROP TABLE view_base;
DELETE FROM meta WHERE name='view_base';
"""


def turn_back_file(state: Path, schema: int = 3) -> Path:
    """Turn a state folder's store into one of an older schema; return its file."""
    path = state / "store.db"
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode=WAL")
    with connection:
        connection.execute(_ENTRY_TABLES)
        _move_entries(SqliteDatabase(connection))
        if schema == 2:
            connection.execute(SCHEMA_2)
        connection.execute(f"PRAGMA user_version={schema}")
    connection.close()
    for file in state.glob("view.db*"):
        file.unlink()
    return path


def turn_back_tables(url: str, schema: int = 3) -> None:
    """Turn a store in a PostgreSQL database into one of an older schema."""
    database = PostgresDatabase(url, name="test", hold_ms=0)
    database.begin_script = "BEGIN"
    database.begin()
    database.execute_script(translate_tables(_ENTRY_TABLES))
    _move_entries(database)
    if schema == 2:
        database.execute_script("DROP TABLE view_row, view_list, view_entry, view_state")
        database.execute_script(translate_tables(SCHEMA_2))
    database.execute("UPDATE meta SET value=? WHERE name='schema'", (str(schema),))
    database.commit()
    database.close()


def _move_entries(database: Database) -> None:
    entries = list(EntryReader(database).walk())
    names = f"seq,about,bytes,{','.join(_COLUMNS)}"
    marks = ",".join("?" * (3 + len(_COLUMNS)))
    rows: Iterator[Any] = (
        (one.seq, one.about, one.raw, *(json.loads(one.raw).get(name) for name in _COLUMNS))
        for one in entries
    )
    database.execute_many(f"INSERT INTO entry({names}) VALUES({marks})", list(rows))
    bodies = [(one.seq, one.salt, one.data) for one in entries if one.data is not None]
    database.execute_many("INSERT INTO body(seq,salt,data) VALUES(?,?,?)", bodies)
    ((frontier,),) = database.rows(NEWEST_FRONTIER) or ((None,),)
    if frontier is not None:
        database.execute(UPSERT_META, (OLD_FRONTIER, bytes(frontier).hex()))
    database.execute("ALTER TABLE checkpoint DROP COLUMN frontier")
    database.execute("DELETE FROM meta WHERE name=?", (UPGRADED,))
    for name in ("segment", "place", "rare_entry"):
        database.execute(f"DROP TABLE {name}")
