"""A turn's decisions, written into one step: what becomes durable together.

Proposals become exact actions, each action is put to the gateway, and everything that follows
from the answers (entries, action rows, the fleet's own rows, spend, the judge's state) goes into
one `Step`. Nothing here waits and nothing is called outside.
"""

from __future__ import annotations

from dataclasses import replace

from vedette import hold
from vedette import perform as performing
from vedette.action import Action, bind
from vedette.case import Case, judged
from vedette.decision import Decision
from vedette.digest import canonical, tame
from vedette.effect import Outcome, RowWrite
from vedette.entry import Draft
from vedette.errors import BadProposal, Permanent
from vedette.line import MODEL_CALLS, Line
from vedette.memory import Candidate
from vedette.origin import Ref
from vedette.ports import Thought
from vedette.run import ActionRow, Step

Bound = list[tuple[Action | None, str]]


def bind_all(case: Case, thought: Thought, turn: int) -> Bound:
    """Turn proposals into exact actions; one that is no action keeps the reason why."""
    bound: Bound = []
    if not thought.proposals:
        return bound
    roots = case.roots()
    for ordinal, proposal in enumerate(thought.proposals):
        try:
            tool = case.agent.tools.get(proposal.tool)
            if tool is None:
                raise BadProposal(f"the agent declares no tool {proposal.tool!r}")
            action = bind(proposal, tool, roots, run=case.run.id, turn=turn, ordinal=ordinal)
            bound.append((action, ""))
        except BadProposal as error:
            bound.append((None, str(error)))
    return bound


def compose(
    line: Line, case: Case, thought: Thought, bound: Bound, reads: list[Draft], now: int
) -> tuple[Step, int]:
    """Decide every action of a turn and write all of it into one step.

    Returns the step and how many permits it counted against the rate limits.
    """
    turn = case.run.turn + 1
    drafts = [replace(read, cause=case.run.last) for read in reads]
    rows: list[ActionRow] = []
    writes: list[RowWrite] = []
    permits = 0
    quiet = not (bound or thought.candidates) and thought.final and case.run.turn == 0
    candidates = [
        replace(candidate, agent=case.agent.name, run=case.run.id, event=case.run.event)
        for candidate in thought.candidates
    ]
    if not quiet:
        drafts.append(turn_entry(case, thought, turn))
    turn_at = len(drafts)
    for ordinal, (action, why) in enumerate(bound):
        back = len(drafts) - turn_at + 1
        if action is None:
            told = case.body({"why": why})
            drafts.append(
                case.entry("action.refused", back=back, turn=turn, ordinal=ordinal, body=told)
            )
            continue
        row = hold.new_row(action, case.agent.name)
        rows.append(row)
        drafts += decide(line, case, action, row, rows, writes, back, now)
        permits += row.decided == "permit"
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
    spend = {"actions": permits} if permits else {}
    if case.agent.reasoner != "judge":
        spend[MODEL_CALLS] = thought.model_calls - case.agent.budget.model_calls_per_run
    step = case.step(
        drafts, rows, now,
        turn=turn, final=thought.final, rows=writes, spend=spend, checkpoint=checkpoint,
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
) -> list[Draft]:
    """Ask the gateway about one action; write the answer into its row and return the entries."""
    planned = row.effect is not None
    decided = line.gateway.decide(action, case.situation([*case.rows, *rows], row, now))
    hold.apply(row, decided.decision, decided.policy_rev, now)
    oblige(line, case, row, decided.decision)
    drafts = [case.decided_entry(row, decided, back)]
    if row.decided != "permit":
        if planned:
            drafts.append(case.effect_entry("effect.cancelled", row, 1))
    elif action.tool.settles == "transactional":
        drafts.append(write_rows(line, case, action, row, writes))
    elif not planned:
        drafts.append(case.effect_entry("effect.intended", row, 1))
    return drafts


def oblige(line: Line, case: Case, row: ActionRow, decision: Decision) -> None:
    """Fulfil what a decision obliges to: `notify` a person, and label what the tool answers."""
    kinds = sorted({item["type"] for item in decision.obligations})
    row.obliges = ",".join(kinds)
    if "notify" in kinds and row.decided == "permit":
        line.metrics.count("notices", agent=case.agent.name, tool=row.tool)
    if decision.would == "permit":
        line.metrics.count("would", agent=case.agent.name, tool=row.tool)


def write_rows(
    line: Line, case: Case, action: Action, row: ActionRow, writes: list[RowWrite]
) -> Draft:
    """Perform a transactional tool: its rows are part of the step, so nothing can be unknown."""
    target = line.targets.get(action.tool.target or "", {})
    call = performing.call_of(action, case.agent, case.event, target, 1)
    current = line.row(case.agent.collection, case.run.key) if case.agent.collection else {}
    for write in writes:
        current = dict(write.row or {})
    try:
        written = line.performer.rows(action.tool, call, current)
        for write in written:
            if write.collection != case.agent.collection or write.key != case.run.key:
                raise Permanent(f"{action.tool.name} wrote outside its own collection or key")
    except Exception as error:
        outcome = Outcome("failed", error=f"{type(error).__name__}: {error}")
    else:
        outcome = Outcome("done", {"rows": [dict(write.row or {}) for write in written]})
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


def turn_entry(case: Case, thought: Thought, turn: int) -> Draft:
    """Return the entry of a recorded turn. What stands here is never asked again."""
    body = {
        "turn": turn,
        "label": thought.label,
        "confidence": thought.confidence,
        "score": thought.score,
        "threshold": thought.threshold,
        "detail": dict(thought.detail),
        "final": thought.final,
        "memories": [memory.cite() for memory in case.memories],
        "trust": [memory.trust for memory in case.memories],
        "proposals": [
            {
                "tool": proposal.tool,
                "args": {
                    name: {"ref": value.pointer} if isinstance(value, Ref) else {"value": value}
                    for name, value in proposal.args.items()
                },
                "why": proposal.why,
                "confidence": proposal.confidence,
            }
            for proposal in thought.proposals
        ],
    }
    return case.entry(
        "turn.reasoned", turn=turn, release=case.agent.release, proposals=len(thought.proposals),
        body=case.body_of(canonical(tame(body))), **judged(thought),
    )  # fmt: skip


def proposed_entry(case: Case, candidate: Candidate, back: int) -> Draft:
    """Return the entry of a memory that an agent proposes."""
    told = {"scope": candidate.scope, "text": candidate.text, "topics": list(candidate.topics)}
    return case.entry("memory.proposed", back=back, memory=candidate.bank, body=case.body(told))


def settle_spend(line: Line, case: Case, thought: Thought, now: int) -> None:
    """Give back what a model turn booked and did not use."""
    if case.agent.reasoner != "judge":
        unused = case.agent.budget.model_calls_per_run - thought.model_calls
        line.gateway.counts.add(case.agent.name, MODEL_CALLS, now, -unused)


def tell(line: Line, case: Case, step: Step) -> None:
    """Count what a committed step decided."""
    agent = case.agent.name
    for row in step.actions:
        line.metrics.count(
            "decisions", agent=agent, tool=row.tool, outcome=row.decided or "none", rule=row.rule
        )
        if row.effect in ("done", "failed"):
            line.metrics.count("effects", agent=agent, tool=row.tool, state=row.effect)
