"""A search goes on where an earlier one stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.simulation.search import main


def test_what_another_checkout_found_right_counts_and_is_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {"store": "sqlite", "events": 6, "digest": "", "simulated_s": 1.0, "cpu_s": 0.1}
    right = {"seed": 0, "wrong": [], **fields}
    wrong = {"seed": 1, "wrong": [["lost", "it never took effect"]], **fields}
    path = tmp_path / "0123abcd-tiny-sqlite-3.jsonl"
    path.write_text(f"{json.dumps(right)}\n{json.dumps(wrong)}\n", "utf-8")
    questions = ["--histories", "2", "--size", "tiny", "--store", "sqlite", "--processes", "1"]
    for _ in range(2):
        assert main([*questions, "--folder", str(tmp_path), "--go-on"]) == 0
    first, repeat = capsys.readouterr().out.split("2 histories from seed 0")[1:]
    assert "1 of them to play" in first
    assert "0 of them to play" in repeat
    for said in (first, repeat):
        assert "1 histories (1 sqlite), 6 events" in said
        assert "1 more were right on checkout 0123abcd" in said
