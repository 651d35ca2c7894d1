"""The effect executor: performs what is permitted, once, and records what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from vedette.domain.action import Action
from vedette.domain.artefact import STORED_KIND, extract_artefacts
from vedette.domain.base.errors import StoreFailed
from vedette.domain.effect import Outcome, RowWrite
from vedette.domain.entry import Draft
from vedette.domain.row_proof import EntryRecord
from vedette.domain.run import ActionRow, Superseded
from vedette.domain.tool import Tool
from vedette.domain.work_tools import ASK_TOOL
from vedette.engine import action_holds, tool_calls
from vedette.engine.circuit_breaker import Breaker, Leave
from vedette.engine.escrow import return_escrow, uncount_returned
from vedette.engine.kill_switch import count_error, park_agent
from vedette.engine.parked_runs import RECHECK_US
from vedette.engine.reauthorization import reauthorize
from vedette.engine.run_context import RunContext
from vedette.engine.services import Services
from vedette.engine.task_progress import TaskProgress
from vedette.engine.turn import observe_effect

# What is kept of the error of an outcome, in characters.
MAX_ERROR_CHARS = 2_000
# How long after a failed commit an outcome is recorded again, first and at most.
_RECORD_S, _LAST_RECORD_S = 0.1, 2.0
# How often it is looked, so far apart, whether a lease is renewed with the store back.
_LEASE_CHECKS = 100


def may_start(services: Services, context: RunContext, row: ActionRow) -> bool:
    """Say whether an effect may begin: under the policy that permitted it, no stop, our lease.

    What could not be recorded must not happen: it would be called again, and again.
    """
    return (
        services.gateway.policy_rev == row.policy_rev
        and services.store.cluster.is_lease_valid(context.epoch)
        and services.store.steps.is_ready
        and not services.stops.bars_call(context.agent.name, row.tool)
        and not (context.task is not None and _is_barred_above(services, context.task, row))
        and not is_past_canary(services, context)
    )


async def perform_effect(services: Services, context: RunContext, row: ActionRow) -> None:
    """Bring a permitted effect a step further: mark its start, call, or ask what is unknown."""
    agent = context.agent
    assert row.effect is not None
    if not services.store.steps.is_ready:
        await await_store(services, context)
    # What may have happened already is not decided anew: first it is found out.
    if row.effect == "intended" and not may_start(services, context, row):
        refuse_past_canary(services, context)
        await await_pending_stop(services, context, row)
        await reauthorize(services, context, [row])
        return
    # One that was decided here needs no proof.
    is_fresh = row.id in context.fresh_actions
    entries = () if is_fresh else services.store.ledger.proof_entries([row.id]).get(row.id, ())
    try:
        action = context.rebuild_action(row, entries)
    except Superseded:
        if row.effect == "intended":
            await reauthorize(services, context, [row])
        elif not await wait_quiet_time(services, context, row, entries):
            await escalate_unknown(services, context, row)
        return
    tool = action.tool
    # A tool without a target is a target of its own.
    breaker = services.breakers.for_target(tool.target or f"{agent.name}/{tool.name}")
    in_loss_window = row.id not in context.confirmed_absent and services.in_loss_window(
        context.run, row
    )
    is_started_here = row.id in context.started_here
    precondition = tool_calls.find_precondition(
        tool, row.effect, own_start=is_started_here, in_loss_window=in_loss_window
    )
    # Who looks before the call's time is over, a person too, may see nothing yet.
    if precondition in ("query", "person") and await wait_quiet_time(
        services, context, row, entries
    ):
        return
    if precondition == "person":
        tried = replace(row, tries=row.tries + 1) if in_loss_window else row
        await escalate_unknown(services, context, tried)
        return
    if await park_if_blocked(services, context, row, breaker):
        return
    now = services.clock.now_us()
    # Counted once, and before a start is made durable: a call that was begun is made.
    if precondition != "query" and not is_started_here:
        over = services.rate_counters.count_effect(agent.name, agent.rate_limits, now)
        if over is not None:
            await park_agent(services, agent.name, over)
            return
    if precondition == "start":
        started = replace(row, effect="started")
        timeout = tool.timeout_us
        await commit_effect_change(context, started, "effect.started", now=now, timeout=timeout)
        context.started_here.add(row.id)
        return
    await call_target(services, context, row, action, breaker, precondition == "query")


async def call_target(
    services: Services,
    context: RunContext,
    row: ActionRow,
    action: Action,
    breaker: Breaker,
    is_query: bool,
) -> None:
    """Call the target, or ask it what came of an earlier call, and make durable what it says."""
    tool, executor = action.tool, (context.code or services).tool_executor
    call = tool_calls.build_call(
        action,
        context.agent,
        context.event if context.task is None else context.task.session.trace(context.event),
        services.targets.get(tool.target or "", {}),
        row.tries + 1,
        person=row.approver is not None and row.rule == "permit.approved",
    )

    def begin_call() -> bool:
        may = may_start(services, context, row)
        if may:
            services.calls.begin(row.id, context.epoch)
        return may

    async with services.calls.slot(context.run, tool, breaker.target, row.policy_rev):
        leave = breaker.acquire(services.clock.now_us())
        if leave is None:
            await park_run(services, context, row, breaker.target)
            return
        outcome: Outcome | None
        answered: bool | None = None
        verified = is_query
        try:
            if is_query:
                outcome = await tool_calls.query_target(executor, tool, call)
                answered = outcome is None or outcome.state != "unknown"
            else:
                outcome = await tool_calls.make_call(executor, tool, call, begin_call)
                answered = None if outcome is None else outcome.state in ("done", "failed")
                obliged = "verify" in row.obliges.split(",")
                if outcome is not None and outcome.state == "done" and tool.verifier(obliged):
                    outcome, verified = await tool_calls.verify_outcome(
                        executor, tool, call, outcome, obliged=obliged
                    )
        finally:
            record_call_result(services, breaker, leave, answered)
    if is_query and row.effect == "intended":
        await resolve_lost_effect(services, context, row, outcome)
    elif leave == "trial" and outcome is not None and is_inconclusive(tool, row, is_query, outcome):
        # It was the target that was tried: an outage must not use up the tries of what waits, nor
        # make it wait for longer than for the target.
        tries = row.tries + (not is_query and outcome.state == "unknown")
        waiting = replace(row, tries=tries)
        await park_run(services, context, waiting, breaker.target, what="answered")
    elif outcome is not None:
        await record_outcome(services, context, row, outcome, verified)
    elif is_query and tool.verify and row.tries >= tool.attempts:
        # It was said to be done each time, and never was.
        failed = Outcome("failed", error=tool_calls.ABSENT_ERROR)
        await record_outcome(services, context, row, failed, verified=True)
    elif is_query:
        services.calls.end(row.id)
        context.started_here.discard(row.id)
        now, absent = services.clock.now_us(), replace(row, effect="intended")
        await commit_effect_change(context, absent, "effect.absent", now=now, what="asked")
    else:
        services.calls.unrecorded.discard(row.id)
        if not services.store.steps.is_ready:
            return
        if is_past_canary(services, context) and row.id in context.started_here:
            # Known here alone: whoever looks at it afresh would have to ask its target.
            context.started_here.discard(row.id)
            now, absent = services.clock.now_us(), replace(row, effect="intended")
            await commit_effect_change(context, absent, "effect.absent", now=now, what="uncalled")
        refuse_past_canary(services, context)
        await await_pending_stop(services, context, row)
        await reauthorize(services, context, [row])


def is_past_canary(services: Services, context: RunContext) -> bool:
    """Say whether a run was begun by a canary that is over, or is on a release that is withdrawn:
    it begins nothing more.
    """
    return context.code is not None and not services.has_code(context.code)


def refuse_past_canary(services: Services, context: RunContext) -> None:
    """Raise Superseded if a run's canary is over, or its release withdrawn: the fleet's release
    goes on with it, and decides anew.
    """
    if is_past_canary(services, context):
        raise Superseded(f"the release {context.agent.release[:12]} is not to be run any more")


async def resolve_lost_effect(
    services: Services, context: RunContext, row: ActionRow, outcome: Outcome | None
) -> None:
    """Take in what a target says of an effect that may have happened before a restore."""
    if outcome is None:
        context.confirmed_absent.add(row.id)
    elif outcome.state in ("done", "failed"):
        await record_outcome(services, context, row, outcome, verified=True)
    else:
        now = services.clock.now_us()
        await commit_effect_change(context, tool_calls.postpone_query(row, now), None, now=now)


async def await_store(services: Services, context: RunContext) -> None:
    """Have an effect wait until the store can commit: what came of a call could not be recorded.

    The context is kept, for it knows which starts are its own. Raises Superseded if the run is
    given to another worker meanwhile; a lease that has only run out may be renewed with the store
    back.
    """
    store, checks_left = services.store, _LEASE_CHECKS
    while not store.steps.is_ready or store.cluster.lease_epoch(context.run) != context.epoch:
        await asyncio.sleep(_RECORD_S)
        checks_left -= store.steps.is_ready
        if store.cluster.lease_epoch(context.run) not in (None, context.epoch) or checks_left < 0:
            raise Superseded("another worker has the run by now")


async def await_pending_stop(services: Services, context: RunContext, row: ActionRow) -> None:
    """Have an effect wait until a stop that was announced is durable: nothing is decided before."""
    stops, task = services.stops, context.task
    while stops.is_stop_pending(context.agent.name, row.tool) or (  # noqa: ASYNC110 (a commit away)
        task is not None and task.is_stop_pending_above(stops, row.tool)
    ):
        await asyncio.sleep(0.001)


def _is_barred_above(services: Services, task: TaskProgress, row: ActionRow) -> bool:
    """Say whether a stop of an agent above bars a call, announced or in force."""
    stops = services.stops
    return task.is_stopped_above(stops, row.tool) or task.is_stop_pending_above(stops, row.tool)


# --- what is in the way of a call ------------------------------------------------------------


async def park_if_blocked(
    services: Services, context: RunContext, row: ActionRow, breaker: Breaker
) -> bool:
    """Park a run whose turn has not come, or whose target is to be left alone."""
    while (first := services.parked_runs.find_predecessor(context.run)) is not None:
        found = services.store.runs.run(first)
        if found is not None and found.state not in ("done", "dead"):
            await park_run(services, context, row, None)
            return True
        # It ended where this process did not see it.
        services.parked_runs.unpark_by_id(first, (context.run.agent, context.run.key))
    if breaker.state == "closed" or breaker.is_trial_due(services.clock.now_us()):
        return False
    await park_run(services, context, row, breaker.target)
    return True


async def wait_quiet_time(
    services: Services, context: RunContext, row: ActionRow, entries: Sequence[EntryRecord]
) -> bool:
    """Let a run wait until somebody may be asked what came of its call; False if they may be.

    What follows in its key waits, too.
    """
    tool = context.agent.tools.get(row.tool)
    left_us = services.calls.quiet_us(row, context.epoch, tool, entries)
    if left_us:
        now = services.clock.now_us()
        waiting = replace(row, waits="target", not_before_us=now + left_us)
        await commit_effect_change(context, waiting, None, now=now)
        services.parked_runs.park_timed(context.run)
    return left_us > 0


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
        services.calls.unrecorded.discard(row.id)
    # What it waits for may have come while that was made durable: nobody would wake it any more.
    if target is None:
        services.parked_runs.park_behind(context.run)
        services.parked_runs.wake_if_first(context.run.id, (context.run.agent, context.run.key))
    else:
        services.parked_runs.park_for_target(context.run, target)
        if services.breakers.for_target(target).state == "closed":
            services.parked_runs.wake(context.run.id)


def is_inconclusive(tool: Tool, row: ActionRow, is_query: bool, outcome: Outcome) -> bool:
    """Say whether an effect is after a try what it was before: the target gave no answer, or a no
    for now, to a call that may be repeated, or to a query about one that is known as unknown.
    """
    if is_query:
        return row.effect == "unknown" and outcome.state == "unknown"
    repeats = tool.settles == "idempotent" and outcome.state == "unknown"
    return repeats or outcome.state == "retry"


def record_call_result(
    services: Services, breaker: Breaker, leave: Leave, answered: bool | None
) -> None:
    """Tell a target's breaker what came of a call; when it closes, who waits is woken."""
    state_before = breaker.state
    if breaker.release(leave, answered, services.clock.now_us()):
        services.parked_runs.wake_all(breaker.target)
    if breaker.state == "open" and state_before != "open":
        services.metrics.count("breaker_opened", target=breaker.target)


async def escalate_unknown(services: Services, context: RunContext, row: ActionRow) -> None:
    """Leave an effect that may or may not have happened to a person: repeat it, or let it be."""
    now = services.clock.now_us()
    unknown = replace(row, effect="unknown", hold="open", waits="approval", approver=None)
    unknown.until_us = now + action_holds.HOLD_EXPIRY_US
    kind = None if row.effect == "unknown" else "effect.unknown"
    await commit_effect_change(context, unknown, kind, now=now)


async def commit_effect_change(
    context: RunContext,
    row: ActionRow,
    kind: str | None,
    *,
    now: int,
    own_rows: Sequence[RowWrite] = (),
    **more: Any,
) -> None:
    """Commit one change of an effect in a step by itself. `more` are fields of its entry."""
    drafts = [context.effect_entry(kind, row, 0, **more)] if kind else []
    await context.commit(context.build_step(drafts, [row], now, own_rows=own_rows))


async def record_outcome(
    services: Services,
    context: RunContext,
    row: ActionRow,
    outcome: Outcome,
    verified: bool,
    own_rows: Sequence[RowWrite] = (),
) -> None:
    """Record what came of an effect's call. It happened, so no fence may refuse to record it.

    `verified` says that it is the target's word, not only the tool's; `own_rows` go with it. Only
    this process knows it: a store that cannot commit is waited for, as a call of the same key again
    would be the price.
    """
    wait_s = _RECORD_S
    tool = context.agent.tools[row.tool]
    stored: list[Draft] = []
    if context.agent.artefacts:
        outcome, stored = take_artefacts(context, row, tool, outcome)
    while True:
        now = services.clock.now_us()
        after = row.copy()
        state = tool_calls.apply_outcome(after, tool, outcome, now)
        if state == "unknown" and after.waits == "target":
            left_us = services.calls.quiet_us(row, context.epoch, tool, ())
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
            drafts += stored
            drafts.append(context.effect_entry(f"effect.{state}", after, 0, answer, **word))
            drafts += context.end_entries([after])
        moves: dict[str, Any] = {"own_rows": own_rows}
        if row.tool == ASK_TOOL:
            returned, moves["returned"] = return_escrow(context, row, after)
            drafts += returned
        step = context.build_step(drafts, [after], now, **moves)
        try:
            await context.commit(step)
        except StoreFailed:
            # The lease may have run out with the store away; whose the run is then the store says.
            services.metrics.count("store_failures")
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LAST_RECORD_S)
            continue
        except Superseded as error:
            if services.store.cluster.lease_epoch(context.run) != context.epoch:
                # Another worker's by now: it finds out for itself what came of the call.
                raise Superseded("another worker has the run by now") from error
            with suppress(StoreFailed):
                context.reload()
            if any(r.id == row.id and r.effect in ("done", "failed") for r in context.actions):
                raise
            continue
        break
    if row.tool == ASK_TOOL:
        uncount_returned(services, context.agent.name, moves["returned"])
    services.calls.unrecorded.discard(row.id)
    if state != "unknown":
        services.calls.end(row.id)
    waits = after.waits == "target"
    services.parked_runs.note_retry_after(after, outcome.retry_after_us if waits else 0)
    if waits:
        # Before the key is let go: what comes after it must not go ahead of it.
        services.parked_runs.park_timed(context.run)
    services.metrics.count("effects", agent=context.agent.name, tool=row.tool, state=state)
    if state == "done" and not row.is_awaited:
        observe_effect(context, after, now)
    if state == "failed":
        await count_error(services, context.run)


def take_artefacts(
    context: RunContext, row: ActionRow, tool: Tool, outcome: Outcome
) -> tuple[Outcome, list[Draft]]:
    """Return a call's outcome with references to what is too large in it, and the entries of that.

    They belong into the step that records the outcome. An inverse is made of the outcome of its
    tool, so the data of that stay whole. An error is cut, and says so.
    """
    if len(outcome.error) > MAX_ERROR_CHARS:
        cut = f"{outcome.error[:MAX_ERROR_CHARS]}… (cut: {len(outcome.error)} characters)"
        outcome = replace(outcome, error=cut)
    if tool.inverse is not None or not outcome.data:
        return outcome, []
    is_trusted = tool.output == "trusted" and "label_output" not in row.obliges.split(",")
    outcome, artefacts = extract_artefacts(
        outcome,
        context.run.event,
        context.subject,
        lambda number: context.services.artefacts.draw_salt(row.id, number),
        label="trusted" if is_trusted else "untrusted",
        readers=tool_calls.answer_readers(tool, row, outcome.data),
    )
    return outcome, [
        context.entry(
            STORED_KIND, after=row.last, action=row.id, tool=tool.name, what=artefact.type,
            size=len(artefact.text), body=body,
        )
        for artefact, body in artefacts
    ]  # fmt: skip
