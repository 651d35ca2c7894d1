"""A turn's decisions, written into one step: what becomes durable together.

Proposals become exact actions, each action is put to the gateway, and everything that follows
from the answers (entries, action rows, the fleet's own rows, spend, the judge's state) goes into
one `Step`. Nothing here waits and nothing is called outside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import orjson
from msgspec.structs import replace

from vedette.domain.action import (
    Action,
    Proposal,
    bind_proposal,
    encode_arguments,
    proposal_confidence,
)
from vedette.domain.artefact import ARTEFACT_PERFORMER
from vedette.domain.base.canonical import (
    MAX_SAFE_INTEGER,
    canonical_json,
    canonicalize,
    canonicalize_normalized,
    normalize_json,
    short_id,
)
from vedette.domain.base.errors import (
    BadConfidence,
    BadProposal,
    Permanent,
    RepeatedProposal,
    Temporary,
)
from vedette.domain.budget import ACTIONS
from vedette.domain.decision import Decision, DecisionRecord, build_difference_entry
from vedette.domain.done_condition import PERSON_ASKED
from vedette.domain.effect import Outcome, RowWrite
from vedette.domain.entry import Draft
from vedette.domain.escrow import escrow_of
from vedette.domain.hold import HoldState
from vedette.domain.judge_state import checkpoint_digest
from vedette.domain.memory import Candidate
from vedette.domain.notes import encode_notes
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.readers import is_within, meet_labels, pack_row, unpack_row
from vedette.domain.row_proof import DECIDED_KIND, EntryRecord
from vedette.domain.run import ActionRow, Step
from vedette.domain.spend import PermitCount
from vedette.domain.work_tools import ASK_TOOL, FINISH_TOOL, WORK_PERFORMER
from vedette.engine import action_holds, context_tools, tool_calls
from vedette.engine.effect_entry import find_end_kind
from vedette.engine.escrow import deny_excess, escrow_entry, find_excess
from vedette.engine.reservation import count_refusal, release_reservation
from vedette.engine.run_context import RunContext
from vedette.engine.services import Services
from vedette.engine.sessions import begin_session

BoundProposals = list[Action | BadProposal]


def bind_proposals(context: RunContext, judgement: ReasonerJudgement) -> BoundProposals:
    """Bind a turn's proposals to exact actions; what is none becomes the error that says why."""
    bound: BoundProposals = []
    assert judgement.confidence is not None  # it was refused else (`handle.ask_reasoner`)
    if judgement.deferred or not judgement.proposals:
        return bound
    roots, tools = context.roots(), context.agent.tools
    for ordinal, proposal in enumerate(judgement.proposals):
        try:
            if context.task is not None:
                context_tools.require_in_place(judgement, ordinal)
            action = bind_proposal(
                proposal,
                tools,
                roots,
                run=context.run.id,
                turn=context.run.turn + 1,
                ordinal=ordinal,
                confidence=judgement.confidence,
            )
            if context.task is not None:
                context_tools.require_valid(context, action)
                _require_new(context, action, bound)
            asks = judgement.asks or _task_asks(context, action)
            bound.append(replace(action, asks=asks) if asks else action)
        except BadProposal as error:
            bound.append(error)
    return bound


def _task_asks(context: RunContext, action: Action) -> str:
    """Say why a person is to decide a task's finish; "" if none is, and of all other actions."""
    asks = action.tool.name == FINISH_TOOL and context.task is not None and context.task.asks_person
    return PERSON_ASKED if asks else ""


def _require_new(context: RunContext, action: Action, bound: BoundProposals) -> None:
    """Raise RepeatedProposal for an action like one that is done for the same item, BadProposal for
    one like another of its turn, or of which nobody knows whether it was done.
    """
    task, told = context.task, context.task_told
    assert task is not None
    if action.tool.performer != WORK_PERFORMER and "current" in told["items"]:
        others = [one for one in bound if isinstance(one, Action)]
        if any((one.digest, one.tool) == (action.digest, action.tool) for one in others):
            raise BadProposal("the same was proposed before in this turn, for the same item")
    like = task.find_like(action, context.actions, told)
    for row in like:
        if row.effect == "done":
            raise RepeatedProposal("this was done for the same item", where=row.id)
    unsure = {row.id for row in like if row.effect is not None and row.answer is None}
    ledger = context.services.store.ledger
    for _, raw, _ in ledger.run_entries(context.run.id, ("effect.unknown",)) if unsure else ():
        if (id := orjson.loads(raw)["action"]) in unsure:
            raise BadProposal(tool_calls.UNSURE_REPEAT, where=id)


def compose_step(
    services: Services,
    context: RunContext,
    judgement: ReasonerJudgement,
    bound: BoundProposals,
    reads: list[Draft],
    counted: PermitCount,
    now: int,
) -> Step:
    """Decide every action of a turn and write all of it into one step.

    `counted` counts its permits against the rate limits.
    """
    turn = context.run.turn + 1
    drafts = [replace(read, cause=context.run.last) for read in reads]
    beyond: dict[str, int] = {}
    returns: list[tuple[str, int, int]] = []
    if context.reservation is not None:  # a judge's turn was never booked
        settlement, beyond, returns = release_reservation(services, context)
        drafts += settlement
    rows: list[ActionRow] = []
    writes: list[RowWrite] = []
    ends_run = judgement.final and not judgement.deferred and context.task is None
    is_uneventful = not (bound or judgement.candidates) and ends_run and context.run.turn == 0
    candidates, refusals = screen_candidates(services, context, judgement)
    if not is_uneventful:
        drafts.append(turn_entry(context, judgement, turn, bound))
    turn_at = len(drafts)
    for ordinal, action in enumerate(bound):
        back = len(drafts) - turn_at + 1
        if isinstance(action, BadProposal):
            body = context.body({"why": str(action)})
            drafts.append(
                context.entry(
                    "action.refused", back=back, turn=turn, ordinal=ordinal, what=action.code,
                    body=body,
                )
            )  # fmt: skip
            continue
        row = action_row(action, context.agent.name)
        rows.append(row)
        drafts += decide_action(services, context, action, row, rows, writes, counted, back, now)
    for refusal in refusals:
        back = len(drafts) - turn_at + 1
        drafts.append(
            context.entry("action.refused", back=back, turn=turn, body=context.body(refusal))
        )
    broken = context_tools.check_candidates(services, context, candidates) if candidates else {}
    for candidate in candidates:
        back = len(drafts) - turn_at + 1
        drafts.append(candidate_entry(context, candidate, back))
        drafts += context_tools.candidate_drifts(context, candidate, broken.get(candidate.id, ()))
    if context.is_over(rows, ends_run):
        actions = len(context.actions) + len(rows)
        fields = judgement_fields(judgement) if is_uneventful else {}
        if is_uneventful and services.fleet.agents.get(context.agent.name) is not context.agent:
            # A canary's: else it is the release that the fleet ran then.
            fields["release"] = context.agent.release
        if is_uneventful and context.memories:
            fields["memory"] = ",".join(cite for cite, _ in context.citations[turn])
        drafts.append(context.final_entry(1 if drafts else 0, actions, **fields))
    checkpoint = None
    if judgement.checkpoint is not None:
        checkpoint = (context.run.key, context.run.position, judgement.checkpoint)
    limits = context.step_limits(counted.new)
    limits["spend"] = {**beyond, **limits.get("spend", {})}
    if context.agent.session:
        limits["own_rows"] = begin_session(context)
    return context.build_step(
        drafts, rows, now,
        turn=turn, final=ends_run, rows=writes, refunds=returns, **limits,
        checkpoint=checkpoint,
        observed=context.run.observed or judgement.observed,
        order=context.order if judgement.observed and not context.run.observed else None,
        policy_rev=services.gateway.policy_rev, stop_epoch=services.stops.epoch,
        candidates=candidates,
    )  # fmt: skip


def action_row(action: Action, agent: str) -> ActionRow:
    """Return the row of an action that a turn just bound, not decided yet."""
    # Its inverse is for people to see: nothing is decided by it.
    inverse = {"inverse": action.tool.inverse} if action.tool.inverse else {}
    readers = {at: sorted(who) for at, who in action.readers.items()}
    return ActionRow(
        id=action.id,
        run=action.run,
        turn=action.turn,
        ordinal=action.ordinal,
        agent=agent,
        tool=action.tool.name,
        digest=action.digest,
        record=canonicalize_normalized(
            {
                **inverse,
                **({"asks": action.asks} if action.asks else {}),
                "args": dict(action.args),
                "confidence": action.confidence_milli,
                "origins": dict(action.origins),
                **({"readers": readers} if readers else {}),
                "sources": dict(action.sources),
                "why": action.why,
            }
        ),
    )


def decide_action(
    services: Services,
    context: RunContext,
    action: Action,
    row: ActionRow,
    rows: list[ActionRow],
    writes: list[RowWrite],
    counted: PermitCount,
    back: int,
    now: int,
    entries: Sequence[EntryRecord] = (),
) -> list[Draft]:
    """Ask the gateway about one action; write the answer into its row and return the entries.

    `entries` are the entries that it has already; an approval counts as far as they have it.
    A rule's stop that stands as it did, under the same revision, has none. Raises what `write_rows`
    raises.
    """
    hold_before, counted_us = (row.hold, row.approver, row.until_us), row.counted_us
    decision_before = (row.decided, row.rule, row.policy_rev, row.waits)
    planned = row.effect is not None or row.waits == "policy"
    end = find_end_kind(context, row) if planned else ""
    if end == "effect.unknown":
        services.calls.unrecorded.add(row.id)  # so that a later no says so, too
    decision_context = context.build_decision_context([*context.actions, *rows], row, entries, now)
    if action.tool.performer == ARTEFACT_PERFORMER:
        owner = services.artefacts.find_owner(context.open_artefacts(), action)
        decision_context = replace(decision_context, artefact=owner)
    decision_record = services.gateway.decide(action, decision_context)
    action_holds.apply_decision(row, decision_record.decision, decision_record.policy_rev, now)
    row.counted_us = 0
    if row.waits == "resume" and not decision_context.stopped:
        # A rule stops it, and no resume will say when that is over.
        row.not_before_us = action_holds.stop_retry_at(row, now)
        if (row.decided, row.rule, row.policy_rev, row.waits) == decision_before:
            return []  # nothing is new, so nothing is said again
    apply_obligations(services, context, row, decision_record.decision)
    if row.decided == "deny" and action.tool.settles == "idempotent" and end == "effect.unknown":
        same = decision_before == ("hold", row.rule, row.policy_rev, "policy")
        if hold_for_policy(row, hold_before, entries if same else (), now):
            # What is denied as it was is not said again.
            return [] if same else [context.decision_entry(row, decision_record, back)]
    drafts = [context.decision_entry(row, decision_record, back)]
    obligations = row.obliges.split(",")
    if row.decided == "permit" and "verify" in obligations and not action.tool.is_verifiable:
        drafts.append(deny_unverifiable(context, row, planned))
    escrow = escrow_of(row) if row.tool == ASK_TOOL and not counted_us else None
    if escrow and row.decided == "permit":
        excess = find_excess(context, [*context.actions, *rows], escrow)
        drafts += [] if excess is None else [deny_excess(context, row, excess)]
    # What is permitted again keeps the place it has.
    is_new = row.decided == "permit" and not counted_us
    shortage = context.slots.acquire(escrow) if is_new else None
    if shortage is not None:
        action_holds.hold_for_budget(row, hold_before, shortage, now)
        about = {"action": row.id, "tool": row.tool, **shortage.entry_fields()}
        drafts.append(context.entry("budget.refused", back=1, **about))
        count_refusal(services, context, shortage)
    if row.decided != "permit":
        if planned:
            # After a try without an answer nobody knows whether it happened; it is not repeated.
            row.effect = None if row.decided == "hold" else "cancelled"
            drafts.append(context.effect_entry(end, row, 1))
    else:
        # At once, so that no two runs share a last place.
        row.counted_us = counted_us or now
        aside = escrow.get(ACTIONS, 0) if escrow else 0
        counted.add(row.counted_us, is_new=not counted_us, escrow=aside)
        if escrow:
            drafts.append(escrow_entry(context, row, len(drafts), escrow))
        if action.tool.settles == "transactional":
            drafts.append(write_rows(services, context, action, row, writes))
            if context.task is not None:
                drafts += context_tools.drift_entries(context, row)
        elif not planned:
            context.fresh_actions[row.id] = (action, services.registry, row.record)
            drafts.append(context.effect_entry("effect.intended", row, 1))
        if "notify" in obligations:
            about = {"action": row.id, "tool": row.tool, "rule": row.rule}
            drafts.append(context.entry("notice.raised", back=len(drafts), **about))
    if decision_record.answers:
        drafts.append(difference_entry(context, row, decision_record, len(drafts)))
    return drafts


def hold_for_policy(
    row: ActionRow,
    hold_before: tuple[HoldState | None, str | None, int],
    entries: Sequence[EntryRecord],
    now: int,
) -> bool:
    """Have a run's denied action that may have happened wait for a while; False if that is over.

    It may be repeated under its key, so no more than that is in the way of knowing. `hold_before`
    is its hold as it was before it was denied, `entries` its entries if the last of them is this
    denial.
    """
    since = [int(entry["at"]) for entry, _ in entries if entry["kind"] == DECIDED_KIND]
    until = action_holds.denial_retry_at(since[-1] if since else now, now)
    if until:
        row.hold, row.approver, row.until_us = hold_before
        row.decided, row.effect, row.waits = "hold", None, "policy"
        row.not_before_us = until
    return bool(until)


def deny_unverifiable(context: RunContext, row: ActionRow, planned: bool) -> Draft:
    """Deny an action of a run whose permit obliges to what its tool cannot do."""
    row.decided, row.rule = "deny", "engine.changed"
    row.effect = "cancelled" if planned else None
    row.hold = None if row.hold is None else "denied"
    why = "policy obliges to verify what came of it, and the tool declares no verify"
    return context.entry(
        "action.refused", back=1, action=row.id, tool=row.tool, body=context.body({"why": why})
    )


def apply_obligations(
    services: Services, context: RunContext, row: ActionRow, decision: Decision
) -> None:
    """Fulfil what a decision obliges to: `notify` a person, and label what the tool answers."""
    row.obliges = decision.duties
    if "notify" in row.obliges.split(",") and row.decided == "permit":
        services.metrics.count("notices", agent=context.agent.name, tool=row.tool)
    if decision.would == "permit":
        services.metrics.count("would", agent=context.agent.name, tool=row.tool)


def write_rows(
    services: Services, context: RunContext, action: Action, row: ActionRow, writes: list[RowWrite]
) -> Draft:
    """Perform a transactional tool: its rows are part of the step, so nothing can be unknown.

    One of the engine's own is performed here, all others by the agent's code.

    Raises Temporary if it gave no answer (its worker died, or took too long): that is an attempt
    of the run, of which nothing was made durable. What the tool itself raises is its answer.
    """
    if action.tool.performer == ARTEFACT_PERFORMER:
        outcome = services.artefacts.read(context.open_artefacts(), action)
        return _end_effect(context, row, outcome)
    if action.tool.performer == WORK_PERFORMER:
        return _end_effect(context, row, context_tools.perform(services, context, action))
    target = services.targets.get(action.tool.target or "", {})
    task, event = context.task, context.event
    event = event if task is None else task.session.trace(event)
    call = tool_calls.build_call(action, context.agent, event, target, 1)
    collection = context.agent.collection
    row_before = services.keys.row(collection, context.run.key) if collection else {}
    for write in writes:
        row_before = dict(write.row or {})
    current, readers_before = unpack_row(row_before)
    readers = meet_labels(readers_before, *action.readers.values())
    try:
        written = [
            replace(
                write,
                row=None
                if write.row is None
                else pack_row(normalize_json(dict(write.row)), readers),
            )
            for write in (context.code or services).tool_executor.compute_rows(
                action.tool, call, current
            )
        ]
        for write in written:
            canonicalize(write.row)
            if write.collection != collection or write.key != context.run.key:
                raise Permanent(f"{action.tool.name} wrote outside its own collection or key")
    except Temporary:
        raise
    except Exception as error:
        outcome = Outcome("failed", error=f"{type(error).__name__}: {error}")
    else:
        # What stood there before is what an inverse needs to restore it exactly, and as secret.
        was = pack_row({"was": current}, readers_before) if action.tool.inverse else {}
        outcome = Outcome("done", {"rows": [dict(write.row or {}) for write in written], **was})
        writes += written
    return _end_effect(context, row, outcome)


def _end_effect(context: RunContext, row: ActionRow, outcome: Outcome) -> Draft:
    row.effect = "done" if outcome.state == "done" else "failed"
    row.answer = tool_calls.answer_bytes(outcome)
    return context.effect_entry(f"effect.{row.effect}", row, 1, context.body_of(row.answer))


def difference_entry(
    context: RunContext, row: ActionRow, decision_record: DecisionRecord, back: int
) -> Draft:
    """Return the entry that says which engines differed about a permit that is now a deny."""
    about = {"event": context.run.event, "agent": context.agent.name, "action_digest": row.digest}
    found = build_difference_entry(decision_record, "permit", action=row.id, tool=row.tool, **about)
    return replace(found, cause_offset=back)


def turn_entry(
    context: RunContext, judgement: ReasonerJudgement, turn: int, bound: BoundProposals
) -> Draft:
    """Return the entry of a recorded turn. What stands here is never asked again.

    With what a later turn is told of again goes who may read all that this one had before it.
    """
    body = turn_body(judgement, turn, context.citations[turn])
    if judgement.model_turn is not None:
        body["model"] = judgement.model_turn.to_json()
    if context.task is not None:
        body |= context.task.history.told_by(judgement.model_turn)
    goes_on = judgement.model_turn is not None or context.task is not None or not judgement.final
    if goes_on and (labels := context.labels()) is not None and labels.run is not None:
        body["readers"] = sorted(labels.run)
    if context.task is not None:
        # The entry names the release as well; who reads a run's turns reads their content alone.
        told = context.task.record_turn(turn, context.task_told, bound)
        body["task"] = {**told, "release": context.agent.release}
    return context.entry(
        "turn.reasoned",
        turn=turn,
        items=None if context.task is None else len(context.task.items),  # its body may be erased
        release=context.agent.release,
        proposals=len(judgement.proposals),
        what="deferred" if judgement.deferred else None,
        route=judgement.model_turn.route if judgement.model_turn is not None else None,
        body=context.body_of(canonical_json(body)),
        **judgement_fields(judgement),
    )


def turn_body(
    judgement: ReasonerJudgement, turn: int, cited: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """Return what is recorded of a turn beside its entry: citations, judgement, proposals.

    In the form of `normalize_json`; raises ValueError as that does, and BadNotes.
    """
    assert judgement.confidence is not None  # it was refused else (`handle.ask_reasoner`)
    confidence = normalize_json(judgement.confidence)
    more: dict[str, Any] = {"deferred": True} if judgement.deferred else {}
    if not judgement.final and judgement.notes is not None:
        more["notes"] = encode_notes(judgement.notes)
    return {
        **more,
        "turn": turn,
        "label": normalize_json(judgement.label),
        "confidence": confidence,
        "score": normalize_json(judgement.score),
        "threshold": normalize_json(judgement.threshold),
        "detail": normalize_json(dict(judgement.detail)),
        "final": normalize_json(judgement.final),
        "memories": [cite for cite, _ in cited],
        "trust": [trust for _, trust in cited],
        "proposals": [
            {
                "tool": normalize_json(proposal.tool),
                "args": encode_arguments(proposal.args),
                "why": proposal.why if type(proposal.why) is str else normalize_json(proposal.why),
                "confidence": confidence
                if proposal.confidence is None
                else normalize_json(action_confidence(proposal, judgement.confidence)),
            }
            for proposal in judgement.proposals
        ],
    }


def judgement_fields(judgement: ReasonerJudgement) -> dict[str, Any]:
    """Return the numbers of a turn's judgement that an entry may hold."""
    assert judgement.confidence is not None  # it was refused else (`handle.ask_reasoner`)
    fields: dict[str, Any] = {
        "label": judgement.label if judgement.label.isascii() else None,
        "confidence_milli": int(judgement.confidence * 1000),
        "state": judgement.state or None,
    }
    if judgement.checkpoint is not None:
        fields["checkpoint"] = checkpoint_digest(judgement.checkpoint)
    for name, value in (("score", judgement.score), ("threshold", judgement.threshold)):
        if value is not None and math.isfinite(value):
            # The ledger holds safe integers only; the exact value stands in the body.
            milli = max(-MAX_SAFE_INTEGER, min(MAX_SAFE_INTEGER, int(value * 1000)))
            fields[f"{name}_milli"] = milli
    return fields


def action_confidence(proposal: Proposal, judgement: float) -> float | None:
    """Return how sure an action of a turn's proposal is; None if it was refused for that."""
    try:
        return proposal_confidence(proposal.confidence, judgement, proposal.tool)
    except BadConfidence:
        return None


def candidate_entry(context: RunContext, candidate: Candidate, back: int) -> Draft:
    """Return the entry of a memory that a turn proposes."""
    return context.entry(
        "memory.proposed", back=back, memory=candidate.bank, what=candidate.id,
        body=context.body(candidate.to_json()),
    )  # fmt: skip


def screen_candidates(
    services: Services, context: RunContext, judgement: ReasonerJudgement
) -> tuple[list[Candidate], list[dict[str, str]]]:
    """Return the memories that a turn proposes to banks that take them, and why others are refused.

    The id is a function of the run and the place in it, never of what is to be remembered: the
    ledger keeps it after the content was erased.
    """
    accepted: list[Candidate] = []
    refused = []
    run = context.run
    labels = context.labels() if judgement.candidates else None
    for place, candidate in enumerate(judgement.candidates):
        banks = services.recall.banks
        why = banks.find_refusal(candidate.bank, candidate.scope, run.agent) or banks.find_fault(
            candidate
        )
        if labels is not None and not why:
            # A memory is told to whoever its scope permits: so no scope takes what is more secret.
            scope_readers = services.scope_readers.get((candidate.bank, candidate.scope))
            if not is_within(scope_readers, labels.run):
                why = "the run read what may not be told to all permitted readers of the scope"
        if why:
            refused.append({"why": why})
            continue
        id = short_id("cnd", run.id, run.turn + 1, place)
        own = replace(candidate, agent=run.agent, run=run.id, event=run.event, id=id)
        if context.task is not None and (taken := context.task.session.list_keys()):
            # It may rest on these as well: what is undone of one of them is found by it.
            own = replace(own, evidence=tuple(dict.fromkeys((*own.evidence, *taken))))
        if own not in accepted:
            accepted.append(own)
    return accepted, refused


def emit_metrics(
    services: Services, context: RunContext, step: Step, now: int, *, is_first: bool = False
) -> None:
    """Count, as metrics, what a run's committed step decided; `is_first`: nothing was before."""
    agent = context.agent.name
    if is_first:
        observe_event(context, "event_decided_seconds", now)
    for row in step.actions:
        services.metrics.count(
            "decisions", agent=agent, tool=row.tool, outcome=row.decided or "none", rule=row.rule
        )
        if row.effect in ("done", "failed"):
            services.metrics.count("effects", agent=agent, tool=row.tool, state=row.effect)
        if row.effect == "done":
            observe_effect(context, row, now)


def observe_effect(context: RunContext, row: ActionRow, now: int) -> None:
    """Count, as a metric, how long after a run's event its effect was done."""
    held = "true" if context.is_resumed or row.hold is not None else "false"
    observe_event(context, "event_effect_seconds", now, held=held)


def observe_event(context: RunContext, name: str, now: int, **labels: str) -> None:
    """Count, as a metric, how long ago a run's event was accepted, where that is known."""
    if context.accepted_us:
        seconds = max(0, now - context.accepted_us) / 1_000_000
        context.services.metrics.observe(name, seconds, agent=context.agent.name, **labels)
