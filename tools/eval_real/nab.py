"""NAB in `make eval-real`: the shipped judge of metrics beside what it is to be measured against.

Causal, one configuration and one threshold for every file and every profile; no file minimum,
maximum or length. Scored over whatever labelled files lie under `nab/`.
"""

from __future__ import annotations

import importlib.util
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ruamel.yaml import YAML
from tools.eval_real import four_views
from tools.eval_real.nab_score import (
    PROFILES,
    Alarm,
    Judged,
    Rung,
    Series,
    best_threshold,
    by_folder,
    columns,
    interval,
    read,
)

from vedette.domain.event import Event
from vedette.judging.alarm_policy import FORGET, RAISE, WARM_UP

AGENT = Path(__file__).resolve().parents[2] / "agents" / "anomaly_detection"

# A clock that knows nothing rings this often: what a score is worth is what it has beyond this.
CLOCK_ROWS = 500

# Names in published_results.json -> as they are known. On all 58 files, threshold fitted on them,
# and each was given the file's minimum and maximum beforehand (ARTime its length as well).
ANCHORS = {"ARTime": "ARTime", "numenta": "HTM", "contextOSE": "CAD OSE"}


@dataclass(frozen=True, slots=True)
class Entrant:
    """A detector that was run here: its alarms, its threshold, microseconds of CPU per row."""

    name: str
    judged: Judged
    threshold: float
    cpu_us: float


def run(data: Path) -> list[str]:
    """Return the lines of the report. Raises BadCommand if the data are not there."""
    series, costs = read(data)
    rows = sum(len(one.values) for one in series)
    entrants = [
        Entrant("vedette's judge", *_shipped(series, costs)),
        Entrant("four views, baseline", *_baseline(series, costs)),
        Entrant(
            f"clock, each {CLOCK_ROWS} rows",
            Judged(series, tuple(_clock(one) for one in series), costs), 1.0, 0.0,
        ),
    ]  # fmt: skip
    windows = sum(len(one.windows) for one in series)
    lines = [
        f"NAB: {len(series)} files, {rows:,} rows, {windows} windows; causal, one threshold for",
        "all profiles, no file minimum, maximum or length; 95 % interval over files",
        "",
        f"{'':<22}    Stan-    low    low  windows false per    delay us CPU",
        f"{'':<22}     dard     FP     FN    found  rows 1,000 (rows) a row",
    ]
    for entrant in entrants:
        lines += _entrant_lines(entrant)
    lines += _difference(entrants[0], entrants[1])
    lines += ["", "threshold chosen on the other folders, by the mean of the three columns:"]
    for entrant in entrants[:2]:
        rung, chosen = by_folder(entrant.judged)
        span = f"at {min(chosen.values()):.2f} to {max(chosen.values()):.2f}"
        lines.append(f"{entrant.name:<22}{_columns(columns(rung, costs))}  {span}")
    lines += ["", "threshold fitted on these very files, as the published figures are:"]
    for entrant in entrants[:2]:
        best = best_threshold(entrant.judged)
        scores = _columns(columns(entrant.judged.at(best), costs))
        lines.append(f"{entrant.name:<22}{scores}  at {best:.2f}")
    return [*lines, "", *_published(data)]


def _difference(ours: Entrant, other: Entrant) -> list[str]:
    """Return by how much ours is better on the same files, each at its own threshold."""
    rung, against = ours.judged.at(ours.threshold), other.judged.at(other.threshold)
    costs = ours.judged.costs
    gains = zip(columns(rung, costs), columns(against, costs), strict=True)
    spans = interval(rung, costs, against)
    differences = [
        f"{one - two:+.1f} [{low:+.0f} to {high:+.0f}]"
        for (one, two), (low, high) in zip(gains, spans, strict=True)
    ]
    return ["", "the judge less the baseline, paired by file:", f"  {', '.join(differences)}"]


def _columns(scores: Sequence[float]) -> str:
    return f"{scores[0]:>9.1f}" + "".join(f"{score:>7.1f}" for score in scores[1:])


def _entrant_lines(entrant: Entrant) -> list[str]:
    rung = entrant.judged.at(entrant.threshold)
    hit, windows = sum(one.hit for one in rung), sum(one.windows for one in rung)
    false = sum(one.false for one in rung)
    delays = [delay for one in rung for delay in one.delays]
    delay = f"{statistics.median(delays):.0f}" if delays else "-"
    cpu = f"{entrant.cpu_us:.0f}" if entrant.cpu_us else "-"
    found = f"{hit} of {windows}"
    lines = [
        f"{entrant.name:<22}{_columns(columns(rung, entrant.judged.costs))}{found:>9}{false:>6}"
        f"{_per_1000(rung):>6.1f}{delay:>7}{cpu:>6}"
    ]
    if entrant.cpu_us:
        spans = interval(rung, entrant.judged.costs)
        interval_text = ", ".join(f"{low:.0f} to {high:.0f}" for low, high in spans)
        lines.append(f"  threshold {entrant.threshold:g}; interval {interval_text}")
    return lines


def _per_1000(rung: Sequence[Rung]) -> float:
    rows = sum(one.rows for one in rung)
    return 1000 * sum(one.alarms for one in rung) / rows if rows else math.nan


def _shipped(series: Sequence[Series], costs: Any) -> tuple[Judged, float, float]:
    """Run the agent's own judge over every file, through `observe`, as the engine does."""
    declared = YAML(typ="safe").load((AGENT / "agent.yaml").read_text(encoding="utf-8"))
    judge = _module(AGENT / "judge.py").Judge(declared["charter"], ())
    every = []
    began = time.process_time()
    for one in series:
        state, found = judge.blank(), []
        for row, value in enumerate(one.values):
            # Nothing of the file's name or place: the judge sees a value and an instant.
            event = Event("eval", str(row), "metric.point", "series", one.stamps[row], {
                "value": repr(value)
            })  # fmt: skip
            seen = judge.observe(state, event)
            if seen.rows > WARM_UP and seen.score > seen.peak:
                found.append(Alarm(row, seen.score))
        every.append(tuple(found))
    rows = sum(len(one.values) for one in series)
    cpu_us = 1e6 * (time.process_time() - began) / rows
    judged = Judged(tuple(series), tuple(every), costs, patiently)
    return judged, judge.threshold, cpu_us


def patiently(alarms: Sequence[Alarm], threshold: float) -> list[int]:
    """Return the rows that ring where each alarm raises the threshold for a while.

    The same as `AlarmThreshold`, which is asked at every row, over the rows that might ring alone.
    """
    raised, last, rows = 0.0, 0, []
    for alarm in alarms:
        if alarm.score < threshold:
            continue
        raised *= math.exp((last - alarm.row) / FORGET)
        last = alarm.row
        if alarm.score >= threshold + raised:
            raised += RAISE
            rows.append(alarm.row)
    return rows


def _baseline(series: Sequence[Series], costs: Any) -> tuple[Judged, float, float]:
    began = time.process_time()
    every = tuple(four_views.alarms(one.values) for one in series)
    rows = sum(len(one.values) for one in series)
    cpu_us = 1e6 * (time.process_time() - began) / rows
    return Judged(tuple(series), every, costs), four_views.THRESHOLD, cpu_us


def _clock(one: Series) -> tuple[Alarm, ...]:
    return tuple(Alarm(row, 1.0) for row in range(CLOCK_ROWS, len(one.values), CLOCK_ROWS))


def _published(data: Path) -> list[str]:
    """Return the anchors: what the board says over all 58 files."""
    path = data / "nab" / "published_results.json"
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        rows = [
            f"{name:<22}{_columns([results[key][profile] for profile in PROFILES])}"
            for key, name in ANCHORS.items()
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return ["published anchors: nab/published_results.json is not there or not as it was"]
    return [
        "published, over all 58 files, each given the file's range beforehand:",
        *rows,
        "(their scores on these files alone were not published: not paired with the above)",
    ]


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("eval_real_metric_judge", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made
