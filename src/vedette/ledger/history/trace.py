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
# The names that the semantic conventions for generative AI have for providers that [models] and
# LiteLLM call otherwise.
_PROVIDERS = {
    "azure": "azure.ai.openai", "bedrock": "aws.bedrock", "gemini": "gcp.gemini",
    "mistral": "mistral_ai", "vertex": "gcp.vertex_ai", "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai", "xai": "x_ai",
}  # fmt: skip
_TOKENS = {
    "input": "input_tokens", "output": "output_tokens", "cache_read": "cache_read.input_tokens",
    "cache_creation": "cache_creation.input_tokens", "reasoning": "reasoning.output_tokens",
}  # fmt: skip
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
    calls = [entry for entry in entries if "model_call" in entry]
    answered: set[int] = set()  # turns that the call of a model has told of
    for entry in entries:
        if "model_call" in entry:
            id = span_id(_entry_key(entry))
            found += _reason_spans(trace, id, own, {**named, **_attributes(entry)}, entry)
            calls.pop(0)
            if not _turn_failure(entry):
                answered.add(entry["turn"])
        if entry["kind"] == "turn.reasoned" and entry.get("turn") in answered:
            before = int(entry["at"])
            continue
        step = _step(entry, before, intended, held)
        if step is not None:
            name, kind, start, failed = step
            id = span_id(_entry_key(entry))
            if kind == "client":
                # The id that the call itself carried in its traceparent.
                id = span_id(str(entry.get("effect_key") or entry["action"]))
            at = int(entry["at"])
            if entry["kind"] == "recall.decided" and calls and calls[0]["at"] == at:
                # It was committed with its turn, and over when the model was asked.
                at = min(at, calls[0]["model_call"]["began"])
                start = min(start, at)
            attributes = {**named, **_attributes(entry)}
            found.append(Span(trace, id, own, name, kind, start, at, attributes, failed))
        before = int(entry["at"])
    return found


def _reason_spans(
    trace: str, id: str, parent: str, named: Mapping[str, Any], entry: Mapping[str, Any]
) -> list[Span]:
    """Return the spans of a turn that a model reasoned: the whole of it, and the model's calls.

    Both end together, as what is made of an answer takes no time beside it; the model's span, which
    stands for all calls of the turn, is as long as its client waited. None was made: it has none.
    """
    told, failure = entry["model_call"], _turn_failure(entry)
    began, ended = told["began"], told["began"] + told["took"]
    found = [Span(trace, id, parent, "reason", "internal", began, ended, named, failure)]
    if told["calls"]:
        model = told.get("asked") or told["model"]
        attributes = {**named, **_model_attributes(told, model)}
        start = ended - told.get("call_took", told["took"])
        own, failed = span_id(f"{_entry_key(entry)} chat"), told.get("error")
        found.append(
            Span(trace, own, id, f"chat {model}", "client", start, ended, attributes, failed)
        )
    return found


def _turn_failure(settled: Mapping[str, Any]) -> str | None:
    """Return the code of why a turn came to nothing: its call failed, or what was made of that."""
    code: str | None = settled["model_call"].get("error") or settled.get("what")
    return code


def _model_attributes(told: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return the attributes of a model's span.

    They are those of OpenTelemetry's semantic conventions for generative AI, of a client's
    inference: https://github.com/open-telemetry/semantic-conventions-genai
    """
    provider = told.get("provider", "")
    if provider == "litellm" and "/" in model:
        provider = model.partition("/")[0]
    found = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _PROVIDERS.get(provider, provider),
        "gen_ai.request.model": model,
        "gen_ai.response.model": told.get("answered"),
        "gen_ai.response.finish_reasons": (told["finish"],) if "finish" in told else None,
        "error.type": told.get("error"),
        "vedette.model": told["model"],
        "vedette.model_calls": told["calls"],
    }
    for kind, amount in told.get("tokens", {}).items():
        found[f"gen_ai.usage.{_TOKENS[kind]}"] = amount
    return {name: value for name, value in found.items() if value is not None and value != ""}


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
