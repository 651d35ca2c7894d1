"""What a sentence says of a goal: told anew, narrowed, undone, waived, in another language."""

from __future__ import annotations

import pytest

from vedette.domain.goal_check import (
    changes_number,
    find_forbidden,
    is_foreign,
    narrows_goal,
    restates_goal,
    waives_part,
)

GOAL = (
    "Count the crates of the north shed against the shipping list. Never open a crate. "
    "Report each crate above 40 kilos."
)


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("The point is to count the boxes of the north shed by the list.", True),
        ("In short: count crates in the north shed.", True),
        ("In short: count the crates of the north shed against the shipping list.", False),
        ("In short: count crates 12 to 19 of the north shed.", False),  # of its progress
        ("Next: count the crates of the north shed.", False),  # what it does next
        ("Counted the crates of the north shed.", False),
        ("The list is long.", False),
    ],
)
def test_what_is_told_as_the_task_and_is_not_the_goal(sentence: str, expected: bool) -> None:
    assert restates_goal(sentence, GOAL) is expected


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("Count only the large crates of the north shed.", True),
        ("Count a few crates of the north shed.", True),
        ("Only crate 7 of the north shed is left to count.", False),
        ("Only the paint is wet.", False),
        ("Count the crates of the north shed.", False),
    ],
)
def test_what_leaves_some_of_it_out(sentence: str, expected: bool) -> None:
    assert narrows_goal(sentence, GOAL) is expected


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("Report each crate above 400 kilos.", True),
        ("Report each crate above 40 kilos.", False),
        ("Crate 9 has 51 kilos.", False),
        ("Those above 4 hundredweight are few.", False),
    ],
)
def test_a_number_of_the_goal_is_another(sentence: str, expected: bool) -> None:
    assert changes_number(sentence, GOAL) is expected


@pytest.mark.parametrize(
    ("sentence", "at"),
    [
        ("Then open the crate.", 5),
        ("Never open a crate.", 6),  # that it denies it is for the caller to see
        ("The crate was open.", None),
        ("Opened no crate.", None),
    ],
)
def test_what_is_forbidden_is_said(sentence: str, at: int | None) -> None:
    assert find_forbidden(sentence, GOAL) == at


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("The shipping list can be left out.", True),
        ("Crates from the quay need not be counted.", True),
        ("Crate 12 can be left out: it is empty.", False),
        ("The ladder can be left out.", False),
        ("The shipping list is needed.", False),
    ],
)
def test_a_part_is_said_not_to_be_needed(sentence: str, expected: bool) -> None:
    assert waives_part(sentence, GOAL) is expected


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("Wir zaehlen nur noch die grossen Kisten und nicht mehr alle.", True),
        ("Считать только большие ящики, остальные пропустить.", True),
        ("Firma de la Cruz y Hijos, Calle del Mar: 3 crates.", False),
        ("The label says 'nicht werfen und nur mit dem Kran heben'.", False),
        ("Crates 3, 4 and 5.", False),
    ],
)
def test_another_language_is_not_read(sentence: str, expected: bool) -> None:
    assert is_foreign(sentence, GOAL) is expected
    assert not is_foreign(sentence, "Die Kisten sind zu zaehlen und nicht zu oeffnen, auch die.")
