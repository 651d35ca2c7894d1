"""The world of the virtual day: what comes to the fleet, and a target with a record of its own."""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vedette.domain.effect import Call, Outcome
from vedette.domain.event import Event
from vedette.testing.toy_fleet import DESK, job, note_proposal, propose

ACTING = tuple(f"keeper_{number:02}" for number in range(18))
ASKING = ("asker_1", "asker_2")
OBSERVING = ("novice_1", "novice_2")
AGENTS = (*ACTING, *ASKING, *OBSERVING)
IDEMPOTENT = ("wire.send", "big.send", "slow.send")


def share(text: str) -> float:
    """Return a number in 0..1 that depends on a text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]) / 2**48


class DayWorld:
    """The target of all tools. One line is appended for every call, and the effect is that line.

    What it answers depends on the key and on how often it was called: some calls are refused for
    now, some fail, of some the answer is lost after the effect.
    """

    def __init__(self, record: Path) -> None:
        self.record = record
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()
        self._done: set[str] = set()
        for line in self.lines():
            self._note(line)

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield what stands in the record."""
        if self.record.exists():
            for line in self.record.read_bytes().splitlines():
                yield json.loads(line)

    def happened(self, key: str) -> bool:
        """Say whether a key has taken effect."""
        return key in self._done

    def act(self, call: Call) -> Outcome:
        """Do what a call asks."""
        with self._lock:
            first, chance = not self._calls[call.key], share(call.key)
            answer = "done"
            if first and chance < 0.06:
                answer = "retry"
            elif chance > 0.98:
                answer = "failed"
            repeat = call.tool in IDEMPOTENT and call.key in self._done
            line = {
                "key": call.key, "tool": call.tool, "agent": call.agent,
                "text": str(call.args["text"]), "effect": answer == "done" and not repeat,
            }  # fmt: skip
            self._write(line)
        if answer == "done" and first and 0.06 <= chance < 0.1:
            raise ConnectionError("the answer was lost on its way")
        if answer == "done":
            return Outcome("done", {"id": call.key})
        return Outcome("retry" if answer == "retry" else "failed", error=answer)

    def ask(self, call: Call) -> Outcome | None:
        """Say what came of a key."""
        return Outcome("done", {"id": call.key}) if self.happened(call.key) else None

    def _note(self, line: dict[str, Any]) -> None:
        self._calls[line["key"]] += 1
        if line["effect"]:
            self._done.add(line["key"])

    def _write(self, line: dict[str, Any]) -> None:
        append(self.record, line)
        self._note(line)


def append(path: Path, line: dict[str, Any]) -> None:
    """Append a line in one write: a killed process leaves all of it, or nothing."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, (json.dumps(line) + "\n").encode())
    finally:
        os.close(file)


def events(number: int, seed: int) -> list[Event]:
    """Return the events of a day; each says in its data what its agent is to propose."""
    draw = random.Random(seed)
    return [_event(draw, f"e{at}") for at in range(number)]


def _event(draw: random.Random, name: str) -> Event:
    agent, key = draw.choice(AGENTS), f"k{draw.randrange(8)}"
    number, more = draw.random(), {"value": draw.randrange(9)}
    if number < 0.003:
        return job(name, key=key, agent=agent, **{**more, "raise": True})
    return job(name, *_proposals(draw, name), key=key, agent=agent, **more, **_unclear_mail(draw))


def _unclear_mail(draw: random.Random) -> dict[str, Any]:
    return {"confidence": 0.5} if draw.random() < 0.04 else {}


def _proposals(draw: random.Random, name: str) -> list[dict[str, Any]]:
    number = draw.random()
    if number < 0.58:
        return []
    if number < 0.7:
        return [note_proposal(f"{name} 0")]
    if number < 0.73:
        return [propose("wire.send", to="stranger@elsewhere.example", text=f"{name} 0")]
    if number < 0.74:
        return [propose("door.open", to=DESK, text=f"{name} 0")]
    tools = ("wire.send", "order.place", "bell.ring", "big.send", "slow.send")
    drawn = draw.choices(tools, weights=(10, 6, 3, 3, 2), k=draw.choice((1, 1, 1, 2)))
    return [propose(tool, to=DESK, text=f"{name} {at}") for at, tool in enumerate(drawn)]
