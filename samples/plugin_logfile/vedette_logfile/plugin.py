"""The source `logfile`: its table in vedette.toml, what that comes to, and what is built of it.

[[sources]]
kind = "logfile"
name = "web"
path = "/var/log/web/error.log"
match = "ERROR (?P<subject>\\S+): (?P<message>.*)"
type = "log.error"
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from vedette.sdk import (
    BadFleet,
    Duration,
    Field,
    Source,
    SourceContext,
    SourcePlugin,
    Table,
    TableContext,
    duration_us,
)


class LogfileTable(Table):
    """Lines of a log file that match a pattern."""

    kind: Literal["logfile"]
    name: str = Field(description="names the source", pattern=r"^[a-z][a-z0-9_-]{0,62}$")
    path: str = Field(description="the file", min_length=1)
    match: str = Field(
        default="(?P<message>.*)",
        description="a regular expression; each named group is a field of the event's data",
    )
    type: str = Field(default="log.line", description="the type of its events", min_length=1)
    every: Duration = Field(default="1s", description="how often the file is looked at")


@dataclass(frozen=True)
class LogfilePlan:
    """What a table comes to; the path is absolute, the length of time in microseconds."""

    kind: ClassVar[str] = "logfile"
    name: str
    path: Path
    match: str
    type: str
    every_us: int


class LogfilePlugin(SourcePlugin):
    """Follows a log file."""

    table = LogfileTable

    def problems(
        self, table: LogfileTable, context: TableContext
    ) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """Yield what is wrong with a table: the key, what, and the mend."""
        if table.type.startswith("vedette."):
            yield ("type",), "the types vedette.… are the engine's own", "choose another"
        try:
            groups = re.compile(table.match).groupindex
        except re.error as error:
            yield ("match",), f"is no regular expression: {error}", "correct it"
            return
        if not groups:
            yield ("match",), "names no group, so events would be empty", "write (?P<message>.*)"

    def plan(self, table: LogfileTable, context: TableContext) -> LogfilePlan:
        """Return the plan of a table."""
        path = context.path(table.path)
        return LogfilePlan(table.name, path, table.match, table.type, duration_us(table.every))

    def build(self, plan: LogfilePlan, context: SourceContext) -> Source:
        """Make the source. What it is made of is imported here, when a fleet runs."""
        from .source import LogfileSource

        return LogfileSource(plan, context)

    async def probe(self, plan: LogfilePlan) -> str:
        """Say for `vedette check --live` whether the file can be read."""
        if not await asyncio.to_thread(os.access, plan.path, os.R_OK):
            raise BadFleet(f"{plan.path} cannot be read", mend="set the path, see who owns it")
        return f"{plan.path} can be read"


LOGFILE = LogfilePlugin()
