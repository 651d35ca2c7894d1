"""Carry out: bring what is permitted into the world, once, and record what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from vedette.domain.action import Action
from vedette.domain.base.errors import StoreFailed
from vedette.domain.conflict import Superseded
from vedette.domain.effect import Outcome
from vedette.domain.entry import Draft
from vedette.domain.row_proof import EntryRecord
from vedette.domain.run import ActionRow
from vedette.domain.tool import Tool
from vedette.engine import held_actions
from vedette.engine import tool_calls as performing
from vedette.engine.circuit_breaker import Breaker, CallPass
from vedette.engine.kill_switch import admit_call, count_error
from vedette.engine.parked_runs import RECHECK_US
from vedette.engine.reauthorization import reauthorize
from vedette.engine.run_context import RunContext
from vedette.engine.services import Services

# How long after a failed commit an outcome is recorded again, first and at most.
_RECORD_S, _LAST_RECORD_S = 0.1, 2.0
# How often it is looked, so far apart, whether a lease is renewed with the store back.
_LEASE_CHECKS = 100


async def perform_effect(services: Services, context: RunContext) -> None:
    """Bring the next permitted effect a step further: mark, call, or settle what is unknown."""
    waiting = context.due_effects(services.clock.now_us())
    if not waiting:
        return
    row = waiting[0]
    agent = context.agent.name

    def may_start() -> bool:
        live = services.gateway.policy_rev == row.policy_rev and services.store.is_lease_valid(
            context.epoch
        )
        # What could not be recorded must not happen: it would be called again, and again.
        return (
            live
            and services.store.is_ready
            and not (
                services.stops.is_tool_stopped(agent, row.tool)
                or services.stops.is_stop_pending(agent, row.tool)
            )
        )

    assert row.effect is not None
    await await_store(services, context)
    # What may have happened already is not decided anew: first it is found out.
    if row.effect == "intended" and not may_start():
        await await_pending_stop(services, context, row)
        await reauthorize(services, context, [row])
        return
    entries = context.read_entries([row], to_decide=False).get(row.id, ())
    try:
        action = context.rebuild_action(row, entries)
    except Superseded:
        if row.effect == "intended":
            await reauthorize(services, context, [row])
        elif left_us := quiet_us(services, context, row, entries):
            await wait_quiet_time(services, context, row, left_us)
        else:
            await escalate_unknown(services, context, [row])
        return
    tool = action.tool
    breaker = breaker_of(services, agent, tool)
    in_loss_window = row.id not in context.confirmed_absent and services.in_loss_window(
        context.run, row
    )
    precondition = performing.find_precondition(
        tool, row.effect, own_start=row.id in context.started_here, in_loss_window=in_loss_window
    )
    # Who looks before the call's time is over, a person too, may see nothing yet.
    if precondition in ("ask", "person") and (left_us := quiet_us(services, context, row, entries)):
        await wait_quiet_time(services, context, row, left_us)
        return
    if precondition == "person":
        asked = replace(row, tries=row.tries + 1) if in_loss_window else row
        await escalate_unknown(services, context, [asked])
        return
    if await park_if_blocked(services, context, row, breaker):
        return
    # Counted once, and before a start is made durable: a call that was begun is seen through.
    fresh = precondition in ("start", "call") and row.id not in context.started_here
    if fresh and not await admit_call(services, agent):
        return
    if precondition == "start":
        started = replace(row, effect="started")
        now, timeout = services.clock.now_us(), tool.timeout_us
        await commit_effect_change(context, started, "effect.started", now=now, timeout=timeout)
        context.started_here.add(row.id)
        return
    await call_target(services, context, row, action, precondition, may_start)


async def call_target(
    services: Services,
    context: RunContext,
    row: ActionRow,
    action: Action,
    precondition: performing.Precondition,
    may_start: Callable[[], bool],
) -> None:
    """Call the target, or ask it, and make durable what came of it."""
    tool, agent = action.tool, context.agent.name
    breaker = breaker_of(services, agent, tool)
    target = services.targets.get(tool.target or "", {})
    person = row.approver is not None and row.rule == "permit.approved"
    call = performing.build_call(
        action, context.agent, context.event, target, row.tries + 1, person=person
    )
    outcome: Outcome | None

    def may_begin() -> bool:
        yes = may_start()
        if yes:
            services.unrecorded_calls.add(row.id)
            services.quiet_times.begin_call(row.id, context.epoch, services.clock.monotonic_us())
        return yes

    async with services.call_slot(context.run, tool, breaker.target, row.policy_rev):
        call_pass = breaker.acquire(services.clock.now_us())
        if call_pass is None:
            await park_run(services, context, row, breaker.target)
            return
        answered: bool | None = None
        verified = precondition == "ask"
        try:
            if precondition == "ask":
                outcome = await performing.query_target(services.tool_executor, tool, call)
                answered = outcome is None or outcome.state != "unknown"
            else:
                outcome = await performing.make_call(services.tool_executor, tool, call, may_begin)
                answered = None if outcome is None else outcome.state in ("done", "failed")
                if outcome is not None and outcome.state == "done":
                    outcome, verified = await performing.verify_outcome(
                        services.tool_executor, row, tool, call, outcome
                    )
        finally:
            record_call_result(services, breaker, call_pass, answered)
    if precondition == "ask" and row.effect == "intended":
        await resolve_lost_effect(services, context, row, outcome)
    elif (
        call_pass.trial
        and outcome is not None
        and is_inconclusive(tool, row, precondition, outcome)
    ):
        # It was the target that was tried: an outage must not use up the tries of what waits, nor
        # make it wait for longer than for the target.
        tried = row.tries + (precondition != "ask" and outcome.state == "unknown")
        await park_run(
            services, context, replace(row, tries=tried), breaker.target, what="answered"
        )
    elif outcome is not None:
        await record_outcome(services, context, row, outcome, verified)
    elif precondition == "ask" and tool.verify and row.tries >= tool.attempts:
        # It was said to be done each time, and never was.
        failed = Outcome("failed", error=performing.ABSENT_ERROR)
        await record_outcome(services, context, row, failed, verified=True)
    elif precondition == "ask":
        services.quiet_times.end_call(row.id)
        context.started_here.discard(row.id)
        now, again = services.clock.now_us(), replace(row, effect="intended")
        await commit_effect_change(context, again, "effect.absent", now=now, what="asked")
    else:
        services.unrecorded_calls.discard(row.id)
        if not services.store.is_ready:
            return
        await await_pending_stop(services, context, row)
        await reauthorize(services, context, [row])


async def resolve_lost_effect(
    services: Services, context: RunContext, row: ActionRow, outcome: Outcome | None
) -> None:
    """Take in what a target says of an effect that may have happened before a restore."""
    if outcome is None:
        context.confirmed_absent.add(row.id)
    elif outcome.state in ("done", "failed"):
        await record_outcome(services, context, row, outcome, verified=True)
    else:
        later = performing.postpone_query(row, services.clock.now_us())
        await commit_effect_change(context, later, None, now=services.clock.now_us())


async def await_store(services: Services, context: RunContext) -> None:
    """Wait while the store cannot commit: what would come of a call could not be recorded.

    The case is kept for it knows which starts are its own. Raises Superseded if the run is given
    to another worker meanwhile; a lease that has only run out may be renewed with the store back.
    """
    checks_left, was_away = _LEASE_CHECKS, False
    while not services.store.is_ready or (
        was_away and services.store.lease_epoch(context.run) != context.epoch
    ):
        was_away = True
        await asyncio.sleep(_RECORD_S)
        checks_left -= services.store.is_ready
        if services.store.lease_epoch(context.run) not in (None, context.epoch) or checks_left < 0:
            raise Superseded("another worker has the run by now")


async def await_pending_stop(services: Services, context: RunContext, row: ActionRow) -> None:
    """Wait until a stop that is on its way is durable: nothing is decided by it before."""
    while services.stops.is_stop_pending(context.agent.name, row.tool):  # noqa: ASYNC110 (a commit away)
        await asyncio.sleep(0.001)


# --- what is in the way of a call ------------------------------------------------------------


def breaker_of(services: Services, agent: str, tool: Tool) -> Breaker:
    """Return the breaker of a tool's target; a tool without one is a target of its own."""
    return services.breakers.for_target(tool.target or f"{agent}/{tool.name}")


async def park_if_blocked(
    services: Services, context: RunContext, row: ActionRow, breaker: Breaker
) -> bool:
    """Park a run whose turn has not come, or whose target is to be left alone."""
    while (first := services.parked_runs.find_predecessor(context.run)) is not None:
        found = services.store.run(first)
        if found is not None and found.state not in ("done", "dead"):
            await park_run(services, context, row, None)
            return True
        # It was settled where this process did not see it.
        services.parked_runs.unpark_by_id(first, (context.run.agent, context.run.key))
    if breaker.state == "closed" or breaker.is_trial_due(services.clock.now_us()):
        return False
    await park_run(services, context, row, breaker.target)
    return True


def quiet_us(
    services: Services, context: RunContext, row: ActionRow, entries: Sequence[EntryRecord] = ()
) -> int:
    """Return for how long nobody must be asked yet what came of a call; 0 if they may be.

    Whoever asks about a call passes here, a person too: until then *absent* may mean *not yet*.
    """
    lasts_us = performing.call_time_us(context.agent.tools.get(row.tool), entries)
    return services.quiet_times.remaining_us(
        row.id, context.epoch, lasts_us, services.clock.monotonic_us()
    )


async def wait_quiet_time(
    services: Services, context: RunContext, row: ActionRow, left_us: int
) -> None:
    """Let a run wait until it may be asked what came of it; what follows in its key waits, too."""
    now = services.clock.now_us()
    await commit_effect_change(
        context, replace(row, waits="target", not_before_us=now + left_us), None, now=now
    )
    services.parked_runs.park_timed(context.run)


async def park_run(
    services: Services,
    context: RunContext,
    row: ActionRow,
    target: str | None,
    *,
    what: str = "uncalled",
) -> None:
    """Let a run wait for a target, or for its turn in its key, at no compute.

    It is woken by whatever it waits for; should that be lost, it is looked at again in an hour.
    `what` says how it is known that a call that was begun did not happen.
    """
    now = services.clock.now_us()
    waits = replace(row, waits="target", not_before_us=now + RECHECK_US)
    if row.id in context.started_here:
        # Its start was made durable a moment ago.
        context.started_here.discard(row.id)
        waits.effect = "intended"
        await commit_effect_change(context, waits, "effect.absent", now=now, what=what)
    else:
        await commit_effect_change(context, waits, None, now=now)
    if waits.tries > 0:
        services.unrecorded_calls.discard(row.id)
    # What it waits for may have come while that was made durable: nobody would wake it any more.
    if target is None:
        services.parked_runs.park_behind(context.run)
        services.parked_runs.wake_if_first(context.run.id, (context.run.agent, context.run.key))
    else:
        services.parked_runs.park_for_target(context.run, target)
        if services.breakers.for_target(target).state == "closed":
            services.parked_runs.wake(context.run.id)


def is_inconclusive(
    tool: Tool, row: ActionRow, precondition: performing.Precondition, outcome: Outcome
) -> bool:
    """Say whether an effect is after a try what it was before: the target gave no answer, or a no
    for now, to a call that may be repeated, or to a question about one that is known as unknown.
    """
    if precondition == "ask":
        return row.effect == "unknown" and outcome.state == "unknown"
    repeats = tool.settles == "idempotent" and outcome.state == "unknown"
    return repeats or outcome.state == "retry"


def record_call_result(
    services: Services, breaker: Breaker, call_pass: CallPass, answered: bool | None
) -> None:
    """Tell a target's breaker what came of a call; when it closes, who waits is woken."""
    state_before = breaker.state
    if breaker.release(call_pass, answered, services.clock.now_us()):
        services.parked_runs.wake_all(breaker.target)
    if breaker.state == "open" and state_before != "open":
        services.metrics.count("breaker_opened", target=breaker.target)


async def escalate_unknown(services: Services, context: RunContext, rows: list[ActionRow]) -> None:
    """Leave effects that may or may not have happened to a person: repeat, or let it be."""
    now = services.clock.now_us()
    for row in rows:
        unknown = replace(row, effect="unknown", hold="open", waits="approval", approver=None)
        unknown.until_us = now + held_actions.HOLD_EXPIRY_US
        kind = None if row.effect == "unknown" else "effect.unknown"
        await commit_effect_change(context, unknown, kind, now=now)


async def commit_effect_change(
    context: RunContext, row: ActionRow, kind: str | None, *, now: int, **more: Any
) -> None:
    """Make one change in an effect's life durable by itself. `more` are fields of its entry."""
    drafts = [context.effect_entry(kind, row, 0, **more)] if kind else []
    await context.commit(context.build_step(drafts, [row], now))


async def record_outcome(
    services: Services, context: RunContext, row: ActionRow, outcome: Outcome, verified: bool
) -> None:
    """Record what came of a call. It happened, so no fence may refuse to record it.

    `verified` says that it is the target's word, not only the tool's. Only this process knows it: a
    store that cannot commit is waited for, as a call of the same key again would be the price.
    """
    wait_s = _RECORD_S
    while True:
        now = services.clock.now_us()
        after = row.copy()
        tool = context.agent.tools[row.tool]
        state = performing.apply_outcome(after, tool, outcome, now)
        if state == "unknown" and after.waits == "target":
            left_us = quiet_us(services, context, row)
            after.not_before_us = max(after.not_before_us, now + left_us)
        drafts: list[Draft] = []
        if state == "unknown" and row.effect != "unknown":
            context.started_here.discard(row.id)
            drafts.append(context.effect_entry("effect.unknown", after, 0))
        elif state == "intended" and row.effect == "started":
            drafts.append(context.effect_entry("effect.absent", after, 0, what="answered"))
        elif state in ("done", "failed"):
            answer = context.body_of(after.answer or b"{}")
            word = {"verified": True} if verified and state == "done" else {}
            drafts.append(context.effect_entry(f"effect.{state}", after, 0, answer, **word))
            if context.final and all(other.is_final for other in context.merge_actions([after])):
                drafts.append(context.final_entry(1, None, len(context.actions)))
        step = context.build_step(drafts, [after], now)
        try:
            await context.commit(step)
        except StoreFailed:
            # The lease may have run out with the store away; whose the run is then the store says.
            services.metrics.count("store_failures")
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LAST_RECORD_S)
            continue
        except Superseded as error:
            if services.store.lease_epoch(context.run) != context.epoch:
                # Another worker's by now: it finds out for itself what came of the call.
                raise Superseded("another worker has the run by now") from error
            with suppress(StoreFailed):
                context.reload()
            if any(r.id == row.id and r.effect in ("done", "failed") for r in context.actions):
                raise
            continue
        services.unrecorded_calls.discard(row.id)
        services.parked_runs.note_retry_after(
            after, outcome.retry_after_us if after.waits == "target" else 0
        )
        if state != "unknown":
            services.quiet_times.end_call(row.id)
        if after.waits == "target":
            # Before the key is let go: what comes after it must not go ahead of it.
            services.parked_runs.park_timed(context.run)
        services.metrics.count("effects", agent=context.agent.name, tool=row.tool, state=state)
        if state == "failed":
            await count_error(services, context.agent.name)
        return
