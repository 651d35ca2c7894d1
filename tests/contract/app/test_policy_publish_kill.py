"""A publication that is killed anywhere is made or not; the repository never runs ahead."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
POINTS = {
    "commit:before", "commit:mid", "commit:after", "bundle:before", "bundle:after", "shelf:before",
    "shelf:mid", "shelf:after",
}  # fmt: skip


def wrong_with(left: dict[str, Any]) -> list[str]:
    """Return which promises what was left after a kill breaks."""
    promises = {
        "the store says what is live": left["live"] in (1, 2),
        "the shelf is not ahead of the store": left["shelf"] <= left["live"],
        "what is live has its archive": left["kept"] and left["recorded"],
        "numbers are there once": left["revisions"] == [*range(left["live"], 0, -1)],
        "the next start mends the shelf": left["mended"] and left["told"] is None,
        "the same order again is one revision": left["repeated"] == 2 and left["then"],
    }
    return [promise for promise, kept in promises.items() if not kept]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_kill_at_any_point_leaves_nothing_half_done(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.contract.app.policy_publish_child", str(tmp_path)],
        capture_output=True, text=True, timeout=170, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert {left["at"] for left in found} >= POINTS
    assert [(left["at"], wrong) for left in found if (wrong := wrong_with(left))] == []
    # Both sides of the commit were tried, and a shelf that was late.
    assert {left["live"] for left in found} == {1, 2}
    assert any(left["live"] == 2 and left["shelf"] == 1 for left in found)


def test_what_is_half_done_would_be_seen() -> None:
    left = {
        "live": 1, "shelf": 2, "kept": True, "recorded": True, "revisions": [1], "told": None,
        "mended": True, "repeated": 2, "then": True,
    }  # fmt: skip
    assert wrong_with(left) == ["the shelf is not ahead of the store"]
    assert len(wrong_with({**left, "kept": False, "mended": False, "repeated": 3})) == 4
