"""Rows of the source `sql` as events: pure."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from vedette.adapters.sql.config import SqlFile
from vedette.domain.base.clock import MICROS, from_iso, iso
from vedette.domain.base.errors import BadEvent
from vedette.domain.event import Event, check_event, vouched_attributes
from vedette.domain.ports.sources import Refused

RAW_CHARACTERS = 256  # how much of a refused row is kept
# Seconds with a fraction, as a server's JSON has them; no text of ISO 8601 looks like this.
_SECONDS = re.compile(r"-?[0-9]{1,12}\.[0-9]+")


class RowMapper:
    """Makes the events of one table: of source `sql:NAME`, with `TABLE/ID` as their id.

    A row is one event, however often it is written afterwards. The time is that of `time_column`:
    text of ISO 8601 (UTC without an offset), or seconds since the epoch, rounded down to
    microseconds.
    """

    def __init__(self, plan: SqlFile, columns: tuple[str, ...], *, max_bytes: int) -> None:
        """`columns` are handed over as data."""
        self._plan, self._columns, self._max_bytes = plan, columns, max_bytes
        from_column = {
            "id": plan.id_column, "subject": plan.subject_column, "time": plan.time_column,
        }  # fmt: skip
        self._vouched = vouched_attributes(plan.vouches, from_column, plan.vouched)

    def event_id(self, id: object) -> str:
        """Return the id of a row's event."""
        return f"{self._plan.table}/{id}"

    def to_event(self, id: object, row: Mapping[str, Any]) -> Event | Refused:
        """Return the event of a row, or why it is none; the column is named."""
        plan, name = self._plan, self.event_id(id)
        try:
            if id in (None, "") or isinstance(id, bytes):
                mend = "give each row an id, as text or a number"
                raise BadEvent(f"column {plan.id_column!r} holds no id", mend=mend)
            data = {column: to_json_value(row[column], column) for column in self._columns}
            event = Event(
                source=f"sql:{plan.name}",
                id=name,
                type=plan.type,
                subject=self._subject(row),
                time=self._time(row),
                data=data,
                vouched=self._vouched,
            )
            check_event(event, max_bytes=self._max_bytes)
        except BadEvent as error:
            return Refused(f"sql:{plan.name}/{name}"[:300], str(error), _row_excerpt(row))
        return event

    def _subject(self, row: Mapping[str, Any]) -> str | None:
        if self._plan.subject_column is None:
            return None
        value = to_json_value(row[self._plan.subject_column], self._plan.subject_column)
        return None if value is None else str(value)

    def _time(self, row: Mapping[str, Any]) -> str | None:
        column = self._plan.time_column
        return None if column is None else row_instant(row[column], column)


def row_instant(value: object, column: str) -> str | None:
    """Return a source row's instant as RFC 3339 in UTC, None for NULL. Raises BadEvent."""
    try:
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool):
            return iso(value * MICROS)
        if isinstance(value, float) or (isinstance(value, str) and _SECONDS.fullmatch(value)):
            return iso(math.floor(float(value) * MICROS))
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            naive = moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
            return iso(from_iso(naive.isoformat()))
    except (ValueError, OverflowError, OSError):
        pass
    what = f"column {column!r} holds {str(value)[:40]!r}, which is no instant"
    raise BadEvent(what, mend="write it as 2026-03-01T06:00:00Z, or as seconds since 1970")


def to_json_value(value: Any, column: str) -> Any:
    """Return a SQL row's value as JSON: bytes as base64. Raises BadEvent for no finite number."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        raise BadEvent(f"column {column!r} holds {value}", mend="keep it finite, or NULL")
    return value


def _row_excerpt(row: Mapping[str, Any]) -> bytes:
    return repr(dict(row))[:RAW_CHARACTERS].encode("utf-8", "backslashreplace")
