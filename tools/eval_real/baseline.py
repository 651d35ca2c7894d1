"""A simple baseline in scikit-learn: TF-IDF and a linear classifier. Run in .tools/eval only.

`python baseline.py JOB.json OUT.npy`: the job names kind, texts and labels; OUT gets the decision
values of the test texts (rows, classes), the classes in order of their names.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any


def main(job_path: str, out_path: str) -> None:
    """Fit on the training texts, write the decision values, print the CPU ms per test text."""
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    numpy: Any = importlib.import_module("numpy")
    pipeline: Any = importlib.import_module("sklearn.pipeline")
    text: Any = importlib.import_module("sklearn.feature_extraction.text")
    vector = text.TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    if "characters" in job["kind"]:
        inside = text.TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True)
        vector = pipeline.make_union(vector, inside)
    if "svm" in job["kind"]:
        model = importlib.import_module("sklearn.svm").LinearSVC(C=1.0)
    else:
        linear: Any = importlib.import_module("sklearn.linear_model")
        weight = "balanced" if "balanced" in job["kind"] else None
        model = linear.LogisticRegression(C=10.0, max_iter=2000, class_weight=weight)
    model.fit(vector.fit_transform(job["train"]), job["labels"])
    start = time.process_time()
    values = model.decision_function(vector.transform(job["test"]))
    print(1000 * (time.process_time() - start) / len(job["test"]))
    numpy.save(out_path, values)


if __name__ == "__main__":
    main(*sys.argv[1:])
