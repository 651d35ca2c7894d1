"""The migration of a store's file to this program's schema: forward only, in one transaction.

What was there before is copied first (`before`), so that the older program can go on with it.

A step is written once, when the schema changes, and never edited: tests/fixtures holds a store
of every schema there was.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vedette.domain.base.errors import BadStore
from vedette.domain.base.failpoint import hit_failpoint
from vedette.store.schema import SCHEMA, TABLES, UNJUDGED_INDEX, refuse_newer, tag
from vedette.store.sqlite.previous_state import copy_state

if TYPE_CHECKING:
    import apsw

_OLD = (
    "meta", "entry", "body", "checkpoint", "event", "run", "action", "state", "row", "position",
    "spend", "stop", "command", "bundle", "policy",
)  # fmt: skip

# Schema 1 found everything by its id. What belongs to an event now lies under its position, and
# what was observed of a key is a chain (`prior`) instead of an index.
_FROM_ONE = """
INSERT INTO meta SELECT name, CASE name WHEN 'frontier' THEN lower(hex(value))
  ELSE CAST(value AS TEXT) END FROM old_meta;
INSERT INTO event(seq, tag, key, subject)
  SELECT e.seq, event_tag(e.key), e.key, b.subject
  FROM old_event e LEFT JOIN old_body b ON b.seq=e.seq;
INSERT INTO refused(seq, key, subject)
  SELECT e.seq, e.event, b.subject FROM old_entry e LEFT JOIN old_body b ON b.seq=e.seq
  WHERE e.kind='event.refused';
INSERT INTO entry(seq,at,kind,about,agent,outcome,rule,policy_rev,actor,cause,bytes)
  SELECT o.seq, o.at, o.kind, COALESCE(v.seq, CASE o.kind WHEN 'event.refused' THEN o.seq END),
    o.agent, o.outcome, o.rule, o.policy_rev, o.actor, o.cause, o.bytes
  FROM old_entry o LEFT JOIN old_event v ON v.key=o.event AND o.kind!='event.refused'
  ORDER BY o.seq;
INSERT INTO body(seq,salt,data) SELECT seq, salt, data FROM old_body ORDER BY seq;
INSERT INTO checkpoint SELECT size, note FROM old_checkpoint;
INSERT INTO run(position,agent,id,key,state,steps,entries,turn,last,attempts,wake_us,waits,
    observed,prior)
  SELECT r.position, r.agent, r.id, r.key, r.state, r.steps, r.entries, r.turn, r.last, r.attempts,
    r.wake_us, r.waits, r.observed, COALESCE(p.prior, 0)
  FROM old_run r LEFT JOIN (
    SELECT position, agent, LAG(position) OVER (PARTITION BY agent, key ORDER BY position) AS prior
    FROM old_run WHERE observed=1) p ON p.position=r.position AND p.agent=r.agent;
INSERT INTO head SELECT agent, key, MAX(position) FROM old_run WHERE observed=1 GROUP BY agent, key;
INSERT INTO old_id SELECT id, position FROM old_run;
INSERT INTO old_id SELECT a.id, r.position FROM old_action a JOIN old_run r ON r.id=a.run;
INSERT INTO action(position,agent,turn,ordinal,id,run,tool,digest,record,decided,rule,policy_rev,
    decisions,hold,waits,until_us,approver,effect,tries,not_before_us,answer,obliges,seq,last,
    counted_us)
  SELECT r.position, a.agent, a.turn, a.ordinal, a.id, a.run, a.tool, a.digest, a.record,
    a.decided, a.rule, a.policy_rev, a.decisions, a.hold, a.waits, a.until_us, a.approver,
    a.effect, a.tries, a.not_before_us, a.answer, a.obliges, a.seq, a.last, a.counted_us
  FROM old_action a JOIN old_run r ON r.id=a.run;
INSERT INTO state SELECT agent, key, position, blob FROM old_state;
INSERT INTO "row" SELECT collection, key, data, seq FROM old_row;
INSERT INTO position SELECT source, value FROM old_position;
INSERT INTO spend SELECT agent, unit, minute, amount FROM old_spend;
INSERT INTO total(name,unit,hour_us,hour,hour_told,day_us,day,day_told)
  SELECT t.name, t.unit, t.hour*3600000000, MAX(0, SUM(s.amount*(s.minute>=t.hour*60))), 0,
    t.day*86400000000, MAX(0, SUM(s.amount)), 0
  FROM (SELECT agent AS name, unit, MAX(minute)/60 AS hour, MAX(minute)/1440 AS day
    FROM old_spend GROUP BY agent, unit
    UNION ALL SELECT '', unit, MAX(minute)/60, MAX(minute)/1440 FROM old_spend GROUP BY unit) t
  JOIN old_spend s ON s.unit=t.unit AND s.agent=COALESCE(NULLIF(t.name, ''), s.agent)
    AND s.minute>=t.day*1440
  GROUP BY t.name, t.unit;
INSERT INTO stop SELECT scope, name, seq FROM old_stop;
INSERT INTO command SELECT id, seq FROM old_command;
INSERT INTO bundle SELECT digest, files FROM old_bundle;
INSERT INTO policy SELECT number, digest, seq, at FROM old_policy;
"""


def migrate_schema(connection: apsw.Connection, path: Path) -> Path | None:
    """Make a SQLite store's tables, or migrate an older file; return where it lies as it was.

    Raises BadStore for a newer one, and StoreFailed where there is no room for the copy.
    """
    found = _schema(connection, path)
    if found == SCHEMA:
        connection.execute(UNJUDGED_INDEX)
        return None
    kept = copy_state(path.parent, found) if found else None
    hit_failpoint("schema:before")
    with connection:
        if found == 0:
            connection.execute(TABLES)
        elif found == 1:
            _from_one(connection)
        else:
            raise BadStore("older", where=str(path))
        connection.execute(UNJUDGED_INDEX)
        connection.execute(f"PRAGMA user_version={SCHEMA}")
        hit_failpoint("schema:mid")
    hit_failpoint("schema:after")
    return kept


def check_schema(connection: apsw.Connection, path: Path) -> None:
    """Raise BadStore for a store that a reader of this program cannot read."""
    found = _schema(connection, path)
    if found != SCHEMA:
        raise BadStore(
            f"the store has schema {found}, this program reads {SCHEMA}",
            where=str(path),
            mend="start `vedette run` once: it brings the store up",
        )


def _schema(connection: apsw.Connection, path: Path) -> int:
    found: Any = connection.execute("PRAGMA user_version").fetchall()[0][0]
    refuse_newer(found, str(path))
    return int(found)


def _from_one(connection: apsw.Connection) -> None:
    connection.create_scalar_function(
        "event_tag", lambda *ids: tag(str(ids[0])), 1, deterministic=True
    )
    indexes: list[Any] = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type='index' AND sql IS NOT NULL"
    ).fetchall()
    for (name,) in indexes:
        connection.execute(f"DROP INDEX {name}")
    for name in _OLD:
        connection.execute(f'ALTER TABLE "{name}" RENAME TO old_{name}')
    connection.execute("DROP TABLE candidate")
    connection.execute(TABLES)
    connection.execute(_FROM_ONE)
    for name in _OLD:
        connection.execute(f"DROP TABLE old_{name}")
