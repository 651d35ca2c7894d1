"""A table of SQLite, opened for reading only; and the file, made of a script if it is absent."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vedette.adapters.sql.config import SqlFile
from vedette.adapters.sql.tables import (
    QUERY_S,
    SourceRow,
    SourceUnavailable,
    missing_table,
    page_condition,
    quote_name,
    select_columns,
)
from vedette.adapters.sql.watermark import Value
from vedette.domain.base import failpoint
from vedette.domain.base.errors import BadFleet
from vedette.domain.base.fsync import sync

_LOCK_TIMEOUT_S = 2.0
# How many steps of SQLite's machine lie between two looks at the clock.
_STEPS = 100_000
# What a number may be. A text is greater than every number, whatever its column is declared as: one
# among numbers would have us leave out all numbers that come.
_NUMBERS, _TEXTS = "typeof({0}) IN ('integer','real') AND {0} < 9e999", "typeof({0}) = 'text'"


class SqliteTable:
    """A table of SQLite that a source `sql` reads; views count as tables."""

    def __init__(self, plan: SqlFile) -> None:
        """Open it. Raises BadFleet for a file, table or column that is not there, AwayError."""
        assert plan.path is not None
        self._plan, self._deadline = plan, 0.0
        if not Path(plan.path).is_file():
            mend = "set path to the file, or create_from to a script that makes it"
            raise BadFleet(f"{plan.path} is no file", where=f"sql:{plan.name}", mend=mend)
        with _translate_errors():
            self._file = sqlite3.connect(
                f"file:{quote(plan.path)}?mode=ro", uri=True, timeout=_LOCK_TIMEOUT_S,
                check_same_thread=False, isolation_level=None,
            )  # fmt: skip
        try:
            self._open()
        except BaseException:
            self._file.close()
            raise

    def _open(self) -> None:
        # A byte that is no UTF-8 must not hide the rows behind it.
        self._file.text_factory = lambda raw: raw.decode("utf-8", "replace")
        self._file.set_progress_handler(lambda: time.monotonic() > self._deadline, _STEPS)
        # The functions that a schema calls are its author's choice, and not ours.
        self._rows("PRAGMA trusted_schema=OFF")
        self._rows("PRAGMA query_only=ON")
        kinds = "type IN ('table','view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        # Nothing of the settings stands in this text.
        tables = [r[0] for r in self._rows(f"SELECT name FROM sqlite_master WHERE {kinds}")]  # noqa: S608
        if self._plan.table not in tables:
            raise missing_table(self._plan, tables)
        rows = self._rows("SELECT name FROM pragma_table_xinfo(?)", (self._plan.table,))
        self.columns, self._read_columns = select_columns(self._plan, [row[0] for row in rows])

    def last_number(self) -> Value | None:
        """Return the greatest number."""
        return self._extreme_number(f"WHERE {self._placed_condition(self._least_number())}", "DESC")

    def page(
        self, floor: Value | None, begin: Value | None, after_row: SourceRow | None, limit: int
    ) -> list[SourceRow]:
        """Return rows in order of number and id."""
        number, id = quote_name(self._plan.order_column), quote_name(self._plan.id_column)
        places = (None if after_row is None else after_row.number, floor, begin)
        known = next((value for value in places if value is not None), None)
        begins, values = page_condition(number, id, floor, begin, after_row)
        where = self._placed_condition(self._least_number() if known is None else known) + begins
        columns = ", ".join([number, id, *map(quote_name, self._read_columns)])
        # Every name is the catalogue's own, quoted.
        text = (
            f"SELECT {columns} FROM {quote_name(self._plan.table)} WHERE {where} "  # noqa: S608
            f"ORDER BY {number}, {id} LIMIT ?"
        )
        found = self._rows(text, (*values, limit))
        return [
            SourceRow(row[0], row[1], dict(zip(self._read_columns, row[2:], strict=True)))
            for row in found
        ]

    def count_unplaced(self) -> int:
        """Return how many rows have no id or no number."""
        where = f"NOT coalesce({self._placed_condition(self._least_number())}, false)"
        text = f"SELECT count(*) FROM {quote_name(self._plan.table)} WHERE {where}"  # noqa: S608
        return int(self._rows(text)[0][0])

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _least_number(self) -> Value | None:
        """Return the least number; a text only where there is no number at all."""
        number = quote_name(self._plan.order_column)
        return self._extreme_number(f"WHERE {number} IS NOT NULL", "ASC")

    def _extreme_number(self, where: str, way: str) -> Value | None:
        number = quote_name(self._plan.order_column)
        table = quote_name(self._plan.table)
        text = f"SELECT {number} FROM {table} {where} ORDER BY {number} {way} LIMIT 1"  # noqa: S608
        found = self._rows(text)
        return found[0][0] if found else None

    def _placed_condition(self, like: Value | None) -> str:
        """Return which rows have a place in the order: numbers like one that is known."""
        kind = _TEXTS if isinstance(like, str) else _NUMBERS
        number, id = quote_name(self._plan.order_column), quote_name(self._plan.id_column)
        return f"{kind.replace('{0}', number)} AND {id} IS NOT NULL"

    def _rows(self, text: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        self._deadline = time.monotonic() + QUERY_S
        with _translate_errors():
            return self._file.execute(text, values).fetchall()


def create_file(path: Path, script: Path, where: str) -> None:
    """Make the SQLite file of a source by a script, whole or not at all; one that is there stays.

    Raises BadFleet if the script cannot be read or run.
    """
    if path.exists():
        return
    try:
        text = script.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        mend = "mend create_from in vedette.toml"
        raise BadFleet(f"cannot read {script}", where=where, mend=mend) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    made = Path(name)
    try:
        with closing(sqlite3.connect(made)) as file:
            # Nobody knows the file yet, and what comes of a crash is not taken up: it is synced
            # once, when it is whole. A sync for each statement took a tenth of a second.
            file.execute("PRAGMA synchronous=OFF")
            file.execute("PRAGMA journal_mode=MEMORY")
            file.executescript(text)
            file.commit()
        sync(made)
        failpoint.hit_failpoint("sql.create:before")
        # Unlike a rename this leaves a file alone that somebody else made meanwhile.
        with suppress(FileExistsError):
            os.link(made, path)
        sync(path.parent)
        failpoint.hit_failpoint("sql.create:after")
    except sqlite3.Error as error:
        raise BadFleet(f"{script}: {error}", where=where, mend="mend the script") from error
    finally:
        for leftover in (made, made.with_name(made.name + "-journal")):
            leftover.unlink(missing_ok=True)


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise SourceUnavailable(f"{type(error).__name__}: {error}"[:300]) from error
