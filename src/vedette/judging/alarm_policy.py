"""Alarm policy: a threshold, a pause, and less patience with a series that cries wolf.

An alarm has to beat every score of the PAUSE rows before it, and a threshold that each alarm of
the same series raises by RAISE; the raise is forgotten by a factor of e in FORGET rows. So a
stream that is noisy by nature needs more and more to ring again, and one that was quiet for long
rings at the plain threshold.
"""

from __future__ import annotations

import math

# One configuration for all series, chosen on developer files (docs/design/judge-metrics.md).
WARM_UP = 150
PAUSE = 100
RAISE = 0.25
FORGET = 400.0

_KEEP = math.exp(-1.0 / FORGET)


class AlarmThreshold:
    """By how much a series' recent alarms raise its threshold, and which was the last.

    `row` and `score` are of the last alarm: its number counted from 1, 0 for none.
    """

    __slots__ = ("_raise_met", "raised", "row", "score")

    def __init__(self, raised: float = 0.0, row: int = 0, score: float = 0.0) -> None:
        self.raised = raised
        self.row = row
        self.score = score
        self._raise_met = raised

    def observe(self, score: float, peak: float, rows: int, threshold: float) -> bool:
        """Say whether the next row is an alarm, and take it in.

        `peak` is the highest score of the PAUSE rows before, `rows` counts the rows seen, this one
        included. To be called for every row, in order.
        """
        self.raised = self._raise_met = self.raised * _KEEP
        if not (rows > WARM_UP and score >= threshold + self.raised and score > peak):
            return False
        self.raised += RAISE
        self.row, self.score = rows, score
        return True

    def required_score(self, threshold: float) -> float:
        """Return what the last row had to reach."""
        return threshold + self._raise_met

    def last_alarm_score(self, rows: int) -> float:
        """Return the score of the alarm in the PAUSE rows before the next one; 0 if none."""
        return self.score if self.row and rows < self.row + PAUSE else 0.0
