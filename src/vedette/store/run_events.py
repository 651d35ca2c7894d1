"""Which runs took an event in that is not their own, and what they have of it.

An event that a wait looked for (`event.matched`), or that joined a session (`event.joined`), is
told to the run that waits. What that run made durable from then on may tell of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import orjson
from msgspec import Struct

from vedette.domain.entry import MATCHED_KIND
from vedette.domain.run import ActionRow, Run
from vedette.domain.task_words import JOINED
from vedette.store.dialect import Database, Row
from vedette.store.row_mapper import read_actions, read_run
from vedette.store.stored_entries import EntryReader


class TakenEvent(Struct, frozen=True):
    """An event that a run took in: by the entry `seq`, for the action that waited ("": it joined).

    `turn` is the run's turn as of then.
    """

    run: Run
    seq: int
    action: str = ""
    turn: int = 0

    def rows_since(self, database: Database) -> list[ActionRow]:
        """Return the run's actions that have moved since."""
        rows = read_actions(database, self.run.position, self.run.id)
        return [row for row in rows if row.last > self.seq]

    def is_told(self, database: Database) -> bool:
        """Say whether the run may have the event's content, or is about to read it.

        It has not while a person has it wait and it looked at nothing since.
        """
        if self.run.state != "waiting" or self.run.waits != "person":
            return True
        if not self.action:
            return self.run.turn > self.turn
        return any(row.id == self.action and row.is_final for row in self.rows_since(database))

    def content(self, database: Database) -> Iterator[Row]:
        """Yield (seq, entry bytes, about) of what the run has recorded since."""
        entries = EntryReader(database).of_events([self.run.position], after=self.seq)
        for one in entries:
            if one.data is not None and orjson.loads(one.raw).get("run") == self.run.id:
                yield one.seq, one.raw, one.about


def list_taken(database: Database, places: Collection[int]) -> list[TakenEvent]:
    """Return the runs that may have content of the events of these positions, and are told of it.

    One for a run, the first.
    """
    if not places:
        return []
    found: dict[str, TakenEvent] = {}
    entries = EntryReader(database, content=False)
    for one in entries.rare((MATCHED_KIND, JOINED), after=min(places)):
        entry = orjson.loads(one.raw)
        if entry["cause"] not in places or entry["run"] in found:
            continue
        run = read_run(database, entry["run"])
        if run is None or run.position in places:
            continue  # what belongs to its own event goes with that
        taken = TakenEvent(run, one.seq, entry.get("action", ""), entry.get("turn", 0))
        if taken.is_told(database):
            found[run.id] = taken
    return list(found.values())


def clear_actions(database: Database, taken: Iterable[TakenEvent]) -> None:
    """Clear in the actions of these runs what they may have of the events that they took in."""
    places = [(one.run.position, one.run.agent, one.seq) for one in taken]
    of_run = "WHERE position=? AND agent=?"
    database.execute_many(f"UPDATE action SET record=NULL {of_run} AND seq>?", places)
    database.execute_many(f"UPDATE action SET answer=NULL {of_run} AND last>?", places)
