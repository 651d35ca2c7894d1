"""The Reasoner port on workers that come to us: `vedette worker`, over a network.

To a seat such a worker is like one that was forked: a socket and a note. Behind that socket the
door (`door.py`), on a thread of its own, carries bytes to and from the connection. So the loop may
wait for an answer (`fold`) here as well, and no stranger's connection takes the line's time.

    seat --socket--> berth == door (thread) ==websocket==> relay (another host) --socket--> worker
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
from vedette.adapters.reasoners.workers.reasoner_client import Making, WorkerJudges, _JudgeSeat
from vedette.adapters.reasoners.workers.worker_handle import Seat
from vedette.domain.base.errors import Unavailable
from vedette.domain.conflict import Superseded
from vedette.domain.event import Event
from vedette.domain.memory import Briefing
from vedette.domain.ports import Thought

# While no worker of an agent is there so many of its runs wait here, to begin in the moment one
# comes; the others look again after a while, and take no handler from anybody meanwhile.
KEPT = 8
LOOK_AGAIN_US = 1_000_000
_KEEP_S = 1.0
# What the way to a worker may take beyond the time of a judgement.
_WAY_S = 2.0
# A connection that is lost is nobody's fault, but after so many in a row without an answer what
# was asked first is charged: it may be what ends the worker's whole host.
LOSSES = 3
_TICK_S = 0.05


class Berth:
    """Where a worker of an agent may sit: the far end of a seat's socket, and its note."""

    __slots__ = ("agent", "charge", "how", "line", "memory", "note", "number", "taken")

    def __init__(self, number: int, seat: Seat, line: socket.socket, note: int) -> None:
        self.number = number
        self.agent = seat.agent
        self.memory = seat.memory
        self.line = line
        self.note = note
        self.how = "was let go"
        self.charge = True
        self.taken = False

    def close(self) -> None:
        """Let go of both files."""
        self.line.close()
        if self.note >= 0:
            os.close(self.note)
            self.note = -1


class Doors(Protocol):
    """What the pool needs of the door. Both may be called from any thread."""

    def vacant(self, berth: Berth) -> None: ...

    def drop(self, number: int) -> None: ...


class RemotePool:
    """The seats of agents whose workers connect to us. Belongs to one event loop.

    `told` is told of each worker that was lost (agent, kind, why); `refused` of whoever was turned
    away (agent, code, what); `there` of how many workers an agent has.
    """

    def __init__(
        self,
        *,
        told: Callable[[str, str, str], None] = lambda agent, kind, why: None,
        refused: Callable[[str, str, str], None] = lambda agent, code, what: None,
        there: Callable[[str, int], None] = lambda agent, number: None,
    ) -> None:
        self.told = told
        self.refused = refused
        self.there = there
        self.connected: dict[str, int] = {}
        self._door: Doors | None = None
        self._early: list[Berth] = []
        self._seats: dict[int, Seat] = {}
        self._busy: set[Seat] = set()
        self._worker = 0
        self._tick: asyncio.TimerHandle | None = None
        self._closed = False
        self._words: deque[tuple[Any, ...]] = deque()
        self._ears: socket.socket | None = None
        self._mouth: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def listen_to(self) -> None:
        """Be ready for what a door says; before it is opened."""
        self._ears, self._mouth = socket.socketpair()
        self._ears.setblocking(False)
        self._mouth.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._ears, self._hear)

    def opened(self, door: Doors) -> None:
        """Let workers in by this door from now on."""
        self._door = door
        for berth in self._early:
            door.vacant(berth)
        self._early.clear()

    # --- for seats --------------------------------------------------------------------------

    def start(self, seat: Seat, told: dict[str, Any], descriptors: tuple[int, ...]) -> int:
        """Offer a berth to the next worker of the seat's agent; return its number.

        Raises Unavailable once closed.
        """
        if self._closed:
            raise Unavailable("the workers are closed")
        self._worker += 1
        line, note = (os.dup(fd) for fd in descriptors)
        berth = Berth(self._worker, seat, socket.socket(fileno=line), note)
        berth.line.setblocking(False)
        self._seats[self._worker] = seat
        if self._door is None:
            self._early.append(berth)
        else:
            self._door.vacant(berth)
        return self._worker

    def move(self, worker: int, seat: Seat) -> None:
        """Let a worker sit in another seat."""
        self._seats[worker] = seat

    def kill(self, worker: int) -> None:
        """Have a worker let go; its host ends it."""
        if self._door is not None:
            self._door.drop(worker)

    def waits_for(self) -> str:
        """Say what keeps workers away."""
        return "none is connected (start `vedette worker`)"

    def busy(self, seat: Seat) -> None:
        """Watch a seat until nothing is asked of it."""
        self._busy.add(seat)
        if self._tick is None and not self._closed:
            self._tick = asyncio.get_running_loop().call_later(_TICK_S, self._watch)

    def listen(self, also: Callable[[select.poll], None], seconds: float) -> None:
        """Wait for a word of the door, or of who `also` registers, and take the door's."""
        waiting = select.poll()
        mine = -1 if self._ears is None else self._ears.fileno()
        if self._ears is not None:
            waiting.register(mine, select.POLLIN)
        also(waiting)
        if any(fd == mine for fd, _ in waiting.poll(max(1, seconds * 1000))):
            self._hear()

    def _watch(self) -> None:
        now = time.monotonic()
        for seat in list(self._busy):
            if seat.pending:
                seat.watch(now)
            else:
                self._busy.discard(seat)
        again = asyncio.get_running_loop().call_later
        self._tick = again(_TICK_S, self._watch) if self._busy else None

    # --- for the door -----------------------------------------------------------------------

    def say(self, *word: Any) -> None:
        """Tell the pool something. May be called from any thread."""
        self._words.append(word)
        if self._mouth is not None:
            with suppress(OSError):  # full: it is awake already; closed: nobody listens
                self._mouth.send(b"\0")

    def _hear(self) -> None:
        if self._ears is None:
            return
        with suppress(BlockingIOError):
            while len(self._ears.recv(4096)) == 4096:
                pass
        while self._words:
            kind, *rest = self._words.popleft()
            if kind == "born":
                seat = self._seats.get(rest[0])
                if seat is not None:
                    seat.born(0)
            elif kind == "ended":
                self._ended(*rest)
            elif kind == "refused":
                self.refused(*rest)
            else:
                agent = rest[0]
                number = self.connected.get(agent, 0) + (1 if kind == "came" else -1)
                self.connected[agent] = number
                self.there(agent, number)

    def _ended(self, number: int, how: str, charge: bool) -> None:
        seat = self._seats.pop(number, None)
        if seat is None:
            return
        lost = isinstance(seat, RemoteSeat) and seat.losses + 1 >= LOSSES
        why = seat.ended(how, charge=charge or lost)
        if why and not self._closed:
            self.told(seat.agent, seat.kind, why)

    def close(self) -> None:
        """Hang up on all workers."""
        if self._closed:
            return
        self._closed = True
        if self._tick is not None:
            self._tick.cancel()
        for seat in self._seats.values():
            seat.close()
        for berth in self._early:
            berth.close()
        if self._ears is not None and self._mouth is not None and self._loop is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._ears)
            self._ears.close()
            self._mouth.close()


class RemoteJudges(WorkerJudges):
    """Runs agents' judges in workers that come to us. `make` is asked before each is made.

    `expired` is that of `WorkerJudges`.
    """

    def __init__(
        self,
        pool: RemotePool,
        make: Callable[[str], Making],
        expired: Callable[[str], bool] = lambda agent: False,
    ) -> None:
        super().__init__(pool, make, expired=expired)
        self._remote = pool

    def _seat(self, agent: str) -> _JudgeSeat:
        seat = self._seats.get(agent)
        if seat is None:
            seat = self._seats[agent] = RemoteSeat(self._remote, agent, self._make, self._beside)
        return seat

    def _seat_of(self, agent: str, key: str) -> _JudgeSeat:
        """Return the agent's seat: another host is not ours to start."""
        return self._seat(agent)

    async def reason(self, briefing: Briefing) -> Thought:
        """Judge one event, as `WorkerJudges.reason` does; the run waits for a worker to come.

        Raises Superseded where it is to look again later: enough of its agent wait here.
        """
        agent = briefing.agent
        if not self._remote.connected.get(agent) and len(self._seat(agent).pending) >= KEPT:
            raise away(agent)
        return await super().reason(briefing)

    def fold(
        self, agent: str, checkpoint: bytes | None, since: Sequence[tuple[int, Event]]
    ) -> bytes | None:
        """Return the checkpoint after `since`, as `WorkerJudges.fold` does.

        Raises Unavailable if no worker of the agent is connected, or if it goes and no other one
        comes within a second: the loop waits for it.
        """
        if not self._remote.connected.get(agent):
            raise _no_worker(agent)
        return super().fold(agent, checkpoint, since)


class RemoteSeat(_JudgeSeat):
    """The seat of an agent whose worker may be away for as long as it likes."""

    @property
    def losses(self) -> int:
        """Return how many workers in a row were lost without having answered anything."""
        return self._deaths

    def watch(self, now: float) -> None:
        """Watch a worker that is there; while there is none only a few runs wait for it."""
        if self.pending and not self.born_at:
            if now - self._unborn_at > _KEEP_S:
                self._send_away()
            return
        super().watch(now)

    def fold(self, checkpoint: bytes | None, since: Sequence[tuple[int, Event]]) -> bytes | None:
        """Return the checkpoint after `since`; others may have waited for a worker for longer."""
        self._unborn_at = time.monotonic()
        return super().fold(checkpoint, since)

    def forget(self, key: str) -> None:
        """Drop a key's state, if there is a worker that may hold it.

        The next one begins with none, and nobody reads a vacant berth: words would pile up there.
        """
        self._given.pop(key, None)
        if self.born_at:
            super().forget(key)

    def overdue(self, now: float) -> str:
        """Say why the worker is to be let go now. Its note comes over the network, and so late."""
        over = self.stuck(now) > self.seconds + _WAY_S
        return f"took longer than {self.seconds:g} s" if over else ""

    def _send_away(self) -> None:
        """Have all but a few runs look again later; their states are asked for anew then.

        A fold is not made, however few wait: the loop waits for it, and with it every agent.
        """
        asked = list(self.pending.values())
        gone = [one for one in asked if one.kind == protocol.FOLD]
        if len(asked) > KEPT:
            kept = {one.key for one in [a for a in asked if a.kind == protocol.REASON][:KEPT]}
            gone += [a for a in asked if a.kind != protocol.FOLD and a.key not in kept]
        for one in gone:
            del self.pending[one.number]
            self._given.pop(one.key, None)
            if one.kind == protocol.FOLD:
                one.fail(_no_worker(self.agent))
            elif one.kind == protocol.REASON:
                one.fail(away(self.agent))
            else:
                one.settle(None)
        if gone:
            # They are written in the vacant berth, and whoever came to sit there would answer
            # what nobody asks any more. The next berth has the kept ones only.
            self.kill("nobody came", charge=False, quiet=True)


def away(agent: str) -> Superseded:
    """Return what has a run look again later: its agent's worker is not here."""
    return Superseded(f"no worker of {agent} is connected", wait_us=LOOK_AGAIN_US)


def _no_worker(agent: str) -> Unavailable:
    mend = f"start one (vedette worker --agent {agent}) and do this again"
    return Unavailable(f"no worker of {agent} is connected", mend=mend)
