"""The tables of one fleet's store.

Entries stay as made, in segments that hold their content, too, until it is erased; every other
table is the present state of something (run, action, row, state, spend, stop), or finds a segment.

Everything that belongs to an event lies under one number, `about`: the seq of the entry that
accepted it, which is also the `position` of its runs. So rows arrive in the order of the key,
whatever an id looks like, and the one index that is entered at random is that of the events
themselves. Ids lead home: the first half of a run's or an action's id is that of its event
(docs/decisions/0022).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from vedette.domain.base.errors import BadStore

T = TypeVar("T")

SCHEMA = 4

# Events of a key that wait to be judged. Made wherever it is missing: an older program keeps it.
UNJUDGED_INDEX = (
    "CREATE INDEX IF NOT EXISTS run_unjudged ON run(agent, key, position) "
    "WHERE state = 'ready' AND turn = 0"
)

# What an event leaves by itself, and so nearly every entry: by kind none of them is found here, and
# people's lists of them are in the read model (`vedette.store.readmodel`).
LINE_KINDS = (
    "event.accepted", "recall.decided", "budget.reserved", "turn.reasoned", "action.decided",
    "effect.intended", "effect.started", "effect.done", "budget.settled", "run.closed",
)  # fmt: skip

# The tree that the store goes on with.
NEWEST_FRONTIER = "SELECT frontier FROM checkpoint ORDER BY size DESC LIMIT 1"

BASE_TABLE = """
CREATE TABLE view_base(
  name TEXT NOT NULL, id TEXT NOT NULL, version INTEGER NOT NULL, sort INTEGER NOT NULL,
  data BLOB NOT NULL, PRIMARY KEY(name, id)
) STRICT, WITHOUT ROWID"""

ENTRY_TABLES = """
-- Entries that follow one another, up to `last`, and their content: see `vedette.store.segment`.
CREATE TABLE segment(
  last INTEGER PRIMARY KEY, first INTEGER NOT NULL, entries BLOB NOT NULL, bodies BLOB) STRICT;
CREATE INDEX segment_content ON segment(last) WHERE bodies IS NOT NULL;
-- The segments that hold entries about an event, but for that of the event itself.
CREATE TABLE place(about INTEGER NOT NULL, last INTEGER NOT NULL, PRIMARY KEY(about, last)
) STRICT, WITHOUT ROWID;
-- The entries that are few, and that orders and starts look up by their kind.
CREATE TABLE rare_entry(kind TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY(kind, seq)
) STRICT, WITHOUT ROWID;
"""

TABLES = f"""
CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;

{ENTRY_TABLES}

-- The signed heads of the ledger, each with the tree that it is the head of.
CREATE TABLE checkpoint(size INTEGER PRIMARY KEY, note TEXT NOT NULL, frontier BLOB) STRICT;

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
{BASE_TABLE};
CREATE TABLE candidate(
  seq INTEGER PRIMARY KEY, bank TEXT NOT NULL, scope TEXT NOT NULL, agent TEXT NOT NULL,
  run TEXT NOT NULL, event TEXT NOT NULL) STRICT;
"""


def list_tables(sql: str) -> list[str]:
    """Return the names of the tables that SQL creates, in the order of their declaration."""
    return re.findall(r'^CREATE TABLE "?(\w+)"?', sql, re.MULTILINE)


def refuse_newer(found: int, where: str | None = None) -> None:
    """Raise BadStore (`newer-store`) for a store that a newer program wrote."""
    if found > SCHEMA:
        raise BadStore(
            f"a newer vedette wrote this store (schema {found}; this version knows {SCHEMA})",
            where=where, code="newer-store",
            mend="use the version of vedette that wrote it; the store is whole",
        )  # fmt: skip


def refuse_older(found: int, where: str | None = None) -> None:
    """Raise BadStore (`older-store`) for a store that an older program wrote."""
    if found < SCHEMA:
        raise BadStore(
            f"an older vedette wrote this store (schema {found}; this version needs {SCHEMA})",
            where=where, code="older-store",
            mend="stop the fleet, then `vedette upgrade`; the store is whole",
        )  # fmt: skip


def in_list(values: Sequence[T]) -> tuple[str, list[T]]:
    """Return the marks and the values of an SQL IN list, which must not be empty.

    Padded to a power of two with its last value: so there are few statements to prepare.
    """
    padding = (1 << (len(values) - 1).bit_length()) - len(values)
    padded = [*values, *[values[-1]] * padding]
    return ",".join("?" * len(padded)), padded


def tag(id: str) -> int:
    """Return the number by which a table's index finds an event: an id's first 64 bits, signed.

    `id` is that of an event, or of a run or an action, whose first half is its event's.
    """
    return int(id.rpartition("_")[2][:16], 16) - 2**63
