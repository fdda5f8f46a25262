"""LEACE: the smallest linear edit after which no linear probe can tell the classes apart.

Source: Belrose et al. 2023, "LEACE: Perfect linear concept erasure in closed form", theorem 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from interp.direction.covariance import shrunk_covariance
from interp.direction.vectors import class_mean_difference
from interp.errors import SteeringError

__all__ = ["Eraser", "fit_eraser"]


@dataclass(frozen=True, slots=True)
class Eraser:
    """The edit x' = x − write · (read · (x − mean)), for a concept of two classes.

    Attributes:
        write: (d_model,) float64: the class-mean difference δ, up to scale.
        read: (d_model,) float64, scaled so that read · write = 1.
        mean: (d_model,) float64, of the items fitted on; it is left where it is.
        shrinkage: of the covariance that `read` is whitened by.
    """

    write: NDArray[np.float64]
    read: NDArray[np.float64]
    mean: NDArray[np.float64]
    shrinkage: float

    def erase(self, activations: NDArray[np.floating]) -> NDArray[np.float64]:
        """(n, d_model) activations without the concept."""
        exact = activations.astype(np.float64)
        reading = (exact - self.mean) @ self.read
        erased: NDArray[np.float64] = exact - reading[:, None] * self.write
        return erased


def fit_eraser(
    activations: NDArray[np.float32],
    labels: NDArray[np.bool_],
    shrinkage: float | None = None,
) -> Eraser:
    """Fit the eraser of a True/False label.

    For two classes the theorem's projection has rank one. With the class-mean difference δ and the
    covariance Σ of all items it reads along Σ⁺δ and writes along δ. So its direction to write is
    the class mean's and its direction to read is the whitened one: erasure adds no third vector,
    but an edit that uses both. The class means become equal whatever Σ is; Σ decides how small the
    edit is, and shrinking it keeps the edit small on items that were not fitted.

    Args:
        activations: (n_items, d_model).
        labels: (n_items,) of bool, both classes.
        shrinkage: of Σ, 0 to 1; 0 is the theorem's estimate, None estimates it.

    Raises:
        SteeringError: a class is empty, the class means are equal, or values are not finite.
    """
    difference = class_mean_difference(activations, labels)
    exact = activations.astype(np.float64)
    mean = exact.mean(axis=0)
    covariance = shrunk_covariance(exact - mean, shrinkage)
    whitened = covariance.solve(difference)
    size = float(difference @ whitened)
    if not np.isfinite(size) or size <= 0:
        raise SteeringError("The class means are equal; there is nothing to erase.")
    return Eraser(difference, whitened / size, mean, covariance.shrinkage)
