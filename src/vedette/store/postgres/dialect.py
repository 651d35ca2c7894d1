"""SQL statements in PostgreSQL's words, and values written into them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from operator import add
from typing import Any

from msgspec import Struct

_UPSERT = re.compile(
    r'(INSERT INTO ("?\w+"?)\(([\w,\s]+)\)) VALUES\([?,\s]+\)'
    r"( ON CONFLICT\(([\w,\s]+)\) DO UPDATE .+)",
    re.DOTALL,
)


@cache
def number_placeholders(sql: str) -> bytes:
    """Return SQL in PostgreSQL's words: `$1`, `$2`, … for `?`, and eight-byte numbers."""
    parts = sql.replace(" AS INTEGER)", " AS BIGINT)").split("?")
    text = parts[0] + "".join(f"${at}{part}" for at, part in enumerate(parts[1:], start=1))
    return text.encode()


def sql_literal(value: Any) -> str:
    """Return a value as SQL text; PostgreSQL's strings conform to the standard here (`_SETTINGS`).

    Raises psycopg.DataError for text that the server cannot hold.
    """
    import psycopg

    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'::bytea"
    if not isinstance(value, str):
        raise psycopg.DataError(f"a {type(value).__name__} is no value of the store")
    if "\0" in value or (not value.isascii() and _has_lone_surrogate(value)):
        raise psycopg.DataError("text holds NUL or half a character")
    return "'" + value.replace("'", "''") + "'"


def _has_lone_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def render_statements(sql: str, rows: Sequence[Sequence[Any]]) -> str:
    """Return an SQL statement as text, once for each row of values."""
    parts = sql.split("?")
    return ";".join(parts[0] + "".join(map(add, map(sql_literal, row), parts[1:])) for row in rows)


class Upsert(Struct, frozen=True):
    """An upsert of many rows at once, as an array for each of `columns`.

    `key` says which of the columns its rows are known by.
    """

    sql: str
    table: str
    columns: str
    key: tuple[int, ...]


@cache
def upsert_of_arrays(sql: str) -> Upsert | None:
    """Return the form of an upsert that takes many rows; None for any other statement."""
    found = _UPSERT.fullmatch(sql)
    if found is None:
        return None
    insert, table, listed, then, keyed = found.groups()
    columns = _names(listed)
    arrays = ",".join("?" * len(columns))
    key = tuple(columns.index(name) for name in _names(keyed))
    return Upsert(f"{insert} SELECT * FROM unnest({arrays}){then}", table, listed, key)


def query_of_each(sql: str, values: int) -> str:
    """Return a query of `values` values as one over as many arrays: its rows for each of theirs.

    It must have a LIMIT: then the server asks its index for one after the other, however large or
    small it takes the table to be.
    """
    first, *others = sql.split("?")
    each = first + "".join(f"n.v{at}{part}" for at, part in enumerate(others))
    names = ",".join(f"v{at}" for at in range(values))
    arrays = ",".join("?" * values)
    return f"SELECT q.* FROM unnest({arrays}) AS n({names}), LATERAL ({each}) q"


def _names(listed: str) -> list[str]:
    return [name.strip() for name in listed.split(",")]
