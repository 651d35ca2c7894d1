"""The engine's handle of one agent's worker, with the calls that it has not answered yet.

It has at most one worker at a time: the next one is forked only after the fork server has reaped
the last one. Pending calls stay with the handle, so a worker's death loses nothing: who waits for
what it was working on learns of it, every other call is sent again to the next worker.
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
    read_begun_calls,
    read_progress,
    resident_bytes,
    thread_count,
)
from vedette.adapters.reasoners.workers.frames import MAX_FRAME_BYTES, BadFrame, Frame, FrameDecoder
from vedette.adapters.reasoners.workers.pending_call import PendingCall, WorkerLost
from vedette.adapters.reasoners.workers.remote_error import Raised
from vedette.domain.base.errors import Unavailable

_READ = 262144
_POLL_INTERVAL_S = 0.05
# How long a killed worker may take to be seen dead, where the loop waits for it.
_KILL_TIMEOUT_S = 2.0


class WorkerHandle:
    """The handle of an agent's worker of a kind. `seconds` bounds a call, `memory` is in bytes."""

    kind = ""
    # Beside its agent's main handle, for the question of a key that takes long or ends workers.
    is_secondary = False
    # Called for a worker whose question keeps others waiting. Where a handle has it,
    # a question that ended a worker goes to another handle next time, too.
    on_stall: Callable[[Any, list[PendingCall]], None] | None = None

    def __init__(
        self, pool: worker_start.Pool[WorkerHandle], agent: str, seconds: float, memory: int
    ) -> None:
        self.pool = pool
        self.agent = agent
        self.seconds = seconds
        self.memory = memory
        self.pending: dict[int, PendingCall] = {}
        self.worker_number = 0  # the pool's number for it; 0 while there is none
        self.pid = 0
        self.used_at = time.monotonic()
        self.started_at = 0.0
        self.is_ready = False
        self._number = 0
        self._kill_reason = ""
        self._charge = True
        self._quiet = False
        self._failures = 0
        self._start_timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._socket: socket.socket | None = None
        self._progress_fd = -1
        self._frames = FrameDecoder(MAX_FRAME_BYTES)
        self._outgoing: list[bytes] = []
        self._unsent = b""
        self._flush_pending = False
        self._has_writer = False
        self._last_progress: tuple[int, int] = (0, 0)
        # What the worker that ended last wrote down of the calls that it began.
        self._has_begun: Callable[[int], bool] = lambda number: True
        self._progress_at = 0.0
        self._waiting_since = 0.0  # since when a call has waited for a worker to start
        self._start_error = ""  # why the last one could not be forked

    # --- for the kinds to say ---------------------------------------------------------------

    def make_message(self) -> bytes:
        """Return the frame with which a new worker is made."""
        raise NotImplementedError

    def sandbox_reach(self) -> dict[str, Any]:
        """Return what a worker may reach, by `Sandbox`'s fields; called after `make_message`."""
        raise NotImplementedError

    def on_answer(self, frame: Frame, call: PendingCall) -> None:
        """Take an answer. Raises BadFrame if it is none."""
        raise NotImplementedError

    def on_loss(self, culprit: PendingCall | None, why: str) -> None:
        """Settle the calls that the next worker cannot get; `culprit` was being worked on."""
        raise NotImplementedError

    def fail_calls(self, error: Exception) -> None:
        """Raise an error in all pending calls: there will be no worker for them."""
        for call in self.pending.values():
            call.fail(error)
            if not call.future.cancelled():
                call.future.exception()  # nobody need wait for it
        self.pending.clear()

    def on_pong(self) -> None:
        """The worker has answered a ping."""

    def on_name_query(self, frame: Frame) -> None:
        """The worker asks for the addresses of a host. Raises BadFrame if it may not."""
        raise BadFrame("a question that this worker has no use for")

    def overdue_reason(self, now: float) -> str:
        """Say why the worker is to be killed now; empty if it is not."""
        raise NotImplementedError

    # --- calls ------------------------------------------------------------------------------

    def next_number(self) -> int:
        """Return a number for the next call; 0 is for what nobody waits for."""
        self._number = self._number % 0xFFFF_FFF0 + 1
        return self._number

    def submit(self, call: PendingCall) -> None:
        """Take up a call, and send it once there is a worker.

        Raises TypeError if it is no plain data.
        """
        now = self.used_at = time.monotonic()
        if not self.pending:
            self._progress_at = self._waiting_since = now
        if self._socket is not None:
            self.send(call.build_frame())
            self.pending[call.number] = call
        else:
            call.build_frame()
            self.pending[call.number] = call
            if not self.worker_number and self._start_timer is None:
                self.start_worker()
        self.pool.watch(self)

    def send(self, data: bytes) -> None:
        """Send bytes with all else that is sent before the loop turns."""
        if self._socket is None:
            return
        self._outgoing.append(data)
        self._schedule_flush()

    def _schedule_flush(self) -> None:
        if not self._flush_pending:
            self._flush_pending = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_pending = False
        connection = self._socket
        if connection is None or not (self._outgoing or self._unsent):
            return
        data = self._unsent + b"".join(self._outgoing)
        self._outgoing.clear()
        try:
            sent = connection.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(data)  # it hung up: that is seen where we read
        self._unsent = data[sent:]
        if bool(self._unsent) != self._has_writer:
            self._has_writer = bool(self._unsent)
            loop = asyncio.get_running_loop()
            if self._has_writer:
                loop.add_writer(connection, self._flush)
            else:
                loop.remove_writer(connection)

    # --- a worker's life --------------------------------------------------------------------

    def start_worker(self) -> None:
        """Have a new worker forked and send it all pending calls.

        Nothing is raised here, since this is called by the clock too: calls wait where the machine
        is short of something, and fail otherwise.
        """
        self._start_timer = None
        try:
            frame = self.make_message()
            message = {"kind": self.kind, "agent": self.agent, "memory": self.memory}
            message["reaches"] = self.sandbox_reach()
            ours, self._progress_fd, self.worker_number = worker_start.fork_worker(
                self.pool, self, message
            )
        except OSError as error:
            self._start_error = str(error)
            self._failures += 1
            if self.pending:
                self._schedule_start()
        except Unavailable as error:
            self.fail_calls(error)
        except Exception as error:
            why = f"no worker of {self.agent} can be made: {type(error).__name__}: {error}"
            self.fail_calls(WorkerLost(why))
        else:
            self._attach_worker(ours, frame)

    def _schedule_start(self) -> None:
        """Have the next worker forked: the later, the more often it went wrong in a row."""
        wait = worker_start.backoff_s(self._failures)
        self._start_timer = asyncio.get_running_loop().call_later(wait, self.start_worker)

    def _attach_worker(self, ours: socket.socket, frame: bytes) -> None:
        """Send the new worker all pending calls."""
        ours.setblocking(False)
        self._socket, self._frames = ours, FrameDecoder(MAX_FRAME_BYTES)
        self._kill_reason, self._charge, self._quiet = "", True, False
        self.is_ready, self.pid, self.started_at, self._start_error = False, 0, 0.0, ""
        self._outgoing, self._unsent, self._has_writer = [], b"", False
        self._last_progress, self._progress_at = (0, 0), time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(ours, self.read)
        self.reset()
        self.send(frame)
        for call in self.pending.values():
            self.send(call.build_frame())  # was written before, so it is plain data

    def reset(self) -> None:
        """Forget what the last worker had been sent."""

    def on_started(self, pid: int) -> None:
        """The fork server has forked the worker: its time begins."""
        self.pid = pid
        self.started_at = self._progress_at = time.monotonic()

    def read(self) -> None:
        """Take what the worker has sent."""
        while self._socket is not None:
            try:
                data = self._socket.recv(_READ)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._disconnect()
                self.pool.kill(self.worker_number)
                return
            try:
                for frame in self._frames.feed(data):
                    self._process_guarded(frame)
            except BadFrame as error:
                self.kill(f"sent garbage: {error}")
            if len(data) < _READ:
                return

    def _process_guarded(self, frame: Frame) -> None:
        """Take a frame; whatever it breaks here breaks its own question only. Raises BadFrame."""
        call = self.pending.get(frame.number)
        try:
            self._process_frame(frame)
        except BadFrame:
            raise
        except Exception as error:
            why = f"sent garbage: {type(error).__name__}: {error}"
            if call is not None:
                self.pending.pop(call.number, None)
                call.fail(Raised(f"the worker of {self.agent} {why}"))
            # The call at fault has failed already, if it is known which that was.
            self.kill(why, charge=call is None)
            raise BadFrame(why) from error

    def _process_frame(self, frame: Frame) -> None:
        self._progress_at = time.monotonic()
        if frame.number == 0 and frame.kind in (protocol.DONE, protocol.FAILED):
            # Code that fails to load says so again to everyone who asks something of it.
            self.is_ready = True
            return
        if frame.number == 0 and frame.kind == protocol.PONG:
            self.on_pong()
            return
        if frame.number == 0 and frame.kind == protocol.NAME_QUERY:
            self.on_name_query(frame)
            return
        call = self.pending.get(frame.number)
        if call is None:
            if self.is_secondary:
                return  # what it had before the handover is sent again to another worker
            raise BadFrame("an answer to what nobody asked")
        if frame.kind in (protocol.DONE, protocol.NEEDS_STATE):
            self._failures = 0
        self.on_answer(frame, call)

    def remove(self, call: PendingCall) -> None:
        """Strike off what has been answered."""
        del self.pending[call.number]
        self.used_at = self._progress_at

    def kill(self, why: str, *, charge: bool = True, quiet: bool = False) -> None:
        """End the worker now. Whatever it is at is charged with it, unless `charge` is false.

        `quiet` is for an end that is nobody's trouble.
        """
        if self.worker_number and not self._kill_reason:
            self._kill_reason, self._charge, self._quiet = why, charge, quiet
            self._disconnect()
            self.pool.kill(self.worker_number)

    def hand_over(self, other: WorkerHandle, calls: list[PendingCall]) -> None:
        """Hand the worker and what it is at to another handle; a new one here gets the rest."""
        assert self._socket is not None
        assert self._loop is not None
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        other._adopt(self)
        for one in calls:
            del self.pending[one.number]
            other.pending[one.number] = one
        self._socket, self._progress_fd, self.worker_number, self.pid, self.started_at = (
            None,
            -1,
            0,
            0,
            0.0,
        )
        self._waiting_since = time.monotonic()
        self.pool.reassign(other.worker_number, other)
        other.pool.watch(other)
        self.on_loss(None, "")
        if self.pending:
            self.start_worker()

    def _adopt(self, source: WorkerHandle) -> None:
        self._socket, self._progress_fd, self._loop = (
            source._socket,
            source._progress_fd,
            source._loop,
        )
        self.worker_number, self.pid, self.started_at, self.is_ready = (
            source.worker_number,
            source.pid,
            source.started_at,
            source.is_ready,
        )
        self._kill_reason, self._charge, self._quiet = (
            source._kill_reason,
            source._charge,
            source._quiet,
        )
        self._frames, self._last_progress, self._progress_at = (
            source._frames,
            source._last_progress,
            source._progress_at,
        )
        self._number, self._unsent = source._number, b""
        assert self._socket is not None
        assert self._loop is not None
        self._loop.add_reader(self._socket, self.read)

    def _disconnect(self) -> None:
        if self._socket is not None:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._socket)
                self._loop.remove_writer(self._socket)
            self._socket.close()
            self._socket = None

    def on_exit(self, reason: str, *, charge: bool = True, reaped: bool = True) -> str:
        """The worker is dead. Settle its affairs; return why it died, empty if that is quiet.

        Unless it was `reaped` it may write for a moment yet, so all its calls count as begun.
        """
        if not self._kill_reason:
            self.read()
        self._disconnect()
        why = self._kill_reason or reason
        # One that never started was at nothing.
        at = (
            read_progress(self._progress_fd)[0]
            if charge and self._charge and self.started_at
            else -1
        )
        culprit = self._find_culprit(at) if at >= 0 else None
        self._has_begun = read_begun_calls(self._progress_fd if reaped else None)
        os.close(self._progress_fd)
        if self.started_at:
            self._waiting_since = time.monotonic()
        else:
            self._start_error = why
        self._progress_fd, self.worker_number, self.pid, self.started_at = -1, 0, 0, 0.0
        # If it is known what ended it, another worker gets that next time: others go on at once.
        known = culprit is not None and self.pending.get(at) is culprit
        self._failures += not self._quiet and not (known and self.on_stall is not None)
        self.on_loss(culprit, why)
        if self.pending:
            self._schedule_start()
        return "" if self._quiet else why

    def _find_culprit(self, number: int) -> PendingCall | None:
        """Return the call the worker was at when it died; the oldest one if it does not say.

        Somebody has to be charged, or a worker that always dies would be forked for ever.
        """
        return self.pending.get(number) or next(iter(self.pending.values()), None)

    # --- watching ---------------------------------------------------------------------------

    def check_limits(self, now: float) -> None:
        """Kill the worker if what it is at takes too long. What it has answered is read first."""
        if self.pending and not self.started_at:
            if now - self._waiting_since > worker_start.WORKER_WAIT_S:
                self._report_no_worker()
            return
        if not (self.worker_number and self.started_at and self.pending) or self._kill_reason:
            return
        self.read()
        if not (self._socket is not None and self.pending):
            return
        if not self.is_ready:
            is_overdue = now - self.started_at >= worker_start.START_S
            why = f"was not ready within {worker_start.START_S:g} s" if is_overdue else ""
        else:
            why = self.overdue_reason(now)
        if not why and self._resident_bytes() > self.memory + _SHARED_BYTES:
            why = "went over its memory limit"
        if not why and thread_count(self.pid) > MOST_THREADS:
            why = f"had more than {MOST_THREADS} threads"
        if why:
            self.kill(why)

    def _report_no_worker(self) -> None:
        """Fail all pending calls since no worker came; the next call waits anew."""
        why = self.pool.block_reason() or self._start_error or "it is not known why"
        what = f"no worker of {self.agent} came up within {worker_start.WORKER_WAIT_S:g} s: {why}"
        # It would answer calls that are no longer pending. Should it still start, it finds no peer.
        self.kill("came up too late", charge=False, quiet=True)
        if self._start_timer is not None:
            self._start_timer.cancel()
            self._start_timer = None
        self.fail_calls(Unavailable(what))

    def stalled_s(self, now: float) -> float:
        """Return for how many seconds the worker's progress has not changed."""
        number, step = read_progress(self._progress_fd)
        call = self.pending.get(number)
        if call is not None and call.kind == protocol.REASON:
            step = 0  # one judgement has one time, whatever else the worker writes there
        if (number, step) != self._last_progress:
            self._last_progress, self._progress_at = (number, step), now
        return now - self._progress_at

    def _resident_bytes(self) -> int:
        """Return the worker's resident size in bytes: what RLIMIT_DATA does not count is in it."""
        return resident_bytes(self.pid)

    # --- waiting where nobody may await ------------------------------------------------------

    def wait_for(self, call: PendingCall, seconds: float) -> None:
        """Return when something is answered; kill the worker if it is not within `seconds`."""
        end, killed = time.monotonic() + seconds, False
        while not call.future.done():
            if self._start_timer is not None:
                self._start_timer.cancel()
                self.start_worker()
            self._flush()
            left = end - time.monotonic()
            if left <= 0 and (killed or not self.worker_number):
                self.pending.pop(call.number, None)
                call.fail(WorkerLost(f"the worker of {self.agent} did not start in time"))
                return
            if left <= 0:
                self.kill(f"took longer than {seconds:g} s")
                killed, end, left = True, time.monotonic() + _KILL_TIMEOUT_S, _KILL_TIMEOUT_S
            self.pool.poll(self._register, min(left, _POLL_INTERVAL_S))
            self.read()
            self.check_limits(time.monotonic())

    def _register(self, poller: select.poll) -> None:
        if self._socket is not None:
            flags = select.POLLIN | (select.POLLOUT if self._unsent else 0)
            poller.register(self._socket, flags)

    def close(self) -> None:
        """Hang up and cancel all calls: their callers have gone."""
        if self._start_timer is not None:
            self._start_timer.cancel()
            self._start_timer = None
        self._disconnect()
        if self._progress_fd >= 0:
            os.close(self._progress_fd)
            self._progress_fd = -1
        self.worker_number = 0
        for call in self.pending.values():
            with suppress(RuntimeError):  # the loop is closed
                call.future.cancel()
        self.pending.clear()


# What every worker shares with the fork server: its resident size counts that too.
_SHARED_BYTES = 128 * 1024 * 1024
