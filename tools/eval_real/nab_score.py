"""The rules of NAB written anew: windows, scaled sigmoid, probation, three cost profiles.

Lavin and Ahmad, "Evaluating real-time anomaly detection algorithms" (2015), and the harness that
goes with it: the best detection of a window counts and a miss costs; a false row costs by how far
behind the last window it lies; the first 15 % of a file, at most 750 rows, are not scored; the
null detector is 0 and the perfect one 100. Costs are read from `profiles.json` where it is there.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vedette.domain.base.errors import BadCommand

# Thresholds are looked for by steps of this size.
STEP = 0.04

# Columns of every table: the profile's name in profiles.json, and what is printed.
PROFILES = {
    "standard": "Standard",
    "reward_low_FP_rate": "low FP",
    "reward_low_FN_rate": "low FN",
}


@dataclass(frozen=True, slots=True)
class Costs:
    """What a hit, a miss and a false row weigh in one profile."""

    hit: float
    miss: float
    false: float


@dataclass(frozen=True, slots=True)
class Series:
    """One file: its values, its time stamps, and the windows (first and last row) in it."""

    name: str
    values: tuple[float, ...]
    stamps: tuple[str, ...]
    windows: tuple[tuple[int, int], ...]

    @property
    def folder(self) -> str:
        """Return the folder that the file lies in."""
        return self.name.partition("/")[0]

    @property
    def probation(self) -> int:
        """Return how many rows at the beginning are not scored."""
        return int(min(0.15 * len(self.values), 0.15 * 5000))


@dataclass(frozen=True, slots=True)
class Alarm:
    """A row at which a detector with a low enough threshold would ring, and its score there."""

    row: int
    score: float


@dataclass(frozen=True, slots=True)
class Rung:
    """One file's alarms at one threshold, scored.

    `worth` sums the sigmoid of the best alarm of each window hit, `cost` that of the false rows
    (negative); `delays` are rows from the beginning of a window to its first alarm.
    """

    windows: int
    hit: int
    worth: float
    false: int
    cost: float
    alarms: int
    rows: int
    delays: tuple[int, ...] = ()


def plainly(alarms: Sequence[Alarm], threshold: float) -> list[int]:
    """Return the rows of the alarms that reach a threshold."""
    return [alarm.row for alarm in alarms if alarm.score >= threshold]


@dataclass(slots=True)
class Judged:
    """A detector over all files: per file the rows that might ring, in order.

    `rows` says which of one file's do at a threshold.
    """

    series: tuple[Series, ...]
    alarms: tuple[tuple[Alarm, ...], ...]
    costs: Mapping[str, Costs]
    rows: Callable[[Sequence[Alarm], float], list[int]] = plainly
    _known: dict[float, list[Rung]] = field(default_factory=dict)

    def at(self, threshold: float) -> list[Rung]:
        """Return each file's score at a threshold."""
        if threshold not in self._known:
            self._known[threshold] = [
                ring(one, self.rows(alarms, threshold))
                for one, alarms in zip(self.series, self.alarms, strict=True)
            ]
        return self._known[threshold]


def read(root: Path) -> tuple[tuple[Series, ...], dict[str, Costs]]:
    """Return every labelled series under `root`/nab by name, and the costs of the profiles.

    Raises BadCommand if there is no label, or a labelled file is not as the layout says.
    """
    nab = root / "nab"
    labels = _json(nab / "labels" / "combined_windows.json")
    found = []
    for path in sorted((nab / "data").glob("*/*.csv")):
        name = f"{path.parent.name}/{path.name}"
        if name in labels:
            found.append(_series(path, name, labels[name]))
    if not found:
        raise BadCommand("no labelled series", where=str(nab / "data"), mend="set VEDETTE_DATA")
    profiles = _json(nab / "profiles.json")
    try:
        matrices = {name: profiles[name]["CostMatrix"] for name in PROFILES}
        costs = {
            name: Costs(float(m["tpWeight"]), float(m["fnWeight"]), float(m["fpWeight"]))
            for name, m in matrices.items()
        }
    except (KeyError, TypeError, ValueError) as error:
        raise BadCommand(
            f"no costs of a profile: {error}", where=str(nab / "profiles.json"), mend="fetch NAB's"
        ) from error
    return tuple(found), costs


def _series(path: Path, name: str, labels: Iterable[Sequence[str]]) -> Series:
    try:
        rows = [line.split(",") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
        stamps = tuple(row[0] for row in rows)
        values = tuple(float(row[1]) for row in rows)
        windows = tuple(
            (
                next(row for row, stamp in enumerate(stamps) if stamp >= first[:19]),
                max(row for row, stamp in enumerate(stamps) if stamp <= last[:19]),
            )
            for first, last in labels
        )
    except (OSError, ValueError, IndexError, StopIteration) as error:
        raise BadCommand(f"is no NAB series: {error}", where=str(path), mend="fetch it") from error
    return Series(name, values, stamps, windows)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadCommand(f"cannot be read: {error}", where=str(path), mend="fetch NAB's") from error
    if not isinstance(value, dict):
        raise BadCommand("is no JSON object", where=str(path), mend="fetch NAB's")
    return value


def sigmoid(place: float) -> float:
    """NAB's scaled sigmoid: near 1 early in a window (-1), 0 at its end, -1 far behind it."""
    return -1.0 if place > 3.0 else 2.0 / (1.0 + math.exp(5.0 * place)) - 1.0


def ring(series: Series, rows: Iterable[int]) -> Rung:
    """Score one file's alarms, given by their rows."""
    best: dict[int, float] = {}
    first: dict[int, int] = {}
    false = alarms = 0
    cost = 0.0
    for row in rows:
        if row < series.probation:
            continue
        alarms += 1
        inside = [n for n, (start, end) in enumerate(series.windows) if start <= row <= end]
        if inside:
            number = inside[0]
            start, end = series.windows[number]
            worth = sigmoid(-(end - row + 1) / (end - start + 1)) / sigmoid(-1.0)
            best[number] = max(best.get(number, worth), worth)
            first[number] = min(first.get(number, row - start), row - start)
            continue
        false += 1
        before = [window for window in series.windows if window[1] < row]
        cost += (
            sigmoid((row - before[-1][1]) / max(1, before[-1][1] - before[-1][0]))
            if (before)
            else -1.0
        )
    return Rung(
        windows=len(series.windows),
        hit=len(best),
        worth=sum(best.values()),
        false=false,
        cost=cost,
        alarms=alarms,
        rows=len(series.values) - series.probation,
        delays=tuple(first.values()),
    )


def columns(rung: Sequence[Rung], costs: Mapping[str, Costs]) -> tuple[float, ...]:
    """Return the scores by PROFILES: 0 is silence, 100 the first row of every window and no other.

    NaN without any window.
    """
    windows = sum(one.windows for one in rung)
    if not windows:
        return (math.nan,) * len(PROFILES)
    hit, worth = sum(one.hit for one in rung), sum(one.worth for one in rung)
    cost = sum(one.cost for one in rung)
    scores = []
    for profile in PROFILES:
        at = costs[profile]
        raw = at.hit * worth + at.false * cost - at.miss * (windows - hit)
        scores.append(100.0 * (raw + at.miss * windows) / (windows * (at.hit + at.miss)))
    return tuple(scores)


def interval(
    rung: Sequence[Rung],
    costs: Mapping[str, Costs],
    against: Sequence[Rung] | None = None,
    draws: int = 1000,
    seed: int = 1,
) -> list[tuple[float, float]]:
    """Return the 95 % interval of each column over files drawn with replacement.

    With `against`, that of the difference to another detector on the same files.
    """
    chance = random.Random(seed)  # noqa: S311  (a bootstrap, not a secret)
    drawn = []
    for _ in range(draws):
        files = chance.choices(range(len(rung)), k=len(rung))
        scores = columns([rung[n] for n in files], costs)
        if against is not None:
            other = columns([against[n] for n in files], costs)
            scores = tuple(one - two for one, two in zip(scores, other, strict=True))
        if not math.isnan(scores[0]):
            drawn.append(scores)
    found = []
    for column in range(len(PROFILES)):
        ordered = sorted(one[column] for one in drawn)
        found.append((_quantile(ordered, 0.025), _quantile(ordered, 0.975)))
    return found


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else math.nan


def best_threshold(judged: Judged, without: str | None = None, reach: int = 0) -> float:
    """Return the threshold with the best mean of the columns, from the files of other folders.

    Thresholds go by STEP. With `reach`, that of the best mean over so many steps at either side:
    the middle of a plateau rather than a lucky peak. Of equals the highest. Raises ValueError
    without any alarm.
    """
    places = [n for n, one in enumerate(judged.series) if one.folder != without]
    scores = [alarm.score for n in places for alarm in judged.alarms[n]]
    grid = range(int(min(scores) / STEP), int(max(scores) / STEP) + 2)
    means = []
    for step in grid:
        rung = judged.at(round(step * STEP, 6))
        means.append(sum(columns([rung[n] for n in places], judged.costs)))
    smooth = [
        sum(part) / len(part)
        for part in (means[max(0, n - reach) : n + reach + 1] for n in range(len(means)))
    ]
    best = max(range(len(smooth)), key=lambda n: (smooth[n], n))
    return round(grid[best] * STEP, 6)


def by_folder(judged: Judged, reach: int = 3) -> tuple[list[Rung], dict[str, float]]:
    """Return each file's score at the threshold that the other folders choose, and these."""
    chosen = {
        folder: best_threshold(judged, folder, reach)
        for folder in sorted({one.folder for one in judged.series})
    }
    rung = [judged.at(chosen[one.folder])[n] for n, one in enumerate(judged.series)]
    return rung, chosen
