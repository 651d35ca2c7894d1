"""The heads of many shards keep their promises, and a broken protocol is seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.simulation.heads import (
    BUGS,
    Commit,
    Head,
    History,
    Note,
    Order,
    Setup,
    chain,
    judge,
    play,
)
from tests.simulation.heads_search import find_bug, large, measured, play_some, search

SETUP = Setup()


def test_histories_are_right_and_have_all_that_may_happen() -> None:
    found = play_some(range(150), SETUP)
    assert [(one.seed, one.wrong) for one in found if one.wrong] == []
    assert sum(one.orders for one in found) > 150
    assert sum(one.takes for one in found) > 150 * SETUP.shards  # shards changed hands
    assert {why for one in found for why in one.refused} == {"epoch", "policy", "stop"}
    assert sum(one.notes for one in found) > 150


def test_a_history_is_a_function_of_its_seed() -> None:
    one, again, other = play(3, SETUP), play(3, SETUP), play(4, SETUP)
    assert (one.commits, one.notes) == (again.commits, again.notes)
    assert one.commits != other.commits


# What only a snapshot of the heads can show; a slow database shows it sooner.
CUTS = ("published in halves", "reads apart")


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug not in CUTS])
def test_a_planted_bug_is_found(bug: str) -> None:
    first, kind = find_bug(bug, 60)
    assert first, BUGS[bug]
    assert kind


@pytest.mark.parametrize("bug", CUTS)
def test_a_snapshot_of_two_revisions_is_seen(bug: str) -> None:
    slow = replace(Setup(), row=4_000, cores=1, travel=3_000)
    first, kind = find_bug(bug, 60, slow)
    assert (bool(first), kind) == (True, "cut")


def test_search_plays_each_seed_once() -> None:
    found = list(search(range(30), replace(SETUP, length=300_000), 2))
    assert sorted(one.seed for one in found) == list(range(30))


def test_what_a_history_cost_is_told() -> None:
    small = replace(large(shards=8), length=1_000_000, events_per_s=2_000, publishes_per_s=8)
    text = measured("small", play(1, small))
    assert "0 wrong" in text
    assert "until answered" in text


# --- the judge, on histories made by hand ------------------------------------------------------


def history(*commits: Commit, **fields: object) -> History:
    made = History(Setup(shards=1), 0, list(commits), acked={0: []})
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def commit(start: int, count: int = 1) -> Commit:
    """A commit of a shard whose groups have one event each, at 1,000 us an event."""
    last = b""
    for number in range(start):
        last = chain(last, (number,))
    events = tuple(range(start, start + count))
    return Commit((start + 1) * 1000, 0, 0, 1, start, events, 0, 0, chain(last, events))


def head(size: int, **fields: int) -> Head:
    return Head(1, size, last=commit(size - 1).last if size else b"", **fields)


def kinds(one: History) -> set[str]:
    return {kind for kind, _ in judge(one)}


def test_the_judge_finds_nothing_in_a_right_history() -> None:
    notes = [Note(1, 1500, (head(1),)), Note(2, 2500, (head(2),))]
    assert judge(history(commit(0), commit(1), acked={0: [(0,), (1,)]}, notes=notes)) == []


def test_the_judge_sees_each_kind_of_wrong() -> None:
    order = Order("policy_rev", 1, 100, 200, 300)
    assert kinds(history(commit(0), commit(0))) == {"sequence"}
    assert kinds(history(replace(commit(0), events=(4,)))) == {"twice"}
    assert kinds(history(commit(0), takes=[(500, 0, 2)])) == {"epoch"}
    assert kinds(history(commit(0), orders=[order])) == {"policy_rev"}
    assert kinds(history(replace(commit(0), policy_rev=1), orders=[order])) == set()
    assert kinds(history(commit(0), orders=[replace(order, answered=1000)])) == set()
    assert kinds(history(commit(0), acked={0: [(0,), (1,)]})) == {"lost"}


def test_the_judge_sees_what_a_notary_may_not_sign() -> None:
    both = (commit(0), commit(1))
    assert kinds(history(*both, notes=[Note(2, 1500, (head(1),))])) == {"notary"}
    back = [Note(1, 2500, (head(2),)), Note(2, 2600, (head(1),))]
    assert kinds(history(*both, notes=back)) == {"notary"}
    assert kinds(history(*both, notes=[Note(1, 2500, (replace(head(2), last=b"x"),))])) == {
        "notary"
    }
    two = replace(history(*both), setup=Setup(shards=2), acked={0: [], 1: []})
    two.notes = [Note(1, 1500, (head(1, policy_rev=1), Head()))]
    assert kinds(two) == {"cut"}
