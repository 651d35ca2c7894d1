"""The tables of schema 3 and the steps from 1 and 2 to them, as they were: none is edited any more.

Only an upgrade uses them (`vedette.store.entry_upgrade`); today's tables are in
`vedette.store.schema`. tests/fixtures holds a store of each schema.
"""

from __future__ import annotations

_BASE_TABLE = """CREATE TABLE view_base(
  name TEXT NOT NULL, id TEXT NOT NULL, version INTEGER NOT NULL, sort INTEGER NOT NULL,
  data BLOB NOT NULL, PRIMARY KEY(name, id)
) STRICT, WITHOUT ROWID"""

_RARE_INDEX = """CREATE INDEX entry_rare ON entry(kind, seq) WHERE kind NOT IN (
  'event.accepted', 'recall.decided', 'budget.reserved', 'turn.reasoned', 'action.decided',
  'effect.intended', 'effect.started', 'effect.done', 'budget.settled', 'run.closed')"""

SCHEMA_3 = f"""
CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE entry(
  seq INTEGER PRIMARY KEY, at INTEGER NOT NULL, kind TEXT NOT NULL, about INTEGER, agent TEXT,
  outcome TEXT, rule TEXT, policy_rev INTEGER, actor TEXT, cause INTEGER, bytes BLOB NOT NULL
) STRICT;
CREATE INDEX entry_about ON entry(about, seq) WHERE about IS NOT NULL;
{_RARE_INDEX};

CREATE TABLE body(seq INTEGER PRIMARY KEY, salt BLOB NOT NULL, data BLOB NOT NULL) STRICT;

CREATE TABLE checkpoint(size INTEGER PRIMARY KEY, note TEXT NOT NULL) STRICT;

-- `tag` is the first half of the key as a number; content is found by `subject` too.
CREATE TABLE event(
  seq INTEGER PRIMARY KEY, tag INTEGER NOT NULL, key TEXT NOT NULL, subject TEXT) STRICT;
CREATE INDEX event_tag ON event(tag);
CREATE INDEX event_subject ON event(subject, seq) WHERE subject IS NOT NULL;
-- What was delivered and is no event; a later delivery under the same key may be one.
CREATE TABLE refused(seq INTEGER PRIMARY KEY, key TEXT, subject TEXT) STRICT;
CREATE INDEX refused_key ON refused(key) WHERE key IS NOT NULL;
CREATE INDEX refused_subject ON refused(subject) WHERE subject IS NOT NULL;

-- `prior` is the position of the key's event that was observed before this one.
CREATE TABLE run(
  position INTEGER NOT NULL, agent TEXT NOT NULL, id TEXT NOT NULL, key TEXT NOT NULL,
  state TEXT NOT NULL, steps INTEGER NOT NULL, entries INTEGER NOT NULL, turn INTEGER NOT NULL,
  last INTEGER NOT NULL, attempts INTEGER NOT NULL, wake_us INTEGER NOT NULL, waits TEXT,
  observed INTEGER NOT NULL, prior INTEGER NOT NULL, PRIMARY KEY(position, agent)
) STRICT, WITHOUT ROWID;
CREATE INDEX run_ready ON run(position) WHERE state = 'ready';
-- With the state in front, so that it is taken before the index of all runs of an agent.
CREATE INDEX run_ready_of ON run(state, agent, position) WHERE state = 'ready';
CREATE INDEX run_due ON run(wake_us) WHERE state = 'waiting' AND wake_us > 0;
CREATE INDEX run_odd ON run(state, position) WHERE state IN ('waiting', 'dead');
CREATE INDEX run_waits ON run(agent, waits) WHERE state = 'waiting';
CREATE INDEX run_agent ON run(agent, position);
CREATE INDEX run_budget ON run(position) WHERE waits = 'budget';
CREATE INDEX run_agent_budget ON run(agent, position) WHERE waits = 'budget';
-- The last observed position of every key.
CREATE TABLE head(
  agent TEXT NOT NULL, key TEXT NOT NULL, position INTEGER NOT NULL, PRIMARY KEY(agent, key)
) STRICT, WITHOUT ROWID;
-- Ids of stores from before ids led home.
CREATE TABLE old_id(id TEXT PRIMARY KEY, position INTEGER NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE action(
  position INTEGER NOT NULL, agent TEXT NOT NULL, turn INTEGER NOT NULL, ordinal INTEGER NOT NULL,
  id TEXT NOT NULL, run TEXT NOT NULL, tool TEXT NOT NULL, digest TEXT NOT NULL, record BLOB,
  decided TEXT, rule TEXT NOT NULL, policy_rev INTEGER NOT NULL, decisions INTEGER NOT NULL,
  hold TEXT, waits TEXT, until_us INTEGER NOT NULL, approver TEXT, effect TEXT,
  tries INTEGER NOT NULL, not_before_us INTEGER NOT NULL, answer BLOB, obliges TEXT NOT NULL,
  seq INTEGER NOT NULL, last INTEGER NOT NULL, counted_us INTEGER NOT NULL,
  PRIMARY KEY(position, agent, turn, ordinal)
) STRICT, WITHOUT ROWID;
CREATE INDEX action_hold ON action(seq, id) WHERE hold IN ('open', 'approved');
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
-- What was spent in the latest hour and day: of each agent, and under '' of the fleet.
CREATE TABLE total(
  name TEXT NOT NULL, unit TEXT NOT NULL, hour_us INTEGER NOT NULL, hour INTEGER NOT NULL,
  hour_told INTEGER NOT NULL, day_us INTEGER NOT NULL, day INTEGER NOT NULL,
  day_told INTEGER NOT NULL, PRIMARY KEY(name, unit)
) STRICT, WITHOUT ROWID;
CREATE TABLE raised(
  seq INTEGER NOT NULL, name TEXT NOT NULL, unit TEXT NOT NULL, span TEXT NOT NULL,
  amount INTEGER NOT NULL, until_us INTEGER NOT NULL, PRIMARY KEY(seq, unit, span)
) STRICT, WITHOUT ROWID;
CREATE INDEX spend_minute ON spend(minute);
CREATE TABLE stop(scope TEXT, name TEXT, seq INTEGER NOT NULL, PRIMARY KEY(scope, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE command(id TEXT PRIMARY KEY, seq INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE bundle(digest TEXT PRIMARY KEY, files BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE policy(
  number INTEGER PRIMARY KEY, digest TEXT NOT NULL, seq INTEGER NOT NULL, at INTEGER NOT NULL
) STRICT;
-- The read model's rows as the archived entries left them, which nobody can make again: written
-- when entries are archived.
{_BASE_TABLE};
CREATE TABLE candidate(
  seq INTEGER PRIMARY KEY, bank TEXT NOT NULL, scope TEXT NOT NULL, agent TEXT NOT NULL,
  run TEXT NOT NULL, event TEXT NOT NULL) STRICT;
"""

# Schema 1 found everything by its id. What belongs to an event then came to lie under its position,
# and what was observed of a key is a chain (`prior`) instead of an index.
# These tables are renamed first, to old_*, and dropped in the end.
RENAMED_TABLES = (
    "meta", "entry", "body", "checkpoint", "event", "run", "action", "state", "row", "position",
    "spend", "stop", "command", "bundle", "policy",
)  # fmt: skip
ONE_TO_THREE = """
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

# The read model left the store. Of archived entries nobody can make it again: what it said of them,
# and of what came since, is kept.
VIEW_TO_BASE = f"""
{_BASE_TABLE};
INSERT INTO view_base SELECT name, id, version, sort, data FROM view
  WHERE EXISTS (SELECT 1 FROM meta WHERE name='archived');
INSERT INTO meta SELECT 'view_base', MAX(seq) || '' FROM entry
  WHERE EXISTS (SELECT 1 FROM meta WHERE name='archived') HAVING MAX(seq) IS NOT NULL;
DROP TABLE view;
"""
TWO_TO_THREE = f"""
DROP INDEX entry_agent;
DROP INDEX entry_kind;
DROP INDEX entry_rule;
DROP INDEX entry_rev;
DROP INDEX entry_actor;
{_RARE_INDEX};
{VIEW_TO_BASE}
"""
