"""A promise held against what was measured: met, or not met. Benches print it and end with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """`value` must be at most `bar`, or at least if `least`; both in `unit`."""

    what: str
    value: float
    bar: float
    unit: str = ""
    least: bool = False

    @property
    def met(self) -> bool:
        """Say whether the promise is kept. What is no number keeps none."""
        return self.value >= self.bar if self.least else self.value <= self.bar

    def line(self) -> str:
        """Return it for people."""
        unit = f" {self.unit}" if self.unit else ""
        sign, word = ">=" if self.least else "<=", "met" if self.met else "NOT MET"
        return f"  {word:<8} {self.what}: {self.value:,.2f}{unit} {sign} {self.bar:,.2f}{unit}"


def print_verdicts(verdicts: Sequence[Verdict]) -> int:
    """Print the verdicts; return what the bench ends with: 0 if all are met, else 1."""
    for verdict in verdicts:
        print(verdict.line(), flush=True)
    return 0 if all(verdict.met for verdict in verdicts) else 1
