"""What became of every event of a replay, asked of the database itself and not of the fleet."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.segments import SEGMENTS, entries_of

# How a run may stand when nothing is to be done: over, held for somebody or something, or given up.
_RESTING = {"done", "waiting", "dead"}

_QUESTIONS = {
    "events": "SELECT COUNT(*) FROM event",
    "twice": "SELECT COUNT(*) - COUNT(DISTINCT (tag, key)) FROM event",
    "nobody": "SELECT COUNT(*) FROM event e "
    "WHERE NOT EXISTS (SELECT 1 FROM run r WHERE r.position=e.seq)",
    "orphans": "SELECT COUNT(*) FROM run r "
    "WHERE NOT EXISTS (SELECT 1 FROM event e WHERE e.seq=r.position)",
    "unsettled": "SELECT COUNT(*) FROM action WHERE decided='permit' AND "
    "COALESCE(effect, '') NOT IN ('done', 'failed')",
}
_TICK = b'"source":"vedette://harbour/schedule/'


@dataclass(frozen=True, slots=True)
class Account:
    """How many events there are, and what became of them.

    `ticks` are events of the fleet's own schedules. `runs` are by state; an event without a run
    is one of `nobody`, and the fleet itself counted `told_nobody` of them. `orphans` are runs of no
    event, `unsettled` permits whose effect is not known to be done or failed.
    """

    events: int
    twice: int
    ticks: int
    nobody: int
    told_nobody: int
    orphans: int
    unsettled: int
    runs: dict[str, int]

    def wrong(self) -> list[str]:
        """Return what is not accounted for."""
        found = []
        if self.twice:
            found.append(f"{self.twice} events are there twice")
        if self.nobody != self.told_nobody:
            found.append(f"{self.nobody} events have no run, {self.told_nobody} woke nobody")
        if self.orphans:
            found.append(f"{self.orphans} runs are of no event")
        if self.unsettled:
            found.append(f"{self.unsettled} permits have no settled effect")
        if odd := {state: n for state, n in self.runs.items() if state not in _RESTING}:
            found.append(f"runs do not rest: {odd}")
        return found

    def line(self) -> str:
        """Return it for people."""
        states = ", ".join(f"{n:,} {state}" for state, n in sorted(self.runs.items()))
        ticks = f", {self.ticks} of them ticks of schedules" if self.ticks else ""
        return (
            f"{self.events:,} events in the database{ticks}, {self.twice} twice; {self.nobody:,} "
            f"woke nobody, the others {sum(self.runs.values()):,} runs: {states}"
        )


async def accepted_in(url: str) -> int:
    """Return how many events a fleet's database has; 0 before there are tables."""
    import psycopg

    try:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            cursor = await connection.execute(
                "SELECT data FROM view_row WHERE name='fleet' AND id=''"
            )
            row = await cursor.fetchone()
    except psycopg.errors.UndefinedTable:
        return 0
    return 0 if row is None else int(json.loads(row[0]).get("events", 0))


def read_account(url: str) -> Account:
    """Read what a fleet's database says; nothing may be running on it."""
    import psycopg

    with psycopg.connect(url) as connection:

        def one(query: str) -> int:
            row = connection.execute(query.encode()).fetchone()
            assert row is not None
            return int(row[0])

        fleet = connection.execute(
            "SELECT data FROM view_row WHERE name='fleet' AND id=''"
        ).fetchone()
        document = json.loads(fleet[0]) if fleet else {}
        states = connection.execute("SELECT state, COUNT(*) FROM run GROUP BY state").fetchall()
        return Account(
            **{name: one(query) for name, query in _QUESTIONS.items()},
            ticks=_count_ticks(connection),
            told_nobody=int(document.get("woke_nobody", 0)),
            runs={state: int(n) for state, n in states},
        )


def _count_ticks(connection: Any) -> int:
    with connection.cursor("segments") as cursor:  # read as they come: there may be very many
        return sum(
            b'"kind":"event.accepted"' in one.raw and _TICK in (one.data or b"")
            for one in entries_of(cursor.execute(SEGMENTS))
        )
