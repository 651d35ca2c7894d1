"""A worker that judges: one agent's judge, one question at a time, in the order they came."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar, overload

from vedette.adapters.reasoners.workers import protocol
from vedette.adapters.reasoners.workers.confinement import Note
from vedette.adapters.reasoners.workers.frames import ANY, MOST, Frame, Frames, pack
from vedette.adapters.reasoners.workers.plain_data import pack_plain
from vedette.domain.base.errors import Temporary
from vedette.domain.event import Event
from vedette.domain.memory import Briefing, Memory
from vedette.domain.ports import Thought
from vedette.judging import Judge

# Answers are gathered while more questions lie there, but not for longer than this.
_GATHER_S = 0.002
_GATHER_BYTES = 65536
_READ = 262144

T = TypeVar("T")


class Judges(Protocol):
    """The part of LocalJudges that a worker needs."""

    def judge(self, agent: str) -> Judge: ...

    def think(self, briefing: Briefing) -> Thought: ...

    def restore(
        self,
        agent: str,
        key: str,
        checkpoint: bytes | None,
        at: int,
        since: Sequence[tuple[int, Event]],
    ) -> None: ...

    def forget(self, agent: str, key: str) -> None: ...

    def fold(
        self, agent: str, checkpoint: bytes | None, since: Sequence[tuple[int, Event]]
    ) -> bytes | None: ...


# Makes the judges of a worker: (agent, folder, release, charter, lessons, checkpoint_every).
MakeJudges = Callable[[str, str, str | None, Mapping[str, Any], Sequence[Memory], int], Judges]


def serve_judge(line: socket.socket, note: Note, agent: str, make: MakeJudges) -> None:
    """Answer until the engine hangs up."""
    worker = _JudgeWorker(note, agent, make)
    with suppress(ConnectionError):
        _serve(line, worker)


def _serve(line: socket.socket, worker: _JudgeWorker) -> None:
    frames = Frames(ANY)
    while data := line.recv(_READ):
        out: list[bytes] = []
        size, began = 0, time.monotonic()
        for frame in frames.feed(data):
            answer = worker.answer(frame)
            if answer is None:
                continue
            out.append(answer)
            size += len(answer)
            if size > _GATHER_BYTES or time.monotonic() - began > _GATHER_S:
                line.sendall(b"".join(out))
                out.clear()
                size, began = 0, time.monotonic()
        if out:
            line.sendall(b"".join(out))


class _JudgeWorker:
    def __init__(self, note: Note, agent: str, make: MakeJudges) -> None:
        self._note = note
        self._agent = agent
        self._make = make
        self._judges: Judges
        self._charter: Mapping[str, Any] = {}
        self._registry: Mapping[str, Any] = {}
        self._memories: dict[int, tuple[Memory, ...]] = {0: ()}

    def answer(self, frame: Frame) -> bytes | None:
        """Return the answer to a frame; None for one that needs none."""
        number, kind = frame.number, frame.kind
        self._note.begin(number)
        try:
            if kind == protocol.REASON:
                return self._reason(number, frame.plain)
            told = protocol.read(frame.plain)
            if kind == protocol.FORGET:
                self._judges.forget(self._agent, told)
                return None
            if kind == protocol.MEMORIES:
                self._memories[told[0]] = protocol.memories_in(told[1])
                return None
            if kind == protocol.REGISTRY:
                self._registry = told
                return None
            return self._other(number, kind, told, frame.blob)
        except BaseException as error:
            return failed(number, error)

    def _reason(self, number: int, plain: bytes) -> bytes:
        briefing = protocol.briefing_in(
            protocol.read(plain), self._agent, self._charter, self._registry, self._memories
        )
        thought = self._judges.think(briefing)
        if thought.needs_state:
            return pack(number, protocol.NEEDS_STATE)
        data, blob = protocol.thought_out(thought)
        return bounded(number, data, blob)

    def _other(self, number: int, kind: int, told: Any, blob: bytes) -> bytes:
        if kind == protocol.MAKE:
            folder, release, self._charter, lessons, every = told
            memories = protocol.memories_in(lessons)
            self._judges = self._make(self._agent, folder, release, self._charter, memories, every)
            self._judges.judge(self._agent)
            return pack(number, protocol.DONE)
        if kind == protocol.RESTORE:
            key, at, kept, since = told
            events = [(position, protocol.event_in(event)) for position, event in since]
            steps = _Stepping(events, self._note, number)
            self._judges.restore(self._agent, key, blob if kept else None, at, steps)
            return pack(number, protocol.DONE)
        if kind == protocol.FOLD:
            kept, since = told
            events = [(position, protocol.event_in(event)) for position, event in since]
            steps = _Stepping(events, self._note, number)
            folded = self._judges.fold(self._agent, blob if kept else None, steps)
            return bounded(number, pack_plain(folded is not None), folded or b"")
        raise AssertionError(f"no such question: {kind}")


class _Stepping(Sequence[T]):
    """A sequence that notes each step of a walk over it: the time limit is one for each event."""

    def __init__(self, items: Sequence[T], note: Note, number: int) -> None:
        self._items, self._note, self._number = items, note, number

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[T]: ...
    def __getitem__(self, at: int | slice) -> T | Sequence[T]:
        return self._items[at]

    def __iter__(self) -> Iterator[T]:
        for item in self._items:
            self._note.step(self._number)
            yield item


def bounded(number: int, plain: bytes, blob: bytes = b"") -> bytes:
    """Return an answer's frame, or an error that says that it is too long."""
    if len(plain) + len(blob) > MOST:
        told = f"its answer has {len(plain) + len(blob)} bytes, at most {MOST} are taken"
        return failed(number, ValueError(told))
    return pack(number, protocol.DONE, plain, blob)


def failed(number: int, error: BaseException) -> bytes:
    """Return what was raised as an answer: its name, its words, and what kind of thing it is."""
    kind = "other"
    if isinstance(error, MemoryError):
        kind = "memory"
    elif isinstance(error, Temporary):
        kind = "temporary"
    try:
        words = str(error)
    except Exception:
        words = "an error that cannot say what it is"
    return pack(number, protocol.FAILED, pack_plain([type(error).__name__, words[:4096], kind]))
