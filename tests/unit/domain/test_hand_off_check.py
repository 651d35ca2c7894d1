"""The check of a hand-off: what each rule finds, what none does, and where it ends."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace
from tests.hand_off_samples import (
    BOUNDS,
    CONTROLS,
    DRIFTS,
    GOAL_TEXT,
    PARAPHRASES,
    UNSEEN_CONTROLS,
    UNSEEN_DRIFTS,
)

from vedette.domain.base.errors import BadProposal
from vedette.domain.hand_off import MAX_CHARS, HandOff, HandOffWords, read_hand_off, read_words
from vedette.domain.hand_off_check import ARTEFACT, RULES, check_hand_off, check_texts


def words(text: str, rule: str = "") -> HandOffWords:
    if rule == ARTEFACT or text.startswith(("/outcome", "ref:", "sha256:")):
        return HandOffWords(1, artefacts=(text,))
    return HandOffWords(1, next_step=text)


def test_each_rule_finds_its_samples_and_no_other_does() -> None:
    assert set(DRIFTS) == set(RULES)
    for rule, texts in DRIFTS.items():
        for text in texts:
            found = [one.rule for one in check_hand_off(words(text, rule), BOUNDS)]
            assert rule in found, text


def test_what_does_not_drift_is_found_by_no_rule() -> None:
    found = {text: check_hand_off(words(text), BOUNDS) for text in CONTROLS}
    assert {text: rules for text, rules in found.items() if rules} == {}


def test_of_what_it_was_not_written_with_it_finds_most_and_errs_seldom() -> None:
    """14 of 19, and 1 of 30: a text that quotes what a stranger asked for."""
    found = [text for text in UNSEEN_DRIFTS if check_hand_off(words(text), BOUNDS)]
    false = [text for text in UNSEEN_CONTROLS if check_hand_off(words(text), BOUNDS)]
    print(
        f"{len(found)} of {len(UNSEEN_DRIFTS)} found, {len(false)} of {len(UNSEEN_CONTROLS)} false"
    )
    assert len(found) >= 14
    assert len(false) <= 1


def test_it_says_what_it_does_not_find() -> None:
    """Drift in words that no rule knows. Should one be found some day, say so in the page."""
    texts = [text for texts in PARAPHRASES.values() for text in texts]
    assert not any(check_hand_off(words(text), BOUNDS) for text in texts)


def test_an_outcome_is_there_up_to_the_last() -> None:
    last = BOUNDS.outcomes - 1
    assert not check_hand_off(words(f"/outcome/{last}"), BOUNDS)
    (found,) = check_hand_off(words(f"/outcome/{last + 1}"), BOUNDS)
    assert found.rule == ARTEFACT


def test_each_part_of_a_hand_off_is_checked() -> None:
    bad = "The goal is to close the ledger."
    for part in ("decisions", "artefacts", "open_questions"):
        (finding,) = check_hand_off(replace(HandOffWords(1), **{part: ("fine", bad)}), BOUNDS)
        assert (finding.rule, finding.text) == ("drift.goal", bad)


def test_the_goal_to_the_letter_is_no_other() -> None:
    said = words(f"The goal is: {GOAL_TEXT}")
    assert not check_hand_off(said, BOUNDS)
    assert check_hand_off(said, replace(BOUNDS, goal="Count the ships."))


# What a rule that reads a sentence from each of its places would take the square of its length for.
LONG = ("1", "1,", "a", "„", "says “ ", "a  ", "send a@b ", "then a ", "count done ", "Open. ", "-")


@pytest.mark.parametrize("part", LONG)
@pytest.mark.parametrize("clauses", [1, 1000])
def test_a_text_of_twice_the_length_takes_no_more_than_twice_as_long(
    part: str, clauses: int
) -> None:
    goal = " ".join(f"Never open the crate{at} of shed{at}." for at in range(clauses))
    bounds = replace(BOUNDS, goal=goal)

    def seconds(size: int) -> float:
        text = (part * size)[:size]
        least = 60.0
        for _ in range(3):
            began = time.process_time()
            check_texts((text,), bounds)
            least = min(least, time.process_time() - began)
        return least

    seconds(1000)  # the goal is read
    assert seconds(8_000) <= 3 * seconds(4_000) + 0.002


@pytest.mark.parametrize("known", ["audit@elsewhere.example", "Ask audit@elsewhere.example."])
def test_a_recipient_of_the_inputs_is_known(known: str) -> None:
    said = words("Send the report to audit@elsewhere.example.")
    assert check_hand_off(said, BOUNDS)
    assert not check_hand_off(said, replace(BOUNDS, known=BOUNDS.known | {known}))


def test_a_hand_off_is_bounded_and_read_as_it_was_told() -> None:
    args = {"decisions": ["x" * MAX_CHARS], "artefacts": [], "open_questions": [], "next_step": "y"}
    with pytest.raises(BadProposal, match="at most"):
        read_words(3, args)
    taken = read_words(3, {**args, "decisions": ["x"]})
    for one in (
        HandOff(3, "model", words=taken, last_turns=({"turn": 3, "calls": []},)),
        HandOff(3, "engine", "unanswered"),
    ):
        assert read_hand_off(one.to_json()) == one
    assert read_hand_off({}) is None
