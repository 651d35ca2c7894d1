"""The table of a source `sql`: new rows of a table of SQLite or PostgreSQL as events."""

from __future__ import annotations

from typing import Annotated, Literal

from vedette.config.field import AfterValidator, Field
from vedette.config.secret_reference import VERSION_PATTERN, require_secret
from vedette.config.settings_table import NAME, Duration, SettingsTable
from vedette.domain.base.clock import duration_us

# How long a transaction of PostgreSQL may take from a row's number to its commit.
OVERLAP_US = 60_000_000


def _identifier(text: str) -> str:
    # It is quoted, and held against the database's own catalogue, before it goes into a query.
    if not text or "\0" in text or len(text) > 128:
        raise ValueError(f"{text[:40]!r} names no table or column | write its name")
    return text


Identifier = Annotated[str, AfterValidator(_identifier)]


class SqlFile(SettingsTable):
    """New rows of a table of SQLite or PostgreSQL as events."""

    kind: Literal["sql"]
    name: str = Field(description="names the source", pattern=NAME)
    path: str | None = Field(default=None, description="the file of SQLite", min_length=1)
    url_env: str | None = Field(
        default=None, description="the environment variable with the URL of PostgreSQL"
    )
    url_file: str | None = Field(default=None, description="the file with the URL")
    url_secret: str | None = Field(
        default=None, pattern=VERSION_PATTERN, description="the URL in Secret Manager"
    )
    table: Identifier = Field(description="the table or view; SCHEMA.TABLE on PostgreSQL")
    type: str = Field(description="the type of its events", min_length=1)
    id_column: Identifier = Field(description="what tells rows apart")
    order_column: Identifier = Field(description="what grows with each new row")
    time_column: Identifier | None = Field(default=None, description="when it happened")
    subject_column: Identifier | None = Field(default=None, description="the subject of its events")
    columns: list[Identifier] = Field(
        default_factory=list, description="the columns that are handed over; all if none is named"
    )
    every: Duration = Field(default="2s", description="how often new rows are asked for")
    overlap: Duration | None = Field(
        default=None,
        description="how long a writer may take from a row's number to its commit; 60s on "
        "PostgreSQL, nothing on SQLite, where one writes at a time",
    )
    begin: Literal["now", "start"] = Field(
        default="start", description="where it begins that was never here: now, or the first row"
    )
    create_from: str | None = Field(
        default=None, description="an SQL script that makes the file of SQLite if it is absent"
    )
    vouches: Literal["columns", "envelope"] = Field(
        default="columns",
        description="envelope: id, subject and time are trusted whatever column they come from, "
        "as its writers are",
    )
    vouched: list[Identifier] = Field(
        default_factory=list,
        description="the columns whose values no stranger chooses, for example a number that the "
        "database gives",
    )

    @property
    def overlap_us(self) -> int:
        """Return how long a writer may take from a row's number to its commit, in microseconds."""
        if self.overlap:
            return duration_us(self.overlap)
        return 0 if self.path else OVERLAP_US

    def url(self) -> str:
        """Return the URL of PostgreSQL. Raises BadFleet if it is not there."""
        return require_secret(vars(self), "url", where=f"source {self.name}")
