"""Perform: the calls, and what becomes of an effect whose outcome is not known.

This module decides nothing about permission. It is told that an effect may start; it says which
durable mark the call needs before it, makes the call, and turns the answer into the next state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import orjson

from vedette.domain.action import Action
from vedette.domain.agent import Agent
from vedette.domain.base.backoff import delay_us
from vedette.domain.base.canonical import canonical, tame
from vedette.domain.base.errors import Permanent
from vedette.domain.effect import Call, EffectState, Outcome, move
from vedette.domain.event import Event
from vedette.domain.ports import Performer
from vedette.domain.readers import meet
from vedette.domain.row_proof import STARTED, Told
from vedette.domain.run import ActionRow
from vedette.domain.tool import Tool

_FIRST_RETRY_US = 500_000
LAST_RETRY_US = 300_000_000

NOT_THERE = "the tool said done, and the target does not know of it"

# What a call needs first: nothing, a durable `started`, a question to the target, or a person.
Before = Literal["call", "start", "ask", "person"]


def before_call(tool: Tool, effect: EffectState, *, mine: bool, doubt: bool = False) -> Before:
    """Say what has to happen before the call may be made.

    `mine` tells a `started` that this handler wrote itself a moment ago from one that was found
    after a crash: the latter is an unknown outcome. In `doubt` even an effect that was never
    started may have happened, in history that a restore lost: whoever can be asked is asked, and
    where a repeat under the same key is no harm it is left to the target.
    """
    if doubt and effect == "intended":
        if tool.query is not None:
            return "ask"
        if tool.settles == "none":
            return "person"
    if tool.settles == "idempotent":
        return "call"
    if effect == "intended":
        return "start"
    if effect == "started" and mine:
        return "call"
    return "ask" if tool.settles == "queryable" else "person"


def call_of(
    action: Action,
    agent: Agent,
    event: Event,
    target: Mapping[str, Any],
    attempt: int,
    *,
    person: bool = False,
) -> Call:
    """Return the exact call of an action's tool."""
    return Call(
        tool=action.tool.name,
        args=action.args,
        key=action.key,
        agent=agent.name,
        run=action.run,
        target=target,
        lineage=(*event.lineage, agent.name),
        attempt=attempt,
        timeout_us=action.tool.timeout_us,
        person=person,
        readers=meet(*action.readers.values()),
    )


def time_of_call(tool: Tool | None, told: Sequence[Told]) -> int:
    """Return how long a call that may be on its way takes at most (microseconds).

    `told` are the action's entries: a start says what the tool was given then, which may be more
    than it is given today. The tool may be gone by now (None).
    """
    given = [entry.get("timeout") or 0 for entry, _ in told if entry["kind"] == STARTED]
    return max(tool.timeout_us if tool else 0, *given[-1:], 0)


async def make(
    performer: Performer, tool: Tool, call: Call, may_start: Callable[[], bool]
) -> Outcome | None:
    """Make the call; None if it was not started.

    A tool that raises broke off somewhere: where a repeat is harmless that is a failure, else
    nobody knows what happened.
    """
    try:
        return await performer.perform(tool, call, may_start)
    except BaseException as error:
        told = _broke_off(error)
        if tool.settles == "idempotent" and isinstance(error, Exception):
            return Outcome("failed", error=told)
        return Outcome("unknown", error=told)


async def ask(performer: Performer, tool: Tool, call: Call) -> Outcome | None:
    """Ask the target what came of an unknown call; None if it never happened.

    No answer is not a no: the effect stays unknown, and the target is asked again. A query that
    answers `retry` speaks of itself, not of the call.
    """
    try:
        said = await performer.ask(tool, call)
    except BaseException as error:
        return Outcome("unknown", error=_broke_off(error))
    if said is not None and said.state == "retry":
        return Outcome("unknown", error=f"the target cannot say now: {said.error}")
    return said


async def verified(
    performer: Performer, row: ActionRow, tool: Tool, call: Call, done: Outcome
) -> tuple[Outcome, bool]:
    """Ask the target whether what the tool says it did is there; once, with the tool's deadline.

    Returns the outcome and whether it is the target's word. Without an answer it is the tool's own
    claim, unless policy obliges to verify: then nobody knows. If the target says that it is not
    there, nobody knows either.
    """
    obliged = "verify" in row.obliges.split(",")
    function = tool.verifier(obliged)
    if function is None:
        return done, False
    said = await ask(performer, replace(tool, query=function, verify=function), call)
    if said is None:
        # Not yet, perhaps: it is asked the moment after.
        return Outcome("unknown", error=NOT_THERE), False
    if said.state == "done":
        return done, True
    if said.state == "failed":
        return said, False
    if obliged:
        error = f"the tool said done, and the target gave no answer: {said.error}"
        return Outcome("unknown", error=error), False
    return done, False


def _broke_off(error: BaseException) -> str:
    """Return what an agent's code raised, as text; raise it on if it was not that code's.

    SystemExit and the like end the call that they come from, and nothing else.
    """
    task = asyncio.current_task()
    ours = isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling()
    if ours or isinstance(error, GeneratorExit):
        raise error
    return f"{type(error).__name__}: {error}"


def settle(row: ActionRow, tool: Tool, outcome: Outcome, now_us: int) -> EffectState:
    """Write an outcome into the action's row and return the effect's new state.

    A `retry` plans the next try with exponential backoff; its jitter is drawn from the effect's
    key, so that it is the same in every replay. Tries are bounded by the tool's declaration.
    """
    assert row.effect is not None
    row.tries += 1
    if outcome.state == "unknown" and tool.settles != "idempotent":
        if row.effect == "intended":
            raise Permanent("what never started has no unknown outcome")
        row.effect = "unknown" if row.effect == "unknown" else move(row.effect, "unknown")
        asks = tool.settles == "queryable"
        row.not_before_us = now_us + _pause(row, outcome) if asks else 0
        row.waits = "target" if asks else None
        return row.effect
    if outcome.state in ("retry", "unknown") and row.tries < tool.attempts:
        row.not_before_us = now_us + _pause(row, outcome)
        row.waits = "target"
        if row.effect == "started":
            # The target said itself that nothing happened; only silence would be unknown.
            row.effect = move(row.effect, "intended")
        return row.effect
    state: EffectState = "done" if outcome.state == "done" else "failed"
    row.effect = move(row.effect, state)
    row.waits, row.not_before_us = None, 0
    row.answer = answer_bytes(outcome)
    return state


def ask_later(row: ActionRow, now_us: int) -> ActionRow:
    """Return the row of an effect in doubt whose target gave no answer: it is asked again."""
    return replace(row, not_before_us=now_us + _backoff(row), waits="target")


def answer_bytes(outcome: Outcome) -> bytes:
    """Return the canonical bytes of an outcome."""
    return canonical(
        {"data": tame(dict(outcome.data)), "error": outcome.error, "state": outcome.state}
    )


def answer_data(row: ActionRow) -> Mapping[str, Any]:
    """Return what the tool answered; empty before it did."""
    data: Mapping[str, Any] = orjson.loads(row.answer)["data"] if row.answer else {}
    return data


def _pause(row: ActionRow, outcome: Outcome) -> int:
    """Return how long a target is left alone: no shorter than it asked for."""
    return max(_backoff(row), outcome.retry_after_us)


def _backoff(row: ActionRow) -> int:
    return delay_us(row.tries, first_us=_FIRST_RETRY_US, last_us=LAST_RETRY_US, seed=row.id)
