"""The explain object as plain lines for a terminal; each line has a style, never only a colour.

Much of what is shown was written by strangers: nothing of it reaches the terminal as a control
character, and no line is longer than the width asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import orjson

from vedette.domain.base.clock import iso
from vedette.domain.base.safe_text import escape_text, wrap_line
from vedette.domain.display_text import format_event
from vedette.domain.effect import OPEN_STATES
from vedette.domain.event import DATA, PRINCIPAL, REASON, UNDO_ACTION
from vedette.ledger.history.action import format_awaited, format_quiet_time, format_tries

# title, head, text, dim, permit, hold, deny, done, failed: what a terminal may colour.
StyledLine = tuple[str, str]

WIDTH = 80

_MAX_CHARS = 600
# How instants are written while one object is told; a parameter of every line otherwise.
_TIME_FORMAT: ContextVar[Callable[[int], str]] = ContextVar("when", default=iso)
_SIGNS = {"permit": "PERMIT", "hold": "HOLD", "deny": "DENY"}
_UNDO_TEXTS = {
    "undone": "UNDONE by",
    "waiting": "TO BE UNDONE by",
    "dead": "NOT UNDONE, a dead letter:",
    "void": "NOT UNDONE, nothing came of",
    "unknown": "UNDONE OR NOT, nobody knows; look at its target:",
}
_EFFECT_STYLES = {"done": "done", "failed": "failed", "unknown": "failed", "cancelled": "failed"}


def explain_text(
    explanation: Mapping[str, Any], width: int = WIDTH, format_time: Callable[[int], str] = iso
) -> list[StyledLine]:
    """Return the lines of an explain object: what was decided, what it is about; then event,
    memories, judgement, proposals, decisions, effects, outcomes, in this order for each run.

    `format_time` writes an instant for its reader.
    """
    token = _TIME_FORMAT.set(format_time)
    try:
        return _lines(explanation, width)
    finally:
        _TIME_FORMAT.reset(token)


def _lines(explanation: Mapping[str, Any], width: int) -> list[StyledLine]:
    lines = [
        *_summary(explanation),
        *_about(explanation["event"]["about"], width),
        *_event(explanation["event"]),
    ]
    for run in explanation["runs"]:
        lines += _run(run, explanation["focus"])
    if not explanation["runs"]:
        lines.append(("text", "It woke no agent."))
    return [
        (style, part) for style, line in lines for part in wrap_line(line, width, at_spaces=True)
    ]


def safe_text(value: Any, max_chars: int = _MAX_CHARS) -> str:
    """Return a value as one line to show, safe to print: text as it is, all else as JSON."""
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    text = escape_text(text[: max_chars + 1])
    return text if len(text) <= max_chars else text[:max_chars] + "…"


def _time_text(instant: Any) -> str:
    return _TIME_FORMAT.get()(instant) if isinstance(instant, int) else "?"


def _milli_text(value: Any) -> str:
    return "?" if value is None else f"{value / 1000:g}"


# --- in short -------------------------------------------------------------------------------


def _summary(explanation: Mapping[str, Any]) -> Iterator[StyledLine]:
    """Yield what came of it: a line for each action, of the one that was asked for alone."""
    for run in explanation["runs"]:
        actions = [one for one in run["actions"] if explanation["focus"] in (None, one["id"])]
        for action in actions:
            sign = _SIGNS.get(action["outcome"], "UNDECIDED")
            by = f" by {action['rule']}" if action["rule"] else ""
            waits = f", waits for {action['hold']['waits']}" if _is_waiting(action) else ""
            effect = f", effect {action['effect']['state']}" if action["effect"] else ""
            line = f"{sign} {run['agent']}: {action['tool']}{by}{waits}{effect}"
            yield action["outcome"] or "text", line
        if not actions:
            yield "text", f"NOTHING to decide: {run['agent']} proposed no action"


def _is_waiting(action: Mapping[str, Any]) -> bool:
    return bool(action["hold"] and action["hold"]["waits"])


def _about(about: Mapping[str, Any], width: int) -> Iterator[StyledLine]:
    yield from (("text", line) for line in format_event(about, width, 2))
    yield "text", ""


# --- event ----------------------------------------------------------------------------------


def _event(event: Mapping[str, Any]) -> Iterator[StyledLine]:
    yield "title", f"EVENT {event['id']}"
    if event["seq"] is None:
        yield "text", "  The record holds no such event."
        return
    yield "dim", f"  {_time_text(event['at'])}  entry {event['seq']}"
    if event["erased"]:
        yield "text", "  Its content was erased; the entries still prove that it was there."
        return
    vouched = set(event["vouched"])
    attributes = dict(event["attributes"])
    extensions = dict(attributes.get("extensions") or {})
    if PRINCIPAL in vouched:
        # The engine's own words, set when a person sent the event.
        who, why = extensions.pop(PRINCIPAL, "?"), extensions.pop(REASON, "?")
        yield "text", f"  sent by {safe_text(who)}: {safe_text(why)}"
    for name, value in {**attributes, "extensions": extensions}.items():
        if value not in (None, {}):
            sure = "vouched for by its source" if name in vouched else "not vouched for"
            yield "text", f"  {name}: {safe_text(value)} ({sure})"
    if event["lineage"]:
        yield "text", f"  came through: {safe_text(', '.join(event['lineage']))}"
    made = "made by the engine" if {DATA, UNDO_ACTION} & vouched else "untrusted"
    yield "text", f"  data: {safe_text(event['data'])} ({made})"


# --- run ------------------------------------------------------------------------------------


def _run(run: Mapping[str, Any], focus: str | None) -> Iterator[StyledLine]:
    yield "text", ""
    yield "title", f"RUN {run['id']}"
    yield "text", f"  agent {run['agent']} ({run['identity'] or 'identity not recorded'})"
    if run["release"]:
        yield "dim", f"  release {run['release'][:16]}"
        if run.get("snapshot"):
            yield "dim", f"  its code {safe_text(run['snapshot'])}"
    waits = f", waits for {run['waits']}" if run["waits"] else ""
    away = [one for one in run["timeline"] if one["kind"] == "model.away"]
    if run["waits"] == "model" and away:
        waits += f" ({safe_text(away[-1]['target'])} is away: {safe_text(away[-1]['what'])})"
    key = f", key {safe_text(run['key'], 200)}" if run["key"] else ""
    yield "text", f"  {run['state']}{waits}, turns {run['turns']}{key}"
    for read in run["reads"]:
        yield "text", f"  may read {read['memory']}: {_verdict(read)}"
    yield "head", "MEMORIES"
    for cite in run["memories"]:
        yield "text", f"  {safe_text(cite)}"
    if not run["memories"]:
        yield "dim", "  none cited"
    if run["model_calls"]:
        yield "head", "MODEL"
    for call in run["model_calls"]:
        style = "failed" if call["error"] else "text"
        yield style, f"  turn {call['turn']}: {model_call_text(call)}"
    for judgement in run["judgements"]:
        yield from _judgement(judgement)
    for action in run["actions"]:
        if focus in (None, action["id"]):
            yield from _action(action)
        else:
            yield "dim", f"ACTION {action['id']} {action['tool']}: {action['outcome']}"
    for said in run["corrections"]:
        yield from _correction(said)
    for proposed in run["proposed"]:
        text = "(erased)" if proposed["erased"] else safe_text(proposed["text"], 200)
        yield "head", f"PROPOSED MEMORY {proposed['bank']}/{proposed['candidate'] or '?'}"
        label = f", label {safe_text(proposed['label'])}" if proposed["label"] else ""
        yield "text", f"  {proposed['kind'] or 'fact'}{label}: {text}"
    if run["dead"] is not None:
        why = "(erased)" if run["dead"]["erased"] else safe_text(run["dead"]["why"])
        yield "failed", f"DEAD LETTER at {_time_text(run['dead']['at'])}: {why}"
    if run["cut"]:
        yield "dim", "  The run has more entries than are shown."


def _correction(correction: Mapping[str, Any]) -> Iterator[StyledLine]:
    right = correction["outcome"] == "right"
    yield "head", f"CORRECTION {'it was right' if right else 'it was wrong'}"
    yield (
        "dim",
        f"  {_time_text(correction['at'])}  by {safe_text(correction['by'])}  "
        f"entry {correction['seq']}",
    )
    if correction["erased"]:
        yield "text", "  What was said was erased."
        return
    if not right:
        yield (
            "text",
            f"  should have been {safe_text(correction['should'])}, "
            f"was {safe_text(correction['was'])}",
        )
    for name in ("note", "reason"):
        if correction[name]:
            yield "text", f"  {name}: {safe_text(correction[name])}"


def model_call_text(call: Mapping[str, Any]) -> str:
    """Return on one line how a turn's call of a model went."""
    served = call["answered"] or call["asked"]
    name = f" ({safe_text(served)})" if served else ""
    parts = [f"{safe_text(call['model'])}{name}", f"{call['took'] / 1e6:.1f} s"]
    counted = ((call["input"], "tokens in"), (call["output"], "out"))
    parts += [f"{tokens:,} {how}" for tokens, how in counted if tokens is not None]
    if call["finish"]:
        parts.append(safe_text(call["finish"]))
    if not call["calls"]:
        parts.append("not asked")
    if call["error"]:
        parts.append(f"failed: {safe_text(call['error'])}")
    return ", ".join(parts)


def _judgement(judgement: Mapping[str, Any]) -> Iterator[StyledLine]:
    yield "head", f"JUDGEMENT turn {judgement['turn']}"
    yield "dim", f"  {_time_text(judgement['at'])}  entry {judgement['seq']}"
    confidence = _milli_text(judgement["confidence_milli"])
    said = f"  {safe_text(judgement['label'])}, confidence {confidence}"
    if judgement["score_milli"] is not None:
        said += f", score {_milli_text(judgement['score_milli'])}"
    if judgement["threshold_milli"] is not None:
        said += f", threshold {_milli_text(judgement['threshold_milli'])}"
    yield "text", said
    if judgement["deferred"]:
        yield "text", "  Not sure enough to settle it: the model takes the next turn."
    if judgement["erased"]:
        yield "text", "  What was drawn and proposed was erased."
        return
    for name, value in (judgement["detail"] or {}).items():
        if value not in (None, "", [], {}) and name != "memories":
            yield from _detail(name, value)
    if judgement["notes"] is not None:
        yield from _detail("notes", judgement["notes"])
    if not judgement["proposals"]:
        yield "text", "  It proposed nothing."
    for proposal in judgement["proposals"]:
        if proposal["refused"] is not None:
            yield (
                "deny",
                f"  REFUSED {safe_text(proposal['tool'])}: {safe_text(proposal['refused']['why'])}",
            )


def _detail(name: str, value: Any) -> Iterator[StyledLine]:
    rows: Sequence[tuple[str, Any]] = ()
    if isinstance(value, Mapping) and any(isinstance(v, Mapping) for v in value.values()):
        rows = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        rows = [(str(at), item) for at, item in enumerate(value, 1)]
    if not rows:
        yield "text", f"  {safe_text(name)}: {_plain_text(value)}"
        return
    yield "text", f"  {safe_text(name)}:"
    for key, item in rows[:12]:
        yield "text", f"    {safe_text(key)}: {_plain_text(item)}"
    if len(rows) > 12:
        yield "dim", f"    and {len(rows) - 12} more"


def _plain_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{safe_text(key)} {safe_text(item)}" for key, item in value.items())
    return safe_text(value)


# --- action ---------------------------------------------------------------------------------


def _action(action: Mapping[str, Any]) -> Iterator[StyledLine]:
    yield "head", f"PROPOSAL {action['tool']}  (turn {action['turn']}.{action['ordinal']})"
    yield "dim", f"  action {action['id']}"
    yield "dim", f"  digest {action['digest']}"
    if action["why"]:
        yield "text", f"  why: {safe_text(action['why'])}"
    if action["erased"]:
        yield "text", "  Its arguments were erased."
    for argument in action["arguments"] or ():
        origin = f"{argument['origin']}"
        if argument["source"]:
            origin += f", from {safe_text(argument['source'])}"
        if argument["sink"]:
            origin += "; a sink"
        yield "text", f"  {argument['pointer']} = {safe_text(argument['value'])}  [{origin}]"
    for decision in action["decisions"]:
        yield from _decision(decision)
    if action["hold"]:
        yield from _hold(action["hold"])
    if action["effect"]:
        yield from _effect(action["effect"])
    if action["undone"]:
        yield "hold", f"{_UNDO_TEXTS[action['undone']['state']]} {action['undone']['run']}"
    elif action["effect"] and action["effect"]["state"] == "done" and action["inverse"]:
        yield "dim", f"  can be taken back: undo {action['effect']['id']} ({action['inverse']})"


def _verdict(decision: Mapping[str, Any]) -> str:
    sign = _SIGNS.get(decision["outcome"], str(decision["outcome"]))
    return f"{sign} by {decision['rule']}, revision {decision['revision']}"


def _decision(decision: Mapping[str, Any]) -> Iterator[StyledLine]:
    yield decision["outcome"], f"DECISION {_verdict(decision)}"
    yield "dim", f"  {_time_text(decision['at'])}  entry {decision['seq']}"
    if decision["erased"]:
        yield "text", "  The question was erased: this decision cannot be replayed."
    if decision["reasons"]:
        yield "text", f"  reasons: {safe_text(', '.join(decision['reasons']))}"
    if decision["wait"]:
        until = f" until {_time_text(decision['until'])}" if decision["until"] else ""
        yield "text", f"  waits for {decision['wait']}{until}"
    if decision["would"]:
        yield "text", f"  in mode act it would be: {decision['would']}"
    for given in decision["approvals"] or ():
        yield "text", f"  approved by {safe_text(given['by'])} until {_time_text(given['until'])}"
    for duty in decision["obligations"] or ():
        yield "dim", f"  obligation: {_plain_text(duty)}"


def _hold(hold: Mapping[str, Any]) -> Iterator[StyledLine]:
    yield "hold", f"HOLD {hold['id']}: {hold['state']}"
    if hold["waits"]:
        until = f", until {_time_text(hold['until'])}" if hold["until"] else ""
        yield "text", f"  waits for {hold['waits']}{until}"
    for answer in hold["answers"]:
        who = f" by {safe_text(answer['by'])}" if answer["by"] else ""
        reason = ": (erased)" if answer["erased"] else ""
        if answer["reason"]:
            reason = f": {safe_text(answer['reason'])}"
        yield "text", f"  {_time_text(answer['at'])}  {answer['answer']}{who}{reason}"
        if answer["shown_digest"]:
            yield "dim", f"  for what was shown as {answer['shown_digest'][:16]}"
    for note in hold["notes"]:
        text = "(erased)" if note["erased"] else safe_text(note["text"])
        yield "text", f"  {_time_text(note['at'])}  noted by {safe_text(note['by'])}: {text}"


def _effect(effect: Mapping[str, Any]) -> Iterator[StyledLine]:
    yield _EFFECT_STYLES.get(effect["state"], "text"), f"EFFECT {effect['id']}: {effect['state']}"
    for state in effect["states"]:
        tries = f", tries {state['tries']}" if state["tries"] else ""
        under = f"revision {state['revision']}"
        yield "text", f"  {_time_text(state['at'])}  {state['state']}, {under}{tries}"
    if awaits := effect["awaits"]:
        what = safe_text(format_awaited(awaits))
        yield "text", f"  waits for {what}, until {_time_text(awaits['until'])} at most"
    if quiet_time := format_quiet_time(effect):
        yield "text", f"  {quiet_time.format(at=_time_text(effect['next_try_at']))}"
    if tries_text := format_tries(effect):
        next_at = effect["next_try_at"] if effect["state"] in OPEN_STATES else None
        yield "text", f"  {tries_text}" + (f", next try {_time_text(next_at)}" if next_at else "")
    outcome = effect["outcome"]
    if effect["erased"]:
        yield "text", "  outcome: (erased)"
    elif outcome:
        result = outcome["error"] or outcome["data"]
        yield (
            _EFFECT_STYLES.get(outcome["state"], "text"),
            f"  OUTCOME {outcome['state']}: {safe_text(result)}",
        )
    if effect["word"]:
        whose = {"verified": "verified at its target", "claimed": "claimed by the tool"}
        yield "dim", f"  {whose[effect['word']]}"
