"""`vedette try` of a model agent: its recorded turns under today's rules, or its model asked anew.

What the model said to an event of the past stands in the ledger, with what came of its calls. It is
put through the live rules as it was said; where they would have told the model something else than
it was told, what it would have said to that is not on record, and the trial ends there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import orjson
from msgspec import Struct
from msgspec.structs import replace

from vedette.app.dry_run import PriorState, describe_action, describe_memory, describe_trial
from vedette.app.model_trial import list_routes, open_trials, read_used, refuse_stopped
from vedette.app.policy_state import live_bundle
from vedette.app.trial import open_dry_run
from vedette.domain.action import Action
from vedette.domain.agent import Agent
from vedette.domain.base.clock import SystemClock, iso
from vedette.domain.base.errors import BadCommand
from vedette.domain.cascade import read_proposals
from vedette.domain.effect import Outcome
from vedette.domain.event import Event
from vedette.domain.memory import Briefing
from vedette.domain.model_turn import read_model_turn
from vedette.domain.ports.reasoner import Reasoner, ReasonerJudgement, StatelessReasoner
from vedette.domain.run import ActionRow
from vedette.engine.tool_calls import coarse_answers
from vedette.operations.model_trial import KnownEnd, TrialTurn, sum_usage
from vedette.operations.recordings import (
    RecordedCall,
    RecordedReasoner,
    RecordedRun,
    RecordedTurn,
    RecordedUse,
    StaleRecording,
    digest_event,
    digest_outcome,
    digest_outcomes,
    event_name,
)

if TYPE_CHECKING:
    from vedette.config.fleet import LoadedFleet
    from vedette.config.settings import Settings
    from vedette.store.reader import StoreReader

SCHEMA = "vedette.try-model/1"


class RecordedEvent(Struct, frozen=True):
    """What the ledger has of a model's turns on an event: the event, the turns, and the rows of
    their actions. `release` is the agent's for which its model took the first, `judged` what its
    judge said before it deferred to the model, `artefacts` the ids of the run's.
    """

    event: Event
    run: RecordedRun
    rows: Mapping[str, ActionRow]
    at_us: int
    release: str
    models: Sequence[str]
    judged: ReasonerJudgement | None = None
    artefacts: Collection[str] = ()

    def find_end(self, action: Action) -> KnownEnd:
        """Return what the ledger says came of an action; nothing if it was another than this."""
        row = self.rows.get(action.id)
        return KnownEnd() if row is None or row.digest != action.digest else end_of_row(row)


def load_recorded_event(
    store: StoreReader, settings: Settings, agent: Agent, event: Event
) -> RecordedEvent | None:
    """Return the turns of an agent's run of an event out of the ledger; None if it took none.

    Raises BadCommand if what was said was erased, StaleRecording if it was said to another event
    of this source and id.
    """
    run = next(
        (one for one in store.runs.runs_of_event(event.key) if one.agent == agent.name), None
    )
    if run is None or not run.turn:
        return None
    bodies, rows = store.runs.turns(run.id), store.runs.actions(run.id)
    entries = [orjson.loads(raw) for _, raw, _ in store.ledger.entries("run", run.id)]
    taken = [one for one in entries if one["kind"] == "turn.reasoned"]
    first = next((one for one in taken if one.get("what") != "deferred"), None)
    if first is None:
        return None  # one that was deferred waits for its model; one that did nothing left no word
    if len(bodies) == run.turn and not any(map(read_model_turn, bodies)):
        return None  # a judge was asked then
    stored = store.runs.event(event.key)
    if len(bodies) != run.turn or stored is None:
        what = f"what the model said of {event.key} was erased, or edited"
        raise BadCommand(what, mend=f"ask anew: vedette try {agent.name} EVENT --live")
    if digest_event(stored) != digest_event(event):
        what = f"the event on record of {event.source} {event.id} is another than this"
        mend = f"try the recorded one, vedette try {agent.name} {event.key}, or ask: --live"
        raise StaleRecording(what, mend=mend)
    # The names of [models] by what their providers call them; none where only agent.py names one.
    served = {one.served_name: name for name, one in list_routes(settings, agent).items()}
    told: dict[str, str] = {}
    turns: list[RecordedTurn] = []
    judged = None
    for number, body in enumerate(bodies, 1):
        if body.get("deferred"):
            judged = _read_judgement(body, agent)
            continue
        turns.append(_to_recorded_turn(served, number, body, dict(told)))
        told |= digest_outcome(number, coarse_answers(rows, number))
    return RecordedEvent(
        stored,
        RecordedRun(event_name(stored), turns),
        {row.id: row for row in rows},
        int(first["at"]),
        str(first.get("release", "")),
        list(dict.fromkeys(turn.model for turn in turns if turn.model)),
        judged,
        store.runs.artefact_sizes(run.id).keys(),
    )


def _read_judgement(body: Mapping[str, Any], agent: Agent) -> ReasonerJudgement:
    """Return what a judge said, out of its recorded turn."""
    return ReasonerJudgement(
        body["label"], float(body["confidence"]), read_proposals(body, agent.tools),
        detail=body["detail"], final=body["final"],
    )  # fmt: skip


class _RecordedJudge(StatelessReasoner):
    """The judge of a cascade out of the ledger: it says what it said."""

    def __init__(self, judgement: ReasonerJudgement) -> None:
        self._judgement = judgement

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        """Return what it said then."""
        return self._judgement


class PriorJudge(StatelessReasoner):
    """An agent's judge as it was before the event that is tried."""

    def __init__(self, judge: Reasoner, prior: PriorState) -> None:
        self._judge = judge
        self._prior = prior

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        """Return what it says of the event. Raises what it raises."""
        prior = self._prior
        self._judge.restore_state(
            briefing.agent, briefing.key, prior.checkpoint, prior.position, prior.since
        )
        previous = prior.last if briefing.turn == 1 else 0  # later turns have no state of the key
        placed = replace(briefing, position=prior.last + 1, previous=previous)
        return await self._judge.reason(placed)


def _to_recorded_turn(
    served: Mapping[str, str], number: int, body: Mapping[str, Any], told: dict[str, str]
) -> RecordedTurn:
    said, detail = read_model_turn(body), body.get("detail", {})
    tokens, model = detail.get("tokens", {}), said.model if said is not None else ""
    return RecordedTurn(
        turn=number,
        told=told,
        # One that is asked no more has a name that [models] does not know, and so no price.
        entry=served.get(model, model) if served else "",
        model=model,
        route=said.route if said is not None else "",
        opens=said.opens if said is not None else "",
        label=body["label"],
        text=str(detail.get("text", "")),
        calls=[RecordedCall(one["tool"], one["args"]) for one in body["proposals"]],
        final=body["final"],
        use=RecordedUse(1, tokens.get("input_tokens"), tokens.get("output_tokens")),
    )


def end_of_row(row: ActionRow) -> KnownEnd:
    """Return what the ledger says came of an action; no outcome if it is not over, or was cut.

    Held it is over by a person's answer alone: what policy let go by itself then, it may hold now.
    """
    answer: Literal["approved", "denied"] | None = None
    if row.rule in ("hold.denied", "hold.expired"):
        answer = "denied"
    elif row.approver is not None and row.hold in ("approved", "used"):
        answer = "approved"
    if row.effect in ("done", "failed") and row.answer:
        found = orjson.loads(row.answer)
        return KnownEnd(answer, Outcome(row.effect, found["data"], found.get("error", "")))
    if row.effect == "cancelled":
        return KnownEnd(answer, Outcome("failed", error="was cancelled"))
    return KnownEnd(answer)


async def try_model_event(
    settings: Settings,
    loaded: LoadedFleet,
    agent: Agent,
    event: Event,
    prior: PriorState,
    store: StoreReader | None,
    *,
    live: bool,
    end_reading: Callable[[], None],
) -> dict[str, Any]:
    """Put an event to a model agent: its recorded turns under today's rules, or asked anew.

    Its model is as sure as people's answers say by now. A cascade whose model was not asked is put
    to its judge alone (`DryRun.run`), which costs nothing.

    `end_reading` is called once the store was read, before a model is asked: nothing of the store
    is held meanwhile. Returns what came of it as one JSON object. Raises BadCommand where nothing
    is recorded or the agent is stopped, StaleRecording, and as `open_trials`.
    """
    recorded, used = None, None
    if live and store is not None:
        refuse_stopped(store, [agent])
        used = read_used(store.spend, SystemClock().now_us())
    if not live:
        found = None if store is None else load_recorded_event(store, settings, agent, event)
        if found is None and agent.cascade is not None:
            now_us = SystemClock().now_us()
            return open_dry_run(settings, loaded, agent, store, now_us).run(event, prior)
        if found is None:
            what = f"nothing is recorded of what the model of {agent.name} said to this event"
            mend = "ask it, which costs: add --live"
            raise BadCommand(what, mend=mend, code="not-recorded")
        recorded = found
    number, bundle = live_bundle(settings, store)
    ends, reasoner = (lambda action: KnownEnd()), None
    if recorded is not None:
        ends, event = recorded.find_end, recorded.event
        reasoner = RecordedReasoner(agent, [recorded.run], digest_outcomes)
    async with (
        open_trials(settings, loaded, agent, bundle, live=live, store=store, used=used) as trials,
        trials.open_trial(ends, reasoner) as trial,
    ):
        end_reading()
        if recorded is not None:
            trial.artefacts.on_record = recorded.artefacts
        if recorded is not None and recorded.judged is not None:
            trial.judge = _RecordedJudge(recorded.judged)
        elif trial.judge is not None:
            trial.judge = PriorJudge(trial.judge, prior)
        run = await trial.run(event, prior.row)
    models = [turn.model for turn in run.model_turns] if recorded is None else recorded.models
    return {
        "schema": SCHEMA,
        **describe_trial(loaded.fleet, agent, run.event, number),
        "state": prior.description,
        "is_recording": recorded is not None,
        "recorded_at": iso(recorded.at_us) if recorded is not None else None,
        "recorded_release": recorded.release if recorded is not None else None,
        "agent_differs": recorded is not None and recorded.release != agent.release,
        "models": list(dict.fromkeys(filter(None, models))),
        "memories": [describe_memory(one) for one in run.turns[0].briefing.memories]
        if run.turns else [],
        "turns": [
            # A judge's in a cascade has the fields of a model's, too: so this schema has it.
            describe_turn(settings, agent, turn) | _model_fields(turn)
            for turn in run.turns
        ],
        "state_at_end": run.state,
        "ended": run.ended,
        "usage": sum_usage([run], is_expected=True).to_json(),
    }  # fmt: skip


def describe_turn(settings: Settings, agent: Agent, turn: TrialTurn) -> dict[str, Any]:
    """Return a tried turn as `--json` prints it."""
    said = turn.judgement
    return {
        "turn": turn.number,
        "label": said.label,
        "confidence": turn.confidence,
        "judged": turn.is_judged,
        "deferred": turn.is_deferred,
        **(_judge_fields(said) if turn.is_judged else _model_fields(turn)),
        "actions": [
            describe_action(agent, one.action, one.decision, settings.targets) | {"end": one.end}
            for one in turn.actions
        ],
        "refused": list(turn.refused),
    }


def _judge_fields(said: ReasonerJudgement) -> dict[str, Any]:
    return {
        "score": said.score,
        "threshold": said.threshold,
        "detail": dict(said.detail),
        "notes": said.notes,
        "candidates": [
            {"bank": one.bank, "scope": one.scope, "text": one.text} for one in said.candidates
        ],
    }


def _model_fields(turn: TrialTurn) -> dict[str, Any]:
    said, spent = turn.judgement, turn.judgement.spent
    return {
        "model": turn.model,
        "text": str(said.detail.get("text", "")),
        "input_tokens": spent.get("input_tokens"),
        "output_tokens": spent.get("output_tokens"),
        "cost_micros": turn.cost,
        "failures": [one.code for one in turn.failures],
    }
