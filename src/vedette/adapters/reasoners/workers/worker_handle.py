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
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from vedette.adapters.reasoners.workers import protocol, worker_start
from vedette.adapters.reasoners.workers.confinement import (
    MOST_THREADS,
    read_note,
    resident,
    threads,
)
from vedette.adapters.reasoners.workers.frames import MOST, BadFrame, Frame, Frames
from vedette.adapters.reasoners.workers.pending_call import Asked, WorkerLost
from vedette.adapters.reasoners.workers.remote_error import Raised
from vedette.domain.base.errors import Unavailable

_READ = 262144
_LOOK_S = 0.05
# How long a killed worker may take to be seen dead, where the loop waits for it.
_BURIED_S = 2.0


class Seat:
    """One agent's worker of one kind. `seconds` bounds one call, `memory` is in bytes."""

    kind = ""
    # Beside its agent's main seat, for the question of a key that takes long or ends workers.
    apart = False
    # Told of a worker whose question keeps others waiting. Whose seat has it is also one that asks
    # whatever ended a worker elsewhere next time.
    step_aside: Callable[[Any, list[Asked]], None] | None = None

    def __init__(
        self, pool: worker_start.Pool[Seat], agent: str, seconds: float, memory: int
    ) -> None:
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
        self._unborn_at = 0.0  # since when something has waited for a worker's birth
        self._unmade = ""  # why the last one could not be forked

    # --- for the kinds to say ---------------------------------------------------------------

    def making(self) -> bytes:
        """Return the words with which a new worker is made."""
        raise NotImplementedError

    def reaches(self) -> dict[str, Any]:
        """Return what a worker may reach, by the fields of `Box`; asked after `making`."""
        raise NotImplementedError

    def taken(self, frame: Frame, asked: Asked) -> None:
        """Take an answer. Raises BadFrame if it is none."""
        raise NotImplementedError

    def lost(self, guilty: Asked | None, why: str) -> None:
        """Settle what cannot be asked of the next worker; `guilty` was being worked on."""
        raise NotImplementedError

    def unborn(self, error: Exception) -> None:
        """Raise an error in all that is asked: there will be no worker for it."""
        for asked in self.pending.values():
            asked.fail(error)
            if not asked.future.cancelled():
                asked.future.exception()  # nobody need wait for it
        self.pending.clear()

    def pong(self) -> None:
        """The worker has answered a ping."""

    def name_asked(self, frame: Frame) -> None:
        """The worker asks for the addresses of a host. Raises BadFrame if it may not."""
        raise BadFrame("a question that this worker has no use for")

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
            self._seen_at = self._unborn_at = now
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
        """Let a new worker be forked and ask it all that is not answered.

        Nothing is raised here, since this is called by the clock too: what is asked waits where
        the machine is short of something, and else whoever asked is told.
        """
        self._later = None
        try:
            words = self.making()
            told = {"kind": self.kind, "agent": self.agent, "memory": self.memory}
            told["reaches"] = self.reaches()
            ours, self._note, self.worker = worker_start.fork(self.pool, self, told)
        except OSError as error:
            self._unmade = str(error)
            self._deaths += 1
            if self.pending:
                self._sit_later()
        except Unavailable as error:
            self.unborn(error)
        except Exception as error:
            why = f"no worker of {self.agent} can be made: {type(error).__name__}: {error}"
            self.unborn(WorkerLost(why))
        else:
            self._begin(ours, words)

    def _sit_later(self) -> None:
        """Have the next worker forked: the later, the more often it went wrong in a row."""
        wait = worker_start.wait_s(self._deaths)
        self._later = asyncio.get_running_loop().call_later(wait, self.sit)

    def _begin(self, ours: socket.socket, words: bytes) -> None:
        """Ask the new worker all that is not answered."""
        ours.setblocking(False)
        self._line, self._frames = ours, Frames(MOST)
        self._why, self._charge, self._quiet = "", True, False
        self.made, self.pid, self.born_at, self._unmade = False, 0, 0.0, ""
        self._out, self._rest, self._writing = [], b"", False
        self._seen, self._seen_at = (0, 0), time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(ours, self.read)
        self.fresh()
        self.send(words)
        for asked in self.pending.values():
            self.send(asked.frame())  # was written before, so it is plain data

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
                    self._take_safely(frame)
            except BadFrame as error:
                self.kill(f"sent garbage: {error}")
            if len(data) < _READ:
                return

    def _take_safely(self, frame: Frame) -> None:
        """Take a frame; whatever it breaks here breaks its own question only. Raises BadFrame."""
        asked = self.pending.get(frame.number)
        try:
            self._take(frame)
        except BadFrame:
            raise
        except Exception as error:
            why = f"sent garbage: {type(error).__name__}: {error}"
            if asked is not None:
                self.pending.pop(asked.number, None)
                asked.fail(Raised(f"the worker of {self.agent} {why}"))
            # Whoever was at fault is told already, if it is known who that was.
            self.kill(why, charge=asked is None)
            raise BadFrame(why) from error

    def _take(self, frame: Frame) -> None:
        self._seen_at = time.monotonic()
        if frame.number == 0 and frame.kind in (protocol.DONE, protocol.FAILED):
            # Code that fails to load says so again to everyone who asks something of it.
            self.made = True
            return
        if frame.number == 0 and frame.kind == protocol.PONG:
            self.pong()
            return
        if frame.number == 0 and frame.kind == protocol.NAME:
            self.name_asked(frame)
            return
        asked = self.pending.get(frame.number)
        if asked is None:
            if self.apart:
                return  # what it was asked before it was left here is asked again of another one
            raise BadFrame("an answer to what nobody asked")
        if frame.kind in (protocol.DONE, protocol.NEEDS_STATE):
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

    def leave_to(self, other: Seat, asked: list[Asked]) -> None:
        """Let another seat wait for what the worker is at; a fresh one here is asked the rest."""
        assert self._line is not None
        assert self._loop is not None
        self._loop.remove_reader(self._line)
        self._loop.remove_writer(self._line)
        other._take_over(self)
        for one in asked:
            del self.pending[one.number]
            other.pending[one.number] = one
        self._line, self._note, self.worker, self.pid, self.born_at = None, -1, 0, 0, 0.0
        self._unborn_at = time.monotonic()
        self.pool.move(other.worker, other)
        other.pool.busy(other)
        self.lost(None, "")
        if self.pending:
            self.sit()

    def _take_over(self, of: Seat) -> None:
        self._line, self._note, self._loop = of._line, of._note, of._loop
        self.worker, self.pid, self.born_at, self.made = of.worker, of.pid, of.born_at, of.made
        self._why, self._charge, self._quiet = of._why, of._charge, of._quiet
        self._frames, self._seen, self._seen_at = of._frames, of._seen, of._seen_at
        self._number, self._rest = of._number, b""
        assert self._line is not None
        assert self._loop is not None
        self._loop.add_reader(self._line, self.read)

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
        # One that was never born was at nothing.
        at = read_note(self._note)[0] if charge and self._charge and self.born_at else -1
        guilty = self._guilty(at) if at >= 0 else None
        os.close(self._note)
        if self.born_at:
            self._unborn_at = time.monotonic()
        else:
            self._unmade = why
        self._note, self.worker, self.pid, self.born_at = -1, 0, 0, 0.0
        # If it is known who ended it, that is asked of another one next time: others go on at once.
        known = guilty is not None and self.pending.get(at) is guilty
        self._deaths += not self._quiet and not (known and self.step_aside is not None)
        self.lost(guilty, why)
        if self.pending:
            self._sit_later()
        return "" if self._quiet else why

    def _guilty(self, number: int) -> Asked | None:
        """Return what the worker was at when it died; what it was asked first if it does not say.

        Somebody has to be charged, or a worker that always dies would be forked for ever.
        """
        return self.pending.get(number) or next(iter(self.pending.values()), None)

    # --- watching ---------------------------------------------------------------------------

    def watch(self, now: float) -> None:
        """Kill the worker if what it is at takes too long. What it has answered is read first."""
        if self.pending and not self.born_at:
            if now - self._unborn_at > worker_start.BIRTH_S:
                self._give_up()
            return
        if not (self.worker and self.born_at and self.pending) or self._why:
            return
        self.read()
        if not (self._line is not None and self.pending):
            return
        if not self.made:
            late = now - self.born_at >= worker_start.START_S
            why = f"was not ready within {worker_start.START_S:g} s" if late else ""
        else:
            why = self.overdue(now)
        if not why and self._resident() > self.memory + _BEYOND:
            why = "went over its memory limit"
        if not why and threads(self.pid) > MOST_THREADS:
            why = f"had more than {MOST_THREADS} threads"
        if why:
            self.kill(why)

    def _give_up(self) -> None:
        """Tell whoever asked that no worker came; the next who asks waits anew."""
        why = self.pool.waits_for() or self._unmade or "it is not known why"
        told = f"no worker of {self.agent} came up within {worker_start.BIRTH_S:g} s: {why}"
        # It would answer what nobody asks any more. Should it be born yet, it finds nobody there.
        self.kill("came up too late", charge=False, quiet=True)
        if self._later is not None:
            self._later.cancel()
            self._later = None
        self.unborn(Unavailable(told))

    def stuck(self, now: float) -> float:
        """Return for how many seconds the worker's note has said the same."""
        number, step = read_note(self._note)
        asked = self.pending.get(number)
        if asked is not None and asked.kind == protocol.REASON:
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
