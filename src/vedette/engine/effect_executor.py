"""Carry out: bring what is permitted into the world, once, and record what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from vedette.domain.action import Action
from vedette.domain.base.errors import StoreFailed
from vedette.domain.conflict import Superseded
from vedette.domain.effect import Outcome
from vedette.domain.entry import Draft
from vedette.domain.row_proof import Told
from vedette.domain.run import ActionRow
from vedette.domain.tool import Tool
from vedette.engine import held_actions
from vedette.engine import tool_calls as performing
from vedette.engine.circuit_breaker import Breaker, Pass
from vedette.engine.kill_switch import erred, may_call
from vedette.engine.parked_runs import LOOK_AGAIN_US
from vedette.engine.reauthorization import decide_again
from vedette.engine.run_context import Case
from vedette.engine.services import Line

# How long after a failed commit an outcome is recorded again, first and at most.
_RECORD_S, _LAST_RECORD_S = 0.1, 2.0
# How often it is looked, so far apart, whether a lease is renewed with the store back.
_LOOKS = 100


async def perform(line: Line, case: Case) -> None:
    """Bring the next permitted effect a step further: mark, call, or settle what is unknown."""
    waiting = case.to_perform(line.clock.now_us())
    if not waiting:
        return
    row = waiting[0]
    agent = case.agent.name

    def may_start() -> bool:
        live = line.gateway.policy_rev == row.policy_rev and line.store.holds(case.epoch)
        # What could not be recorded must not happen: it would be called again, and again.
        return (
            live
            and line.store.ready
            and not (line.stops.tool(agent, row.tool) or line.stops.coming(agent, row.tool))
        )

    assert row.effect is not None
    await await_store(line, case)
    # What may have happened already is not decided anew: first it is found out.
    if row.effect == "intended" and not may_start():
        await stand_by(line, case, row)
        await decide_again(line, case, [row])
        return
    told = case.read_told([row], to_decide=False).get(row.id, ())
    try:
        action = case.action(row, told)
    except Superseded:
        if row.effect == "intended":
            await decide_again(line, case, [row])
        elif left_us := quiet_us(line, case, row, told):
            await keep_quiet(line, case, row, left_us)
        else:
            await ask_person(line, case, [row])
        return
    tool = action.tool
    breaker = breaker_of(line, agent, tool)
    doubt = row.id not in case.cleared and line.in_doubt(case.run, row)
    before = performing.before_call(tool, row.effect, mine=row.id in case.started, doubt=doubt)
    # Who looks before the call's time is over, a person too, may see nothing yet.
    if before in ("ask", "person") and (left_us := quiet_us(line, case, row, told)):
        await keep_quiet(line, case, row, left_us)
        return
    if before == "person":
        asked = replace(row, tries=row.tries + 1) if doubt else row
        await ask_person(line, case, [asked])
        return
    if await must_wait(line, case, row, breaker):
        return
    # Counted once, and before a start is made durable: a call that was begun is seen through.
    fresh = before in ("start", "call") and row.id not in case.started
    if fresh and not await may_call(line, agent):
        return
    if before == "start":
        started = replace(row, effect="started")
        now, timeout = line.clock.now_us(), tool.timeout_us
        await mark(case, started, "effect.started", now=now, timeout=timeout)
        case.started.add(row.id)
        return
    await try_target(line, case, row, action, before, may_start)


async def try_target(
    line: Line,
    case: Case,
    row: ActionRow,
    action: Action,
    before: performing.Before,
    may_start: Callable[[], bool],
) -> None:
    """Call the target, or ask it, and make durable what came of it."""
    tool, agent = action.tool, case.agent.name
    breaker = breaker_of(line, agent, tool)
    target = line.targets.get(tool.target or "", {})
    person = row.approver is not None and row.rule == "permit.approved"
    call = performing.call_of(action, case.agent, case.event, target, row.tries + 1, person=person)
    outcome: Outcome | None

    def may_begin() -> bool:
        yes = may_start()
        if yes:
            line.called.add(row.id)
            line.quiet.begin(row.id, case.epoch, line.clock.monotonic_us())
        return yes

    async with line.calling(case.run, tool, breaker.target, row.policy_rev):
        leave = breaker.enter(line.clock.now_us())
        if leave is None:
            await park(line, case, row, breaker.target)
            return
        answered: bool | None = None
        sure = before == "ask"
        try:
            if before == "ask":
                outcome = await performing.ask(line.performer, tool, call)
                answered = outcome is None or outcome.state != "unknown"
            else:
                outcome = await performing.make(line.performer, tool, call, may_begin)
                answered = None if outcome is None else outcome.state in ("done", "failed")
                if outcome is not None and outcome.state == "done":
                    outcome, sure = await performing.verified(
                        line.performer, row, tool, call, outcome
                    )
        finally:
            report(line, breaker, leave, answered)
    if before == "ask" and row.effect == "intended":
        await clear(line, case, row, outcome)
    elif leave.trial and outcome is not None and waits_on(tool, row, before, outcome):
        # It was the target that was tried: an outage must not use up the tries of what waits, nor
        # make it wait for longer than for the target.
        tried = row.tries + (before != "ask" and outcome.state == "unknown")
        await park(line, case, replace(row, tries=tried), breaker.target, what="answered")
    elif outcome is not None:
        await settle(line, case, row, outcome, sure)
    elif before == "ask" and tool.verify and row.tries >= tool.attempts:
        # It was said to be done each time, and never was.
        failed = Outcome("failed", error=performing.NOT_THERE)
        await settle(line, case, row, failed, sure=True)
    elif before == "ask":
        line.quiet.end(row.id)
        case.started.discard(row.id)
        now, again = line.clock.now_us(), replace(row, effect="intended")
        await mark(case, again, "effect.absent", now=now, what="asked")
    else:
        line.called.discard(row.id)
        if not line.store.ready:
            return
        await stand_by(line, case, row)
        await decide_again(line, case, [row])


async def clear(line: Line, case: Case, row: ActionRow, outcome: Outcome | None) -> None:
    """Take in what a target says of an effect that may have happened before a restore."""
    if outcome is None:
        case.cleared.add(row.id)
    elif outcome.state in ("done", "failed"):
        await settle(line, case, row, outcome, sure=True)
    else:
        later = performing.ask_later(row, line.clock.now_us())
        await mark(case, later, None, now=line.clock.now_us())


async def await_store(line: Line, case: Case) -> None:
    """Wait while the store cannot commit: what would come of a call could not be recorded.

    The case is kept for it knows which starts are its own. Raises Superseded if the run is given
    to another worker meanwhile; a lease that has only run out may be renewed with the store back.
    """
    looks, away = _LOOKS, False
    while not line.store.ready or (away and line.store.lease(case.run) != case.epoch):
        away = True
        await asyncio.sleep(_RECORD_S)
        looks -= line.store.ready
        if line.store.lease(case.run) not in (None, case.epoch) or looks < 0:
            raise Superseded("another worker has the run by now")


async def stand_by(line: Line, case: Case, row: ActionRow) -> None:
    """Wait until a stop that is on its way is durable: nothing is decided by it before."""
    while line.stops.coming(case.agent.name, row.tool):  # noqa: ASYNC110 (a commit away)
        await asyncio.sleep(0.001)


# --- what is in the way of a call ------------------------------------------------------------


def breaker_of(line: Line, agent: str, tool: Tool) -> Breaker:
    """Return the breaker of a tool's target; a tool without one is a target of its own."""
    return line.breakers.of(tool.target or f"{agent}/{tool.name}")


async def must_wait(line: Line, case: Case, row: ActionRow, breaker: Breaker) -> bool:
    """Park a run whose turn has not come, or whose target is to be left alone."""
    while (first := line.parking.before(case.run)) is not None:
        found = line.store.run(first)
        if found is not None and found.state not in ("done", "dead"):
            await park(line, case, row, None)
            return True
        # It was settled where this process did not see it.
        line.parking.drop(first, (case.run.agent, case.run.key))
    if breaker.state == "closed" or breaker.ripe(line.clock.now_us()):
        return False
    await park(line, case, row, breaker.target)
    return True


def quiet_us(line: Line, case: Case, row: ActionRow, told: Sequence[Told] = ()) -> int:
    """Return for how long nobody must be asked yet what came of a call; 0 if they may be.

    Whoever asks about a call passes here, a person too: until then *absent* may mean *not yet*.
    """
    lasts_us = performing.time_of_call(case.agent.tools.get(row.tool), told)
    return line.quiet.left_us(row.id, case.epoch, lasts_us, line.clock.monotonic_us())


async def keep_quiet(line: Line, case: Case, row: ActionRow, left_us: int) -> None:
    """Let a run wait until it may be asked what came of it; what follows in its key waits, too."""
    now = line.clock.now_us()
    await mark(case, replace(row, waits="target", not_before_us=now + left_us), None, now=now)
    line.parking.wait(case.run)


async def park(
    line: Line, case: Case, row: ActionRow, target: str | None, *, what: str = "uncalled"
) -> None:
    """Let a run wait for a target, or for its turn in its key, at no compute.

    It is woken by whatever it waits for; should that be lost, it is looked at again in an hour.
    `what` says how it is known that a call that was begun did not happen.
    """
    now = line.clock.now_us()
    waits = replace(row, waits="target", not_before_us=now + LOOK_AGAIN_US)
    if row.id in case.started:
        # Its start was made durable a moment ago.
        case.started.discard(row.id)
        waits.effect = "intended"
        await mark(case, waits, "effect.absent", now=now, what=what)
    else:
        await mark(case, waits, None, now=now)
    if waits.tries > 0:
        line.called.discard(row.id)
    # What it waits for may have come while that was made durable: nobody would wake it any more.
    if target is None:
        line.parking.wait_behind(case.run)
        line.parking.wake_if_first(case.run.id, (case.run.agent, case.run.key))
    else:
        line.parking.wait_for(case.run, target)
        if line.breakers.of(target).state == "closed":
            line.parking.wake(case.run.id)


def waits_on(tool: Tool, row: ActionRow, before: performing.Before, outcome: Outcome) -> bool:
    """Say whether an effect is after a try what it was before: the target gave no answer, or a no
    for now, to a call that may be repeated, or to a question about one that is known as unknown.
    """
    if before == "ask":
        return row.effect == "unknown" and outcome.state == "unknown"
    repeats = tool.settles == "idempotent" and outcome.state == "unknown"
    return repeats or outcome.state == "retry"


def report(line: Line, breaker: Breaker, leave: Pass, answered: bool | None) -> None:
    """Tell a target's breaker what came of a call; when it closes, who waits is woken."""
    before = breaker.state
    if breaker.leave(leave, answered, line.clock.now_us()):
        line.parking.wake_all(breaker.target)
    if breaker.state == "open" and before != "open":
        line.metrics.count("breaker_opened", target=breaker.target)


async def ask_person(line: Line, case: Case, rows: list[ActionRow]) -> None:
    """Leave effects that may or may not have happened to a person: repeat, or let it be."""
    now = line.clock.now_us()
    for row in rows:
        unknown = replace(row, effect="unknown", hold="open", waits="approval", approver=None)
        unknown.until_us = now + held_actions.EXPIRES_US
        kind = None if row.effect == "unknown" else "effect.unknown"
        await mark(case, unknown, kind, now=now)


async def mark(case: Case, row: ActionRow, kind: str | None, *, now: int, **more: Any) -> None:
    """Make one change in an effect's life durable by itself. `more` are fields of its entry."""
    drafts = [case.effect_entry(kind, row, 0, **more)] if kind else []
    await case.commit(case.step(drafts, [row], now))


async def settle(line: Line, case: Case, row: ActionRow, outcome: Outcome, sure: bool) -> None:
    """Record what came of a call. It happened, so no fence may refuse to record it.

    `sure` says that it is the target's word, not only the tool's. Only this process knows it: a
    store that cannot commit is waited for, as a call of the same key again would be the price.
    """
    wait_s = _RECORD_S
    while True:
        now = line.clock.now_us()
        after = row.copy()
        tool = case.agent.tools[row.tool]
        state = performing.settle(after, tool, outcome, now)
        if state == "unknown" and after.waits == "target":
            left_us = quiet_us(line, case, row)
            after.not_before_us = max(after.not_before_us, now + left_us)
        drafts: list[Draft] = []
        if state == "unknown" and row.effect != "unknown":
            case.started.discard(row.id)
            drafts.append(case.effect_entry("effect.unknown", after, 0))
        elif state == "intended" and row.effect == "started":
            drafts.append(case.effect_entry("effect.absent", after, 0, what="answered"))
        elif state in ("done", "failed"):
            answer = case.body_of(after.answer or b"{}")
            word = {"verified": True} if sure and state == "done" else {}
            drafts.append(case.effect_entry(f"effect.{state}", after, 0, answer, **word))
            if case.final and all(other.settled for other in case.merged([after])):
                drafts.append(case.closed_entry(1, None, len(case.rows)))
        step = case.step(drafts, [after], now)
        try:
            await case.commit(step)
        except StoreFailed:
            # The lease may have run out with the store away; whose the run is then the store says.
            line.metrics.count("store_failures")
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LAST_RECORD_S)
            continue
        except Superseded as error:
            if line.store.lease(case.run) != case.epoch:
                # Another worker's by now: it finds out for itself what came of the call.
                raise Superseded("another worker has the run by now") from error
            with suppress(StoreFailed):
                case.reload()
            if any(r.id == row.id and r.effect in ("done", "failed") for r in case.rows):
                raise
            continue
        line.called.discard(row.id)
        line.parking.note_answer(after, outcome.retry_after_us if after.waits == "target" else 0)
        if state != "unknown":
            line.quiet.end(row.id)
        if after.waits == "target":
            # Before the key is let go: what comes after it must not go ahead of it.
            line.parking.wait(case.run)
        line.metrics.count("effects", agent=case.agent.name, tool=row.tool, state=state)
        if state == "failed":
            await erred(line, case.agent.name)
        return
