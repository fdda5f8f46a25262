"""Probes with a closed form, on the features that the logistic ones get, to compare directions.

`mass_mean`: difference of the class means under a shared covariance, Σ⁻¹(μ₁ − μ₀), the Gaussian
log odds with equal priors (Marks and Tegmark 2023, section 5). C keeps Σ invertible as it keeps
logistic weights small: Σ = (ZᵀZ + I/C)/n over class-centred items, so that small C gives the plain
difference of means. `ridge`: least squares to ±1 with penalty 1/C. `lda`: the Gaussian log odds
under the covariance of Ledoit and Wolf, without C. All are float64, and in the row space where
there are at most as many training items as features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from interp.errors import ProbeError, require_choice
from interp.vocabulary import ClosedForm
from probes.scaling import standardise
from probes.solver import require_strength

__all__ = ["closed_decisions", "closed_weights"]

Fit = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Weights (d, n_strengths, columns) on standardised features, intercepts (n_strengths, columns)."""


def closed_decisions(
    kind: ClosedForm,
    train: NDArray[np.float32],
    held_out: NDArray[np.float32],
    labels: NDArray[np.bool_],
    strengths: Sequence[float],
) -> NDArray[np.float64]:
    """(n_held, n_strengths, columns) decision values of held-out items; larger means True.

    Args:
        kind: which closed form.
        train: (n, d) activations.
        held_out: (m, d) activations.
        labels: (n, columns) of bool; each column has both classes.
        strengths: values of C (`lda` has none and gives the same for all).

    Raises:
        ProbeError: a strength is not positive, or a column has one class only.
    """
    z, shown, _ = standardise(train, held_out)
    weights, intercepts = closed_weights(kind, z, labels, strengths)
    values = shown @ weights.reshape(len(weights), -1)
    return np.asarray(values.reshape(len(shown), *intercepts.shape) + intercepts)


def closed_weights(
    kind: ClosedForm,
    z: NDArray[np.float64],
    labels: NDArray[np.bool_],
    strengths: Sequence[float],
) -> Fit:
    """Weights and intercepts on standardised features z (n, d)."""
    require_choice("kind", kind, get_args(ClosedForm), ProbeError)
    for c in strengths:
        require_strength(c)
    inside = labels.sum(axis=0)
    if ((inside == 0) | (inside == len(labels))).any():
        raise ProbeError(
            "A label vector has one class only among the training items; probes need both. "
            "Use fewer --folds or more items."
        )
    if kind == "ridge":
        return _ridge(z, labels, strengths)
    weights = np.empty((z.shape[1], len(strengths), labels.shape[1]))
    intercepts = np.empty(weights.shape[1:])
    for column, y in enumerate(labels.T):
        means = z[y].mean(axis=0), z[~y].mean(axis=0)
        delta, middle = means[0] - means[1], (means[0] + means[1]) / 2
        if kind == "lda":
            diagonal, rows = _ledoit_wolf(z, y)
            found = _solve(diagonal, rows, delta)[:, None]
            odds = float(np.log(y.mean() / (1 - y.mean())))
        else:
            rows = (z - np.where(y[:, None], *means)) / np.sqrt(len(z))
            ones = np.ones(z.shape[1]) / len(z)
            found = np.stack([_solve(ones / c, rows, delta) for c in strengths], axis=1)
            odds = 0.0
        weights[:, :, column] = found
        intercepts[:, column] = odds - middle @ found
    return weights, intercepts


def _ridge(z: NDArray[np.float64], labels: NDArray[np.bool_], strengths: Sequence[float]) -> Fit:
    y = np.where(labels, 1.0, -1.0)
    mean = y.mean(axis=0)
    n, d = z.shape
    second = z @ z.T if n <= d else z.T @ z
    right = y - mean if n <= d else z.T @ (y - mean)
    weights = np.empty((d, len(strengths), y.shape[1]))
    for index, c in enumerate(strengths):
        matrix = second.copy()
        matrix.ravel()[:: len(matrix) + 1] += 1 / c
        found = linalg.solve(matrix, right, assume_a="pos", overwrite_a=True)
        weights[:, index] = z.T @ found if n <= d else found
    return weights, np.broadcast_to(mean, (len(strengths), y.shape[1])).copy()


def _solve(
    diagonal: NDArray[np.float64], rows: NDArray[np.float64], right: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Solve (diag + rowsᵀ·rows)·w = r for a positive diagonal (d,) and rows (n, d)."""
    n, d = rows.shape
    if n > d:
        matrix = rows.T @ rows
        matrix.ravel()[:: d + 1] += diagonal
        return np.asarray(linalg.solve(matrix, right, assume_a="pos", overwrite_a=True))
    scaled = rows / diagonal
    inner = scaled @ rows.T
    inner.ravel()[:: n + 1] += 1
    by_rows = linalg.solve(inner, scaled @ right, assume_a="pos", overwrite_a=True)
    return np.asarray(right / diagonal - scaled.T @ by_rows)


def _ledoit_wolf(
    z: NDArray[np.float64], y: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shared covariance as a diagonal (d,) and rows (n, d): diag + rowsᵀ·rows.

    The mean of the two classes' covariances, weighted by their sizes; each is shrunk towards a
    multiple of the identity in units of the class's own deviations.
    """
    d = z.shape[1]
    diagonal, rows = np.zeros(d), []
    for inside in (~y, y):
        own, share = z[inside], inside.mean()
        centred = own - own.mean(axis=0)
        scale = centred.std(axis=0)
        scale[scale <= 10 * np.finfo(float).eps] = 1.0
        units = centred / scale
        n = len(units)
        # Traces of the covariance and of its square, by the Gram matrix where that is smaller.
        norms = (units**2).sum(axis=1)
        gram = units @ units.T if n <= d else units.T @ units
        trace, squared = norms.sum() / n, (gram**2).sum() / n**2
        mu = trace / d
        beta = ((norms**2).sum() / n - squared) / (d * n)
        delta = (squared - 2 * mu * trace + d * mu**2) / d
        shrinkage = 0.0 if min(beta, delta) == 0 else float(min(beta, delta) / delta)
        diagonal += share * shrinkage * mu * scale**2
        rows.append(np.sqrt(share * (1 - shrinkage) / n) * centred)
    # No direction may have no variance at all.
    return np.maximum(diagonal, 1e-12), np.concatenate(rows)
