"""A toy fleet for tests of the line: agents that do what the event says, and a target that counts.

The judge is a real one with state, loaded from a real folder; only the world is the test's own.
`World` is the target of every calling tool and keeps its own record of what was done to it.

    world = World()
    fleet = toy_fleet(tmp_path, world)
    async with fleet:
        await fleet.send(job("1", do("wire.send", to=DESK, text="hello")))
        await fleet.settle()
        assert world.effects("wire.send") == 1
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vedette.config.deployment import Deployment
from vedette.domain.base.clock import MachineClock
from vedette.domain.effect import Call, Outcome
from vedette.domain.event import Event
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import Reasoner
from vedette.domain.run import CommitResult, Step
from vedette.domain.tool import Tool
from vedette.testing.harness import FleetHarness, checkout, copy_policies, remove_tests

DESK = Ref("/charter/desk")

AGENT_YAML = """\
version: 1
name: {name}
title: Does what the event says
owner: desk@example.org
reasoner: {reasoner}
max_turns: {max_turns}
{work}mode: act
order_by: subject
collection: {name}_notes
triggers: [{{on: {name}.job}}]
charter: {{desk: desk@example.org, note: known text}}
budget: {{actions_per_run: 16, model_calls_per_turn: 2, model_calls_per_run: 32,
  model_calls_per_day: {model_calls}}}
tools:
  - {{name: note.add, verb: add, resource: note, args: {{key: string, text: string}},
     sinks: [], settles: transactional, function: add_note}}
  - {{name: wire.send, verb: send, resource: wire, args: {{to: string, text: string}},
     sinks: [/to], settles: idempotent, function: act, target: world, attempts: 3,
     timeout: 30s}}
  - {{name: order.place, verb: order, resource: wire, args: {{to: string, text: string}},
     sinks: [/to], settles: queryable, function: act, query: ask, target: world, attempts: 3,
     timeout: 30s}}
  - {{name: bell.ring, verb: ring, resource: wire, args: {{to: string, text: string}},
     sinks: [/to], settles: none, function: act, target: world, timeout: 30s}}
  - {{name: big.send, verb: send, resource: wire, args: {{to: string, text: string}},
     sinks: [/to], settles: idempotent, function: act, target: world, high_impact: true}}
  - {{name: slow.send, verb: send, resource: wire, args: {{to: string, text: string}},
     sinks: [/to], settles: idempotent, function: act, target: world, timeout: 100ms}}
  - {{name: book.look, verb: look, resource: wire, args: {{name: string}}, sinks: [],
     settles: idempotent, function: act, target: world}}
  - {{name: book.sure, verb: look, resource: wire, args: {{name: string}}, sinks: [],
     settles: idempotent, function: act, target: world, output: trusted}}
"""

JUDGE_PY = '''\
import json

from vedette.judging import Judge as Base
from vedette.judging import Judgement, Proposal, Ref


class Judge(Base):
    """Keeps all values it saw of a key; its label is their sum."""

    def blank(self):
        return []

    def observe(self, state, event):
        state.append(int(event.data.get("value", 0)))
        if event.data.get("poison"):
            raise RuntimeError("the judge broke off half-way")
        return list(state)

    def judge(self, seen, briefing):
        data = briefing.event.data
        if data.get("raise"):
            raise RuntimeError("the judge gave up")
        return Judgement(
            label=f"sum {sum(seen)} of {len(seen)}",
            confidence=float(data.get("confidence", 1)),
            proposals=tuple(
                Proposal(each["tool"], {name: _value(it) for name, it in each["args"].items()})
                for each in data.get("do", [])
            ),
            detail={"seen": seen},
        )

    def dump(self, state):
        return json.dumps(state).encode()

    def load(self, blob):
        return json.loads(blob)


def _value(given):
    if isinstance(given, dict) and set(given) == {"ref"}:
        return Ref(given["ref"])
    return given
'''

TOOLS_PY = """\
from vedette.sdk import RowWrite


def add_note(call, row):
    texts = [*(row or {}).get("texts", []), call.args["text"]]
    if call.args["text"] == "raise":
        raise ValueError("no such note")
    return [RowWrite(f"{call.agent}_notes", call.args["key"], {"texts": texts})]


def act(call):
    return call.target["world"].act(call)


def ask(call):
    return call.target["world"].ask(call)
"""

AGENT_PY = """\
from pathlib import Path

from google.adk.agents import LlmAgent
from vedette.sdk import declared_tools

root_agent = LlmAgent(
    name="{name}", model="none", instruction="Do what is asked.",
    tools=declared_tools(Path(__file__).parent),
)
"""

GRANTS = """\
{name}:
  mode: {mode}
  tools:
    note.add: {{verb: add, resource: note, impact: low}}
    wire.send: {{verb: send, resource: wire, impact: low}}
    order.place: {{verb: order, resource: wire, impact: low}}
    bell.ring: {{verb: ring, resource: wire, impact: low}}
    slow.send: {{verb: send, resource: wire, impact: low}}
    big.send: {{verb: send, resource: wire, impact: high}}
    book.look: {{verb: look, resource: wire, impact: low}}
    book.sure: {{verb: look, resource: wire, impact: low}}
"""
WORK_GRANTS = """\
    task.finish: {verb: finish, resource: task, impact: low}
    item.add: {verb: add, resource: item, impact: low}
    item.close: {verb: close, resource: item, impact: low}
    task.wait: {verb: wait, resource: task, impact: low}
"""

DENY_TOOL = 'package vedette.denies\n\ndeny contains "denies.test" if input.action.tool == "{}"\n'


@dataclass
class World:
    """What the toy fleet's calling tools reach. It keeps its own record, apart from the ledger.

    `answer` may replace what a call brings: an Outcome, an exception to raise, or None for the
    usual (done). What raised or was `retry` is no effect unless `loses_answer` is set: then the
    effect happened and the answer was lost.
    """

    answer: Callable[[Call], Outcome | BaseException | None] | None = None
    query: Callable[[Call], Outcome | BaseException | None] | None = None
    loses_answer: bool = False
    calls: list[Call] = field(default_factory=list)
    queries: list[Call] = field(default_factory=list)
    record: list[tuple[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def act(self, call: Call) -> Outcome:
        """Do what a call asks. An effect with a key that is known happens only once."""
        with self.lock:
            self.calls.append(call)
        given = self.answer(call) if self.answer is not None else None
        if (
            given is None
            or self.loses_answer
            or (isinstance(given, Outcome) and given.state == "done")
        ):
            with self.lock:
                self.record.append((call.tool, call.key))
        if isinstance(given, BaseException):
            raise given
        return given or Outcome("done", {"id": call.key, "text": str(call.args.get("text", ""))})

    def ask(self, call: Call) -> Outcome | None:
        """Say what came of a key."""
        with self.lock:
            self.queries.append(call)
        if self.query is not None:
            given = self.query(call)
            if isinstance(given, BaseException):
                raise given
            return given
        known = any(key == call.key for _, key in self.record)
        return Outcome("done", {"id": call.key}) if known else None

    def effects(self, tool: str | None = None) -> int:
        """Return how many times anything happened, repeats of a key included."""
        return sum(1 for name, _ in self.record if tool in (None, name))

    def keys(self, tool: str | None = None) -> Counter[str]:
        """Return how often each key happened."""
        return Counter(key for name, key in self.record if tool in (None, name))

    def texts(self, tool: str | None = None) -> list[str]:
        """Return the texts of the calls, in the order in which they came."""
        return [str(call.args.get("text")) for call in self.calls if tool in (None, call.tool)]


def propose(tool: str, **args: Any) -> dict[str, Any]:
    """Return a toy agent's proposal as an event's data carries it; a Ref stays a reference."""
    return {
        "tool": tool,
        "args": {
            name: {"ref": value.pointer} if isinstance(value, Ref) else value
            for name, value in args.items()
        },
    }


def send_proposal(text: str = "hello", tool: str = "wire.send", to: Any = DESK) -> dict[str, Any]:
    """Return a toy agent's proposal to send a text to where the charter says."""
    return propose(tool, to=to, text=text)


def note_proposal(text: str) -> dict[str, Any]:
    """Return a toy agent's proposal to add a text to the row of the event's key."""
    return propose("note.add", key=Ref("/event/subject"), text=text)


def job(
    name: str, *proposals: dict[str, Any], key: str = "k", agent: str = "worker", **data: Any
) -> Event:
    """Return an event that makes an agent of the toy fleet propose something."""
    return Event("test", name, f"{agent}.job", key, None, {"do": list(proposals), **data})


def write_agent(
    agents: Path,
    name: str,
    *,
    reasoner: str,
    max_turns: int,
    calls: int,
    work: str = "",
    done: str = "",
) -> None:
    """Write the folder of a toy agent; with `work` (YAML) it takes tasks, `done` is done.yaml."""
    folder = agents / name
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    words = {"name": name, "reasoner": reasoner, "max_turns": max_turns, "model_calls": calls}
    words["work"] = f"work: {work}\n" if work else ""
    if done:
        (folder / "done.yaml").write_text(done)
    (folder / "agent.yaml").write_text(AGENT_YAML.format(**words))
    (folder / "instruction.md").write_text("Do what the event says.\n")
    (folder / "judge.py").write_text(JUDGE_PY)
    (folder / "tools.py").write_text(TOOLS_PY)
    (folder / "agent.py").write_text(AGENT_PY.format(name=name))


def write_policies(
    to: Path,
    agents: tuple[str, ...] = ("worker",),
    *,
    mode: str = "act",
    extra: Mapping[str, str] | None = None,
    work: bool = False,
) -> Path:
    """Copy the shipped rules to `to`, granting the toy agents all their tools."""
    more = WORK_GRANTS if work else ""
    grants = "".join(GRANTS.format(name=name, mode=mode) + more for name in agents)
    return remove_tests(copy_policies(to, {"grants/data.yaml": grants, **(extra or {})}))


def drop_bars(*agents: str) -> dict[str, str]:
    """Return a policy file for a toy fleet by which these agents' actions need no confidence.

    So a model may act of which nobody has said yet how often it is right.
    """
    text = (checkout() / "policies/limits/data.yaml").read_text("utf-8")
    return {"limits/data.yaml": without_bars(text, agents)}


def without_bars(limits: str, agents: Iterable[str]) -> str:
    """Return the text of limits/data.yaml by which these agents' actions need no confidence."""
    before, heading, after = limits.partition("confidence_milli:\n  default: 800\n  agents:\n")
    assert heading, "the shipped policy has another form"
    bars = "".join(f"    {name}: {{default: 0, tools: {{}}}}\n" for name in agents)
    return before + heading + bars + after


def deny_policy(tool: str) -> dict[str, str]:
    """Return one more policy file for a toy fleet, which denies a tool."""
    return {"vedette/denies/test.rego": DENY_TOOL.format(tool)}


def toy_fleet(
    folder: Path,
    world: World,
    *,
    agents: tuple[str, ...] = ("worker",),
    reasoner: str = "judge",
    reasoners: Mapping[str, Reasoner] | None = None,
    max_turns: int = 4,
    model_calls: int = 100,
    mode: str = "act",
    extra: Mapping[str, str] | None = None,
    clock: MachineClock | None = None,
    workers: bool = False,
    edges: Deployment | None = None,
    work: str = "",
    done: str = "",
) -> FleetHarness:
    """Write a fleet below `folder` and return it, not opened. `extra` are more policy files.

    With `workers` agents' code runs in processes of its own, where `world` cannot be reached.
    Agents of a model alone (`reasoner` adk) may act unmeasured (`drop_bars`). With `work` (YAML)
    they take tasks, whose conditions are `done` (the text of done.yaml).
    """
    if reasoner == "adk":
        extra = {**drop_bars(*agents), **(extra or {})}
    content = folder / "content"
    for name in agents:
        write_agent(
            content / "agents", name, reasoner=reasoner, max_turns=max_turns, calls=model_calls,
            work=work, done=done,
        )  # fmt: skip
    (content / "memory").mkdir()
    return FleetHarness(
        folder,
        content=content,
        policies=write_policies(
            folder / "policies", agents, mode=mode, extra=extra, work=bool(work)
        ),
        reasoners=reasoners,
        targets={"world": {"kind": "world", "world": world}},
        clock=clock,
        workers=workers,
        edges=edges,
    )


class StuckExecutor:
    """A test's performer whose calls never start: the fleet stands between commit and effect."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor
        self.reached_keys: list[str] = []
        self.compute_rows, self.query, self.close = (
            executor.compute_rows,
            executor.query,
            executor.close,
        )

    async def perform(self, tool: Tool, call: Call, may_start: Callable[[], bool]) -> Outcome:
        """Come as far as the call, and no further."""
        self.reached_keys.append(call.key)
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")


def block_calls(fleet: FleetHarness) -> StuckExecutor:
    """Make a toy fleet's calls never start; a restart makes them start again."""
    stuck = StuckExecutor(fleet.app.services.tool_executor)
    fleet.app.services.tool_executor = stuck
    return stuck


async def wait_until(condition: Callable[[], bool], within_s: float = 10) -> None:
    """Return when something that a test awaits has become true. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def intercept_commits(fleet: FleetHarness, work: Callable[[Step], Awaitable[Step | None]]) -> None:
    """Let a test's `work` happen before each step is stored; it may raise, or return another step.

    Only until the fleet is opened anew.
    """
    steps: Any = fleet.app.store.steps
    onward = steps.send  # where every step passes

    async def first(step: Step) -> CommitResult:
        answer: CommitResult = await onward(await work(step) or step)
        return answer

    steps.send = lambda step: asyncio.ensure_future(first(step))
