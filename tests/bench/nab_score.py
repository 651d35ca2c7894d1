"""Score the rank detector on the developer files of NAB: `VEDETTE_DATA=... python nab_score.py`.

The official rules written anew: labelled windows, scaled sigmoid, probation of 15 % of a file but
at most 750 rows, the best detection of a window counts, a miss costs, null detector = 0, perfect
detector = 100. One threshold for all files and profiles, no file minimum, maximum or length.
Also fits the calibration curve that agents/anomaly_detection/agent.yaml carries.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vedette.judging.calibration import Curve, expected_error, fit_curve
from vedette.judging.ranks import THRESHOLD, Ranks, Reading

# profile: weight of a miss, weight of a false row (NAB config/profiles.json; a hit weighs 1)
PROFILES = {"standard": (1.0, 0.11), "low_fp": (1.0, 0.22), "low_fn": (2.0, 0.11)}


@dataclass(frozen=True)
class Series:
    """One file: its values and the windows (first, last row) labelled in it."""

    name: str
    values: tuple[float, ...]
    windows: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Result:
    """The three scores, windows hit, windows there are, rows alarmed outside of any."""

    scores: dict[str, float]
    hit: int
    windows: int
    false_rows: int


def read(root: Path) -> Iterator[Series]:
    """Yield every series under `root`/nab, by name."""
    labels = json.loads((root / "nab/labels/combined_windows.json").read_text())
    for path in sorted((root / "nab/data").glob("*/*.csv")):
        name = f"{path.parent.name}/{path.name}"
        rows = [line.split(",") for line in path.read_text().splitlines()[1:]]
        stamps = [row[0] for row in rows]
        windows = []
        for first, last in labels[name]:
            start = next(i for i, stamp in enumerate(stamps) if stamp >= first[:19])
            end = max(i for i, stamp in enumerate(stamps) if stamp <= last[:19])
            windows.append((start, end))
        yield Series(name, tuple(float(row[1]) for row in rows), tuple(windows))


def sigmoid(place: float) -> float:
    """NAB's scaled sigmoid: near 1 early in a window (-1), 0 at its end, -1 far behind it."""
    return -1.0 if place > 3.0 else 2.0 / (1.0 + math.exp(5.0 * place)) - 1.0


def score(judged: Sequence[tuple[Series, Sequence[int]]]) -> Result:
    """Score alarms (row numbers) per series by the rules above."""
    totals = dict.fromkeys(PROFILES, 0.0)
    hit = windows = false_rows = 0
    for series, alarms in judged:
        probation = int(min(0.15 * len(series.values), 0.15 * 5000))
        best: dict[int, float] = {}
        for row in alarms:
            if row < probation:
                continue
            inside = [n for n, (start, end) in enumerate(series.windows) if start <= row <= end]
            if inside:
                start, end = series.windows[inside[0]]
                worth = sigmoid(-(end - row + 1) / (end - start + 1)) / sigmoid(-1.0)
                best[inside[0]] = max(best.get(inside[0], worth), worth)
                continue
            false_rows += 1
            before = [window for window in series.windows if window[1] < row]
            cost = -1.0
            if before:
                start, end = before[-1]
                cost = sigmoid((row - end) / max(1, end - start))
            for profile, (_, false_weight) in PROFILES.items():
                totals[profile] += cost * false_weight
        hit += len(best)
        windows += len(series.windows)
        for profile, (miss, _) in PROFILES.items():
            totals[profile] += sum(best.values()) - miss * (len(series.windows) - len(best))
    scores = {
        profile: 100.0 * (totals[profile] + miss * windows) / (windows * (1.0 + miss))
        for profile, (miss, _) in PROFILES.items()
    }
    return Result(scores, hit, windows, false_rows)


def run(series: Series) -> list[Reading]:
    """Return the detector's reading of every row."""
    state = Ranks()
    return [state.observe(value) for value in series.values]


def alarms(readings: Sequence[Reading], threshold: float = THRESHOLD) -> list[int]:
    """Return the rows at which the detector rings."""
    return [row for row, reading in enumerate(readings) if reading.alarm(threshold)]


def calibrate(judged: Sequence[tuple[Series, Sequence[Reading]]]) -> tuple[Curve, float]:
    """Return the curve from score to the share of alarms inside a window, and its own error."""
    scores: list[float] = []
    right: list[bool] = []
    for series, readings in judged:
        for row in alarms(readings):
            scores.append(readings[row].score)
            right.append(any(start <= row <= end for start, end in series.windows))
    curve = fit_curve(scores, right)
    return curve, expected_error([curve.at(score) for score in scores], right)


def main() -> int:
    """Print scores, cost and the calibration curve."""
    data = os.environ.get("VEDETTE_DATA")
    if not data:
        print("set VEDETTE_DATA to the folder that holds nab/", file=sys.stderr)
        return 2
    every = list(read(Path(data)))
    start = time.process_time()
    judged = [(series, run(series)) for series in every]
    rows = sum(len(series.values) for series in every)
    print(f"{rows} rows, {1e6 * (time.process_time() - start) / rows:.1f} us CPU per row")
    for threshold in (3.6, 3.7, THRESHOLD, 3.85, 4.0):
        result = score([(series, alarms(readings, threshold)) for series, readings in judged])
        shown = " / ".join(f"{value:.1f}" for value in result.scores.values())
        print(
            f"threshold {threshold}: {shown} (standard / low FP / low FN), "
            f"{result.hit} of {result.windows} windows, {result.false_rows} false rows"
        )
    curve, error = calibrate(judged)
    points = ", ".join(f"[{at:.2f}, {share:.2f}]" for at, share in curve.points)
    print(f"calibration {points}; error on the same files {error:.3f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
