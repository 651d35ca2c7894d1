"""Model agents on trial: the whole fleet opened on a state folder that is deleted afterwards.

An event's trial (`vedette.operations.model_trial`) runs on the engine's own line. What the agent's
model says comes out of a recording, out of the ledger, or of the model asked anew, as a running
fleet asks it: in its worker, with its key.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.structs import replace

from vedette.adapters.policy_engines.regorus.engine import RegorusEngine
from vedette.adapters.reasoners.adk.briefing import RULES
from vedette.app.composition_root import open_app
from vedette.config.agent_folder import agent_folders
from vedette.config.deployment import Deployment
from vedette.config.foreign_agent import has_foreign_source
from vedette.config.models import fallback_chain
from vedette.config.settings import Isolation, StorePlan
from vedette.domain.action import Action
from vedette.domain.agent import Agent, Fleet
from vedette.domain.base.clock import SystemClock, iso
from vedette.domain.base.errors import BadCommand, BadFleet
from vedette.domain.budget import SPANS
from vedette.domain.event import Event
from vedette.domain.run import run_id
from vedette.engine.agreements import Agreements
from vedette.engine.circuit_breaker import CircuitBreakers
from vedette.engine.model_calls import Models
from vedette.ledger.history.trajectory import Trajectory, read_trajectory
from vedette.memory.training_set import Lessons
from vedette.operations.curation import sync_banks
from vedette.operations.evaluation import EvalCase, EvalResult, TaskScore, list_differences
from vedette.operations.model_trial import (
    KnownEnd,
    KnownEnds,
    Trial,
    TrialAgreements,
    TrialBudgets,
    TrialRun,
    sum_usage,
)
from vedette.operations.permissions import stopped_tools
from vedette.operations.recordings import (
    RecordedReasoner,
    RecordedRun,
    Recording,
    digest_asked,
    event_name,
    list_changes,
    read_recording,
    recording_file,
    write_recording,
)

if TYPE_CHECKING:
    from vedette.adapters.reasoners.workers.supervisor import WorkerPool
    from vedette.app.composition_root import App
    from vedette.config.fleet import LoadedFleet
    from vedette.config.models import ModelPlan
    from vedette.config.settings import Settings
    from vedette.domain.bundle import Bundle, Finding
    from vedette.domain.ports.policy_engine import PolicyEngine
    from vedette.domain.ports.reasoner import Reasoner
    from vedette.domain.ports.run_store import SpendReader
    from vedette.store.reader import StoreReader


# What was used of budgets, by (name, unit, span); what people raised counts below zero.
Used = Counter[tuple[str, str, str]]


class _TrialStage:
    """The stage of a bundle that was tried out already, or is live somewhere."""

    def __init__(self, engine: PolicyEngine) -> None:
        self._engine = engine

    async def try_out(self, bundle: Bundle) -> list[Finding]:
        return []

    def load(self, bundle: Bundle) -> PolicyEngine:
        return self._engine


class TrialFleet(Struct):
    """What the trials of one agent have in common: its settings, the policy, who reasons.

    `models` are shared, so that the limits of [models] hold for all trials together, and so is what
    was `used` of budgets, as far as a model is asked. `store` has what is live beside the files:
    memories, counts, stops, what people answered; None if the files alone count.
    """

    settings: Settings
    agent: Agent
    bundle: Bundle
    engine: PolicyEngine
    reasoner: Reasoner | None
    models: Models
    used: Used
    store: StoreReader | None = None

    @asynccontextmanager
    async def open_trial(
        self,
        ends: KnownEnds,
        reasoner: Reasoner | None = None,
        confidence: float | None = None,
    ) -> AsyncIterator[Trial]:
        """Open a fleet of this agent alone, with nothing in its store, for one case or event.

        `confidence` is how sure its model is taken to be; None: as people's answers say.
        """
        agent, live = self.agent, reasoner is None
        reasoner = reasoner or self.reasoner
        assert reasoner is not None
        with tempfile.TemporaryDirectory(prefix="vedette-trial-") as folder:
            settings = _settings_of_trial(self.settings, Path(folder), self.bundle, workers=live)
            app = await open_app(
                settings,
                reasoners={agent.last_reasoner: reasoner},
                stage=_TrialStage(self.engine),
                second_engine=lambda bundle: None,
            )
            try:
                services = app.services
                services.fleet = Fleet(services.fleet.name, {agent.name: agent})
                services.models, services.breakers = self.models, self.models.breakers
                if live:
                    budgets = services.budgets
                    services.budgets = TrialBudgets(
                        budgets.fleet, budgets.agents, budgets.prices, used=dict(self.used)
                    )
                stopped, measured = frozenset[str](), Agreements()
                if self.store is not None:
                    sync_banks(app.banks, self.store)
                    now = services.clock.now_us()
                    services.gateway.counts.read(self.store.spend.by_minute, now)
                    stopped = stopped_tools(agent, self.store.policy.stop_scopes())
                    await measured.read_answers(self.store)
                services.agreements = TrialAgreements(measured=measured, stated=confidence)
                judge = _build_judge(app) if agent.has_judge else None
                yield Trial(services, agent, reasoner, ends, settings.secrecy, stopped, judge)
            finally:
                # The trial's reasoner outlives it.
                app.services.reasoners = {}
                if live:
                    # Not `+=`, which would drop what is below zero.
                    self.used.update(read_used(app.store.spend, app.services.clock.now_us()))
                await app.close()


def _build_judge(app: App) -> Reasoner:
    """Return what runs the judges of a trial's fleet, taught by its banks, as in any fleet."""
    from vedette.app.workers import build_judge_reasoner

    services, tools = app.services, cast("Any", app.services.tool_executor)
    lessons = Lessons(app.banks, dict(services.fleet.agents))
    scopes = lessons.decide_scopes(services.gateway, services.clock.now_us())[0]
    lessons.adopt(scopes, services.gateway.policy_rev)
    prepare = None if app.pool is None else tools.prepare
    return build_judge_reasoner(services.fleet, lessons, services.clock, app.pool, prepare)


def read_used(spend: SpendReader, now_us: int) -> Used:
    """Return what a store has as used in the hour and day of `now_us`."""
    used: Used = Counter(
        {
            (name, unit, span): total.amount_at(span, now_us)
            for name, unit, total in spend.totals()
            for span in SPANS[1:]
        }
    )
    for more in spend.raises(now_us):
        used[more.name, more.unit, more.span] -= more.amount
    return used


def refuse_stopped(store: StoreReader, agents: Collection[Agent]) -> None:
    """Raise BadCommand for an agent whose model is not to be asked, since it is stopped."""
    stops = store.policy.stop_scopes()
    for agent in agents:
        if agent.asks_model and {("all", ""), ("agent", agent.name)}.intersection(stops):
            what = f"{agent.name} is stopped: its model is not asked"
            raise BadCommand(what, mend="leave out --live, or lift the stop (vedette resume)")


def _settings_of_trial(
    settings: Settings, folder: Path, bundle: Bundle, *, workers: bool
) -> Settings:
    """Return settings that reach nothing outside but what the tools' workers are told of."""
    for name, data in bundle.files.items():
        path = folder / "policies" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    # Where keys are in the environment, the agent's tools do not run beside them; an imported
    # agent's, which stands in the fleet, do so nowhere.
    boxed = workers or any(has_foreign_source(one) for one in agent_folders(settings.agents))
    isolation = settings.isolation if boxed else Isolation(False)
    return replace(
        settings, state=folder / "state", policies=folder / "policies", store=StorePlan(),
        deployment=Deployment(), sources=(), http=None, isolation=isolation,
    )  # fmt: skip


@asynccontextmanager
async def open_trials(
    settings: Settings,
    loaded: LoadedFleet,
    agent: Agent,
    bundle: Bundle,
    *,
    live: bool = False,
    store: StoreReader | None = None,
    used: Used | None = None,
) -> AsyncIterator[TrialFleet]:
    """Open what the trials of an agent share; if `live`, with what asks its model.

    `used` is what counts as used of budgets; what the trials use is added to it.

    Raises BadFleet for a model that nobody serves, or whose key is not there.
    """
    plans, engine = settings.models, RegorusEngine(bundle)
    used = Counter() if used is None else used
    entries = {name: plan.model for name, plan in plans.items()}
    if not live:
        # Nobody is asked, so there is nothing to spare.
        entries = {
            name: replace(one, calls_per_minute=None, tokens_per_minute=None)
            for name, one in entries.items()
        }
    models = Models(entries, CircuitBreakers())
    with tempfile.TemporaryDirectory(prefix="vedette-models-") as folder:
        reasoner, pool = None, None
        if live:
            own = replace(settings, state=Path(folder))
            reasoner, pool = await _build_live_reasoner(own, loaded, agent)
        try:
            yield TrialFleet(settings, agent, bundle, engine, reasoner, models, used, store)
        finally:
            if reasoner is not None:
                from vedette.app.reasoner_plugins import close_models

                await close_models({agent.last_reasoner: reasoner})
            if pool is not None:
                pool.close()


async def _build_live_reasoner(
    settings: Settings, loaded: LoadedFleet, agent: Agent
) -> tuple[Reasoner, WorkerPool | None]:
    """Return what asks the agent's model, made as for a fleet, and the pool of its workers."""
    from vedette.adapters.identity.secrets import register_secret_manager
    from vedette.adapters.telemetry.prometheus import PrometheusMetrics
    from vedette.app.model_workers import open_model_pool
    from vedette.app.reasoner_plugins import WorkerContext
    from vedette.config.plugins import plugins
    from vedette.domain.base.fleet_clock import FleetClock
    from vedette.domain.ports.plugin import REASONERS
    from vedette.store.banks import SqliteBank

    register_secret_manager()
    fleet, metrics = Fleet(loaded.fleet.name, {agent.name: agent}), PrometheusMetrics()
    pool = open_model_pool(settings, fleet, metrics)
    try:
        known = plugins(REASONERS)
        lessons = Lessons(SqliteBank(":memory:"), {})
        context = WorkerContext(
            fleet, FleetClock(SystemClock()), metrics, settings, lessons, None, pool, None
        )
        with known.wrap_errors(agent.last_reasoner):
            return await known.get(agent.last_reasoner).build(context), pool
    except BaseException:
        if pool is not None:
            pool.close()
        raise


# --- the cases of an agent ------------------------------------------------------------------------


async def run_model_cases(
    settings: Settings,
    loaded: LoadedFleet,
    agent: Agent,
    bundle: Bundle,
    cases: Sequence[EvalCase],
    shown: str,
    *,
    live: bool = False,
    record: bool = False,
    used: Used | None = None,
) -> list[EvalResult]:
    """Put an agent on trial with its cases: of its judge's turns, and of its model's from their
    recordings, or asking it.

    `shown` is how the agent's folder is named, `bundle` was admitted, `used` is as for
    `open_trials`. With `record` what was asked is written down. Raises BadFleet for a recording
    that cannot be read, and as `open_trials`.
    """
    asked = digest_asked(agent, _list_models(settings, agent), RULES)
    async with open_trials(settings, loaded, agent, bundle, live=live, used=used) as trials:
        found = []
        for case in cases:
            one = _CaseTrial(trials, case, shown, asked)
            found.append(await (one.ask(record=record) if live else one.replay()))
        return found


class _CaseTrial(Struct):
    """The trial of one case. `asked` are digests of what its model is asked with, `course` is the
    trajectory of the last run that was taken through, if that is a task.
    """

    trials: TrialFleet
    case: EvalCase
    shown: str
    asked: Mapping[str, str]
    course: Trajectory | None = None

    @property
    def path(self) -> Path:
        return recording_file(self.trials.agent, self.case.name)

    @property
    def file(self) -> str:
        return f"{self.shown}/{self.path.relative_to(self.trials.agent.folder).as_posix()}"

    async def replay(self) -> EvalResult:
        """Try the case from its recording."""
        agent, case = self.trials.agent, self.case
        if not agent.asks_model:
            return self._result(await self._run(RecordedReasoner(agent, ())), "", [])
        recording = read_recording(self.path, self.file, case.name)
        ask = f"vedette check cases {agent.name} --live --record"
        if recording is None:
            # What a judge settles needs none.
            runs = await self._run(RecordedReasoner(agent, ())) if agent.cascade else []
            if runs and runs[-1].state != "stale":
                return self._result(runs, "its judge alone", [])
            missing = (f"not recorded: {ask}",)
            return EvalResult(case, agent.name, "", (), missing, basis="not recorded")
        runs = []
        stale = list_changes(recording.asked, self.asked)
        if not stale:
            runs = await self._run(RecordedReasoner(agent, recording.runs))
            stale += [run.ended for run in runs if run.state == "stale"]
            stale += _list_unused_turns(recording, case, runs)
        said = [f"the recording is stale: {'; '.join(stale)}; ask anew: {ask}"] if stale else []
        models = ", ".join(recording.models) or "no model"
        return self._result(runs, f"recording of {models}, {recording.at[:10]}", said)

    async def ask(self, *, record: bool) -> EvalResult:
        """Try the case by asking its model; with `record` write down what it said.

        A run that was cut off is not recorded, nor is one that is not as expected where the
        recording before is. Where its judge settled it there is nothing to record, and what was
        recorded before is removed.
        """
        runs = await self._run(None)
        found = self._result(runs, "asked anew", [])
        if not record or any(run.state == "failed" for run in runs):
            return found
        if not found.ok and await self._replays_well():
            kept = f"asked anew, the recording is kept, which is as expected: {self.file}"
            return replace(found, basis=kept)
        if not any(run.model_turns for run in runs):
            self.path.unlink(missing_ok=True)
            return replace(found, basis="its judge alone, nothing to record")
        said = [
            RecordedRun(event_name(run.event), [turn.recorded for turn in run.model_turns])
            for run in runs
        ]
        written = write_recording(
            self.path,
            self.file,
            Recording(
                "vedette.recording/1", self.case.name, iso(SystemClock().now_us()),
                dict(self.asked), said,
            ),
        )  # fmt: skip
        return replace(found, basis=f"asked anew, recording {_WRITTEN[written]}: {self.file}")

    async def _replays_well(self) -> bool:
        try:
            return (await self.replay()).ok
        except BadFleet:
            return False

    async def _run(self, reasoner: Reasoner | None) -> list[TrialRun]:
        """Take the events through, up to the first whose run cannot go on as in a fleet."""
        runs: list[TrialRun] = []
        ends, confidence = _ends_of_case(self.case), self.case.confidence
        async with self.trials.open_trial(ends, reasoner, confidence) as trial:
            for event in self.case.events:
                runs.append(await trial.run(event))
                if trial.agent.work is not None:
                    self.course = _read_course(trial, runs[-1].event)
                if runs[-1].state in ("stale", "failed"):
                    break
        return runs

    def _result(self, runs: Sequence[TrialRun], basis: str, stale: Sequence[str]) -> EvalResult:
        actions = [one for run in runs for turn in run.turns for one in turn.actions]
        rules = [(one.action.tool.name, one.outcome, one.decision.rule) for one in actions]
        label = runs[-1].turns[-1].judgement.label if runs and runs[-1].turns else ""
        found = list(stale)
        if runs:
            decided = [(tool, outcome) for tool, outcome, _ in rules]
            found += list_differences(self.case.expect, label, decided)
        found += [f"the run {run.ended}" for run in runs if run.state == "failed"]
        score = None if self.course is None else TaskScore.of(self.course)
        if score is not None:
            found += score.differences(self.case.expect)
        return EvalResult(
            self.case,
            self.trials.agent.name,
            label,
            tuple(rules),
            tuple(found),
            basis=basis,
            usage=sum_usage(runs, is_expected=not found) if self.trials.agent.asks_model else None,
            ended=runs[-1].ended if runs else "",
            task=score,
        )


_WRITTEN = {"new": "written", "same": "the same as before", "changed": "replaced by another"}


def _read_course(trial: Trial, event: Event) -> Trajectory | None:
    """Return the trajectory of an event's run in a trial, if that is a task."""
    run = run_id(event.source, event.id, trial.agent.name)
    course = read_trajectory(trial.services.store.ledger, run)
    return course if course.is_task else None


def _list_unused_turns(recording: Recording, case: EvalCase, runs: Sequence[TrialRun]) -> list[str]:
    """Say what was recorded and not come to: then runs ended otherwise, or events are gone."""
    events = [event_name(event) for event in case.events]
    recorded = {
        run.event: max((turn.turn for turn in run.turns), default=0) for run in recording.runs
    }
    found = [f"the case has no event {name} any more" for name in recorded if name not in events]
    return found + [
        f"turn {len(run.turns) + 1} was said when the run went on, and now it {run.ended}"
        for run in runs
        if run.state in ("done", "waits", "uncalled")
        and len(run.turns) < recorded.get(event_name(run.event), 0)
    ]


def _ends_of_case(case: EvalCase) -> KnownEnds:
    def find(action: Action) -> KnownEnd:
        outcome = case.outcomes.get(action.tool.name)
        return KnownEnd() if outcome is None else KnownEnd("approved", outcome)

    return find


def _list_models(settings: Settings, agent: Agent) -> list[str]:
    """Return the models that an agent's turns may ask, as who serves them calls them."""
    return [f"{one.provider} {one.served_name}" for one in list_routes(settings, agent).values()]


def list_routes(settings: Settings, agent: Agent) -> dict[str, ModelPlan]:
    """Return the entries of [models] that an agent's turns may ask, the first choice first."""
    models = settings.models
    return {name: models[name] for name in fallback_chain(agent.model, models)}
