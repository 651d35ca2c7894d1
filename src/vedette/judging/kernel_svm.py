"""Kernel machine with closed-form leave-one-out, changed by one row at a time.

    A = (K + diag(lam))^-1,   alpha = A T,   f = K alpha = T - lam alpha
    leave-one-out score of row i:  T_i - alpha_i / A_ii
    add row:     u = A k, d = k(x,x) + lam - k.u:   A <- [[A + u u'/d, -u/d], [-u'/d, 1/d]]
    remove row:  A <- A_rr - A_ri A_ir / A_ii

(Rasmussen and Williams 2006, 5.4.2; block inverse). Targets T are +1 and -1 with the squared
hinge: a score beyond its target is no error, so T is moved there (T = max(1, f) or min(-1, f))
and alpha is computed again. That is alternating minimisation of a jointly convex loss and ends at
the squared-hinge support vector machine, with the same A for every step and every label.
f starts at the label's level b, its share of the rows between -1 and +1, and the kernel explains
T - b alone: one label of many is denied unless something speaks for it, so that rows need not say
what they are not. Scores are given as (f + s) / 2, where s is the score of a target that is 1
everywhere, both without b: 0 for what is like nothing in the bank, 1 for what is as sure as an
example of the label.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_ROUNDS = 40
_FIRST_ROUNDS = 15
_ROUNDS_LARGE = 60  # rows that are much alike settle slowly, and large banks have many
_LARGE = 2_500
_LEAF = 384


class KernelSVM:
    """Scores of labels over the rows of a bank. `alpha` has shape (rows, labels)."""

    def __init__(self, kernel: Floats, lam: Floats, places: Ints, labels: int) -> None:
        """Take over `kernel` (it is destroyed), `lam` per row and the label's place per row."""
        self.lam = lam.copy()
        kernel[np.diag_indices(len(lam))] += lam
        invert(kernel)
        self._inverse = kernel
        self.fit(places, labels)

    def fit(self, places: Ints, labels: int) -> None:
        """Compute targets, weights and leave-one-out scores from the inverse and the labels."""
        size = len(places)
        sign = np.full((size, labels), -1.0)
        sign[np.arange(size), places] = 1.0
        positive = sign > 0
        lam = self.lam[:, None]
        level = 2 * np.bincount(places, minlength=labels) / size - 1
        target = before = early_targets = sign
        for round_ in range(_ROUNDS if size <= _LARGE else _ROUNDS_LARGE):
            reached = target - lam * (self._inverse @ (target - level))
            iterate = np.where(positive, np.maximum(1, reached), np.minimum(-1, reached))
            # Nesterov's momentum, kept within what the hinge allows.
            lookahead = iterate + (iterate - before) * (round_ / (round_ + 3))
            target = np.where(positive, np.maximum(1, lookahead), np.minimum(-1, lookahead))
            before = iterate
            if round_ < _FIRST_ROUNDS:
                early_targets = iterate
        # Moved to 0 and 1, so that what is like nothing scores 0 for every label.
        before = (before + 1) / 2
        alpha = self._inverse @ before
        self.alpha: Floats = alpha
        diagonal = np.diag(self._inverse)[:, None]
        # The others' targets have moved by what they heard of the row that is left out: the longer
        # they move, the better it speaks of itself. So it is heard where they stood early.
        early_targets = (early_targets + 1) / 2
        self.left_out: Floats = early_targets - (self._inverse @ early_targets) / diagonal

    def add(self, similar: Floats, itself: float, lam: float) -> None:
        """Add one row: its kernel with the rows that are there, and with itself.

        Call `fit` when done.
        """
        inverse = self._inverse
        reach = inverse @ similar
        rest = itself + lam - float(similar @ reach)
        size = len(self.lam)
        grown = np.empty((size + 1, size + 1))
        grown[:size, :size] = inverse + np.outer(reach, reach / rest)
        grown[:size, size] = grown[size, :size] = -reach / rest
        grown[size, size] = 1 / rest
        self._inverse = grown
        self.lam = np.append(self.lam, lam)

    def remove(self, row: int) -> None:
        """Remove one row. Call `fit` when done."""
        keep = np.arange(len(self.lam)) != row
        column = self._inverse[keep, row]
        rest = self._inverse[row, row]
        self._inverse = self._inverse[np.ix_(keep, keep)] - np.outer(column, column / rest)
        self.lam = self.lam[keep]


def invert(matrix: Floats) -> None:
    """Invert a kernel matrix (symmetric positive definite) in place, by halves (Schur complement).

    Half the work of a general inverse and a quarter of its memory; nothing but products.
    """
    size = matrix.shape[0]
    if size <= _LEAF:
        matrix[:] = np.linalg.inv(matrix)
        return
    half = size // 2
    first, across, last = matrix[:half, :half], matrix[:half, half:], matrix[half:, half:]
    invert(first)
    reach = first @ across
    last -= across.T @ reach
    invert(last)
    np.matmul(reach, last, out=across)
    np.negative(across, out=across)
    first -= across @ reach.T
    matrix[half:, :half] = across.T
