"""Standardisation of features by the training items."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["BLOCK", "Common", "Standardised", "blocks", "standardise", "standardise_together"]

_ROUNDING = 10 * np.finfo(np.float64).eps
_CANCELLED = 1e-6
"""A variance that is this small a share of the mean square is computed again, from the items."""

_FAR = 30
"""Deviations from its mean at which a set loses too many digits of float32."""

BLOCK: Final = 2**17
"""Elements of a block: what stays in a cache as float64."""


class Standardised(NamedTuple):
    """Features in units of the training items' deviation.

    Attributes:
        train: (n, d) float64.
        held_out: (m, d) float64.
        inverse: (d,) inverse deviations; 1 for constant features, which become zero.
    """

    train: NDArray[np.float64]
    held_out: NDArray[np.float64]
    inverse: NDArray[np.float64]


class Common(NamedTuple):
    """Features of all items on one scale, and what takes them to the scale of each training set.

    A training set's standardised features are z · scale, but for a shift of each feature, which an
    unpenalised intercept absorbs.

    Attributes:
        z: (n, d) float32, about the mean of all items, over the deviation of all items.
        scale: (d, n_sets) float32, about 1; 0 where a feature is constant in the set.
    """

    z: NDArray[np.float32]
    scale: NDArray[np.float32]


def standardise(train: NDArray[Any], held_out: NDArray[Any]) -> Standardised:
    """Both sets less the training items' mean, over their deviation.

    Args:
        train: (n, d) activations, left as they are.
        held_out: (m, d) activations.
    """
    # In place, and sums as products: fresh memory and strided sums cost more than the arithmetic.
    z = train.astype(np.float64)
    mean = np.full(len(z), 1 / len(z)) @ z
    z -= mean
    deviation = np.sqrt(np.einsum("ij,ij->j", z, z) / len(z))
    # What rounding leaves of a constant feature is not a signal.
    constant = deviation <= _ROUNDING * np.abs(mean)
    inverse = 1 / np.where(constant, 1.0, deviation)
    z *= inverse
    shown = held_out.astype(np.float64)
    shown -= mean
    shown *= inverse
    return Standardised(z, shown, inverse)


def standardise_together(features: NDArray[Any], training: NDArray[np.bool_]) -> Common:
    """Standardise once for several training sets; sums are float64, in one pass over the items.

    Args:
        features: (n, d) activations, left as they are.
        training: (n, n_sets) of bool.
    """
    n, d = features.shape
    # Items that the same sets train on are summed together, whatever the number of sets.
    kind_of = np.zeros(n, dtype=np.int64)
    for kept in training.T:
        kind_of = np.unique(2 * kind_of + kept, return_inverse=True)[1]
    kinds = np.empty((int(kind_of.max()) + 1, training.shape[1]))
    kinds[kind_of] = training
    # Any centre near the mean will do: sums about it are corrected below.
    near = np.full(n, 1 / n, dtype=np.float32) @ features.astype(np.float32, copy=False)
    z = np.empty((n, d), dtype=np.float32)
    first, second = np.zeros((2, len(kinds), d))
    for kind in range(len(kinds)):
        rows = np.flatnonzero(kind_of == kind)
        for part in blocks(len(rows), d):
            block = features[rows[part]].astype(np.float64)
            block -= near
            z[rows[part]] = block
            first[kind] += np.ones(len(block)) @ block
            second[kind] += np.einsum("ij,ij->j", block, block)
    everything = np.ones((n, 1), dtype=bool)
    deviation, _ = _deviations(features, everything, near, first.sum(0), second.sum(0))
    own, shift = _deviations(features, training, near, kinds.T @ first, kinds.T @ second)
    # An item far away from all others draws the centre away from the sets without it.
    far = (own > 0) & (np.abs(shift) > _FAR * own)
    for column in np.flatnonzero(far.any(axis=0)):
        narrowest = np.where(own[:, column] > 0, own[:, column], np.inf).argmin()
        z[:, column] = (
            features[:, column].astype(np.float64) - near[column] - shift[narrowest, column]
        )
    known = np.divide(1, deviation, out=np.ones_like(deviation), where=deviation > 0)
    for part in blocks(n, d):
        z[part] *= known.astype(np.float32)
    scale = np.divide(deviation, own, out=np.zeros_like(own), where=own > 0)
    return Common(z, scale.T.astype(np.float32))


def _deviations(
    features: NDArray[Any],
    training: NDArray[np.bool_],
    near: NDArray[np.float32],
    first: NDArray[np.float64],
    second: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(n_sets, d) deviations, 0 for constant features, and means less `near`, from its sums."""
    size = training.sum(axis=0)[:, None]
    shift, square = np.atleast_2d(first) / size, np.atleast_2d(second) / size
    variance = square - shift**2
    # Where a set lies far from the centre, or hardly varies, sums about its own mean are needed.
    doubtful = ~(variance > _CANCELLED * np.maximum(square, _ROUNDING * (near + shift) ** 2))
    for index in np.flatnonzero(doubtful.any(axis=1)):
        columns = np.flatnonzero(doubtful[index])
        values = features[np.ix_(training[:, index], columns)].astype(np.float64)
        mean = values.mean(axis=0)
        found = values.std(axis=0)
        variance[index, columns] = np.where(found <= _ROUNDING * np.abs(mean), 0, found) ** 2
    return np.sqrt(variance), shift


def blocks(n: int, d: int, most: int = BLOCK) -> Iterator[slice]:
    """Slices of n rows of d elements: as many as `most` elements, or 8."""
    step = max(8, most // d)
    for begin in range(0, n, step):
        yield slice(begin, begin + step)
