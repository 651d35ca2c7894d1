"""Seeded metric series with known faults: for evals, samples and tests.

The noise is a sum of twelve uniform draws less six (deviation one, no logarithm or cosine), so
that a series is the same to the last digit on every machine.
"""

from __future__ import annotations

import math
import random  # noqa: TID251 (of a given seed)
from collections.abc import Mapping
from typing import Any

_KEYS = frozenset(
    {
        *("n", "seed", "base", "noise", "memory", "digits"),
        *("cycle", "cycle_size", "drift", "drift_at"),
        *("shift_at", "shift_until", "shift", "spike_at", "spike_rows", "spike"),
        *("flat_at", "flat_until"),
    }
)


def generate(spec: Mapping[str, Any]) -> list[float]:
    """Return a seeded metric series for judges' evals, as `spec` says, to `digits` (3) decimals.

    n             rows
    seed          of the noise (1)
    base, noise   level, and deviation of the noise (0, 1); `memory` 0..1 is how much of the noise
                  of one row lasts to the next (0)
    cycle         rows of a sine of height `cycle_size`
    shift_at      from this row on, up to `shift_until`, the level is higher by `shift`
    spike_at      from this row on, for `spike_rows` (1) rows, the value is higher by `spike`
    drift_at      from this row on every row is higher by `drift` than the one before
    flat_at       from this row on, up to `flat_until`, the value sticks

    Rows count from 0. Raises ValueError for an unknown key or a missing `n`.
    """
    unknown = sorted(set(spec) - _KEYS)
    if unknown:
        raise ValueError(
            f"series: unknown key {unknown[0]!r}; known are {', '.join(sorted(_KEYS))}"
        )
    if not isinstance(spec.get("n"), int):
        raise ValueError("series: 'n', the number of rows, is missing")
    count: int = spec["n"]
    get = {key: float(spec.get(key, 0.0)) for key in _KEYS}
    digits = int(spec.get("digits", 3))
    noise = float(spec.get("noise", 1.0))
    spike_rows = int(spec.get("spike_rows", 1))
    draw = random.Random(int(spec.get("seed", 1)))  # noqa: S311  (a test series, not a secret)
    fresh = math.sqrt(1.0 - get["memory"] ** 2)
    lasting = 0.0
    values: list[float] = []
    for row in range(count):
        lasting = get["memory"] * lasting + fresh * (sum(draw.random() for _ in range(12)) - 6.0)
        value = get["base"] + noise * lasting
        if get["cycle"]:
            value += get["cycle_size"] * math.sin(2.0 * math.pi * row / get["cycle"])
        if _is_within(row, spec.get("shift_at"), spec.get("shift_until", count)):
            value += get["shift"]
        spike_at = spec.get("spike_at")
        if spike_at is not None and _is_within(row, spike_at, spike_at + spike_rows):
            value += get["spike"]
        drift_at = spec.get("drift_at")
        if drift_at is not None and row >= drift_at:
            value += get["drift"] * (row - drift_at + 1)
        if values and _is_within(row, spec.get("flat_at"), spec.get("flat_until", count)):
            value = values[-1]
        values.append(round(value, digits))
    return values


def _is_within(row: int, start: int | None, end: int) -> bool:
    return start is not None and start <= row < end
