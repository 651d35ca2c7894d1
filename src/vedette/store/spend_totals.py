"""Spend in the store: running totals, raises, and waking what waits for a budget.

One statement a total and group, whatever was spent in it; shared by all stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from vedette.domain.budget import FLEET, BudgetRaise
from vedette.domain.spend import SpendTotal
from vedette.store.dialect import Database
from vedette.store.row_mapper import find_position
from vedette.store.stored_entries import EntryReader

_TOTAL = "hour_us,hour,hour_told,day_us,day,day_told"
_WRITE = (
    f"INSERT INTO total(name,unit,{_TOTAL}) VALUES(?,?,?,?,?,?,?,?) "
    "ON CONFLICT(name,unit) DO UPDATE SET hour_us=excluded.hour_us, hour=excluded.hour, "
    "hour_told=excluded.hour_told, day_us=excluded.day_us, day=excluded.day, "
    "day_told=excluded.day_told"
)
_RAISE = "INSERT INTO raised(seq,name,unit,span,amount,until_us) VALUES(?,?,?,?,?,?)"
# Runs that were woken and not looked at yet are left: others may use the room beside them.
_NEXT = "SELECT position,agent FROM run WHERE waits='budget' AND state='waiting' AND wake_us<>1"
_WAKE = "UPDATE run SET wake_us=1 WHERE position=? AND agent=? AND waits='budget'"
_WAKE_ACTIONS = "UPDATE action SET not_before_us=1 WHERE position=? AND agent=? AND waits='budget'"


def read_total(database: Database, name: str, unit: str) -> SpendTotal | None:
    """Return a spend total from its row; None if nothing was ever spent."""
    rows = database.rows(f"SELECT {_TOTAL} FROM total WHERE name=? AND unit=?", (name, unit))
    return SpendTotal.from_row(rows[0][:3], rows[0][3:]) if rows else None


def write_totals(database: Database, changed: Mapping[tuple[str, str], SpendTotal]) -> None:
    """Write the rows of the spend totals that a group changed."""
    database.execute_many(_WRITE, [(*key, *total.to_row()) for key, total in changed.items()])


def read_raises(database: Database, now_us: int) -> list[BudgetRaise]:
    """Return the raises of budgets in force at an instant, from their rows."""
    sql = "SELECT name,unit,span,amount,until_us FROM raised WHERE until_us>? ORDER BY seq"
    return [BudgetRaise(*row) for row in database.rows(sql, (now_us,))]


def write_raises(database: Database, seq: int, raises: Sequence[BudgetRaise]) -> None:
    """Write rows of raises, let their alerts be given anew, and wake what waits for their room."""
    database.execute_many(
        _RAISE,
        [(seq, more.name, more.unit, more.span, more.amount, more.until_us) for more in raises],
    )
    for name in {more.name for more in raises}:
        database.execute("UPDATE total SET hour_told=0, day_told=0 WHERE name=?", (name,))
        whose, values = ("", ()) if name == FLEET else (" AND agent=?", (name,))
        database.execute(f"UPDATE run SET wake_us=1 WHERE waits='budget'{whose}", values)
        database.execute(
            "UPDATE action SET not_before_us=1 WHERE waits='budget' "
            f"AND hold IN ('open', 'approved'){whose}",
            values,
        )


def wake_runs(database: Database, freed: Mapping[str, int]) -> None:
    """Wake rows of runs that wait for a budget, oldest first, as many of each name as gave room."""
    for name, number in freed.items():
        whose, values = ("", ()) if name == FLEET else (" AND agent=?", (name,))
        found = database.rows(f"{_NEXT}{whose} ORDER BY position LIMIT ?", (*values, number))
        if found:
            database.execute_many(_WAKE, found)
            database.execute_many(_WAKE_ACTIONS, found)


# What a run's turns booked and used, and what it set aside for those that it asked.
_OF_A_RUN = ("budget.reserved", "budget.settled", "budget.escrowed", "budget.returned")


class SpendReader:
    """The spend totals in a store's tables. Fits `ports.run_store.SpendReader`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of_run(self, run: str) -> dict[str, int]:
        found = EntryReader(self._database, content=False).of_events(
            [find_position(self._database, run)], kinds=_OF_A_RUN
        )
        entries = (orjson.loads(one.raw) for one in found)
        return _sum_reserved(entry for entry in entries if entry["run"] == run)

    def by_minute(self, since_minute: int) -> list[tuple[str, str, int, int]]:
        sql = "SELECT agent,unit,minute,amount FROM spend WHERE minute>=? ORDER BY minute"
        rows = self._database.rows(sql, (since_minute,))
        return [(agent, unit, minute, amount) for agent, unit, minute, amount in rows]

    def totals(self) -> list[tuple[str, str, SpendTotal]]:
        rows = self._database.rows(f"SELECT name,unit,{_TOTAL} FROM total ORDER BY name, unit")
        return [(row[0], row[1], SpendTotal.from_row(row[2:5], row[5:])) for row in rows]

    def raises(self, now_us: int) -> list[BudgetRaise]:
        return read_raises(self._database, now_us)


def _sum_reserved(entries: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return what a run has used by unit, from its entries: what was settled, or else booked, and
    what it set aside for runs that it asked, less what came back.

    A turn that was booked and never settled (a crash, a model that failed) counts in full.
    """
    found: dict[str, int] = {}
    booked: dict[int, Mapping[str, int]] = {}
    for entry in entries:
        if entry["kind"] == "budget.reserved":
            booked[entry["seq"]] = entry.get("spend") or {entry["unit"]: entry["amount"]}
        elif entry["kind"] == "budget.settled":
            booked[entry["cause"]] = entry["spend"]
        else:
            sign = 1 if entry["kind"] == "budget.escrowed" else -1
            for unit, amount in entry["spend"].items():
                found[unit] = found.get(unit, 0) + sign * amount
    for spend in booked.values():
        for unit, amount in spend.items():
            found[unit] = found.get(unit, 0) + amount
    return found
