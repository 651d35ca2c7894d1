"""Spam by time: learn from the mails received first, judge those received later, in order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tools.eval_real.measures import below_curve, caught, interval
from tools.eval_real.run_baseline import run_baseline
from tools.eval_real.sources import mails

from vedette.adapters.mail.parser import parse_mail
from vedette.judging.calibration import expected_error
from vedette.judging.examples import Example
from vedette.judging.spam import SpamBank, mail_words

Floats = npt.NDArray[np.float64]


def run(data: Path, quick: bool) -> list[str]:
    """Return the printed lines: cut A is the first half by time, cut B the first five eighths."""
    found = mails(data / "spamassassin")
    if len(found) < 100:
        return ["spamassassin: skipped, no such folder under the data (or nothing in it)"]
    parsed = [parse_mail(mail.raw) for mail in found]
    spam = np.array([mail.spam for mail in found])
    lines = [
        f"spamassassin: {len(found)} mails without exact repeats, {found[0].received:%Y-%m-%d} to"
        f" {found[-1].received:%Y-%m-%d}, by topmost Received; no published anchor on this split"
    ]
    for name, share in (("A", 0.5),) if quick else (("A", 0.5), ("B", 0.625)):
        lines += _cut(name, int(len(found) * share), parsed, spam)
    return lines


def _cut(
    name: str, place: int, parsed: Sequence[dict[str, Any]], spam: npt.NDArray[np.bool_]
) -> list[str]:
    later, truth = parsed[place:], spam[place:]
    words = [f"{one['subject']}\n{one['text']}" for one in parsed]
    labels = ["spam" if one else "ham" for one in spam[:place]]
    values, cost = run_baseline("lr", words[:place], labels, words[place:])
    lines = [f"cut {name}: {place} mails, then {len(later)} ({truth.sum()} spam)"]
    lines.append(
        "  TF-IDF words + LR    " + _rank_error(values, truth) + f"; {cost:.2f} ms CPU/mail"
    )
    labelled = zip(labels, parsed, strict=False)
    bank = SpamBank(
        [
            Example(str(i), label, mail_words(one), facts=one)
            for i, (label, one) in enumerate(labelled)
        ]
    )
    start = time.process_time()
    said = [bank.chance(one) for one in later]
    cost = 1000 * (time.process_time() - start) / len(later)
    scores = np.array([one.score for one in said])
    sure = np.array([one.chance for one in said])
    error = expected_error(np.maximum(sure, 1 - sure).tolist(), ((sure > 0.5) == truth).tolist())
    lines.append(
        "  ours, frozen         "
        + _rank_error(scores, truth)
        + f"; ECE {error:.3f}; {cost:.2f} ms CPU/mail"
    )
    above = sure >= bank.bar
    lines.append(
        f"  at the shipped bar {bank.bar:.3f}: caught {100 * above[truth].mean():.1f},"
        f" ham lost {100 * above[~truth].mean():.2f} %"
    )
    return lines


def _rank_error(scores: Floats, truth: npt.NDArray[np.bool_]) -> str:
    def off(rows: npt.NDArray[np.int64]) -> float:
        return 100 * (1 - below_curve(scores[rows], truth[rows]))

    low, high = interval(off, truth.size)
    parts = [f"1-AUC {off(np.arange(truth.size)):.3f} % [{low:.2f}, {high:.2f}]"]
    at = " / ".join(f"{100 * caught(scores, truth, lost):.1f}" for lost in (0.001, 0.005, 0.01))
    parts.append(f"caught at 0.1 / 0.5 / 1 % ham lost {at}")
    return "; ".join(parts)
