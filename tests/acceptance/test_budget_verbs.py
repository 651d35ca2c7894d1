"""`vedette budget`: what is spent, and more room for a while, with no fleet running."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_START = [sys.executable, "-c", "from vedette.interfaces.cli import main; main()"]

pytestmark = pytest.mark.slow


def vedette(fleet: Path, *words: str, code: int = 0) -> Any:
    done = subprocess.run([*_START, *words], cwd=fleet, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout if code == 0 else done.stderr)


def limits(found: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {
        f"{row['agent'] or 'fleet'} {row['unit']} {row['window']}": (row["limit"], row["raised"])
        for row in found["limits"]
    }


def test_a_raise_is_shown_recorded_and_done_once(tmp_path: Path) -> None:
    subprocess.run([*_START, "init", "fleet"], cwd=tmp_path, capture_output=True, check=True)
    fleet = tmp_path / "fleet"
    more = [
        *("budget", "inbox_triage", "--raise", "2h", "--unit", "actions"),
        *("--window", "day", "--by", "7", "--reason", "the season", "--json"),
    ]
    done = vedette(fleet, *more, "--command-id", "one")
    assert done["raised"] == {"actions.day": 7}
    assert vedette(fleet, *more, "--command-id", "one")["already_done"]
    less = ("--fleet", "--raise", "1d", "--unit", "actions", "--reason", "the season", "--json")
    vedette(fleet, "budget", *less)
    found = limits(vedette(fleet, "budget", "--json"))
    assert found["inbox_triage actions day"] == (50_000 + 7, 7)
    assert found["inbox_triage actions hour"] == (6_000, 0)
    assert found["anomaly_detection actions day"] == (20_000, 0)
    assert found["fleet actions day"] == (20_000_000, 10_000_000)
    assert set(limits(vedette(fleet, "budget", "inbox_triage", "--json"))) == {
        "fleet actions day", "fleet actions hour", "inbox_triage actions day",
        "inbox_triage actions hour",
    }  # fmt: skip
    vedette(fleet, "verify", "--json")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("raise", "--for", "2h"), "say whose budget"),
        (("raise", "inbox_triage", "--fleet", "--for", "2h"), "say whose budget"),
        (("raise", "nobody", "--for", "2h"), "no agent 'nobody'"),
        (("raise", "inbox_triage", "--for", "soon"), "'soon' is no length of time"),
        (("raise", "inbox_triage", "--for", "40d"), "up to 31 days"),
        (("raise", "inbox_triage", "--for", "2h", "--by", "0"), "0 is no more room"),
        (("raise", "inbox_triage", "--for", "2h", "--unit", "tokens"), "has no such limit"),
    ],
)
def test_what_a_raise_cannot_be_is_said(
    tmp_path_factory: pytest.TempPathFactory, words: tuple[str, ...], said: str
) -> None:
    fleet = tmp_path_factory.getbasetemp() / "budget_verbs"
    if not fleet.exists():
        subprocess.run([*_START, "init", str(fleet)], capture_output=True, check=True)
    answer = vedette(fleet, "budget", *words, "--reason", "why", "--json", code=2)
    assert said in json.dumps(answer, ensure_ascii=False)
