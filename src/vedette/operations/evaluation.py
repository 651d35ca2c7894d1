"""Evaluation: an agent tried on its own cases, through judge and gateway, without a store.

Events go in; out comes which actions the live rules permit, hold and deny. Rows that permitted
transactional tools write are kept from event to event, as in the line; calling tools are not
called: nothing outside is touched. Cases say what an agent would do in mode act, so that they hold
whatever mode it is in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from vedette.domain.action import Action, bind_proposal, check_confidence
from vedette.domain.agent import Agent
from vedette.domain.base.errors import BadProposal, TurnLimit
from vedette.domain.budget import ACTIONS
from vedette.domain.decision import Decision, DecisionContext, DecisionRecord
from vedette.domain.effect import Outcome
from vedette.domain.event import Event, check_event
from vedette.domain.memory import Briefing, Memory, reviewed_ids
from vedette.domain.origin import Roots
from vedette.domain.ports.reasoner import ToolExecutor
from vedette.domain.readers import ReaderRule, Readers, event_readers
from vedette.domain.run import run_id
from vedette.engine.tool_calls import build_call
from vedette.judging import Judge, Judgement
from vedette.ledger.history.trajectory import Trajectory, counts_json
from vedette.policy.gateway import Gateway

MAX_EVENT = 1 << 24  # bytes of a tried event
OUTCOMES = {"permit": "permitted", "hold": "held", "deny": "denied"}

# Memories for an event, as recall would brief a run with them under the case's own gateway.
RecallFunction = Callable[[Gateway, Agent, Event], Sequence[Memory]]


class EvalCase(Struct, frozen=True):
    """An evaluation's case: events, and what is expected, lists as multisets, `label` at the end.

    Whatever `expect` does not name is not looked at. `where` is file and line. `outcomes` are what
    an agent is told came of its calls, by tool: of those that are held, once a person has approved.
    `confidence` (0..1) is how sure a model is taken to be; None: nobody has measured it. Of a task
    `expect` may name the `conditions` that are met, the least `credit_milli` and the most `turns`.
    """

    name: str
    where: str
    events: tuple[Event, ...]
    expect: Mapping[str, Any]
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    confidence: float | None = None


class EvalResult(Struct, frozen=True):
    """What came of a case of an evaluation. `differences` is empty if all was as expected.

    `rules` says for every decided action which rule decided it: (tool, outcome, rule). Of a model's
    `basis` is where its words are from, `ended` how its last run ended, `usage` what it used.
    `task` is the score of its last run, if that is a task (`TaskScore.to_json`).
    """

    case: EvalCase
    agent: str
    label: str
    rules: tuple[tuple[str, str, str], ...]
    differences: tuple[str, ...]
    basis: str = ""
    ended: str = ""
    usage: ModelUsage | None = None
    task: TaskScore | None = None

    @property
    def ok(self) -> bool:
        """Say whether all was as expected."""
        return not self.differences

    def tools_by_outcome(self, outcome: str) -> list[str]:
        """Return the tools whose actions had this outcome, in order."""
        return [tool for tool, decided, _ in self.rules if decided == outcome]

    def to_json(self) -> dict[str, Any]:
        """Return the result as `--json` prints it."""
        model = {
            "basis": self.basis, "ended": self.ended,
            "usage": None if self.usage is None else self.usage.to_json(),
        }  # fmt: skip
        return {
            "agent": self.agent,
            "name": self.case.name,
            "where": self.case.where,
            "ok": self.ok,
            "label": self.label,
            **{name: self.tools_by_outcome(outcome) for outcome, name in OUTCOMES.items()},
            "decisions": [
                {"tool": tool, "outcome": outcome, "rule": rule}
                for tool, outcome, rule in self.rules
            ],
            "differences": list(self.differences),
            **({"model": model} if self.basis else {}),
            **({"task": self.task.to_json()} if self.task is not None else {}),
        }


class TaskScore(Struct, frozen=True):
    """What a tried task reached, out of the trajectory of its run in the trial.

    `credit` is its partial credit (`Trajectory.credit`), `met` the conditions that are met,
    `refused` counts refusals by rule, `recovered` what came right after a failure, `spend` is what
    was settled, by unit.
    """

    state: str
    credit: Mapping[str, Any]
    met: Sequence[str]
    turns: int
    repeated: int
    refused: Mapping[str, int]
    recovered: Mapping[str, int]
    spend: Mapping[str, int]

    @classmethod
    def of(cls, course: Trajectory) -> TaskScore:
        """Return the score of a task by its trajectory."""
        counts = counts_json(course.counts)
        names = ("turns", "repeated", "refused", "recovered", "spend")
        own = {name: counts[name] for name in names}
        return cls(course.state, course.credit(), course.met(), **own)

    def to_json(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return {
            "state": self.state, **self.credit, "met": list(self.met), "turns": self.turns,
            "repeated": self.repeated, "refused": dict(self.refused),
            "recovered": dict(self.recovered), "spend": dict(self.spend),
        }  # fmt: skip

    def differences(self, expect: Mapping[str, Any]) -> list[str]:
        """Say in what it falls short of what is expected of a task."""
        found = []
        wanted, met = expect.get("conditions"), sorted(self.met)
        if wanted is not None and sorted(wanted) != met:
            names = (", ".join(one) or "none" for one in (sorted(wanted), met))
            found.append("conditions met: expected {}, found {}".format(*names))
        least, credit = expect.get("credit_milli"), self.credit["credit_milli"]
        if least is not None and credit < least:
            found.append(f"credit_milli: expected {least} at least, found {credit}")
        most = expect.get("turns")
        if most is not None and self.turns > most:
            found.append(f"turns: expected {most} at most, found {self.turns}")
        return found


class ModelUsage(Struct):
    """What tried cases used of a model. Tokens and cost are None as soon as one is not known.

    `recoveries` counts what a run was told no of and still ended as was expected: denied actions,
    refused proposals, contexts begun anew, answers that were not taken.
    """

    turns: int = 0
    calls: int = 0
    input_tokens: int | None = 0
    output_tokens: int | None = 0
    cost_micros: int | None = 0
    recoveries: dict[str, int] = field(
        default_factory=lambda: {"denied": 0, "refused": 0, "contexts": 0, "answers": 0}
    )

    def add(self, other: ModelUsage) -> None:
        """Add another's."""
        self.turns += other.turns
        self.calls += other.calls
        self.input_tokens = _sum_known(self.input_tokens, other.input_tokens)
        self.output_tokens = _sum_known(self.output_tokens, other.output_tokens)
        self.cost_micros = _sum_known(self.cost_micros, other.cost_micros)
        for kind, number in other.recoveries.items():
            self.recoveries[kind] += number

    def to_json(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return {
            "turns": self.turns, "calls": self.calls, "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens, "cost_micros": self.cost_micros,
            "recoveries": dict(self.recoveries),
        }  # fmt: skip


def _sum_known(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


class Evaluation(Struct):
    """The evaluation of one agent: its judge, and a fresh gateway and fresh rows for every case."""

    agent: Agent
    judge: Judge
    gateway: Callable[[], Gateway]
    performer: ToolExecutor
    recall: RecallFunction
    registry: Mapping[str, Any]
    targets: Mapping[str, Mapping[str, Any]]
    now_us: int
    secrecy: Sequence[ReaderRule]

    def run(self, case: EvalCase) -> EvalResult:
        """Put a case through. Raises what the judge raises, BadConfidence, and TurnLimit for a
        judgement that is not final.
        """
        case_run = _CaseRun(self, self.gateway())
        for event in case.events:
            case_run.handle_event(event)
        return EvalResult(
            case,
            self.agent.name,
            case_run.label,
            tuple(case_run.rules),
            case_run.differences(case.expect),
        )


class _CaseRun(Struct):
    trial: Evaluation
    gateway: Gateway
    label: str = ""
    rules: list[tuple[str, str, str]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    states: dict[str, Any] = field(default_factory=dict)
    last_positions: dict[str, int] = field(default_factory=dict)
    rows: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    position: int = 0

    def handle_event(self, raw: Event) -> None:
        trial, agent = self.trial, self.trial.agent
        event = to_stored_event(raw, trial.secrecy)
        key = agent.key_of(event)
        self.position += 1
        memories = tuple(trial.recall(self.gateway, agent, event))
        briefing = first_briefing(
            agent, event, trial.registry, memories, self.rows.get(key, {}),
            position=self.position, previous=self.last_positions.get(key, 0),
        )  # fmt: skip
        judgement = self._judge(key, event, briefing)
        self.label, self.last_positions[key] = judgement.label, self.position
        self._decide(judgement, briefing, first_roots(agent, briefing))

    def _judge(self, key: str, event: Event, briefing: Briefing) -> Judgement:
        judge = self.trial.judge
        if key not in self.states:
            self.states[key] = judge.blank()
        judgement = judge.judge(judge.observe(self.states[key], event), briefing)
        check_only_turn(self.trial.agent, judgement.final)
        return judgement

    def _decide(self, judgement: Judgement, briefing: Briefing, roots: Roots) -> None:
        agent, permits = self.trial.agent, 0
        confidence = check_confidence(judgement.confidence, f"the judgement of {agent.name}")
        for ordinal, proposal in enumerate(judgement.proposals):
            try:
                action = bind_proposal(
                    proposal, agent.tools, roots, run=briefing.run, turn=1, ordinal=ordinal,
                    confidence=confidence,
                )  # fmt: skip
            except BadProposal as error:
                self.refused.append(f"a proposal is no action: {error}")
                continue
            cited = [(memory.cite(), memory.trust) for memory in briefing.memories]
            decision_context = DecisionContext(
                agent, briefing.event, 1, self.trial.now_us, cited, permits
            )
            outcome, rule = self._decide_in_act(action, decision_context)
            self.rules.append((action.tool.name, outcome, rule))
            if outcome == "permit":
                permits += 1
                self._write(action, briefing)

    def _decide_in_act(self, action: Action, decision_context: DecisionContext) -> tuple[str, str]:
        decision, is_counted = decide_in_act(self.gateway.decide, action, decision_context)
        if is_counted:
            agent, now = decision_context.agent.name, decision_context.now_us
            self.gateway.counts.add(agent, ACTIONS, now)
        return decision.would or decision.outcome, decision.rule

    def _write(self, action: Action, briefing: Briefing) -> None:
        if action.tool.settles != "transactional" or action.tool.performer is not None:
            return
        trial = self.trial
        target = trial.targets.get(action.tool.target or "", {})
        call = build_call(action, trial.agent, briefing.event, target, 1)
        for write in trial.performer.compute_rows(
            action.tool, call, self.rows.get(briefing.key, {})
        ):
            self.rows[write.key] = dict(write.row or {})

    def differences(self, expect: Mapping[str, Any]) -> tuple[str, ...]:
        rules = [(tool, outcome) for tool, outcome, _ in self.rules]
        return (*self.refused, *list_differences(expect, self.label, rules))


def list_differences(
    expect: Mapping[str, Any], label: str, rules: Sequence[tuple[str, str]]
) -> list[str]:
    """Say in what a case's end differs from what is expected; `rules` has (tool, outcome)."""
    found = []
    wanted = expect.get("label")
    if wanted is not None and wanted != label:
        found.append(f"label: expected {wanted!r}, found {label!r}")
    for outcome, name in OUTCOMES.items():
        if expect.get(name) is None:
            continue
        want = Counter(expect[name])
        have = Counter(tool for tool, decided in rules if decided == outcome)
        if want != have:
            found.append(f"{name}: expected {_format_tools(want)}, found {_format_tools(have)}")
    return found


def _format_tools(tools: Counter[str]) -> str:
    return ", ".join(sorted(tools.elements())) or "none"


def decide_in_act(
    decide: Callable[[Action, DecisionContext], DecisionRecord],
    action: Action,
    decision_context: DecisionContext,
) -> tuple[Decision, bool]:
    """Return what is decided in mode act, by what policy says of observe (`would`, if it says so).

    The other is whether the first answer was a permit, which counts.
    """
    decision = decide(action, decision_context).decision
    is_permit = decision.outcome == "permit"
    if "mode.ask" in decision.reasons:
        observing = replace(
            decision_context, agent=replace(decision_context.agent, requested_mode="observe")
        )
        decision = decide(action, observing).decision
    return decision, is_permit


# --- a first turn, also for whoever tries one event -----------------------------------------------


def to_stored_event(raw: Event, secrecy: Sequence[ReaderRule]) -> Event:
    """Return a tried event as everybody in the line sees it: labelled by the rules of [secrecy],
    and as it was stored. Raises BadEvent.
    """
    readers = event_readers(secrecy, raw.source, raw.type, raw.readers)
    payload = check_event(replace(raw, readers=readers), max_bytes=MAX_EVENT)
    return Event.from_body(orjson.loads(payload))


def first_briefing(
    agent: Agent,
    event: Event,
    registry: Mapping[str, Any],
    memories: tuple[Memory, ...],
    row: Mapping[str, Any],
    *,
    position: int,
    previous: int,
) -> Briefing:
    """Return what an evaluation hands an agent for the first turn of an event's run."""
    return Briefing(
        run=run_id(event.source, event.id, agent.name),
        agent=agent.name,
        key=agent.key_of(event),
        position=position,
        previous=previous,
        turn=1,
        event=event,
        charter=agent.charter,
        registry=registry,
        memories=memories,
        row=row,
    )


def check_only_turn(agent: Agent, final: bool) -> None:
    """Raise TurnLimit if a judge that has one turn asks for another: its run would be dead."""
    if not final and agent.cascade is not None:
        mend = "return final judgements in judge.py, or leave the model out"
        raise TurnLimit(f"the judge of {agent.name} has one turn, and wanted another", mend=mend)
    if not final:
        mend = f"write max_turns: 4 in {agent.name}/agent.yaml, or return final judgements"
        raise TurnLimit(f"{agent.name} has one turn, and its judge wanted another", mend=mend)


def first_roots(agent: Agent, briefing: Briefing, row_readers: Readers = None) -> Roots:
    """Return what a tried first turn's proposals may point at: nothing has an outcome yet.

    `row_readers` are those who may read the row of the briefing.
    """
    event = briefing.event
    return Roots(
        event=event.root(),
        vouched=event.vouched,
        charter=briefing.charter,
        registry=briefing.registry,
        memory={m.id: {"text": m.text, "label": m.label} for m in briefing.memories},
        trusted_memories=reviewed_ids(briefing.memories),
        outcome={},
        trusted_outcomes=frozenset(),
        row=briefing.row,
        labels=agent.label_run(event, briefing.memories, row_readers, {}),
    )
