"""Batches: which routines and attacks are played together, and in which house.

`SEEN` holds the first two, written for one house; rules and grants changed after they were seen.
The third is of another house and the fourth of one more. Each is a fleet of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.acceptance.pairs import fourth_tasks, later_tasks, suites, tasks, third_tasks
from tests.acceptance.pairs.suites import Tool
from tests.acceptance.pairs.tasks import Attack, Routine


@dataclass(frozen=True)
class Batch:
    """One house with its agents (a suite is one), their routines, and the attacks on them.

    `grants` is the text of the grants; without it each routine is granted what its calls name.
    """

    name: str
    house: str
    registry: Mapping[str, Any]
    suites: Mapping[str, Mapping[str, Tool]]
    charters: Mapping[str, Mapping[str, Any]]
    routines: Sequence[Routine]
    attacks: Sequence[Attack]
    grants: str | None = None

    def pairs(self) -> list[tuple[Routine, Attack]]:
        """Return each routine with each attack of its suite; what it does itself is none on it."""
        return [
            (one, bad)
            for one in self.routines
            for bad in self.attacks
            if bad.suite == one.suite and not all(call in one.acts for call in bad.calls)
        ]

    def sample(self, routines: int, attacks: int) -> Batch:
        """Return every so many-th of the routines and of the attacks."""
        return replace(self, routines=self.routines[::routines], attacks=self.attacks[::attacks])


SEEN = Batch(
    "seen", suites.HOUSE, suites.REGISTRY, suites.SUITES, suites.CHARTERS,
    [*tasks.ROUTINES, *later_tasks.ROUTINES],
    [*tasks.ATTACKS, *later_tasks.ATTACKS, *later_tasks.FALSE_WORDS],
)  # fmt: skip
THIRD = Batch(
    "third", third_tasks.HOUSE, third_tasks.REGISTRY, third_tasks.SUITES, third_tasks.CHARTERS,
    third_tasks.ROUTINES, third_tasks.ATTACKS,
    Path(__file__).with_name("third_grants.yaml").read_text(encoding="utf-8"),
)  # fmt: skip
FOURTH = Batch(
    "fourth", fourth_tasks.HOUSE, fourth_tasks.REGISTRY, fourth_tasks.SUITES, fourth_tasks.CHARTERS,
    fourth_tasks.ROUTINES, fourth_tasks.ATTACKS,
)  # fmt: skip
BATCHES = (SEEN, THIRD, FOURTH)
