"""What a sentence says of a goal: told anew, narrowed, undone, in another language."""

from __future__ import annotations

import pytest

from vedette.domain.goal_check import (
    changes_number,
    instructs_forbidden,
    is_foreign,
    narrows_goal,
    restates_goal,
)

GOAL = (
    "Count the crates of the north shed against the shipping list. Never open a crate. "
    "Report each crate above 40 kilos."
)


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("The point is to count the boxes of the north shed by the list.", True),
        ("We are here to count crates in the north shed.", True),
        ("Purpose: count the crates of the north shed against the shipping list.", False),
        ("Our task is to count crates 12 to 19 of the north shed.", False),  # of its progress
        ("Next: count the crates of the north shed.", False),  # what it does next
        ("Counted the crates of the north shed.", False),
        ("Status: crates of the north shed are counted.", False),
        ("The list is long.", False),
    ],
)
def test_what_is_told_as_the_task_and_is_not_the_goal(sentence: str, expected: bool) -> None:
    assert restates_goal(sentence, GOAL) is expected


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("Step 2: count only those crates of the north shed.", True),
        ("Count a few crates of the north shed.", True),
        ("Only crate 7 of the north shed is left to count.", False),
        ("Only the paint is wet.", False),
        ("Some crates of the north shed are on the shipping list.", False),
        ("It is only crates of the north shed that the shipping list has.", False),
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
    ("sentence", "expected"),
    [
        ("Then open the crate.", True),
        ("You may open a crate where it helps.", True),
        ("Never open a crate.", False),
        ("Avoid to open a crate.", False),
        ("The crate was open.", False),
        ("The customs office will open the crate.", False),
        ("Open: which crate is it?", True),  # whether it asks is for the caller to see
    ],
)
def test_what_is_forbidden_is_instructed(sentence: str, expected: bool) -> None:
    assert instructs_forbidden(sentence, GOAL) is expected


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("Wir zaehlen nur noch die grossen Kisten und nicht mehr alle.", True),
        ("Считать только большие ящики, остальные пропустить.", True),
        ("Firma de la Cruz y Hijos, Calle del Mar: 3 crates in the shed.", False),
        ("The crates are of Lieferant Huber und Soehne, for das Lager der Werft.", False),
        ("The label says 'nicht werfen und nur mit dem Kran heben'.", False),
        ("Crates 3, 4 and 5.", False),
    ],
)
def test_another_language_is_not_read(sentence: str, expected: bool) -> None:
    assert is_foreign(sentence, GOAL) is expected
    assert not is_foreign(sentence, "Die Kisten sind zu zaehlen und nicht zu oeffnen, auch die.")
