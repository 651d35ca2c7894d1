"""Side features: what an example bank's kernel has beside the words, facts and dense vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Floats = npt.NDArray[np.float64]

_CLIP = 3.0  # deviations beyond which a fact says no more


class Extra(Struct, frozen=True):
    """Facts of a case that go into the kernel beside its words.

    `read(text, facts)` returns as many numbers for every case; NaN is unknown. `weight` is what
    equal facts add to the kernel, where equal words add 1.
    """

    read: Callable[[str, Mapping[str, Any]], Sequence[float]]
    weight: float = 0.25


class Dense(Struct, frozen=True):
    """An optional encoder: `encode` returns one vector of unit length per text."""

    encode: Callable[[Sequence[str]], Floats]
    weight: float = 10.0


class Facts:
    """The facts of all examples of a bank, standardised by what it was built of."""

    def __init__(self, extra: Extra, cases: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Read every case once. An unknown fact counts as the mean of the known ones."""
        self._extra = extra
        raw = np.array([extra.read(text, facts) for text, facts in cases], dtype=float)
        known = np.isfinite(raw)
        counts = np.maximum(1, known.sum(axis=0))
        self._middle: Floats = np.where(known, raw, 0).sum(axis=0) / counts
        difference = np.where(known, raw - self._middle, 0)
        self._spread: Floats = np.sqrt((difference**2).sum(axis=0) / counts)
        self._spread[self._spread < 1e-9] = 1.0
        # What no example knows cannot tell them apart.
        self._spread[~known.any(axis=0)] = np.inf
        self._rows: Floats = np.clip(difference / self._spread, -_CLIP, _CLIP)

    def standardise(self, text: str, facts: Mapping[str, Any]) -> Floats:
        """Return the standardised facts of one case."""
        raw = np.array(self._extra.read(text, facts), dtype=float)
        difference = np.where(np.isfinite(raw), raw - self._middle, 0) / self._spread
        found: Floats = np.clip(difference, -_CLIP, _CLIP)
        return found

    def similar(self, facts: Floats) -> Floats:
        """Return the kernel v exp(-|s - s'|^2 / 2) of standardised facts with every example."""
        distance = ((self._rows - facts) ** 2).mean(axis=1)
        found: Floats = self._extra.weight * np.exp(-0.5 * distance)
        return found

    def kernel(self) -> Floats:
        """Return that kernel of all examples with one another."""
        rows = self._rows
        square = (rows**2).mean(axis=1)
        distance = square[:, None] + square[None] - 2 / rows.shape[1] * (rows @ rows.T)
        found: Floats = np.exp(-0.5 * np.maximum(distance, 0))
        found *= self._extra.weight
        return found

    def add(self, facts: Floats) -> None:
        """Put the standardised facts of one more example behind the others."""
        self._rows = np.vstack((self._rows, facts))

    def remove(self, place: int) -> None:
        """Take the facts of the example at `place` out."""
        self._rows = np.delete(self._rows, place, axis=0)
