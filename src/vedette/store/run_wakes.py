"""Runs that another run's step, or an accepted event, makes due, in the same transaction.

A run that is woken has taken one step more: whoever has it at this moment finds its next commit
refused, and looks at it afresh; so no wake is lost between a look and the wait that follows it. One
with nothing awaited is left alone, or what a model thinks of it would be thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson
from msgspec.structs import replace

from vedette.domain.run import AWAITED, Run, RunWake
from vedette.domain.task_words import CANCELLED, JOINED
from vedette.store.dialect import Database
from vedette.store.ledger_writer import LedgerWriter
from vedette.store.row_mapper import read_run
from vedette.store.stored_entries import EntryReader

_OPEN = ("ready", "waiting")
_MARKS = ",".join("?" * len(AWAITED))
_WAKE = (
    "UPDATE run SET steps=steps+1, wake_us=1 WHERE position=? AND agent=? AND EXISTS ("
    "SELECT 1 FROM action a WHERE a.position=run.position AND a.agent=run.agent "
    f"AND a.effect='started' AND a.waits IN ({_MARKS}))"
)
# After an entry that was written into a run: whoever has it finds that it was moved on.
WAKE_RUN = (
    "UPDATE run SET steps=steps+1, entries=entries+1, last=?, wake_us=1 "
    "WHERE position=? AND agent=?"
)


def are_open(database: Database, wakes: Sequence[RunWake]) -> bool:
    """Say whether each run is open that an entry is to be written into.

    One whose task a person cancelled takes no event of its session in: no turn would be told of it.
    """
    for wake in wakes:
        if wake.draft is None:
            continue
        run = read_run(database, wake.run)
        if run is None or run.state not in _OPEN:
            return False
        if wake.draft.kind == JOINED and _is_cancelled(database, run):
            return False
    return True


def _is_cancelled(database: Database, run: Run) -> bool:
    entries = EntryReader(database, content=False).of_events([run.position], kinds=(CANCELLED,))
    return any(orjson.loads(one.raw)["run"] == run.id for one in entries)


def wake_run(
    database: Database, ledger: LedgerWriter, wake: RunWake, at_us: int
) -> tuple[int, str]:
    """Make a run due, with its entry if it gets one; return its place. All of it is written."""
    run = read_run(database, wake.run)
    if run is None or run.state not in _OPEN:
        return (0, "")
    place = (run.position, run.agent)
    if wake.draft is None:
        database.execute(_WAKE, (*place, *sorted(AWAITED)))
        return place
    fields = {**wake.draft.fields, "event": run.event, "agent": run.agent}
    draft = replace(wake.draft, fields=fields)
    seq = ledger.append([draft], run.id, run.entries, at_us, run.position)
    database.execute(WAKE_RUN, (seq, *place))
    return place
