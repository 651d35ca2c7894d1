"""The targets and the model's provider of the month, each with its own record."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import threading
from collections.abc import AsyncGenerator, Callable
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.month.content import DESK
from tests.month.record import Bill, Letters, Record, TaskPlan
from tests.simulation.fleet import Targets
from tests.simulation.loop import SimLoop

from vedette.domain.effect import Call, Outcome
from vedette.domain.work_tools import FINISH_TOOL, HAND_OFF_TOOL
from vedette.testing.scripted import ToolCall

_TASK = re.compile(r"\[(T-[0-9]+)\] send ([0-9]+) messages")
TO_DESK = "ref:/charter/desk"


class MonthTargets(Targets):
    """The simulation's targets, whose record goes on from day to day.

    What an item of a task is refused is refused for good, however often it is asked.
    """

    def __init__(
        self,
        loop: SimLoop,
        seed: int,
        durable: Callable[[], int],
        trace: Callable[[str], None],
        record: Record,
    ) -> None:
        super().__init__(loop, seed, durable, trace)
        self.record = record
        self.acts, self._known, self._done = record.acts, record.known, record.done
        self._turned_away = record.turned_away
        self._refused: set[str] = set()
        for plan in record.tasks.values():
            self.refuse(plan)

    def refuse(self, plan: TaskPlan) -> None:
        """Refuse from now on what a task says is refused."""
        self._refused |= {f"{plan.name}/{item}" for item in plan.refuses}

    async def act(self, call: Call) -> Outcome:
        """Do what a call asks, unless it is of what is refused."""
        text = "/".join(str(call.args["text"]).split("/")[:2])
        if text in self._refused:
            await asyncio.sleep(0.01)
            return Outcome("failed", error="the harbour master does not allow it")
        return await super().act(call)


class Provider:
    """The provider of the model that four agents ask. It bills what it reads and writes.

    `away` is how often it does not answer, `lost` how often it bills an answer that does not
    arrive. It remembers how far it is with a task, as the model of a real one would be told.
    """

    def __init__(self, loop: SimLoop, record: Record, draw: Any) -> None:
        self.loop, self.record, self.draw = loop, record, draw
        self.away = self.lost = 0.0
        # What the goal of each task was, as it was told.
        self.goals: dict[str, set[str]] = {}

    def model_for(self, agent: str) -> Any:
        """Return the model of an agent, for ADK."""
        from vedette.testing.scripted import ScriptedModel

        script = ScriptedModel(lambda prompt: self.answer(agent, prompt))

        async def ask(request: Any) -> Any:
            script.prompts.clear()
            return await script._answer(request)

        made = _billed_model()(model=f"scripted-{agent}", answer=ask)
        made._agent, made._provider = agent, self
        return made

    def bill(self, agent: str, use: Any, answered: bool) -> None:
        """Note what a call costs."""
        read, written = int(use.prompt_token_count), int(use.candidates_token_count)
        self.record.bills.append(Bill(self.loop.now_us(), agent, read, written, answered))

    def answer(self, agent: str, prompt: Any) -> Any:
        """Say what the model says; asked the same again, it says the same."""
        if agent == DESK:
            return _letter(prompt)
        found = next((_TASK.search(text) for text in prompt.texts if _TASK.search(text)), None)
        assert found is not None, "no goal in the request"
        name, most = found[1], int(found[2])
        kept = self.record.letters.setdefault(name, Letters())
        asked = hashlib.sha256(repr((prompt.texts, prompt.calls, prompt.answers)).encode())
        if kept.asked != asked.hexdigest():
            kept.asked = asked.hexdigest()
            kept.said = self._next(name, most, kept, prompt)
        return kept.said

    def _next(self, name: str, most: int, kept: Letters, prompt: Any) -> Any:
        if "task_hand_off" in prompt.functions:
            return ToolCall(
                HAND_OFF_TOOL,
                {"decisions": ["one message each turn"], "artefacts": [], "open_questions": [],
                 "next_step": f"Send message {kept.sent + 1}."},
            )  # fmt: skip
        plan = self.record.tasks[name]
        if kept.claims < plan.claims and kept.sent % 3 == 2:
            kept.claims += 1
            return "All is done." if kept.claims % 2 else ToolCall(FINISH_TOOL, {"summary": "done"})
        if kept.sent >= most:
            return ToolCall(FINISH_TOOL, {"summary": "All are sent."})
        kept.sent += 1
        tool = "big.send" if kept.sent in map(int, plan.asks) else "wire.send"
        text = f"{name}/{kept.sent}"
        return ToolCall(tool, {"to": TO_DESK, "text": text})


@cache
def _billed_model() -> Any:
    """Return the class of the model: made once, as pydantic forgets none. Imports ADK."""
    from google.adk.models.llm_request import LlmRequest
    from google.adk.models.llm_response import LlmResponse
    from pydantic import PrivateAttr

    from vedette.adapters.reasoners.adk.tools import FunctionModel

    class Billed(FunctionModel):
        _agent: str = PrivateAttr(default="")
        _provider: Any = PrivateAttr(default=None)

        async def generate_content_async(
            self, llm_request: LlmRequest, stream: bool = False
        ) -> AsyncGenerator[LlmResponse, None]:
            """Ask the script, after a while, and bill what it says."""
            provider = self._provider
            if provider.draw.random() < provider.away:
                await asyncio.Event().wait()
            await asyncio.sleep(provider.draw.uniform(0.5, 9.0))
            async for response in super().generate_content_async(llm_request, stream):
                lost = provider.draw.random() < provider.lost
                provider.bill(self._agent, response.usage_metadata, not lost)
                if lost:
                    await asyncio.Event().wait()
                yield response

    return Billed


def _letter(prompt: Any) -> Any:
    """Look something up for a letter, answer it, and be done."""
    name = hashlib.sha256(prompt.texts[0].encode()).hexdigest()[:16]
    if prompt.turn == 0:
        return ToolCall("book.look", {"text": f"{name}/look"})
    return (
        ToolCall("wire.send", {"to": TO_DESK, "text": f"{name}/send"}) if prompt.turn == 1 else "ok"
    )


class OnCall:
    """The on-call webhook of the shipped agent: a real server on loopback, with its own record.

    What it is posted is done once for each key, and it says 503 while it is `away`.
    """

    def __init__(self) -> None:
        self.record: list[tuple[str, str]] = []
        self.away = False
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                key = str(self.headers["Idempotency-Key"])
                status = 503 if hook.away else 200
                if not hook.away and key not in {known for known, _ in hook.record}:
                    hook.record.append((key, str(body["series"])))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Return where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}/hook"

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
