"""Tool calls: what one needs before it, how it is made, and what an answer makes of its effect.

Nothing here decides about permission or makes anything durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import orjson
from msgspec.structs import replace

from vedette.domain.action import Action
from vedette.domain.agent import Agent
from vedette.domain.artefact import ARTEFACT_PERFORMER, told_readers
from vedette.domain.base.backoff import delay_us
from vedette.domain.base.canonical import normalized_json
from vedette.domain.base.errors import Permanent
from vedette.domain.effect import Call, EffectState, Outcome, transition
from vedette.domain.event import Event
from vedette.domain.ports.reasoner import ToolExecutor
from vedette.domain.readers import Readers, argument_readers, meet_labels
from vedette.domain.row_proof import parse_record
from vedette.domain.run import ActionRow
from vedette.domain.tool import Tool
from vedette.domain.work_tools import ASK_TOOL, READ_HISTORY_TOOL, WAIT_TOOL

_FIRST_RETRY_US = 500_000
LAST_RETRY_US = 300_000_000

ABSENT_ERROR = "the tool said done, and the target does not know of it"

# What a call needs first: nothing, a durable `started`, a query of the target, or a person.
Precondition = Literal["none", "start", "query", "person"]


def find_precondition(
    tool: Tool, effect: EffectState, *, own_start: bool, in_loss_window: bool = False
) -> Precondition:
    """Say what has to happen before an effect's call: nothing, a start, a query, or a person.

    `own_start` tells a `started` that this handler wrote itself a moment ago from one that was
    found after a crash: the latter is an unknown outcome. In `in_loss_window` even an effect that
    was never started may have happened, in history that a restore lost: whoever can be asked is
    asked, and where a repeat under the same key is no harm it is left to the target.
    """
    if in_loss_window and effect == "intended":
        if tool.query is not None:
            return "query"
        if tool.settles == "none":
            return "person"
    if tool.settles == "idempotent":
        return "none"
    if effect == "intended":
        return "start"
    if effect == "started" and own_start:
        return "none"
    return "query" if tool.settles == "queryable" else "person"


def build_call(
    action: Action,
    agent: Agent,
    event: Event,
    target: Mapping[str, Any],
    attempt: int,
    *,
    person: bool = False,
) -> Call:
    """Return the exact call that a run makes of its action's tool."""
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
        readers=meet_labels(*action.readers.values()),
    )


async def make_call(
    executor: ToolExecutor, tool: Tool, call: Call, may_start: Callable[[], bool]
) -> Outcome | None:
    """Make an effect's tool call; None if it was not started.

    A tool that raises broke off somewhere: where a repeat is harmless that is a failure, else
    nobody knows what happened.
    """
    try:
        return await executor.perform(tool, call, may_start)
    except BaseException as error:
        message = _describe_error(error)
        if tool.settles == "idempotent" and isinstance(error, Exception):
            return Outcome("failed", error=message)
        return Outcome("unknown", error=message)


async def query_target(executor: ToolExecutor, tool: Tool, call: Call) -> Outcome | None:
    """Ask an effect's target what came of an unknown call; None if it never happened.

    No answer is not a no: the effect stays unknown, and the target is asked again. A query that
    answers `retry` speaks of itself, not of the call.
    """
    try:
        outcome = await executor.query(tool, call)
    except BaseException as error:
        return Outcome("unknown", error=_describe_error(error))
    if outcome is not None and outcome.state == "retry":
        return Outcome("unknown", error=f"the target cannot say now: {outcome.error}")
    return outcome


async def verify_outcome(
    executor: ToolExecutor, tool: Tool, call: Call, done: Outcome, *, obliged: bool
) -> tuple[Outcome, bool]:
    """Ask an effect's target whether what the tool says it did is there; once, by its deadline.

    Returns the outcome and whether it is the target's word. Without an answer it is the tool's own
    claim, unless policy obliges to verify: then nobody knows. If the target says that it is not
    there, nobody knows either.
    """
    function = tool.verifier(obliged)
    answer = await query_target(executor, replace(tool, query=function, verify=function), call)
    if answer is None:
        # Not yet, perhaps: it is asked the moment after.
        return Outcome("unknown", error=ABSENT_ERROR), False
    if answer.state == "done":
        return done, True
    if answer.state == "failed":
        return answer, False
    if obliged:
        error = f"the tool said done, and the target gave no answer: {answer.error}"
        return Outcome("unknown", error=error), False
    return done, False


def _describe_error(error: BaseException) -> str:
    """Return what an agent's code raised, as text; raise it on if it was not that code's.

    SystemExit and the like end the call that they come from, and nothing else.
    """
    task = asyncio.current_task()
    ours = isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling()
    if ours or isinstance(error, GeneratorExit):
        raise error
    return f"{type(error).__name__}: {error}"


def apply_outcome(row: ActionRow, tool: Tool, outcome: Outcome, now_us: int) -> EffectState:
    """Write a call's outcome into the action's row and return the effect's new state.

    A `retry` plans the next try with exponential backoff; its jitter is drawn from the effect's
    key, so that it is the same in every replay. Tries are bounded by the tool's declaration.
    """
    assert row.effect is not None
    row.tries += 1
    if outcome.state == "unknown" and tool.settles != "idempotent":
        if row.effect == "intended":
            raise Permanent("what never started has no unknown outcome")
        row.effect = transition(row.effect, "unknown")
        asks = tool.settles == "queryable"
        row.not_before_us = now_us + _pause(row, outcome) if asks else 0
        row.waits = "target" if asks else None
        return row.effect
    if outcome.state in ("retry", "unknown") and row.tries < tool.attempts:
        row.not_before_us = now_us + _pause(row, outcome)
        row.waits = "target"
        if row.effect == "started":
            # The target said itself that nothing happened; only silence would be unknown.
            row.effect = transition(row.effect, "intended")
        return row.effect
    state: EffectState = "done" if outcome.state == "done" else "failed"
    row.effect = transition(row.effect, state)
    row.waits, row.not_before_us = None, 0
    row.answer = answer_bytes(outcome)
    return state


def postpone_query(row: ActionRow, now_us: int) -> ActionRow:
    """Return the row of an unknown effect whose target gave no answer: it is asked again."""
    return replace(row, not_before_us=now_us + _backoff(row), waits="target")


def answer_bytes(outcome: Outcome) -> bytes:
    """Return the canonical bytes of a call's outcome, as the action's row keeps them."""
    return normalized_json(
        {"data": dict(outcome.data), "error": outcome.error, "state": outcome.state}
    )


# Why what may have been done, or undone, for an item is not done again.
UNSURE_REPEAT = "nobody knows whether this was done for the same item: a person is to say"


def answer_data(row: ActionRow) -> Mapping[str, Any]:
    """Return what the tool answered to an action's call; empty before it did."""
    data: Mapping[str, Any] = orjson.loads(row.answer)["data"] if row.answer else {}
    return data


class Outcomes(Mapping[str, Mapping[str, Any]]):
    """What tools answered to a run's actions, by the number that references give; read when asked
    for, as a long run has many.
    """

    def __init__(self, answered: Sequence[ActionRow]) -> None:
        self._answered = answered

    def __getitem__(self, number: str) -> Mapping[str, Any]:
        if not (number.isascii() and number.isdecimal() and str(int(number)) == number):
            raise KeyError(number)
        try:
            return answer_data(self._answered[int(number)])
        except IndexError:
            raise KeyError(number) from None

    def __iter__(self) -> Iterator[str]:
        return map(str, range(len(self._answered)))

    def __len__(self) -> int:
        return len(self._answered)


def label_answers(
    rows: Iterable[ActionRow],
    tools: Mapping[str, Tool],
    row_readers: Readers,
    told: Readers,
    last_turn: int,
) -> dict[str, Readers]:
    """Return who may read what a run's actions answered, by place (`outcome/0`), where not
    everybody may.

    `row_readers` is the label of the agent's row: a transactional tool answers with what stood
    there; `told` that of all that its turns up to `last_turn` were told, which the tool for older
    turns answers with. So does a tool that is not declared any more, if a turn was told its answer:
    what it was declared as is part of that label.
    """
    answered = [row for row in rows if row.answer is not None]
    if not answered:
        return {}
    by_tool = {name: _tool_readers(tool, row_readers, told) for name, tool in tools.items()}
    ranges = {name for name, tool in tools.items() if tool.performer == ARTEFACT_PERFORMER}
    labels: dict[str, Readers] = {}
    asks = [told_readers(answer_data(row)) for row in answered if row.tool == ASK_TOOL]
    asked = meet_labels(*asks)
    for at, row in enumerate(answered):
        was_told = row.turn < last_turn
        readers = by_tool.get(row.tool, told if was_told else frozenset())
        if row.tool in ranges or row.tool in (ASK_TOOL, WAIT_TOOL):
            # As the range says that was read, the event that came, or what a child had before it.
            readers = told_readers(answer_data(row))
        if row.tool in ranges and asked is not None:
            readers = meet_labels(readers, asked)  # it may be a child's, made of all that it had
        # A long run has many: what was answered was verified as it was read, so most need no look.
        if readers is None and b'"readers":' not in row.record:
            continue
        labels[f"outcome/{at}"] = _meet_arguments(row, readers)
    return labels


def answer_readers(tool: Tool, row: ActionRow, data: Mapping[str, Any]) -> Readers:
    """Return who may read what a tool outside, or a wait, answered to one action."""
    readers = told_readers(data) if tool.name == WAIT_TOOL else tool.readers
    return _meet_arguments(row, readers)


def _meet_arguments(row: ActionRow, readers: Readers) -> Readers:
    args = argument_readers(parse_record(row.record)) if row.record else {}
    return meet_labels(readers, *args.values())


def _tool_readers(tool: Tool, row_readers: Readers, told: Readers) -> Readers:
    if tool.name == READ_HISTORY_TOOL:
        return meet_labels(tool.readers, told)
    return meet_labels(tool.readers, row_readers if tool.settles == "transactional" else None)


def coarse_answer(row: ActionRow) -> dict[str, Any]:
    """Return what a briefing says of an earlier action: enough to go on, too little to probe."""
    if row.effect == "done":
        return {"status": "done", "data": answer_data(row)}
    if row.effect == "failed" and row.tool == ASK_TOOL:
        return {"status": "failed", "data": answer_data(row)}  # the engine's words alone
    if row.effect in ("failed", "cancelled"):
        return {"status": "failed"}
    if row.decided == "deny":
        return {"status": "not permitted"}
    return {"status": "waiting"}


def coarse_answers(rows: Iterable[ActionRow], turn: int) -> list[dict[str, Any]]:
    """Return what a briefing says of the actions of an earlier turn."""
    return [
        {"tool": row.tool, "ordinal": row.ordinal, **coarse_answer(row)}
        for row in rows
        if row.turn == turn
    ]


def _pause(row: ActionRow, outcome: Outcome) -> int:
    """Return how long a target is left alone: no shorter than it asked for."""
    return max(_backoff(row), outcome.retry_after_us)


def _backoff(row: ActionRow) -> int:
    return delay_us(row.tries, first_us=_FIRST_RETRY_US, last_us=LAST_RETRY_US, seed=row.id)
