"""A toy fleet whose agents ask one another: each turn is one function of its briefing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vedette.domain.action import Proposal
from vedette.domain.memory import Briefing
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.run import ActionRow, Run
from vedette.domain.work_tools import ASK_TOOL, ASK_TOOLS, WORK_TOOLS
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.testing.harness import FleetHarness
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import DESK, GRANTS, World, toy_fleet

Answer = Callable[[Briefing], ReasonerJudgement]
# Coordinator, worker, and whom that asks in turn.
CHIEF, CLERK, INTERN = AGENTS = ("chief", "clerk", "intern")
ASKS: Mapping[str, tuple[str, ...]] = {CHIEF: (CLERK, INTERN), CLERK: (INTERN, CHIEF)}
# Nothing but that it says so, so that what a test is about is not its conditions.
DONE = "version: 1\nconditions:\n  - {name: any, items: closed, at_least: 0}\n"


def says(*proposals: Proposal) -> ReasonerJudgement:
    return ReasonerJudgement(label="at work", confidence=1.0, proposals=proposals, final=False)


def send(text: str, tool: str = "wire.send") -> Proposal:
    return Proposal(tool, {"to": DESK, "text": text})


def finish(text: str = "all done") -> Proposal:
    return Proposal("task.finish", {"summary": text})


def ask(
    agent: str, goal: Any = "Do it.", budget: Mapping[str, int] | None = None, **more: Any
) -> Proposal:
    """Return an ask; with a budget of four actions unless it is said."""
    given = {"actions": 4} if budget is None else dict(budget)
    return Proposal(ASK_TOOL, {"agent": agent, "goal": goal, "budget": given, **more})


class Team(ScriptedReasoner):
    """Answers every turn of each agent by a function of its own; who has none finishes."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        super().__init__(())
        self.answers = dict(answers)

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        self.briefings.append(briefing)
        answer = self.answers.get(briefing.agent)
        return says(finish()) if answer is None else answer(briefing)

    def of(self, agent: str) -> list[Briefing]:
        """Return the briefings of one agent."""
        return [one for one in self.briefings if one.agent == agent]


def grants_of(agents: Mapping[str, str] | None = None, **dropped: tuple[str, ...]) -> str:
    """Return grants/data.yaml: all tools to all agents, in their modes, less what is dropped."""
    own = "".join(
        f"    {tool.name}: {{verb: {tool.verb}, resource: {tool.resource}, impact: low}}\n"
        for tool in {**WORK_TOOLS, **ASK_TOOLS}.values()
    )
    text = ""
    for name in AGENTS:
        lines = (GRANTS.format(name=name, mode=(agents or {}).get(name, "act")) + own).splitlines()
        gone = tuple(f"    {tool}:" for tool in dropped.get(name, ()))
        text += "".join(f"{line}\n" for line in lines if not (gone and line.startswith(gone)))
    return text


def delegation_fleet(
    folder: Path,
    answers: Mapping[str, Answer],
    *,
    world: World | None = None,
    grants: str = "",
    asks: Mapping[str, tuple[str, ...]] = ASKS,
    work: str = "max_turns: 50, no_progress: 20",
    done: str = DONE,
    kind: str = "judge",
    edit: Callable[[str, str], str] = lambda name, text: text,
    **more: Any,
) -> tuple[FleetHarness, Team]:
    """Return a fleet of three, not opened, and who reasons for all of them.

    `edit` may change each agent.yaml, given name and text.
    """
    team = Team(answers)
    extra = {"grants/data.yaml": grants or grants_of(), **more.pop("extra", {})}
    fleet = toy_fleet(
        folder, world or World(), agents=AGENTS, reasoner=kind, reasoners={kind: team}, work="{}",
        done=done, model_calls=10_000, extra=extra, **more,
    )  # fmt: skip
    for name in AGENTS:
        path = fleet.content / "agents" / name / "agent.yaml"
        listed = ", ".join(asks.get(name, ()))
        plan = f"{{{work}, asks: [{listed}]}}" if listed else f"{{{work}}}"
        path.write_text(edit(name, path.read_text().replace("work: {}", f"work: {plan}")))
    return fleet, team


async def order(fleet: FleetHarness, verb: str, **args: Any) -> dict[str, Any]:
    return await dispatch(fleet.app.commands, f"work_{verb}", fleet.order(), args)


async def start(fleet: FleetHarness, goal: str = "Lead.", agent: str = CHIEF, **more: Any) -> str:
    run: str = (await order(fleet, "start", agent=agent, goal=goal, **more))["run"]
    return run


def run_of(fleet: FleetHarness, run: str) -> Run:
    found = fleet.app.store.runs.run(run)
    assert found is not None
    return found


def runs_of(fleet: FleetHarness, agent: str) -> list[Run]:
    """Return an agent's runs, the oldest first."""
    page = fleet.app.store.runs.runs_page(agent=agent, state=None, before=None, limit=100)
    return sorted(page, key=lambda run: run.position)


def asks_of(fleet: FleetHarness, run: str) -> list[ActionRow]:
    return [row for row in fleet.app.store.runs.actions(run) if row.tool == ASK_TOOL]


def total(fleet: FleetHarness, name: str, unit: str) -> int:
    """Return what an agent ("": the fleet) has spent of a unit on this day."""
    now = fleet.app.services.clock.now_us()
    found = {(who, of): spent for who, of, spent in fleet.app.store.spend.totals()}
    spent = found.get((name, unit))
    return 0 if spent is None else spent.amount_at("day", now)


INPUT = Ref("/event/data/inputs/to")
