"""A daemon as it is shipped, whose agents models or judges reason for, before a `ModelServer`.

`vedette run` in a process of its own, with boxed workers; events come over HTTP, effects are lines
of a file that its tools append to.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from msgspec import Struct
from tests.bench.bench_fleet import write_policies
from tests.bench.target import happened, marks_file
from tests.client_daemon import free_port
from tests.model_server import KEY, WIRES
from tests.said import ROOT, START, Said, environment, vedette

from vedette.domain.model import Provider
from vedette.testing.model_server import FunctionCall, Request, Turn
from vedette.testing.toy_fleet import without_bars

SENDER = "monitoring-" + "m" * 32
_VARIABLES = {"MODEL_KEY": KEY, "SENDER_TOKEN": SENDER}
READY_WITHIN_S = 120.0
_FLEET_CALLS = "model_calls: {hour: 2000, day: 20000}"
_MORE_CALLS = "model_calls: {hour: 1000000, day: 1000000}"

_AGENT_YAML = """\
version: 1
name: {name}
title: Marks what an event names
owner: bench@example.org
{reasoner}
mode: act
order_by: subject
triggers: [{{on: {name}.job}}]
budget: {{actions_per_run: 100, actions_per_hour: 1000000, actions_per_day: 1000000{budget}}}
{limits}tools:
  - name: {tool}
    verb: write
    resource: mark
    args: {{event: string, mark: string}}
    sinks: [/event]
    settles: idempotent
    function: write_mark
    target: marks
"""
_INSTRUCTION = "Write a mark for what the event names, once. Then say that it is done.\n"
_TOOLS_PY = '''\
"""Appends a mark to the target's file."""

from vedette.domain.effect import Outcome

from .target import Target

_targets = {}


async def write_mark(call):
    """Write the mark of an event."""
    path = call.target["path"]
    target = _targets.get(path) or _targets.setdefault(path, Target(path))
    target.append(call.args["event"])
    return Outcome("done", {"mark": call.args["mark"]})
'''
_JUDGE_PY = '''\
from vedette.judging import Judge as Base
from vedette.judging import Judgement, Proposal, Ref

TOOL = "{tool}"


class Judge(Base):
    """Proposes the mark of each event."""

    def judge(self, seen, briefing):
        args = {"event": Ref("/event/id"), "mark": "seen"}
        return Judgement("seen", 0.95, (Proposal(TOOL, args),))
'''
_GRANT = """
{name}:
  mode: act
  owner: bench@example.org
  tools:
    {tool}: {{verb: write, resource: mark, impact: low}}
"""
_TOML = """\
fleet = "bench"
[content]
agents = "agents"
policies = "policies"
memory = "memory"
[targets.marks]
kind = "record"
path = {marks}
[serve]
http = "127.0.0.1:{port}"
fallback = false
[[serve.senders]]
name = "monitoring"
token_env = "SENDER_TOKEN"
"""
_MODEL_TOML = """\
[models.{name}]
provider = "{provider}"
model = "{model}"
base_url = "{url}"
{key}calls_in_flight = {in_flight}
timeout = "{timeout_s}s"
"""


class ModelEntry(Struct, frozen=True):
    """An entry of [models]; `url` is the server's, without what a wire puts behind it."""

    url: str
    provider: Provider = "gemini"
    in_flight: int = 8
    timeout_s: int = 60
    model: str = ""

    def write(self, name: str) -> str:
        """Return the table of vedette.toml."""
        served, path = WIRES[self.provider]
        return _MODEL_TOML.format(
            name=name, provider=self.provider, model=self.model or served, url=self.url + path,
            key="" if self.provider == "ollama" else 'key_env = "MODEL_KEY"\n',
            in_flight=self.in_flight, timeout_s=self.timeout_s,
        )  # fmt: skip


class DaemonAgent(Struct, frozen=True):
    """An agent of the daemon: a model reasons for it, by its entry's name, or its judge ("")."""

    name: str
    model: str = ""
    tool: str = "mark.write"
    calls_per_day: int = 1_000_000
    limits: str = ""


class ModelDaemon:
    """A fleet in `root`, run by the program of a checkout.

    `packages` is a folder in which its processes look for packages first.
    """

    def __init__(
        self,
        root: Path,
        entries: Mapping[str, ModelEntry],
        agents: Sequence[DaemonAgent],
        checkout: Path = ROOT,
        packages: Path | None = None,
    ) -> None:
        self._packages = [] if packages is None else [str(packages)]
        self.root, self.port, self.checkout = root, free_port(), checkout
        self.address = f"http://127.0.0.1:{self.port}"
        self.marks = marks_file(root)
        (root / "memory").mkdir()
        for agent in agents:
            _write_agent(root / "agents" / agent.name, agent)
        grants = [_GRANT.format(name=one.name, tool=one.tool) for one in agents]
        write_policies(root / "policies", grants, [one.name for one in agents])
        limits = root / "policies" / "limits" / "data.yaml"
        limits.write_text(without_bars(limits.read_text(), [one.name for one in agents]))
        budgets = root / "policies" / "budgets" / "data.yaml"
        budgets.write_text(budgets.read_text().replace(_FLEET_CALLS, _MORE_CALLS))
        text = _TOML.format(marks=json.dumps(str(self.marks)), port=self.port)
        text += "".join(entry.write(name) for name, entry in entries.items())
        (root / "vedette.toml").write_text(text)
        self.child: subprocess.Popen[bytes] | None = None
        self._client = httpx.Client(base_url=self.address, timeout=60, trust_env=False)

    def __enter__(self) -> ModelDaemon:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Return the engine's process id."""
        assert self.child is not None
        return self.child.pid

    @property
    def output(self) -> str:
        """Return what the daemon wrote so far."""
        return (self.root / "output.txt").read_text(errors="replace")

    @property
    def effects(self) -> dict[str, int]:
        """Return the ids of the events that have a mark, with when that was (monotonic ns)."""
        return happened(self.marks)[0]

    def start(self) -> None:
        """Start it; return once it is ready. Raises AssertionError with its output otherwise."""
        words = environment(**_VARIABLES) | {
            "PYTHONPATH": os.pathsep.join([*self._packages, str(self.checkout / "src")])
        }
        with (self.root / "output.txt").open("ab") as file:
            self.child = subprocess.Popen(
                [*START, "run", "--plain"], cwd=self.root, stdout=file, stderr=file, env=words
            )
        end = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < end and self.child.poll() is None:
            try:
                if self._client.get("/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        self.stop()
        raise AssertionError(f"the daemon did not become ready:\n{self.output}")

    def stop(self) -> None:
        """Have it end as by Ctrl-C."""
        if self.child is not None:
            self.child.send_signal(signal.SIGTERM)
            try:
                self.child.wait(60)
            finally:
                self.child.kill()
                self.child.wait()
                self.child = None

    def get(self, path: str) -> httpx.Response:
        """Ask it for a page."""
        return self._client.get(path)

    def send(self, agent: str, ids: Iterable[str], text: str = "", keys: int = 0) -> None:
        """Send an event for an agent by each id; each of its own key, or of so many keys in turn.

        Raises AssertionError unless all are accepted.
        """
        events = [
            {"specversion": "1.0", "source": "https://bench.example/", "id": one,
             "type": f"{agent}.job", "subject": f"{agent}-{number % keys if keys else one}",
             "data": {"text": text}}
            for number, one in enumerate(ids)
        ]  # fmt: skip
        headers = {
            "Content-Type": "application/cloudevents-batch+json",
            "Authorization": f"Bearer {SENDER}",
        }
        answer = self._client.post("/v1/events", content=json.dumps(events), headers=headers)
        assert answer.status_code == 202, answer.text
        statuses = {receipt["status"] for receipt in answer.json()["receipts"]}
        assert statuses == {"accepted"}, answer.text

    def verb(self, *arguments: str) -> Said:
        """Run a verb beside it."""
        return vedette(self.root, *arguments, **_VARIABLES)

    def states(self) -> dict[str, dict[str, int]]:
        """Return how many runs of each agent are in each state, by `vedette status`."""
        found = self.verb("status", "--json").json
        return {agent: counts["runs"] for agent, counts in found["agents"].items()}

    def wait_for_ends(self, within_s: float) -> dict[str, Any]:
        """Return `vedette status` once the read model lacks nothing and no run in it is open.

        Runs of agents that are stopped may be: they stay so until a person resumes the agent.
        Raises AssertionError when that is late.
        """
        end = time.monotonic() + within_s
        while True:
            found: dict[str, Any] = self.verb("status", "--json").json
            stopped = {stop["name"] for stop in found["stops"] if stop["scope"] == "agent"}
            unended = {
                name: one["runs"]
                for name, one in found["agents"].items()
                if name not in stopped and set(one["runs"]) - {"done", "dead"}
            }
            behind = found["view"]["behind"]
            if not unended and not behind:
                return found
            assert time.monotonic() < end, f"not ended: {unended}; {behind} entries to be read"
            time.sleep(0.2)

    def wait_for_effects(self, ids: Iterable[str], within_s: float) -> None:
        """Return when all of these events have a mark. Raises AssertionError when that is late."""
        wanted, end = set(ids), time.monotonic() + within_s
        while missing := wanted - self.effects.keys():
            assert time.monotonic() < end, f"{len(missing)} of {len(wanted)} have no mark yet"
            time.sleep(0.05)


def mark_once(request: Request) -> Turn:
    """Return what a model says that behaves: a mark by reference, then that it is done."""
    if request.turn:
        return Turn(("Done.",))
    return Turn((FunctionCall("mark_write", {"event": "ref:/event/id", "mark": "seen"}),))


def _write_agent(folder: Path, agent: DaemonAgent) -> None:
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    is_model = bool(agent.model)
    (folder / "agent.yaml").write_text(
        _AGENT_YAML.format(
            name=agent.name,
            tool=agent.tool,
            reasoner=f"model: {agent.model}\nmax_turns: 4" if is_model else "reasoner: judge",
            budget=f", model_calls_per_day: {agent.calls_per_day}" if is_model else "",
            limits=f"limits: {agent.limits}\n" if agent.limits else "",
        )
    )
    (folder / "instruction.md").write_text(_INSTRUCTION)
    (folder / "tools.py").write_text(_TOOLS_PY)
    if not is_model:
        (folder / "judge.py").write_text(_JUDGE_PY.replace("{tool}", agent.tool))
    shutil.copy(ROOT / "tests" / "bench" / "target.py", folder / "target.py")
