"""Rows of BigQuery as events: pure."""

from __future__ import annotations

import base64
import math
from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

from vedette.adapters.bigquery.sql import AT_COLUMN, CHANGES, ROW_COLUMN
from vedette.domain.base.clock import iso
from vedette.domain.base.errors import BadEvent, BadFleet
from vedette.domain.event import Event, vouched_attributes
from vedette.domain.ports.sources import Refused

RAW_CHARACTERS = 256  # how much of a refused row is kept


class RowMapper:
    """Makes the events of one BigQuery table.

    `id_column` tells rows apart: the event's id is the table and its value, so a row that was
    written twice is one event, however far apart the two are. Without it the id is the hash of
    the whole row, its instant included.

    Whoever writes rows chooses what is in them: see `vouched_attributes`. The instant is vouched
    for: a row is not read before it, and a restore asks for no more.
    """

    def __init__(
        self,
        source: str,
        table: str,
        type: str,
        id_column: str | None,
        subject: str | None,
        *,
        vouches: str = "columns",
        vouched: Collection[str] = (),
    ) -> None:
        self._source, self._table, self._type = source, table, type
        self._id, self._subject = id_column, subject
        self._vouched = vouched_attributes(vouches, {"id": id_column, "subject": subject}, vouched)

    def event_id(self, row: Mapping[str, Any]) -> str:
        """Return the id of a row's event."""
        return f"{self._table}:{row[ROW_COLUMN]}"

    def to_event(self, row: Mapping[str, Any]) -> Event | Refused:
        """Return the event of a row, or why it is none; the column is named."""
        name = self.event_id(row)
        try:
            data = {
                column: to_json_value(value, column)
                for column, value in row.items()
                if column not in (AT_COLUMN, ROW_COLUMN, *CHANGES)
            }
            if self._id is not None and row[self._id] in (None, ""):
                raise BadEvent(f"column {self._id!r} is NULL or empty", mend="give each row an id")
            subject = None if self._subject is None else self._column_value(data, self._subject)
        except BadEvent as error:
            return Refused(f"{self._source}/{name}"[:300], str(error), _row_excerpt(row))
        return Event(
            source=self._source,
            id=name,
            type=self._type,
            subject=None if subject is None else str(subject),
            time=iso(row[AT_COLUMN]),
            data=data,
            vouched=self._vouched,
        )

    def _column_value(self, data: Mapping[str, Any], column: str) -> Any:
        if column not in data:
            what = f"subject_column {column!r} is no column of {self._table}"
            raise BadFleet(what, where=self._source, mend="mend it in vedette.toml")
        return data[column]


def to_json_value(value: Any, column: str) -> Any:
    """Return a value of BigQuery as JSON: exact numbers and instants as text, bytes as base64.

    Raises BadEvent, naming the column, for a number that JSON has no form for.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadEvent(f"column {column!r} holds {value}", mend="keep it finite, or NULL")
        return value
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return value.isoformat()
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(key): to_json_value(item, f"{column}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(item, f"{column}[{at}]") for at, item in enumerate(value)]
    return str(value)  # an interval, a range: their own text


def _row_excerpt(row: Mapping[str, Any]) -> bytes:
    return repr(dict(row))[:RAW_CHARACTERS].encode("utf-8", "backslashreplace")
