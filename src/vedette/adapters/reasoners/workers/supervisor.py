"""The pool: the zygote, and the seats of all agents that have had work."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vedette.adapters.reasoners.workers.confinement import MOST_THREADS, threads
from vedette.adapters.reasoners.workers.fork_server import receive, send
from vedette.adapters.reasoners.workers.fork_server_start import COMMAND, LOCK, Begun
from vedette.adapters.reasoners.workers.sandbox import Box
from vedette.adapters.reasoners.workers.scratch_folder import Scratch
from vedette.adapters.reasoners.workers.worker_handle import Seat
from vedette.config.reach import separate
from vedette.domain.base.errors import BadFleet, Unavailable

# How long a worker may have nothing to do before it is let go, and how many may sit idle at once.
IDLE_S = 300.0
MOST_IDLE = 64
# How long calls that are on their way may take to come back when the fleet ends.
LINGER_S = 0.2
# How many workers a zygote may be asked for before it has come up.
_AHEAD = 64
_TICK_S = 0.05
_SWEEP_S = 1.0

# Told of every worker that did not end by our own wish: (agent, kind, why).
Told = Callable[[str, str, str], None]


class WorkerPool:
    """Worker processes of one engine; their lock lies in `state`. Belongs to one event loop.

    The zygote is started at once, so that it is ready when the first work comes; or it is the one
    that has `begun` before. `ahead` are modules of `vedette` that many workers need.
    Workers enter a box unless `boxed` is false; `closed` are folders of the fleet, see `Box`.
    """

    def __init__(
        self,
        state: Path,
        *,
        command: Sequence[str] = COMMAND,
        idle_s: float = IDLE_S,
        most_idle: int = MOST_IDLE,
        told: Told = lambda agent, kind, why: None,
        begun: Begun | None = None,
        ahead: Sequence[str] = (),
        boxed: bool = True,
        closed: Sequence[Path] = (),
    ) -> None:
        self._state = state
        self._boxed = boxed
        self._closed_to_all = (str(state), *map(str, closed))
        self._ahead = tuple(ahead)
        self._command = tuple(command)
        self._idle_s = idle_s
        self._most_idle = most_idle
        self.told = told
        self._seats: dict[int, Seat] = {}
        self._busy: set[Seat] = set()
        self._worker = 0
        self._tick: asyncio.TimerHandle | None = None
        self._swept = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._ready = False
        self._waiting = False
        self._trouble: Callable[[str], None] = lambda told: None
        self._scratch = Scratch(state)
        self._control: socket.socket | None
        self._control, self._process = (begun or Begun(self._command)).hold(state, self._ahead)

    @property
    def workers(self) -> dict[tuple[str, str], int]:
        """Return the process id of every main worker there is, by agent and kind."""
        main = (seat for seat in self._seats.values() if seat.pid and not seat.apart)
        return {(seat.agent, seat.kind): seat.pid for seat in main}

    def tell(self, trouble: Callable[[str], None]) -> None:
        """Have what a person should see told from now on, and what there is of it at once."""
        self._trouble = trouble
        if self._waiting:
            trouble(self.waits_for())

    def waits_for(self) -> str:
        """Say what keeps all workers from being forked; empty if nothing is known to."""
        if not self._waiting:
            return ""
        path = self._state / LOCK
        return (
            f"{path}: a process that a worker of an earlier run left behind still holds this lock, "
            f"and agents' code waits for it (end that process; `fuser {path}` names it)"
        )

    # --- for seats --------------------------------------------------------------------------

    def start(self, seat: Seat, told: dict[str, Any], descriptors: tuple[int, ...]) -> int:
        """Have a worker forked for a seat; return its number.

        Raises Unavailable once closed; OSError if there is no zygote to be had, or none yet and
        enough is waiting for it: what is sent to one that does not listen keeps the loop.
        """
        if self._closed:
            raise Unavailable("the workers are closed")
        if not self._ready and len(self._seats) >= _AHEAD:
            raise BlockingIOError("the process that starts workers is not ready")
        if self._control is None:
            # The new zygote waits for the lock, which the last of the old workers holds.
            self._control, self._process = Begun(self._command).hold(self._state, self._ahead)
            self._loop = None
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._control, self._hear)
        self._worker += 1
        boxed = self._boxing(told)
        self._seats[self._worker] = seat
        # A zygote that is gone is found where we read; the seat is told there that it ended.
        with contextlib.suppress(OSError):
            send(self._control, {"start": self._worker, **boxed}, descriptors)
        return self._worker

    def _boxing(self, told: dict[str, Any]) -> dict[str, Any]:
        """Return the start message with the box of the next worker in it. Raises OSError."""
        if not self._boxed:
            return {**told, "box": None}
        reaches = told.pop("reaches")
        for folder in reaches.get("write", ()):
            if not separate(folder, map(Path, self._closed_to_all), ()):
                mend = "give the target a folder of its own"
                raise BadFleet("holds files of the fleet itself", where=folder, mend=mend)
        scratch = self._scratch.make(self._worker, told["agent"], told["kind"])
        box = Box(str(scratch), closed=self._closed_to_all, **reaches)
        return {**told, "box": box.to_json()}

    def move(self, worker: int, seat: Seat) -> None:
        """Let a worker sit in another seat."""
        self._seats[worker] = seat

    def kill(self, worker: int) -> None:
        """Have a worker killed."""
        if self._control is not None:
            with contextlib.suppress(OSError):
                send(self._control, {"kill": worker})

    def busy(self, seat: Seat) -> None:
        """Watch a seat until nothing is asked of it."""
        self._busy.add(seat)
        if self._tick is None and not self._closed:
            self._tick = asyncio.get_running_loop().call_later(_TICK_S, self._watch)

    def listen(self, also: Callable[[select.poll], None], seconds: float) -> None:
        """Wait for a word of the zygote, or of who `also` registers, and take the zygote's."""
        waiting = select.poll()
        mine = -1
        if self._control is not None:
            mine = self._control.fileno()
            waiting.register(mine, select.POLLIN)
        also(waiting)
        if any(fd == mine for fd, _ in waiting.poll(max(1, seconds * 1000))):
            self._hear()

    # --- watching ---------------------------------------------------------------------------

    def _watch(self) -> None:
        now = time.monotonic()
        for seat in list(self._busy):
            if seat.pending:
                seat.watch(now)
            else:
                self._busy.discard(seat)
        if now - self._swept > _SWEEP_S:
            self._swept = now
            self._sweep(now)
        idle = not self._busy and not self._seats
        after = _TICK_S if self._busy else _SWEEP_S
        self._tick = None if idle else asyncio.get_running_loop().call_later(after, self._watch)

    def _sweep(self, now: float) -> None:
        """Let workers go that had nothing to do for long, and the longest idle of too many."""
        idle = sorted(
            (seat for seat in self._seats.values() if not seat.pending),
            key=lambda seat: seat.used_at,
        )
        surplus = len(idle) - self._most_idle
        for at, seat in enumerate(idle):
            if at < surplus or now - seat.used_at > self._idle_s:
                # It holds nothing that cannot be had again.
                seat.kill("had nothing to do", charge=False, quiet=True)
            elif threads(seat.pid) > MOST_THREADS:
                seat.kill(f"had more than {MOST_THREADS} threads", charge=False)

    # --- the zygote -------------------------------------------------------------------------

    def _hear(self) -> None:
        # The loop may have planned this before `listen` took the word it was planned for: reading
        # on would keep the loop until the zygote speaks again.
        if self._control is None or not _speaks(self._control):
            return
        try:
            told, _ = receive(self._control)
        except OSError:
            told = None
        if told is None:
            self._lost()
            return
        if "ready" in told:
            self._ready, self._waiting = True, False
            self._scratch.clear()
        elif "waiting" in told:
            self._waiting = True
            self._trouble(self.waits_for())
        if "born" in told:
            seat = self._seats.get(told["born"])
            if seat is not None:
                seat.born(told["pid"])
        elif "ended" in told:
            seat, entered = self._seats.get(told["ended"]), told.get("entered", True)
            if seat is not None and not entered:
                # As good as never born: no agent's code ran, so no event is charged.
                seat.born_at = 0.0
            self._ended(told["ended"], told["how"], charge=entered)

    def _ended(self, worker: int, how: str, *, charge: bool = True) -> None:
        self._scratch.drop(worker)
        seat = self._seats.pop(worker, None)
        if seat is None:
            return
        why = seat.ended(how, charge=charge)
        if why:
            self.told(seat.agent, seat.kind, why)

    def _lost(self) -> None:
        """The zygote ended, and its workers with it. The next start makes another one.

        One that never came up is nobody's fault, and what is asked waits. Else whatever was being
        worked on is charged: agents' code might have ended it.
        """
        assert self._control is not None
        assert self._loop is not None
        self._loop.remove_reader(self._control)
        self._control.close()
        self._control = None
        self._process.kill()
        self._process.wait()
        for seat in self._seats.values():
            if seat.pid:
                # Where the system does not do it by itself.
                with contextlib.suppress(OSError):
                    os.kill(seat.pid, signal.SIGKILL)
        charge, self._ready, self._waiting = self._ready, False, False
        for worker in list(self._seats):
            self._ended(worker, "ended with the process that had started it", charge=charge)

    def close(self) -> None:
        """Hang up on all workers; wait a moment for calls on their way, then kill what is left."""
        if self._hang_up():
            self._wait()

    async def close_beside(self) -> None:
        """Do as `close` does, and wait beside the loop."""
        if self._hang_up():
            await asyncio.to_thread(self._wait)

    def _hang_up(self) -> bool:
        """Hang up on all workers; False if that was done before."""
        if self._closed:
            return False
        self._closed = True
        if self._tick is not None:
            self._tick.cancel()
        for seat in self._seats.values():
            seat.close()
        if self._control is not None:
            with contextlib.suppress(OSError):
                send(self._control, {"linger": LINGER_S})
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._control)
            self._control.close()
        return True

    def _wait(self) -> None:
        """Return once the zygote has ended, and its workers with it."""
        try:
            self._process.wait(LINGER_S + 1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._scratch.drop_all()


def _speaks(control: socket.socket) -> bool:
    """Say whether reading would give something at once: a word, or the end."""
    waiting = select.poll()
    waiting.register(control, select.POLLIN)
    return bool(waiting.poll(0))
