"""`vedette eval`: agents on their own cases, under the policy as it lies in the folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vedette.domain.base.errors import BadCommand, BadPolicy
from vedette.interfaces.cli.common import as_json_option, print_result, settings_of

if TYPE_CHECKING:
    from vedette.config.fleet import LoadedFleet
    from vedette.config.settings import Settings
    from vedette.domain.agent import Agent
    from vedette.domain.bundle import Bundle
    from vedette.domain.event import Event
    from vedette.domain.memory import Memory
    from vedette.operations.evaluation import EvalResult, Evaluation
    from vedette.policy.gateway import Gateway


@click.command("eval")
@click.argument("agent", required=False)
@as_json_option
@click.pass_context
def evaluate(ctx: click.Context, agent: str | None, as_json: bool) -> int:
    """Try AGENT, or every agent, on the cases of its evals/*.yaml.

    Each case goes through the agent's judge and the policy as it lies in the folder; nothing is
    stored and nothing outside is called. Exits with 1 if a case is not as expected.

    The agents' code runs as you, in no box: not on a folder that nobody has read.
    """
    results, skipped = _run_cases(settings_of(ctx), agent)
    lines = [line for result in results for line in _lines(result)]
    failed = sum(not result.ok for result in results)
    lines += [f"skipped {name}: {why}" for name, why in skipped]
    lines.append(f"{len(results)} cases, {len(results) - failed} as expected, {failed} not")
    value = {
        "ok": not failed,
        "cases": [result.to_json() for result in results],
        "skipped": [{"agent": name, "why": why} for name, why in skipped],
    }
    print_result(as_json, value, "\n".join(lines))
    return 1 if failed else 0


def _lines(result: EvalResult) -> list[str]:
    mark = "ok  " if result.ok else "FAIL"
    lines = [f"{mark} {result.agent}: {result.case.name}"]
    if not result.ok:
        lines.append(f"       {result.case.where}")
        lines += [f"       {told}" for told in result.differences]
        lines += [f"       {tool}: {outcome} by {rule}" for tool, outcome, rule in result.rules]
    return lines


def _run_cases(
    settings: Settings, agent_name: str | None
) -> tuple[list[EvalResult], list[tuple[str, str]]]:
    from vedette.adapters.policy_engines.regorus.stage import SubprocessStage, read_bundle
    from vedette.config.fleet import load_fleet
    from vedette.config.problem import raise_first_error
    from vedette.domain.base.clock import SystemClock
    from vedette.operations.eval_cases import read_evals

    now_us = SystemClock().now_us()
    loaded = load_fleet(settings.root, settings, now_us=now_us)
    agents = loaded.fleet.agents
    if agent_name is not None and agent_name not in agents:
        raise BadCommand(f"there is no agent {agent_name!r}", mend=f"one of: {', '.join(agents)}")
    bundle = read_bundle(settings.policies)
    findings = asyncio.run(SubprocessStage().try_out(bundle))
    if findings:
        first = findings[0]
        raise BadPolicy(first.what, where=f"{first.file}:{first.line}", mend=first.mend or None)
    results: list[EvalResult] = []
    skipped: list[tuple[str, str]] = []
    trials = _build_trials(settings, loaded, bundle, now_us)
    for agent in agents.values():
        if agent_name not in (None, agent.name):
            continue
        cases, problems = read_evals(agent, _display_path(settings.root, agent))
        raise_first_error(problems)
        if not agent.has_judge:
            skipped.append((agent.name, "its reasoner is a model, which no case can foresee"))
        elif not cases:
            skipped.append((agent.name, "it has no cases"))
        else:
            trial = trials(agent)
            results += [trial.run(case) for case in cases]
    return results, skipped


def _display_path(root: Path, agent: Agent) -> str:
    folder = Path(agent.folder)
    return folder.relative_to(root).as_posix() if folder.is_relative_to(root) else str(folder)


def _build_trials(
    settings: Settings, loaded: LoadedFleet, bundle: Bundle, now_us: int
) -> Callable[[Agent], Evaluation]:
    """Return how an agent is put on trial. The bundle was admitted."""
    from vedette.adapters.policy_engines.regorus.engine import RegorusEngine
    from vedette.adapters.tools.in_process import InProcessTools
    from vedette.config.agent_loader import build_judge, load_module
    from vedette.memory.retrieval import Recall
    from vedette.memory.training_set import Lessons
    from vedette.operations.evaluation import Evaluation
    from vedette.policy.bundle_data import mount
    from vedette.policy.gateway import Gateway
    from vedette.store.banks import SqliteBank

    engine = RegorusEngine(bundle)
    banks = SqliteBank(":memory:")
    banks.load(loaded.banks)
    agents = loaded.fleet.agents
    registry: Any = mount(bundle.files).get("registry") or {}
    recalls: dict[int, tuple[Gateway, Recall]] = {}

    def recall_memories(gateway: Gateway, agent: Agent, event: Event) -> Sequence[Memory]:
        # One recall for a whole case: it remembers which reads were granted.
        if id(gateway) not in recalls:
            recalls.clear()
            recalls[id(gateway)] = (gateway, Recall(banks, gateway))
        return recalls[id(gateway)][1].find_memories(agent, event, now_us)[0]

    # As in the fleet: a judge is made of nothing that the policy does not let its agent read.
    lessons = Lessons(banks, agents)
    lessons.adopt(lessons.decide_scopes(Gateway(engine, 1), now_us)[0], 1)
    tools = InProcessTools(lambda name: load_module(Path(agents[name].folder), "tools"))
    return lambda agent: Evaluation(
        agent=agent,
        judge=build_judge(agent, lessons.load_lessons(agent.name, now_us)),
        gateway=lambda: Gateway(engine, 1),
        performer=tools,
        recall=recall_memories,
        registry=registry,
        targets=settings.targets,
        now_us=now_us,
    )
