"""The rows that a group writes, gathered table by table, written at its end: many a statement.

Nothing here can fail for an item's own sake, so an item that was refused has left nothing.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec.structs import astuple

from vedette.domain.base.errors import StoreFailed
from vedette.domain.run import ActionRow
from vedette.domain.spend import SpendCache
from vedette.store.dialect import Database
from vedette.store.ledger_writer import LedgerWriter
from vedette.store.spend_totals import read_raises, read_total, wake_runs, write_totals

# A row of `action` has the position of its run and the fields of ActionRow.
ACTION_COLUMNS = ("position", *ActionRow.__struct_fields__)
RUN_COLUMNS = (
    "position", "agent", "id", "key", "state", "steps", "entries", "turn", "last", "attempts",
    "wake_us", "waits", "observed", "prior",
)  # fmt: skip

_KEY = ("position", "agent", "turn", "ordinal")
# What changes after an action was written first; its record may have been erased since.
_FIXED_COLUMNS = (*_KEY, "id", "run", "tool", "digest", "record", "seq")
_MUTABLE_COLUMNS = [name for name in ACTION_COLUMNS if name not in _FIXED_COLUMNS]
_RECORD = ACTION_COLUMNS.index("record")

_EVENT = "INSERT INTO event(seq,tag,key,subject) VALUES(?,?,?,?)"
_REFUSED = "INSERT INTO refused(seq,key,subject) VALUES(?,?,?)"
_RUN = f"INSERT INTO run({','.join(RUN_COLUMNS)}) VALUES({','.join('?' * len(RUN_COLUMNS))})"
# An upsert rather than an UPDATE, so that many go in one statement; the run is always there, and
# one that is at another step is left alone. An absent `last` is 0, an absent `prior` -1.
_STEP = (
    f"{_RUN} ON CONFLICT(position,agent) DO UPDATE SET state=excluded.state, "
    "steps=excluded.steps, entries=excluded.entries, turn=excluded.turn, "
    "last=CASE WHEN excluded.last=0 THEN run.last ELSE excluded.last END, "
    "attempts=excluded.attempts, wake_us=excluded.wake_us, waits=excluded.waits, "
    "observed=excluded.observed, "
    "prior=CASE WHEN excluded.prior<0 THEN run.prior ELSE excluded.prior END "
    "WHERE run.steps=excluded.steps-1"
)
_RELINK = "UPDATE run SET prior=? WHERE position=? AND agent=?"
_HEAD = (
    "INSERT INTO head(agent,key,position) VALUES(?,?,?) "
    "ON CONFLICT(agent,key) DO UPDATE SET position=excluded.position"
)
_ACTION = (
    f"INSERT INTO action({','.join(ACTION_COLUMNS)}) VALUES({','.join('?' * len(ACTION_COLUMNS))})"
)
# An upsert for the same reason; what it would write anew does not matter.
_CHANGE_ACTION = f"{_ACTION} ON CONFLICT({','.join(_KEY)}) DO UPDATE SET " + ", ".join(
    f"{name}=excluded.{name}" for name in _MUTABLE_COLUMNS
)
_ROW = (
    'INSERT INTO "row"(collection,key,data,seq) VALUES(?,?,?,?) '
    "ON CONFLICT(collection,key) DO UPDATE SET data=excluded.data, seq=excluded.seq"
)
_NO_ROW = 'DELETE FROM "row" WHERE collection=? AND key=?'
_SPEND = (
    "INSERT INTO spend(agent,unit,minute,amount) VALUES(?,?,?,?) "
    "ON CONFLICT(agent,unit,minute) DO UPDATE SET amount=spend.amount+excluded.amount"
)
UPSERT_STATE = (
    "INSERT INTO state(agent,key,position,blob) VALUES(?,?,?,?) "
    "ON CONFLICT(agent,key) DO UPDATE SET position=excluded.position, blob=excluded.blob"
)

_STALE = "DELETE FROM state WHERE agent=? AND key=? AND position>?"


class WriteBuffer:
    """The rows of a group that are not written yet."""

    def __init__(self, database: Database, ledger: LedgerWriter) -> None:
        self._database = database
        self._ledger = ledger
        self.event_keys: set[str] = set()
        self.events: list[tuple[int, int, str, str | None]] = []
        self.refusals: list[tuple[int, str | None, str | None]] = []
        self.runs: list[tuple[Any, ...]] = []
        self.steps: list[tuple[Any, ...]] = []
        self.relinks: list[tuple[int, int, str]] = []
        self.stale_states: list[tuple[str, str, int]] = []
        self.positions: dict[tuple[str, str], int] = {}
        self.rows: dict[tuple[str, str], tuple[bytes | None, int]] = {}
        self.spend: dict[tuple[str, str, int], int] = {}
        self.totals = SpendCache(partial(read_total, database), partial(read_raises, database))
        self.freed_budgets: dict[str, int] = {}
        self.states: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._actions: list[tuple[Any, ...]] = []
        self._changed_actions: list[list[Any]] = []
        self._new_actions: list[ActionRow] = []
        # Whether runs were woken in this group, which may be another worker's.
        self.has_wakes = False

    def add_action(self, position: int, row: ActionRow, first: int) -> None:
        """Write an action's row; one without a `seq` is new, and gets `first`."""
        if row.seq:
            values = [position, *astuple(row)]
            values[_RECORD] = None
            self._changed_actions.append(values)
            return
        row.seq = first
        self._new_actions.append(row)
        self._actions.append((position, *astuple(row)))

    def mark(self) -> tuple[int, int, int]:
        """Return how much was accepted so far: what `rollback_to` goes back to."""
        return len(self.events), len(self.refusals), len(self.runs)

    def rollback_to(self, mark: tuple[int, int, int]) -> None:
        """Forget what was accepted since a mark."""
        events, refused, runs = mark
        self.event_keys.difference_update(key for _, _, key, _ in self.events[events:])
        del self.events[events:]
        del self.refusals[refused:]
        del self.runs[runs:]

    def add_spend(self, agent: str, unit: str, minute: int, amount: int) -> None:
        """Count what was spent, or with a negative amount given back, in a minute."""
        key = (agent, unit, minute)
        self.spend[key] = self.spend.get(key, 0) + amount

    def flush(self) -> None:
        """Write everything gathered so far. Raises StoreFailed if a run is not where it was."""
        many = self._database.execute_many
        self._ledger.flush()
        self._write_rows(_EVENT, self.events)
        self._write_rows(_REFUSED, self.refusals)
        self._write_rows(_RUN, self.runs)
        if self.steps:
            if many(_STEP, self.steps) != len(self.steps):
                raise StepConflict("a run is not at the step it was at")
            self.steps.clear()
        self._write_rows(_RELINK, self.relinks)
        self._write_rows(_STALE, self.stale_states)
        if self.positions:
            many(_HEAD, [(agent, key, at) for (agent, key), at in self.positions.items()])
            self.positions.clear()
        self._write_rows(_ACTION, self._actions)
        self._write_rows(_CHANGE_ACTION, self._changed_actions)
        if self.rows:
            self._flush_rows()
        if self.spend:
            many(_SPEND, [(*key, amount) for key, amount in self.spend.items()])
            self.spend.clear()
        if self.totals.changed:
            write_totals(self._database, self.totals.changed)
            self.totals.changed.clear()
        if self.freed_budgets:
            wake_runs(self._database, self.freed_budgets)
            self.freed_budgets.clear()
        if self.states:
            many(UPSERT_STATE, [(*key, *state) for key, state in self.states.items()])
            self.states.clear()
        self.event_keys.clear()

    def _write_rows(self, sql: str, rows: list[Any]) -> None:
        if rows:
            self._database.execute_many(sql, rows)
            rows.clear()

    def _flush_rows(self) -> None:
        put = [(*key, data, seq) for key, (data, seq) in self.rows.items() if data is not None]
        gone = [key for key, (data, _) in self.rows.items() if data is None]
        if put:
            self._database.execute_many(_ROW, put)
        if gone:
            self._database.execute_many(_NO_ROW, gone)
        self.rows.clear()

    @property
    def new_action_count(self) -> int:
        """Return how many new actions this group has numbered so far."""
        return len(self._new_actions)

    def confirm_group(self) -> None:
        """The group stands: the numbers given to actions are theirs."""
        self._new_actions.clear()
        self.has_wakes = False

    def clear(self, keep: int = 0) -> None:
        """Forget everything gathered; new actions after the first `new_action_count` have no
        number.
        """
        for gathered in (
            self.events, self.refusals, self.runs, self.steps, self.relinks, self.stale_states,
            self._actions, self._changed_actions,
        ):  # fmt: skip
            gathered.clear()
        for kept in (self.positions, self.rows, self.spend, self.states, self.freed_budgets):
            kept.clear()
        self.totals.clear()
        self.event_keys.clear()
        for row in self._new_actions[keep:]:
            row.seq = 0
        del self._new_actions[keep:]


class StepConflict(StoreFailed):
    """The error of a group in which somebody else moved a run: its items go one by one."""
