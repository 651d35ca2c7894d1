"""The table of a source `prometheus`: the points of queries as events."""

from __future__ import annotations

from typing import Literal

from vedette.config.field import Field
from vedette.config.secret_reference import VERSION_PATTERN, read_secret
from vedette.config.settings_table import NAME, Duration, SettingsTable, Whole
from vedette.domain.base.clock import MICROS, duration_us

# What a Prometheus puts on a series itself, out of its own configuration.
VOUCHED_LABELS = ("instance", "job")


class QueryFile(SettingsTable):
    """One query whose samples become points."""

    name: str = Field(description="names the series", pattern=NAME)
    expr: str = Field(description="the expression, in PromQL", min_length=1)
    step: Duration = Field(default="1m", description="the distance between two points")

    @property
    def step_s(self) -> int:
        """Return the distance between two points, in seconds."""
        return duration_us(self.step) // MICROS


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

    def token(self) -> str | None:
        """Return the bearer token, None without one. Raises BadFleet, Unavailable."""
        return read_secret(vars(self), "token", where=f"source {self.name}")
