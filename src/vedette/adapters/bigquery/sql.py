"""SQL of the source `bigquery`: queries for new rows in order, from a place on.

Values go in as query parameters. Names cannot, so they are checked to be plain identifiers.
"""

from __future__ import annotations

import re
from string import Template

from msgspec import Struct

from vedette.adapters.bigquery.config import COLUMN, DATASET, PROJECT, TABLE, BigQueryFile
from vedette.domain.base.errors import BadFleet

# What the query adds to a row: its instant, in microseconds, and what tells it from others.
AT_COLUMN, ROW_COLUMN = "vedette__at_us", "vedette__row"

# Columns that APPENDS adds of its own.
CHANGES = ("_CHANGE_TYPE", "_CHANGE_TIMESTAMP")

# An instant goes in as microseconds: a client's datetime has no more, and this has no time zone.
_QUERY = Template("""\
SELECT t.*, UNIX_MICROS(t.$time) AS $at, $row AS $row_name
FROM $source AS t
WHERE $since AND t.$time $before TIMESTAMP_MICROS(@until)
ORDER BY t.$time, $row
LIMIT $limit""")


class RowPosition(Struct, frozen=True):
    """A BigQuery row's place in the order of the query: its instant, and what tells it apart."""

    at_us: int
    row: str


def table_name(plan: BigQueryFile) -> str:
    """Return BigQuery's project.dataset.table of a plan. Raises BadFleet for what is none."""
    parts = ((PROJECT, plan.project), (DATASET, plan.dataset), (TABLE, plan.table))
    for pattern, text in parts:
        if not re.fullmatch(pattern, text):
            mend = "write the project, the dataset and the table as BigQuery shows them"
            raise BadFleet(f"{text!r} is no name of BigQuery's", where=plan.name, mend=mend)
    return f"{plan.project}.{plan.dataset}.{plan.table}"


def dataset_name(project: str, dataset: str) -> str:
    """Return BigQuery's project.dataset. Raises BadFleet for what is no such name."""
    if not re.fullmatch(PROJECT, project) or not re.fullmatch(DATASET, dataset):
        mend = "write project and dataset as BigQuery shows them"
        raise BadFleet(f"{project}.{dataset} is no dataset", where="[audit]", mend=mend)
    return f"{project}.{dataset}"


def build_query(plan: BigQueryFile, *, limit: int, after_row: bool) -> str:
    """Return BigQuery's query for new rows in order; parameters are microseconds, but for @row.

    @after and @until bound the instants; `after_row` goes on behind the row at (@last, @row)
    instead of from @after. A watermark is open at its start and closed at its end; APPENDS is the
    other way round (docs.cloud.google.com, time series functions). Raises BadFleet.
    """
    name = table_name(plan)
    appends = plan.method == "appends"
    time = "_CHANGE_TIMESTAMP" if appends else _column(plan, plan.time_column)
    row = "TO_HEX(SHA256(TO_JSON_STRING(t)))"
    if plan.id_column is not None:
        row = f"IFNULL(CAST(t.{_column(plan, plan.id_column)} AS STRING), {row})"
    source = f"`{name}`"
    if appends:
        start = "@last" if after_row else "@after"
        bounds = f"TIMESTAMP_MICROS({start}), TIMESTAMP_MICROS(@until)"
        source = f"APPENDS(TABLE {source}, {bounds})"
    if after_row:
        last = "TIMESTAMP_MICROS(@last)"
        since = f"t.{time} >= {last} AND (t.{time} > {last} OR {row} > @row)"
    else:
        since = f"t.{time} {'>=' if appends else '>'} TIMESTAMP_MICROS(@after)"
    return _QUERY.substitute(
        time=time,
        at=AT_COLUMN,
        row=row,
        row_name=ROW_COLUMN,
        source=source,
        since=since,
        limit=limit,
        before="<" if appends else "<=",
    )


def _column(plan: BigQueryFile, name: str) -> str:
    if not re.fullmatch(COLUMN, name):
        mend = "name a column of the table: letters, digits and underscores"
        raise BadFleet(f"{name!r} is no column", where=plan.name, mend=mend)
    return f"`{name}`"
