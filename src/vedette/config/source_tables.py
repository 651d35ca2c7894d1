"""Sources that most fleets have at hand: rows of a database, Prometheus, Alertmanager.

Their tables of vedette.toml, and the plans that these come to, with durations in microseconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from msgspec import Struct

from vedette.config.field import AfterValidator, Field
from vedette.config.secret_reference import VERSION_PATTERN, read_secret
from vedette.config.settings_table import NAME, Duration, SettingsTable, Whole, is_loopback
from vedette.config.yaml import KeyPath
from vedette.domain.base.clock import duration_us
from vedette.domain.base.errors import BadFleet
from vedette.domain.ports.plugin import TableContext, TableProblem

_KINDS = ("env", "file", "secret")

# What a Prometheus puts on a series itself, out of its own configuration.
VOUCHED_LABELS = ("instance", "job")


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


class QueryFile(SettingsTable):
    """One query whose samples become points."""

    name: str = Field(description="names the series", pattern=NAME)
    expr: str = Field(description="the expression, in PromQL", min_length=1)
    step: Duration = Field(default="1m", description="the distance between two points")


class PrometheusFile(SettingsTable):
    """Points of a Prometheus server."""

    kind: Literal["prometheus"]
    name: str = Field(description="names the source", pattern=NAME)
    url: str = Field(description="the server, for example http://127.0.0.1:9090", min_length=1)
    queries: list[QueryFile] = Field(description="what is asked for", min_length=1)
    delay: Duration = Field(default="30s", description="how far behind the clock is read")
    every: Duration | None = Field(
        default=None, description="how often it is asked; each step if not given"
    )
    lookback: Duration = Field(
        default="1m", description="how far back it begins that was never here"
    )
    vouched: list[str] = Field(
        default_factory=lambda: list(VOUCHED_LABELS),
        description="the labels whose values no stranger chooses; a series with others is named "
        "by untrusted text",
    )
    most: Whole = Field(default=500, ge=1, le=10_000, description="series of one query at most")
    token_env: str | None = Field(
        default=None, description="the environment variable with its bearer token"
    )
    token_file: str | None = Field(default=None, description="the file with its bearer token")
    token_secret: str | None = Field(default=None, pattern=VERSION_PATTERN)
    ca_file: str | None = Field(
        default=None, description="certificates to trust instead of the system's"
    )


class AlertmanagerFile(SettingsTable):
    """Alerts that an Alertmanager posts to /v1/alertmanager/NAME."""

    kind: Literal["alertmanager"]
    name: str = Field(description="names the source", pattern=NAME)
    token_env: str | None = Field(
        default=None, description="the environment variable with the token it must show"
    )
    token_file: str | None = Field(default=None, description="the file with that token")
    token_secret: str | None = Field(default=None, pattern=VERSION_PATTERN)
    vouches: Literal["envelope", "event", "none"] = "envelope"


class SqlPlan(Struct, frozen=True):
    """Asks a table for new rows; fields as in `SqlFile`. `path` is None for PostgreSQL."""

    kind: ClassVar[str] = "sql"
    name: str
    table: str
    type: str
    id_column: str
    order_column: str
    path: Path | None = None
    url_env: str | None = None
    url_file: str | None = None
    url_secret: str | None = None
    time_column: str | None = None
    subject_column: str | None = None
    columns: tuple[str, ...] = ()
    every_us: int = 2_000_000
    overlap_us: int = 0
    begin: str = "start"
    create_from: Path | None = None
    vouches: str = "columns"
    vouched: tuple[str, ...] = ()

    def url(self) -> str:
        """Return the URL of PostgreSQL. Raises BadFleet if it is not there."""
        return _require_secret(self, "url", f"source {self.name}")


class QueryPlan(Struct, frozen=True):
    """One query; `step_us` is a whole number of seconds."""

    name: str
    expr: str
    step_us: int


class PrometheusPlan(Struct, frozen=True):
    """Asks a Prometheus server; fields as in `PrometheusFile`."""

    kind: ClassVar[str] = "prometheus"
    name: str
    url: str
    queries: tuple[QueryPlan, ...]
    delay_us: int = 30_000_000
    every_us: int | None = None
    lookback_us: int = 60_000_000
    most: int = 500
    vouched: tuple[str, ...] = VOUCHED_LABELS
    token_env: str | None = None
    token_file: str | None = None
    token_secret: str | None = None
    ca_file: str | None = None

    def token(self) -> str | None:
        """Return the bearer token, None without one. Raises BadFleet, Unavailable."""
        if not any(getattr(self, f"token_{kind}") for kind in _KINDS):
            return None
        return _require_secret(self, "token", f"source {self.name}")


class AlertmanagerPlan(Struct, frozen=True):
    """Takes what an Alertmanager posts; fields as in `AlertmanagerFile`."""

    kind: ClassVar[str] = "alertmanager"
    name: str
    token_env: str | None = None
    token_file: str | None = None
    token_secret: str | None = None
    vouches: str = "envelope"

    def token(self) -> str:
        """Return the token that the sender must show. Raises BadFleet if it is not there."""
        return _require_secret(self, "token", f"source {self.name}")


# How long a transaction of PostgreSQL may take from a row's number to its commit.
OVERLAP_US = 60_000_000


def sql_plan(table: SqlFile, context: TableContext) -> SqlPlan:
    """Return the plan of a table."""
    overlap = duration_us(table.overlap) if table.overlap else None
    if overlap is None:
        overlap = 0 if table.path else OVERLAP_US
    return SqlPlan(
        table.name, table.table, table.type, table.id_column, table.order_column,
        context.path(table.path) if table.path else None, table.url_env,
        _optional_path(context, table.url_file), table.url_secret, table.time_column,
        table.subject_column, tuple(table.columns), duration_us(table.every), overlap, table.begin,
        context.path(table.create_from) if table.create_from else None, table.vouches,
        tuple(table.vouched),
    )  # fmt: skip


def prometheus_plan(table: PrometheusFile, context: TableContext) -> PrometheusPlan:
    """Return the plan of a table."""
    queries = tuple(
        QueryPlan(query.name, query.expr, duration_us(query.step)) for query in table.queries
    )
    return PrometheusPlan(
        table.name,
        table.url,
        queries,
        duration_us(table.delay),
        duration_us(table.every) if table.every else None,
        duration_us(table.lookback),
        table.most,
        tuple(table.vouched),
        table.token_env,
        _optional_path(context, table.token_file),
        table.token_secret,
        _optional_path(context, table.ca_file),
    )


def alertmanager_plan(table: AlertmanagerFile, context: TableContext) -> AlertmanagerPlan:
    """Return the plan of a table."""
    file = _optional_path(context, table.token_file)
    return AlertmanagerPlan(table.name, table.token_env, file, table.token_secret, table.vouches)


def _optional_path(context: TableContext, text: str | None) -> str | None:
    return str(context.path(text)) if text else None


def alertmanager_problems(table: AlertmanagerFile, context: TableContext) -> list[TableProblem]:
    """Return what is wrong with a table beyond its shape."""
    found: list[TableProblem] = []
    if _count_references(table, "token") != 1:
        mend = "give one of token_env, token_file, token_secret"
        found.append(((), "whoever posts alerts needs a token", mend))
    if not context.serves_http:
        what = "nothing is served here that alerts could be posted to"
        found.append(((), what, "set http of [serve]"))
    return found


def sql_problems(table: SqlFile) -> list[TableProblem]:
    """Return what is wrong with a table beyond its shape."""
    found: list[TableProblem] = []
    if _count_references(table, "url") + (table.path is not None) != 1:
        mend = "give one of path (SQLite), url_env, url_file, url_secret (PostgreSQL)"
        found.append(((), "needs one database", mend))
    if table.create_from and table.path is None:
        found.append((("create_from",), "is for a file of SQLite only", "leave it out"))
    if table.columns and table.id_column not in table.columns:
        # Who is woken by a row has to be able to name it.
        found.append((("columns",), f"lacks the id {table.id_column!r}", "add it"))
    found += vouched_column_problems(table)
    return found


def vouched_column_problems(table: Any) -> list[TableProblem]:
    """Return what is wrong with the columns that a source of rows vouches for."""
    named_columns = {table.id_column, table.subject_column, table.time_column}
    columns = getattr(table, "columns", None)
    found: list[TableProblem] = []
    for index, column in enumerate(table.vouched):
        path: KeyPath = ("vouched", index)
        if columns and column not in {*columns, *named_columns}:
            found.append(
                (path, f"{column!r} is no column that is handed over", "add it to columns")
            )
        if column == "action":
            # In an undo this place of the data is the engine's word.
            what = "a column called 'action' cannot be vouched for"
            found.append((path, what, "hand it over under another name, through a view"))
    return found


def prometheus_problems(table: PrometheusFile) -> list[TableProblem]:
    """Return what is wrong with a table beyond its shape."""
    found: list[TableProblem] = []
    try:
        parts = urlsplit(table.url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname)
        sound = sound and not parts.query and not parts.fragment and (parts.port or 1) > 0
    except ValueError:
        sound = False
    if not sound:
        found.append((("url",), "is no URL of a server", "write http://HOST:9090"))
    elif parts.username or parts.password:
        what = "a secret does not stand in a file of the fleet"
        found.append((("url",), what, "write token_env = and take it out of the URL"))
    elif (
        _count_references(table, "token")
        and parts.scheme == "http"
        and not is_loopback(parts.hostname or "")
    ):
        found.append((("url",), "a token is not sent over plain HTTP", "use https"))
    if _count_references(table, "token") > 1:
        found.append(((), "has more than one token", "leave one of _env, _file and _secret"))
    seen: set[str] = set()
    for index, query in enumerate(table.queries):
        path: KeyPath = ("queries", index)
        if query.name in seen:
            what = f"{query.name!r} is the name of another query already"
            found.append(((*path, "name"), what, "give it its own name"))
        seen.add(query.name)
        if duration_us(query.step) % 1_000_000:
            found.append(
                ((*path, "step"), "is no whole number of seconds", "write for example 30s")
            )
    return found


def _count_references(table: Any, name: str) -> int:
    return sum(getattr(table, f"{name}_{kind}") is not None for kind in _KINDS)


def _require_secret(plan: Any, name: str, where: str) -> str:
    table = {f"{name}_{kind}": getattr(plan, f"{name}_{kind}") for kind in _KINDS}
    found = read_secret(table, name, where=where)
    if found is None:
        raise BadFleet(f"has no {name}", where=where, mend=f"add {name}_env")
    return found
