"""The rows of judges' states that are kept, one of each key, and what they are made of.

A kept state holds every event of its key that was observed up to its position. The commits that
could make that untrue look: one that keeps a state, one that erases, and one that observes late.
See docs/design/storage.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import orjson

from vedette.domain.event import Event
from vedette.domain.ports.run_store import StateHistory
from vedette.domain.run import Run
from vedette.store.dialect import Database
from vedette.store.row_mapper import FIND_PRIOR, select_runs
from vedette.store.stored_entries import EntryReader
from vedette.store.write_buffer import UPSERT_STATE

# What was observed of a key, up to a position and behind another, by its chain.
_SINCE = (
    "WITH RECURSIVE chain(position) AS (SELECT CAST(? AS INTEGER) UNION ALL "
    "SELECT r.prior FROM chain c JOIN run r ON r.position=c.position AND r.agent=? "
    "WHERE c.position>?) SELECT position FROM chain WHERE position>? ORDER BY position"
)
_OBSERVED = (
    "WITH RECURSIVE chain(position) AS (SELECT position FROM head WHERE agent=? AND key=? "
    "UNION ALL SELECT r.prior FROM chain c JOIN run r ON r.position=c.position AND r.agent=? "
    "WHERE c.position>0) SELECT position FROM chain WHERE position>0 AND position<=? "
    "ORDER BY position"
)
_UNKEPT = (
    "LEFT JOIN state s ON s.agent=r.agent AND s.key=r.key "
    "WHERE r.position=? AND r.observed=1 AND (s.position IS NULL OR s.position<r.position) "
    "ORDER BY r.agent"
)


def find_previous(database: Database, agent: str, key: str, before: int) -> int:
    """Return the position of a key's last row of an observed event before `before`; 0 if none."""
    rows = database.rows(FIND_PRIOR, (agent, key, agent, before, before))
    return int(rows[0][0]) if rows else 0


def read_history(database: Database, agent: str, key: str, before: int) -> StateHistory:
    """Read what a judge's state before a position is made of, in one snapshot or a transaction.

    Of events whose content is gone there is nothing in it: no kept state holds them, so the agent
    kept none when it went.
    """
    rows = database.rows(
        "SELECT blob, position FROM state WHERE agent=? AND key=? AND position<?",
        (agent, key, before),
    )
    blob, at = (bytes(rows[0][0]), int(rows[0][1])) if rows else (None, 0)
    last = find_previous(database, agent, key, before)
    since = database.rows(_SINCE, (last, agent, at, at)) if last > at else []
    found = EntryReader(database).find_all(int(position) for (position,) in since)
    events = [
        (seq, Event.from_body(orjson.loads(one.data)))
        for seq, one in found.items()
        if one.data is not None
    ]
    return StateHistory(blob, at, events, max(at, last))


def keep_state(
    database: Database, agent: str, key: str, history: StateHistory, blob: bytes
) -> bool:
    """Write the row of a judge's state, if its history still is the one up to its last event.

    Since it was read an event may have been observed late, erased by somebody else, or taken into
    another state: then nothing is kept, and it is to be read again.
    """
    if read_history(database, agent, key, history.last_position + 1) != history:
        return False
    database.execute(UPSERT_STATE, (agent, key, history.last_position, blob))
    return True


def find_unkept(
    database: Database, positions: Iterable[int], stateless: Collection[str] = ()
) -> list[Run]:
    """Select the runs of events that judges have observed and that no row of a kept state holds.

    Not those of agents that keep no state.
    """
    found = (run for at in positions for run in select_runs(database, _UNKEPT, (at,)))
    return [run for run in found if run.agent not in stateless]


def is_too_late(database: Database, agent: str, key: str, position: int) -> bool:
    """Say whether an event comes too late for its key: no row of a kept state holds it, or can.

    A kept state of later events does not hold it, and cannot be made again with it, as some
    content that it was made of is gone.
    """
    rows = database.rows(
        "SELECT position FROM state WHERE agent=? AND key=? AND position>?", (agent, key, position)
    )
    if not rows:
        return False
    observed = database.rows(_OBSERVED, (agent, key, agent, rows[0][0]))
    return not EntryReader(database).has_content(*(int(seq) for (seq,) in observed))


class JudgeStateReader:
    """The reader of the rows of judges' states. Fits `ports.run_store.JudgeStateReader`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def previous_position(self, agent: str, key: str, before: int) -> int:
        return find_previous(self._database, agent, key, before)

    def history(self, agent: str, key: str, before: int) -> StateHistory:
        with self._database.snapshot():
            return read_history(self._database, agent, key, before)

    def kept(self) -> list[tuple[str, str, int, bytes]]:
        sql = "SELECT agent, key, position, blob FROM state ORDER BY agent, key"
        rows = self._database.rows(sql)
        return [(agent, key, int(at), bytes(blob)) for agent, key, at, blob in rows]

    def last_positions(self) -> list[tuple[str, str, int]]:
        rows = self._database.rows("SELECT agent, key, position FROM head ORDER BY agent, key")
        return [(agent, key, int(at)) for agent, key, at in rows]

    def observed_positions(self) -> Iterator[tuple[str, str, int, int]]:
        sql = (
            "SELECT agent, key, position, prior FROM run WHERE observed=1 "
            "ORDER BY agent, key, position"
        )
        for agent, key, position, prior in self._database.iterate_rows(sql):
            yield agent, key, int(position), int(prior)
