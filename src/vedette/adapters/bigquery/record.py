"""The rows of a BigQuery table, by the column that holds their idempotency key.

The target names `project`, `dataset`, `table`; `key_column` (default `idempotency_key`) and
`time_column`, if there is one: then no more than what is asked for is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from vedette.adapters.bigquery.clients import query_client
from vedette.domain.base.clock import iso
from vedette.domain.base.errors import BadFleet, Unavailable
from vedette.domain.target_record import TargetEffect

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,299}\Z")
_PROJECT = re.compile(r"[a-z][a-z0-9.:-]{0,99}\Z")
_TIMEOUT_S = 120.0


def read_rows(table: Mapping[str, Any], where: str, since_us: int) -> Iterator[TargetEffect]:
    """Yield each key of a target's BigQuery table once, and a second time if it has several rows.

    Raises BadFleet, Unavailable.
    """
    from google.api_core import exceptions

    query = record_query(table, where, since_us)
    client = query_client(str(table["project"]), table.get("location"))
    try:
        for key, rows, at in client.query(query).result(timeout=_TIMEOUT_S):
            name = str(key) if key is not None else "a row without a key"
            at_us = int(at.timestamp() * 1e6) if at is not None else 0
            yield from [TargetEffect(name, at_us, f"{rows} rows" if rows > 1 else "")] * min(
                rows, 2
            )
    except (exceptions.NotFound, exceptions.Forbidden, exceptions.BadRequest) as error:
        raise BadFleet(f"cannot be read: {error.message}"[:300], where=where) from error
    except (exceptions.GoogleAPICallError, OSError, TimeoutError) as error:
        what = f"BigQuery does not answer: {type(error).__name__}"
        raise Unavailable(what, where=where) from error
    finally:
        client.close()  # type: ignore[no-untyped-call]


def record_query(table: Mapping[str, Any], where: str, since_us: int) -> str:
    """Return BigQuery's query for a target's rows. Raises BadFleet for a name that is none."""
    for name in ("project", "dataset", "table"):
        known = _PROJECT if name == "project" else _NAME
        if not known.match(str(table.get(name, ""))):
            raise BadFleet(f"{name} is missing or no name", where=where, mend=f"add {name} =")
    key, time = str(table.get("key_column", "idempotency_key")), table.get("time_column")
    for column in (key, *([] if time is None else [str(time)])):
        if not _NAME.match(column):
            raise BadFleet(f"{column!r} is no column", where=where)
    at, after = "CAST(NULL AS TIMESTAMP)", ""
    if time is not None:
        at, after = f"MIN(`{time}`)", f" WHERE `{time}` >= TIMESTAMP '{iso(since_us)}'"
    source = f"`{table['project']}.{table['dataset']}.{table['table']}`"
    # Every name was held against what a name may be.
    return f"SELECT `{key}`, COUNT(*), {at} FROM {source}{after} GROUP BY 1 ORDER BY 1"  # noqa: S608
