"""The trial of a model agent: an event taken through the line of a store that is thrown away.

The turns are the engine's own (`vedette.engine.handle`): briefing, binding, origins, labels, limits
and budgets are as in a fleet. Four of its services are others: who asks the model (a recording, or
it is asked anew), how sure that is (as measured in a fleet, or as a case says), the gateway, which
decides as in mode act and notes it, and the tools, of which none is called. A cascade's judge is
asked as ever. A hold, or a call of which nobody knows what came, ends the run there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import orjson
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from vedette.domain.action import Action
from vedette.domain.agent import Agent
from vedette.domain.artefact import Owner
from vedette.domain.base.canonical import SALT_BYTES, sha256_hex
from vedette.domain.base.errors import Permanent, Temporary, VedetteError
from vedette.domain.budget import (
    FLEET,
    INPUT_TOKENS,
    MINUTE_US,
    OUTPUT_TOKENS,
    Budget,
    BudgetCap,
    BudgetPolicy,
)
from vedette.domain.decision import Decision, DecisionContext, DecisionRecord
from vedette.domain.effect import Call, Outcome, RowWrite
from vedette.domain.event import Event, check_event, subject_of
from vedette.domain.memory import Briefing
from vedette.domain.model_confidence import Agreement
from vedette.domain.model_turn import ModelAway, ModelError, ModelUse, RequestRefused
from vedette.domain.ports.reasoner import (
    Reasoner,
    ReasonerJudgement,
    StatelessReasoner,
    ToolExecutor,
)
from vedette.domain.ports.run_store import Arrival
from vedette.domain.ports.store import Store, StoreReader
from vedette.domain.readers import ReaderRule
from vedette.domain.run import ActionRow, Lease, Run, Superseded
from vedette.domain.tool import Tool
from vedette.engine.agreements import Agreements
from vedette.engine.artefacts import ArtefactReads, RunArtefacts
from vedette.engine.handle import handle, run_to_completion
from vedette.engine.reservation import priced_budget
from vedette.engine.services import Services
from vedette.engine.tool_calls import coarse_answer
from vedette.operations.evaluation import MAX_EVENT, ModelUsage, decide_in_act, to_stored_event
from vedette.operations.recordings import (
    RecordedFailure,
    RecordedReasoner,
    RecordedTurn,
    RecordedUse,
    StaleRecording,
    record_turn,
)
from vedette.policy.gateway import Gateway

# How often a turn is asked for again whose answer is not taken, as a fleet does before it gives up.
_ATTEMPTS = 5
# How often, and for how long, a run is looked at again that comes no further: the limits of its
# model, for which it may wait, are of any minute, and nobody else asks.
_POLL_S, _LAST_POLL_US = 0.5, 2 * MINUTE_US
# The opening of a context that its provider refused: begun anew.
_REFUSED = "refused"
_WAITS = {
    "approval": "a person", "time": "an instant", "budget": "its budget", "resume": "a stop",
    "target": "its target", "person": "a person's word",
}  # fmt: skip


class KnownEnd(Struct, frozen=True):
    """What is known of an action's end: a person's answer if it was held, and its call's outcome.

    Nothing of either is made up: None is not known.
    """

    answer: Literal["approved", "denied"] | None = None
    outcome: Outcome | None = None


# What came of an action, as far as a trial may tell it.
KnownEnds = Callable[[Action], KnownEnd]


class TrialAction(Struct):
    """An action of a trial: what it is, what the rules say of it in mode act, what came of it."""

    action: Action
    decision: Decision
    end: str = ""

    @property
    def outcome(self) -> str:
        """Return what would be decided of it in mode act."""
        return self.decision.would or self.decision.outcome


class TrialTurn(Struct):
    """A turn of a trial: what was answered, and what became of it.

    `entry` is who answered (`RecordedTurn`), `failures` are the calls before it that gave no turn.
    `cost` is in micro units of the fleet's currency, None if it is not known. `confidence` is what
    the engine says of it. Of a cascade's judge (`is_judged`) `is_deferred` says that it was not
    sure.
    """

    briefing: Briefing
    judgement: ReasonerJudgement
    entry: str
    failures: Sequence[RecordedFailure] = ()
    actions: list[TrialAction] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    cost: int | None = None
    confidence: float = 0.0
    is_judged: bool = False
    is_deferred: bool = False

    @property
    def number(self) -> int:
        """Return which turn of its run it is, from 1."""
        return self.briefing.turn

    @property
    def model(self) -> str:
        """Return the model that answered, as its provider calls it; "" of a judge."""
        said = self.judgement.model_turn
        return "" if said is None else said.model

    @property
    def recorded(self) -> RecordedTurn:
        """Return the record of it."""
        return record_turn(self.briefing, self.judgement, self.entry, self.failures)

    @property
    def recoveries(self) -> dict[str, int]:
        """Return what the model was told no of in it, and went on from."""
        refused, said = RequestRefused.code, self.judgement.model_turn
        return {
            "denied": sum(one.outcome == "deny" for one in self.actions),
            "refused": len(self.refused),
            "contexts": int(said is not None and said.opens == _REFUSED),
            "answers": sum(one.code != refused for one in self.failures),
        }


class TrialRun(Struct):
    """What came of an event's trial: how far it came, which `ended` says in words.

    `waits`: for a person, or for an instant by policy; `uncalled`: for what would come of a call;
    `stale`: for what no recording has; `failed`: it was cut off, or there is no turn to go on with.
    `usage` has no recoveries.
    """

    event: Event
    turns: list[TrialTurn] = field(default_factory=list)
    usage: ModelUsage = field(default_factory=ModelUsage)
    state: Literal["done", "waits", "uncalled", "stale", "failed"] = "done"
    ended: str = ""

    @property
    def model_turns(self) -> list[TrialTurn]:
        """Return the turns that a model took."""
        return [turn for turn in self.turns if not turn.is_judged]

    def end(self, state: Literal["done", "waits", "uncalled", "stale", "failed"], how: str) -> None:
        """Say how it ended."""
        self.state, self.ended = state, how


def sum_usage(runs: Sequence[TrialRun], *, is_expected: bool) -> ModelUsage:
    """Return what runs used; their recoveries only if what was expected was reached."""
    total = ModelUsage()
    for run in runs:
        total.add(run.usage)
        if is_expected and run.state == "done":
            for turn in run.model_turns:
                total.add(ModelUsage(recoveries=turn.recoveries))
    return total


# --- the services of a trial ----------------------------------------------------------------------


class TrialGateway(Gateway):
    """The gateway of a trial: decides as in mode act, and notes each action's first decision.

    The line is given what the run goes on by: an action of which it is known that a person approved
    or denied it is no longer held. `stopped` names tools that are stopped.
    """

    actions: dict[str, TrialAction] = field(default_factory=dict)
    ends: KnownEnds = lambda action: KnownEnd()
    stopped: frozenset[str] = frozenset()

    def decide(self, action: Action, decision_context: DecisionContext) -> DecisionRecord:
        """Decide one action."""
        if action.tool.name in self.stopped:
            decision_context = replace(decision_context, stopped=True)
        record: DecisionRecord | None = None

        def ask(asked: Action, context: DecisionContext) -> DecisionRecord:
            nonlocal record
            record = Gateway.decide(self, asked, context)
            return record

        decision, _ = decide_in_act(ask, action, decision_context)
        assert record is not None
        self.actions.setdefault(action.id, TrialAction(action, decision))
        return replace(record, decision=self._go_on(action, decision))

    def _go_on(self, action: Action, decision: Decision) -> Decision:
        outcome = decision.would or decision.outcome
        if outcome == "hold" and decision.wait in (None, "approval"):
            answer = self.ends(action).answer
            if answer is not None:
                outcome = "permit" if answer == "approved" else "deny"
        wait = (decision.wait or "approval") if outcome == "hold" else None
        return replace(decision, outcome=outcome, wait=wait, would=None)


class TrialTools:
    """The tools of a trial: transactional ones compute their rows, none is called.

    `uncalled` has the runs that made a call of which nobody knows what came, and its tool.
    """

    def __init__(self, tools: ToolExecutor, gateway: TrialGateway) -> None:
        self._tools = tools
        self._gateway = gateway
        self.uncalled: dict[str, str] = {}

    def compute_rows(self, tool: Tool, call: Call, row: Mapping[str, Any] | None) -> list[RowWrite]:
        """Return what a transactional tool writes. Raises what the tool raises."""
        return self._tools.compute_rows(tool, call, row)

    async def perform(
        self, tool: Tool, call: Call, may_start: Callable[[], bool]
    ) -> Outcome | None:
        """Return what is known to have come of such a call."""
        if not may_start():
            return None
        outcome = self._find(call)
        if outcome is not None:
            return outcome
        # The reasoner is not asked again in this run, so nobody is told this.
        self.uncalled.setdefault(call.run, tool.name)
        return Outcome("failed", error="was not called")

    async def query(self, tool: Tool, call: Call) -> Outcome | None:
        """Return what is known to have come of a call."""
        return self._find(call)

    def _find(self, call: Call) -> Outcome | None:
        return self._gateway.ends(self._gateway.actions[f"act_{call.key}"].action).outcome

    def close(self) -> None:
        """Let go of what the real ones hold."""
        tools: Any = self._tools
        tools.close()


class TrialArtefacts(RunArtefacts):
    """The artefacts of a trial: of its own outcomes, and those `on_record`, as they were read then.

    Salts are a function of the action, so that ids are those of the recording: nothing is kept.
    """

    def __init__(self, gateway: TrialGateway, tools: TrialTools) -> None:
        self._gateway = gateway
        self._tools = tools
        self.on_record: Collection[str] = ()

    def draw_salt(self, action: str, number: int) -> bytes:
        """Return the salt of an action's artefact, by its number."""
        return bytes.fromhex(sha256_hex(f"{action} {number}".encode()))[:SALT_BYTES]

    def find_owner(self, reads: ArtefactReads, action: Action) -> Owner:
        """Say whose artefact an action names."""
        known = action.args["id"] in self.on_record
        return "own" if known else super().find_owner(reads, action)

    def read(self, reads: ArtefactReads, action: Action) -> Outcome:
        """Return what a permitted read comes to, as far as that is known."""
        if action.args["id"] not in self.on_record:
            return super().read(reads, action)
        outcome = self._gateway.ends(action).outcome
        if outcome is None:
            self._tools.uncalled.setdefault(action.run, action.tool.name)
        return outcome or Outcome("failed", error="was not read")


class TrialReasoner(StatelessReasoner):
    """Asks another reasoner and notes what it answered; a run that cannot go on ends here."""

    def __init__(self, reasoner: Reasoner, tools: TrialTools) -> None:
        self._reasoner = reasoner
        self._tools = tools
        self.turns: dict[int, TrialTurn] = {}
        self.failures: list[RecordedFailure] = []  # since the last turn that was said
        self.last_error: VedetteError | None = None

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        """Return the other's answer. Raises what it raises."""
        if briefing.run in self._tools.uncalled:
            return ReasonerJudgement(confidence=1.0)
        self.last_error = None
        try:
            judgement = await self._reasoner.reason(briefing)
        except VedetteError as error:
            self.last_error = error
            # One that was away, and not asked, costs nothing.
            if isinstance(error, ModelError) and error.use.calls:
                use = RecordedUse.of(error.use)
                self.failures.append(RecordedFailure(error.code, briefing.model, use))
            raise
        entry, failures, self.failures = briefing.model, self.failures, []
        if isinstance(self._reasoner, RecordedReasoner):
            recorded = self._reasoner.recorded(briefing)
            entry, failures = recorded.entry, recorded.failures
        self.turns[briefing.turn] = TrialTurn(briefing, judgement, entry, failures)
        return judgement


class TrialJudge:
    """Asks an agent's judge and notes what it answered, in `turns`.

    A run that cannot go on ends here, as with `TrialReasoner`.
    """

    def __init__(self, judge: Reasoner, tools: TrialTools, turns: dict[int, TrialTurn]) -> None:
        self._judge = judge
        self._tools = tools
        self._turns = turns
        self.restore_state = judge.restore_state
        self.drop_state = judge.drop_state
        self.fold_state = judge.fold_state

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        """Return the judge's answer. Raises what it raises."""
        if briefing.run in self._tools.uncalled:
            return ReasonerJudgement(confidence=1.0)
        judgement = await self._judge.reason(briefing)
        if not judgement.needs_state:
            self._turns[briefing.turn] = TrialTurn(briefing, judgement, "", is_judged=True)
        return judgement


class TrialAgreement(Agreement, frozen=True, kw_only=True):
    """The agreement of people with a model in a trial, where nothing is audited.

    `stated` takes the place of what was measured, if a case says so.
    """

    stated: float | None = None

    def confidence(self, least_cases: int) -> float:
        """Return how sure the model is."""
        return super().confidence(least_cases) if self.stated is None else self.stated

    def audit_share_milli(self, share_milli: int) -> int:
        """Return that nothing is audited."""
        return 0


class TrialAgreements(Agreements):
    """The answers of people in a trial: those that were `measured` in a fleet, and no others."""

    measured: Agreements = field(default_factory=Agreements)
    stated: float | None = None

    async def read_answers(self, store: StoreReader) -> None:
        """Do nothing: nobody answers in a trial."""

    def agreement(self, agent: str, route: str, tool: str, release: str = "") -> Agreement:
        """Return how often people agreed, or what is stated."""
        found = self.measured.agreement(agent, route, tool, release)
        return TrialAgreement(**asdict(found), stated=self.stated)


class TrialBudgets(BudgetPolicy, frozen=True, kw_only=True):
    """The budgets of a trial: as in a fleet that has spent `used` by now, by (name, unit, span)."""

    used: Mapping[tuple[str, str, str], int]

    def caps(self, agent: str, budget: Budget, units: tuple[str, ...]) -> tuple[BudgetCap, ...]:
        """Return the limits by hour and day that spending these units has to keep."""
        names = {"agent": agent, "fleet": FLEET}
        return tuple(
            replace(cap, used=self.used.get((names[cap.scope], cap.unit, cap.span), 0))
            for cap in BudgetPolicy.caps(self, agent, budget, units)
        )


# --- the trial --------------------------------------------------------------------------------


class Trial:
    """The trial of one agent on the services of a fleet that nobody else uses, one event at a time.

    `reasoner` takes the place of what asks the agent's model, and so do gateway and tools of a
    trial. `ends` is what is known of actions, `stopped` names tools that are stopped, `secrecy` are
    the rules of events' labels, `judge` is the agent's own, if it has one.
    """

    def __init__(
        self,
        services: Services,
        agent: Agent,
        reasoner: Reasoner,
        ends: KnownEnds,
        secrecy: Sequence[ReaderRule],
        stopped: frozenset[str] = frozenset(),
        judge: Reasoner | None = None,
    ) -> None:
        self.services = services
        self.agent = agent
        self.judge = judge
        self._secrecy = secrecy
        self._reasoner = reasoner
        live = services.gateway
        self.gateway = TrialGateway(
            live.engine, live.policy_rev, live.counts, ends=ends, stopped=stopped
        )
        self._tools = TrialTools(services.tool_executor, self.gateway)
        self.artefacts = TrialArtefacts(self.gateway, self._tools)
        services.gateway, services.tool_executor = self.gateway, self._tools
        services.artefacts = self.artefacts

    async def run(self, raw: Event, row: Mapping[str, Any] | None = None) -> TrialRun:
        """Take an event through the line; `row` is the agent's of its key before it.

        Raises BadEvent, and what the reasoner raises but for its model's errors.
        """
        services, agent = self.services, self.agent
        event = to_stored_event(raw, self._secrecy)
        payload = check_event(event, max_bytes=MAX_EVENT)
        noting = TrialReasoner(self._reasoner, self._tools)
        services.reasoners = {**services.reasoners, agent.last_reasoner: noting}
        if self.judge is not None:
            services.reasoners[agent.reasoner] = TrialJudge(self.judge, self._tools, noting.turns)
        key = agent.key_of(event)
        if row and agent.collection:
            services.keys.cache_rows([RowWrite(agent.collection, key, row)])
        arrival = Arrival(event, payload, ((agent.name, key),), subject_of(event))
        (accepted,) = await services.store.steps.accept([arrival], None)
        if not accepted.runs:
            return TrialRun(event, state="failed", ended="is there already: it wakes nobody twice")
        found = TrialRun(event)
        run = await self._take_to_end(accepted.runs[0], noting, found)
        self._collect(run, noting, found)
        return found

    async def _take_to_end(self, run: Run, noting: TrialReasoner, found: TrialRun) -> Run:
        services, come_to, tries, until_us = self.services, -1, 0, 0
        while True:
            noting.last_error = None
            why = await self._go_on(run, found)
            run = services.store.runs.run(run.id) or run
            rows = services.store.runs.actions(run.id)
            if found.ended or run.state == "done" or run.id in self._tools.uncalled:
                return run
            if services.stops.is_agent_stopped(self.agent.name):
                found.end("failed", "was cut off: a limit stopped the agent")
                return run
            if run.state == "waiting" and run.waits != "model":
                _end_waiting(run, rows, found)
                return run
            now, further = services.clock.now_us(), run.turn + sum(row.is_final for row in rows)
            if further > come_to:
                come_to, tries, until_us = further, 0, now + _LAST_POLL_US
            if run.waits == "model":
                if (away := self._away_because(noting.last_error)) is not None:
                    why, tries = f"had no answer of its model: {away}", _ATTEMPTS
                elif noting.last_error is None:  # the limits of [models] have no room for it now
                    await asyncio.sleep(_POLL_S)
                services.parked_runs.unpark(run)
            else:
                tries += 1
            if tries >= _ATTEMPTS or now >= until_us:
                found.end("failed", why or "was given up: it came no further")
                return run

    async def _go_on(self, run: Run, found: TrialRun) -> str:
        """Take a run as far as it goes now; return why it failed, if it may be tried again."""
        epoch = self.services.store.cluster.lease_epoch(run)
        assert epoch is not None, "nobody else has this store"
        try:
            context = await handle(self.services, Lease(run, epoch))
            if context is not None:
                await run_to_completion(self.services, context)
        except StaleRecording as error:
            found.end("stale", error.what)
        except (Superseded, Temporary) as error:  # nobody else moves anything here
            return f"was given up: {error.what}"
        except Permanent as error:
            found.end("failed", f"would be a dead letter: {error.what}")
        return ""

    def _away_because(self, error: VedetteError | None) -> str | None:
        """Return why no model that may be asked answers; None if one of them may."""
        now, routes = self.services.clock.now_us(), list(self.services.models.routes(self.agent))
        if isinstance(error, ModelAway) and len(routes) == 1:
            return error.what
        if all(calls.is_away(now) for calls in routes):
            whys = (calls.breaker.why or "it failed" for calls in routes)
            return f"it is left alone ({', '.join(whys)})"
        return None

    def _collect(self, run: Run, noting: TrialReasoner, found: TrialRun) -> None:
        store = self.services.store
        rows = {row.id: row for row in store.runs.actions(run.id)}
        decided = [one for one in self.gateway.actions.values() if one.action.run == run.id]
        entries, refusals = _read_entries(store, run)
        # Not so the turn that only ended the run, nor one that was said and not taken.
        found.turns = [noting.turns[at] for at in range(1, run.turn + 1) if at in noting.turns]
        for turn in found.turns:
            turn.confidence = entries[turn.number]["confidence_milli"] / 1000
            turn.is_deferred = entries[turn.number].get("what") == "deferred"
            turn.refused = refusals.get(turn.number, [])
            turn.actions = sorted(
                (one for one in decided if one.action.turn == turn.number),
                key=lambda one: one.action.ordinal,
            )
            for one in turn.actions:
                row = rows.get(one.action.id)
                one.end = "" if row is None else str(coarse_answer(row)["status"])
            turn.cost = 0 if turn.is_judged else self._price(turn.entry, turn.judgement.use)
        self._sum_usage(noting, found)
        if found.ended:
            return
        tool = self._tools.uncalled.get(run.id)
        if tool is not None:
            found.end("uncalled", f"{tool} would be called; what would come of it is not known")
            for turn in found.turns[-1:]:
                for one in turn.actions:
                    one.end = "would be called" if one.end == "failed" else one.end
        else:
            found.end("done", "done")

    def _sum_usage(self, noting: TrialReasoner, found: TrialRun) -> None:
        """Sum what was asked, whatever came of it; none of it is taken back."""
        said = [turn for turn in noting.turns.values() if not turn.is_judged]
        lost = [one for turn in said for one in turn.failures] + noting.failures
        uses = [(turn.entry, turn.judgement.use) for turn in said]
        uses += [(one.entry, ModelUse(one.use.calls, one.use.spent)) for one in lost]
        found.usage.turns = len(found.model_turns)
        for entry, use in uses:
            tokens = use.spent.get(INPUT_TOKENS), use.spent.get(OUTPUT_TOKENS)
            found.usage.add(ModelUsage(0, use.calls, *tokens, self._price(entry, use)))

    def _price(self, entry: str, use: ModelUse) -> int | None:
        """Return what a use of a model cost; None where its tokens or their price are not known.

        `entry` is its table of [models]; "" for one that the agent's code names.
        """
        model = self.services.models.entries.get(entry)
        price = self.services.budgets.price_of(priced_budget(self.agent.budget, model))
        known = {INPUT_TOKENS, OUTPUT_TOKENS} <= use.spent.keys() and (model or not entry)
        if price is None or not known:
            return None
        return price.cost(use.spent[INPUT_TOKENS], use.spent[OUTPUT_TOKENS])


def _end_waiting(run: Run, rows: Sequence[ActionRow], found: TrialRun) -> None:
    """Say how a run ended that waits: cut off, unless for a person, or for what policy says."""
    waits = {run.waits, *(row.waits for row in rows if row.waits and not row.is_final)}
    cut = sorted(str(one) for one in waits - {"approval", "time", "person"})
    if cut:
        found.end("failed", f"was cut off: it waits for {_WAITS.get(cut[0], cut[0])}")
    else:
        found.end("waits", f"waits for {_WAITS[str(run.waits)]}")


def _read_entries(
    store: Store, run: Run
) -> tuple[dict[int, Mapping[str, Any]], dict[int, list[str]]]:
    """Return, by turn, the entries of a run's turns (one that did nothing is its close), and why
    proposals were no actions.
    """
    turns: dict[int, Mapping[str, Any]] = {}
    refusals: dict[int, list[str]] = {}
    for _, raw, body in store.ledger.entries("run", run.id):
        entry = orjson.loads(raw)
        if entry["kind"] in ("turn.reasoned", "run.closed"):
            turns.setdefault(int(entry.get("turn", run.turn)), entry)
        elif entry["kind"] == "action.refused" and body is not None:
            turn = int(entry.get("turn", 0))
            refusals.setdefault(turn, []).append(str(orjson.loads(body)["why"]))
    return turns, refusals
