"""A folder with one agent that a model reasons for, tried and changed by tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tests.model_entries import make_plan

from vedette.adapters.policy_engines.regorus.stage import read_bundle
from vedette.app.dry_run import PriorState
from vedette.app.model_dry_run import try_model_event
from vedette.app.model_trial import run_model_cases
from vedette.app.stores import store_reader
from vedette.config.fleet import load_fleet
from vedette.config.settings import Isolation, Settings
from vedette.domain.base.clock import SystemClock
from vedette.domain.event import Event
from vedette.domain.model import Provider
from vedette.domain.readers import ReaderRule
from vedette.operations.eval_cases import read_evals
from vedette.operations.evaluation import EvalResult
from vedette.testing.harness import FleetHarness
from vedette.testing.model_server import FunctionCall, ModelServer, Request, Thinking, Turn
from vedette.testing.toy_fleet import World, deny_policy, drop_bars, write_agent, write_policies

SHOWN = "agents/worker"
DESK = "ref:/charter/desk"
NOTE = FunctionCall("note_add", {"key": "ref:/event/subject", "text": "seen"})
BELL = FunctionCall("bell_ring", {"to": DESK, "text": "ding"})
BIG = FunctionCall("big_send", {"to": DESK, "text": "to all"})
UNKNOWN = FunctionCall("wire_send", {"to": DESK, "text": "ref:/event/data/nothing"})

CASES = """\
- name: a job is noted and sent once a person agrees
  event: {type: worker.job, source: test, id: j1, subject: k, data: {what: job}}
  outcomes: {big.send: {data: {id: "7"}}}
  expect: {label: no action, permitted: [note.add], denied: [bell.ring], held: [big.send]}
"""
PRICES = "prices: {cheap: {input: 1000000, output: 2000000}}"


def talk(request: Request) -> Turn:
    """Note and ring at once; send to all; after that be done."""
    script = {
        0: (Thinking("A job."), NOTE, BELL, UNKNOWN),
        1: (Thinking("Now send."), BIG),
    }
    return Turn(script.get(request.turn, ("All is done.",)))


class Fleet:
    """A folder with one agent that a model reasons for, and what a test changes of it."""

    def __init__(self, folder: Path, server: ModelServer, wire: Provider = "gemini") -> None:
        self.folder, self.content = folder, folder / "content"
        self.agent = self.content / "agents/worker"
        write_agent(self.content / "agents", "worker", reasoner="adk", max_turns=4, calls=100)
        (self.agent / "agent.py").unlink()
        self.edit("agent.yaml", "reasoner: adk", "model: fast")
        write_policies(
            self.content / "policies", extra={**deny_policy("bell.ring"), **drop_bars("worker")}
        )
        budgets = self.content / "policies/budgets/data.yaml"
        budgets.write_text(budgets.read_text().replace("prices: {}", PRICES))
        (self.content / "memory").mkdir()
        (self.agent / "evals").mkdir()
        (self.agent / "evals/cases.yaml").write_text(CASES)
        self.models = {"fast": make_plan(folder, server, wire, price="cheap")}
        self.workers, self.world = False, World()
        self.secrecy: tuple[ReaderRule, ...] = ()

    @property
    def settings(self) -> Settings:
        return replace(
            Settings.of(self.content, "harbour"),
            state=self.folder / "state", models=self.models, secrecy=self.secrecy,
            isolation=Isolation(self.workers),
            targets={"world": {"kind": "world"} | ({} if self.workers else {"world": self.world})},
        )  # fmt: skip

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.agent / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def all_cases(self, *, live: bool = False, record: bool = False) -> list[EvalResult]:
        settings = self.settings
        loaded = load_fleet(settings.root, settings, now_us=SystemClock().now_us())
        agent, bundle = loaded.fleet.agents["worker"], read_bundle(settings.policies)
        cases, problems = read_evals(agent, SHOWN)
        assert problems == []
        work = run_model_cases(
            settings, loaded, agent, bundle, cases, SHOWN, live=live, record=record
        )
        return asyncio.run(work)

    def cases(self, *, live: bool = False, record: bool = False) -> EvalResult:
        (result,) = self.all_cases(live=live, record=record)
        return result

    def attempt(
        self, event: Event, *, live: bool = False, prior: PriorState | None = None
    ) -> dict[str, Any]:
        settings = self.settings
        loaded = load_fleet(settings.root, settings, now_us=SystemClock().now_us())
        agent = loaded.fleet.agents["worker"]
        with store_reader(settings) as store, ExitStack() as reading:
            reading.enter_context(store.snapshot())
            work = try_model_event(
                settings, loaded, agent, event, prior or PriorState(), store,
                live=live, end_reading=reading.close,
            )  # fmt: skip
            return asyncio.run(work)

    @property
    def recording(self) -> Path:
        (found,) = (self.agent / "evals/recordings").glob("*.json")
        return found


@contextmanager
def nobody_asked(server: ModelServer) -> Iterator[None]:
    before = sum(server.statuses.values())
    yield
    assert sum(server.statuses.values()) == before


JOB = Event("test", "j1", "worker.job", "k", None, {"what": "job"})


def harness_of(fleet: Fleet) -> FleetHarness:
    """Return the real fleet that a test's folder is, not opened."""
    targets = {"world": {"kind": "world", "world": fleet.world}}
    harness = FleetHarness(fleet.folder, content=fleet.content, targets=targets)
    harness.models = fleet.models
    return harness


async def live_through(fleet: Fleet, *, approve: bool) -> None:
    """Have a real fleet handle the event, to its end or to where it waits."""
    harness = harness_of(fleet)
    async with harness:
        await harness.send(JOB)
        await harness.wait_until_idle()
        if approve:
            (held,) = (row for row in harness.actions(JOB) if row.waits == "approval")
            await harness.approve(held)
            await harness.wait_until_idle()
        assert [run.state for run in harness.runs(JOB)] == ["done" if approve else "waiting"]
