"""Standardisation of features by the training items."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Standardised", "standardise"]

_ROUNDING = 10 * np.finfo(np.float64).eps


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
