"""Services: everything that handling a run needs, wired once by `app`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct, field

from vedette.domain.agent import Agent, Fleet
from vedette.domain.base.fleet_clock import FleetClock
from vedette.domain.budget import BudgetPolicy, Shortage
from vedette.domain.event import Event
from vedette.domain.origin import KnownValues
from vedette.domain.ports.reasoner import Metrics, Reasoner, RunJournal, ToolExecutor
from vedette.domain.ports.sources import Receipt
from vedette.domain.ports.store import Store
from vedette.domain.rate_limit import RateCounters
from vedette.domain.readers import Readers
from vedette.domain.run import ActionRow, LossWindow, Run
from vedette.domain.stop import StopState
from vedette.engine.agreements import Agreements
from vedette.engine.artefacts import RunArtefacts
from vedette.engine.calls_in_flight import CallsInFlight
from vedette.engine.circuit_breaker import CircuitBreakers
from vedette.engine.key_state import KeyStates
from vedette.engine.model_calls import Models
from vedette.engine.parked_runs import ParkedRuns
from vedette.memory.retrieval import Recall
from vedette.policy.gateway import Gateway


class CanaryCode(Struct):
    """What runs the code of a canary release, apart from what runs all others'.

    Its errors are counted here; `ceiling` says which rate limit they have reached, if one.
    """

    agent: Agent
    reasoners: Mapping[str, Reasoner]
    tool_executor: ToolExecutor
    rate_counters: RateCounters = field(default_factory=RateCounters)
    ceiling: str | None = None


class MoveReason(Struct, frozen=True):
    """Why tasks cannot stay on a release: the rule, and what it found."""

    rule: str
    why: str = ""


class TaskReleases(Protocol):
    """The port of the releases of an agent that its tasks may run on, beside the live one."""

    def read_record(self) -> None:
        """Read off the record which releases were made, and withdrawn, since. Raises StoreFailed.

        `Services.former_code` has none that is withdrawn after it.
        """
        ...

    def live_release(self, agent: str) -> str:
        """Return the release of an agent that the record says the fleet runs."""
        ...

    def is_withdrawn(self, agent: str, release: str) -> bool:
        """Say whether no task may stay on a release of an agent."""
        ...

    async def open_code(self, agent: str, release: str) -> CanaryCode | MoveReason:
        """Return what runs a release's code, or why its tasks cannot stay on it.

        Raises StoreFailed, and Superseded where it may be had a while later.
        """
        ...


class Services(Struct):
    """One fleet at work: all that handling its runs needs. Belongs to one event loop.

    `run_journal` remembers, beyond the death of this process, whose judge was at work.
    `scope_readers` are those to whom a scope of a bank may be told. `shortages` is what an agent's
    actions lately had no room for: it only spares an attempt in vain, as whether there is room is
    for the store to say. `known_values` are those of charter and registry, by agent and release,
    with the two that they were collected from. `catch_up_policy` makes the policy live that the
    store says is: its commit stood although it raised. `canary_code` has what runs the canaries of
    `fleet.canaries`, `former_code`, by agent and digest, what runs the former releases of
    `task_releases` that tasks are on here. `grants` are those of the live policy; `accept_child`
    makes the event durable of a task that one agent gives another.
    """

    fleet: Fleet
    store: Store
    gateway: Gateway
    recall: Recall
    reasoners: Mapping[str, Reasoner]
    tool_executor: ToolExecutor
    clock: FleetClock
    stops: StopState
    metrics: Metrics
    targets: Mapping[str, Mapping[str, Any]]
    keys: KeyStates
    calls: CallsInFlight
    registry: Mapping[str, Any] = field(default_factory=dict)
    scope_readers: Mapping[tuple[str, str], Readers] = field(default_factory=dict)
    budgets: BudgetPolicy = field(default_factory=BudgetPolicy)
    grants: Mapping[str, Any] = field(default_factory=dict)
    shortages: dict[str, Shortage] = field(default_factory=dict)
    breakers: CircuitBreakers = field(default_factory=CircuitBreakers)
    models: Models = field(default_factory=Models)
    agreements: Agreements = field(default_factory=Agreements)
    parked_runs: ParkedRuns = field(default_factory=ParkedRuns)
    artefacts: RunArtefacts = field(default_factory=RunArtefacts)
    rate_counters: RateCounters = field(default_factory=RateCounters)
    known_values: dict[tuple[str, str], tuple[object, object, KnownValues]] = field(
        default_factory=dict
    )
    run_journal: RunJournal | None = None
    loss_window: LossWindow | None = None
    catch_up_policy: Callable[[], Awaitable[None]] | None = None
    canary_code: dict[str, CanaryCode] = field(default_factory=dict)
    accept_child: Callable[[Event], Awaitable[Receipt]] | None = None
    former_code: dict[tuple[str, str], CanaryCode] = field(default_factory=dict)
    task_releases: TaskReleases | None = None

    def __post_init__(self) -> None:
        self.models.breakers = self.breakers

    def in_loss_window(self, run: Run, row: ActionRow) -> bool:
        """Say whether an effect of a run may have happened in history that was lost.

        What was tried, or left to a person, after the restore is beyond that.
        """
        if self.loss_window is None or not self.loss_window.covers(run.position):
            return False
        return not (row.tries > 0 and row.last > self.loss_window.seq)

    def has_code(self, code: CanaryCode) -> bool:
        """Say whether a release that runs apart is still to be run."""
        name, release = code.agent.name, code.agent.release
        former = self.former_code.get((name, release))
        return former is code or self.canary_code.get(name) is code

    def forget_key(self, run: Run) -> None:
        """Forget what was judged and written ahead of commits for a run's key."""
        agent = self.fleet.agents.get(run.agent)
        if agent is not None:
            canary = self.canary_code.get(run.agent)
            for code in (self,) if canary is None else (self, canary):
                code.reasoners[agent.reasoner].drop_state(run.agent, run.key)
            self.keys.forget(agent, run.key)
