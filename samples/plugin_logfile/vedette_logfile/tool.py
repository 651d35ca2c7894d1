"""The key `logfile:` of a tool in agent.yaml: a line for each call, and no code of the agent.

tools:
  - name: lamp.light
    verb: light
    resource: lamp
    args: {lamp: string}
    sinks: [/lamp]
    settles: queryable
    target: lamps
    logfile: {text: "{lamp} is lit"}
"""

from __future__ import annotations

import asyncio
import json
import os
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from vedette.sdk import Call, Field, Outcome, Table, Tool, ToolPerformer, ToolPlugin

from .target import read_lines


class LogfileLine(Table):
    """A line that is appended to the target's file."""

    text: str = Field(description="what it says; {argument} is put in", min_length=1)


class LogfileTool(ToolPlugin):
    """Appends lines."""

    table = LogfileLine
    description = "a line that is appended to a target of kind logfile, instead of a function"
    target_kind = "logfile"

    def problems(self, tool: Any, table: LogfileLine) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """Yield what is wrong with a tool: the keys, what, and the mend."""
        if tool.settles == "idempotent":
            yield ("settles",), "a line that is written twice is there twice", "write queryable"
        try:
            names = {name for _, name, _, _ in string.Formatter().parse(table.text) if name}
        except ValueError as error:
            yield ("logfile", "text"), str(error), "write a brace of its own twice"
            return
        for name in sorted(names - set(tool.args)):
            yield ("logfile", "text"), f"{name!r} is no argument of {tool.name!r}", "declare it"

    def queries(self, table: LogfileLine) -> bool:
        """Say that the file can be asked what came of a call."""
        return True

    def build(self) -> ToolPerformer:
        """Make what writes the lines."""
        return LineWriter()


class LineWriter:
    """Writes in threads: the engine's loop waits for no disk."""

    async def perform(
        self, tool: Tool, call: Call, may_start: Callable[[], bool]
    ) -> Outcome | None:
        """Append the line of one call; None if it may not start."""
        assert tool.request is not None
        text = str(tool.request["text"]).format(**call.args)
        line = json.dumps({"key": call.key, "agent": call.agent, "text": text}) + "\n"
        return await asyncio.to_thread(_append, Path(call.target["path"]), line, may_start, call)

    async def query(self, tool: Tool, call: Call) -> Outcome | None:
        """Say whether the line of a call is there."""
        lines = await asyncio.to_thread(list, read_lines(Path(call.target["path"]), "logfile"))
        there = any(line.key == call.key for line in lines)
        return Outcome("done", {"id": call.key}) if there else None

    def close(self) -> None:
        """Nothing is open."""


def _append(path: Path, line: str, may_start: Callable[[], bool], call: Call) -> Outcome | None:
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError as error:
        return Outcome("retry", error=f"cannot be opened: {error.strerror}")
    try:
        # Asked as late as can be: a stop or another policy may have come meanwhile.
        if not may_start():
            return None
        os.write(file, line.encode())
        os.fsync(file)
    except OSError as error:
        return Outcome("unknown", error=f"cannot be written: {error.strerror}")
    finally:
        os.close(file)
    return Outcome("done", {"id": call.key})


LOGFILE = LogfileTool()
