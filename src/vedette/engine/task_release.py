"""The release that a task runs on: the one that took its last turn, until the task moves.

Which one that is stands on record (`TaskWords.find_release`), so whoever takes the run up finds the
same. It moves at a hand-off, by a person's word, or because no task may stay on that release; the
move is durable before anything is done under the other.
"""

from __future__ import annotations

from vedette.domain.agent import Agent
from vedette.domain.run import Superseded
from vedette.domain.task import find_task, record_task
from vedette.domain.task_words import MOVED
from vedette.engine.run_context import RunContext
from vedette.engine.services import CanaryCode, MoveReason, Services

# How long a run waits for its worker to hear of a release.
_WAIT_US = 500_000


async def enter_release(services: Services, context: RunContext) -> None:
    """Have a task that took a turn go on under its own release, or under the fleet's from now on.

    Raises as `RunContext.commit`, StoreFailed, and Superseded where its release is to be had later.
    """
    task, releases, name = context.task, services.task_releases, context.agent.name
    if task is None or releases is None or task.words.is_halted:
        return
    live, own, is_trial = services.fleet.agent(name), task.release, context.code is not None
    if live.work is None or (context.run.turn and not own):
        return
    releases.read_record()
    if not context.run.turn:
        if is_trial or not releases.is_withdrawn(name, live.release):
            return
        raise _not_here(name)
    is_withdrawn = releases.is_withdrawn(name, own)
    # A canary's is in no record of releases. This worker may not have heard yet of the last one.
    if own == context.agent.release and (is_trial or not is_withdrawn):
        return
    found = MoveReason("withdrawn") if is_withdrawn else await releases.open_code(name, own)
    if isinstance(found, MoveReason):
        to = context.agent.release if is_trial else releases.live_release(name)
        if to != own:  # else it moved already, and this worker has not heard of that yet
            await _move(context, to, found)
        if to == context.agent.release:
            return
        found = await releases.open_code(name, to)
        if isinstance(found, MoveReason):
            raise _not_here(name)
    _take_up(context, found, live)


def _not_here(name: str) -> Superseded:
    what = f"this worker does not run the release of {name} yet"
    return Superseded(what, wait_us=_WAIT_US)


def _take_up(context: RunContext, code: CanaryCode, live: Agent) -> None:
    """Go on under a former release, which may do nothing that the live one may not."""
    assert context.task is not None
    context.agent, context.code, context.live_agent = code.agent, code, live
    # How long it may take is the release's to say, where its event does not.
    pinned = {"task": record_task(context.task.given)}
    task = find_task(context.agent, context.event, pinned)
    context.task.agent = context.agent
    context.task.given = context.task.given if task is None else task


async def leave_release(services: Services, context: RunContext, now: int) -> bool:
    """Move a task that is about to begin a context to the release that the fleet runs.

    Says whether it moved: then its run is to be looked at afresh. Raises as `RunContext.commit`.
    """
    task, releases = context.task, services.task_releases
    if task is None or releases is None:
        return False
    if not task.history.ends_context(context.actions, task.task.goal):
        return False
    to = releases.live_release(context.agent.name)
    if to == task.release:
        return False
    await _move(context, to, MoveReason("hand_off"))
    return True


def require_current(services: Services, context: RunContext) -> None:
    """Raise Superseded if a task's run has to be looked at afresh: another release was made, or its
    own was withdrawn, on whichever worker. Raises StoreFailed.
    """
    fleet, run, name = services.fleet, context.run, context.agent.name
    live, code, releases = context.live_agent or context.agent, context.code, services.task_releases
    is_same = fleet.agents.get(name) is live
    if not (is_same or fleet.release_of(name, run.key, run.position) is live):
        raise Superseded(f"another release of {name} runs by now")
    is_over = False
    if releases is not None:
        releases.read_record()
        is_trial = code is not None and context.live_agent is None
        is_over = not is_trial and releases.is_withdrawn(name, context.agent.release)
    if is_over or (code is not None and not services.has_code(code)):
        raise Superseded(f"the release {context.agent.release[:12]} of {name} was withdrawn")


async def _move(context: RunContext, to: str, reason: MoveReason) -> None:
    task, now = context.task, context.services.clock.now_us()
    assert task is not None
    body = context.body({"reason": reason.why}) if reason.why else None
    moved = context.entry(
        MOVED, turn=context.run.turn, release=to, what=task.release, rule=reason.rule, body=body
    )
    await context.commit(context.build_step([moved], [], now))
    task.release = to
