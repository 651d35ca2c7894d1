"""Hands a job to the baseline's own environment and reads what it says."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".tools" / "eval" / "bin" / "python"


def run_baseline(
    kind: str, train: Sequence[str], labels: Sequence[str], test: Sequence[str]
) -> tuple[npt.NDArray[np.float64], float]:
    """Return the decision values of `test` and the CPU ms per text.

    `kind` is `svm` or `lr`, with `-characters` for character 2-5-grams and `-balanced` for class
    weights. With two classes there is one value, positive for the later name. Raises
    CalledProcessError if the baseline fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        job, out = Path(folder) / "job.json", Path(folder) / "out.npy"
        fields = {"kind": kind, "train": train, "labels": labels, "test": test}
        job.write_text(json.dumps({k: v if k == "kind" else list(v) for k, v in fields.items()}))
        script = Path(__file__).with_name("baseline.py")
        done = subprocess.run(
            [str(PYTHON), str(script), str(job), str(out)],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
        values: npt.NDArray[np.float64] = np.load(out)
        return values, float(done.stdout)
