"""Reading rows back as nouns: what the line asks. Everything is a query by an index."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import orjson

from vedette.domain.budget import Raise
from vedette.domain.bundle import Bundle
from vedette.domain.entry import is_body_of
from vedette.domain.event import Event
from vedette.domain.memory import Candidate
from vedette.domain.memory_state import MEMORY_ENTRY_KINDS, LedgerMemory, fold
from vedette.domain.ports.store import ErasureSurvey, StateHistory
from vedette.domain.run import ActionRow, Run
from vedette.domain.spend import SpendTotal
from vedette.domain.stop import Stop
from vedette.store import read_archived_memories
from vedette.store.dialect import Database, Row
from vedette.store.erasure import accepted_positions, survey, unkept_runs
from vedette.store.read_ledger import LedgerState
from vedette.store.readmodel.run_lists import ListQueries
from vedette.store.row_check import RowMismatch, find_mismatches
from vedette.store.row_mapper import ACTION_FIELDS, SELECT_RUNS, find_position, to_action, to_run
from vedette.store.spend_totals import read_raises, read_totals, sum_reserved
from vedette.store.states import find_previous, find_unkept, read_history

# With the words of the index, so that it is used.
_ARCHIVED = (
    "SELECT bytes FROM entry WHERE kind='ledger.archived' AND kind NOT IN "
    "('event.accepted', 'run.closed') ORDER BY seq DESC LIMIT 1"
)


class StoreReader(ListQueries, LedgerState):
    """What can be asked of the store; shared by the runner and by read-only openers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def _rows(self, sql: str, *values: Any) -> list[Row]:
        return self._database.rows(sql, values)

    def audit(self) -> Iterator[RowMismatch]:
        """Yield every column of a row that the entries contradict. Reads the whole ledger."""
        return find_mismatches(self._database)

    def run(self, run: str) -> Run | None:
        """Return one run."""
        rows = self._rows(f"{SELECT_RUNS} WHERE r.position=? AND r.id=?", self._position(run), run)
        return to_run(rows[0]) if rows else None

    def _position(self, id: str) -> int:
        return find_position(self._database, id)

    def ready_runs(self, after: int, limit: int, agent: str | None = None) -> list[Run]:
        """Return ready runs with position > `after`, oldest first; of one agent, or of all."""
        one, values = ("AND r.agent=? ", [agent]) if agent is not None else ("", [])
        sql = (
            f"{SELECT_RUNS} WHERE r.state='ready' AND r.position>? {one}ORDER BY r.position LIMIT ?"
        )
        return [to_run(row) for row in self._rows(sql, after, *values, limit)]

    def unjudged_runs(self, agent: str, key: str, limit: int) -> list[Run]:
        """Return the runs of a key that wait for their first turn, oldest first."""
        sql = (
            f"{SELECT_RUNS} WHERE r.agent=? AND r.key=? AND r.state='ready' AND r.turn=0 "
            "ORDER BY r.position LIMIT ?"
        )
        return [to_run(row) for row in self._rows(sql, agent, key, limit)]

    def ready_counts(self) -> dict[str, int]:
        """Return how many runs are ready, for each agent that has any."""
        sql = "SELECT agent, COUNT(*) FROM run WHERE state='ready' GROUP BY agent"
        return {agent: int(runs) for agent, runs in self._rows(sql)}

    def parked_runs(self) -> list[Run]:
        """Return the runs that wait for a target, oldest first."""
        sql = (
            f"{SELECT_RUNS} WHERE r.state='waiting' AND r.waits='target' "
            "AND r.state IN ('waiting', 'dead') ORDER BY r.position"
        )
        return [to_run(row) for row in self._rows(sql)]

    def due_runs(self, now_us: int, limit: int, without: Collection[str] = ()) -> list[Run]:
        """Return waiting runs whose instant has come, but those of the agents of `without`."""
        none = f"AND r.agent NOT IN ({','.join('?' * len(without))}) " if without else ""
        sql = (
            f"{SELECT_RUNS} WHERE r.state='waiting' AND r.wake_us>0 AND r.wake_us<=? "
            f"{none}ORDER BY r.wake_us LIMIT ?"
        )
        return [to_run(row) for row in self._rows(sql, now_us, *without, limit)]

    def event(self, key: str) -> Event | None:
        """Return an accepted event; None if it is unknown or its body was erased, or edited."""
        return self.event_at(self._position(key))

    def event_at(self, position: int) -> Event | None:
        """Return the event that an entry accepted; None as `event` does."""
        sql = "SELECT e.bytes, b.salt, b.data FROM body b JOIN entry e ON e.seq=b.seq WHERE b.seq=?"
        return read_event(self._rows(sql, position))

    def actions(self, run: str) -> list[ActionRow]:
        """Return the actions of a run in order."""
        sql = (
            f"SELECT {ACTION_FIELDS} FROM action WHERE position=? AND run=? ORDER BY turn, ordinal"
        )
        return [to_action(row) for row in self._rows(sql, self._position(run), run)]

    def action(self, action: str) -> ActionRow | None:
        """Return one action."""
        sql = f"SELECT {ACTION_FIELDS} FROM action WHERE position=? AND id=?"
        rows = self._rows(sql, self._position(action), action)
        return to_action(rows[0]) if rows else None

    def turns(self, run: str) -> list[Mapping[str, Any]]:
        """Return the bodies of the run's recorded turns, oldest first; none that was edited."""
        sql = (
            "SELECT e.bytes, b.salt, b.data FROM entry e JOIN body b ON b.seq=e.seq "
            "WHERE e.about=? AND e.kind='turn.reasoned' ORDER BY e.seq"
        )
        found = self._rows(sql, self._position(run))
        told = ((orjson.loads(raw), salt, data) for raw, salt, data in found)
        return [
            orjson.loads(data)
            for entry, salt, data in told
            if entry["run"] == run and is_body_of(entry, salt, data)
        ]

    def row(self, collection: str, key: str) -> Mapping[str, Any] | None:
        """Return one row of a fleet-owned collection."""
        rows = self._rows('SELECT data FROM "row" WHERE collection=? AND key=?', collection, key)
        return orjson.loads(rows[0][0]) if rows else None

    def rows(self, collection: str, limit: int = 200) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the rows of a collection by key."""
        found = self._rows(
            'SELECT key,data FROM "row" WHERE collection=? ORDER BY key LIMIT ?', collection, limit
        )
        return [(key, orjson.loads(data)) for key, data in found]

    def previous_position(self, agent: str, key: str, before: int) -> int:
        """Return the position of the last observed event of a key before `before`; 0 if none."""
        return find_previous(self._database, agent, key, before)

    def state_history(self, agent: str, key: str, before: int) -> StateHistory:
        """Return what the judge's state of a key was made of before a position, in order."""
        with self.snapshot():
            return read_history(self._database, agent, key, before)

    def states(self) -> list[tuple[str, str, int, bytes]]:
        """Return (agent, key, position, checkpoint) of every judge's state that is kept."""
        sql = "SELECT agent, key, position, blob FROM state ORDER BY agent, key"
        return [(agent, key, int(at), bytes(blob)) for agent, key, at, blob in self._rows(sql)]

    def last_positions(self) -> list[tuple[str, str, int]]:
        """Return (agent, key, position of the last observed event) of every key."""
        sql = "SELECT agent, key, position FROM head ORDER BY agent, key"
        return [(agent, key, int(at)) for agent, key, at in self._rows(sql)]

    def observed_positions(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield (agent, key, position, position of the one before) of every observed event."""
        sql = (
            "SELECT agent, key, position, prior FROM run WHERE observed=1 "
            "ORDER BY agent, key, position"
        )
        for agent, key, position, prior in self._database.iterate_rows(sql):
            yield agent, key, int(position), int(prior)

    def position(self, source: str) -> str | None:
        """Return where a source was as of its last durable batch."""
        rows = self._rows("SELECT value FROM position WHERE source=?", source)
        return str(rows[0][0]) if rows else None

    def spend_by_minute(self, since_minute: int) -> list[tuple[str, str, int, int]]:
        """Return (agent, unit, minute, amount) from a minute on, oldest first."""
        sql = "SELECT agent,unit,minute,amount FROM spend WHERE minute>=? ORDER BY minute"
        return [
            (of, unit, minute, amount) for of, unit, minute, amount in self._rows(sql, since_minute)
        ]

    def spend_totals(self) -> list[tuple[str, str, SpendTotal]]:
        """Return (name, unit, total) of every agent and, under FLEET, of the fleet."""
        return read_totals(self._database)

    def budget_raises(self, now_us: int) -> list[Raise]:
        """Return the raises of budgets in force at an instant."""
        return read_raises(self._database, now_us)

    def run_spend(self, run: str) -> dict[str, int]:
        """Return what a run has used by unit; what was booked and never settled counts in full."""
        found = self._rows(
            "SELECT seq,bytes FROM entry WHERE about=? AND kind IN "
            "('budget.reserved', 'budget.settled') ORDER BY seq",
            self._position(run),
        )
        return sum_reserved((seq, raw) for seq, raw in found if orjson.loads(raw)["run"] == run)

    # --- policy and stops -------------------------------------------------------------------

    def meta(self, name: str) -> str | None:
        """Return a durable value that is kept under a name, or None."""
        rows = self._rows("SELECT value FROM meta WHERE name=?", name)
        return rows[0][0] if rows else None

    def live_revision(self) -> tuple[int, str]:
        """Return the live policy revision and its bundle digest; (0, '') before the first."""
        rows = self._rows("SELECT number,digest FROM policy ORDER BY number DESC LIMIT 1")
        return (rows[0][0], rows[0][1]) if rows else (0, "")

    def revisions(self) -> list[tuple[int, str, int]]:
        """Return (number, digest, instant) of every revision there was, newest first."""
        rows = self._rows("SELECT number,digest,at FROM policy ORDER BY number DESC")
        return [(int(number), str(digest), int(at)) for number, digest, at in rows]

    def bundle_files(self, digest: str) -> dict[str, bytes] | None:
        """Return the files of a recorded bundle. Raises BadPolicy for a row that was changed."""
        rows = self._rows("SELECT files FROM bundle WHERE digest=?", digest)
        if not rows:
            return None
        try:
            told = orjson.loads(rows[0][0]).items()
            files = {path: text.encode("utf-8") for path, text in told}
        except (ValueError, AttributeError):
            files = {}
        return dict(Bundle.from_record(files, digest).files)

    def published_wasm(self, digest: str) -> str | None:
        """Return the digest of the Wasm that a bundle was published with last, if any was.

        As an entry says it: the publication's, or that of the archiving which took it away.
        """
        sql = (
            "SELECT bytes FROM entry WHERE kind='policy.published' AND seq<=(SELECT seq FROM policy"
            " WHERE digest=? ORDER BY number DESC LIMIT 1) ORDER BY seq DESC LIMIT 1"
        )
        rows = self._rows(sql, digest)
        if rows:
            found = orjson.loads(rows[0][0])
            return found.get("wasm") if found["bundle"] == digest else None
        rows = self._rows(_ARCHIVED)
        told: Any = orjson.loads(rows[0][0]).get("wasm") if rows else None
        return told.get(digest) if told else None

    def stop_scopes(self) -> list[tuple[str, str]]:
        """Return what is stopped: (scope, name) with scope all, agent or tool."""
        return [(scope, name) for scope, name in self._rows("SELECT scope,name FROM stop")]

    def active_stops(self) -> list[Stop]:
        """Return the stops in force, with the entries that set them and when they end."""
        sql = "SELECT s.scope, s.name, s.seq, e.bytes FROM stop s LEFT JOIN entry e ON e.seq=s.seq"
        return [
            # One whose entry is archived by now has no end that is known: a person lifts it.
            Stop(scope, name, int(seq), orjson.loads(raw).get("until", 0) if raw else 0)
            for scope, name, seq, raw in self._rows(sql)
        ]

    # --- content ----------------------------------------------------------------------------

    def runs_of_event(self, event: str) -> list[Run]:
        """Return the runs an event made."""
        sql = f"{SELECT_RUNS} WHERE r.position=? ORDER BY r.agent"
        return [to_run(row) for row in self._rows(sql, self._position(event))]

    def runs_at(self, positions: Sequence[int]) -> list[Run]:
        """Return the runs of the events at these positions."""
        found = [
            self._rows(f"{SELECT_RUNS} WHERE r.position=?", position) for position in positions
        ]
        return [to_run(row) for rows in found for row in rows]

    def runs_without_state(
        self, *, event: str | None = None, subject: str | None = None, entry: int | None = None
    ) -> list[Run]:
        """Return the observed runs of what `erase` would find that no kept state holds."""
        with self.snapshot():
            return unkept_runs(self._database, event, subject, entry)

    def runs_without_state_of(self, rows: Sequence[Row]) -> list[Run]:
        """Return the observed runs of these contents' events that no kept state holds."""
        return find_unkept(self._database, accepted_positions(rows))

    def survey(
        self, *, event: str | None = None, subject: str | None = None, entry: int | None = None
    ) -> ErasureSurvey:
        """Return what an erasure by one of event, subject and entry (seq) would find."""
        return survey(self._database, event, subject, entry)

    def candidates(self, events: Collection[str]) -> list[Candidate]:
        """Return what was proposed for memory out of these events and is not erased."""
        every = self.memories().values() if events else ()
        return [one.candidate for one in every if one.candidate is not None and one.event in events]

    def memories(self) -> dict[str, LedgerMemory]:
        """Return where every memory stands that the ledger tells of, by `bank/id`."""
        return fold(
            (seq, orjson.loads(raw), None if data is None else orjson.loads(data))
            for seq, raw, data in self.memory_entries(MEMORY_ENTRY_KINDS)
        )

    def is_command_done(self, command: str) -> bool:
        """Say whether an order of this id was carried out."""
        return bool(self._rows("SELECT 1 FROM command WHERE id=?", command))

    def memory_entries(self, kinds: tuple[str, ...]) -> list[tuple[int, bytes, bytes | None]]:
        """Return (seq, bytes, body) of entries that memories are made of, oldest first.

        Of those that are archived, too. `kinds` are some of
        `vedette.store.read_archived_memories.KINDS`.
        """
        found = {seq: (seq, raw, data) for seq, raw, _, data in self.walk(kinds)}
        # What is kept of an entry counts, be its row deleted yet or not.
        found |= {one[0]: one for one in read_archived_memories.read_entries(self._database, kinds)}
        return [found[seq] for seq in sorted(found)]

    def kept_bodies(self) -> dict[int, tuple[bytes, bytes]]:
        """Return (salt, body) of archived entries whose content the store keeps, by their seq."""
        return read_archived_memories.read_salted_bodies(self._database)

    def snapshot(self) -> AbstractContextManager[None]:
        """Let all reads inside see one state of the store, whatever is committed meanwhile."""
        return self._database.snapshot()


def read_event(rows: Sequence[Row]) -> Event | None:
    """Return the event of (entry, salt, body); None for none, or a body that it does not name."""
    for raw, salt, data in rows:
        if is_body_of(orjson.loads(raw), salt, data):
            return Event.from_body(orjson.loads(data))
    return None
