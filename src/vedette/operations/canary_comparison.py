"""Canary comparison: whether a canary release does worse than the one beside it, by key.

Which side a key is on is dealt by a hash, whatever the key is like. So for a canary that is no
worse, the number of its keys that show something is hypergeometric, and Fisher's exact test,
one-sided, is exact (R. A. Fisher, *The Design of Experiments*, 1935, §21; as a test of
randomisation: P. Rosenbaum, *Observational Studies*, 2nd ed., §2.4). A key is marked at most once
for each measure: what one busy key does over and over is one observation, as it was dealt once.

A cost marks a key whose mean a run is more than twice the lower quartile of all keys, of both
sides: a threshold that does not depend on the sides leaves the test exact, and a little more is
no alarm. Where keys cost nothing that quartile may be 0, and hides what the others cost: so the
lower quartile of the keys that cost anything makes a second mark, and the two share what the
measure may spend (Bonferroni).

The test is made when the observations of both sides together reach 32, 64, 128 …. Look k may spend
ALPHA / measures / (k(k+1)) of false alarm on each measure, which sums to ALPHA over all looks
and measures, however long it goes on (Boole's inequality).

What no look could find is no proof: `Look.can_find_fault` says whether a canary that fails on each
of its keys, and only there, would be found. The first MAX_KEYS keys are compared, and no others:
what a look costs is bounded so, and the runs of other keys are counted (`Look.others`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

COSTS = ("actions", "model_calls", "tokens", "money_micros")
MARKS = ("errors", "holds", "corrections")
MEASURES = (*MARKS, *COSTS)

ALPHA = 0.05
FIRST_LOOK = 32
COST_FACTOR = 2
MAX_KEYS = 20_000


class KeyTally(Struct):
    """What is known of one key: its side, runs, marks (of MARKS) and spend (of COSTS)."""

    is_canary: bool
    runs: int = 0
    marks: set[str] = field(default_factory=set)
    spent: dict[str, int] = field(default_factory=dict)


class SideTally(Struct, frozen=True):
    """One side of a canary: its keys, its runs, and how many keys each measure marks."""

    keys: int
    runs: int
    marked: Mapping[str, int]
    spent: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return {"keys": self.keys, "runs": self.runs, "marked": dict(self.marked),
                "spent": dict(self.spent)}  # fmt: skip


class Look(Struct, frozen=True):
    """One look at a canary. `fault` is the measure that aborts it, None if none does.

    `probabilities` are, for each measure, how likely so many marked keys of the canary are if
    it is no worse; `bound` is what each is compared with. `can_find_fault` says whether the canary
    had keys enough for one that fails on each of them to be found. `others` are the runs of keys
    beyond MAX_KEYS, which are not compared.
    """

    number: int
    bound: float
    canary: SideTally
    baseline: SideTally
    probabilities: Mapping[str, float]
    fault: str | None
    can_find_fault: bool
    others: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return it as `--json` prints it, and as an entry's body keeps it: with no fraction."""
        return {
            "look": self.number,
            "bound_millionth": round(self.bound * 1e6),
            "probability_millionth": {n: round(p * 1e6) for n, p in self.probabilities.items()},
            "canary_side": self.canary.to_json(),
            "baseline_side": self.baseline.to_json(),
            "fault": self.fault,
            "can_find_fault": self.can_find_fault,
            "others": self.others,
        }


class Comparison(Struct):
    """What was observed of both sides of one canary; `has_key` says which are the canary's."""

    has_key: Callable[[str], bool]
    keys: dict[str, KeyTally] = field(default_factory=dict)
    observations: int = 0
    looks: int = 0
    others: int = 0
    _preview: Look | None = None

    def count_run(self, key: str) -> None:
        """Take in that a run of a key was thought, or given up before."""
        if (tally := self._tally(key)) is not None:
            tally.runs += 1
            self.observations += 1
        else:
            self.others += 1
            self._preview = self._preview and replace(self._preview, others=self.others)

    def mark(self, key: str, measure: str) -> None:
        """Take in that a key showed what one of MARKS counts."""
        if (tally := self._tally(key)) is not None:
            tally.marks.add(measure)
            self.observations += 1

    def spend(self, key: str, unit: str, amount: int) -> None:
        """Take in what a run of a key spent of one of COSTS."""
        if (tally := self._tally(key)) is not None:
            tally.spent[unit] = tally.spent.get(unit, 0) + amount

    def _tally(self, key: str) -> KeyTally | None:
        found = self.keys.get(key)
        if found is None:
            if len(self.keys) >= MAX_KEYS:
                return None
            found = self.keys[key] = KeyTally(self.has_key(key))
        self._preview = None
        return found

    @property
    def is_due(self) -> bool:
        """Say whether so much was observed that the next look is to be made."""
        return self.observations >= FIRST_LOOK << self.looks

    def look(self) -> Look:
        """Make the next look, which spends its part of the false alarms."""
        look = self.preview()
        self.looks += 1
        self._preview = None
        return look

    def preview(self) -> Look:
        """Return what the next look would find by now; to be acted on only if it is made."""
        if self._preview is None:
            self._preview = self._compare(self.looks + 1)
        return self._preview

    def _compare(self, number: int) -> Look:
        tested = {key for key, tally in self.keys.items() if tally.runs or tally.marks}
        dealt = {key for key in tested if self.keys[key].is_canary}
        probabilities: dict[str, float] = {}
        marked: dict[str, set[str]] = {}
        for measure in MEASURES:
            marks = self._find_marks(measure)
            tails = [
                hypergeometric_tail(len(keys & dealt), len(dealt), len(keys), len(tested))
                for keys in marks
            ]
            least = min(range(len(marks)), key=tails.__getitem__)
            probabilities[measure] = min(1.0, len(marks) * tails[least])
            marked[measure] = marks[least]
        bound = ALPHA / len(MEASURES) / (number * (number + 1))
        worst = min(probabilities, key=lambda measure: probabilities[measure])
        return Look(
            number,
            bound,
            self._add_up(dealt, marked),
            self._add_up(tested - dealt, marked),
            probabilities,
            worst if probabilities[worst] <= bound else None,
            hypergeometric_tail(len(dealt), len(dealt), len(dealt), len(tested)) <= bound,
            self.others,
        )

    def _find_marks(self, measure: str) -> list[set[str]]:
        """Return the keys that a measure marks: for a cost by each of its two thresholds."""
        if measure in MARKS:
            return [{key for key, tally in self.keys.items() if measure in tally.marks}]
        means = {
            key: tally.spent.get(measure, 0) / tally.runs
            for key, tally in self.keys.items()
            if tally.runs
        }
        ordered = sorted(means.values())
        costly = [mean for mean in ordered if mean > 0]
        quartiles = dict.fromkeys(part[len(part) // 4] for part in (ordered, costly) if part)
        return [
            {key for key, mean in means.items() if mean > COST_FACTOR * quartile}
            for quartile in quartiles
        ] or [set()]

    def _add_up(self, keys: set[str], marked: Mapping[str, set[str]]) -> SideTally:
        tallies = [self.keys[key] for key in keys]
        spent = {unit: sum(one.spent.get(unit, 0) for one in tallies) for unit in COSTS}
        counts = {measure: len(found & keys) for measure, found in marked.items()}
        return SideTally(len(keys), sum(one.runs for one in tallies), counts, spent)


def hypergeometric_tail(found: int, drawn: int, marked: int, total: int) -> float:
    """Return how likely at least `found` marked ones are among `drawn` of `total`, of which
    `marked` are.
    """
    if found <= 0:
        return 1.0
    whole = _log_choose(total, drawn)
    return min(1.0, math.fsum(
        math.exp(_log_choose(marked, n) + _log_choose(total - marked, drawn - n) - whole)
        for n in range(found, min(marked, drawn) + 1)
        if drawn - n <= total - marked
    ))  # fmt: skip


def _log_choose(total: int, drawn: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(drawn + 1) - math.lgamma(total - drawn + 1)
