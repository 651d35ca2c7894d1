"""Runs, events and actions read from their rows as nouns. Everything is a query by an index."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import orjson

from vedette.domain.artefact import (
    ARTEFACT_ID,
    STORED_KIND,
    Artefact,
    ArtefactHead,
    StoredArtefact,
    artefact_id,
)
from vedette.domain.entry import MATCHED_KIND, is_body_of
from vedette.domain.erasure import ErasureSurvey, ErasureTarget
from vedette.domain.event import Event
from vedette.domain.ports.run_store import AcceptedEvent
from vedette.domain.run import ActionRow, Run
from vedette.domain.task_words import STANDING_KINDS
from vedette.store.dialect import Database, Row
from vedette.store.erasure import accepted_positions, find_content, survey_erasure
from vedette.store.row_mapper import (
    SELECT_ACTIONS,
    find_position,
    read_action,
    read_actions,
    read_run,
    select_runs,
    to_action,
)
from vedette.store.schema import tag
from vedette.store.segment import StoredEntry
from vedette.store.states import find_unkept
from vedette.store.stored_entries import EntryReader

_TAGGED = "SELECT seq FROM event WHERE tag=?"

# Which runs are this worker's: a condition on `r`, or nothing, and its values.
RunScope = Callable[[], tuple[str, list[int]]]


def all_runs() -> tuple[str, list[int]]:
    """Return the SQL condition that scopes runs for a store's only worker: none."""
    return "", []


class RunReader:
    """The runs read from a store's rows. Fits `ports.run_store.RunReader`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._entries = EntryReader(database)
        self._bare = EntryReader(database, content=False)

    def run(self, run: str) -> Run | None:
        return read_run(self._database, run)

    def runs_of_event(self, event: str) -> list[Run]:
        at = find_position(self._database, event)
        return select_runs(self._database, "WHERE r.position=? ORDER BY r.agent", (at,))

    def runs_at(self, positions: Sequence[int]) -> list[Run]:
        found = [select_runs(self._database, "WHERE r.position=?", (at,)) for at in positions]
        return [run for runs in found for run in runs]

    def runs_page(
        self,
        *,
        agent: str | None,
        state: str | None,
        before: int | None,
        limit: int,
        beside: str = "",
        after: int | None = None,
    ) -> list[Run]:
        newer = after is not None
        place = (after if newer else 2**62 if before is None else before, beside)
        where, values = [f"(r.position, r.agent) {'>' if newer else '<'} (?, ?)"], [*place]
        if agent is not None:
            where.append("r.agent=?")
            values.append(agent)
        if state is not None:
            # A partial index is used only where the query's own text implies its condition.
            rare = " AND r.state IN ('waiting', 'dead')" if state in ("waiting", "dead") else ""
            where.append(("r.state='ready'" if state == "ready" else "r.state=?") + rare)
            values += [] if state == "ready" else [state]
        order = "ASC" if newer else "DESC"
        rest = f"WHERE {' AND '.join(where)} ORDER BY r.position {order}, r.agent {order} LIMIT ?"
        runs = select_runs(self._database, rest, [*values, limit])
        return runs[::-1] if newer else runs

    def event(self, key: str) -> Event | None:
        try:
            number = tag(key)
        except ValueError:
            return None
        sql = "SELECT seq FROM event WHERE tag=? AND key=?"
        rows = self._database.rows(sql, (number, key))
        return self.event_at(int(rows[0][0])) if rows else None

    def event_at(self, position: int) -> Event | None:
        found = _event_of(self._entries.find(position))
        return None if found is None else found.event

    def events_at(self, positions: Sequence[int]) -> dict[int, AcceptedEvent]:
        events = {}
        for position, entry in self._entries.find_all(positions).items():
            with suppress(ValueError, TypeError, AttributeError):  # who asks for it alone is told
                if (event := _event_of(entry)) is not None:
                    events[position] = event
        return events

    def actions(self, run: str) -> list[ActionRow]:
        return read_actions(self._database, find_position(self._database, run), run)

    def action(self, action: str) -> ActionRow | None:
        return read_action(self._database, find_position(self._database, action), action)

    def holds_page(self, *, after: int, limit: int, beside: str = "") -> list[ActionRow]:
        sql = (
            f"{SELECT_ACTIONS} WHERE hold IN ('open','approved') "
            "AND (seq, id) > (?, ?) ORDER BY seq, id LIMIT ?"
        )
        return [to_action(row) for row in self._database.rows(sql, (after, beside, limit))]

    def turns(self, run: str) -> list[Mapping[str, Any]]:
        # Their content alone: what lies between may be megabytes.
        position = find_position(self._database, run)
        turns = self._bare.of_events([position], kinds=("turn.reasoned",))
        return list(_bodies_of(run, self._entries.find_all(one.seq for one in turns).values()))

    def turns_back(self, run: str, before: int | None = None) -> Iterator[Mapping[str, Any]]:
        position = find_position(self._database, run)
        turns = self._bare.of_event_back(position, kind="turn.reasoned", before=before)
        found = (self._entries.find(one.seq) for one in turns)
        return _bodies_of(run, (one for one in found if one is not None))

    def artefact(self, id: str) -> StoredArtefact | None:
        if ARTEFACT_ID.fullmatch(id) is None:
            return None
        abouts = [seq for (seq,) in self._database.rows(_TAGGED, (tag(id),))]
        for one in self._bare.of_events(abouts, kinds=(STORED_KIND,)):
            entry = orjson.loads(one.raw)
            if artefact_id(entry["event"], entry["body"]) == id:
                return StoredArtefact(
                    id, one.seq, entry["run"], entry["agent"], entry["action"], entry["tool"],
                    _artefact_of(entry, self._entries.find(one.seq)),
                )  # fmt: skip
        return None

    def artefact_sizes(self, run: str) -> dict[str, int]:
        about = find_position(self._database, run)
        stored = self._bare.of_events([about], kinds=(STORED_KIND,))
        entries = [orjson.loads(one.raw) for one in stored]
        return {
            artefact_id(entry["event"], entry["body"]): entry["size"]
            for entry in entries
            if entry["run"] == run
        }

    def task_entries(self, run: str) -> list[tuple[Mapping[str, Any], Mapping[str, Any] | None]]:
        position = find_position(self._database, run)
        said = self._bare.of_events([position], kinds=(*STANDING_KINDS, MATCHED_KIND))
        found = []
        for one in self._entries.find_all(one.seq for one in said).values():
            entry = orjson.loads(one.raw)
            if entry["run"] == run:
                found.append((entry, next(_bodies_of(run, (one,)), None)))
        return found

    def artefact_heads(self, run: str, after: int = 0) -> list[ArtefactHead]:
        about = find_position(self._database, run)
        stored = self._bare.of_events([about], kinds=(STORED_KIND,), after=after)
        entries = [(one.seq, orjson.loads(one.raw)) for one in stored]
        return [
            ArtefactHead(seq, entry["action"], entry["tool"], entry["what"], entry["size"])
            for seq, entry in entries
            if entry["run"] == run
        ]

    def artefact_of(self, seq: int) -> Artefact | None:
        stored = self._entries.find(seq)
        return None if stored is None else _artefact_of(orjson.loads(stored.raw), stored)

    def row(self, collection: str, key: str) -> Mapping[str, Any] | None:
        sql = 'SELECT data FROM "row" WHERE collection=? AND key=?'
        rows = self._database.rows(sql, (collection, key))
        return orjson.loads(rows[0][0]) if rows else None

    def source_position(self, source: str) -> str | None:
        rows = self._database.rows("SELECT value FROM position WHERE source=?", (source,))
        return str(rows[0][0]) if rows else None

    def find_by_prefix(self, table: str, prefix: str) -> list[str]:
        _, _, digits = prefix.partition("_")
        if not digits or any(c not in "0123456789abcdef" for c in digits):
            return []
        column = {"run": "id", "action": "id", "event": "key"}[table]
        place = "seq" if table == "event" else "position"
        low, high = int(f"{digits[:16]:0<16}", 16), int(f"{digits[:16]:f<16}", 16)
        sql = (
            f"SELECT t.{column} FROM event e JOIN {table} t ON t.{place}=e.seq "
            f"WHERE e.tag>=? AND e.tag<=? AND t.{column}>=? AND t.{column}<? LIMIT 20"
        )
        ends = (prefix, prefix + "g")
        rows = self._database.rows(sql, (low - 2**63, high - 2**63, *ends))
        rows += self._database.rows("SELECT id FROM old_id WHERE id>=? AND id<? LIMIT 20", ends)
        return [str(row[0]) for row in rows][:20]

    def survey(self, target: ErasureTarget) -> ErasureSurvey:
        return survey_erasure(self._database, target)

    def without_state(self, target: ErasureTarget) -> list[Run]:
        with self._database.snapshot():
            return self.without_state_of(list(find_content(self._database, target).values()))

    def without_state_of(self, rows: Sequence[Row]) -> list[Run]:
        return find_unkept(self._database, accepted_positions(rows))


def _bodies_of(run: str, turns: Iterable[StoredEntry]) -> Iterator[Mapping[str, Any]]:
    """Yield the bodies of a run's turns, of such entries; none that was erased, or edited."""
    for one in turns:
        entry = orjson.loads(one.raw)
        if one.salt is None or one.data is None or entry["run"] != run:
            continue
        if is_body_of(entry, one.salt, one.data):
            yield orjson.loads(one.data)


def _event_of(accepted: StoredEntry | None) -> AcceptedEvent | None:
    """Return the event that an entry accepted; None if its content was erased, or edited."""
    if accepted is None or accepted.salt is None or accepted.data is None:
        return None
    entry = orjson.loads(accepted.raw)
    if not is_body_of(entry, accepted.salt, accepted.data):
        return None
    event, at = Event.from_body(orjson.loads(accepted.data)), entry.get("at")
    # The digest proves the content, and nothing proves when: an entry may be edited.
    return AcceptedEvent(event, len(accepted.data), at if type(at) is int else 0)


def _artefact_of(entry: Mapping[str, Any], stored: StoredEntry | None) -> Artefact | None:
    """Return the artefact that an entry stored; None if its content was erased, or edited."""
    if stored is None or stored.salt is None or stored.data is None:
        return None
    is_whole = is_body_of(entry, stored.salt, stored.data)
    # Not by orjson, which takes a dozen times the memory of a long text.
    return Artefact.from_body(msgspec.json.decode(stored.data)) if is_whole else None


class RunSchedule:
    """The rows of this worker's runs that are to be handled. Fits `ports.run_store.RunSchedule`."""

    def __init__(self, database: Database, scope: RunScope) -> None:
        self._database = database
        self._scope = scope

    def ready_runs(self, after: int, limit: int, agent: str | None = None) -> list[Run]:
        one = " AND r.agent=?" if agent is not None else ""
        of = [] if agent is None else [agent]
        own, shards = self._scope()
        return select_runs(
            self._database,
            f"WHERE r.state='ready' AND r.position>?{one}{own} ORDER BY r.position LIMIT ?",
            [after, *of, *shards, limit],
        )

    def ready_counts(self) -> dict[str, int]:
        own, shards = self._scope()
        sql = f"SELECT r.agent, COUNT(*) FROM run r WHERE r.state='ready'{own} GROUP BY r.agent"
        return {agent: int(runs) for agent, runs in self._database.rows(sql, shards)}

    def due_runs(self, now_us: int, limit: int, without: Collection[str] = ()) -> list[Run]:
        none = f" AND r.agent NOT IN ({','.join('?' * len(without))})" if without else ""
        own, shards = self._scope()
        return select_runs(
            self._database,
            f"WHERE r.state='waiting' AND r.wake_us>0 AND r.wake_us<=?{none}{own} "
            "ORDER BY r.wake_us LIMIT ?",
            [now_us, *without, *shards, limit],
        )

    def unjudged_runs(self, agent: str, key: str, limit: int) -> list[Run]:
        return select_runs(
            self._database,
            "WHERE r.agent=? AND r.key=? AND r.state='ready' AND r.turn=0 "
            "ORDER BY r.position LIMIT ?",
            [agent, key, limit],
        )

    def parked_runs(self) -> list[Run]:
        return select_runs(
            self._database,
            "WHERE r.state='waiting' AND r.waits IN ('target', 'model') "
            "AND r.state IN ('waiting', 'dead') ORDER BY r.position",
        )
