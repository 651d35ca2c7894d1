"""Follows a log file: each whole line that matches is an event, once, over restarts too."""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING, BinaryIO

from vedette.sdk import Event, Intake, Refused, SourceContext

if TYPE_CHECKING:
    from .plugin import LogfilePlan

LINES = 256  # handed over at once


class LogfileSource:
    """Reads from where it was left; begins anew with a file that was rotated or cut.

    A file is known by its inode. An event's id is the inode and where the line begins, so a line
    that is read again after a crash is the same event.
    """

    def __init__(self, plan: LogfilePlan, context: SourceContext) -> None:
        self.name = f"logfile:{plan.name}"
        self.finite = not context.watch
        self._plan, self._clock = plan, context.clock
        self._match = re.compile(plan.match)
        self._longest = context.max_event_bytes

    async def deliver(self, intake: Intake) -> None:
        """Hand over what was written since, until cancelled (or up to the end, if finite)."""
        while True:
            while await self._hand_over(intake):
                pass
            if self.finite:
                return
            await self._clock.sleep_until(self._clock.now_us() + self._plan.every_us)

    async def _hand_over(self, intake: Intake) -> bool:
        """Hand one batch over; say whether there was one."""
        known = intake.position(self.name)
        found = await asyncio.to_thread(self._read, known)
        if found is None:
            return False
        deliveries, position = found
        # The position is kept in the same commit as the events.
        await intake.accept(deliveries, position=(self.name, position))
        return position != known

    def _read(self, known: str | None) -> tuple[list[Event | Refused], str] | None:
        """Return what the next lines come to, and the position behind them; None at the end."""
        try:
            file = self._plan.path.open("rb")
        except FileNotFoundError:
            return None  # being rotated, or not written yet
        with file:
            facts = os.fstat(file.fileno())
            inode, _, offset = (known or "").partition(":")
            same = inode == str(facts.st_ino) and int(offset) <= facts.st_size
            begin = int(offset) if same else 0
            file.seek(begin)
            found: list[Event | Refused] = []
            at = begin
            for _ in range(LINES):
                line = file.readline(self._longest + 1)
                whole = line.endswith(b"\n") or _skip_line(file, self._longest)
                if not line or not whole:
                    break  # the end, or a line that is still being written
                one = self._event(line.rstrip(b"\r\n"), f"{facts.st_ino}:{at}")
                found += [] if one is None else [one]
                at = file.tell()
        return None if at == begin else (found, f"{facts.st_ino}:{at}")

    def _event(self, line: bytes, where: str) -> Event | Refused | None:
        if len(line) > self._longest:
            what = f"a line of more than {self._longest} bytes"
            return Refused(f"{self._plan.path} ({where})", what, line[:256])
        found = self._match.search(line.decode("utf-8", "replace"))
        if found is None:
            return None
        data = {key: value for key, value in found.groupdict().items() if value is not None}
        # Whoever makes a server write a line chooses its words, and so the subject: this source
        # vouches for nothing but what it gives itself.
        return Event(
            self.name, where, self._plan.type, data.pop("subject", None), data=data,
            vouched=frozenset({"source", "id", "type"}),
        )  # fmt: skip


def _skip_line(file: BinaryIO, most: int) -> bool:
    """Read on to the end of a line that is too long to keep; say whether it has one yet."""
    while rest := file.readline(most):
        if rest.endswith(b"\n"):
            return True
    return False
