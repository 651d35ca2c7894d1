"""Traces: one trace for each event, from accept over decisions to effects, made of the ledger.

A trace is a projection of the record, so the engine does not wait for it and a crash loses none.
All ids are functions of what they name (docs/design/telemetry.md): whoever knows a run or a call
can say its `traceparent` without asking, and a span that is exported twice is the same span. Ids,
names and words from closed lists are the only attributes; never content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from vedette.domain.effect import span_id, trace_id
from vedette.domain.entry import HOLD_ANSWERS

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}\Z")
_EFFECT_ENDS = ("effect.done", "effect.failed", "effect.unknown", "effect.cancelled")
RUN_ENDS = ("run.closed", "run.dead", "run.dropped")


class Span(Struct, frozen=True):
    """One span that entries tell: ids in lower-case hex, times in µs UTC. `failed` is its status.

    `link` is the (trace, span) of the sender's own trace, where the event named one.
    """

    trace: str
    id: str
    parent: str | None
    name: str
    kind: str  # internal | consumer | client
    start_us: int
    end_us: int
    attributes: Mapping[str, Any] = field(default_factory=dict)
    failed: str | None = None
    link: tuple[str, str] | None = None


def is_sampled(run: str, share: float) -> bool:
    """Say whether the trace of a run's event is in the sampled share; the same for all its runs."""
    return int(trace_id(run)[:8], 16) < share * 0x1_0000_0000


def spans(
    accepted: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], traceparent: str | None
) -> list[Span]:
    """Return the spans that an ended run's entries come to: its event's, its own, and each step's.

    `accepted` and `entries` (the run's, in order) are parsed entries; `traceparent` is the W3C
    attribute of that name that the event came with, if any.
    """
    if not entries:
        return []
    last = entries[-1]
    run, agent = str(last["run"]), str(last.get("agent", ""))
    trace, root, own = trace_id(run), span_id(event_span_key(accepted)), span_id(run)
    began, ended = int(accepted["at"]), int(last["at"])
    named = {"vedette.agent": agent, "vedette.run": run}
    about = {"vedette.event": str(accepted.get("event", "")), "vedette.seq": int(accepted["seq"])}
    found = [
        Span(trace, root, None, "event", "consumer", began, began, about, link=_link(traceparent)),
        Span(
            trace, own, root, f"run {agent}", "internal", began, ended,
            {**named, **about, "vedette.state": str(last["kind"]).partition(".")[2]},
            "dead letter" if last["kind"] == "run.dead" else None,
        ),
    ]  # fmt: skip
    before = began
    intended: dict[str, int] = {}
    held: dict[str, int] = {}
    for entry in entries:
        step = _step(entry, before, intended, held)
        if step is not None:
            name, kind, start, failed = step
            id = span_id(_entry_key(entry))
            if kind == "client":
                # The id that the call itself carried in its traceparent.
                id = span_id(str(entry.get("effect_key") or entry["action"]))
            at = int(entry["at"])
            attributes = {**named, **_attributes(entry)}
            found.append(Span(trace, id, own, name, kind, start, at, attributes, failed))
        before = int(entry["at"])
    return found


def event_span_key(accepted: Mapping[str, Any]) -> str:
    """Return what an event's span id in its trace is made of: its id, else the entry's seq."""
    return str(accepted.get("event") or f"seq {accepted['seq']}")


def _step(
    entry: Mapping[str, Any], before: int, intended: dict[str, int], held: dict[str, int]
) -> tuple[str, str, int, str | None] | None:
    """Return (name, kind, start, failure) of the span that an entry ends; None if it ends none."""
    kind, at = str(entry["kind"]), int(entry["at"])
    action, tool = str(entry.get("action", "")), str(entry.get("tool", ""))
    if kind == "turn.reasoned":
        return "reason", "internal", before, None
    if kind == "recall.decided":
        return "recall", "internal", before, None
    if kind == "action.decided":
        if entry.get("outcome") == "hold":
            held.setdefault(action, at)
        return f"decide {tool}".rstrip(), "internal", at, None
    if kind in ("effect.intended", "effect.started"):
        intended.setdefault(action, at)
        return None
    if kind in _EFFECT_ENDS:
        state = kind.partition(".")[2]
        failed = state if state in ("failed", "unknown") else None
        return f"effect {tool}".rstrip(), "client", intended.get(action, at), failed
    if kind in HOLD_ANSWERS:
        return "hold", "internal", held.pop(action, before), None
    return None


def _attributes(entry: Mapping[str, Any]) -> dict[str, Any]:
    names = ("action", "tool", "outcome", "rule", "policy_rev", "engine", "turn", "tries")
    found = {f"vedette.{name}": entry[name] for name in names if entry.get(name) is not None}
    return {**found, "vedette.seq": int(entry["seq"]), "vedette.kind": str(entry["kind"])}


def _entry_key(entry: Mapping[str, Any]) -> str:
    return f"{entry.get('run', '')} {entry.get('n', entry['seq'])}"


def _link(traceparent: str | None) -> tuple[str, str] | None:
    found = _TRACEPARENT.match(traceparent or "")
    return (found[1], found[2]) if found else None
