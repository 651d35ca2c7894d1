"""The notifier `logfile`: one line of JSON for each thing that people should see.

[[notify.to]]
kind = "logfile"
path = "/var/log/vedette/notices.jsonl"
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from vedette.sdk import (
    BadFleet,
    Field,
    Notification,
    NotifierPlugin,
    Table,
    TableContext,
    Temporary,
)


class LogfileTable(Table):
    """Tells by a line of a file."""

    kind: Literal["logfile"]
    name: str = Field(
        default="logfile",
        description="names it in status and metrics",
        pattern=r"^[a-z][a-z0-9_-]{0,62}$",
    )
    path: str = Field(description="the file; made if it is absent", min_length=1)


@dataclass(frozen=True)
class LogfilePlan:
    """What a table comes to; the path is absolute."""

    kind: ClassVar[str] = "logfile"
    name: str
    path: Path


class LogfileNotifier(NotifierPlugin):
    """Appends to a file. Sent twice after a crash, a notification has the same id in both lines."""

    table = LogfileTable

    def plan(self, table: LogfileTable, context: TableContext) -> LogfilePlan:
        """Return the plan of a table."""
        return LogfilePlan(table.name, context.path(table.path))

    def send(self, plan: LogfilePlan, notification: Notification) -> None:
        """Append one line, and have it on the disk. Raises Temporary: it is tried again."""
        facts: Mapping[str, Any] = notification.facts
        line = json.dumps({**facts, "title": notification.title}) + "\n"
        try:
            file = os.open(plan.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(file, line.encode())
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            what = f"cannot be written: {error.strerror}"
            raise Temporary(what, where=str(plan.path)) from error

    async def probe(self, plan: LogfilePlan) -> str:
        """Say for `vedette doctor` whether the file can be written."""
        there = plan.path if plan.path.exists() else plan.path.parent
        if not os.access(there, os.W_OK):
            raise BadFleet(f"{there} cannot be written", mend="set the path, see who owns it")
        return f"{plan.path} can be written"


LOGFILE = LogfileNotifier()
