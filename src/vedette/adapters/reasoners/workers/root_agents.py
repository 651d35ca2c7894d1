"""Reads agents' `agent.py` in worker processes: one for each, which is let go once it has told.

Such a worker has a judge's box: the agent's folder, and no network. What it tells is plain data;
the model itself is asked by the engine.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from vedette.adapters.reasoners.workers import protocol
from vedette.adapters.reasoners.workers.confinement import Note
from vedette.adapters.reasoners.workers.frames import ANY, BadFrame, Frame, Frames, pack
from vedette.adapters.reasoners.workers.pending_call import Asked
from vedette.adapters.reasoners.workers.plain_data import pack_plain, read_plain
from vedette.adapters.reasoners.workers.reasoner_worker import bounded, failed
from vedette.adapters.reasoners.workers.remote_error import Raised, raised
from vedette.adapters.reasoners.workers.worker_handle import Seat
from vedette.adapters.reasoners.workers.worker_start import START_S, Pool
from vedette.domain.base.errors import BadFleet, VedetteError
from vedette.domain.base.safe_text import escape_text

# Imports ADK, which takes 100 MB by itself, and an agent.py.
_MEMORY = 512 * 1024 * 1024
_READ = 65536
_WORDS = 4096  # of what a worker says is wrong
_CORRECT = "correct the agent's code"
_AGAIN = (
    "none of its code has run: see what the engine's standard error tells of it, and do it again"
)

# Returns the root_agent of (folder, release) as plain data; raises BadFleet.
Describe = Callable[[Path, str | None], dict[str, Any]]


async def describe_in_worker(
    pool: Pool[Seat], agent: str, folder: Path, release: str | None
) -> dict[str, Any]:
    """Return what the worker of an agent tells of its root_agent: plain data, not to be trusted.

    `release` is the digest that the folder's files must have; None reads what lies there. Raises
    BadFleet with what is wrong with the agent's code, also where that ended its worker.
    """
    seat = _RootSeat(pool, agent, folder, release)
    where = _place(agent, None)
    try:
        told = await seat.describe()
    except VedetteError as error:
        raise BadFleet(error.what, where=where, mend=error.mend or _AGAIN) from error
    except Raised:
        told = None  # what it answered broke what reads it
    finally:
        seat.kill("has told its root_agent", charge=False, quiet=True)
    match told:
        case {"root": dict(root)}:
            return root
        case {"refused": [str(words), str() | None as at]}:
            what = f"its worker says {_quoted(words)}"
            raise BadFleet(what, where=_place(agent, at), mend=_CORRECT)
    raise BadFleet("what its worker told is no root_agent", where=where, mend=_CORRECT)


def _quoted(words: str) -> str:
    """Return a worker's words, which may be agents' code's own, with their end where we say."""
    return escape_text(json.dumps(words[:_WORDS], ensure_ascii=False))


def _place(agent: str, told: str | None) -> str:
    """Return the place in the agent's code that a worker tells of; agent.py if it is none."""
    place = rf"{re.escape(agent)}/(\w{{1,64}}/){{0,8}}\w{{1,64}}\.py(:\d{{1,7}})?"
    return told if told and re.fullmatch(place, told, re.ASCII) else f"{agent}/agent.py"


class _RootSeat(Seat):
    kind = "model"

    def __init__(self, pool: Pool[Seat], agent: str, folder: Path, release: str | None) -> None:
        super().__init__(pool, agent, START_S, _MEMORY)
        self._folder = folder
        self._release = release

    async def describe(self) -> Any:
        number = self.number()
        asked = Asked(number, protocol.ROOT, "", lambda: pack(number, protocol.ROOT))
        self.put(asked)
        return await asked.future

    def making(self) -> bytes:
        return pack(0, protocol.MAKE, protocol.pack((str(self._folder), self._release)))

    def reaches(self) -> dict[str, Any]:
        return {"read": (str(self._folder.resolve()),)}

    def taken(self, frame: Frame, asked: Asked) -> None:
        self.done(asked)
        try:
            if frame.kind == protocol.FAILED:
                error, _ = raised(frame.plain)
                asked.settle({"refused": [f"{type(error).__name__}: {error}", None]})
            elif frame.kind == protocol.DONE:
                asked.settle(read_plain(frame.plain))
            else:
                raise BadFrame("of another kind than was asked for")
        except BadFrame:
            asked.settle(None)

    def lost(self, guilty: Asked | None, why: str) -> None:
        mend = None if guilty is None else _CORRECT
        error = BadFleet(f"its worker {why} while it was imported", mend=mend)
        for asked in self.pending.values():
            asked.fail(error)
        self.pending.clear()

    def overdue(self, now: float) -> str:
        return f"took longer than {self.seconds:g} s" if self.stuck(now) > self.seconds else ""


def serve_root_agent(line: socket.socket, note: Note, describe: Describe) -> None:
    """Tell of one agent's root_agent, until the engine hangs up."""
    frames, made = Frames(ANY), ("", None)
    with suppress(ConnectionError):
        while data := line.recv(_READ):
            for frame in frames.feed(data):
                note.begin(frame.number)
                if frame.kind == protocol.MAKE:
                    made = protocol.read(frame.plain)
                    line.sendall(pack(0, protocol.DONE))
                else:
                    line.sendall(_answer(frame.number, *made, describe))


def _answer(number: int, folder: str, release: str | None, describe: Describe) -> bytes:
    try:
        return bounded(number, pack_plain({"root": describe(Path(folder), release)}))
    except BadFleet as error:
        return bounded(number, pack_plain({"refused": [error.what, error.where]}))
    except BaseException as error:
        return failed(number, error)
