"""Compensation: an event of the engine's own that takes one effect back through its tool's inverse.

A person chooses which effect; every value of the inverse comes from the record. So the event says
of each where it was from when the effect was decided, and the inverse is decided on the same: what
was trusted then is drawn from a place that the engine vouches for, what came out of content comes
out of content again, and what was given by value is given by value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import orjson

from vedette.domain.action import Proposal
from vedette.domain.agent import undo_source
from vedette.domain.base.canonical import short_id
from vedette.domain.base.clock import iso
from vedette.domain.base.errors import BadCommand
from vedette.domain.event import (
    ENVELOPE,
    PRINCIPAL,
    REASON,
    UNDO_ACTION,
    UNDO_TYPE,
    Event,
    subject_of,
)
from vedette.domain.origin import Ref, escape_pointer
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.readers import argument_readers, meet_labels, unpack_row
from vedette.domain.run import ActionRow, Run, event_run_id
from vedette.domain.tool import Tool

# What a tool found before it changed it. An inverse that declares an argument of this name is
# given what the effect's outcome says of it, and never what the effect was called with.
PRIOR_VALUE = "was"


def erased_error(action: str) -> BadCommand:
    """Return the error of a compensation: its effect's record was erased, nothing tells how."""
    return BadCommand(
        f"the content of {action} was erased, and with it what to take back",
        mend="take it back by hand",
    )


def undo_ids(action: str) -> Iterator[str]:
    """Yield the ids that undos of an action have, in order: one, until it came to nothing."""
    yield action
    number = 1
    while True:
        number += 1
        yield f"{action}.{number}"


def undo_run_id(fleet: str, agent: str, event_id: str) -> str:
    """Return the id of the run that an undo makes."""
    return event_run_id(short_id("evt", undo_source(fleet, agent), event_id), agent)


def undo_event(
    fleet: str,
    row: ActionRow,
    run_and_event: tuple[Run, Event],
    tools: tuple[Tool, Tool],
    *,
    who: str,
    reason: str,
    id: str,
    now_us: int,
) -> Event:
    """Return the Event of a compensation, which takes back what an action did.

    `run_and_event` is the run the action belongs to and its event, `tools` its tool and the
    inverse, as they are declared now. Raises BadCommand if the record has no value for an argument
    of the inverse.
    """
    run, event = run_and_event
    tool, inverse = tools
    record = orjson.loads(row.record)
    # Beside what stood in a row of the fleet is who may read it (`vedette.domain.readers`).
    outcome, row_readers = unpack_row(orjson.loads(row.answer)["data"] if row.answer else {})
    args, origins = _inverse_arguments(row, record, outcome, tool, inverse)
    trusted = (place for place, origin in origins.items() if origin == "trusted")
    vouched = {UNDO_ACTION, *(f"data/args/{place}" for place in trusted)}
    data = {
        "action": row.id,
        "effect": "eff_" + row.id.removeprefix("act_"),
        "run": run.id,
        "key": run.key,
        "cause": row.last,
        "tool": tool.name,
        "inverse": inverse.name,
        "args": args,
        "origins": origins,
    }
    if fractions := _fraction_places(args):
        # The data of an event keep a fraction as its decimal text.
        data["fractions"] = fractions
    return Event(
        source=undo_source(fleet, row.agent),
        id=id,
        type=UNDO_TYPE,
        # Who asks for all content under a subject to be erased means this, too.
        subject=subject_of(event),
        time=iso(now_us),
        data=data,
        vouched=(ENVELOPE - {"subject"}) | vouched | {PRINCIPAL, REASON},
        extensions={PRINCIPAL: who, REASON: reason},
        readers=meet_labels(
            event.readers, tool.readers, row_readers, *argument_readers(record).values()
        ),
    )


def _inverse_arguments(
    row: ActionRow,
    record: Mapping[str, Any],
    outcome: Mapping[str, Any],
    tool: Tool,
    inverse: Tool,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the inverse's arguments by name, and the origin of each and of its elements.

    The latter by their places, which are JSON Pointers without the first slash.
    """
    outcome_origin = "untrusted"
    if tool.output == "trusted" and "label_output" not in row.obliges:
        outcome_origin = "trusted"
    args: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, kind in inverse.args.items():
        if name in record["args"] and name != PRIOR_VALUE:
            args[name] = record["args"][name]
            for pointer, origin in record["origins"].items():
                if pointer == f"/{escape_pointer(name)}" or pointer.startswith(
                    f"/{escape_pointer(name)}/"
                ):
                    origins[pointer[1:]] = origin
        elif name in outcome:
            args[name], origins[name] = outcome[name], outcome_origin
        elif not kind.endswith("?"):
            raise BadCommand(
                f"{inverse.name} needs {name!r}, which the record of {row.id} does not have",
                mend=f"let {tool.name} answer it in its outcome, or make {name} optional",
            )
    return args, origins


def undo_judgement(event: Event) -> ReasonerJudgement:
    """Return a compensation's judgement, its one proposal: a pure function of the undo's Event."""
    data = event.data
    fractions = frozenset(data.get("fractions", ()))
    args = {
        name: _restore_argument(value, escape_pointer(name), data["origins"], fractions)
        for name, value in data["args"].items()
    }
    why = f"{event.extensions.get(PRINCIPAL)} takes {data['effect']} back"
    detail = {"undoes": data["effect"], "run": data["run"], "tool": data["tool"]}
    return ReasonerJudgement(
        label="undo",
        # The record says what is to be taken back, and a person asks for it: nothing is guessed.
        confidence=1.0,
        proposals=(Proposal(data["inverse"], args, why),),
        detail=detail,
        observed=False,
    )


def _fraction_places(value: Any, place: str = "") -> list[str]:
    """Return where fractions stand in arguments, as places without the first slash."""
    if isinstance(value, float):
        return [place[1:]]
    if not isinstance(value, Mapping | list):
        return []
    parts = value.items() if isinstance(value, Mapping) else enumerate(value)
    return [
        found
        for name, item in parts
        for found in _fraction_places(item, f"{place}/{escape_pointer(str(name))}")
    ]


def _restore_argument(
    value: Any, place: str, origins: Mapping[str, str], fractions: Collection[str]
) -> Any:
    """Return an argument so that each part of it gets the origin that it had."""
    below = {origin for at, origin in origins.items() if at.startswith(f"{place}/")}
    if below - {origins.get(place)}:
        if isinstance(value, Mapping):
            return {
                name: _restore_argument(item, f"{place}/{escape_pointer(name)}", origins, fractions)
                for name, item in value.items()
            }
        return [
            _restore_argument(item, f"{place}/{at}", origins, fractions)
            for at, item in enumerate(value)
        ]
    if origins.get(place) in ("trusted", "untrusted"):
        return Ref(f"/event/data/args/{place}")
    return _restore_fractions(value, place, fractions) if fractions else value


def _restore_fractions(value: Any, place: str, fractions: Collection[str]) -> Any:
    if place in fractions:
        return float(value)
    if isinstance(value, Mapping):
        return {
            name: _restore_fractions(item, f"{place}/{escape_pointer(name)}", fractions)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [
            _restore_fractions(item, f"{place}/{at}", fractions) for at, item in enumerate(value)
        ]
    return value
