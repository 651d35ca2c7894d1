"""Tables that a source `sql` reads, in SQLite's words and in PostgreSQL's. Synchronous.

Names of tables and columns cannot be parameters of a query. Each is looked up in the database's own
catalogue, and what stands in a query is the catalogue's name, quoted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from vedette.adapters.sql.config import SqlFile
from vedette.adapters.sql.watermark import Value
from vedette.config.problem import did_you_mean
from vedette.domain.base.errors import BadFleet

QUERY_S = 30.0  # how long one query may take


class SourceUnavailable(Exception):
    """The database of a source `sql` did not answer; it is asked again, later each time."""


class SourceRow(Struct, frozen=True):
    """A row of a source `sql`: its place in the order (number, then id), and its columns."""

    number: Value
    id: Any
    row: Mapping[str, Any]


class SourceTable(Protocol):
    """An open SQL table of a source, for one thread at a time; it may raise SourceUnavailable."""

    columns: tuple[str, ...]

    def last_number(self) -> Value | None:
        """Return the greatest number, None in an empty table."""
        ...

    def page(
        self, floor: Value | None, begin: Value | None, after_row: SourceRow | None, limit: int
    ) -> list[SourceRow]:
        """Return rows in order: behind a row, or else from `floor` on, or else behind `begin`."""
        ...

    def count_unplaced(self) -> int:
        """Return how many rows have no id or no number: they are never seen."""
        ...

    def close(self) -> None:
        """Let go of the database."""
        ...


def page_condition(
    number: str,
    id: str,
    floor: Value | None,
    begin: Value | None,
    after_row: SourceRow | None,
    marks: tuple[str, str] = ("?", "?"),
) -> tuple[str, list[Any]]:
    """Return the SQL condition for where a source's page begins (see `Table.page`), and its values.

    `number` and `id` are columns, quoted; `marks` are how a query marks a parameter for each.
    """
    if after_row is not None:
        return f" AND ({number}, {id}) > ({marks[0]}, {marks[1]})", [after_row.number, after_row.id]
    if floor is not None:
        return f" AND {number} >= {marks[0]}", [floor]
    if begin is not None:
        return f" AND {number} > {marks[0]}", [begin]
    return "", []


def select_columns(plan: SqlFile, known: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a source row's columns of data, and all read. Raises BadFleet for an unknown one."""
    data = tuple(plan.columns or known)
    more = (plan.id_column, plan.order_column, plan.time_column, plan.subject_column)
    for column in (*(name for name in more if name is not None), *data):
        if column not in known:
            what = f"table {plan.table!r} has no column {column!r}"
            raise BadFleet(what, where=f"sql:{plan.name}", mend=did_you_mean(column, list(known)))
    extra = (plan.time_column, plan.subject_column)
    return data, tuple(dict.fromkeys((*data, *(name for name in extra if name is not None))))


def quote_name(name: str) -> str:
    """Return a table's or a column's name, for a source's query, as SQL's delimited identifier."""
    return '"' + name.replace('"', '""') + '"'


def missing_table(plan: SqlFile, known: Sequence[str]) -> BadFleet:
    """Return the error for a table of a source `sql` that is not there."""
    mend = did_you_mean(plan.table, list(known)) if known else "make it first"
    return BadFleet(f"there is no table {plan.table!r}", where=f"sql:{plan.name}", mend=mend)
