"""The tables of the sources `csv` and `jsonl`: files that are replayed."""

from __future__ import annotations

from typing import Literal

from vedette.config.field import Field
from vedette.config.settings_table import NAME, Number, SettingsTable


class CsvFile(SettingsTable):
    """Metric series out of CSV files."""

    kind: Literal["csv"]
    name: str = Field(description="names the source", pattern=NAME)
    path: str = Field(description="files, for example samples/metrics/*.csv", min_length=1)
    rate: Number = Field(
        default=0.0, ge=0, description="events per second; 0 is as fast as possible"
    )


class JsonlFile(SettingsTable):
    """CloudEvents out of files with one JSON object per line; with `type`, their bare data."""

    kind: Literal["jsonl"]
    name: str = Field(description="names the source", pattern=NAME)
    path: str = Field(description="files, for example samples/events/*.jsonl", min_length=1)
    rate: Number = Field(
        default=0.0, ge=0, description="events per second; 0 is as fast as possible"
    )
    type: str | None = Field(default=None, description="the type of events given as bare data")
