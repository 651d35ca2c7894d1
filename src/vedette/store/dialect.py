"""The database as the store asks it: one connection, plain SQL, one transaction at a time.

The SQL of this room is written once, with `?` for values, in what SQLite and PostgreSQL share;
the adapters translate the rest (types of columns, marks). An adapter's connection is used by one
thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

Row = tuple[Any, ...]


class Database(Protocol):
    """One SQL connection of a store; `name` is what people know the database by.

    `lost_errors` names the errors after which nobody can know what stands (disk full, connection
    gone); `value_errors` those that are the fault of one statement's values alone.
    """

    name: str
    lost_errors: tuple[type[BaseException], ...]
    value_errors: tuple[type[BaseException], ...]

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run a query and return all its rows."""
        ...

    def rows_of_each(self, sql: str, values: Sequence[Sequence[Any]]) -> list[Row]:
        """Run a query for each of some rows of values; return the rows of all together."""
        ...

    def iterate_rows(self, sql: str, values: Sequence[Any] = ()) -> Iterator[Row]:
        """Run a query and yield its rows; memory stays flat however many there are."""
        ...

    def execute(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it changed."""
        ...

    def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> int:
        """Run a statement for each row of values; return how many rows were changed in all."""
        ...

    def instance(self) -> str:
        """Return which instance of its database this is: another one may be older; "" if unknown.

        A server says so by itself; a file is what somebody put there.
        """
        ...

    def begin(self) -> None:
        """Begin the group's transaction, alone among all writers of this store."""
        ...

    def try_begin(self) -> bool:
        """Begin it if that needs no waiting for anybody; say whether it has begun."""
        ...

    def commit(self) -> None:
        """Make the transaction durable."""
        ...

    def rollback(self) -> None:
        """Undo the transaction, if there is one still."""
        ...

    @property
    def in_transaction(self) -> bool:
        """Say whether a transaction stands."""
        ...

    def snapshot(self) -> AbstractContextManager[None]:
        """Let all reads inside see one state of the store."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...
