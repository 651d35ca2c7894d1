"""One run, from lease to close. Read this file from the top.

A run is one or more turns of reason, decide, commit, perform. Whatever was committed is never
done again: a turn that is recorded is not asked again, an effect that is settled is not repeated,
and a handler that starts in the middle finds in the store exactly where the run stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from vedette.domain.base.canonical import canonical
from vedette.domain.base.errors import Permanent
from vedette.domain.compensation import is_undo, undo_thought
from vedette.domain.confidence import check_confidence
from vedette.domain.conflict import Fenced, OverBudget, Superseded
from vedette.domain.entry import Body, Draft
from vedette.domain.event import Event, subject_of
from vedette.domain.memory import Briefing, Candidate, Memory
from vedette.domain.memory_state import PROPOSED
from vedette.domain.ports import Thought
from vedette.domain.run import Answer, Lease, Run, Step
from vedette.engine.effect_executor import perform
from vedette.engine.reauthorization import decide_again
from vedette.engine.reservation import reserve
from vedette.engine.run_context import Case
from vedette.engine.services import Line
from vedette.engine.turn import abandon, bind_all, compose, tell


async def handle(
    line: Line,
    lease: Lease,
    event: Event | None = None,
    sent: Callable[[], None] | None = None,
) -> Case | None:
    """Take a run through its first turn: judged, decided and durable.

    Returns the case if there is more to do (`see_through` does it, beside the key's next run),
    None if the run is done or waits (for its budget, too). `event` spares reading it again. `sent`
    is told when the key's next event may be judged, which for a judge is before the commit has
    stood.

    Raises StoreFailed if a commit did not stand (nothing was lost; handle it again), Superseded
    if somebody else moved the run or a commit before it did not stand (look at it afresh), and
    Permanent for what can never succeed (the caller makes it a dead letter).
    """
    if lease.run.state in ("done", "dead") and not lease.run.turn:
        return None  # buried by a commit that stood unheard, or by another worker
    event = event or line.store.event(lease.run.event)
    if event is None:
        raise Permanent("the event's body was erased before the run ended, or edited")
    case = Case.open(line, lease.run, lease.epoch, event)
    case.prove()
    if case.run.turn == 0:
        now = line.clock.now_us()
        if not await reserve(line, case, now):
            return None
        await take_turn(line, case, sent)
        if case.run.state in ("done", "waiting"):
            return None
    return case


async def see_through(line: Line, case: Case) -> int | None:
    """Take a run as far as it goes: to its close, or to where it waits.

    Returns and raises as `handle` does.
    """
    refuse_other_release(line, case)
    while case.run.state not in ("done", "dead"):
        now = line.clock.now_us()
        if case.owes_a_turn:
            if line.stops.agent(case.agent.name):
                return now
            if not await reserve(line, case, now):
                return None
            await take_turn(line, case)
        elif case.to_decide(now):
            await decide_again(line, case, case.to_decide(now))
        elif case.to_perform(now):
            async with line.in_order(case.agent.name, case.run.key):
                if line.store.lease(case.run) != case.epoch:
                    raise Superseded("another worker is to have its key")
                while case.to_perform(line.clock.now_us()):
                    await perform(line, case)
        else:
            await wait(case, now)
            break
    return None


def refuse_other_release(line: Line, case: Case) -> None:
    """Raise Superseded if another release of the agent runs by now: the run is looked at afresh.

    Then nothing names a release that did not think it, or acts by a declaration of the one before.
    """
    if line.agent(case.agent.name) is not case.agent:
        raise Superseded(f"another release of {case.agent.name} runs by now")


# --- a turn: recall, reason, decide, commit --------------------------------------------------


async def take_turn(line: Line, case: Case, sent: Callable[[], None] | None = None) -> None:
    """Ask the reasoner once and make durable what was decided of its proposals."""
    if case.agent.reasoner != "judge":
        sent = None  # a model is not asked again because a commit before it did not stand
    elif line.tight_now(case.agent.name, line.clock.now_us()) is not None:
        sent = None  # its actions may find no room, and then are decided again within this turn
    revision = line.gateway.policy_rev
    try:
        case.memories, reads = brief(line, case)
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
    remember(line, case, step)
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
        refuse_other_release(line, case)
        if line.gateway.policy_rev != revision:
            if case.agent.reasoner == "judge":
                # What it was taught under the old policy may not be its to know any more.
                raise Superseded("the policy changed while it was judged")
            revision, reads = line.gateway.policy_rev, recall_again(line, case)
        now = line.clock.now_us()
        case.expect_room(now)
        bound = bind_all(case, thought, turn)
        step, counted = compose(line, case, thought, bound, reads, now)
        try:
            commit = case.commit(step, sent)
            if step.candidates:
                commit = line.recall.await_commit(commit, order=False)
            await commit
        except BaseException as error:
            for _ in range(counted):
                line.gateway.give_back(case.agent.name, now)
            if isinstance(error, Fenced | OverBudget):
                continue
            raise
        return step


def brief(line: Line, case: Case) -> tuple[tuple[Memory, ...], list[Draft]]:
    """Return the memories for this event, and the entries of the reads decided for them.

    What a person has taken back is not judged, so nothing is read for it.
    """
    if is_undo(case.event):
        return (), []
    return line.recall.brief(case.agent, case.event, line.clock.now_us())


def remember(line: Line, case: Case, step: Step) -> None:
    """Show candidates of a step that was just committed to their banks; fed again if that fails.

    What was erased since is not shown: the banks may have forgotten it before this.
    """
    first = case.run.last - len(step.drafts) + 1
    seqs = [first + at for at, draft in enumerate(step.drafts) if draft.kind == PROPOSED]
    for candidate, seq in zip(step.candidates, seqs, strict=True):
        show = partial(show_candidate, line, candidate, seq)
        if not line.recall.follow(show, order=False):
            line.metrics.count("store_failures")


def show_candidate(line: Line, candidate: Candidate, seq: int) -> None:
    """Show a candidate to its bank if the entry that proposed it still has its content."""
    entry = line.store.entry(seq)
    if entry is not None and entry[2] is not None:
        line.recall.banks.propose(candidate, line.clock.now_us())


def recall_again(line: Line, case: Case) -> list[Draft]:
    """Decide the reads of a turn under today's policy; return their entries.

    Raises Superseded if the briefing would be another: then the turn is to be reasoned anew.
    """
    memories, reads = brief(line, case)
    if memories != case.memories:
        line.recall.forget()
        raise Superseded("what the agent may remember changed while it reasoned")
    return reads


async def reason(line: Line, case: Case, briefing: Briefing) -> Thought:
    """Ask the reasoner, giving its judge the state it needs if it has lost it.

    Raises BadConfidence for a judgement that does not say how sure it is: nothing it proposes is
    decided, and the caller makes the run a dead letter.

    An undo is the engine's own to think out: the agent's judge neither sees it nor learns of it.
    """
    if is_undo(case.event):
        return undo_thought(case.event)
    if line.in_hand is None:
        thought = await _reason(line, case, briefing)
    else:
        line.in_hand.take(case.run.id)
        try:
            thought = await _reason(line, case, briefing)
        finally:
            line.in_hand.put_back(case.run.id)
    # Wherever it was thought: in this process, in a worker, on another host, by a model.
    check_confidence(thought.confidence, f"the judgement of {briefing.agent}")
    return thought


async def _reason(line: Line, case: Case, briefing: Briefing) -> Thought:
    reasoner = line.reasoner(case.agent)
    thought = await reasoner.reason(briefing)
    if thought.needs_state:
        found = line.store.history(briefing.agent, briefing.key, briefing.position)
        reasoner.restore(briefing.agent, briefing.key, found.checkpoint, found.at, found.since)
        # A commit before this one may have stood since the briefing was written, or may still be
        # on its way: this is judged from what is durable now, and the store refuses it if that
        # was not yet its predecessor.
        case.previous = found.last
        state_at = found.since[-1][0] if found.since else found.at
        thought = await reasoner.reason(replace(briefing, previous=state_at))
    if thought.needs_state:
        raise Permanent(f"the judge of {briefing.agent} cannot take up its state")
    return thought


# --- wait, bury ------------------------------------------------------------------------------


async def wait(case: Case, now: int) -> None:
    """Leave a run that waits as it stands; correct what the store thinks it waits for."""
    step = case.step([], [], now)
    if (step.state, step.wake_us, step.waits) != (case.run.state, case.run.wake_us, case.run.waits):
        await case.commit(step)


async def bury(
    line: Line, run: Run, epoch: int, why: str, trace: str = "", code: str | None = None
) -> None:
    """Make a run that cannot be handled a dead letter, with its reason and where it arose.

    `code` is that of the error, if it has one: it stays when the content is erased.
    Raises Superseded if the run moved on meanwhile, StoreFailed if nothing is durable.
    """
    if run.state in ("done", "dead"):
        return
    event = line.store.event(run.event)
    parts = {"why": why, "trace": trace} if trace else {"why": why}
    reason = {part: text.encode("utf-8", "replace").decode() for part, text in parts.items()}
    told = Body(canonical(reason), None if event is None else subject_of(event))
    fields = {"event": run.event, "agent": run.agent}
    drafts = [Draft("run.dead", {**fields, "what": code}, run.last, body=told)]
    rows = [row for row in line.store.actions(run.id) if not row.settled]
    agent = line.fleet.agents.get(run.agent)
    tools = {} if agent is None else agent.tools
    for row in rows:
        settles = tools[row.tool].settles if row.tool in tools else None
        drafts += abandon(row, fields, line.may_have_begun(row, settles, loaded=True))
    step = Step(
        drafts=drafts, run=run.id, position=run.position, agent=run.agent, expects=run.steps,
        entries_before=run.entries, epoch=epoch, state="dead", turn=run.turn,
        attempts=run.attempts + 1, observed=run.observed, actions=rows,
    )  # fmt: skip
    committed = await line.store.commit(step)
    if committed.answer is not Answer.COMMITTED:
        raise Superseded(f"the run was moved on by somebody else ({committed.answer.value})")
    line.metrics.count("runs", agent=run.agent, state="dead")
