"""The scorer of eval-real: measures against counts by hand, and data read by its layout."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tools.eval_real import intents, moderation, obfuscation, sources, spam
from tools.eval_real.attacks import ATTACKS, attackers_table, disguise, hidden_half
from tools.eval_real.measures import average_precision, below_curve, caught, coverage, interval

from vedette.judging.calibration import conformal_threshold


def test_measures_by_hand() -> None:
    sure = np.array([0.9, 0.8, 0.7, 0.6])
    right = np.array([True, True, False, True])
    assert coverage(sure, right, 1.0) == 0.5
    assert coverage(sure, right, 0.75) == 1.0
    assert coverage(sure, ~right, 0.9) == 0.0
    scores, positive = np.array([3.0, 2.0, 1.0, 0.0]), np.array([True, False, True, False])
    assert below_curve(scores, positive) == 0.75
    assert below_curve(np.zeros(4), positive) == 0.5
    assert average_precision(scores, positive) == pytest.approx((1 + 2 / 3) / 2)
    spam_scores = np.r_[np.linspace(0, 1, 1000), 0.9985, 2.0]
    truth = np.r_[np.zeros(1000, bool), True, True]
    assert caught(spam_scores, truth, 0.001) == 0.5
    assert caught(spam_scores, truth, 0.01) == 1.0
    low, high = interval(lambda rows: float(rows.mean()), 100)
    assert low < 49.5 < high


def test_a_promise_counts_one_error_more() -> None:
    sure = [0.9] * 60 + [0.8] * 60
    assert conformal_threshold(sure, [True] * 120, 0.99) == 0.8
    assert conformal_threshold(sure, [True] * 119 + [False], 0.99) is None
    assert conformal_threshold(sure, [True] * 60 + [False] * 60, 0.98) == 0.9
    # Fifty cases without an error do not prove 99 %.
    assert conformal_threshold([0.9] * 50, [True] * 50, 0.99) is None


def test_absent_folders_are_named_and_skipped(tmp_path: Path) -> None:
    for part in (intents, spam, moderation, obfuscation):
        assert all("skipped" in line for line in part.run(tmp_path, True))


def test_data_is_read_by_its_layout(tmp_path: Path) -> None:
    few = tmp_path / "train_3"
    for folder, text in ((few, "where is it"), (tmp_path / "held", "Where  is IT")):
        folder.mkdir()
        (folder / "seq.in").write_text(f"{text}\nanother {folder.name}\n")
        (folder / "label").write_text("Lost\nFound\n")
    (tmp_path / "train.csv").write_text("text,category\nhow much,Price\n")
    found = sources.banking(tmp_path)
    assert found is not None
    # What is scored is not learnt from, in whatever spacing and case.
    assert found.train == {"3": [("another train_3", "found")], "full": [("how much", "price")]}
    assert found.test == [("Where  is IT", "lost"), ("another held", "found")]
    (tmp_path / "any.json").write_text(
        json.dumps({"train": [["a", "x"]], "test": [["b", "x"]], "oos_test": [["c", "oos"]]})
    )
    assert sources.clinc(tmp_path) == ({"full": [("a", "x")]}, [("b", "x")], (["c"],))


def test_mails_by_the_topmost_time_of_receipt(tmp_path: Path) -> None:
    mail = "Received: by a; {}\nReceived: by b; Mon, 01 Jan 2001 00:00:00 +0000\nDate: x\n\n{}\n"
    rows = [
        ("spam-x", "Wed, 03 Jan 2024 09:00:00 +0000", "one"),
        ("easy-ham-y", "Tue, 02 Jan 2024 09:00:00 +0000", "two"),
        ("hard-ham-z", "Thu, 04 Jan 2024 09:00:00 +0000", "two"),
    ]
    for folder, when, body in rows:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.txt").write_text(mail.format(when, body))
    found = sources.mails(tmp_path)
    assert [(mail.spam, mail.received.day) for mail in found] == [(False, 2), (True, 3)]


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_change_words_and_nothing_else(name: str) -> None:
    changed = disguise("is it a worthless harbour", ATTACKS[name], 1)
    assert changed.startswith("is it a ")
    assert changed != "is it a worthless harbour"
    assert disguise("is it a worthless harbour", ATTACKS[name], 1) == changed


def test_about_half_of_the_lookalikes_are_hidden() -> None:
    every = sum(map(len, attackers_table().values()))
    assert 0.4 < sum(map(len, hidden_half().values())) / every < 0.6


def test_what_is_scored_is_not_learnt_from_in_other_spelling(tmp_path: Path) -> None:
    rows = {"train": [["A  b", "x"], ["c", "x"], ["E", "x"]], "val": [["a B", "x"]]}
    (tmp_path / "data.json").write_text(json.dumps({**rows, "oos_val": [["e", "oos"]]}))
    found = sources.clinc(tmp_path)
    assert found is not None
    assert found.train == {"full": [("c", "x")]}


def test_posts_that_differ_by_case_only_are_one(tmp_path: Path) -> None:
    (tmp_path / "posts.csv").write_text("tweet,class\nAh  so,0\nah so,2\nno,2\n")
    assert sources.tweets(tmp_path) == [("Ah  so", True), ("no", False)]
