"""The target of the crash tests: a file that keeps its own record, apart from the engine.

One line is appended for every call, in one write; the effect happens with that write. What it
does with a key that it knows depends on the tool's class: `wire.send` and `big.send` absorb a
repeat, `order.place` can be asked about a key, `bell.ring` rings every time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

from vedette.domain.effect import Call, Outcome

IDEMPOTENT = ("wire.send", "big.send")


class FileWorld:
    """A target whose record survives the death of who calls it.

    With `absorbs` off it does again what it is asked again: the target of a negative control.
    """

    def __init__(self, record: Path, *, absorbs: bool = True) -> None:
        self.record = record
        self.absorbs = absorbs
        self._lock = Lock()

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield what stands in the record."""
        if self.record.exists():
            for line in self.record.read_bytes().splitlines():
                yield json.loads(line)

    def happened(self, key: str) -> bool:
        """Say whether a key has taken effect."""
        return any(line["key"] == key and line["effect"] for line in self.lines())

    def act(self, call: Call) -> Outcome:
        """Do what a call asks; a text that begins with "later" is done at its second call."""
        with self._lock:
            known = [line for line in self.lines() if line["key"] == call.key]
            text = str(call.args["text"])
            later = text.startswith("later") and not known
            repeat = call.tool in IDEMPOTENT and self.absorbs and any(k["effect"] for k in known)
            line = {
                "key": call.key, "tool": call.tool, "agent": call.agent, "text": text,
                "effect": not later and not repeat,
            }  # fmt: skip
            self._write(line)
        if later:
            return Outcome("retry", error="not now")
        return Outcome("done", {"id": call.key})

    def ask(self, call: Call) -> Outcome | None:
        """Say what came of a key."""
        return Outcome("done", {"id": call.key}) if self.happened(call.key) else None

    def _write(self, line: dict[str, Any]) -> None:
        record = os.open(self.record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(record, (json.dumps(line) + "\n").encode())
        finally:
            os.close(record)
