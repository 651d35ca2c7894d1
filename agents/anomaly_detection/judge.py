"""The judge of metric streams: opens, strengthens and ends one incident per series."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vedette.judging import Briefing, Event, Judgement, Memory, Proposal, Ref, metric_value
from vedette.judging import Judge as Base
from vedette.judging.calibration import Curve
from vedette.judging.rank_anomaly import CALM_ROWS, PAUSE, VIEWS, WARM_UP, Ranks, Reading, hour_of

SERIES = Ref("/event/subject")
AT = Ref("/event/time")
ONCALL = Ref("/registry/webhooks/oncall")
EARLIER = b"VRK1"


class Judge(Base):
    """Says what the newest row of a series means for the series' incident.

    The state is what the series looked like (`Ranks`); whether there is an incident is the row
    that the fleet keeps. Memories are cited to whoever reads the incident; no threshold follows
    from them.
    """

    def __init__(self, charter: Mapping[str, Any], lessons: Sequence[Memory]) -> None:
        super().__init__(charter, lessons)
        self.threshold = _number(charter, "threshold")
        self.calm_below = _number(charter, "calm_below")
        self.curve = Curve.read(charter["confidence"])
        self.surer_by = _number(charter, "surer_by")
        self.over = _number(charter, "confidence_over")
        self.quiet = _number(charter, "confidence_quiet")

    def blank(self) -> Ranks:
        return Ranks(self.threshold)

    def observe(self, state: Ranks, event: Event) -> Reading | None:
        value = metric_value(event.data)
        return None if value is None else state.observe(value, hour_of(event.time))

    def dump(self, state: Ranks) -> bytes:
        return state.dump()

    def load(self, blob: bytes) -> Ranks:
        # What an earlier form of the judge knew does not fit: the series warms up again.
        return self.blank() if blob.startswith(EARLIER) else Ranks.load(blob, self.threshold)

    def judge(self, seen: Reading | None, briefing: Briefing) -> Judgement:
        if seen is None or not briefing.event.subject or not briefing.event.time:
            return Judgement("unreadable", 1.0, detail={"why": _unreadable(seen, briefing.event)})
        row = briefing.row if briefing.row.get("state") == "open" else {}
        if seen.alarm and not row:
            return self._opened(seen, briefing)
        if seen.alarm and seen.score > float(row["peak"]):
            return self._stronger(seen, briefing)
        if row and seen.rows <= max(WARM_UP, CALM_ROWS):
            # A state that was lost or is of an earlier form: who does not know the series cannot
            # say that it is calm again.
            return self._say(seen, briefing, "warming up", 1.0)
        if row and seen.calm_peak < self.calm_below:
            return self._ended(seen, briefing, row)
        if row:
            return self._say(seen, briefing, "ongoing", self.curve.at(float(row["peak"])))
        if seen.rows <= WARM_UP:
            return self._say(seen, briefing, "warming up", 1.0)
        return self._say(seen, briefing, "quiet", self.quiet)

    def _opened(self, seen: Reading, briefing: Briefing) -> Judgement:
        confidence = self.curve.at(seen.score)
        if seen.last and self._step(seen.score) == self._step(seen.last):
            # Asked for within the pause and not opened: a person has it, or said no.
            return self._say(seen, briefing, "asked already", confidence)
        why = self._why(seen)
        summary = f"{briefing.event.subject} left its history: {why}{_known(briefing)}"
        proposals = (
            Proposal("incident.open", {**_facts(seen), "summary": summary}, why, confidence),
            _to_proposal("open", summary, why, confidence),
        )
        return self._say(seen, briefing, "alarm", confidence, proposals)

    def _step(self, score: float) -> int:
        # Steps and not a difference: a score that creeps up still crosses the policy's bar once.
        return int(self.curve.at(score) / self.surer_by + 1e-9)

    def _stronger(self, seen: Reading, briefing: Briefing) -> Judgement:
        confidence = self.curve.at(seen.score)
        proposals = (Proposal("incident.update", _facts(seen), self._why(seen), confidence),)
        return self._say(seen, briefing, "stronger", confidence, proposals)

    def _ended(self, seen: Reading, briefing: Briefing, row: Mapping[str, Any]) -> Judgement:
        why = f"{CALM_ROWS} rows below score {self.calm_below:g}"
        summary = (
            f"{briefing.event.subject} is calm again at {seen.value:.6g}: {why}; "
            f"open since {row['opened_at']}, highest score {row['peak']}"
        )
        proposals = (
            Proposal("incident.close", _facts(seen), why, self.over),
            _to_proposal("closed", summary, why, self.over),
        )
        return self._say(seen, briefing, "over", self.over, proposals)

    def _why(self, seen: Reading) -> str:
        first = max(range(len(VIEWS)), key=lambda view: seen.surprises[view])
        return (
            f"value {seen.value:.6g}, score {seen.score:.2f} at threshold {seen.needed:.2f}, "
            f"most by its {VIEWS[first]} "
            f"({seen.ranks[first]} of {seen.compared[first]} rows as extreme)"
        )

    def _say(
        self,
        seen: Reading,
        briefing: Briefing,
        label: str,
        confidence: float,
        proposals: tuple[Proposal, ...] = (),
    ) -> Judgement:
        return Judgement(
            label, confidence, proposals, seen.score, seen.needed, self._detail(seen, briefing)
        )

    def _detail(self, seen: Reading, briefing: Briefing) -> dict[str, Any]:
        views = {
            name: {
                "value": seen.values[view],
                "as_extreme": seen.ranks[view],
                "compared": seen.compared[view],
                "surprise": round(seen.surprises[view], 4),
            }
            for view, name in enumerate(VIEWS)
        }
        return {
            "value": seen.value,
            "views": views,
            "rows": seen.rows,
            "threshold": {
                "plain": self.threshold,
                "raised": round(seen.needed - self.threshold, 4),
            },
            "highest_before": {"rows": PAUSE, "score": round(seen.peak, 4)},
            "calm": {"rows": CALM_ROWS, "highest": round(seen.calm_peak, 4)},
            "memories": [memory.cite() for memory in briefing.memories],
        }


def _facts(seen: Reading) -> dict[str, Any]:
    return {"series": SERIES, "score": f"{seen.score:.3f}", "value": repr(seen.value), "at": AT}


def _to_proposal(state: str, summary: str, why: str, confidence: float) -> Proposal:
    args = {"series": SERIES, "state": state, "summary": summary, "endpoint": ONCALL}
    return Proposal("incident.notify", args, why, confidence)


def _known(briefing: Briefing) -> str:
    """Return what reviewed memories say of this kind of series, cited: for people to read."""
    words = set(re.split(r"[^a-z0-9]+", str(briefing.event.subject).lower()))
    texts = [
        f" [{memory.cite()}: {' '.join(memory.text.split())[:200]}]"
        for memory in briefing.memories
        if words.intersection(memory.topics)
    ]
    return "".join(texts[:2])


def _unreadable(seen: Reading | None, event: Event) -> str:
    if seen is None:
        return "data has no finite number 'value'"
    return f"the event has no {'time' if event.subject else 'subject'}"


def _number(charter: Mapping[str, Any], name: str) -> float:
    return float(str(charter[name]))
