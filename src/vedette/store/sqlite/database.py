"""The Database of `vedette.store` on SQLite, by apsw."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

from vedette.domain.base.disk_errors import to_disk_error
from vedette.domain.base.failpoint import hit_failpoint

if TYPE_CHECKING:
    import apsw

    from vedette.store.dialect import Row

_PLACEHOLDERS = re.compile(r"VALUES(\(\?(?:,\?)*\))")
# Few sizes, so that the statements stay prepared.
_SIZES = (128, 32, 8, 1)
BUSY_MS = 10_000


class SqliteDatabase:
    """One SQLite connection of a store. See `vedette.store.dialect.Database`.

    What is asked of one that only `reads` raises StoreFailed where the disk refuses; the writer has
    to know what SQLite itself says.
    """

    def __init__(self, connection: apsw.Connection, *, reads: bool = False) -> None:
        import apsw

        self._reader_errors = (apsw.Error,) if reads else ()

        self.connection = connection
        self.name = connection.filename
        self._cursor = connection.cursor()
        self._batches: dict[str, tuple[str, ...]] = {}
        self.lost_errors: tuple[type[BaseException], ...] = (apsw.Error,)
        self.value_errors: tuple[type[BaseException], ...] = (
            apsw.ConstraintError,
            apsw.MismatchError,
            apsw.TooBigError,
        )

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run a query and return all its rows."""
        try:
            return self._cursor.execute(sql, values).fetchall()
        except self._reader_errors as error:
            self._raise_disk_error(error)
            raise

    def iterate_rows(self, sql: str, values: Sequence[Any] = ()) -> Iterator[Row]:
        """Run a query and yield its rows."""
        try:
            yield from self.connection.cursor().execute(sql, values)
        except self._reader_errors as error:
            self._raise_disk_error(error)
            raise

    def _raise_disk_error(self, error: Exception) -> None:
        told = to_disk_error(error, self.name)
        if told is not None:
            raise told from error

    def rows_of_each(self, sql: str, values: Sequence[Sequence[Any]]) -> list[Row]:
        """Run a query for each of some rows of values; return the rows of all together."""
        return [row for each in values for row in self.rows(sql, each)]

    def execute(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it changed."""
        before = self.connection.total_changes()
        self._cursor.execute(sql, values)
        return self.connection.total_changes() - before

    def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> int:
        """Run a statement for each row of values; return how many rows were changed in all.

        An INSERT takes many rows at once. Every call into SQLite lets go of the interpreter lock
        and has to win it back from a busy event loop, which may take a switch interval: with a
        call per row, writing a group took longer than syncing it.
        """
        before = self.connection.total_changes()
        sized = self._batches.get(sql)
        if sized is None:
            sized = self._batches[sql] = _build_batches(sql)
        if not sized:
            self._cursor.executemany(sql, rows)
            return self.connection.total_changes() - before
        left = rows if isinstance(rows, list) else list(rows)
        at, end = 0, len(left)
        for size, many in zip(_SIZES, sized, strict=True):
            while end - at >= size:
                values = left[at] if size == 1 else tuple(chain.from_iterable(left[at : at + size]))
                self._cursor.execute(many, values)
                at += size
        return self.connection.total_changes() - before

    def begin(self) -> None:
        """Begin a transaction that may write."""
        self._cursor.execute("BEGIN IMMEDIATE")

    def instance(self) -> str:
        """Return "": nothing tells a file from its copy."""
        return ""

    def try_begin(self) -> bool:
        """Begin a transaction that may write, unless somebody else holds the file's lock."""
        import apsw

        self.connection.set_busy_timeout(0)
        try:
            self.begin()
        except apsw.BusyError:
            return False
        finally:
            self.connection.set_busy_timeout(BUSY_MS)
        return True

    def commit(self) -> None:
        """Make the transaction durable."""
        self._cursor.execute("COMMIT")

    def rollback(self) -> None:
        """Undo the transaction, if there is one still."""
        if self.connection.in_transaction:
            self._cursor.execute("ROLLBACK")

    @property
    def in_transaction(self) -> bool:
        """Say whether a transaction stands."""
        return self.connection.in_transaction

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let all reads inside see one state of the store."""
        self._cursor.execute("SAVEPOINT reading")
        try:
            yield
        finally:
            self._cursor.execute("RELEASE reading")

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def is_full(self, error: BaseException) -> bool:
        """Say whether an error means that the disk takes no more; a quota is an I/O error."""
        import apsw

        return isinstance(error, apsw.FullError | apsw.IOError)

    def scrub(self, wait_ms: int = 0) -> bool:
        """Write the log back and cut it to nothing; False if a reader still needs it.

        Outside of any transaction; waits up to `wait_ms` for readers. Never raises for what
        SQLite says: what was erased stays so, and the log can be cut later.
        """
        import apsw

        self.connection.set_busy_timeout(wait_ms)
        try:
            hit_failpoint("scrub:before")
            rows: list[Any] = self.rows("PRAGMA wal_checkpoint(TRUNCATE)")
            hit_failpoint("scrub:after")
            return bool(rows[0][0] == 0)
        except apsw.Error:
            return False
        finally:
            self.connection.set_busy_timeout(BUSY_MS)


def _build_batches(sql: str) -> tuple[str, ...]:
    """Return an INSERT for each of the sizes; nothing for what is no INSERT of values.

    Kept as they are: making the text, and finding its statement by it, cost more than a row does.
    """
    one = _PLACEHOLDERS.search(sql)
    if one is None:
        return ()
    left, marks, right = sql[: one.end()], one.group(1), sql[one.end() :]
    return tuple(f"{left}{f',{marks}' * (size - 1)}{right}" for size in _SIZES)
