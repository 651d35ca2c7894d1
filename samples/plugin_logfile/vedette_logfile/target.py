"""The target `logfile`: a file that tools append lines of JSON to.

[targets.lamps]
kind = "logfile"
path = "/var/log/vedette/lamps.jsonl"
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vedette.sdk import BadFleet, TargetEffect, TargetPlugin, TargetRecord, Unavailable


class LogfileTarget(TargetPlugin):
    """A file. `vedette verify targets` holds its lines against what the ledger intended."""

    required = ("path",)
    record_keys = ("path",)
    place_keys = (("path",),)

    def problems(
        self, table: Mapping[str, Any], targets: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """Yield what is wrong beyond what every target holds to: the key, what, and the mend."""
        if not str(table.get("path", "")).endswith(".jsonl"):
            yield ("path",), "is no file of JSON lines", "let its name end in .jsonl"

    async def probe(self, table: Mapping[str, Any]) -> str:
        """Say for `vedette check --live` whether the file can be written."""
        return check_writable(Path(table["path"]))

    def read_record(self, table: Mapping[str, Any], where: str, since_us: int) -> TargetRecord:
        """Return what its lines say: each bears the idempotency key of the call that wrote it."""
        return TargetRecord(items=read_lines(Path(table["path"]), where))


def read_lines(path: Path, where: str) -> Iterator[TargetEffect]:
    """Yield the effects that a file has; none where it is not there yet."""
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except OSError as error:
        raise Unavailable(f"cannot be read: {error.strerror}", where=where) from error
    # What follows the last newline is being written, or was cut off: it is no line yet.
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            record = json.loads(line)
            yield TargetEffect(record["key"], what=record["text"])
        except (ValueError, KeyError, TypeError) as error:
            raise BadFleet("is no line of ours", where=f"{path}:{number}") from error


def check_writable(path: Path) -> str:
    """Say that a file can be written, or made where it would lie. Raises BadFleet."""
    there = path if path.exists() else path.parent
    if not os.access(there, os.W_OK):
        raise BadFleet(f"{there} cannot be written", mend="set the path, see who owns it")
    return f"{path} can be written"


LOGFILE = LogfileTarget()
