"""The comparison of a canary: an exact test, bounded false alarms, and a bad one is found."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from vedette.domain.agent import Agent, Canary
from vedette.domain.budget import Budget
from vedette.domain.identity import Identity
from vedette.operations.canary_comparison import (
    ALPHA,
    FIRST_LOOK,
    MARKS,
    MEASURES,
    Comparison,
    Look,
    hypergeometric_tail,
)


@pytest.mark.parametrize(
    ("found", "drawn", "marked", "total"),
    [(3, 3, 3, 32), (0, 5, 5, 50), (5, 10, 5, 100), (7, 40, 60, 300), (1, 1, 1, 1), (2, 2, 1, 9),
     (40, 40, 50, 60), (12, 40, 50, 60)],
)  # fmt: skip
def test_the_tail_is_that_of_whole_numbers(found: int, drawn: int, marked: int, total: int) -> None:
    ways = sum(
        math.comb(marked, n) * math.comb(total - marked, drawn - n)
        for n in range(found, min(marked, drawn) + 1)
    )
    exact = ways / math.comb(total, drawn)
    assert hypergeometric_tail(found, drawn, marked, total) == pytest.approx(exact, rel=1e-9)


AGENT = Agent(
    name="worker", title="A worker", owner="desk", identity=Identity("harbour", "worker"),
    release="r", folder="agents/worker", instruction="", charter={}, subscriptions=(),
    schedules=(), tools={}, scopes=(), budget=Budget(), requested_mode="act",
)  # fmt: skip


Act = Callable[[Comparison, str, bool], None]


def play(rng: random.Random, share: float, runs: int, keys: int, act: Act) -> Iterator[Look]:
    """Play one canary; yield its looks, until one aborts it."""
    sides = {f"k{n}": rng.random() < share for n in range(keys)}
    comparison = Comparison(sides.__getitem__)
    for _ in range(runs):
        key = f"k{rng.randrange(keys)}"
        comparison.count_run(key)
        act(comparison, key, sides[key])
        if comparison.is_due:
            look = comparison.look()
            yield look
            if look.fault is not None:
                return


def weather(rng: random.Random, key: str) -> float:
    """Return how troubled a key is by itself: a few are far more than the others."""
    return 0.3 if hash_of(key) % 17 == 0 else 0.02


def hash_of(key: str) -> int:
    return int(key[1:]) * 2654435761 % 2**32


def test_a_canary_that_is_no_worse_is_seldom_aborted() -> None:
    """At most one in twenty, though keys differ, costs have a heavy tail, and some keys are hot."""
    rng = random.Random(20261127)

    def act(comparison: Comparison, key: str, canary: bool) -> None:
        for measure in MARKS:
            if rng.random() < weather(rng, key):
                comparison.mark(key, measure)
        comparison.spend(key, "actions", rng.choice((0, 1, 1, 2)))
        comparison.spend(key, "tokens", int(rng.paretovariate(1.2) * 500))

    played = [
        list(play(rng, rng.choice((0.05, 0.1, 0.3, 0.5)), 1000, rng.choice((20, 100, 400)), act))
        for _ in range(120)
    ]
    aborted = sum(looks[-1].fault is not None for looks in played)
    assert aborted / len(played) <= ALPHA
    # Whoever looks again and again at 5 % each time would abort many: so there was something.
    careless = sum(any(min(look.probabilities.values()) < 0.05 for look in one) for one in played)
    assert careless / len(played) > 3 * ALPHA


BAD: dict[str, Callable[[Comparison, str, bool, random.Random], None]] = {
    "fails always": lambda c, key, bad, rng: c.mark(key, "errors") if bad else None,
    "fails one in four": lambda c, key, bad, rng: (
        c.mark(key, "errors") if rng.random() < (0.25 if bad else 0.01) else None
    ),
    "holds all": lambda c, key, bad, rng: (
        c.mark(key, "holds") if bad or rng.random() < 0.05 else None
    ),
    "five times the cost": lambda c, key, bad, rng: c.spend(
        key, "tokens", (5 if bad else 1) * rng.randrange(800, 1200)
    ),
    "corrected": lambda c, key, bad, rng: (
        c.mark(key, "corrections") if rng.random() < (0.3 if bad else 0.02) else None
    ),
}


@pytest.mark.parametrize("how", BAD)
def test_a_bad_canary_is_found(how: str) -> None:
    rng, most = random.Random(how), 0
    for _ in range(40):
        act: Act = lambda c, key, bad: BAD[how](c, key, bad, rng)  # noqa: E731
        *_, last = play(rng, 0.1, 4000, 1000, act)
        assert last.fault is not None
        most = max(most, last.canary.runs + last.baseline.runs)
    assert most <= (2048 if how in ("fails one in four", "corrected") else 256)


def test_a_cost_is_compared_where_most_keys_cost_nothing() -> None:
    rng, found = random.Random(1), 0
    for _ in range(20):
        act: Act = lambda c, key, bad: (  # noqa: E731
            c.spend(key, "tokens", 20_000 if bad else 1_000) if hash_of(key) % 10 < 6 else None
        )
        *_, last = play(rng, 0.1, 4000, 1000, act)
        found += last.fault == "tokens"
    assert found == 20


@pytest.mark.parametrize(("keys", "could"), [(1, False), (2, False), (3, False), (6, True)])
def test_few_keys_are_no_proof(keys: int, could: bool) -> None:
    """What fails on every key of its own shows no fault while it has too few of them."""
    comparison = Comparison(lambda key: int(key) < keys)
    for number in range(600):
        comparison.count_run(str(number % 10 if keys < 4 else number % 40))
        if number % (10 if keys < 4 else 40) < keys:
            comparison.mark(str(number % (10 if keys < 4 else 40)), "errors")
    look = comparison.look()
    assert look.can_find_fault is could
    assert (look.fault == "errors") is could


def test_no_more_keys_are_compared_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vedette.operations.canary_comparison.MAX_KEYS", 50)
    comparison = Comparison(lambda key: False)
    for number in range(200):
        comparison.count_run(str(number))
        comparison.spend(str(number), "tokens", 1)
        comparison.mark("1", "errors")
    assert (len(comparison.keys), comparison.observations) == (50, 50 + 200)
    assert comparison.preview().others == 150
    shown = comparison.preview()
    comparison.count_run("199")
    assert comparison.preview() == replace(shown, others=151), "nothing is compared anew for it"
    comparison.count_run("7")
    assert comparison.look().baseline.runs == 51, "and what a known key does still counts"


def test_what_is_shown_is_made_anew_only_when_there_is_something_new() -> None:
    comparison = Comparison(lambda key: key == "a")
    comparison.count_run("a")
    shown = comparison.preview()
    assert comparison.preview() is shown
    comparison.spend("a", "tokens", 7)
    assert comparison.preview().canary.spent["tokens"] == 7
    assert comparison.look() == comparison._compare(1)
    assert comparison.preview().number == 2


def test_a_little_more_cost_is_no_alarm() -> None:
    rng = random.Random(7)
    for _ in range(20):
        looks = play(rng, 0.3, 1000, 500, lambda c, key, bad: c.spend(
            key, "tokens", 1400 if bad else 1000
        ))  # fmt: skip
        assert all(look.fault is None for look in looks)


def test_one_busy_key_is_one_observation() -> None:
    comparison = Comparison(lambda key: key == "busy")
    for number in range(1000):
        comparison.count_run("busy")
        comparison.mark("busy", "errors")
        comparison.count_run(f"k{number % 20}")
        if comparison.is_due:
            assert comparison.look().fault is None


def test_the_looks_spend_the_bound_and_no_more() -> None:
    comparison = Comparison(lambda key: False)
    spent = 0.0
    for number in range(200_000):
        comparison.count_run(f"k{number % 7}")
        if comparison.is_due:
            assert comparison.observations == FIRST_LOOK << comparison.looks
            spent += comparison.look().bound * len(MEASURES)
    assert comparison.looks > 12
    assert spent < ALPHA


def canary(since: int, share: int) -> Canary:
    return Canary(AGENT, since, share)


def test_keys_are_dealt_evenly_and_anew_for_each_canary() -> None:
    keys = [f"key {n}" for n in range(20_000)]
    for share in (1, 100, 500):
        dealt = sum(canary(7, share).has_key(key) for key in keys)
        assert abs(dealt - len(keys) * share / 1000) < 5 * math.sqrt(len(keys) * share / 1000)
    both = [canary(7, 500).has_key(key) == canary(8, 500).has_key(key) for key in keys]
    assert 0.45 < sum(both) / len(keys) < 0.55
    assert canary(7, 500).has_key(keys[0]) == canary(7, 500).has_key(keys[0])


def test_what_was_accepted_before_stays_with_the_release() -> None:
    found = canary(7, 1000)
    assert [found.has_run("k", position) for position in (6, 7, 8)] == [False, False, True]
