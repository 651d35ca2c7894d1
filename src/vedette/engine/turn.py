"""A turn's decisions, written into one step: what becomes durable together.

Proposals become exact actions, each action is put to the gateway, and everything that follows
from the answers (entries, action rows, the fleet's own rows, spend, the judge's state) goes into
one `Step`. Nothing here waits and nothing is called outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from vedette.domain.action import Action, Proposal, bind_by_name, encode_argument
from vedette.domain.base.canonical import canonical_json, canonicalize, normalize_json, short_id
from vedette.domain.base.errors import BadConfidence, BadProposal, Permanent, Temporary
from vedette.domain.confidence import proposal_confidence
from vedette.domain.decision import Decision, build_denial
from vedette.domain.effect import Outcome, RowWrite
from vedette.domain.entry import Draft
from vedette.domain.hold import HoldState
from vedette.domain.labels import pack_row, unpack_row
from vedette.domain.memory import Candidate, Memory
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.readers import is_within, meet
from vedette.domain.row_proof import DECIDED_KIND, EntryRecord, format_obligations
from vedette.domain.run import ActionRow, Step
from vedette.engine import held_actions
from vedette.engine import tool_calls as performing
from vedette.engine.call_report import judgement_fields
from vedette.engine.reservation import count_refusal, release_reservation
from vedette.engine.run_context import RunContext
from vedette.engine.services import Services

BoundProposals = list[Action | BadProposal]


def bind_proposals(context: RunContext, judgement: ReasonerJudgement, turn: int) -> BoundProposals:
    """Turn proposals into exact actions; one that is no action becomes the error that says why."""
    bound: BoundProposals = []
    assert judgement.confidence is not None  # it was refused else (`handle.reason`)
    if not judgement.proposals:
        return bound
    roots = context.roots()
    for ordinal, proposal in enumerate(judgement.proposals):
        try:
            action = bind_by_name(
                proposal,
                context.agent.tools,
                roots,
                run=context.run.id,
                turn=turn,
                ordinal=ordinal,
                confidence=judgement.confidence,
            )
            bound.append(action)
        except BadProposal as error:
            bound.append(error)
    return bound


def compose_step(
    services: Services,
    context: RunContext,
    judgement: ReasonerJudgement,
    bound: BoundProposals,
    reads: list[Draft],
    now: int,
) -> tuple[Step, int]:
    """Decide every action of a turn and write all of it into one step.

    Returns the step and how many permits it counted against the rate limits.
    """
    turn = context.run.turn + 1
    settled, beyond, returns = release_reservation(services, context, judgement)
    drafts = [*(replace(read, cause=context.run.last) for read in reads), *settled]
    rows: list[ActionRow] = []
    writes: list[RowWrite] = []
    permits = 0
    is_uneventful = (
        not (bound or judgement.candidates) and judgement.final and context.run.turn == 0
    )
    candidates, refusals = screen_candidates(services, context, judgement)
    if not is_uneventful:
        drafts.append(turn_entry(context, judgement, turn))
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
        row = held_actions.new_row(action, context.agent.name)
        rows.append(row)
        try:
            drafts += decide_action(services, context, action, row, rows, writes, back, now)
        except BaseException:
            for _ in range(permits):
                services.gateway.uncount_permit(context.agent.name, now)
            raise
        permits += row.decided == "permit"
    for refusal in refusals:
        back = len(drafts) - turn_at + 1
        drafts.append(
            context.entry("action.refused", back=back, turn=turn, body=context.body(refusal))
        )
    for candidate in candidates:
        back = len(drafts) - turn_at + 1
        drafts.append(candidate_entry(context, candidate, back))
    if judgement.final and all(row.is_final for row in [*context.actions, *rows]):
        closing = judgement if is_uneventful else None
        drafts.append(
            context.final_entry(0 if not drafts else 1, closing, len(context.actions) + len(rows))
        )
    checkpoint = None
    if judgement.checkpoint is not None:
        checkpoint = (context.run.key, context.run.position, judgement.checkpoint)
    places = context.step_limits(permits)
    places["spend"] = {**beyond, **places.get("spend", {})}
    step = context.build_step(
        drafts, rows, now,
        turn=turn, final=judgement.final, rows=writes, refunds=returns, **places,
        checkpoint=checkpoint,
        observed=context.run.observed or judgement.observed,
        order=context.order if judgement.observed and not context.run.observed else None,
        policy_rev=services.gateway.policy_rev, stop_epoch=services.stops.epoch,
        candidates=candidates,
    )  # fmt: skip
    return step, permits


def decide_action(
    services: Services,
    context: RunContext,
    action: Action,
    row: ActionRow,
    rows: list[ActionRow],
    writes: list[RowWrite],
    back: int,
    now: int,
    entries: Sequence[EntryRecord] = (),
) -> list[Draft]:
    """Ask the gateway about one action; write the answer into its row and return the entries.

    `entries` are the entries that it has already; an approval counts as far as they have it.
    A rule's stop that stands as it did, under the same revision, has none. Raises what `write_rows`
    raises; the action is not counted then.
    """
    hold_before, has_place = (row.hold, row.approver, row.until_us), bool(row.counted_us)
    decision_before = (row.decided, row.rule, row.policy_rev, row.waits)
    planned = row.effect is not None or row.waits == "policy"
    end = context.end_kind(row) if planned else ""
    if end == "effect.unknown":
        services.unrecorded_calls.add(row.id)  # so that a later no says so, too
    decision_context = context.build_decision_context([*context.actions, *rows], row, entries, now)
    decision_record = services.gateway.decide(action, decision_context)
    held_actions.apply_decision(row, decision_record.decision, decision_record.policy_rev, now)
    if row.waits == "resume" and not decision_context.stopped:
        # A rule stops it, and no resume will say when that is over.
        row.not_before_us = held_actions.stop_retry_at(row, now)
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
        services.gateway.uncount_permit(context.agent.name, now)
        drafts.append(deny_unverifiable(context, row, planned))
    # What is permitted again keeps the place it has.
    shortage = context.places.acquire() if row.decided == "permit" and not has_place else None
    if shortage is not None:
        services.gateway.uncount_permit(context.agent.name, now)
        held_actions.hold_for_budget(row, hold_before, shortage, now)
        about = {"action": row.id, "tool": row.tool, **shortage.entry_fields()}
        drafts.append(context.entry("budget.refused", back=1, **about))
        count_refusal(services, context, shortage)
    row.counted_us = now if row.decided == "permit" else 0
    if row.decided != "permit":
        if planned:
            # After a try without an answer nobody knows whether it happened; it is not repeated.
            row.effect = None if row.decided == "hold" else "cancelled"
            drafts.append(context.effect_entry(end, row, 1))
    elif action.tool.settles == "transactional":
        try:
            drafts.append(write_rows(services, context, action, row, writes))
        except BaseException:
            services.gateway.uncount_permit(context.agent.name, now)
            raise
    elif not planned:
        context.fresh_origins[row.id] = (action.origins, services.registry)
        drafts.append(context.effect_entry("effect.intended", row, 1))
    if row.decided == "permit" and "notify" in obligations:
        about = {"action": row.id, "tool": row.tool, "rule": row.rule}
        drafts.append(context.entry("notice.raised", back=len(drafts), **about))
    if decision_record.answers:
        drafts.append(context.difference_entry(row, decision_record, len(drafts)))
    return drafts


def hold_for_policy(
    row: ActionRow,
    hold_before: tuple[HoldState | None, str | None, int],
    entries: Sequence[EntryRecord],
    now: int,
) -> bool:
    """Leave a denied action that may have happened open for a while; False if that is over.

    It may be repeated under its key, so no more than that is in the way of knowing. `hold_before`
    is its hold as it was before it was denied, `entries` its entries if the last of them is this
    denial.
    """
    since = [int(entry["at"]) for entry, _ in entries if entry["kind"] == DECIDED_KIND]
    until = held_actions.denial_retry_at(since[-1] if since else now, now)
    if until:
        row.hold, row.approver, row.until_us = hold_before
        row.decided, row.effect, row.waits = "hold", None, "policy"
        row.not_before_us, row.counted_us = until, 0
    return bool(until)


def deny_unverifiable(context: RunContext, row: ActionRow, planned: bool) -> Draft:
    """Deny an action whose permit obliges to what its tool cannot do."""
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
    row.obliges = format_obligations(decision.obligations)
    if "notify" in row.obliges.split(",") and row.decided == "permit":
        services.metrics.count("notices", agent=context.agent.name, tool=row.tool)
    if decision.would == "permit":
        services.metrics.count("would", agent=context.agent.name, tool=row.tool)


def write_rows(
    services: Services, context: RunContext, action: Action, row: ActionRow, writes: list[RowWrite]
) -> Draft:
    """Perform a transactional tool: its rows are part of the step, so nothing can be unknown.

    Raises Temporary if it gave no answer (its worker died, or took too long): that is an attempt
    of the run, of which nothing was made durable. What the tool itself raises is its answer.
    """
    target = services.targets.get(action.tool.target or "", {})
    call = performing.build_call(action, context.agent, context.event, target, 1)
    row_before = (
        services.collection_row(context.agent.collection, context.run.key)
        if context.agent.collection
        else {}
    )
    for write in writes:
        row_before = dict(write.row or {})
    current, readers_before = unpack_row(row_before)
    readers = meet(readers_before, *action.readers.values())
    try:
        written = [
            replace(
                write,
                row=None
                if write.row is None
                else pack_row(normalize_json(dict(write.row)), readers),
            )
            for write in services.tool_executor.compute_rows(action.tool, call, current)
        ]
        for write in written:
            canonicalize(write.row)
            if write.collection != context.agent.collection or write.key != context.run.key:
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
    row.effect = "done" if outcome.state == "done" else "failed"
    row.answer = performing.answer_bytes(outcome)
    return context.effect_entry(f"effect.{row.effect}", row, 1, context.body_of(row.answer))


def close_hold(context: RunContext, row: ActionRow) -> list[Draft]:
    """Deny an action whose hold a person denied or nobody answered in time."""
    drafts = []
    if row.hold != "denied":
        row.hold = "expired"
        drafts.append(context.entry("hold.expired", action=row.id, tool=row.tool))
    row.decided, row.rule, row.waits = "deny", f"hold.{row.hold}", None
    if row.effect is not None:
        # An unknown effect that nobody will ask about any more: it stays as it was, unrepeated.
        row.effect = "failed"
        back = 1 if drafts else 0
        drafts.append(context.effect_entry("effect.failed", row, back))
    return drafts


def deny_changed(
    services: Services, context: RunContext, row: ActionRow, why: str, now: int
) -> list[Draft]:
    """Deny an action that is not what it was: its tool, its charter or the registry changed."""
    if row.waits == "policy":
        services.unrecorded_calls.add(row.id)
        row.effect = "intended"
    end = context.end_kind(row) if row.effect is not None else None
    held_actions.apply_decision(
        row, build_denial("engine.changed", why), services.gateway.policy_rev, now
    )
    row.counted_us = 0
    body = context.body({"why": why})
    drafts = [
        context.entry("action.refused", after=row.last, action=row.id, tool=row.tool, body=body)
    ]
    if end is not None:
        drafts.append(context.effect_entry(end, row, 1))
    return drafts


def cancel_action(row: ActionRow, fields: Mapping[str, str], begun: bool) -> list[Draft]:
    """End an open action of a run that became a dead letter; say what is not known of it.

    `begun` says that a call without a durable mark may have been made.
    """
    about = {**fields, "action": row.id, "tool": row.tool}
    denied_since = row.waits == "policy"
    if row.hold in ("open", "approved", "released"):
        row.hold = "denied"
    row.decided, row.rule, row.waits, row.until_us = "deny", "run.dead", None, 0
    if denied_since:
        # It is not to be taken up again under a permit: the last decision is a deny.
        row.effect = "cancelled"
        return [Draft("effect.unknown", about, row.last)]
    if row.effect is None:
        return []
    started = row.effect != "intended" or row.tries > 0 or begun
    row.effect = "unknown" if started else "cancelled"
    return [Draft(f"effect.{row.effect}", about, row.last)]


def turn_entry(context: RunContext, judgement: ReasonerJudgement, turn: int) -> Draft:
    """Return the entry of a recorded turn. What stands here is never asked again."""
    body = canonical_json(normalize_json(turn_body(judgement, turn, context.memories)))
    return context.entry(
        "turn.reasoned",
        turn=turn,
        release=context.agent.release,
        proposals=len(judgement.proposals),
        body=context.body_of(body),
        **judgement_fields(judgement),
    )


def turn_body(
    judgement: ReasonerJudgement, turn: int, memories: Sequence[Memory]
) -> dict[str, Any]:
    """Return what is recorded of a turn beside its entry: citations, judgement, proposals."""
    assert judgement.confidence is not None  # it was refused else (`handle.reason`)
    return {
        "turn": turn,
        "label": judgement.label,
        "confidence": judgement.confidence,
        "score": judgement.score,
        "threshold": judgement.threshold,
        "detail": dict(judgement.detail),
        "final": judgement.final,
        "memories": [memory.cite() for memory in memories],
        "trust": [memory.trust for memory in memories],
        "proposals": [
            {
                "tool": proposal.tool,
                "args": {name: encode_argument(value) for name, value in proposal.args.items()},
                "why": proposal.why,
                "confidence": action_confidence(proposal, judgement.confidence),
            }
            for proposal in judgement.proposals
        ],
    }


def action_confidence(proposal: Proposal, judgement: float) -> float | None:
    """Return how sure an action of this proposal is; None if it was refused for that."""
    try:
        return proposal_confidence(proposal.confidence, judgement, proposal.tool)
    except BadConfidence:
        return None


def candidate_entry(context: RunContext, candidate: Candidate, back: int) -> Draft:
    """Return the entry of a memory that an agent proposes."""
    return context.entry(
        "memory.proposed", back=back, memory=candidate.bank, what=candidate.id,
        body=context.body(candidate.to_json()),
    )  # fmt: skip


def screen_candidates(
    services: Services, context: RunContext, judgement: ReasonerJudgement
) -> tuple[list[Candidate], list[dict[str, str]]]:
    """Return the memories proposed to banks that take them, and why the others are refused.

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
        if own not in accepted:
            accepted.append(own)
    return accepted, refused


def emit_metrics(services: Services, context: RunContext, step: Step) -> None:
    """Count what a committed step decided."""
    agent = context.agent.name
    for row in step.actions:
        services.metrics.count(
            "decisions", agent=agent, tool=row.tool, outcome=row.decided or "none", rule=row.rule
        )
        if row.effect in ("done", "failed"):
            services.metrics.count("effects", agent=agent, tool=row.tool, state=row.effect)
