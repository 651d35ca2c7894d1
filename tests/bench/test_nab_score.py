"""The detector's quality on real series, so that a change that costs quality is seen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from tests.bench.nab_score import fit, observe
from tools.eval_real.nab_score import columns, read, ring

AGENT = Path(__file__).resolve().parents[2] / "agents/anomaly_detection/agent.yaml"
DATA = os.environ.get("VEDETTE_DATA", "")


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="needs the evaluation data: set VEDETTE_DATA")
def test_quality_on_the_developer_files() -> None:
    series, costs = read(Path(DATA))
    judged = [(one, observe(one)) for one in series]
    assert len(judged) == 31
    rung = [ring(one, [row for row, r in enumerate(seen) if r.alarm]) for one, seen in judged]
    standard, low_fp, low_fn = columns(rung, costs)
    assert standard > 72.0
    assert low_fp > 66.0
    assert low_fn > 75.5
    fitted = fit(judged)
    assert fitted.error < 0.03
    charter = YAML(typ="safe").load(AGENT.read_text(encoding="utf-8"))["charter"]
    for score, share in charter["confidence"]:
        assert fitted.curve.at(score) == pytest.approx(share, abs=0.02)
    spells, lasting = fitted.calm
    assert lasting / spells == pytest.approx(charter["confidence_over"], abs=0.01)
    assert fitted.quiet == pytest.approx(charter["confidence_quiet"], abs=0.01)
