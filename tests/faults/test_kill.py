"""Showing 4: kill -9 in the middle, again and again, and nothing is lost and nothing done twice.

Ten times in the gate; `make kill-real` kills a replay of real data twenty times.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.faults.kill import (
    Audit,
    audit,
    compare,
    judged_again,
    kill_at,
    moments,
    run_to_end,
)
from tools.real_fleet import ROOT, lay_out, receiver, unpack_mails

from vedette.judging.series import generate

SERIES = 6


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six pumps whose pressure falls and comes back: incidents, and webhook calls for each."""
    folder = tmp_path_factory.mktemp("series")
    start = datetime(2026, 3, 2, tzinfo=UTC)
    for number in range(SERIES):
        values = generate(
            {"n": 800, "seed": 100 + number, "base": 3.2, "noise": 0.04}
            | {"shift_at": 600 + 9 * number, "shift_until": 660 + 9 * number, "shift": -1.3}
        )
        lines = [
            f"{start + timedelta(minutes=row):%Y-%m-%dT%H:%M:%SZ},{value}"
            for row, value in enumerate(values)
        ]
        (folder / f"pump_{number:02}.csv").write_text("timestamp,value\n" + "\n".join(lines) + "\n")
    return folder


def fleet(folder: Path, series: Path, hook: str) -> Path:
    return lay_out(folder, series=series, mailbox=ROOT / "samples" / "mailbox", hook=hook).config


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, series: Path) -> Audit:
    folder = tmp_path_factory.mktemp("undisturbed")
    with receiver(folder / "receiver.jsonl", "--delay-ms", "150") as hook:
        run_to_end(fleet(folder, series, hook))
    return audit(folder / "state", folder / "receiver.jsonl")


@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.parametrize(
    "places", [pytest.param((0, 4, 10, 16, 18), id="some"), pytest.param(range(0, 20, 2), id="ten")]
)
def test_killed_again_and_again_nothing_is_lost_and_nothing_done_twice(
    tmp_path: Path, series: Path, undisturbed: Audit, places: Sequence[int]
) -> None:
    assert len(undisturbed.webhook) >= SERIES, "the test needs webhook calls to be killed in"
    assert any(d[0].startswith("mail.") and d[4] == "done" for d in undisturbed.decisions.values())
    with receiver(tmp_path / "receiver.jsonl", "--delay-ms", "150") as hook:
        config = fleet(tmp_path, series, hook)
        record = tmp_path / "receiver.jsonl"
        every = moments(seed=4, entries=undisturbed.entries)
        at = [every[place] for place in places]
        killed = kill_at(config, at, tmp_path / "state", record)
        run_to_end(config)
    assert killed.landed == len(at), f"{killed.ended} runs had ended before their moment"
    assert killed.open_effects.total(), "no kill left an effect open"
    if len(at) == 10:  # what a few hit is chance
        assert killed.open_effects["inbox_triage"], "no kill left a mail effect open"
        assert killed.open_effects["anomaly_detection"], "no kill left a webhook call open"
    wrong = compare(undisturbed, audit(tmp_path / "state", tmp_path / "receiver.jsonl"))
    assert not wrong, "\n".join(wrong[:20])
    judged = judged_again(config)
    assert judged["ok"], judged["differences"]
    assert judged["equal"] == judged["judgements"] >= SERIES * 800


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif("VEDETTE_DATA" not in os.environ, reason="needs the data: set VEDETTE_DATA")
def test_killed_twenty_times_in_a_replay_of_real_data(tmp_path: Path) -> None:
    """Six real series and 400 real mails; that effects are hit is asserted on the samples above."""
    data = Path(os.environ["VEDETTE_DATA"])
    unpack_mails(data, tmp_path / "mails", limit=400)
    series = data / "nab" / "data" / "realAdExchange"

    def laid(folder: Path, hook: str) -> Path:
        return lay_out(folder, series=series, mailbox=tmp_path / "mails", hook=hook).config

    calm, disturbed = tmp_path / "calm", tmp_path / "rough"
    with receiver(calm / "receiver.jsonl", "--delay-ms", "150") as hook:
        run_to_end(laid(calm, hook))
    undisturbed = audit(calm / "state", calm / "receiver.jsonl")
    with receiver(disturbed / "receiver.jsonl", "--delay-ms", "150") as hook:
        config = laid(disturbed, hook)
        at = moments(seed=11, entries=undisturbed.entries, calls=0)
        killed = kill_at(config, at, disturbed / "state", disturbed / "receiver.jsonl")
        run_to_end(config)
    assert killed.landed == len(at), f"{killed.ended} runs had ended before their moment"
    wrong = compare(undisturbed, audit(disturbed / "state", disturbed / "receiver.jsonl"))
    assert not wrong, "\n".join(wrong[:20])


def test_the_auditor_finds_a_lost_and_a_doubled_effect(undisturbed: Audit) -> None:
    """Negative control: what the test above must find, it can find."""
    first = next(iter(undisturbed.webhook))
    doubled = {**undisturbed.webhook, first: 2}
    lost = {key: value for key, value in undisturbed.webhook.items() if key != first}
    for webhook in (doubled, lost):
        other = Audit(
            undisturbed.events, undisturbed.judgements, undisturbed.decisions, webhook,
            undisturbed.mailbox, (),
        )  # fmt: skip
        assert compare(undisturbed, other)
    decision = next(iter(undisturbed.decisions))
    changed = Audit(
        undisturbed.events, undisturbed.judgements,
        {**undisturbed.decisions, decision: ("mail.file", "", "deny", "", None)},
        undisturbed.webhook, undisturbed.mailbox, (),
    )  # fmt: skip
    assert compare(undisturbed, changed)
