"""The table of a source `bigquery`: new rows of a table as events."""

from __future__ import annotations

from typing import Literal

from vedette.config.field import Field
from vedette.config.settings_table import NAME, Duration, SettingsTable

# What BigQuery calls its things by; nothing else goes into a query as a name.
PROJECT = r"^[a-z0-9][a-z0-9.:-]{0,62}$"
DATASET = r"^[A-Za-z0-9_]{1,1024}$"
TABLE = r"^[A-Za-z0-9_-]{1,1024}$"
COLUMN = r"^[A-Za-z_][A-Za-z0-9_]{0,299}$"


class BigQueryFile(SettingsTable):
    """New rows of a BigQuery table as events."""

    kind: Literal["bigquery"]
    name: str = Field(description="names the source", pattern=NAME)
    project: str = Field(description="the Google Cloud project", pattern=PROJECT)
    dataset: str = Field(pattern=DATASET)
    table: str = Field(pattern=TABLE)
    type: str = Field(description="the type of its events", min_length=1)
    time_column: str = Field(description="when the row was inserted", pattern=COLUMN)
    id_column: str | None = Field(default=None, description="what tells rows apart", pattern=COLUMN)
    subject_column: str | None = Field(
        default=None, description="the subject of its events", pattern=COLUMN
    )
    every: Duration = Field(default="30s", description="how often new rows are asked for")
    overlap: Duration = Field(default="5m", description="how late a row may come")
    behind: Duration = Field(default="2s", description="how far behind the clock is read")
    method: Literal["watermark", "appends"] = "watermark"
    begin: Literal["now", "start"] = Field(
        default="now", description="where it begins that was never here: now, or the first row"
    )
    location: str | None = None
    vouches: Literal["columns", "envelope"] = Field(
        default="columns",
        description="envelope: an id or a subject of a column is trusted, as its writers are",
    )
    vouched: list[str] = Field(
        default_factory=list, description="the columns whose values no stranger chooses"
    )
