"""An agent on trial: put together for one event (`vedette try`) or its own cases (`check cases`).

Nothing is stored and nothing outside is called. A judge is made of nothing that the policy does not
let its agent read, as in the fleet.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vedette.adapters.policy_engines.regorus.engine import RegorusEngine
from vedette.adapters.policy_engines.regorus.stage import SubprocessStage, read_bundle
from vedette.adapters.tools.in_process import InProcessTools
from vedette.app.check import relative_path
from vedette.app.dry_run import DryRun
from vedette.app.policy_state import live_bundle
from vedette.config.agent_loader import build_judge, load_module
from vedette.config.problem import raise_first_error
from vedette.domain.base.errors import BadPolicy
from vedette.domain.bundle import Bundle
from vedette.memory.retrieval import Recall
from vedette.memory.training_set import Lessons
from vedette.operations.curation import sync_banks
from vedette.operations.eval_cases import read_evals
from vedette.operations.evaluation import EvalResult, Evaluation
from vedette.operations.permissions import stopped_tools
from vedette.policy.bundle_data import mount
from vedette.policy.gateway import Gateway
from vedette.store.banks import SqliteBank

if TYPE_CHECKING:
    from vedette.app.model_trial import Used
    from vedette.config.fleet import LoadedFleet
    from vedette.config.settings import Settings
    from vedette.domain.agent import Agent
    from vedette.domain.event import Event
    from vedette.domain.memory import Memory
    from vedette.store.reader import StoreReader


def open_dry_run(
    settings: Settings, loaded: LoadedFleet, agent: Agent, store: StoreReader | None, now_us: int
) -> DryRun:
    """Wire an agent for a dry run with what is live; without a store the folder's policy is."""
    number, bundle = live_bundle(settings, store)
    gateway = Gateway(RegorusEngine(bundle), number)
    stopped: frozenset[str] = frozenset()
    if store is not None:
        gateway.counts.read(store.spend.by_minute, now_us)
        stopped = stopped_tools(agent, store.policy.stop_scopes())
    banks, judge = _teach(loaded, {agent.name: agent}, gateway, now_us, store)
    return DryRun(
        agent,
        loaded.fleet,
        lambda: judge(agent),
        gateway,
        Recall(banks, gateway),
        _registry(bundle),
        settings.targets,
        now_us,
        settings.secrecy,
        stopped,
    )


def run_cases(
    settings: Settings,
    loaded: LoadedFleet,
    agents: Collection[Agent],
    now_us: int,
    *,
    live: bool = False,
    record: bool = False,
) -> tuple[list[EvalResult], list[tuple[str, str]]]:
    """Put agents on trial with their own cases, under the policy as it lies in the folder.

    What a model says comes out of its recordings; if `live`, it is asked, and with `record` its
    answers are recorded. Returns the results, and for each agent that was skipped why. Raises
    BadPolicy for a policy that would not be admitted, BadFleet for cases or recordings that cannot
    be read, and for a model that cannot be asked, BadCommand if it is to be asked of an agent that
    is stopped. Runs event loops of its own.
    """
    used = _read_used(settings, agents, now_us) if live else None
    bundle = read_bundle(settings.policies)
    if findings := asyncio.run(SubprocessStage().try_out(bundle)):
        first = findings[0]
        raise BadPolicy(first.what, where=f"{first.file}:{first.line}", mend=first.mend or None)
    results: list[EvalResult] = []
    skipped: list[tuple[str, str]] = []
    trials = _open_evaluations(settings, loaded, bundle, now_us)
    for agent in agents:
        shown = relative_path(settings.root, Path(agent.folder)).as_posix()
        cases, problems = read_evals(agent, shown)
        raise_first_error(problems)
        if not cases:
            skipped.append((agent.name, "it has no cases"))
        elif agent.asks_model or (agent.has_judge and (agent.max_turns > 1 or agent.work)):
            from vedette.app.model_trial import run_model_cases

            # A judge with several turns is tried on the engine's line, too, and asks nobody.
            asks = live and agent.asks_model
            work = run_model_cases(
                settings, loaded, agent, bundle, cases, shown,
                live=asks, record=record, used=used,
            )  # fmt: skip
            results += asyncio.run(work)
        elif not agent.has_judge:
            what = f"its reasoner is {agent.reasoner!r}, which no case can foresee"
            skipped.append((agent.name, what))
        else:
            trial = trials(agent)
            results += [trial.run(case) for case in cases]
    return results, skipped


def _read_used(settings: Settings, agents: Collection[Agent], now_us: int) -> Used:
    """Return what the fleet has used of its budgets; nothing without a store.

    Raises BadCommand for an agent that is stopped: its model is not asked.
    """
    from vedette.app.model_trial import read_used, refuse_stopped
    from vedette.app.stores import store_exists, store_reader

    if not store_exists(settings):
        return Counter()
    with store_reader(settings) as store, store.snapshot():
        refuse_stopped(store, agents)
        return read_used(store.spend, now_us)


def _open_evaluations(
    settings: Settings, loaded: LoadedFleet, bundle: Bundle, now_us: int
) -> Callable[[Agent], Evaluation]:
    """Return how an agent is put on trial. The bundle was admitted."""
    engine, agents = RegorusEngine(bundle), loaded.fleet.agents
    banks, judge = _teach(loaded, agents, Gateway(engine, 1), now_us, None)
    registry = _registry(bundle)
    recalls: dict[int, tuple[Gateway, Recall]] = {}

    def recall_memories(gateway: Gateway, agent: Agent, event: Event) -> Sequence[Memory]:
        # One recall for a whole case: it remembers which reads were granted.
        if id(gateway) not in recalls:
            recalls.clear()
            recalls[id(gateway)] = (gateway, Recall(banks, gateway))
        return recalls[id(gateway)][1].find_memories(agent, event, now_us)[0]

    tools = InProcessTools(lambda name: load_module(Path(agents[name].folder), "tools"))
    return lambda agent: Evaluation(
        agent=agent,
        judge=judge(agent),
        gateway=lambda: Gateway(engine, 1),
        performer=tools,
        recall=recall_memories,
        registry=registry,
        targets=settings.targets,
        now_us=now_us,
        secrecy=settings.secrecy,
    )


def _teach(
    loaded: LoadedFleet,
    agents: Mapping[str, Agent],
    gateway: Gateway,
    now_us: int,
    store: StoreReader | None,
) -> tuple[SqliteBank, Callable[[Agent], Any]]:
    """Return banks in memory, brought to what a store says, and what makes agents' judges."""
    banks = SqliteBank(":memory:")
    banks.load(loaded.banks)
    if store is not None:
        sync_banks(banks, store)
    lessons = Lessons(banks, dict(agents))
    lessons.adopt(lessons.decide_scopes(gateway, now_us)[0], gateway.policy_rev)
    return banks, lambda agent: build_judge(agent, lessons.load_lessons(agent.name, now_us))


def _registry(bundle: Bundle) -> Mapping[str, Any]:
    found: Any = mount(bundle.files).get("registry")
    return found or {}
