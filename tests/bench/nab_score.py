"""Fit the calibration that agents/anomaly_detection/agent.yaml carries, on the files of NAB.

`VEDETTE_DATA=... python -m tests.bench.nab_score`; the rules and the scores are those of
tools/eval_real (`make eval-real`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tools.eval_real.nab_score import Series, read

from vedette.judging.calibration import Curve, expected_error, fit_curve
from vedette.judging.rank_anomaly import CALM_ROWS, PAUSE, WARM_UP, Ranks, Reading, hour_of

CALM_BELOW = 2.5

Judged = Sequence[tuple[Series, Sequence[Reading]]]


class Fitted(NamedTuple):
    """The curve from score to the share of alarms inside a window, and its error on these files.

    `calm` is how many calm spells there were after an alarm and how many of them no alarm ended
    within CALM_ROWS rows; `quiet` the share of rows without an alarm outside of every window.
    """

    curve: Curve
    alarms: int
    error: float
    calm: tuple[int, int]
    quiet: float


def observe(series: Series) -> list[Reading]:
    """Return the reading of every row."""
    state = Ranks()
    rows = zip(series.values, series.stamps, strict=True)
    return [state.observe(value, hour_of(stamp)) for value, stamp in rows]


def fit(judged: Judged) -> Fitted:
    """Fit everything that the charter says of the judge's confidence."""
    scores: list[float] = []
    right: list[bool] = []
    spells = lasting = quiet = outside = 0
    for series, readings in judged:
        inside = [False] * len(readings)
        for start, end in series.windows:
            inside[start : end + 1] = [True] * (end + 1 - start)
        waiting = False
        for row, reading in enumerate(readings):
            if reading.alarm:
                scores.append(reading.score)
                right.append(inside[row])
                waiting = True
            elif reading.rows > WARM_UP:
                quiet += 1
                outside += not inside[row]
            if waiting and reading.calm_peak < CALM_BELOW:
                waiting = False
                spells += 1
                lasting += not any(one.alarm for one in readings[row + 1 : row + 1 + CALM_ROWS])
    curve = fit_curve(scores, right)
    error = expected_error([curve.at(score) for score in scores], right)
    return Fitted(curve, len(scores), error, (spells, lasting), outside / max(1, quiet))


def main() -> int:
    """Print what belongs into agent.yaml."""
    data = os.environ.get("VEDETTE_DATA")
    if not data:
        print("set VEDETTE_DATA to the folder that holds nab/", file=sys.stderr)
        return 2
    series, _ = read(Path(data))
    fitted = fit([(one, observe(one)) for one in series])
    points = ", ".join(f"[{at:.2f}, {share:.2f}]" for at, share in fitted.curve.points)
    print(f"{fitted.alarms} alarms: {points}; error on the same files {fitted.error:.3f}")
    spells, lasting = fitted.calm
    print(
        f"{lasting} of {spells} calm spells were not followed by an alarm within {CALM_ROWS} rows"
    )
    print(f"{fitted.quiet:.3f} of the rows without an alarm lie outside every window")
    print(f"(an alarm beats {PAUSE} rows; judged from row {WARM_UP} on)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
