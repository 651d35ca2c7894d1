"""`task.wait`: a task waits until an instant, for so long, or for an event that matches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from vedette.domain.action import Action
from vedette.domain.artefact import READERS
from vedette.domain.base.clock import from_iso
from vedette.domain.base.errors import BadProposal
from vedette.domain.effect import Outcome, RowWrite
from vedette.domain.entry import MATCHED_KIND
from vedette.domain.event import Event
from vedette.domain.event_wait import MAX_PLACES, WAITS, find_place_fault, read_event_wait
from vedette.domain.run import ActionRow
from vedette.engine.async_tool import AsyncTool, Begun
from vedette.engine.run_context import RunContext
from vedette.engine.services import Services

_MICROS = 1_000_000
# How many waits one turn begins.
MAX_WAITS = 16


def require_wait(context: RunContext, args: Mapping[str, Any]) -> None:
    """Raise BadProposal for a wait for nothing, or for what the agent may not wait for."""
    if not {"until", "for_s", "event"} & args.keys():
        raise BadProposal("a wait is until an instant, for_s seconds or for an event")
    if "until" in args:
        try:
            from_iso(args["until"])
        except ValueError as error:
            raise BadProposal(f"until is no instant: {error}") from error
    if args.get("for_s", 1) <= 0:
        raise BadProposal("for_s is a number of seconds ahead")
    listed = () if context.agent.work is None else context.agent.work.waits_for
    type = args.get("event")
    if type is None:
        if {"source", "where"} & args.keys():
            raise BadProposal("source and where narrow an event: name its type as event")
    elif type not in listed:
        raise BadProposal(f"agent.yaml does not say that it waits for {type!r}", mend="waits_for:")
    where = args.get("where", {})
    if len(where) > MAX_PLACES:
        raise BadProposal(f"where has {MAX_PLACES} places at most")
    for place in where:
        if (fault := find_place_fault(place)) is not None:
            raise BadProposal(fault)


def begin(services: Services, context: RunContext, action: Action, now_us: int) -> Begun:
    """Say until when a permitted wait lasts, and how its event is found."""
    wait, args = read_event_wait(action.args), action.args
    ends = [_deadline(context)]
    if "until" in args:
        ends.append(from_iso(args["until"]))
    if "for_s" in args:
        ends.append(now_us + args["for_s"] * _MICROS)
    # An instant that is over, or a deadline, ends it at once: 0 is no instant.
    end_us = max(1, min(ends))
    if wait is None:
        return Begun("time", end_us)
    row = {"agent": context.agent.name, "places": wait.places}
    return Begun("event", end_us, (RowWrite(WAITS, wait.row_key(action.id), row),))


async def settle(
    services: Services, context: RunContext, action: Action, row: ActionRow, now_us: int
) -> Outcome | None:
    """Return what woke a wait: the event that the ledger says was accepted for it, or its time."""
    wait = read_event_wait(action.args)
    if wait is not None and (position := _find_match(services, row)) is not None:
        listed = () if context.agent.work is None else context.agent.work.waits_for
        if wait.type not in listed:
            return Outcome("failed", error=f"agent.yaml does not name {wait.type!r} any more")
        event = services.store.runs.event_at(position)
        if event is not None and not wait.matches(event):
            return Outcome("failed", error="the event that was recorded is not what was asked for")
        return Outcome("done", tell_event(position, event))
    task = context.task
    if task is not None and task.session.untold:
        return Outcome("done", {"woke": "session"})  # the next turn is told of it
    if row.not_before_us > now_us:
        return None
    cut = {"bound": "deadline"} if row.not_before_us >= _deadline(context) else {}
    return Outcome("done", {"woke": "time", **cut})


def tell_event(position: int, event: Event | None) -> dict[str, Any]:
    """Return what a wait's outcome says of the event that woke it, with who may read that.

    Of one whose content was erased since, that alone.
    """
    if event is None:
        return {"woke": "event", "position": position, "erased": True}
    label = {} if event.readers is None else {READERS: sorted(event.readers)}
    return {"woke": "event", "position": position, "event": event.root(), **label}


def release(rows: Sequence[ActionRow]) -> list[RowWrite]:
    """Return what takes back the rows by which events find these actions, if any wait for one."""
    gone = []
    for row in rows:
        if row.waits == "event" and row.record:
            wait = read_event_wait(orjson.loads(row.record)["args"])
            gone += [] if wait is None else [RowWrite(WAITS, wait.row_key(row.id), None)]
    return gone


def _find_match(services: Services, row: ActionRow) -> int | None:
    """Return the position of the event that was accepted for a wait; None before."""
    for _, raw, _ in services.store.ledger.run_entries(row.run, (MATCHED_KIND,)):
        entry = orjson.loads(raw)
        if entry["action"] == row.id:
            return int(entry["cause"])
    return None


def _deadline(context: RunContext) -> int:
    """Return when the task's deadline is, from which no wait keeps it."""
    task = context.task
    assert task is not None  # only tasks have the tool
    return max(task.began_us, task.words.at_us) + task.task.deadline_us


WAIT = AsyncTool(begin, settle)
