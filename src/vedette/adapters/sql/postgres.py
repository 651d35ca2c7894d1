"""A table of PostgreSQL, by psycopg (the extra `postgres`), in read-only transactions."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
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
from vedette.domain.base.errors import BadFleet, Temporary

_CONNECT_S = 10
_ANSWER_S = QUERY_S + 15.0  # the server ends a query itself, unless nobody is there any more
# A line that was cut without a word is noticed while a query waits on it, too.
_KEEPALIVE = {"keepalives": 1, "keepalives_idle": 30, "keepalives_interval": 10,
              "keepalives_count": 3, "tcp_user_timeout": 30_000}  # fmt: skip
# Instants without a zone are taken as UTC; some clock on land is ahead of it by so much.
_ZONE_MARGIN = "interval '14 hours'"
# Text is left out: which of two texts is the greater depends on the server's collation.
_ORDERED_TYPES = (
    "smallint",
    "integer",
    "bigint",
    "numeric",
    "timestamp",
    "date",
    "uuid",
    "double",
    "real",
)
_COLUMNS = (
    "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
    "WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)
_TABLE = (
    "SELECT c.oid, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n "
    "ON n.oid = c.relnamespace WHERE c.relname = %s AND "
    "CASE WHEN %s::text IS NULL THEN pg_table_is_visible(c.oid) ELSE n.nspname = %s END "
    "AND c.relkind IN ('r', 'p', 'v', 'm', 'f')"
)


class PostgresTable:
    """A PostgreSQL table of a source `sql`; numbers and ids travel as text, cast to their type."""

    def __init__(self, plan: SqlFile) -> None:
        """Connect. Raises BadFleet for what is missing, AwayError if nobody answers."""
        try:
            import psycopg
        except ImportError as error:
            mend = "install vedette[postgres]"
            raise BadFleet("psycopg is not here", where=f"sql:{plan.name}", mend=mend) from error
        self._plan = plan
        given = {
            **_KEEPALIVE, **self._parameters(), "connect_timeout": _CONNECT_S,
            "application_name": "vedette", "options": "-c default_transaction_read_only=on "
            f"-c statement_timeout={int(QUERY_S * 1000)} -c TimeZone=UTC",
        }  # fmt: skip
        with self._translate_errors(connecting=True):
            self._server = psycopg.connect(**given, autocommit=True)
        try:
            self._open()
        except BaseException:
            self._server.close()
            raise

    def _parameters(self) -> dict[str, Any]:
        """Return what the URL says; from here on its password is known, and masked in errors."""
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        where = f"sql:{self._plan.name}"
        try:
            url = self._plan.url()
        except Temporary as error:
            raise SourceUnavailable(str(error)) from error
        try:
            given = conninfo_to_dict(url)
        except psycopg.Error:
            # The library's own words would quote the password.
            mend = "write it as postgresql://USER:PASSWORD@HOST/DATABASE, a % in it as %25"
            raise BadFleet("the URL cannot be read", where=where, mend=mend) from None
        word = str(given.get("password") or "")
        self._secrets = [text for text in (url, quote(word, safe=""), word) if text]
        return given

    def _open(self) -> None:
        plan = self._plan
        schema, _, name = plan.table.rpartition(".")
        # A name that has a point in it is looked for as it stands, too.
        found = self._rows(_TABLE, (name, schema or None, schema or None))
        found = found or self._rows(_TABLE, (plan.table, None, None))
        if not found:
            text = "SELECT relname FROM pg_class WHERE relkind IN ('r','p','v','m') " \
                "AND pg_table_is_visible(oid)"  # fmt: skip
            raise missing_table(plan, [row[0] for row in self._rows(text)])
        oid, schema, name = found[0]
        self._table = f"{_quote_name(schema)}.{_quote_name(name)}"
        types = dict(self._rows(_COLUMNS, (oid,)))
        self.columns, self._read_columns = select_columns(plan, list(types))
        self._number, self._id = _quote_name(plan.order_column), _quote_name(plan.id_column)
        self._number_type, self._id_type = types[plan.order_column], types[plan.id_column]
        if self._id_type == "character":
            self._id_type = "bpchar"  # the other name would cut it to one character
        if not self._number_type.startswith(_ORDERED_TYPES):
            what = f"{plan.order_column!r} is {self._number_type}, which does not grow"
            mend = "use a number, an instant or a date"
            raise BadFleet(what, where=f"sql:{plan.name}", mend=mend)

    def last_number(self) -> Value | None:
        """Return the greatest number."""
        text = (
            f"SELECT t.{self._number}::text FROM {self._table} t WHERE {self._placed_condition()} "  # noqa: S608
            f"ORDER BY t.{self._number} DESC LIMIT 1"
        )
        found = self._rows(text)
        return found[0][0] if found else None

    def page(
        self, floor: Value | None, begin: Value | None, after_row: SourceRow | None, limit: int
    ) -> list[SourceRow]:
        """Return rows in order of number and id."""
        number, id = f"t.{self._number}", f"t.{self._id}"
        marks = f"%s::{self._number_type}", f"%s::{self._id_type}"
        begins, values = page_condition(number, id, floor, begin, after_row, marks)
        where = self._placed_condition() + begins
        # JSON made by the server has a form for everything that it holds: infinite instants, too.
        read = ", ".join(f"t.{_quote_name(column)}" for column in self._read_columns)
        row = f"(SELECT row_to_json(r)::text FROM (SELECT {read}) r)"  # noqa: S608
        # Every name is the catalogue's own, quoted.
        text = (
            f"SELECT {number}::text, {id}::text, {row} FROM {self._table} t WHERE {where} "  # noqa: S608
            f"ORDER BY {number}, {id} LIMIT {int(limit)}"
        )
        return [
            # Fractions stay as they were written.
            SourceRow(number_text, id_text, json.loads(row_json, parse_float=str))
            for number_text, id_text, row_json in self._rows(text, tuple(values))
        ]

    def count_unplaced(self) -> int:
        """Return how many rows have no id or no number."""
        where = f"NOT coalesce({self._placed_condition()}, false)"
        return int(self._rows(f"SELECT count(*) FROM {self._table} t WHERE {where}")[0][0])  # noqa: S608

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    def _placed_condition(self) -> str:
        placed = f"t.{self._number} IS NOT NULL AND t.{self._id} IS NOT NULL"
        # What is greater than all that will come would have us leave out all that comes.
        kind = self._number_type
        if kind == "timestamp with time zone":
            placed += f" AND t.{self._number} <= now()"
        elif kind.startswith(("timestamp", "date")):
            latest = f"(now() AT TIME ZONE 'UTC' + {_ZONE_MARGIN})::{kind}"
            placed += f" AND t.{self._number} <= {latest}"
        elif kind.startswith(("double", "real")):
            placed += f" AND t.{self._number} < 'infinity'::{kind}"
        elif kind == "numeric":
            placed += f" AND t.{self._number} < 1e1000"  # NaN is greater, too
        return placed

    def _rows(self, text: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        deadline = threading.Timer(_ANSWER_S, self._shut_down)
        deadline.daemon = True
        deadline.start()
        try:
            with self._translate_errors():
                # Given values, were they none: without, a doubled per cent sign would stay two.
                return self._server.execute(text.encode(), values).fetchall()
        finally:
            deadline.cancel()

    def _shut_down(self) -> None:
        """Shut the connection down under whoever waits for it."""
        with suppress(Exception), closing(socket.socket(fileno=os.dup(self._server.fileno()))) as s:
            s.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _translate_errors(self, *, connecting: bool = False) -> Iterator[None]:
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            said = str(error)
            for hidden in self._secrets:
                said = said.replace(hidden, "[hidden]")
            said = " ".join(said.split())[:300]
            if isinstance(error, psycopg.ProgrammingError) and not connecting:
                raise BadFleet(said, where=f"sql:{self._plan.name}", mend="mend it") from None
            raise SourceUnavailable(f"{type(error).__name__}: {said}") from None


def _quote_name(name: str) -> str:
    # psycopg reads a per cent sign as the beginning of a place for a value.
    return quote_name(name).replace("%", "%%")
