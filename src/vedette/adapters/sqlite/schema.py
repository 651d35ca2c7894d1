"""The tables of one fleet's store, and how the file is opened.

Entries stay as made; every other table is either the present state of something (run, action,
row, state, spend, stop) or content that can be erased (body).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vedette.errors import BadStore

if TYPE_CHECKING:
    import apsw

SCHEMA = 1

TABLES = """
CREATE TABLE meta(name TEXT PRIMARY KEY, value ANY) STRICT, WITHOUT ROWID;

CREATE TABLE entry(
  seq INTEGER PRIMARY KEY, at INTEGER NOT NULL, kind TEXT NOT NULL, run TEXT, event TEXT,
  agent TEXT, action TEXT, outcome TEXT, rule TEXT, policy_rev INTEGER, actor TEXT,
  cause INTEGER, bytes BLOB NOT NULL) STRICT;
CREATE INDEX entry_run ON entry(run, seq) WHERE run IS NOT NULL;
CREATE INDEX entry_event ON entry(event, seq) WHERE event IS NOT NULL;
CREATE INDEX entry_action ON entry(action, seq) WHERE action IS NOT NULL;
CREATE INDEX entry_kind ON entry(kind, seq) WHERE kind NOT IN ('event.accepted', 'run.closed');

-- One body an entry at most. Content is found by its entry's event, or by `subject`, which goes
-- with the body when that is erased.
CREATE TABLE body(
  seq INTEGER PRIMARY KEY, salt BLOB NOT NULL, data BLOB NOT NULL, subject TEXT) STRICT;
CREATE INDEX body_subject ON body(subject) WHERE subject IS NOT NULL;

CREATE TABLE checkpoint(size INTEGER PRIMARY KEY, note TEXT NOT NULL) STRICT;

CREATE TABLE event(key TEXT PRIMARY KEY, seq INTEGER NOT NULL) STRICT, WITHOUT ROWID;

-- `position` is the seq of the accepted event, so rows arrive in the order of the key.
CREATE TABLE run(
  id TEXT NOT NULL UNIQUE, event TEXT NOT NULL, agent TEXT NOT NULL, key TEXT NOT NULL,
  position INTEGER NOT NULL, state TEXT NOT NULL, steps INTEGER NOT NULL,
  entries INTEGER NOT NULL, turn INTEGER NOT NULL, last INTEGER NOT NULL,
  attempts INTEGER NOT NULL, wake_us INTEGER NOT NULL, waits TEXT, observed INTEGER NOT NULL,
  PRIMARY KEY(position, agent)
) STRICT, WITHOUT ROWID;
CREATE INDEX run_ready ON run(position) WHERE state = 'ready';
CREATE INDEX run_due ON run(wake_us) WHERE state = 'waiting' AND wake_us > 0;
CREATE INDEX run_odd ON run(state, position) WHERE state IN ('waiting', 'dead');
CREATE INDEX run_key ON run(agent, key, position);
CREATE INDEX run_agent ON run(agent, position);

CREATE TABLE action(
  id TEXT PRIMARY KEY, run TEXT NOT NULL, turn INTEGER NOT NULL, ordinal INTEGER NOT NULL,
  agent TEXT NOT NULL, tool TEXT NOT NULL, digest TEXT NOT NULL, record BLOB,
  decided TEXT, rule TEXT NOT NULL, policy_rev INTEGER NOT NULL, decisions INTEGER NOT NULL,
  hold TEXT, waits TEXT, until_us INTEGER NOT NULL, approver TEXT, effect TEXT,
  tries INTEGER NOT NULL, not_before_us INTEGER NOT NULL, answer BLOB,
  obliges TEXT NOT NULL, seq INTEGER NOT NULL, last INTEGER NOT NULL,
  counted_us INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX action_run ON action(run, turn, ordinal);
CREATE INDEX action_hold ON action(seq) WHERE hold IN ('open', 'approved');
CREATE INDEX action_until ON action(until_us) WHERE hold IN ('open', 'approved') AND until_us > 0;
CREATE INDEX action_effect ON action(seq) WHERE effect IN ('intended', 'started', 'unknown');

CREATE TABLE state(
  agent TEXT, key TEXT, position INTEGER NOT NULL, blob BLOB NOT NULL, PRIMARY KEY(agent, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE row(
  collection TEXT, key TEXT, data BLOB NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY(collection, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE position(source TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE spend(
  agent TEXT, unit TEXT, minute INTEGER, amount INTEGER NOT NULL, PRIMARY KEY(agent, unit, minute)
) STRICT, WITHOUT ROWID;
CREATE TABLE stop(scope TEXT, name TEXT, seq INTEGER NOT NULL, PRIMARY KEY(scope, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE command(id TEXT PRIMARY KEY, seq INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE bundle(digest TEXT PRIMARY KEY, files BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE policy(
  number INTEGER PRIMARY KEY, digest TEXT NOT NULL, seq INTEGER NOT NULL, at INTEGER NOT NULL
) STRICT;
CREATE TABLE candidate(
  seq INTEGER PRIMARY KEY, bank TEXT NOT NULL, scope TEXT NOT NULL, agent TEXT NOT NULL,
  run TEXT NOT NULL, event TEXT NOT NULL) STRICT;
"""


def open_database(path: Path, *, write: bool, synchronous: str = "FULL") -> apsw.Connection:
    """Open the store's file; create its tables if it is new. Raises BadStore for another schema.

    WAL with synchronous=FULL: a commit that was answered survives power loss. On macOS fullfsync
    is set, since fsync alone does not reach the platter there. With secure_delete what is freed is
    overwritten, always: a row that is replaced or moved today may be erased later.
    """
    import apsw

    if write:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    elif not path.exists():
        raise BadStore("there is no store here", where=str(path), mend="start `vedette run` once")
    else:
        flags = apsw.SQLITE_OPEN_READONLY
    connection = apsw.Connection(str(path), flags=flags)
    connection.set_busy_timeout(10_000)
    try:
        if not write:
            connection.execute("PRAGMA query_only=1")
            return connection
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={synchronous}")
        connection.execute("PRAGMA fullfsync=1")
        connection.execute("PRAGMA secure_delete=ON")
        connection.execute("PRAGMA cache_size=-65536")
        connection.execute("PRAGMA wal_autocheckpoint=4000")
        _create(connection, path)
    except apsw.NotADBError as error:
        connection.close()
        raise BadStore(
            "this file is not a store", where=str(path), mend="use another state folder"
        ) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _create(connection: apsw.Connection, path: Path) -> None:
    (found,) = connection.execute("PRAGMA user_version").fetchall()[0]
    if found == SCHEMA:
        return
    if found != 0:
        raise BadStore(
            f"the store has schema {found}, this program knows {SCHEMA}",
            where=str(path),
            mend="use the version of vedette that wrote it",
        )
    with connection:
        connection.execute(TABLES)
        connection.execute(f"PRAGMA user_version={SCHEMA}")
