"""Reading rows back as nouns. Everything here is a query by an index; nothing writes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import orjson

from vedette.event import Event
from vedette.memory import Candidate
from vedette.run import ActionRow, Run

if TYPE_CHECKING:
    import apsw

RUN = "id,event,agent,key,position,state,steps,entries,turn,last,attempts,wake_us,waits,observed"
ACTION = (
    "id,run,turn,ordinal,agent,tool,digest,record,decided,rule,policy_rev,decisions,hold,waits,"
    "until_us,approver,effect,tries,not_before_us,answer,obliges,seq,last,counted_us"
)


def to_run(row: tuple[Any, ...]) -> Run:
    """Make a Run of a row selected as RUN."""
    run = Run(*row)
    run.observed = bool(run.observed)
    return run


def to_action(row: tuple[Any, ...]) -> ActionRow:
    """Make an ActionRow of a row selected as ACTION; an erased record is empty."""
    action = ActionRow(*row)
    action.record = action.record or b""
    return action


class Reads:
    """What can be asked of the store; shared by the runner and by read-only openers."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def _rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, values).fetchall()

    # --- what the line asks -----------------------------------------------------------------

    def run(self, run: str) -> Run | None:
        """Return one run."""
        rows = self._rows(f"SELECT {RUN} FROM run WHERE id=?", run)
        return to_run(rows[0]) if rows else None

    def backlog(self, after: int, limit: int) -> list[Run]:
        """Return ready runs with position > `after`, oldest first."""
        sql = f"SELECT {RUN} FROM run WHERE state='ready' AND position>? ORDER BY position LIMIT ?"
        return [to_run(row) for row in self._rows(sql, after, limit)]

    def due(self, now_us: int, limit: int, without: Collection[str] = ()) -> list[Run]:
        """Return waiting runs whose instant has come, but those of the agents of `without`."""
        marks = ",".join("?" * len(without))
        sql = (
            f"SELECT {RUN} FROM run WHERE state='waiting' AND wake_us>0 AND wake_us<=? "
            f"AND agent NOT IN ({marks}) ORDER BY wake_us LIMIT ?"
        )
        return [to_run(row) for row in self._rows(sql, now_us, *without, limit)]

    def event(self, key: str) -> Event | None:
        """Return an accepted event; None if it is unknown or its body was erased."""
        rows = self._rows(
            "SELECT b.data FROM event e JOIN body b ON b.seq=e.seq WHERE e.key=?", key
        )
        return Event.from_payload(orjson.loads(rows[0][0])) if rows else None

    def actions(self, run: str) -> list[ActionRow]:
        """Return the actions of a run in order."""
        sql = f"SELECT {ACTION} FROM action WHERE run=? ORDER BY turn, ordinal"
        return [to_action(row) for row in self._rows(sql, run)]

    def action(self, action: str) -> ActionRow | None:
        """Return one action."""
        rows = self._rows(f"SELECT {ACTION} FROM action WHERE id=?", action)
        return to_action(rows[0]) if rows else None

    def turns(self, run: str) -> list[Mapping[str, Any]]:
        """Return the bodies of the run's recorded turns, oldest first."""
        sql = (
            "SELECT b.data FROM entry e JOIN body b ON b.seq=e.seq "
            "WHERE e.run=? AND e.kind='turn.reasoned' ORDER BY e.seq"
        )
        return [orjson.loads(data) for (data,) in self._rows(sql, run)]

    def row(self, collection: str, key: str) -> Mapping[str, Any] | None:
        """Return one row of a fleet-owned collection."""
        rows = self._rows("SELECT data FROM row WHERE collection=? AND key=?", collection, key)
        return orjson.loads(rows[0][0]) if rows else None

    def rows(self, collection: str, limit: int = 200) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the rows of a collection by key."""
        found = self._rows(
            "SELECT key,data FROM row WHERE collection=? ORDER BY key LIMIT ?", collection, limit
        )
        return [(key, orjson.loads(data)) for key, data in found]

    def previous(self, agent: str, key: str, before: int) -> int:
        """Return the position of the last observed event of a key before `before`; 0 if none."""
        sql = (
            "SELECT position FROM run WHERE agent=? AND key=? AND position<? AND observed=1 "
            "ORDER BY position DESC LIMIT 1"
        )
        rows = self._rows(sql, agent, key, before)
        return int(rows[0][0]) if rows else 0

    def history(
        self, agent: str, key: str, before: int
    ) -> tuple[bytes | None, int, list[tuple[int, Event]]]:
        """Return the last checkpoint of a key, its position, and the events observed since."""
        rows = self._rows(
            "SELECT blob, position FROM state WHERE agent=? AND key=? AND position<?",
            agent, key, before,
        )  # fmt: skip
        blob, at = rows[0] if rows else (None, 0)
        since = self._rows(
            "SELECT r.position, b.data FROM run r JOIN body b ON b.seq=r.position "
            "WHERE r.agent=? AND r.key=? AND r.position>? AND r.position<? AND r.observed=1 "
            "ORDER BY r.position",
            agent, key, at, before,
        )  # fmt: skip
        return blob, at, [(pos, Event.from_payload(orjson.loads(data))) for pos, data in since]

    def position(self, source: str) -> str | None:
        """Return where a source was as of its last durable batch."""
        rows = self._rows("SELECT value FROM position WHERE source=?", source)
        return str(rows[0][0]) if rows else None

    def spent(self, since_minute: int) -> list[tuple[str, str, int, int]]:
        """Return (agent, unit, minute, amount) from a minute on."""
        return [
            (agent, unit, minute, amount)
            for agent, unit, minute, amount in self._rows(
                "SELECT agent,unit,minute,amount FROM spend WHERE minute>=?", since_minute
            )
        ]

    # --- policy and stops -------------------------------------------------------------------

    def meta(self, name: str) -> Any:
        """Return a value of the meta table, or None."""
        rows = self._rows("SELECT value FROM meta WHERE name=?", name)
        return rows[0][0] if rows else None

    def revision(self) -> tuple[int, str]:
        """Return the live policy revision and its bundle digest; (0, '') before the first."""
        rows = self._rows("SELECT number,digest FROM policy ORDER BY number DESC LIMIT 1")
        return (rows[0][0], rows[0][1]) if rows else (0, "")

    def bundle(self, digest: str) -> dict[str, bytes] | None:
        """Return the files of a recorded bundle."""
        rows = self._rows("SELECT files FROM bundle WHERE digest=?", digest)
        if not rows:
            return None
        return {path: text.encode("utf-8") for path, text in orjson.loads(rows[0][0]).items()}

    def stops(self) -> list[tuple[str, str]]:
        """Return what is stopped: (scope, name) with scope all, agent or tool."""
        return [(scope, name) for scope, name in self._rows("SELECT scope,name FROM stop")]

    # --- pages for people (keyset, never OFFSET) --------------------------------------------

    def head(self) -> int:
        """Return the seq of the last entry."""
        return int(self._rows("SELECT COALESCE(MAX(seq),0) FROM entry")[0][0])

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
        """Return runs, newest first, on one side of a run.

        The place of a run is (position, agent): an event may wake several. `beside` is the agent
        of the run at `before` or `after`; `after` asks for the nearest newer ones.
        """
        newer = after is not None
        place = (after if newer else 2**62 if before is None else before, beside)
        where, values = [f"(position, agent) {'>' if newer else '<'} (?, ?)"], [*place]
        if agent is not None:
            where.append("agent=?")
            values.append(agent)
        if state is not None:
            # A partial index is used only where the query's own text implies its condition.
            rare = " AND state IN ('waiting', 'dead')" if state in ("waiting", "dead") else ""
            where.append(("state='ready'" if state == "ready" else "state=?") + rare)
            values += [] if state == "ready" else [state]
        order = "ASC" if newer else "DESC"
        sql = (
            f"SELECT {RUN} FROM run WHERE {' AND '.join(where)} "
            f"ORDER BY position {order}, agent {order} LIMIT ?"
        )
        runs = [to_run(row) for row in self._rows(sql, *values, limit)]
        return runs[::-1] if newer else runs

    def holds_page(self, *, after: int, limit: int, beside: str = "") -> list[ActionRow]:
        """Return actions that wait for anything, oldest first, after the one at (seq, id).

        Actions of one step share their seq; `beside` is the id of the last one seen ("" asks for
        all with that seq, too).
        """
        sql = (
            f"SELECT {ACTION} FROM action WHERE hold IN ('open','approved') AND (seq, id) > (?, ?) "
            "ORDER BY seq, id LIMIT ?"
        )
        return [to_action(row) for row in self._rows(sql, after, beside, limit)]

    def waiting(self) -> dict[str, int]:
        """Return how many runs wait, by what they wait for."""
        sql = (
            "SELECT COALESCE(waits, ''), COUNT(*) FROM run "
            "WHERE state='waiting' AND state IN ('waiting', 'dead') GROUP BY waits"
        )
        return {str(waits): int(number) for waits, number in self._rows(sql)}

    def would(self, limit: int = 100_000) -> dict[str, dict[str, int]]:
        """Return, for each agent, what its denials in mode observe would have been.

        Counted over the newest `limit` denials.
        """
        sql = (
            "SELECT agent, would, COUNT(*) FROM (SELECT agent, "
            "json_extract(CAST(bytes AS TEXT), '$.would') AS would FROM entry "
            "WHERE kind='action.decided' AND kind NOT IN ('event.accepted', 'run.closed') "
            "AND outcome='deny' ORDER BY seq DESC LIMIT ?) "
            "WHERE would IS NOT NULL GROUP BY agent, would"
        )
        table: dict[str, dict[str, int]] = {}
        for agent, would, number in self._rows(sql, limit):
            table.setdefault(agent, {})[would] = number
        return table

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let all reads inside see one state of the store, whatever is committed meanwhile."""
        self._connection.execute("SAVEPOINT reading")
        try:
            yield
        finally:
            self._connection.execute("RELEASE reading")

    def runs_of_event(self, event: str) -> list[Run]:
        """Return the runs an event made."""
        sql = f"SELECT {RUN} FROM run WHERE position=(SELECT seq FROM event WHERE key=?)"
        return [to_run(row) for row in self._rows(sql, event)]

    def runs_with(
        self, *, event: str | None = None, subject: str | None = None, entry: int | None = None
    ) -> list[Run]:
        """Return the runs whose content is found by an event, a subject or an event's entry."""
        if event is not None:
            return self.runs_of_event(event)
        if entry is not None:
            return [to_run(r) for r in self._rows(f"SELECT {RUN} FROM run WHERE position=?", entry)]
        sql = (
            f"SELECT {RUN} FROM run WHERE position IN (SELECT ev.seq FROM body b "
            "JOIN entry e ON e.seq=b.seq JOIN event ev ON ev.key=e.event WHERE b.subject=?)"
        )
        return [to_run(row) for row in self._rows(sql, subject)]

    def candidates(self, events: Collection[str]) -> list[Candidate]:
        """Return what was proposed for memory out of these events and is not erased."""
        sql = (
            "SELECT e.bytes, b.data FROM entry e JOIN body b ON b.seq=e.seq "
            "WHERE e.event=? AND e.kind='memory.proposed' ORDER BY e.seq"
        )
        return [
            Candidate.told(orjson.loads(raw), orjson.loads(data))
            for event in sorted(events)
            for raw, data in self._rows(sql, event)
        ]

    def entries(
        self, column: str, value: str, limit: int = 1000
    ) -> list[tuple[int, bytes, bytes | None]]:
        """Return (seq, bytes, body) of the entries of a run, event or action, oldest first."""
        if column not in ("run", "event", "action"):
            raise ValueError(f"entries are not found by {column}")
        sql = (
            "SELECT e.seq, e.bytes, b.data FROM entry e LEFT JOIN body b ON b.seq=e.seq "
            f"WHERE e.{column}=? ORDER BY e.seq LIMIT ?"
        )
        return [(seq, raw, data) for seq, raw, data in self._rows(sql, value, limit)]

    def entry(self, seq: int) -> tuple[int, bytes, bytes | None] | None:
        """Return (seq, bytes, body) of one entry."""
        rows = self._rows(
            "SELECT e.seq, e.bytes, b.data FROM entry e LEFT JOIN body b ON b.seq=e.seq "
            "WHERE e.seq=?", seq,
        )  # fmt: skip
        return (rows[0][0], rows[0][1], rows[0][2]) if rows else None

    def walk(
        self, kinds: tuple[str, ...] | None = None, after: int = 0
    ) -> Iterator[tuple[int, bytes, bytes | None, bytes | None]]:
        """Yield (seq, bytes, salt, body) of all entries in order, or of some kinds."""
        where = "e.seq>?"
        if kinds is not None:
            where += f" AND e.kind IN ({','.join('?' * len(kinds))})"
        sql = (
            "SELECT e.seq, e.bytes, b.salt, b.data FROM entry e LEFT JOIN body b ON b.seq=e.seq "
            f"WHERE {where} ORDER BY e.seq"
        )
        yield from self._connection.execute(sql, (after, *(kinds or ())))

    def columns(self) -> Iterator[tuple[Any, ...]]:
        """Yield every entry with its typed columns, for checking them against the bytes."""
        yield from self._connection.execute(
            "SELECT seq,at,kind,run,event,agent,action,outcome,rule,policy_rev,actor,cause,bytes "
            "FROM entry ORDER BY seq"
        )

    def notes(self) -> Iterator[str]:
        """Yield the signed checkpoints in order."""
        for (note,) in self._connection.execute("SELECT note FROM checkpoint ORDER BY size"):
            yield note

    def counts(self) -> dict[str, dict[str, int]]:
        """Return, for each agent, runs by state, decisions by outcome and effects by state."""
        table: dict[str, dict[str, int]] = {}
        for sql, prefix in (
            ("SELECT agent, state, COUNT(*) FROM run GROUP BY agent, state", "run"),
            ("SELECT agent, decided, COUNT(*) FROM action GROUP BY agent, decided", "decided"),
            ("SELECT agent, effect, COUNT(*) FROM action GROUP BY agent, effect", "effect"),
            ("SELECT agent, hold, COUNT(*) FROM action GROUP BY agent, hold", "hold"),
        ):
            for agent, value, number in self._rows(sql):
                if value is not None:
                    table.setdefault(agent, {})[f"{prefix}.{value}"] = number
        return table

    def events_counted(self) -> tuple[int, int]:
        """Return (events accepted, of which woke nobody)."""
        accepted = self._rows("SELECT COUNT(*) FROM event")[0][0]
        woke = self._rows("SELECT COUNT(DISTINCT event) FROM run")[0][0]
        return int(accepted), int(accepted) - int(woke)

    def examples(self) -> dict[str, str]:
        """Return an id of each kind worth looking at: a denied run, an open hold, an effect."""
        found = {}
        for name, sql in (
            ("denied", "SELECT run FROM action WHERE decided='deny' LIMIT 1"),
            ("hold", "SELECT id FROM action WHERE hold='open' LIMIT 1"),
            ("effect", "SELECT run FROM action WHERE effect='done' ORDER BY run LIMIT 1"),
        ):
            rows = self._rows(sql)
            if rows:
                found[name] = str(rows[0][0]).replace("act_", "hold_")
        return found

    def prefixed(self, table: str, prefix: str) -> list[str]:
        """Return up to 20 ids of runs, actions or events that begin with `prefix`."""
        column = {"run": "id", "action": "id", "event": "key"}[table]
        sql = f"SELECT {column} FROM {table} WHERE {column}>=? AND {column}<? LIMIT 20"
        return [str(row[0]) for row in self._rows(sql, prefix, prefix + "\U0010ffff")]
