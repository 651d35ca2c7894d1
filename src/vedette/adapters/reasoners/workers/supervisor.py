"""The pool of workers: the fork server, and the handles of all agents that have had work."""

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

from vedette.adapters.reasoners.workers.confinement import MOST_THREADS, thread_count
from vedette.adapters.reasoners.workers.fork_server import (
    receive_control_message,
    send_control_message,
)
from vedette.adapters.reasoners.workers.fork_server_start import COMMAND, LOCK, ForkServerProcess
from vedette.adapters.reasoners.workers.sandbox import Sandbox
from vedette.adapters.reasoners.workers.scratch_folder import ScratchFolders
from vedette.adapters.reasoners.workers.worker_handle import WorkerHandle
from vedette.config.reach import is_separate
from vedette.domain.base.errors import BadFleet, Unavailable

# How long a worker may have nothing to do before it is let go, and how many may be idle at once.
IDLE_S = 300.0
MOST_IDLE = 64
# How long calls that are on their way may take to come back when the fleet ends.
LINGER_S = 0.2
# How many workers may be requested of a fork server before it has come up.
_MAX_QUEUED = 64
_TICK_S = 0.05
_SWEEP_S = 1.0

# Called for every worker that did not end by our own wish: (agent, kind, why).
OnWorkerLost = Callable[[str, str, str], None]


class WorkerPool:
    """The pool of forked worker processes; their lock lies in `state`. Belongs to one event loop.

    The fork server is started at once, so that it is ready when the first work comes; or it is
    `fork_server`, which was started before. `preload` are modules of `vedette` that many workers
    need. Workers enter a box unless `sandboxed` is false; `closed_folders` are folders of the
    fleet, see `Sandbox`.
    """

    def __init__(
        self,
        state: Path,
        *,
        command: Sequence[str] = COMMAND,
        idle_s: float = IDLE_S,
        most_idle: int = MOST_IDLE,
        on_worker_lost: OnWorkerLost = lambda agent, kind, why: None,
        fork_server: ForkServerProcess | None = None,
        preload: Sequence[str] = (),
        sandboxed: bool = True,
        closed_folders: Sequence[Path] = (),
    ) -> None:
        self._state = state
        self._sandboxed = sandboxed
        self._closed_folders = (str(state), *map(str, closed_folders))
        self._preload = tuple(preload)
        self._command = tuple(command)
        self._idle_s = idle_s
        self._most_idle = most_idle
        self.on_worker_lost = on_worker_lost
        self._handles: dict[int, WorkerHandle] = {}
        self._busy_handles: set[WorkerHandle] = set()
        self._last_number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._swept_at = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._is_ready = False
        self._waits_for_lock = False
        self._on_trouble: Callable[[str], None] = lambda message: None
        self._scratch = ScratchFolders(state)
        self._control: socket.socket | None
        self._control, self._process = (fork_server or ForkServerProcess(self._command)).assign(
            state, self._preload
        )

    @property
    def worker_pids(self) -> dict[tuple[str, str], int]:
        """Return the process id of every main worker there is, by agent and kind."""
        main = (
            handle for handle in self._handles.values() if handle.pid and not handle.is_secondary
        )
        return {(handle.agent, handle.kind): handle.pid for handle in main}

    def set_trouble_callback(self, trouble: Callable[[str], None]) -> None:
        """Call `trouble` with what a person should see, at once if there is something already."""
        self._on_trouble = trouble
        if self._waits_for_lock:
            trouble(self.block_reason())

    def block_reason(self) -> str:
        """Say what keeps all workers from being forked; empty if nothing is known to."""
        if not self._waits_for_lock:
            return ""
        path = self._state / LOCK
        return (
            f"{path}: a process that a worker of an earlier run left behind still holds this lock, "
            f"and agents' code waits for it (end that process; `fuser {path}` names it)"
        )

    # --- for worker handles -----------------------------------------------------------------

    def start(
        self, handle: WorkerHandle, message: dict[str, Any], descriptors: tuple[int, ...]
    ) -> int:
        """Have a worker forked for a handle; return its number.

        Raises Unavailable once closed; OSError if no fork server can be started, or none is ready
        and enough is waiting for it: what is sent to one that does not listen keeps the loop.
        """
        if self._closed:
            raise Unavailable("the workers are closed")
        if not self._is_ready and len(self._handles) >= _MAX_QUEUED:
            raise BlockingIOError("the process that starts workers is not ready")
        if self._control is None:
            # The new fork server waits for the lock, which the last of the old workers holds.
            self._control, self._process = ForkServerProcess(self._command).assign(
                self._state, self._preload
            )
            self._loop = None
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._control, self._on_message)
        self._last_number += 1
        start_message = self._add_sandbox(message)
        self._handles[self._last_number] = handle
        # A fork server that is gone is found where we read; the handle's `on_exit` is called there.
        with contextlib.suppress(OSError):
            send_control_message(
                self._control, {"start": self._last_number, **start_message}, descriptors
            )
        return self._last_number

    def _add_sandbox(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the start message with the box of the next worker in it. Raises OSError."""
        if not self._sandboxed:
            return {**message, "box": None}
        reaches = message.pop("reaches")
        for folder in reaches.get("write", ()):
            if not is_separate(folder, map(Path, self._closed_folders), ()):
                mend = "give the target a folder of its own"
                raise BadFleet("holds files of the fleet itself", where=folder, mend=mend)
        scratch = self._scratch.create(self._last_number, message["agent"], message["kind"])
        sandbox = Sandbox(str(scratch), closed=self._closed_folders, **reaches)
        return {**message, "box": sandbox.to_json()}

    def reassign(self, worker: int, handle: WorkerHandle) -> None:
        """Move a worker to another handle."""
        self._handles[worker] = handle

    def kill(self, worker: int) -> None:
        """Have a worker killed."""
        if self._control is not None:
            with contextlib.suppress(OSError):
                send_control_message(self._control, {"kill": worker})

    def watch(self, handle: WorkerHandle) -> None:
        """Watch a handle until it has no pending call."""
        self._busy_handles.add(handle)
        if self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._check_handles)

    def poll(self, register: Callable[[select.poll], None], seconds: float) -> None:
        """Wait for the fork server, or what `register` adds; take the server's message."""
        poller = select.poll()
        mine = -1
        if self._control is not None:
            mine = self._control.fileno()
            poller.register(mine, select.POLLIN)
        register(poller)
        if any(fd == mine for fd, _ in poller.poll(max(1, seconds * 1000))):
            self._on_message()

    # --- watching ---------------------------------------------------------------------------

    def _check_handles(self) -> None:
        now = time.monotonic()
        for handle in list(self._busy_handles):
            if handle.pending:
                handle.check_limits(now)
            else:
                self._busy_handles.discard(handle)
        if now - self._swept_at > _SWEEP_S:
            self._swept_at = now
            self._sweep(now)
        idle = not self._busy_handles and not self._handles
        after = _TICK_S if self._busy_handles else _SWEEP_S
        self._timer = (
            None if idle else asyncio.get_running_loop().call_later(after, self._check_handles)
        )

    def _sweep(self, now: float) -> None:
        """Let workers go that had nothing to do for long, and the longest idle of too many."""
        idle = sorted(
            (handle for handle in self._handles.values() if not handle.pending),
            key=lambda handle: handle.used_at,
        )
        surplus = len(idle) - self._most_idle
        for at, handle in enumerate(idle):
            if at < surplus or now - handle.used_at > self._idle_s:
                # It holds nothing that cannot be had again.
                handle.kill("had nothing to do", charge=False, quiet=True)
            elif thread_count(handle.pid) > MOST_THREADS:
                handle.kill(f"had more than {MOST_THREADS} threads", charge=False)

    # --- the fork server --------------------------------------------------------------------

    def _on_message(self) -> None:
        # The loop may have planned this before `poll` took the message it was planned for: reading
        # on would keep the loop until the fork server sends another.
        if self._control is None or not _is_readable(self._control):
            return
        try:
            message, _ = receive_control_message(self._control)
        except OSError:
            message = None
        if message is None:
            self._on_server_exit()
            return
        if "ready" in message:
            self._is_ready, self._waits_for_lock = True, False
            self._scratch.remove_leftovers()
        elif "waiting" in message:
            self._waits_for_lock = True
            self._on_trouble(self.block_reason())
        if "born" in message:
            handle = self._handles.get(message["born"])
            if handle is not None:
                handle.on_started(message["pid"])
        elif "ended" in message:
            handle, entered = self._handles.get(message["ended"]), message.get("entered", True)
            if handle is not None and not entered:
                # As good as never started: no agent's code ran, so no event is charged.
                handle.started_at = 0.0
            self._on_worker_exit(message["ended"], message["how"], charge=entered)

    def _on_worker_exit(
        self, worker: int, reason: str, *, charge: bool = True, reaped: bool = True
    ) -> None:
        self._scratch.remove(worker)
        handle = self._handles.pop(worker, None)
        if handle is None:
            return
        why = handle.on_exit(reason, charge=charge, reaped=reaped)
        if why:
            self.on_worker_lost(handle.agent, handle.kind, why)

    def _on_server_exit(self) -> None:
        """The fork server ended, and its workers with it. The next start makes another one.

        One that never came up is nobody's fault, and calls wait. Else whatever was being
        worked on is charged: agents' code might have ended it.
        """
        assert self._control is not None
        assert self._loop is not None
        self._loop.remove_reader(self._control)
        self._control.close()
        self._control = None
        self._process.kill()
        self._process.wait()
        for handle in self._handles.values():
            if handle.pid:
                # Where the system does not do it by itself.
                with contextlib.suppress(OSError):
                    os.kill(handle.pid, signal.SIGKILL)
        charge, self._is_ready, self._waits_for_lock = self._is_ready, False, False
        for worker in list(self._handles):
            self._on_worker_exit(
                worker, "ended with the process that had started it", charge=charge, reaped=False
            )

    def close(self) -> None:
        """Hang up on all workers; wait a moment for calls on their way, then kill what is left."""
        if self._disconnect():
            self._wait()

    async def close_async(self) -> None:
        """Do as `close` does, and wait beside the loop."""
        if self._disconnect():
            await asyncio.to_thread(self._wait)

    def _disconnect(self) -> bool:
        """Hang up on all workers; False if that was done before."""
        if self._closed:
            return False
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for handle in self._handles.values():
            handle.close()
        if self._control is not None:
            with contextlib.suppress(OSError):
                send_control_message(self._control, {"linger": LINGER_S})
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._control)
            self._control.close()
        return True

    def _wait(self) -> None:
        """Return once the fork server has ended, and its workers with it."""
        try:
            self._process.wait(LINGER_S + 1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._scratch.remove_all()


def _is_readable(control: socket.socket) -> bool:
    """Say whether reading would give something at once: a message, or the end."""
    poller = select.poll()
    poller.register(control, select.POLLIN)
    return bool(poller.poll(0))
