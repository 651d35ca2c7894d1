"""A series as it was recorded: its values, what the judge made of them, incidents, answers.

Everything comes from the ledger: a point is an accepted event of the series with a finite `value`,
its score and threshold are those of the judgement that the run recorded. What was erased is not
there any more. What a person had the engine make, an undo or a correction, is no event of the
series, though it has its name; what an undo took back is as if it had not been.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import orjson
from msgspec import Struct, field

from vedette.domain.base.clock import from_iso
from vedette.domain.base.errors import BadCommand
from vedette.domain.event import metric_value
from vedette.domain.ports.ledger_reader import EntryLog
from vedette.ledger.history.entry_view import (
    AcceptanceEntry,
    AnswerEntry,
    CorrectionEntry,
    DecisionEntry,
    EffectEntry,
    EntryView,
    JudgementEntry,
    view_entry,
)
from vedette.ledger.history.time_window import find_window, read_instant

PLOT = "vedette.plot/1"

# Points of one series that are held while the record is read; the newest are kept.
_MAX_POINTS = 200_000
# A pause of more than so many usual steps is a gap: no line is drawn across it.
_GAP_STEPS = 3.0
# Neither more marks nor more spans than a reader can tell apart; the newest are kept.
_MAX_MARKS = 500

_KINDS = (
    "event.accepted", "turn.reasoned", "run.closed", "action.decided", "effect.done",
    "hold.approved", "hold.denied", "hold.expired", "run.corrected",
)  # fmt: skip
# Of accepted events those alone have one that a person had made: an undo (the effect's entry), or a
# correction (its own).
_CAUSE = b'"cause":'


class _Point(Struct):
    """One recorded event of the series; `scores` are (score, threshold, label) by agent."""

    at: int
    value: float | None
    event: str
    scores: dict[str, tuple[float | None, float | None, str]] = field(default_factory=dict)


class _IncidentEnd(Struct):
    """An end of an incident: `kind` is open or close, `seq` the entry of the effect that did it."""

    at: int
    seq: int
    kind: str
    agent: str
    run: str
    action: str | None


class _SeriesRecord(Struct):
    """What was read. An effect has two names: the id of its action, and its entry, which stands for
    it where the content of an undo was erased. `undos` holds what each undo is to take back,
    `undo_effects` the effects of undos, in order, each with what it took back.
    """

    points: deque[_Point]
    marks: list[dict[str, Any]] = field(default_factory=list)
    spans: list[_IncidentEnd] = field(default_factory=list)
    undos: dict[str, str | int] = field(default_factory=dict)
    undo_effects: list[tuple[set[str | int], str | int]] = field(default_factory=list)
    measure: str = ""
    unit: str = ""
    is_truncated: bool = False


def plot(
    record: EntryLog,
    series: str,
    since_us: int,
    until_us: int,
    *,
    agent: str | None = None,
    most: int = 2000,
) -> dict[str, Any]:
    """Return a recorded series for a plot, from `since_us` until before `until_us`.

    Instants are microseconds UTC: those that the events name, or else when they were accepted.
    The judge is that of `agent`, or of whichever agent scored most points. At most `most` points
    are told; of more, each stretch of time keeps its lowest and highest value and its highest
    score. An incident lasts from the effect of a tool `….open` to that of a `….close` of the same
    agent; one of them that was undone is left out. `from` and `to` are the ends of what is shown:
    an event without a number and without a mark moves neither. Raises BadCommand if nothing was
    recorded of the series, or `most` is under 10.
    """
    if most < 10:
        raise BadCommand(f"{most} points are no picture", mend="give --points 10 or more")
    found = _read_series(record, series, since_us, until_us)
    points = sorted(found.points, key=lambda point: point.at)
    if not points:
        raise BadCommand(
            f"no event with the subject {series!r} was recorded in that time",
            mend="name a series as events name it (their subject), or look further back: --last 7d",
        )
    judge = agent or _judge(points)
    readable = [point for point in points if point.value is not None]
    marks = [mark for mark in found.marks if agent is None or mark["agent"] == agent]
    spans = [span for span in found.spans if agent is None or span.agent == agent]
    undone = _find_undone(found.undo_effects)
    spans = [span for span in spans if not {span.seq, span.action} & undone]
    shown_at = [point.at for point in readable or points]
    # (Where the oldest points were let go, what stood at them has no place.)
    others = [mark["at"] for mark in marks] + [span.at for span in spans]
    shown_at += [at for at in others if at >= points[0].at]
    return {
        "schema": PLOT,
        "series": series,
        "measure": found.measure or "value",
        "unit": found.unit or None,
        "agent": judge,
        "from": min(shown_at),
        "to": max(shown_at),
        "recorded": len(points),
        "unreadable": len(points) - len(readable),
        "cut": found.is_truncated,
        "points": [_point_object(point, judge) for point in _thin_points(readable, judge, most)],
        "gaps": _gaps(readable),
        "incidents": _incidents(spans, max(shown_at)),
        "marks": sorted(marks, key=lambda mark: (mark["at"], mark["seq"]))[-_MAX_MARKS:],
    }


# --- reading the record -------------------------------------------------------------------------


def _read_series(record: EntryLog, series: str, since_us: int, until_us: int) -> _SeriesRecord:
    found = _SeriesRecord(deque(maxlen=_MAX_POINTS))
    # Quoted as the body holds it: most events are of other series and need not be parsed.
    needle = orjson.dumps(series)
    by_event: dict[str, _Point] = {}
    for seq, raw, _, data in record.walk(_KINDS, find_window(record, since_us, until_us).first - 1):
        if not since_us <= read_instant(raw) < until_us:
            continue
        undo = _CAUSE in raw
        if b'"kind":"event.accepted"' in raw and not (undo or (data and needle in data)):
            continue
        fields = orjson.loads(raw)
        event = fields.get("event")
        point = by_event.get(str(event))
        if fields["kind"] != "event.accepted" and point is None and event not in found.undos:
            continue
        entry = view_entry(seq, fields, data)
        if isinstance(entry, AcceptanceEntry):
            if undo:
                _add_undo(found, entry)
            else:
                _add_point(found, by_event, series, entry)
            continue
        if isinstance(entry, EffectEntry) and event in found.undos:
            found.undo_effects.append(({str(entry.action), seq}, found.undos[event]))
        if point is not None:
            _add_entry(found, point, entry)
    return found


def _add_point(
    found: _SeriesRecord, by_event: dict[str, _Point], series: str, entry: AcceptanceEntry
) -> None:
    if entry.subject != series:
        return
    payload = entry.data if isinstance(entry.data, dict) else {}
    point = _Point(_instant(entry.time, entry.at), metric_value(payload), str(entry.event))
    if len(found.points) == _MAX_POINTS:
        found.is_truncated = True
        by_event.pop(found.points[0].event, None)
    found.points.append(point)
    by_event[point.event] = point
    found.measure = str(payload.get("measure") or payload.get("metric") or found.measure)[:80]
    found.unit = str(payload.get("unit") or found.unit)[:20]


def _add_undo(found: _SeriesRecord, made: AcceptanceEntry) -> None:
    """Note what an undo is to take back; nothing is until its own effect is done."""
    action = (made.data or {}).get("action")
    found.undos[str(made.event)] = str(action) if action else int(made.cause or 0)


def _add_entry(found: _SeriesRecord, point: _Point, entry: EntryView) -> None:
    agent = str(entry.agent or "")
    if isinstance(entry, JudgementEntry):
        # (The label of the entry alone: it is one of a closed list.)
        label = entry.get("label")
        if label is not None and agent not in point.scores:
            scores = entry.score_milli, entry.threshold_milli
            score, threshold = (None if n is None else n / 1000 for n in scores)
            point.scores[agent] = (score, threshold, str(label))
            if label == "alarm":
                found.marks.append(_mark("alarm", point, entry))
    elif isinstance(entry, DecisionEntry):
        if entry.needs_approval:
            found.marks.append(_mark("held", point, entry))
    elif isinstance(entry, EffectEntry):
        word = str(entry.tool).rpartition(".")[2]
        if word in ("open", "close"):
            found.spans.append(
                _IncidentEnd(point.at, entry.seq, word, agent, str(entry.run), entry.action)
            )
    elif isinstance(entry, CorrectionEntry):
        found.marks.append(_mark(f"corrected {entry.outcome}", point, entry, entry.should))
    elif isinstance(entry, AnswerEntry):
        found.marks.append(_mark(entry.answer, point, entry))


def _mark(what: str, point: _Point, entry: EntryView, note: object = None) -> dict[str, Any]:
    """Return a mark at the point's instant; `by` is who answered, `answered` when."""
    return {
        "at": point.at,
        "what": what,
        "agent": entry.agent,
        "tool": entry.tool,
        "run": entry.run,
        "by": entry.actor,
        "answered": entry.at if what not in ("alarm", "held") else None,
        "note": None if note is None else str(note)[:200],
        "seq": entry.seq,
    }


def _instant(text: object, otherwise: int) -> int:
    try:
        return from_iso(str(text)) if text else otherwise
    except ValueError:
        return otherwise


# --- what is shown of it ------------------------------------------------------------------------


def _find_undone(backs: Sequence[tuple[set[str | int], str | int]]) -> set[str | int]:
    """Return the effects that were taken back; an undo that was itself undone took nothing back."""
    undone: set[str | int] = set()
    for effect, back in reversed(backs):
        if not effect & undone:
            undone.add(back)
    return undone


def _judge(points: Sequence[_Point]) -> str | None:
    counts: dict[str, int] = {}
    for point in points:
        for agent, (score, _, _) in point.scores.items():
            counts[agent] = counts.get(agent, 0) + (score is not None)
    return max(sorted(counts), key=lambda agent: counts[agent]) if counts else None


def _point_object(point: _Point, judge: str | None) -> dict[str, Any]:
    score, threshold, label = point.scores.get(judge or "", (None, None, None))
    return {
        "at": point.at, "value": point.value, "score": score, "threshold": threshold,
        "label": label, "event": point.event,
    }  # fmt: skip


def _thin_points(points: Sequence[_Point], judge: str | None, most: int) -> list[_Point]:
    """Return the points, or of each of equal stretches of time the extreme ones."""
    if len(points) <= most:
        return list(points)
    stretches = most // 3
    first, span = points[0].at, max(1, points[-1].at - points[0].at)
    filled: dict[int, list[_Point]] = {}
    for point in points:
        filled.setdefault(min(stretches - 1, (point.at - first) * stretches // span), []).append(
            point
        )
    thinned: list[_Point] = []
    for part in filled.values():
        extremes = {
            id(chosen): chosen
            for chosen in (
                min(part, key=_value),
                max(part, key=_value),
                max(part, key=lambda point: point.scores.get(judge or "", (0,))[0] or 0.0),
            )
        }
        thinned += sorted(extremes.values(), key=lambda point: point.at)
    return thinned


def _value(point: _Point) -> float:
    return point.value or 0.0


def _gaps(points: Sequence[_Point]) -> list[dict[str, int]]:
    """Return the pauses that are much longer than the usual step."""
    steps = [after.at - before.at for before, after in pairwise(points)]
    usual = statistics.median([step for step in steps if step > 0] or [0])
    return [
        {"from": before.at, "to": after.at}
        for before, after in pairwise(points)
        if usual and after.at - before.at > _GAP_STEPS * usual
    ][-_MAX_MARKS:]


def _incidents(spans: Sequence[_IncidentEnd], end: int) -> list[dict[str, Any]]:
    """Return incidents by their beginning; one that its agent did not close lasts to the end."""
    found: list[dict[str, Any]] = []
    last: dict[str, dict[str, Any]] = {}
    for span in sorted(spans, key=lambda span: (span.at, span.seq)):
        if span.kind == "open" and span.agent not in last:
            one = {"from": span.at, "to": end, "agent": span.agent}
            last[span.agent] = {**one, "opened_by": span.run, "closed_by": None}
            found.append(last[span.agent])
        elif span.kind == "close" and span.agent in last:
            last.pop(span.agent).update(to=span.at, closed_by=span.run)
    return found[-_MAX_MARKS:]
