"""A toy fleet whose worker takes tasks, with its model behind a strict server of this process."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vedette.adapters.reasoners.adk.conversation import HAND_OFF_SHARE
from vedette.config.models import ModelPlan
from vedette.domain.model import Model, Provider
from vedette.domain.work_tools import (
    FINISH_TOOL,
    HAND_OFF_TOOL,
    PLAN_TOOLS,
    PROPOSE_TOOLS,
    WORK_TOOLS,
)
from vedette.testing import toy_fleet as toy
from vedette.testing.harness import FleetHarness
from vedette.testing.model_server import FunctionCall, ModelServer, Request, Turn
from vedette.testing.model_server.turn import Usage
from vedette.testing.toy_fleet import World, drop_bars, toy_fleet

GOAL = 'Send 1,000 greetings to the desk — "each once", <no more>; then finish.\nNothing else.'
DESK = "ref:/charter/desk"
# What a request may have, in bytes.
ROOM = 24_000
BOUND = HAND_OFF_SHARE * ROOM
SERVED: Mapping[str, tuple[Provider, str]] = {
    "gemini": ("gemini", "gemini-3-pro-preview"),
    "anthropic": ("anthropic", "claude-opus-5-5"),
    "openai": ("openai", "gpt-5.5"),
}
BUDGETS = """\
fleet:
  actions: {hour: 1000000, day: 10000000}
  model_calls: {hour: 1000000, day: 1000000}
agents: {}
prices: {}
complete: true
"""


def task_policies(grants: str) -> dict[str, str]:
    """Return policy files by which a task of `worker` has room for a thousand turns; `grants` are
    those of its own tools.
    """
    own = "".join(
        f"    {tool.name}: {{verb: {tool.verb}, resource: {tool.resource}, impact: low}}\n"
        for tool in {**WORK_TOOLS, **PROPOSE_TOOLS, **PLAN_TOOLS}.values()
    )
    limits = drop_bars("worker")["limits/data.yaml"]
    few = "{minute: 600, hour: 6000, day: 50000}"
    assert few in limits
    limits = limits.replace(few, "{minute: 60000, hour: 60000, day: 60000}")
    return {
        "limits/data.yaml": limits, "grants/data.yaml": grants + own, "budgets/data.yaml": BUDGETS,
    }  # fmt: skip


def task_fleet(
    folder: Path,
    server: ModelServer,
    *,
    provider: str = "gemini",
    room: int | None = ROOM,
    window: int | None = None,
    world: World | None = None,
    extra: Mapping[str, str] | None = None,
    charter: str = "note: known text",
    most: int = 1,
    tool: str = "wire.send",
    workers: bool = False,
) -> FleetHarness:
    """Return a fleet, not opened, whose task is done after `most` calls of a tool.

    `room` are the bytes of a request, `window` the tokens of the model.
    """
    policies = {**task_policies(toy.GRANTS.format(name="worker", mode="act")), **(extra or {})}
    done = f"version: 1\nconditions:\n  - {{name: greeted, action: {tool}, at_least: {most}}}\n"
    work = "{max_turns: 10000, no_progress: 50}"
    fleet = toy_fleet(
        folder,
        world or World(),
        extra=policies,
        model_calls=100_000,
        work=work,
        done=done,
        workers=workers,
    )
    agent = fleet.content / "agents" / "worker"
    (agent / "agent.py").unlink()
    text = (agent / "agent.yaml").read_text()
    bounds = f", input_tokens_per_call: {room}, output_tokens_per_call: 2000" if room else ""
    for old, new in (
        ("reasoner: judge", "model: fast"),
        ("{on: worker.job}", f"{{on: worker.job, goal: {json.dumps(GOAL)}}}"),
        ("actions_per_run: 16", f"actions_per_run: 10000{bounds}"),
        ("model_calls_per_run: 32", "model_calls_per_run: 100000"),
        ("note: known text", charter),
    ):
        assert old in text, old
        text = text.replace(old, new)
    (agent / "agent.yaml").write_text(text)
    (folder / "key").write_text("test-key")
    kind, served = SERVED[provider]
    model = Model(
        "fast", provider=kind, served_name=served, context_tokens=window, timeout_us=120_000_000
    )
    url = f"{server.url}/v1" if provider == "openai" else server.url
    fleet.models = {"fast": ModelPlan(model, url, key_file=str(folder / "key"))}
    return fleet


def function(tool: str) -> str:
    """Return a tool's name as models have it."""
    return tool.replace(".", "_")


def hand_off(next_step: str = "Go on.", **given: list[str]) -> FunctionCall:
    """Return a model's call that hands off."""
    lists: dict[str, list[str]] = {"decisions": [], "artefacts": [], "open_questions": []}
    return FunctionCall(function(HAND_OFF_TOOL), {**lists, **given, "next_step": next_step})


def asks_hand_off(request: Request) -> bool:
    """Say whether a request asks for a hand-off: it offers nothing else."""
    return request.tools == (function(HAND_OFF_TOOL),)


def opening(request: Request) -> str:
    """Return the first message of a request."""
    return request.messages[0].text


def fenced(request: Request, name: str) -> Any:
    """Return what the opening of a request tells in one of its parts; None if it has none."""
    found = re.search(rf'<data name="{name}"[^\n]*>\n(.*)\n</data>', opening(request))
    return None if found is None else json.loads(found[1])


def size(request: Request) -> int:
    """Return the bytes of a request's body."""
    return len(json.dumps(request.body, ensure_ascii=False, separators=(",", ":")).encode())


def usage(request: Request) -> Usage:
    """Return the tokens of a request, a third of its bytes: as many models count them."""
    return Usage(input=size(request) // 3, output=20)


class Greeter:
    """A model that sends one greeting a turn, `most` in all, and then says that it is done.

    `said` is what it hands off. Asked the same again, it says the same.
    """

    def __init__(self, most: int, text: str = "hello " * 30) -> None:
        self.most = most
        self.text = text
        self.sent = 0
        self.requests: list[Request] = []
        self.said: list[FunctionCall | str] = []
        self._answers: dict[str, tuple[Any, ...]] = {}

    def __call__(self, request: Request) -> Turn:
        self.requests.append(request)
        asked = repr(request.messages)
        if asked not in self._answers:
            self._answers[asked] = self.answer(request)
        return Turn(self._answers[asked], usage(request))

    def answer(self, request: Request) -> tuple[Any, ...]:
        """Return what is said to a request."""
        if asks_hand_off(request):
            return (self.said.pop(0) if self.said else hand_off(f"Greeting {self.sent + 1}."),)
        if self.sent == self.most:
            return (FunctionCall(function(FINISH_TOOL), {"summary": "All are sent."}),)
        self.sent += 1
        return (FunctionCall("wire_send", {"to": DESK, "text": f"{self.sent} {self.text}"}),)
