"""A worker that asks one agent's model, several turns at once on one event loop.

It runs the engine's own code, ADK's and the provider's client, with the model's credential, and no
code of an agent: that is why it is told what a root_agent is, and may not read `agent.py`.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextvars import ContextVar
from typing import Any, Protocol

from msgspec import Struct, convert

from vedette.adapters.reasoners.workers import protocol
from vedette.adapters.reasoners.workers.async_worker import AsyncWorker
from vedette.adapters.reasoners.workers.confinement import ProgressRecord, peak_bytes
from vedette.adapters.reasoners.workers.frames import Frame, pack_frame
from vedette.adapters.reasoners.workers.reasoner_worker import pack_answer, pack_failure
from vedette.adapters.reasoners.workers.remote_error import pack_own_error
from vedette.config.models import ModelPlan
from vedette.domain.base.errors import VedetteError
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement

# The call that the present task belongs to, and the tasks that it began.
_call: ContextVar[int] = ContextVar("vedette_model_call", default=0)


class ModelRunner(Protocol):
    """The part of AdkReasoner that a worker needs."""

    async def reason(self, briefing: Briefing) -> ReasonerJudgement: ...

    def require_model(self, name: str | None) -> None: ...

    def forget_key(self, name: str) -> None: ...


class ModelParts(Struct):
    """What asks an agent's model is made of: `ModelWorkerSpec`, as it comes to its worker.

    `keys` are those of `models`, by their names; they may change.
    """

    folder: str
    description: dict[str, Any] | None
    timeout_s: float
    bounds: tuple[int | None, int | None]
    models: tuple[ModelPlan, ...]
    keys: dict[str, str]


# Makes what asks the model: (agent, parts).
MakeModelRunner = Callable[[str, ModelParts], ModelRunner]


def serve_model(
    connection: socket.socket,
    progress: ProgressRecord,
    agent: str,
    make: MakeModelRunner,
    *,
    memory: int,
    asks_names: bool = False,
) -> None:
    """Ask in a model worker until the engine hangs up; it resolves names if `asks_names`.

    It may take `memory` bytes beyond what it has now.
    """
    worker = _ModelWorker(connection, progress, agent, make, memory)
    if asks_names:
        worker.names.install()
    asyncio.run(worker.serve())


class _ModelWorker(AsyncWorker):
    def __init__(
        self,
        connection: socket.socket,
        progress: ProgressRecord,
        agent: str,
        make: MakeModelRunner,
        memory: int,
    ) -> None:
        super().__init__(connection, progress)
        # Who has had nearly all of it met the limit, or will.
        self._most_bytes = peak_bytes() + memory - memory // 8
        self._agent = agent
        self._make = make
        self._runner: ModelRunner
        self._keys: dict[str, str] = {}
        self._error: BaseException | None = None
        # Of a model that cannot be asked now: its turns say so themselves.
        self._model_error: Exception | None = None

    async def serve(self) -> None:
        asyncio.get_running_loop().set_task_factory(self._make_task)
        await super().serve()

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any
    ) -> asyncio.Task[Any]:
        """Return a task that writes down whose it is, before each of its steps."""
        return asyncio.Task(_NotedSteps(coro, self._progress), loop=loop, **options)

    def handle_request(self, frame: Frame) -> None:
        number, kind = frame.number, frame.kind
        if kind == protocol.MAKE:
            self._make_runner(protocol.read(frame.plain))
            self.answer(pack_frame(number, protocol.DONE))
        elif kind == protocol.TRY:
            error = self._error or self._model_error
            self.answer(pack_frame(number, protocol.DONE) if error is None
                        else self._pack_error(number, error))  # fmt: skip
        elif kind == protocol.KEYS:
            self._take_keys(protocol.read(frame.plain))
        else:
            self.start_call(number, self._reason(number, frame.plain))

    def _make_runner(self, payload: Any) -> None:
        fields, environment = payload
        # Of this process only, and in no file of /proc: that shows how a process was started.
        os.environ.update(environment)
        parts = convert(fields, ModelParts)
        self._keys = parts.keys
        try:
            self._runner = self._make(self._agent, parts)
        except BaseException as error:
            self._error = error  # said to everyone who asks something
            return
        for plan in parts.models:
            # What asking it takes is imported now: later that would hold up others' turns.
            try:
                self._runner.require_model(plan.model.name)
            except Exception as error:
                self._model_error = self._model_error or error

    def _take_keys(self, keys: Mapping[str, str]) -> None:
        self._keys.update(keys)
        if self._error is None:
            for name in keys:
                self._runner.forget_key(name)

    async def _reason(self, number: int, plain: bytes) -> None:
        _call.set(number)
        self._progress.begin(number)  # the task's first step, which nobody knew to be this call's
        self._progress.begin_call(number)
        try:
            if self._error is not None:
                raise self._error
            judgement = await self._runner.reason(
                protocol.whole_briefing_from_dict(protocol.read(plain))
            )
            answer = pack_answer(number, *protocol.pack_model_judgement(judgement))
        except BaseException as error:
            answer = self._pack_error(number, error)
        self.answer_soon(answer)

    def _pack_error(self, number: int, error: BaseException) -> bytes:
        # Libraries catch it where it arises, and say that a connection was lost.
        if _is_memory_error(error) or peak_bytes() > self._most_bytes:
            return pack_failure(number, MemoryError())
        if isinstance(error, VedetteError):
            return pack_frame(number, protocol.OWN_ERROR, pack_own_error(error))
        return pack_failure(number, error)


def _is_memory_error(error: BaseException | None) -> bool:
    """Say whether an error is, or came of, memory that was not there."""
    while error is not None and not isinstance(error, MemoryError):
        error = error.__cause__
    return error is not None


class _NotedSteps(Coroutine[Any, Any, Any]):
    """A coroutine that notes before each step which call it is a step of.

    Whatever that step does to the process, the engine knows for whom it was made.
    """

    def __init__(self, coro: Coroutine[Any, Any, Any], progress: ProgressRecord) -> None:
        self._coro = coro
        self._progress = progress

    def send(self, value: Any) -> Any:
        self._progress.begin(_call.get())
        return self._coro.send(value)

    def throw(self, *error: Any) -> Any:
        self._progress.begin(_call.get())
        return self._coro.throw(*error)

    def close(self) -> None:
        self._coro.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coro.__await__()

    def __getattr__(self, name: str) -> Any:
        # Libraries look at how far a task's coroutine is (`cr_running`, `cr_frame`).
        return getattr(self._coro, name)
