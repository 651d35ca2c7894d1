"""The notifier `logfile`: one line of JSON for each thing that people should see.

[[notify.to]]
kind = "logfile"
path = "/var/log/vedette/notices.jsonl"
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from vedette.sdk import Field, Notification, NotifierPlugin, Table, Temporary

from .target import check_writable


class LogfileTable(Table):
    """Tells by a line of a file."""

    kind: Literal["logfile"]
    name: str = Field(
        default="logfile",
        description="names it in status and metrics",
        pattern=r"^[a-z][a-z0-9_-]{0,62}$",
    )
    path: str = Field(description="the file; made if it is absent", min_length=1)


class LogfileNotifier(NotifierPlugin):
    """Appends to a file. Sent twice after a crash, a notification has the same id in both lines."""

    table = LogfileTable

    # No `plan` of its own: that is the table, with its path resolved.

    def send(self, plan: LogfileTable, notification: Notification) -> None:
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
            raise Temporary(what, where=plan.path) from error

    async def probe(self, plan: LogfileTable) -> str:
        """Say for `vedette check --live` whether the file can be written."""
        return check_writable(Path(plan.path))


LOGFILE = LogfileNotifier()
