"""An optional sentence encoder: the forward pass of all-MiniLM-L6-v2 in numpy, no torch.

The model is BERT (Devlin et al. 2019, arXiv 1810.04805) with 6 layers of width 384 and 12 heads,
after Wang et al. 2020 (MiniLM, arXiv 2002.10957); a text is the mean over its tokens. Needs the
extra `encoder` (tokenizers, safetensors) and a folder with `model.safetensors` and
`tokenizer.json`. Both files are checked against pinned digests before anything is read from them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vedette.domain.base.errors import BadFleet

__all__ = ["LAYERS", "WEIGHTS_SHA256", "WIDTH", "Encoder", "joined"]

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]

WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
TOKENIZER_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
WIDTH = 384
LAYERS = 6
TOKENS = 256  # the model was trained on no longer texts; what is behind them is not read
_HEADS = 12
_PACK = 2_048  # tokens computed at once: fits the cache of a core better than a whole batch


class Encoder:
    """Texts to vectors of unit length. Deterministic; the order of the texts does not matter.

    Not exactly, though: sums of other lengths are rounded otherwise, so the same text in another
    batch may differ in the last digits (below 1e-5).
    """

    def __init__(
        self, folder: Path, *, layers: Sequence[int] = (LAYERS,), tokens: int = TOKENS
    ) -> None:
        """Load the model in `folder` (0.3 s, 200 MB).

        `layers` 1..6 are joined, each of equal weight: the vectors have 384 numbers per layer.
        Raises BadFleet if a file is absent or not the pinned one, or the extra is not installed.
        """
        if not layers or not set(layers) <= set(range(1, LAYERS + 1)):
            raise ValueError(f"layers are 1 to {LAYERS}, not {tuple(layers)}")
        self._layers = tuple(layers)
        weights = _read_pinned(folder / "model.safetensors", WEIGHTS_SHA256)
        words = _read_pinned(folder / "tokenizer.json", TOKENIZER_SHA256)
        self._tokenizer: Any = _import_extra("tokenizers").Tokenizer.from_str(words.decode("utf-8"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(tokens)
        found: Mapping[str, Singles] = _import_extra("safetensors.numpy").load(weights)
        head = "embeddings."
        self._words = found[head + "word_embeddings.weight"]
        # There is one segment, so its vector is the same for every token.
        self._places = (
            found[head + "position_embeddings.weight"]
            + found[head + "token_type_embeddings.weight"][0]
        )
        self._norm = _norm_of(found, head + "LayerNorm")
        self._blocks = [_Block(found, f"encoder.layer.{i}.") for i in range(max(self._layers))]

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Return one unit vector per text: (texts, 384 x layers)."""
        return joined(self.pooled(texts))

    def around(self, texts: Sequence[str]) -> Callable[[Sequence[str]], Floats]:
        """Return this encoder with the mean of `texts` taken off each layer.

        All vectors of a model point partly the same way; without that share they differ more.
        """
        middle = joined(self.pooled(texts), unit_only=True).mean(axis=0)
        return lambda queries: joined(self.pooled(queries), middle)

    def pooled(self, texts: Sequence[str]) -> Singles:
        """Return the mean over the tokens of each text: (texts, layers, 384), of any length."""
        found = np.zeros((len(texts), len(self._layers), WIDTH), dtype=np.float32)
        codes = [one.ids for one in self._tokenizer.encode_batch(list(texts))]
        for rows in _batch_by_length([len(one) for one in codes]):
            found[rows] = self._forward([codes[i] for i in rows])
        return found

    def _forward(self, codes: Sequence[Sequence[int]]) -> Singles:
        """Compute texts laid end to end: no padding is multiplied."""
        sizes = [len(one) for one in codes]
        starts = np.cumsum([0, *sizes[:-1]])
        ids = np.concatenate([np.asarray(one) for one in codes])
        places = np.concatenate([np.arange(size) for size in sizes])
        state = _layer_norm(self._words[ids] + self._places[places], *self._norm)
        means: list[Singles] = []
        lengths = np.array(sizes, dtype=np.float32)[:, None]
        for number, block in enumerate(self._blocks, 1):
            state = block(state, starts, sizes)
            if number in self._layers:
                total: Singles = np.add.reduceat(state, starts, axis=0)
                means.append((total / lengths).astype(np.float32))
        layers = sorted(set(self._layers))
        return np.stack([means[layers.index(layer)] for layer in self._layers], axis=1)


class _Block:
    """One layer: attention among the tokens of a text, then two dense layers, both added back."""

    def __init__(self, found: Mapping[str, Singles], head: str) -> None:
        own = head + "attention.self."
        parts = ("query", "key", "value")
        # One product instead of three.
        self._query_key_value = np.hstack([found[f"{own}{part}.weight"].T for part in parts])
        self._query_key_value_bias = np.hstack([found[f"{own}{part}.bias"] for part in parts])
        self._out, self._out_bias = _dense_of(found, head + "attention.output.dense")
        self._out_norm = _norm_of(found, head + "attention.output.LayerNorm")
        self._wide, self._wide_bias = _dense_of(found, head + "intermediate.dense")
        self._back, self._back_bias = _dense_of(found, head + "output.dense")
        self._back_norm = _norm_of(found, head + "output.LayerNorm")

    def __call__(self, state: Singles, starts: npt.NDArray[Any], sizes: Sequence[int]) -> Singles:
        projected = state @ self._query_key_value + self._query_key_value_bias
        seen = np.empty_like(state)
        for first, last in _equal_length_runs(sizes):
            begin, size = int(starts[first]), sizes[first]
            rows = slice(begin, begin + (last - first) * size)
            seen[rows] = _attend(projected[rows], last - first, size)
        state = _layer_norm(state + seen @ self._out + self._out_bias, *self._out_norm)
        wide = _gelu(state @ self._wide + self._wide_bias)
        return _layer_norm(state + wide @ self._back + self._back_bias, *self._back_norm)


def joined(pooled: Singles, middle: Floats | None = None, *, unit_only: bool = False) -> Floats:
    """Join an encoder's layers, as unit vectors with `middle` taken off, to one unit vector.

    `pooled` is (texts, layers, 384), as `Encoder.pooled` returns it. `unit_only` leaves the layers
    apart, (texts, layers, 384): their mean over the texts is a `middle`.
    """
    unit = _unit(pooled.astype(np.float64))
    if unit_only:
        return unit
    if middle is not None:
        unit = _unit(unit - middle)
    flat: Floats = unit.reshape(len(unit), -1) / np.sqrt(unit.shape[1])
    return flat


def _unit(rows: Floats) -> Floats:
    found: Floats = rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)
    return found


def _attend(projected: Singles, texts: int, size: int) -> Singles:
    """Scaled dot-product attention within `texts` texts of `size` tokens each."""
    deep = WIDTH // _HEADS
    split = projected.reshape(texts, size, 3, _HEADS, deep).transpose(2, 0, 3, 1, 4)
    scores = split[0] @ split[1].swapaxes(-1, -2)
    scores *= np.float32(deep**-0.5)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    seen: Singles = (scores @ split[2]).swapaxes(1, 2).reshape(texts * size, WIDTH)
    return seen


def _gelu(wide: Singles) -> Singles:
    """Return x times the normal distribution's share below x.

    numpy has no error function: Abramowitz and Stegun 7.1.26, off by at most 1.5e-7.
    """
    x = np.abs(wide) * np.float32(0.7071067811865476)
    t = 1 / (1 + np.float32(0.3275911) * x)
    poly = t * np.float32(1.061405429) - np.float32(1.453152027)
    for factor in (1.421413741, -0.284496736, 0.254829592):
        poly *= t
        poly += np.float32(factor)
    poly *= t
    x *= x
    np.negative(x, out=x)
    np.exp(x, out=x)
    poly *= x  # 1 - erf|x|
    share = np.where(wide < 0, poly, 2 - poly)
    share *= wide
    share *= np.float32(0.5)
    return share


def _layer_norm(rows: Singles, gain: Singles, bias: Singles) -> Singles:
    rows = rows - rows.mean(axis=1, keepdims=True)
    spread = np.sqrt((rows * rows).mean(axis=1, keepdims=True) + np.float32(1e-12))
    rows /= spread
    rows *= gain
    rows += bias
    return rows


def _norm_of(found: Mapping[str, Singles], name: str) -> tuple[Singles, Singles]:
    return found[name + ".weight"], found[name + ".bias"]


def _dense_of(found: Mapping[str, Singles], name: str) -> tuple[Singles, Singles]:
    return np.ascontiguousarray(found[name + ".weight"].T), found[name + ".bias"]


def _batch_by_length(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Yield the numbers of texts, of like length together, at most `_PACK` tokens at once."""
    pack: list[int] = []
    held = 0
    for i in sorted(range(len(sizes)), key=lambda i: (sizes[i], i)):
        if pack and held + sizes[i] > _PACK:
            yield pack
            pack, held = [], 0
        pack.append(i)
        held += sizes[i]
    if pack:
        yield pack


def _equal_length_runs(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield first and behind-last of each run of texts of one length."""
    first = 0
    for i in range(1, len(sizes) + 1):
        if i == len(sizes) or sizes[i] != sizes[first]:
            yield first, i
            first = i


def _read_pinned(path: Path, digest: str) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadFleet(
            f"the encoder's file cannot be read: {error.strerror}",
            where=str(path),
            mend="name the folder that holds model.safetensors and tokenizer.json",
        ) from error
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        raise BadFleet(
            f"these are not the pinned bytes (SHA-256 {found[:12]}, expected {digest[:12]})",
            where=str(path),
            mend="put the file of all-MiniLM-L6-v2 there; another model needs a pin of its own",
        )
    return data


def _import_extra(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise BadFleet(
            f"the encoder needs {name.partition('.')[0]}, which is not installed",
            mend="pip install 'vedette[encoder]'",
        ) from error
