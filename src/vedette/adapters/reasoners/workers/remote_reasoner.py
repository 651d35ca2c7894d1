"""The Reasoner port on workers of other hosts (`vedette worker`), which connect over a network.

To a worker handle such a worker is like one that was forked: a socket and a progress file. Behind
that socket the worker server (`websocket_server.py`), on a thread of its own, forwards bytes to and
from the connection. So the loop may wait for an answer (`fold`) here as well, and no stranger's
connection takes the engine loop's time.

    handle --socket--> slot == server (thread) ==websocket==> Relay (other host) --socket--> worker
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from vedette.adapters.reasoners.workers import protocol
from vedette.adapters.reasoners.workers.reasoner_client import (
    JudgeSpec,
    WorkerReasoner,
    _JudgeHandle,
)
from vedette.adapters.reasoners.workers.worker_handle import WorkerHandle
from vedette.domain.base.errors import Unavailable
from vedette.domain.event import Event
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.run import Superseded

# While no worker of an agent is there so many of its runs wait here, to begin in the moment one
# comes; the others look again after a while, and take no handler from anybody meanwhile.
MAX_WAITING = 8
RETRY_AFTER_US = 1_000_000
_MAX_WAIT_S = 1.0
# What the way to a worker may take beyond the time of a judgement.
_NETWORK_GRACE_S = 2.0
# A connection that is lost is nobody's fault, but after so many in a row without an answer the
# oldest pending call is charged: it may be what ends the worker's whole host.
LOSSES = 3
_TICK_S = 0.05


class WorkerSlot:
    """The place of one remote worker: the far end of its handle's socket, and a progress file."""

    __slots__ = (
        "agent",
        "charge",
        "connection",
        "exit_reason",
        "has_ended",
        "memory",
        "number",
        "progress_fd",
    )

    def __init__(
        self, number: int, handle: WorkerHandle, connection: socket.socket, progress_fd: int
    ) -> None:
        self.number = number
        self.agent = handle.agent
        self.memory = handle.memory
        self.connection = connection
        self.progress_fd = progress_fd
        self.exit_reason = "was let go"
        self.charge = True
        self.has_ended = False

    def close(self) -> None:
        """Let go of both files."""
        self.connection.close()
        if self.progress_fd >= 0:
            os.close(self.progress_fd)
            self.progress_fd = -1


class SlotServer(Protocol):
    """What the pool of remote workers needs of the worker server; called from any thread."""

    def offer(self, slot: WorkerSlot) -> None: ...

    def withdraw(self, number: int) -> None: ...


class RemotePool:
    """The pool of workers that connect from other hosts. Belongs to one event loop.

    `on_worker_lost` is called for each worker that was lost (agent, kind, why); `on_refusal` for
    whoever was turned away (agent, code, what); `on_worker_count` with how many an agent has.
    """

    def __init__(
        self,
        *,
        on_worker_lost: Callable[[str, str, str], None] = lambda agent, kind, why: None,
        on_refusal: Callable[[str, str, str], None] = lambda agent, code, what: None,
        on_worker_count: Callable[[str, int], None] = lambda agent, number: None,
    ) -> None:
        self.on_worker_lost = on_worker_lost
        self.on_refusal = on_refusal
        self.on_worker_count = on_worker_count
        self.worker_counts: dict[str, int] = {}
        self._server: SlotServer | None = None
        self._queued_slots: list[WorkerSlot] = []
        self._handles: dict[int, WorkerHandle] = {}
        self._busy_handles: set[WorkerHandle] = set()
        self._last_number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._messages: deque[tuple[Any, ...]] = deque()
        self._wake_reader: socket.socket | None = None
        self._wake_writer: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach_loop(self) -> None:
        """Be ready for the worker server's messages; called before it is opened."""
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._wake_reader, self._drain_messages)

    def attach_server(self, server: SlotServer) -> None:
        """Let workers in through this server from now on."""
        self._server = server
        for slot in self._queued_slots:
            server.offer(slot)
        self._queued_slots.clear()

    # --- for worker handles -----------------------------------------------------------------

    def start(
        self, handle: WorkerHandle, message: dict[str, Any], descriptors: tuple[int, ...]
    ) -> int:
        """Offer a slot to the next worker of the handle's agent; return its number.

        Raises Unavailable once closed.
        """
        if self._closed:
            raise Unavailable("the workers are closed")
        self._last_number += 1
        connection, progress_fd = (os.dup(fd) for fd in descriptors)
        slot = WorkerSlot(self._last_number, handle, socket.socket(fileno=connection), progress_fd)
        slot.connection.setblocking(False)
        self._handles[self._last_number] = handle
        if self._server is None:
            self._queued_slots.append(slot)
        else:
            self._server.offer(slot)
        return self._last_number

    def reassign(self, worker: int, handle: WorkerHandle) -> None:
        """Move a worker to another handle."""
        self._handles[worker] = handle

    def kill(self, worker: int) -> None:
        """Have a worker let go; its host ends it."""
        if self._server is not None:
            self._server.withdraw(worker)

    def block_reason(self) -> str:
        """Say what keeps workers away."""
        return "none is connected (start `vedette worker`)"

    def watch(self, handle: WorkerHandle) -> None:
        """Watch a handle until it has no pending call."""
        self._busy_handles.add(handle)
        if self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._check_handles)

    def poll(self, register: Callable[[select.poll], None], seconds: float) -> None:
        """Wait for the worker server, or what `register` adds; drain the server's messages."""
        poller = select.poll()
        mine = -1 if self._wake_reader is None else self._wake_reader.fileno()
        if self._wake_reader is not None:
            poller.register(mine, select.POLLIN)
        register(poller)
        if any(fd == mine for fd, _ in poller.poll(max(1, seconds * 1000))):
            self._drain_messages()

    def _check_handles(self) -> None:
        now = time.monotonic()
        for handle in list(self._busy_handles):
            if handle.pending:
                handle.check_limits(now)
            else:
                self._busy_handles.discard(handle)
        call_later = asyncio.get_running_loop().call_later
        self._timer = call_later(_TICK_S, self._check_handles) if self._busy_handles else None

    # --- for the worker server --------------------------------------------------------------

    def notify(self, *message: Any) -> None:
        """Tell the pool something. May be called from any thread."""
        self._messages.append(message)
        if self._wake_writer is not None:
            with suppress(OSError):  # full: it is awake already; closed: nobody listens
                self._wake_writer.send(b"\0")

    def _drain_messages(self) -> None:
        if self._wake_reader is None:
            return
        with suppress(BlockingIOError):
            while len(self._wake_reader.recv(4096)) == 4096:
                pass
        while self._messages:
            kind, *rest = self._messages.popleft()
            if kind == "born":
                handle = self._handles.get(rest[0])
                if handle is not None:
                    handle.on_started(0)
            elif kind == "ended":
                self._on_worker_exit(*rest)
            elif kind == "refused":
                self.on_refusal(*rest)
            else:
                agent = rest[0]
                number = self.worker_counts.get(agent, 0) + (1 if kind == "came" else -1)
                self.worker_counts[agent] = number
                self.on_worker_count(agent, number)

    def _on_worker_exit(self, number: int, reason: str, charge: bool) -> None:
        handle = self._handles.pop(number, None)
        if handle is None:
            return
        lost = isinstance(handle, RemoteJudgeHandle) and handle.losses + 1 >= LOSSES
        why = handle.on_exit(reason, charge=charge or lost)
        if why and not self._closed:
            self.on_worker_lost(handle.agent, handle.kind, why)

    def close(self) -> None:
        """Hang up on all workers."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for handle in self._handles.values():
            handle.close()
        for slot in self._queued_slots:
            slot.close()
        if (
            self._wake_reader is not None
            and self._wake_writer is not None
            and self._loop is not None
        ):
            if not self._loop.is_closed():
                self._loop.remove_reader(self._wake_reader)
            self._wake_reader.close()
            self._wake_writer.close()


class RemoteReasoner(WorkerReasoner):
    """The reasoner on judges in workers of other hosts. `spec_of` is called before each is made.

    `is_expired` is that of `WorkerReasoner`.
    """

    def __init__(
        self,
        pool: RemotePool,
        spec_of: Callable[[str], JudgeSpec],
        is_expired: Callable[[str], bool] = lambda agent: False,
    ) -> None:
        super().__init__(pool, spec_of, is_expired=is_expired)
        self._remote_pool = pool

    def _handle(self, agent: str) -> _JudgeHandle:
        handle = self._handles.get(agent)
        if handle is None:
            handle = self._handles[agent] = RemoteJudgeHandle(
                self._remote_pool, agent, self._spec_of, self._on_make
            )
        return handle

    def _handle_for(self, agent: str, key: str) -> _JudgeHandle:
        """Return the agent's handle: another host is not ours to start."""
        return self._handle(agent)

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        """Judge one event, as `WorkerReasoner.reason` does; the run waits for a worker to come.

        Raises Superseded where it is to look again later: enough of its agent wait here.
        """
        agent = briefing.agent
        if (
            not self._remote_pool.worker_counts.get(agent)
            and len(self._handle(agent).pending) >= MAX_WAITING
        ):
            raise retry_later(agent)
        return await super().reason(briefing)

    def fold_state(
        self, agent: str, checkpoint: bytes | None, since: Sequence[tuple[int, Event]]
    ) -> bytes | None:
        """Return the checkpoint after `since`, as `WorkerReasoner.fold_state` does.

        Raises Unavailable if no worker of the agent is connected, or if it goes and no other one
        comes within a second: the loop waits for it.
        """
        if not self._remote_pool.worker_counts.get(agent):
            raise _no_worker_error(agent)
        return super().fold_state(agent, checkpoint, since)


class RemoteJudgeHandle(_JudgeHandle):
    """The handle of a judge whose remote worker may be away for as long as it likes."""

    @property
    def losses(self) -> int:
        """Return how many workers in a row were lost without having answered anything."""
        return self._failures

    def check_limits(self, now: float) -> None:
        """Watch a worker that is there; while there is none only a few runs wait for it."""
        if self.pending and not self.started_at:
            if now - self._waiting_since > _MAX_WAIT_S:
                self._shed_calls()
            return
        super().check_limits(now)

    def fold(self, checkpoint: bytes | None, since: Sequence[tuple[int, Event]]) -> bytes | None:
        """Return the checkpoint after `since`; others may have waited for a worker for longer."""
        self._waiting_since = time.monotonic()
        return super().fold(checkpoint, since)

    def forget(self, key: str) -> None:
        """Drop a key's state, if there is a worker that may hold it.

        The next one begins with none, and nobody reads a vacant slot: frames would pile up there.
        """
        self._restores.pop(key, None)
        if self.started_at:
            super().forget(key)

    def overdue_reason(self, now: float) -> str:
        """Say why the worker is to be let go now. Its progress comes by the network, late."""
        over = self.stalled_s(now) > self.seconds + _NETWORK_GRACE_S
        return f"took longer than {self.seconds:g} s" if over else ""

    def _shed_calls(self) -> None:
        """Have all but a few runs look again later; their states are fetched anew then.

        A fold is not made, however few wait: the loop waits for it, and with it every agent.
        """
        calls = list(self.pending.values())
        shed = [one for one in calls if one.kind == protocol.FOLD]
        if len(calls) > MAX_WAITING:
            waiting = {
                one.key for one in [a for a in calls if a.kind == protocol.REASON][:MAX_WAITING]
            }
            shed += [a for a in calls if a.kind != protocol.FOLD and a.key not in waiting]
        for one in shed:
            del self.pending[one.number]
            self._restores.pop(one.key, None)
            if one.kind == protocol.FOLD:
                one.fail(_no_worker_error(self.agent))
            elif one.kind == protocol.REASON:
                one.fail(retry_later(self.agent))
            else:
                one.resolve(None)
        if shed:
            # They are written in the vacant slot, and a worker that took it would answer calls
            # that are no longer pending. The next slot has the kept ones only.
            self.kill("nobody came", charge=False, quiet=True)


def retry_later(agent: str) -> Superseded:
    """Return the Superseded that has a run look again later for a remote worker of its agent."""
    return Superseded(f"no worker of {agent} is connected", wait_us=RETRY_AFTER_US)


def _no_worker_error(agent: str) -> Unavailable:
    mend = f"start one (vedette worker --agent {agent}) and do this again"
    return Unavailable(f"no worker of {agent} is connected", mend=mend)
