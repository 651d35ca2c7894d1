"""Histories of the whole cluster in the gate: many short ones, and the same bytes of the same seed.

`make simulate` plays as many as there is time for, larger ones, and goes on where it was.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.simulation.plan import (
    SHORT,
    TINY,
    Delivery,
    Operation,
    Plan,
    from_json,
    make_plan,
)  # fmt: skip
from tests.simulation.play import player
from tests.simulation.search import ROOT, search

FOUND = sorted((Path(__file__).parent / "found").glob("*.json"))
# So many of each; on PostgreSQL with two workers, as three need more than a gate has.
HISTORIES = [("sqlite", 48), ("postgresql", 16), ("sqlite", 160), ("postgresql", 40)]
_BYTES = """\
import sys
from tests.simulation.plan import SHORT, make_plan
from tests.simulation.play import player
with player() as play:
    for seed in range({first}, 43):
        for store in ("sqlite", "postgresql"):
            print(seed, store, play(make_plan(seed, SHORT, store)).digest)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("store", "many"), HISTORIES)
def test_short_histories_keep_every_promise(store: str, many: int) -> None:
    seeds = range(many)
    results = list(search(seeds, TINY, store=store, workers=2, processes=1))
    assert sorted(one.seed for one in results) == list(seeds)
    wrong = {one.seed: one.wrong for one in results if one.wrong}
    kinds = Counter(kind for found in wrong.values() for kind, _ in found)
    assert not wrong, f"{kinds}, in {len(wrong)} of {len(seeds)}: {dict(sorted(wrong.items())[:3])}"


@pytest.mark.slow
@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_what_was_found_once_is_not_found_again(path: Path) -> None:
    plan = from_json(path.read_text("utf-8"))
    with player() as play:
        assert play(plan).wrong == []


@pytest.mark.slow
def test_a_seed_gives_the_same_bytes_in_another_process_under_another_hash_seed() -> None:
    """Whatever that process did before: the second plays other histories first."""
    results = []
    for hash_seed, first in (("0", 40), ("4711", 39)):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        results.append(
            subprocess.run(
                [sys.executable, "-c", _BYTES.format(first=first)],
                cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
            ).stdout.splitlines()
        )  # fmt: skip
    assert len(results[0]) == 6
    assert results[0] == results[1][2:]


def test_seeds_differ() -> None:
    """The digest is of something: other seeds, and other latencies alone, give other bytes."""
    plan = make_plan(3, SHORT, "sqlite")
    with player() as play:
        first = play(plan)
        assert play(plan).digest == first.digest
        assert play(Plan(4, plan.store, plan.workers, plan.operations)).digest != first.digest
    assert len(first.history.entries) > 50


def test_where_a_history_lies_is_not_in_its_bytes() -> None:
    """Of this seed a worker does not come up, on a full disk: the error names its file."""
    digests = set()
    for _ in range(2):
        with player() as play:
            played = play(make_plan(180, SHORT))
        assert any("the disk is full" in line for line in played.lines)
        digests.add(played.digest)
    assert len(digests) == 1


def test_what_a_dead_agent_process_was_asked_is_not_lost() -> None:
    """It dies of a judgement, a row, a call that may be repeated, and one that may not."""
    event = Delivery("e1", "ant", "k", 1, ("note.add", "wire.send", "bell.ring"))
    unknown = set()
    with player() as play:
        for nth in range(1, 6):
            death = Operation(0.0, "death", "ant", n=nth)
            delivered = Operation(0.1, "deliver", "s", events=(event,))
            played = play(Plan(nth, "sqlite", 1, (death, delivered), founded=True))
            assert played.wrong == []
            assert any("dies of its" in line for line in played.lines)
            kinds = {(one["kind"], one.get("tool")) for one in played.history.entries}
            assert ("effect.done", "note.add") in kinds
            unknown |= {nth for kind, tool in kinds if kind == "effect.unknown"}
    assert unknown
