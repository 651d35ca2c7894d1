"""Reads agents' `agent.py` in worker processes: one for each, which is let go once it has answered.

Such a worker has a judge's box: the agent's folder, and no network. What it tells is plain data, by
which another worker asks the model (`model_worker`).
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
from vedette.adapters.reasoners.workers.confinement import ProgressRecord
from vedette.adapters.reasoners.workers.frames import (
    UNBOUNDED,
    BadFrame,
    Frame,
    FrameDecoder,
    pack_frame,
)
from vedette.adapters.reasoners.workers.pending_call import PendingCall
from vedette.adapters.reasoners.workers.plain_data import pack_plain, read_plain
from vedette.adapters.reasoners.workers.reasoner_worker import pack_answer, pack_failure
from vedette.adapters.reasoners.workers.remote_error import Raised, read_error
from vedette.adapters.reasoners.workers.worker_handle import WorkerHandle
from vedette.adapters.reasoners.workers.worker_start import START_S, Pool
from vedette.domain.base.errors import BadFleet, VedetteError
from vedette.domain.base.safe_text import escape_text

# Imports ADK, which takes 100 MB by itself, and an agent.py.
_MEMORY = 512 * 1024 * 1024
_READ = 65536
_MAX_CHARS = 4096  # of what a worker says is wrong
_CORRECT = "correct the agent's code"
_RETRY = (
    "none of its code has run: see what the engine's standard error tells of it, and do it again"
)

# Returns the root_agent of (folder, release, source) as plain data; raises BadFleet.
DescribeFolder = Callable[[Path, str | None, str | None], dict[str, Any]]


async def describe_in_worker(
    pool: Pool[WorkerHandle],
    agent: str,
    folder: Path,
    release: str | None,
    source: str | None = None,
) -> dict[str, Any]:
    """Return an agent's root_agent as its worker describes it: plain data, not to be trusted.

    `release` is the digest that the folder's files must have; None reads what lies there. With
    `source`, a folder within it, the root_agent is a foreign one, which that folder holds. Raises
    BadFleet with what is wrong with the agent's code, also where that ended its worker.
    """
    handle = _RootAgentHandle(pool, agent, folder, release, source)
    where = _code_location(agent, None)
    try:
        answer = await handle.describe()
    except VedetteError as error:
        raise BadFleet(error.what, where=where, mend=error.mend or _RETRY) from error
    except Raised:
        answer = None  # what it answered broke what reads it
    finally:
        handle.kill("has told its root_agent", charge=False, quiet=True)
    match answer:
        case {"root": dict(root)}:
            return root
        case {"refused": [str(words), str() | None as at]}:
            what = f"its worker says {_quote(words)}"
            raise BadFleet(what, where=_code_location(agent, at), mend=_CORRECT)
    raise BadFleet("what its worker told is no root_agent", where=where, mend=_CORRECT)


def _quote(words: str) -> str:
    """Return a worker's words, which may be agents' code's own, with their end where we say."""
    return escape_text(json.dumps(words[:_MAX_CHARS], ensure_ascii=False))


def _code_location(agent: str, location: str | None) -> str:
    """Return the place in the agent's code that a worker names; agent.py if it is none."""
    place = rf"{re.escape(agent)}/(\w{{1,64}}/){{0,8}}\w{{1,64}}\.py(:\d{{1,7}})?"
    return location if location and re.fullmatch(place, location, re.ASCII) else f"{agent}/agent.py"


class _RootAgentHandle(WorkerHandle):
    kind = "description"

    def __init__(
        self,
        pool: Pool[WorkerHandle],
        agent: str,
        folder: Path,
        release: str | None,
        source: str | None,
    ) -> None:
        super().__init__(pool, agent, START_S, _MEMORY)
        self._folder = folder
        self._target = (str(folder), release, source)

    async def describe(self) -> Any:
        number = self.next_number()
        call = PendingCall(number, protocol.ROOT, "", lambda: pack_frame(number, protocol.ROOT))
        self.submit(call)
        return await call.future

    def make_message(self) -> bytes:
        return pack_frame(0, protocol.MAKE, protocol.pack(self._target))

    def sandbox_reach(self) -> dict[str, Any]:
        return {"read": (str(self._folder.resolve()),)}

    def on_answer(self, frame: Frame, call: PendingCall) -> None:
        self.remove(call)
        try:
            if frame.kind == protocol.FAILED:
                error, _ = read_error(frame.plain)
                call.resolve({"refused": [f"{type(error).__name__}: {error}", None]})
            elif frame.kind == protocol.DONE:
                call.resolve(read_plain(frame.plain))
            else:
                raise BadFrame("of another kind than was asked for")
        except BadFrame:
            call.resolve(None)

    def on_loss(self, culprit: PendingCall | None, why: str) -> None:
        mend = None if culprit is None else _CORRECT
        error = BadFleet(f"its worker {why} while it was imported", mend=mend)
        for call in self.pending.values():
            call.fail(error)
        self.pending.clear()

    def overdue_reason(self, now: float) -> str:
        return f"took longer than {self.seconds:g} s" if self.stalled_s(now) > self.seconds else ""


def serve_root_agent(
    connection: socket.socket, progress: ProgressRecord, describe: DescribeFolder
) -> None:
    """Describe one agent's root_agent in its worker, until the engine hangs up."""
    frames, target = FrameDecoder(UNBOUNDED), ("", None, None)
    with suppress(ConnectionError):
        while data := connection.recv(_READ):
            for frame in frames.feed(data):
                progress.begin(frame.number)
                if frame.kind == protocol.MAKE:
                    target = protocol.read(frame.plain)
                    connection.sendall(pack_frame(0, protocol.DONE))
                else:
                    connection.sendall(_build_answer(frame.number, *target, describe))


def _build_answer(
    number: int, folder: str, release: str | None, source: str | None, describe: DescribeFolder
) -> bytes:
    try:
        return pack_answer(number, pack_plain({"root": describe(Path(folder), release, source)}))
    except BadFleet as error:
        return pack_answer(number, pack_plain({"refused": [error.what, error.where]}))
    except BaseException as error:
        return pack_failure(number, error)
