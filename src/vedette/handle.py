"""One run, from lease to close. Read this file from the top.

A run is one or more turns of reason, decide, commit, perform. Whatever was committed is never
done again: a turn that is recorded is not asked again, an effect that is settled is not repeated,
and a handler that starts in the middle finds in the store exactly where the run stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vedette import hold
from vedette import perform as performing
from vedette.budget import DAY_US, window_end
from vedette.case import Case, Fenced, OverBudget, Superseded, subject_of
from vedette.digest import canonical
from vedette.effect import Outcome, RowWrite
from vedette.entry import Body, Draft
from vedette.errors import Permanent
from vedette.event import Event
from vedette.gateway import ACTIONS
from vedette.line import MODEL_CALLS, Line
from vedette.memory import Briefing
from vedette.ports import Thought
from vedette.run import ActionRow, Answer, Lease, Run, Step
from vedette.turn import (
    abandon,
    bind_all,
    compose,
    decide,
    end_hold,
    refuse_changed,
    settle_spend,
    tell,
)


async def handle(
    line: Line,
    lease: Lease,
    event: Event | None = None,
    sent: Callable[[], None] | None = None,
) -> Case | int | None:
    """Take a run through its first turn: judged, decided and durable.

    Returns the case if there is more to do (`see_through` does it, beside the key's next run),
    None if the run is done or waits, or the instant at which to try again if the agent's budget
    has no room yet. `event` spares reading it again. `sent` is told when the key's next event may
    be judged, which for a judge is before the commit has stood.

    Raises StoreFailed if a commit did not stand (nothing was lost; handle it again), Superseded
    if somebody else moved the run or a commit before it did not stand (look at it afresh), and
    Permanent for what can never succeed (the caller makes it a dead letter).
    """
    event = event or line.store.event(lease.run.event)
    if event is None:
        raise Permanent("the event's body was erased before the run ended")
    case = Case.open(line, lease.run, lease.epoch, event)
    if case.run.turn == 0:
        now = line.clock.now_us()
        if not await reserve(line, case, now):
            return window_end(now, DAY_US)
        await take_turn(line, case, sent)
        if case.run.state in ("done", "waiting"):
            return None
    return case


async def see_through(line: Line, case: Case) -> int | None:
    """Take a run as far as it goes: to its close, or to where it waits.

    Returns and raises as `handle` does.
    """
    while case.run.state not in ("done", "dead"):
        now = line.clock.now_us()
        if case.owes_a_turn:
            if line.stops.agent(case.agent.name):
                return now
            if not await reserve(line, case, now):
                return window_end(now, DAY_US)
            await take_turn(line, case)
        elif case.to_decide(now):
            await decide_again(line, case, case.to_decide(now))
        elif case.to_perform(now):
            async with line.in_order(case.agent.name, case.run.key):
                while case.to_perform(line.clock.now_us()):
                    await perform(line, case)
        else:
            await wait(case, now)
            break
    return None


# --- reserve: the worst case is booked before anything is spent ------------------------------


async def reserve(line: Line, case: Case, now: int) -> bool:
    """Book a turn's worst case against the agent's budget; False if there is no room.

    A judge spends nothing, so nothing is booked for it. What a model may spend is booked durably
    before it is asked, and settled with the turn: a crash in between can only overcount.
    """
    agent = case.agent
    if agent.reasoner == "judge":
        return True
    if case.run.turn >= agent.max_turns:
        raise Permanent(f"the run wanted more than {agent.max_turns} turns")
    if not line.reservable(agent, now):
        return False
    amount = agent.budget.model_calls_per_run
    booked = case.entry("budget.reserved", unit=MODEL_CALLS, amount=amount)
    caps = {MODEL_CALLS: agent.budget.model_calls_per_day}
    step = case.step([booked], [], now, spend={MODEL_CALLS: amount}, caps=caps)
    try:
        await case.commit(step)
    except OverBudget:
        return False
    line.gateway.counts.add(agent.name, MODEL_CALLS, now, amount)
    case.reserved_us = now
    return True


# --- a turn: recall, reason, decide, commit --------------------------------------------------


async def take_turn(line: Line, case: Case, sent: Callable[[], None] | None = None) -> None:
    """Ask the reasoner once and make durable what was decided of its proposals."""
    if case.agent.reasoner != "judge":
        sent = None  # a model is not asked again because a commit before it did not stand
    revision = line.gateway.policy_rev
    try:
        case.memories, reads = line.recall.brief(case.agent, case.event, line.clock.now_us())
        briefing = case.briefing()
        thought = await reason(line, case, briefing)
        if thought.observed:
            line.heads[(case.agent.name, case.run.key)] = case.run.position
        writing = case.agent.collection if thought.proposals else None
        async with line.alone(writing, case.run.key):
            step = await commit_turn(line, case, thought, reads, revision, sent)
    except BaseException:
        # Reads that were decided on the way were not recorded either.
        line.recall.forget()
        raise
    case.final = thought.final
    settle_spend(line, case, thought)
    remember(line, step)
    tell(line, case, step)


async def commit_turn(
    line: Line,
    case: Case,
    thought: Thought,
    reads: list[Draft],
    revision: int,
    sent: Callable[[], None] | None,
) -> Step:
    """Decide a turn's proposals and commit them; decide again if policy or a stop moved.

    Raises Superseded if the agent was stopped meanwhile: nothing of the turn is kept.
    """
    turn = case.run.turn + 1
    while True:
        if line.stops.agent(case.agent.name):
            raise Superseded("the agent was stopped while it reasoned")
        if line.gateway.policy_rev != revision:
            if case.agent.reasoner == "judge":
                # What it was taught under the old policy may not be its to know any more.
                raise Superseded("the policy changed while it was judged")
            revision, reads = line.gateway.policy_rev, recall_again(line, case)
        now = line.clock.now_us()
        bound = bind_all(case, thought, turn)
        step, counted = compose(line, case, thought, bound, reads, now)
        try:
            await case.commit(step, sent)
        except BaseException as error:
            for _ in range(counted):
                line.gateway.give_back(case.agent.name, now)
            if isinstance(error, Fenced):
                continue
            raise
        return step


def remember(line: Line, step: Step) -> None:
    """Show committed candidates to their banks; one that fails is fed again at the next start."""
    for candidate in step.candidates:
        try:
            line.recall.banks.propose(candidate, line.clock.now_us())
        except Exception:
            line.metrics.count("store_failures")


def recall_again(line: Line, case: Case) -> list[Draft]:
    """Decide the reads of a turn under today's policy; return their entries.

    Raises Superseded if the briefing would be another: then the turn is to be reasoned anew.
    """
    memories, reads = line.recall.brief(case.agent, case.event, line.clock.now_us())
    if memories != case.memories:
        line.recall.forget()
        raise Superseded("what the agent may remember changed while it reasoned")
    return reads


async def reason(line: Line, case: Case, briefing: Briefing) -> Thought:
    """Ask the reasoner, giving its judge the state it needs if it has lost it."""
    reasoner = line.reasoner(case.agent)
    thought = await reasoner.reason(briefing)
    if thought.needs_state:
        checkpoint, at, since = line.store.history(briefing.agent, briefing.key, briefing.position)
        reasoner.restore(briefing.agent, briefing.key, checkpoint, at, since)
        # A commit before this one may have stood since the briefing was written, or may still be
        # on its way: this is judged from what is durable now, and the store refuses it if that
        # was not yet its predecessor.
        case.previous = since[-1][0] if since else at
        thought = await reasoner.reason(replace(briefing, previous=case.previous))
    if thought.needs_state:
        raise Permanent(f"the judge of {briefing.agent} cannot take up its state")
    return thought


# --- decide again: a wait is over, or the policy moved ---------------------------------------


async def decide_again(line: Line, case: Case, due: list[ActionRow]) -> None:
    """Decide actions whose wait is over, or whose policy or stop moved, under today's policy."""
    async with line.alone(case.agent.collection, case.run.key):
        step = await decide_due(line, case, due)
    tell(line, case, step)


async def decide_due(line: Line, case: Case, due: list[ActionRow]) -> Step:
    """Commit new decisions of these actions; return the step that stood."""
    while True:
        now = line.clock.now_us()
        drafts: list[Draft] = []
        writes: list[RowWrite] = []
        rows = [replace(row) for row in due]
        returns: list[tuple[str, int, int]] = []
        for row in rows:
            if hold.ended(row, now):
                drafts += end_hold(case, row)
                continue
            if row.counted_us:
                # Its own place is free again, or a full window would hold what it had granted.
                line.gateway.give_back(case.agent.name, row.counted_us)
                returns.append((ACTIONS, row.counted_us, 1))
            try:
                action = case.action(row)
            except Superseded as error:
                drafts += refuse_changed(line, case, row, str(error), now)
                continue
            drafts += decide(line, case, action, row, rows, writes, 0, now)
        if case.final and all(row.settled for row in case.merged(rows)):
            drafts.append(case.closed_entry(1, None, len(case.rows)))
        permits = sum(1 for row in rows if row.counted_us == now and row.decided == "permit")
        step = case.step(
            drafts, rows, now, rows=writes, spend={ACTIONS: permits} if permits else {},
            returns=returns, policy_rev=line.gateway.policy_rev, stop_epoch=line.stops.epoch,
        )  # fmt: skip
        try:
            await case.commit(step)
        except BaseException as error:
            for _ in range(permits):
                line.gateway.give_back(case.agent.name, now)
            for unit, counted_us, amount in returns:
                line.gateway.counts.add(case.agent.name, unit, counted_us, amount)
            if isinstance(error, Fenced):
                continue
            raise
        return step


# --- perform ---------------------------------------------------------------------------------


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


# --- wait, bury ------------------------------------------------------------------------------


async def wait(case: Case, now: int) -> None:
    """Leave a run that waits as it stands; correct what the store thinks it waits for."""
    step = case.step([], [], now)
    if (step.state, step.wake_us, step.waits) != (case.run.state, case.run.wake_us, case.run.waits):
        await case.commit(step)


async def bury(line: Line, run: Run, epoch: int, why: str) -> None:
    """Make a run that cannot be handled a dead letter, with its reason.

    Raises Superseded if the run moved on meanwhile, StoreFailed if nothing is durable.
    """
    if run.state in ("done", "dead"):
        return
    event = line.store.event(run.event)
    why = why.encode("utf-8", "replace").decode("utf-8")
    told = Body(canonical({"why": why}), None if event is None else subject_of(event))
    fields = {"event": run.event, "agent": run.agent}
    drafts = [Draft("run.dead", fields, run.last, body=told)]
    rows = [row for row in line.store.actions(run.id) if not row.settled]
    for row in rows:
        drafts += abandon(row, fields)
    step = Step(
        drafts=drafts, run=run.id, agent=run.agent, expects=run.steps, entries_before=run.entries,
        epoch=epoch, state="dead", turn=run.turn, attempts=run.attempts + 1, observed=run.observed,
        actions=rows,
    )  # fmt: skip
    committed = await line.store.commit(step)
    if committed.answer is not Answer.COMMITTED:
        raise Superseded(f"the run was moved on by somebody else ({committed.answer.value})")
    line.metrics.count("runs", agent=run.agent, state="dead")
