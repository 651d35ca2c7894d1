"""The fork server: one clean, single-threaded process that forks workers when the engine asks.

It is started before the engine has threads, files or keys, so a fork copies none of them. It holds
a lock of the state folder, and so does every worker: a fork server that finds it taken waits until
all workers of an earlier engine are dead, so none of their calls is still under way when the next
engine asks the targets about them. A program that agents' code runs does not get the lock: one
that is left behind would keep the next engine waiting. When the engine ends, in whatever way, its
workers are killed.

Control messages, both ways, are a length (u32) and JSON: `lock` (with the lock, and what to import
`ahead` of the first fork), then `start` (with the worker's socket and progress file), `kill`,
`linger` in; `waiting`, `ready`, `born`, `ended` out.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import gc
import os
import select
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from vedette.adapters.reasoners.workers.sandbox import (
    NOT_ENTERED,
    Sandbox,
    keep_orphans,
    prepare_sandbox,
)

_LENGTH = struct.Struct("<I")
# How long without a new worker until what most judges import is imported ahead.
_PRELOAD_AFTER_S = 1.0
# How long the lock may be taken before we report to the engine that we wait for it.
_REPORT_AFTER_S = 1.0
_FIRST_POLL_MS, _NEXT_POLL_MS = 5, 50

# What a worker is for (`kind`), how to serve it: (socket, descriptors of the progress file, of the
# lock and of what `report_entered` takes, start message).
Serve = Callable[[socket.socket, int, int, int, dict[str, Any]], None]
# Imports modules of `vedette` by name; without names, what most judges need.
Preload = Callable[[Sequence[str]], None]


def run_fork_server(
    control: socket.socket, serve: Serve, preload: Preload = lambda names: None
) -> None:
    """Serve one engine until it closes `control`; then kill what is left and return."""
    for ours in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ours, signal.SIG_IGN)  # the engine's to answer; we end when it does
    control.set_inheritable(False)
    keep_orphans()
    message, descriptors = receive_control_message(control)
    if message is None:
        return  # it was begun ahead, and not wanted
    (lock,) = descriptors  # by a fork it is shared, and by nothing else
    if _wait_for_lock(lock, control):
        _ForkServer(control, lock, serve, preload).run(message["ahead"])


def _wait_for_lock(lock: int, control: socket.socket) -> bool:
    """Wait for the lock, and say so if that takes long. False if the engine has gone meanwhile."""
    poller = select.poll()
    poller.register(control, 0)
    report_at, after_ms = time.monotonic() + _REPORT_AFTER_S, _FIRST_POLL_MS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if poller.poll(after_ms):
                return False
        else:
            return True
        if after_ms == _FIRST_POLL_MS and time.monotonic() > report_at:
            after_ms = _NEXT_POLL_MS
            with contextlib.suppress(OSError):
                send_control_message(control, {"waiting": True})


class _ForkServer:
    def __init__(self, control: socket.socket, lock: int, serve: Serve, preload: Preload) -> None:
        self._control = control
        self._lock = lock
        self._serve = serve
        self._preload: Preload | None = preload
        # By process id: the worker's number, and where it says that it has entered its box.
        self._children: dict[int, tuple[int, int]] = {}
        self._linger_s = 0.0
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)

    def run(self, modules: Sequence[str] = ()) -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_writer.fileno(), warn_on_full_buffer=False)
        self._send({"ready": os.getpid()})
        if modules and self._preload is not None:
            # Else each worker would import it for itself.
            self._preload(modules)
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        while True:
            ready = self._selector.select(_PRELOAD_AFTER_S if self._preload else None)
            if not ready and self._preload:
                preload, self._preload = self._preload, None
                preload(())
                gc.collect()
            for key, _ in ready:
                if key.fileobj is self._wake_reader:
                    with contextlib.suppress(BlockingIOError):
                        self._wake_reader.recv(4096)
                    self._reap()
                elif not self._handle_message():
                    self._end_workers()
                    return

    def _handle_message(self) -> bool:
        """Do what the engine asks next; False if it has gone."""
        message, descriptors = receive_control_message(self._control)
        if message is None:
            return False
        if "start" in message:
            self._fork_worker(message, descriptors)
        elif "kill" in message:
            for pid, (worker, _) in self._children.items():
                if worker == message["kill"]:
                    os.kill(pid, signal.SIGKILL)  # not reaped yet, so the pid is still its own
        elif "linger" in message:
            self._linger_s = float(message["linger"])
        return True

    def _fork_worker(self, message: dict[str, Any], descriptors: list[int]) -> None:
        connection, progress = descriptors
        if message["box"] is not None:
            # What goes wrong here goes wrong in the worker too, and its exit reports it.
            with contextlib.suppress(Exception):
                prepare_sandbox(Sandbox.from_json(message["box"]))
        gc.freeze()
        ours = theirs = -1
        try:
            ours, theirs = os.pipe()
            pid = os.fork()
        except OSError as error:
            self._send(
                {"ended": message["start"], "how": f"could not be started: {error.strerror}"}
            )
            if ours >= 0:
                os.close(ours)
        else:
            if pid == 0:
                self._run_worker(connection, progress, theirs, message)
            self._children[pid] = message["start"], ours
            self._send({"born": message["start"], "pid": pid})
        finally:
            os.close(connection)
            os.close(progress)
            if theirs >= 0:
                os.close(theirs)

    def _run_worker(
        self, connection: int, progress: int, entering: int, message: dict[str, Any]
    ) -> None:
        """Be a worker; never returns."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for mine in (self._selector, self._control, self._wake_reader, self._wake_writer):
                mine.close()
            self._serve(socket.socket(fileno=connection), progress, self._lock, entering, message)
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self._children:
                worker, entering = self._children.pop(pid)
                # Agents' code may end with any code; what was reported before, it cannot take back.
                said = os.read(entering, 1)
                os.close(entering)
                entered = bool(said) or os.waitstatus_to_exitcode(status) != NOT_ENTERED
                how = describe_exit(status) if entered else "could not enter its box"
                self._send({"ended": worker, "how": how, "entered": entered})

    def _send(self, message: dict[str, Any]) -> None:
        # An engine that has gone is noticed where we listen.
        with contextlib.suppress(OSError):
            send_control_message(self._control, message)

    def _end_workers(self) -> None:
        """Let workers come to their end for as long as the engine said, then kill them."""
        end = time.monotonic() + self._linger_s
        while self._children and time.monotonic() < end:
            self._reap()
            time.sleep(0.005)
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        for pid in self._children:
            os.waitpid(pid, 0)


def report_entered(entering: int) -> None:
    """Tell the fork server that this worker is in its box, and agents' code runs from now on."""
    os.write(entering, b"\1")
    os.close(entering)


def describe_exit(status: int) -> str:
    """Say in words how a worker process ended, by its wait status."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"ended by itself with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


# --- control messages ------------------------------------------------------------------------


def send_control_message(
    control: socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()
) -> None:
    """Send one control message between pool and fork server, with open files."""
    data = orjson.dumps(message)
    frame = _LENGTH.pack(len(data)) + data
    if not descriptors:
        control.sendall(frame)
        return
    sent = socket.send_fds(control, [frame], descriptors)
    if sent < len(frame):
        control.sendall(frame[sent:])


def receive_control_message(control: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return the next control message of pool or fork server, and its files; None at the end."""
    descriptors: list[int] = []
    data = b""
    while len(data) < _LENGTH.size:
        more, found = _receive_some(control, _LENGTH.size - len(data))
        descriptors += found
        if not more:
            return None, descriptors
        data += more
    (length,) = _LENGTH.unpack(data)
    data = b""
    while len(data) < length:
        more, found = _receive_some(control, length - len(data))
        descriptors += found
        if not more:
            return None, descriptors
        data += more
    message: dict[str, Any] = orjson.loads(data)
    return message, descriptors


def _receive_some(control: socket.socket, most: int) -> tuple[bytes, list[int]]:
    size = array.array("i").itemsize
    try:
        data, extra, _, _ = control.recvmsg(most, socket.CMSG_SPACE(4 * size))
    except ConnectionResetError:
        return b"", []
    found = array.array("i")
    for level, kind, content in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(content[: len(content) - len(content) % size])
    for descriptor in found:
        os.set_inheritable(descriptor, False)
    return data, list(found)
