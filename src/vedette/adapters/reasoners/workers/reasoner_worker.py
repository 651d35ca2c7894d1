"""A worker that judges: one agent's judge, one question at a time, in the order they came."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar, overload

from vedette.adapters.reasoners.workers import protocol
from vedette.adapters.reasoners.workers.confinement import ProgressRecord
from vedette.adapters.reasoners.workers.frames import (
    MAX_FRAME_BYTES,
    UNBOUNDED,
    Frame,
    FrameDecoder,
    pack_frame,
)
from vedette.adapters.reasoners.workers.plain_data import pack_plain
from vedette.domain.base.errors import BadNotes, Temporary
from vedette.domain.event import Event
from vedette.domain.memory import Briefing, Memory
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.judging import Judge

# Answers are gathered while more questions lie there, but not for longer than this.
_GATHER_S = 0.002
_GATHER_BYTES = 65536
_READ = 262144

T = TypeVar("T")


class JudgeRunner(Protocol):
    """The part of InProcessReasoner that a worker needs."""

    def judge(self, agent: str) -> Judge: ...

    def reason_sync(self, briefing: Briefing) -> ReasonerJudgement: ...

    def restore_state(
        self,
        agent: str,
        key: str,
        checkpoint: bytes | None,
        at: int,
        since: Sequence[tuple[int, Event]],
    ) -> None: ...

    def drop_state(self, agent: str, key: str) -> None: ...

    def fold_state(
        self, agent: str, checkpoint: bytes | None, since: Sequence[tuple[int, Event]]
    ) -> bytes | None: ...


# Makes the judges of a worker: (agent, folder, release, charter, lessons, checkpoint_every,
# takes_tasks).
MakeJudgeRunner = Callable[
    [str, str, str | None, Mapping[str, Any], Sequence[Memory], int, bool], JudgeRunner
]


def serve_judge(
    connection: socket.socket, progress: ProgressRecord, agent: str, make: MakeJudgeRunner
) -> None:
    """Answer questions to a judge in its worker, until the engine hangs up."""
    worker = _JudgeWorker(progress, agent, make)
    with suppress(ConnectionError):
        _serve(connection, worker)


def _serve(connection: socket.socket, worker: _JudgeWorker) -> None:
    frames = FrameDecoder(UNBOUNDED)
    while data := connection.recv(_READ):
        out: list[bytes] = []
        size, began = 0, time.monotonic()
        for frame in frames.feed(data):
            answer = worker.answer(frame)
            if answer is None:
                continue
            out.append(answer)
            size += len(answer)
            if size > _GATHER_BYTES or time.monotonic() - began > _GATHER_S:
                connection.sendall(b"".join(out))
                out.clear()
                size, began = 0, time.monotonic()
        if out:
            connection.sendall(b"".join(out))


class _JudgeWorker:
    def __init__(self, progress: ProgressRecord, agent: str, make: MakeJudgeRunner) -> None:
        self._progress = progress
        self._agent = agent
        self._make = make
        self._runner: JudgeRunner
        self._charter: Mapping[str, Any] = {}
        self._registry: Mapping[str, Any] = {}
        self._memories: dict[int, tuple[Memory, ...]] = {0: ()}

    def answer(self, frame: Frame) -> bytes | None:
        """Return the answer to a frame; None for one that needs none."""
        number, kind = frame.number, frame.kind
        self._progress.begin(number)
        try:
            if kind == protocol.REASON:
                return self._reason(number, frame.plain)
            payload = protocol.read(frame.plain)
            if kind == protocol.FORGET:
                self._runner.drop_state(self._agent, payload)
                return None
            if kind == protocol.MEMORIES:
                self._memories[payload[0]] = protocol.memories_from_tuples(payload[1])
                return None
            if kind == protocol.REGISTRY:
                self._registry = payload
                return None
            return self._handle_request(number, kind, payload, frame.blob)
        except BaseException as error:
            return pack_failure(number, error)

    def _reason(self, number: int, plain: bytes) -> bytes:
        briefing = protocol.briefing_from_tuple(
            protocol.read(plain), self._agent, self._charter, self._registry, self._memories
        )
        judgement = self._runner.reason_sync(briefing)
        if judgement.needs_state:
            return pack_frame(number, protocol.NEEDS_STATE)
        data, blob = protocol.pack_judgement(judgement)
        return pack_answer(number, data, blob)

    def _handle_request(self, number: int, kind: int, payload: Any, blob: bytes) -> bytes:
        if kind == protocol.MAKE:
            folder, release, self._charter, lessons, every, takes_tasks = payload
            memories = protocol.memories_from_tuples(lessons)
            self._runner = self._make(
                self._agent, folder, release, self._charter, memories, every, takes_tasks
            )
            self._runner.judge(self._agent)
            return pack_frame(number, protocol.DONE)
        if kind == protocol.RESTORE:
            key, at, has_checkpoint, since = payload
            events = [(position, protocol.event_from_tuple(event)) for position, event in since]
            steps = _ProgressSequence(events, self._progress, number)
            self._runner.restore_state(
                self._agent, key, blob if has_checkpoint else None, at, steps
            )
            return pack_frame(number, protocol.DONE)
        if kind == protocol.FOLD:
            has_checkpoint, since = payload
            events = [(position, protocol.event_from_tuple(event)) for position, event in since]
            steps = _ProgressSequence(events, self._progress, number)
            folded = self._runner.fold_state(self._agent, blob if has_checkpoint else None, steps)
            return pack_answer(number, pack_plain(folded is not None), folded or b"")
        raise AssertionError(f"no such question: {kind}")


class _ProgressSequence(Sequence[T]):
    """A sequence that notes each step of a walk over it: the time limit is one for each event."""

    def __init__(self, items: Sequence[T], progress: ProgressRecord, number: int) -> None:
        self._items, self._progress, self._number = items, progress, number

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
            self._progress.advance(self._number)
            yield item


def pack_answer(number: int, plain: bytes, blob: bytes = b"") -> bytes:
    """Return the frame of a worker's answer, or an error that says that it is too long."""
    if len(plain) + len(blob) > MAX_FRAME_BYTES:
        what = f"its answer has {len(plain) + len(blob)} bytes, at most {MAX_FRAME_BYTES} are taken"
        return pack_failure(number, ValueError(what))
    return pack_frame(number, protocol.DONE, plain, blob)


def pack_failure(number: int, error: BaseException) -> bytes:
    """Return the frame of an error that agents' code raised in a worker: name, words and kind."""
    kind = "other"
    if isinstance(error, MemoryError):
        kind = "memory"
    elif isinstance(error, Temporary):
        kind = "temporary"
    elif isinstance(error, BadNotes):
        kind = "notes"
    try:
        words = str(error)
    except Exception:
        words = "an error that cannot say what it is"
    return pack_frame(
        number, protocol.FAILED, pack_plain([type(error).__name__, words[:4096], kind])
    )
