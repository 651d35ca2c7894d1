"""One run, from lease to close. Read this file from the top.

A run is one or more turns of reason, decide, commit, perform. Whatever was committed is never
done again: a turn that is recorded is not asked again, an effect that is over is not repeated,
and a handler that starts in the middle finds in the store exactly where the run stands.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from vedette.domain.action import check_confidence
from vedette.domain.base.errors import Permanent
from vedette.domain.cascade import defer_unsure
from vedette.domain.compensation import undo_judgement
from vedette.domain.entry import Draft
from vedette.domain.memory import Briefing, Candidate, Memory
from vedette.domain.memory_state import PROPOSED
from vedette.domain.model_turn import ModelAway, RequestRefused
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.ports.run_store import AcceptedEvent
from vedette.domain.run import Fenced, Lease, OverBudget, Step, Superseded
from vedette.domain.spend import PermitCount
from vedette.engine.agreements import find_secret, measure_confidence
from vedette.engine.async_completion import ASYNC_TOOLS, advance_action, settle_awaited
from vedette.engine.effect_executor import perform_effect
from vedette.engine.model_telemetry import observe_cost
from vedette.engine.model_turn import acquire_model, refuses_all, release_model, wait_for_model
from vedette.engine.reauthorization import reauthorize
from vedette.engine.reservation import (
    check_turn_limit,
    reserve_budget,
    settle_failure,
    settle_use,
)
from vedette.engine.run_context import RunContext
from vedette.engine.services import Services
from vedette.engine.sessions import join_session
from vedette.engine.takeover import find_due_opinion, is_left_alone
from vedette.engine.task_control import take_in_notes, yield_to_person
from vedette.engine.task_release import enter_release, leave_release, require_current
from vedette.engine.turn import bind_proposals, compose_step, emit_metrics


async def handle(
    services: Services,
    lease: Lease,
    accepted: AcceptedEvent | None = None,
    on_sent: Callable[[], None] | None = None,
) -> RunContext | None:
    """Take a run through its first turn: judged, decided and durable.

    Returns its context if there is more to do (`run_to_completion` does it, beside the key's next
    run), None if the run is done or waits (for its budget, too). `accepted` spares reading its
    event, and says since when it waits. `on_sent` is called when the key's next event may be
    judged, which for a judge is before the commit has stood.

    Raises StoreFailed if a commit did not stand (nothing was lost; handle it again), Superseded
    if somebody else moved the run or a commit before it did not stand (look at it afresh), and
    Permanent for what can never succeed (the caller makes it a dead letter).
    """
    if lease.run.state in ("done", "dead") and not lease.run.turn:
        return None  # ended by a commit that stood unheard, or by another worker
    event = accepted.event if accepted else services.store.runs.event_at(lease.run.position)
    if event is None:
        raise Permanent("the event's body was erased before the run ended, or edited")
    context = RunContext.open(services, lease.run, lease.epoch, event)
    context.accepted_us = accepted.at_us if accepted else 0
    if context.agent.session and not context.run.turn and await join_session(services, context):
        return None
    if context.task is not None:
        await enter_release(services, context)
    if context.run.turn == 0 and (context.task is None or context.task.may_begin(context.agent)):
        if not await take_turn(services, context, on_sent):
            return None
        if context.run.state in ("done", "waiting"):
            return None
    return context


async def run_to_completion(services: Services, context: RunContext) -> int | None:
    """Take a run as far as it goes: to its close, or to where it waits.

    Returns when to go on with it, None if it is for nobody to go on. Raises as `handle` does.
    """
    check_release(services, context)
    while context.run.state not in ("done", "dead"):
        if context.code is not None or context.task is not None:
            check_release(services, context)  # its release may be over by now
        now = services.clock.now_us()
        if context.task is not None and await yield_to_person(services, context, now):
            break
        if context.needs_turn:
            if services.stops.is_agent_stopped(context.agent.name):
                return now
            if context.live_agent is not None and await leave_release(services, context, now):
                return now
            if not await take_turn(services, context):
                return None
        elif due := context.due_decisions(now):
            await reauthorize(services, context, due)
        elif context.next_effect(now) is not None:
            async with services.calls.effects_lock(context.run):
                if services.store.cluster.lease_epoch(context.run) != context.epoch:
                    raise Superseded("another worker is to have its key")
                while (row := context.next_effect(services.clock.now_us())) is not None:
                    if context.task is not None and row.effect == "intended":
                        check_release(services, context)
                    if row.tool in ASYNC_TOOLS:
                        await advance_action(services, context, row)
                    else:
                        await perform_effect(services, context, row)
                    if context.task is not None and context.task.words.is_halted:
                        break  # a person said so while it was called
        elif context.task is None or not await settle_awaited(services, context):
            await record_wait(context, now)
            break
    return None


def check_release(services: Services, context: RunContext) -> None:
    """Raise Superseded if another release of the agent runs by now: the run is looked at afresh.

    Then nothing names a release that did not think it, or acts by a declaration of the one before.
    """
    run, fleet = context.run, services.fleet
    if context.task is not None:
        require_current(services, context)
    elif (
        fleet.agents.get(run.agent) is not context.agent
        and fleet.release_of(run.agent, run.key, run.position) is not context.agent
    ):
        raise Superseded(f"another release of {context.agent.name} runs by now")


async def record_wait(context: RunContext, now: int) -> None:
    """Leave a run that waits as it stands; correct what the store thinks it waits for."""
    step, run = context.build_step([], [], now), context.run
    if (step.state, step.wake_us, step.waits) != (run.state, run.wake_us, run.waits):
        await context.commit(step)


# --- a turn: reserve, recall, reason, decide, commit -----------------------------------------


async def take_turn(
    services: Services, context: RunContext, on_sent: Callable[[], None] | None = None
) -> bool:
    """Take a run's next turn; False if it waits for its model or its budget instead.

    In a cascade the judge takes the first; what it defers its model takes, or a person if that is
    away for too long: it is asked once more before, unless it is left alone. Once in a run a
    model's context is begun anew: if its provider refuses a request that gives back what the model
    said. Raises what the reasoner does; what a model cost in vain is settled by then.
    """
    if not context.spends:
        if context.run.turn:
            check_turn_limit(context, context.run.turn)
        if context.event.is_undo or context.agent.session:
            on_sent = None
        if not holds_row(context):
            await run_turn(services, context, on_sent)
            return True
        async with services.keys.row_lock(context.agent.collection, context.run.key):
            await run_turn(services, context, on_sent)
        return True
    if is_left_alone(services, context) and (opinion := find_due_opinion(services, context)):
        await run_turn(services, context, opinion=opinion)
        return True
    try:
        return await ask_model(services, context)
    except RequestRefused as error:
        if not error.may_begin_anew:
            raise
        services.models.note_refused(context.run.id)
        if services.stops.is_agent_stopped(context.agent.name):
            raise Superseded("the agent was stopped while its model was asked") from error
        check_release(services, context)
        return await ask_model(services, context)


def holds_row(context: RunContext) -> bool:
    """Say whether a turn keeps its key's row to itself from its briefing on, until it is committed.

    So does each turn of a judge that may take several: those after the first go on beside the key's
    next events, and write what they made of the row that they were shown. A model thinks for too
    long to keep others from it.
    """
    agent = context.agent
    several = agent.max_turns > 1 or context.task is not None
    held = several and agent.collection is not None and not agent.asks_model
    return held and not context.spends


async def ask_model(services: Services, context: RunContext) -> bool:
    """Take a turn that is booked first, of a model if it asks one; False if its run waits."""
    asks = context.agent.asks_model
    if asks:
        await services.agreements.read_answers(services.store)  # how sure its answer will be
    if asks and not await acquire_model(services, context):
        return False
    try:
        if not await reserve_budget(services, context):
            return False
        await run_turn(services, context, anew=services.models.is_refused(context.run.id))
    except ModelAway as failure:
        if not asks:
            raise
        if (opinion := find_due_opinion(services, context)) is not None:
            await run_turn(services, context, opinion=opinion)
            return True
        await wait_for_model(services, context, failure)
        return False
    except RequestRefused as failure:
        if failure.may_begin_anew or not refuses_all(services, context):
            raise
        await wait_for_model(services, context, None)
        return False
    finally:
        release_model(services, context)  # one that was not asked
    return True


async def run_turn(
    services: Services,
    context: RunContext,
    on_sent: Callable[[], None] | None = None,
    *,
    anew: bool = False,
    opinion: ReasonerJudgement | None = None,
) -> None:
    """Ask the reasoner once and make durable what was decided of its proposals.

    With an `opinion` (what the judge deferred) that is proposed, and nobody is asked.
    """
    now, revision = services.clock.now_us(), services.gateway.policy_rev
    if on_sent is not None and context.current_shortage(now) is not None:
        on_sent = None  # its actions may find no room, and then are decided again within this turn
    try:
        memories, reads = recall_memories(services, context, now)
        context.brief_with(memories)
        briefing = context.build_briefing()  # a person who takes over decides on what it tells
        judgement = opinion or await ask_reasoner(services, context, briefing, anew=anew)
        if judgement.observed and not context.run.observed:
            services.keys.note_observed(context.agent.name, context.run.key, context.run.position)
        writes = judgement.proposals and not holds_row(context)  # else it is held already
        writing = context.agent.collection if writes else None
        async with services.keys.row_lock(writing, context.run.key):
            step = await decide_and_commit(services, context, judgement, reads, revision, on_sent)
    except BaseException as error:
        # Reads that were decided on the way were not recorded either.
        services.recall.forget_permits()
        # What waits for its model is settled with that; a process that ends settles nothing.
        if isinstance(error, Exception) and not isinstance(error, ModelAway):
            await settle_failure(services, context, error)
        raise
    context.final = judgement.final and not judgement.deferred
    if context.task is not None:
        context.task.history.add_step(step)
    context.is_deferred = context.is_deferred or judgement.deferred
    if judgement.deferred:
        services.metrics.count("deferred", agent=context.agent.name)
    is_task = context.task is not None
    goes_on = judgement.model_turn is not None or is_task or not judgement.final
    if goes_on and (labels := context.labels()) is not None:
        context.told_readers = labels.run
    if step.candidates:
        propose_candidates(services, context, step)
    if context.model_call is not None:
        observe_cost(services, context, step.drafts)


async def decide_and_commit(
    services: Services,
    context: RunContext,
    judgement: ReasonerJudgement,
    reads: list[Draft],
    revision: int,
    on_sent: Callable[[], None] | None,
) -> Step:
    """Decide a turn's proposals and commit them; decide again if policy or a stop moved.

    Raises Superseded if the agent was stopped meanwhile: nothing of the turn is kept.
    """
    while True:
        if services.stops.is_agent_stopped(context.agent.name):
            raise Superseded("the agent was stopped while it reasoned")
        if context.task is not None and context.task.is_stopped_above(services.stops):
            raise Superseded("an agent above it was stopped while it reasoned")
        check_release(services, context)
        now = services.clock.now_us()
        if services.gateway.policy_rev != revision:
            if context.is_judged:
                # What it was taught under the old policy may not be its to know any more.
                raise Superseded("the policy changed while it was judged")
            revision = services.gateway.policy_rev
            reads = reauthorize_reads(services, context, now)
        context.reset_slots(now)
        bound = bind_proposals(context, judgement)
        try:
            with PermitCount(services.gateway.counts, context.agent.name) as counted:
                step = compose_step(services, context, judgement, bound, reads, counted, now)
                commit = context.commit(step, on_sent)
                if step.candidates:
                    commit = services.recall.await_commit(commit, order=False)
                await commit
        except (Fenced, OverBudget):
            continue
        except Superseded:
            if context.task is None or not take_in_notes(context):
                raise
            continue
        if context.reservation is not None:
            settle_use(context, step)
        is_first = not judgement.deferred and step.turn == 1 + context.is_deferred
        emit_metrics(services, context, step, now, is_first=is_first)
        return step


def recall_memories(
    services: Services, context: RunContext, now: int
) -> tuple[tuple[Memory, ...], list[Draft]]:
    """Return the memories that a turn recalls, and the entries of the reads decided for them.

    With what earlier turns of the run recalled, as far as that may still be read. What a person has
    taken back is not judged, so nothing is read for it.
    """
    if context.event.is_undo:
        return (), []
    turns = range(1, context.run.turn + 1)
    cited = {cite for turn in turns for cite, _ in context.citations.get(turn, ())}
    return services.recall.find_memories(context.agent, context.event, now, cited)


def reauthorize_reads(services: Services, context: RunContext, now: int) -> list[Draft]:
    """Reauthorize a turn's reads of memory under today's policy; return their entries.

    Raises Superseded if the briefing would be another: then the turn is to be reasoned anew.
    """
    memories, reads = recall_memories(services, context, now)
    if memories != context.memories:
        services.recall.forget_permits()
        raise Superseded("what the agent may remember changed while it reasoned")
    return reads


async def ask_reasoner(
    services: Services, context: RunContext, briefing: Briefing, *, anew: bool = False
) -> ReasonerJudgement:
    """Ask the reasoner for a run's turn, giving its judge the state it needs if it has lost it.

    Raises BadConfidence for a judgement that does not say how sure it is, and TurnLimit for a
    judge's that asks for a turn too many: nothing it proposes is decided, and the caller makes the
    run a dead letter.

    An undo is the engine's own to think out: the agent's judge neither sees it nor learns of it.
    """
    if anew:
        briefing = replace(briefing, anew=True)
    if context.event.is_undo:
        return undo_judgement(context.event)
    ask = _ask_journaled if context.model_call is None else _ask_timed
    judgement = await ask(services, context, briefing)
    # Wherever it was thought: in this process, in a worker, on another host, by a model.
    check_confidence(judgement.confidence, f"the judgement of {briefing.agent}")
    agent = context.agent
    if agent.asks_model and not (agent.cascade is not None and context.is_judged):
        secret = find_secret(services.store, context.run)
        return measure_confidence(services.agreements, agent, context.run, judgement, secret)
    if judgement.model_turn is not None or judgement.deferred or judgement.asks:
        # Who asks no model does not speak for one; the rest is for the engine to say.
        judgement = replace(judgement, model_turn=None, deferred=False, asks="")
    if context.run.turn and context.is_judged:
        # Whatever its code says: the key's state may be events ahead.
        judgement = replace(judgement, checkpoint=None, observed=False)
    if agent.cascade is not None:
        return defer_unsure(agent.cascade, judgement)
    if not judgement.final and context.is_judged:
        check_turn_limit(context, context.run.turn + 1)  # now, as nothing of it is decided yet
    return judgement


async def _ask_timed(
    services: Services, context: RunContext, briefing: Briefing
) -> ReasonerJudgement:
    """Ask the reasoner of a turn that has a place for its call, and give that back; in it is noted
    how long it took and what came of it.
    """
    clock, call = services.clock, context.model_call
    assert call is not None
    call.at_us = clock.now_us()  # its budget was booked meanwhile
    began_us = clock.monotonic_us()
    result: ReasonerJudgement | BaseException | None = None
    try:
        result = await _ask_journaled(services, context, briefing)
        return result
    except BaseException as error:
        result = error
        raise
    finally:
        call.took_us = clock.monotonic_us() - began_us
        release_model(services, context, result)


async def _ask_journaled(
    services: Services, context: RunContext, briefing: Briefing
) -> ReasonerJudgement:
    if services.run_journal is None:
        return await _ask_with_state(services, context, briefing)
    services.run_journal.begin(context.run.id)
    try:
        return await _ask_with_state(services, context, briefing)
    finally:
        services.run_journal.end(context.run.id)


async def _ask_with_state(
    services: Services, context: RunContext, briefing: Briefing
) -> ReasonerJudgement:
    agent = context.agent
    is_first = agent.cascade is None or context.is_judged
    name = agent.reasoner if is_first else agent.last_reasoner
    reasoner = (context.code or services).reasoners[name]
    judgement = await reasoner.reason(briefing)
    if judgement.needs_state and not (context.run.turn and context.is_judged):
        own, key = briefing.agent, briefing.key
        history = services.store.judge_states.history(own, key, briefing.position)
        state_at, later = history.checkpoint_position, history.later_events
        reasoner.restore_state(own, key, history.checkpoint, state_at, later)
        # A commit before this one may have stood since the briefing was written, or may still be
        # on its way: this is judged from what is durable now, and the store refuses it if that
        # was not yet its predecessor.
        context.previous = history.last_position
        previous = later[-1][0] if later else state_at
        judgement = await reasoner.reason(replace(briefing, previous=previous))
    if judgement.needs_state:
        raise Permanent(f"the judge of {briefing.agent} cannot take up its state")
    return judgement


def propose_candidates(services: Services, context: RunContext, step: Step) -> None:
    """Show the candidates of a turn's committed step to their banks; fed again if that fails.

    What was erased since is not shown: the banks may have forgotten it before this.
    """
    first = context.run.last - len(step.drafts) + 1
    seqs = [first + at for at, draft in enumerate(step.drafts) if draft.kind == PROPOSED]
    for candidate, seq in zip(step.candidates, seqs, strict=True):
        propose = partial(propose_unless_erased, services, candidate, seq)
        if not services.recall.update_banks(propose, order=False):
            services.metrics.count("store_failures")


def propose_unless_erased(services: Services, candidate: Candidate, seq: int) -> None:
    """Show a turn's candidate to its bank if the entry that proposed it still has its content."""
    entry = services.store.ledger.entry(seq)
    if entry is not None and entry[2] is not None:
        services.recall.banks.propose(candidate, services.clock.now_us())
