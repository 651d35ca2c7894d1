"""A turn's decisions, written into one step: what becomes durable together.

Proposals become exact actions, each action is put to the gateway, and everything that follows
from the answers (entries, action rows, the fleet's own rows, spend, the judge's state) goes into
one `Step`. Nothing here waits and nothing is called outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vedette.domain.action import Action, Proposal, bind_declared, write_given
from vedette.domain.base.canonical import canonical, checked, short_id, tame
from vedette.domain.base.errors import BadConfidence, BadProposal, Permanent, Temporary
from vedette.domain.confidence import proposal_confidence
from vedette.domain.decision import Decision, denied
from vedette.domain.effect import Outcome, RowWrite
from vedette.domain.entry import Draft
from vedette.domain.hold import HoldState
from vedette.domain.labels import read_row, write_row
from vedette.domain.memory import Candidate, Memory
from vedette.domain.ports import Thought
from vedette.domain.readers import meet, within
from vedette.domain.row_proof import DECIDED, Told, write_duties
from vedette.domain.run import ActionRow, Step
from vedette.engine import held_actions
from vedette.engine import tool_calls as performing
from vedette.engine.call_report import judged
from vedette.engine.reservation import settle, tell_refused
from vedette.engine.run_context import Case
from vedette.engine.services import Line

Bound = list[Action | BadProposal]


def bind_all(case: Case, thought: Thought, turn: int) -> Bound:
    """Turn proposals into exact actions; one that is no action becomes the error that says why."""
    bound: Bound = []
    assert thought.confidence is not None  # it was refused else (`handle.reason`)
    if not thought.proposals:
        return bound
    roots = case.roots()
    for ordinal, proposal in enumerate(thought.proposals):
        try:
            action = bind_declared(
                proposal, case.agent.tools, roots, run=case.run.id, turn=turn, ordinal=ordinal,
                confidence=thought.confidence,
            )  # fmt: skip
            bound.append(action)
        except BadProposal as error:
            bound.append(error)
    return bound


def compose(
    line: Line, case: Case, thought: Thought, bound: Bound, reads: list[Draft], now: int
) -> tuple[Step, int]:
    """Decide every action of a turn and write all of it into one step.

    Returns the step and how many permits it counted against the rate limits.
    """
    turn = case.run.turn + 1
    settled, beyond, returns = settle(line, case, thought)
    drafts = [*(replace(read, cause=case.run.last) for read in reads), *settled]
    rows: list[ActionRow] = []
    writes: list[RowWrite] = []
    permits = 0
    quiet = not (bound or thought.candidates) and thought.final and case.run.turn == 0
    candidates, homeless = sort_candidates(line, case, thought)
    if not quiet:
        drafts.append(turn_entry(case, thought, turn))
    turn_at = len(drafts)
    for ordinal, action in enumerate(bound):
        back = len(drafts) - turn_at + 1
        if isinstance(action, BadProposal):
            said = case.body({"why": str(action)})
            drafts.append(
                case.entry(
                    "action.refused", back=back, turn=turn, ordinal=ordinal, what=action.code,
                    body=said,
                )
            )  # fmt: skip
            continue
        row = held_actions.new_row(action, case.agent.name)
        rows.append(row)
        try:
            drafts += decide(line, case, action, row, rows, writes, back, now)
        except BaseException:
            for _ in range(permits):
                line.gateway.give_back(case.agent.name, now)
            raise
        permits += row.decided == "permit"
    for told in homeless:
        back = len(drafts) - turn_at + 1
        drafts.append(case.entry("action.refused", back=back, turn=turn, body=case.body(told)))
    for candidate in candidates:
        back = len(drafts) - turn_at + 1
        drafts.append(proposed_entry(case, candidate, back))
    if thought.final and all(row.settled for row in [*case.rows, *rows]):
        closing = thought if quiet else None
        drafts.append(
            case.closed_entry(0 if not drafts else 1, closing, len(case.rows) + len(rows))
        )
    checkpoint = None
    if thought.checkpoint is not None:
        checkpoint = (case.run.key, case.run.position, thought.checkpoint)
    places = case.places_taken(permits)
    places["spend"] = {**beyond, **places.get("spend", {})}
    step = case.step(
        drafts, rows, now,
        turn=turn, final=thought.final, rows=writes, returns=returns, **places,
        checkpoint=checkpoint,
        observed=case.run.observed or thought.observed,
        order=case.order if thought.observed and not case.run.observed else None,
        policy_rev=line.gateway.policy_rev, stop_epoch=line.stops.epoch,
        candidates=candidates,
    )  # fmt: skip
    return step, permits


def decide(
    line: Line,
    case: Case,
    action: Action,
    row: ActionRow,
    rows: list[ActionRow],
    writes: list[RowWrite],
    back: int,
    now: int,
    told: Sequence[Told] = (),
) -> list[Draft]:
    """Ask the gateway about one action; write the answer into its row and return the entries.

    `told` are the entries that it has already; an approval counts as far as they have it.
    A rule's stop that stands as it did, under the same revision, has none. Raises what `write_rows`
    raises; the action is not counted then.
    """
    was, has_place = (row.hold, row.approver, row.until_us), bool(row.counted_us)
    stood = (row.decided, row.rule, row.policy_rev, row.waits)
    planned = row.effect is not None or row.waits == "policy"
    end = case.ends_as(row) if planned else ""
    if end == "effect.unknown":
        line.called.add(row.id)  # so that a later no says so, too
    situation = case.situation([*case.rows, *rows], row, told, now)
    decided = line.gateway.decide(action, situation)
    held_actions.apply(row, decided.decision, decided.policy_rev, now)
    if row.waits == "resume" and not situation.stopped:
        # A rule stops it, and no resume will say when that is over.
        row.not_before_us = held_actions.stopped_until(row, now)
        if (row.decided, row.rule, row.policy_rev, row.waits) == stood:
            return []  # nothing is new, so nothing is said again
    oblige(line, case, row, decided.decision)
    if row.decided == "deny" and action.tool.settles == "idempotent" and end == "effect.unknown":
        same = stood == ("hold", row.rule, row.policy_rev, "policy")
        if wait_for_policy(row, was, told if same else (), now):
            # What is denied as it was is not said again.
            return [] if same else [case.decided_entry(row, decided, back)]
    drafts = [case.decided_entry(row, decided, back)]
    duties = row.obliges.split(",")
    if row.decided == "permit" and "verify" in duties and not action.tool.verifiable:
        line.gateway.give_back(case.agent.name, now)
        drafts.append(refuse_duty(case, row, planned))
    # What is permitted again keeps the place it has.
    shortage = case.places.take() if row.decided == "permit" and not has_place else None
    if shortage is not None:
        line.gateway.give_back(case.agent.name, now)
        held_actions.short(row, was, shortage, now)
        about = {"action": row.id, "tool": row.tool, **shortage.fields()}
        drafts.append(case.entry("budget.refused", back=1, **about))
        tell_refused(line, case, shortage)
    row.counted_us = now if row.decided == "permit" else 0
    if row.decided != "permit":
        if planned:
            # After a try without an answer nobody knows whether it happened; it is not repeated.
            row.effect = None if row.decided == "hold" else "cancelled"
            drafts.append(case.effect_entry(end, row, 1))
    elif action.tool.settles == "transactional":
        try:
            drafts.append(write_rows(line, case, action, row, writes))
        except BaseException:
            line.gateway.give_back(case.agent.name, now)
            raise
    elif not planned:
        case.fresh[row.id] = (action.origins, line.registry)
        drafts.append(case.effect_entry("effect.intended", row, 1))
    if row.decided == "permit" and "notify" in duties:
        about = {"action": row.id, "tool": row.tool, "rule": row.rule}
        drafts.append(case.entry("notice.raised", back=len(drafts), **about))
    if decided.answers:
        drafts.append(case.differed_entry(row, decided, len(drafts)))
    return drafts


def wait_for_policy(
    row: ActionRow,
    was: tuple[HoldState | None, str | None, int],
    told: Sequence[Told],
    now: int,
) -> bool:
    """Leave a denied action that may have happened open for a while; False if that is over.

    It may be repeated under its key, so no more than that is in the way of knowing. `was` is its
    hold as it was before it was denied, `told` its entries if the last of them is this denial.
    """
    since = [int(entry["at"]) for entry, _ in told if entry["kind"] == DECIDED]
    until = held_actions.denied_until(since[-1] if since else now, now)
    if until:
        row.hold, row.approver, row.until_us = was
        row.decided, row.effect, row.waits = "hold", None, "policy"
        row.not_before_us, row.counted_us = until, 0
    return bool(until)


def refuse_duty(case: Case, row: ActionRow, planned: bool) -> Draft:
    """Deny an action whose permit obliges to what its tool cannot do."""
    row.decided, row.rule = "deny", "engine.changed"
    row.effect = "cancelled" if planned else None
    row.hold = None if row.hold is None else "denied"
    why = "policy obliges to verify what came of it, and the tool declares no verify"
    return case.entry(
        "action.refused", back=1, action=row.id, tool=row.tool, body=case.body({"why": why})
    )


def oblige(line: Line, case: Case, row: ActionRow, decision: Decision) -> None:
    """Fulfil what a decision obliges to: `notify` a person, and label what the tool answers."""
    row.obliges = write_duties(decision.obligations)
    if "notify" in row.obliges.split(",") and row.decided == "permit":
        line.metrics.count("notices", agent=case.agent.name, tool=row.tool)
    if decision.would == "permit":
        line.metrics.count("would", agent=case.agent.name, tool=row.tool)


def write_rows(
    line: Line, case: Case, action: Action, row: ActionRow, writes: list[RowWrite]
) -> Draft:
    """Perform a transactional tool: its rows are part of the step, so nothing can be unknown.

    Raises Temporary if it gave no answer (its worker died, or took too long): that is an attempt
    of the run, of which nothing was made durable. What the tool itself raises is its answer.
    """
    target = line.targets.get(action.tool.target or "", {})
    call = performing.call_of(action, case.agent, case.event, target, 1)
    kept = line.row(case.agent.collection, case.run.key) if case.agent.collection else {}
    for write in writes:
        kept = dict(write.row or {})
    current, stood = read_row(kept)
    readers = meet(stood, *action.readers.values())
    try:
        written = [
            replace(
                write, row=None if write.row is None else write_row(tame(dict(write.row)), readers)
            )
            for write in line.performer.rows(action.tool, call, current)
        ]
        for write in written:
            checked(write.row)
            if write.collection != case.agent.collection or write.key != case.run.key:
                raise Permanent(f"{action.tool.name} wrote outside its own collection or key")
    except Temporary:
        raise
    except Exception as error:
        outcome = Outcome("failed", error=f"{type(error).__name__}: {error}")
    else:
        # What stood there before is what an inverse needs to restore it exactly, and as secret.
        was = write_row({"was": current}, stood) if action.tool.inverse else {}
        outcome = Outcome("done", {"rows": [dict(write.row or {}) for write in written], **was})
        writes += written
    row.effect = "done" if outcome.state == "done" else "failed"
    row.answer = performing.answer_bytes(outcome)
    return case.effect_entry(f"effect.{row.effect}", row, 1, case.body_of(row.answer))


def end_hold(case: Case, row: ActionRow) -> list[Draft]:
    """Deny an action whose hold a person denied or nobody answered in time."""
    drafts = []
    if row.hold != "denied":
        row.hold = "expired"
        drafts.append(case.entry("hold.expired", action=row.id, tool=row.tool))
    row.decided, row.rule, row.waits = "deny", f"hold.{row.hold}", None
    if row.effect is not None:
        # An unknown effect that nobody will ask about any more: it stays as it was, unrepeated.
        row.effect = "failed"
        back = 1 if drafts else 0
        drafts.append(case.effect_entry("effect.failed", row, back))
    return drafts


def refuse_changed(line: Line, case: Case, row: ActionRow, why: str, now: int) -> list[Draft]:
    """Deny an action that is not what it was: its tool, its charter or the registry changed."""
    if row.waits == "policy":
        line.called.add(row.id)
        row.effect = "intended"
    end = case.ends_as(row) if row.effect is not None else None
    held_actions.apply(row, denied("engine.changed", why), line.gateway.policy_rev, now)
    row.counted_us = 0
    told = case.body({"why": why})
    drafts = [case.entry("action.refused", after=row.last, action=row.id, tool=row.tool, body=told)]
    if end is not None:
        drafts.append(case.effect_entry(end, row, 1))
    return drafts


def abandon(row: ActionRow, fields: Mapping[str, str], begun: bool) -> list[Draft]:
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


def turn_entry(case: Case, thought: Thought, turn: int) -> Draft:
    """Return the entry of a recorded turn. What stands here is never asked again."""
    body = canonical(tame(turn_body(thought, turn, case.memories)))
    return case.entry(
        "turn.reasoned", turn=turn, release=case.agent.release, proposals=len(thought.proposals),
        body=case.body_of(body), **judged(thought),
    )  # fmt: skip


def turn_body(thought: Thought, turn: int, memories: Sequence[Memory]) -> dict[str, Any]:
    """Return what is recorded of a turn beside its entry: citations, judgement, proposals."""
    assert thought.confidence is not None  # it was refused else (`handle.reason`)
    return {
        "turn": turn,
        "label": thought.label,
        "confidence": thought.confidence,
        "score": thought.score,
        "threshold": thought.threshold,
        "detail": dict(thought.detail),
        "final": thought.final,
        "memories": [memory.cite() for memory in memories],
        "trust": [memory.trust for memory in memories],
        "proposals": [
            {
                "tool": proposal.tool,
                "args": {name: write_given(value) for name, value in proposal.args.items()},
                "why": proposal.why,
                "confidence": sure_of(proposal, thought.confidence),
            }
            for proposal in thought.proposals
        ],
    }


def sure_of(proposal: Proposal, judgement: float) -> float | None:
    """Return how sure an action of this proposal is; None if it was refused for that."""
    try:
        return proposal_confidence(proposal.confidence, judgement, proposal.tool)
    except BadConfidence:
        return None


def proposed_entry(case: Case, candidate: Candidate, back: int) -> Draft:
    """Return the entry of a memory that an agent proposes."""
    return case.entry(
        "memory.proposed", back=back, memory=candidate.bank, what=candidate.id,
        body=case.body(candidate.body()),
    )  # fmt: skip


def sort_candidates(
    line: Line, case: Case, thought: Thought
) -> tuple[list[Candidate], list[dict[str, str]]]:
    """Return the memories proposed to banks that take them, and why the others are refused.

    The id is a function of the run and the place in it, never of what is to be remembered: the
    ledger keeps it after the content was erased.
    """
    known: list[Candidate] = []
    refused = []
    run = case.run
    labels = case.labels() if thought.candidates else None
    for place, candidate in enumerate(thought.candidates):
        banks = line.recall.banks
        why = banks.takes(candidate.bank, candidate.scope, run.agent) or banks.unfit(candidate)
        if labels is not None and not why:
            # A memory is told to whoever its scope permits: so no scope takes what is more secret.
            told_to = line.scope_readers.get((candidate.bank, candidate.scope))
            if not within(told_to, labels.run):
                why = "the run read what may not be told to all permitted readers of the scope"
        if why:
            refused.append({"why": why})
            continue
        id = short_id("cnd", run.id, run.turn + 1, place)
        own = replace(candidate, agent=run.agent, run=run.id, event=run.event, id=id)
        if own not in known:
            known.append(own)
    return known, refused


def tell(line: Line, case: Case, step: Step) -> None:
    """Count what a committed step decided."""
    agent = case.agent.name
    for row in step.actions:
        line.metrics.count(
            "decisions", agent=agent, tool=row.tool, outcome=row.decided or "none", rule=row.rule
        )
        if row.effect in ("done", "failed"):
            line.metrics.count("effects", agent=agent, tool=row.tool, state=row.effect)
