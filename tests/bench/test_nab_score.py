"""The detector's quality on real series, so that a change that costs quality is seen."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

HERE = Path(__file__).resolve().parent
DATA = os.environ.get("VEDETTE_DATA", "")

spec = importlib.util.spec_from_file_location("nab_score", HERE / "nab_score.py")
assert spec is not None
assert spec.loader is not None
nab = importlib.util.module_from_spec(spec)
sys.modules["nab_score"] = nab
spec.loader.exec_module(nab)


def test_the_scorer_gives_0_to_silence_and_100_to_the_first_row_of_every_window() -> None:
    series = nab.Series("s", (0.0,) * 4000, ((1000, 1400), (3000, 3400)))
    silent = nab.score([(series, [])])
    assert silent.scores == dict.fromkeys(nab.PROFILES, 0.0)
    perfect = nab.score([(series, [1000, 3000])])
    assert all(abs(value - 100.0) < 0.1 for value in perfect.scores.values())
    late = nab.score([(series, [1390, 3390])])
    assert late.scores["standard"] < 70.0
    noisy = nab.score([(series, [1000, 3000, *range(700, 720)])])
    assert noisy.scores["low_fp"] < noisy.scores["standard"] < perfect.scores["standard"]
    assert nab.score([(series, range(600))]).scores == silent.scores


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="needs the evaluation data: set VEDETTE_DATA")
def test_quality_on_the_developer_files() -> None:
    judged = [(series, nab.run(series)) for series in nab.read(Path(DATA))]
    assert len(judged) == 31
    scores = nab.score([(series, nab.alarms(seen)) for series, seen in judged]).scores
    assert scores["standard"] > 65.0
    assert scores["low_fp"] > 56.5
    assert scores["low_fn"] > 69.5
    curve, error = nab.calibrate(judged)
    assert error < 0.03
    agent = HERE.parents[1] / "agents/anomaly_detection/agent.yaml"
    charter = YAML(typ="safe").load(agent.read_text(encoding="utf-8"))["charter"]
    for score, share in charter["confidence"]:
        assert curve.at(score) == pytest.approx(share, abs=0.02)
