"""Pages for people and walks for verifying: by key, never by OFFSET."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import orjson

from vedette.domain.entry import is_body_of
from vedette.domain.row_proof import DECIDED_KIND, PROOF_KINDS, EntryRecord
from vedette.domain.run import ActionRow, Run
from vedette.store.dialect import Database, Row
from vedette.store.readmodel.counts import ReadTableQueries
from vedette.store.readmodel.entry_lists import EntryQueries
from vedette.store.row_mapper import ACTION_FIELDS, SELECT_RUNS, find_position, to_action, to_run


class ListQueries(EntryQueries, ReadTableQueries):
    """Lists, counts and walks. Part of `Reads`, which holds the connection."""

    _database: Database

    def _rows(self, sql: str, *values: Any) -> list[Row]:
        raise NotImplementedError

    def last_seq(self) -> int:
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
        sql = (
            f"{SELECT_RUNS} WHERE {' AND '.join(where)} "
            f"ORDER BY r.position {order}, r.agent {order} LIMIT ?"
        )
        runs = [to_run(row) for row in self._rows(sql, *values, limit)]
        return runs[::-1] if newer else runs

    def holds_page(self, *, after: int, limit: int, beside: str = "") -> list[ActionRow]:
        """Return actions that wait for anything, oldest first, after the one at (seq, id).

        Actions of one step share their seq; `beside` is the id of the last one seen ("" asks for
        all with that seq, too).
        """
        sql = (
            f"SELECT {ACTION_FIELDS} FROM action WHERE hold IN ('open','approved') "
            "AND (seq, id) > (?, ?) ORDER BY seq, id LIMIT ?"
        )
        return [to_action(row) for row in self._rows(sql, after, beside, limit)]

    def entries(
        self, column: str, value: str, limit: int = 1000
    ) -> list[tuple[int, bytes, bytes | None]]:
        """Return (seq, bytes, body) of the entries of a run, event or action, oldest first."""
        if column not in ("run", "event", "action"):
            raise ValueError(f"entries are not found by {column}")
        abouts = [find_position(self._database, value)]
        if column == "event":
            sql = "SELECT seq FROM refused WHERE key=?"
            abouts += [seq for (seq,) in self._rows(sql, value)]
        found: list[tuple[int, bytes, bytes | None]] = []
        for about in abouts:
            for seq, raw, data in self._rows(
                "SELECT e.seq, e.bytes, b.data FROM entry e LEFT JOIN body b ON b.seq=e.seq "
                "WHERE e.about=? ORDER BY e.seq",
                about,
            ):
                if column == "event" or orjson.loads(raw).get(column) == value:
                    found.append((seq, raw, data))
        return sorted(found)[:limit]

    def proof_entries(self, actions: Collection[str]) -> dict[str, list[EntryRecord]]:
        """Return the entries that rows are proved by (`vedette.domain.row_proof`), in order, by
        action.

        The actions are of one run. Of each action's decisions, which are many if it is stopped for
        long, the first and the last are read; those have their bodies, and so has what follows.
        A body that is not the one its entry names is as if it were gone.
        """
        entries: dict[str, dict[int, Any]] = {action: {} for action in actions}
        if not entries:
            return {}
        about = find_position(self._database, next(iter(entries)))
        kinds = ",".join("?" * len(PROOF_KINDS))
        sql = f"SELECT seq, bytes FROM entry WHERE about=? AND kind IN ({kinds})"
        for seq, raw in self._rows(sql, about, *PROOF_KINDS):
            entry = orjson.loads(raw)
            if entry.get("action") in entries:
                entries[entry["action"]][seq] = entry
        wanted: set[int] = set()
        for newest in (False, True):
            left = set(entries)
            for seq, raw in self._read_decisions(about, newest=newest):
                entry = orjson.loads(raw)
                if (action := entry.get("action")) in left:
                    left.discard(action)
                    wanted |= {seq, *(other for other in entries[action] if newest and other > seq)}
                    entries[action][seq] = entry
                    if not left:
                        break
        bodies = self._read_bodies(sorted(wanted))
        found: dict[str, list[EntryRecord]] = {action: [] for action in entries}
        for action, told in entries.items():
            for seq, entry in sorted(told.items()):
                salt, data = bodies.get(seq, (b"", None))
                named = data is not None and is_body_of(entry, salt, data)
                found[action].append((entry, data if named else None))
        return found

    def _read_decisions(self, about: int, *, newest: bool) -> Iterator[tuple[int, bytes]]:
        """Yield (seq, bytes) of an event's decisions from one end, no more than are asked for."""
        sign, order, at = ("<", "DESC", 2**62) if newest else (">", "ASC", 0)
        sql = (
            f"SELECT seq, bytes FROM entry WHERE about=? AND kind=? AND seq{sign}? "
            f"ORDER BY seq {order} LIMIT 64"
        )
        while rows := self._rows(sql, about, DECIDED_KIND, at):
            yield from rows
            at = rows[-1][0]

    def _read_bodies(self, seqs: list[int]) -> dict[int, tuple[bytes, bytes]]:
        """Return the (salt, body) of entries by their seq, as far as they have one."""
        found: dict[int, tuple[bytes, bytes]] = {}
        for at in range(0, len(seqs), 500):
            part = seqs[at : at + 500]
            sql = f"SELECT seq, salt, data FROM body WHERE seq IN ({','.join('?' * len(part))})"
            found |= {seq: (bytes(salt), data) for seq, salt, data in self._rows(sql, *part)}
        return found

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
        rows: Iterator[Any] = self._database.iterate_rows(sql, (after, *(kinds or ())))
        yield from rows

    def columns(self) -> Iterator[tuple[Any, ...]]:
        """Yield every entry with its typed columns, for checking them against the bytes."""
        yield from self._database.iterate_rows(
            "SELECT seq,at,kind,about,agent,outcome,rule,policy_rev,actor,cause,bytes "
            "FROM entry ORDER BY seq"
        )

    def notes(self) -> Iterator[str]:
        """Yield the signed checkpoints in order."""
        for (note,) in self._database.iterate_rows("SELECT note FROM checkpoint ORDER BY size"):
            yield note

    def find_by_prefix(self, table: str, prefix: str) -> list[str]:
        """Return up to 20 ids of runs, actions or events that begin with `prefix`."""
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
        found = [str(row[0]) for row in self._rows(sql, low - 2**63, high - 2**63, *ends)]
        old = self._rows("SELECT id FROM old_id WHERE id>=? AND id<? LIMIT 20", *ends)
        return (found + [str(row[0]) for row in old])[:20]
