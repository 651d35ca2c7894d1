"""Carry out: bring what is permitted into the world, once, and record what came of it."""

from __future__ import annotations

from dataclasses import replace

from vedette import hold
from vedette import perform as performing
from vedette.again import decide_again
from vedette.case import Case, Superseded
from vedette.effect import Outcome
from vedette.entry import Draft
from vedette.line import Line
from vedette.run import ActionRow


async def perform(line: Line, case: Case) -> None:
    """Bring the next permitted effect a step further: mark, call, or settle what is unknown."""
    waiting = case.to_perform(line.clock.now_us())
    if not waiting:
        return
    row = waiting[0]

    def may_start() -> bool:
        live = line.gateway.policy_rev == row.policy_rev
        return live and not line.stops.tool(case.agent.name, row.tool)

    assert row.effect is not None
    # What may have happened already is not decided anew: first it is found out.
    if row.effect == "intended" and not may_start():
        await decide_again(line, case, [row])
        return
    try:
        action = case.action(row)
    except Superseded:
        again = decide_again if row.effect == "intended" else ask_person
        await again(line, case, [row])
        return
    tool = action.tool
    target = line.targets.get(tool.target or "", {})
    call = performing.call_of(action, case.agent, case.event, target, row.tries + 1)
    before = performing.before_call(tool, row.effect, mine=row.id in case.started)
    outcome: Outcome | None
    if before == "start":
        await mark(case, replace(row, effect="started"), "effect.started", now=line.clock.now_us())
        case.started.add(row.id)
        return
    if before == "person":
        await ask_person(line, case, [row])
        return
    if before == "ask":
        outcome = await performing.ask(line.performer, tool, call)
        if outcome is None:
            case.started.discard(row.id)
            await mark(case, replace(row, effect="intended"), None, now=line.clock.now_us())
            return
    else:
        async with line.calling(row.policy_rev):
            outcome = await performing.make(line.performer, tool, call, may_start)
        if outcome is None:
            await decide_again(line, case, [row])
            return
    await settle(line, case, row, outcome)


async def ask_person(line: Line, case: Case, rows: list[ActionRow]) -> None:
    """Leave effects that may or may not have happened to a person: repeat, or let it be."""
    now = line.clock.now_us()
    for row in rows:
        unknown = replace(row, effect="unknown", hold="open", waits="approval", approver=None)
        unknown.until_us = now + hold.EXPIRES_US
        kind = None if row.effect == "unknown" else "effect.unknown"
        await mark(case, unknown, kind, now=now)


async def mark(case: Case, row: ActionRow, kind: str | None, *, now: int) -> None:
    """Make one change in an effect's life durable by itself."""
    drafts = [case.effect_entry(kind, row, 0)] if kind else []
    await case.commit(case.step(drafts, [row], now))


async def settle(line: Line, case: Case, row: ActionRow, outcome: Outcome) -> None:
    """Record what came of a call. It happened, so no fence may refuse to record it."""
    while True:
        now = line.clock.now_us()
        after = replace(row)
        tool = case.agent.tools[row.tool]
        state = performing.settle(after, tool, outcome, now)
        drafts: list[Draft] = []
        if state == "unknown" and row.effect != "unknown":
            case.started.discard(row.id)
            drafts.append(case.effect_entry("effect.unknown", after, 0))
        elif state in ("done", "failed"):
            answer = case.body_of(after.answer or b"{}")
            drafts.append(case.effect_entry(f"effect.{state}", after, 0, answer))
            if case.final and all(other.settled for other in case.merged([after])):
                drafts.append(case.closed_entry(1, None, len(case.rows)))
        step = case.step(drafts, [after], now)
        try:
            await case.commit(step)
        except Superseded:
            case.reload()
            if any(r.id == row.id and r.effect in ("done", "failed") for r in case.rows):
                raise
            continue
        line.metrics.count("effects", agent=case.agent.name, tool=row.tool, state=state)
        return
