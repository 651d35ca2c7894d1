"""A seat: the place of one agent's worker, with what was asked of it and not answered yet.

At most one worker sits there at a time: the next one is forked only after the zygote has seen the
last one dead. What was asked stays with the seat, so a worker's death loses nothing: whoever it was
working for is told, everybody else is asked again of the next worker.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from vedette.adapters.worker_pool import wire
from vedette.adapters.worker_pool.asked import Asked, WorkerLost
from vedette.adapters.worker_pool.confine import NOTE_BYTES, read_note, resident
from vedette.adapters.worker_pool.frames import MOST, BadFrame, Frame, Frames

# How long a worker may take from its birth until its agent's code is imported and trained.
START_S = 60.0
_READ = 262144
_FIRST_WAIT_S, _LAST_WAIT_S = 0.05, 5.0
_LOOK_S = 0.05
# How long a killed worker may take to be seen dead, where the loop waits for it.
_BURIED_S = 2.0


class Pool(Protocol):
    """What a seat needs of the pool."""

    def start(self, seat: Seat, told: dict[str, Any], descriptors: tuple[int, ...]) -> int: ...

    def kill(self, worker: int) -> None: ...

    def busy(self, seat: Seat) -> None: ...

    def listen(self, also: Callable[[select.poll], None], seconds: float) -> None: ...


class Seat:
    """One agent's worker of one kind. `seconds` bounds one call, `memory` is in bytes."""

    kind = ""

    def __init__(self, pool: Pool, agent: str, seconds: float, memory: int) -> None:
        self.pool = pool
        self.agent = agent
        self.seconds = seconds
        self.memory = memory
        self.pending: dict[int, Asked] = {}
        self.worker = 0  # the zygote's number for it; 0 while there is none
        self.pid = 0
        self.used_at = time.monotonic()
        self.born_at = 0.0
        self.made = False
        self._number = 0
        self._why = ""
        self._charge = True
        self._quiet = False
        self._deaths = 0
        self._later: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._line: socket.socket | None = None
        self._note = -1
        self._frames = Frames(MOST)
        self._out: list[bytes] = []
        self._rest = b""
        self._flushing = False
        self._writing = False
        self._seen: tuple[int, int] = (0, 0)
        self._seen_at = 0.0

    # --- for the kinds to say ---------------------------------------------------------------

    def making(self) -> bytes:
        """Return the words with which a new worker is made."""
        raise NotImplementedError

    def taken(self, frame: Frame, asked: Asked) -> None:
        """Take an answer. Raises BadFrame if it is none."""
        raise NotImplementedError

    def lost(self, guilty: Asked | None, why: str) -> None:
        """Settle what cannot be asked of the next worker; `guilty` was being worked on."""
        raise NotImplementedError

    def pong(self) -> None:
        """The worker has answered a ping."""

    def overdue(self, now: float) -> str:
        """Say why the worker is to be killed now; empty if it is not."""
        raise NotImplementedError

    # --- asking -----------------------------------------------------------------------------

    def number(self) -> int:
        """Return a number for what is asked next; 0 is for what nobody waits for."""
        self._number = self._number % 0xFFFF_FFF0 + 1
        return self._number

    def put(self, asked: Asked) -> None:
        """Take up what is asked, and send it once there is a worker.

        Raises TypeError if it is no plain data.
        """
        now = self.used_at = time.monotonic()
        if not self.pending:
            self._seen_at = now
        if self._line is not None:
            self.send(asked.frame())
            self.pending[asked.number] = asked
        else:
            asked.frame()
            self.pending[asked.number] = asked
            if not self.worker and self._later is None:
                self.sit()
        self.pool.busy(self)

    def send(self, data: bytes) -> None:
        """Send bytes with all else that is sent before the loop turns."""
        if self._line is None:
            return
        self._out.append(data)
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        line = self._line
        if line is None or not (self._out or self._rest):
            return
        data = self._rest + b"".join(self._out)
        self._out.clear()
        try:
            sent = line.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(data)  # it hung up: that is seen where we read
        self._rest = data[sent:]
        if bool(self._rest) != self._writing:
            self._writing = bool(self._rest)
            loop = asyncio.get_running_loop()
            if self._writing:
                loop.add_writer(line, self._flush)
            else:
                loop.remove_writer(line)

    # --- a worker's life --------------------------------------------------------------------

    def sit(self) -> None:
        """Let a new worker be forked and ask it all that is not answered."""
        self._later = None
        try:
            ours = self._fork()
        except Exception:
            # There will be no worker: whoever asked is told so, and nobody else.
            self.pending.clear()
            raise
        ours.setblocking(False)
        self._line, self._frames = ours, Frames(MOST)
        self._why, self._charge, self._quiet = "", True, False
        self.made, self.pid, self.born_at = False, 0, 0.0
        self._out, self._rest, self._writing = [], b"", False
        self._seen, self._seen_at = (0, 0), time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(ours, self.read)
        self.fresh()
        self.send(self.making())
        for asked in self.pending.values():
            self.send(asked.frame())  # was written before, so it is plain data

    def _fork(self) -> socket.socket:
        """Have a worker forked; return our end of its line."""
        ours, theirs = socket.socketpair()
        try:
            with theirs, tempfile.TemporaryFile(buffering=0) as note:
                note.truncate(NOTE_BYTES)
                told = {"kind": self.kind, "agent": self.agent, "memory": self.memory}
                self.worker = self.pool.start(self, told, (theirs.fileno(), note.fileno()))
                self._note = os.dup(note.fileno())
        except BaseException:
            ours.close()
            raise
        return ours

    def fresh(self) -> None:
        """Forget what the last worker had been told."""

    def born(self, pid: int) -> None:
        """The zygote has forked the worker: its time begins."""
        self.pid = pid
        self.born_at = self._seen_at = time.monotonic()

    def read(self) -> None:
        """Take what the worker has sent."""
        while self._line is not None:
            try:
                data = self._line.recv(_READ)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._hang_up()
                self.pool.kill(self.worker)
                return
            try:
                for frame in self._frames.feed(data):
                    self._take(frame)
            except BadFrame as error:
                self.kill(f"sent garbage: {error}")
            if len(data) < _READ:
                return

    def _take(self, frame: Frame) -> None:
        self._seen_at = time.monotonic()
        if frame.number == 0 and frame.kind in (wire.DONE, wire.FAILED):
            # Code that fails to load says so again to everyone who asks something of it.
            self.made = True
            return
        if frame.number == 0 and frame.kind == wire.PONG:
            self.pong()
            return
        asked = self.pending.get(frame.number)
        if asked is None:
            raise BadFrame("an answer to what nobody asked")
        if frame.kind in (wire.DONE, wire.NEEDS_STATE):
            self._deaths = 0
        self.taken(frame, asked)

    def done(self, asked: Asked) -> None:
        """Strike off what has been answered."""
        del self.pending[asked.number]
        self.used_at = self._seen_at

    def kill(self, why: str, *, charge: bool = True, quiet: bool = False) -> None:
        """End the worker now. Whatever it is at is charged with it, unless told otherwise.

        `quiet` is for an end that is nobody's trouble.
        """
        if self.worker and not self._why:
            self._why, self._charge, self._quiet = why, charge, quiet
            self._hang_up()
            self.pool.kill(self.worker)

    def _hang_up(self) -> None:
        if self._line is not None:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._line)
                self._loop.remove_writer(self._line)
            self._line.close()
            self._line = None

    def ended(self, how: str, *, charge: bool = True) -> str:
        """The worker is dead. Settle its affairs; return why it died, empty if that is quiet."""
        if not self._why:
            self.read()
        self._hang_up()
        why = self._why or how
        guilty = self._guilty() if charge and self._charge else None
        os.close(self._note)
        self._note, self.worker, self.pid = -1, 0, 0
        self._deaths += not self._quiet
        self.lost(guilty, why)
        if self.pending:
            wait = 0.0
            if self._deaths > 1:
                wait = min(_LAST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(self._deaths, 16))
            self._later = asyncio.get_running_loop().call_later(wait, self.sit)
        return "" if self._quiet else why

    def _guilty(self) -> Asked | None:
        """Return what the worker was at when it died; what it was asked first if it does not say.

        Somebody has to be charged, or a worker that always dies would be forked for ever.
        """
        number, _ = read_note(self._note)
        return self.pending.get(number) or next(iter(self.pending.values()), None)

    # --- watching ---------------------------------------------------------------------------

    def watch(self, now: float) -> None:
        """Kill the worker if what it is at takes too long. What it has answered is read first."""
        if not (self.worker and self.born_at and self.pending) or self._why:
            return
        self.read()
        if not (self._line is not None and self.pending):
            return
        if not self.made:
            why = "" if now - self.born_at < START_S else f"was not ready within {START_S:g} s"
        else:
            why = self.overdue(now)
        if not why and self._resident() > self.memory + _BEYOND:
            why = "went over its memory limit"
        if why:
            self.kill(why)

    def stuck(self, now: float) -> float:
        """Return for how many seconds the worker's note has said the same."""
        number, step = read_note(self._note)
        asked = self.pending.get(number)
        if asked is not None and asked.kind == wire.REASON:
            step = 0  # one judgement has one time, whatever else the worker writes there
        if (number, step) != self._seen:
            self._seen, self._seen_at = (number, step), now
        return now - self._seen_at

    def _resident(self) -> int:
        """Return the worker's resident size in bytes: what RLIMIT_DATA does not count is in it."""
        return resident(self.pid)

    # --- waiting where nobody may await ------------------------------------------------------

    def wait_for(self, asked: Asked, seconds: float) -> None:
        """Return when something is answered; kill the worker if it is not within `seconds`."""
        end, killed = time.monotonic() + seconds, False
        while not asked.future.done():
            if self._later is not None:
                self._later.cancel()
                self.sit()
            self._flush()
            left = end - time.monotonic()
            if left <= 0 and (killed or not self.worker):
                self.pending.pop(asked.number, None)
                asked.fail(WorkerLost(f"the worker of {self.agent} did not start in time"))
                return
            if left <= 0:
                self.kill(f"took longer than {seconds:g} s")
                killed, end, left = True, time.monotonic() + _BURIED_S, _BURIED_S
            self.pool.listen(self._poll, min(left, _LOOK_S))
            self.read()
            self.watch(time.monotonic())

    def _poll(self, waiting: select.poll) -> None:
        if self._line is not None:
            flags = select.POLLIN | (select.POLLOUT if self._rest else 0)
            waiting.register(self._line, flags)

    def close(self) -> None:
        """Hang up, and tell nobody: whoever asked has gone."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        self._hang_up()
        if self._note >= 0:
            os.close(self._note)
            self._note = -1
        self.worker = 0
        for asked in self.pending.values():
            with suppress(RuntimeError):  # the loop is closed
                asked.future.cancel()
        self.pending.clear()


# What every worker shares with the zygote: its resident size counts that too.
_BEYOND = 128 * 1024 * 1024
