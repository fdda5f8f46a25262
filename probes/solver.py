"""L2 logistic regression on standardised features, by scikit-learn: the reference."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgWarning
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from interp.errors import ProbeError

__all__ = ["Probe", "fit_probe", "require_strength"]

_TOLERANCE: Final = 1e-10
_MAX_ITERATIONS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Probe:
    """A fitted probe, mapped back to raw activations: decision value = x · weight + bias.

    Attributes:
        weight: (d_model,) float64.
        bias: float.
    """

    weight: NDArray[np.float64]
    bias: float

    def decide(self, activations: NDArray[np.float32]) -> NDArray[np.float64]:
        """(n_items,) decision values (log odds of True) of (n_items, d_model) activations."""
        return activations.astype(np.float64) @ self.weight + self.bias


def require_strength(C: float) -> None:
    """Raise `ProbeError` unless C is a positive number."""
    if not C > 0 or not np.isfinite(C):
        raise ProbeError(f"--C is {C}; expected a positive number (inverse L2 strength).")


def fit_probe(activations: NDArray[np.float32], labels: NDArray[np.bool_], *, C: float) -> Probe:
    """Fit on the given items only; they are standardised by their own mean and deviation.

    Minimises C · Σ log loss + ½‖w‖² over the standardised features, the intercept unpenalised;
    in float64.

    Args:
        activations: (n_items, d_model).
        labels: (n_items,) of bool, both classes.
        C: inverse L2 strength.

    Raises:
        ProbeError: C is not positive, or the solver does not converge.
    """
    require_strength(C)
    scaler = StandardScaler()
    standardised = scaler.fit_transform(activations.astype(np.float64))
    model = _converged(standardised, labels, C)
    weight = model.coef_[0] / scaler.scale_
    return Probe(weight, float(model.intercept_[0] - scaler.mean_ @ weight))


def _converged(
    standardised: NDArray[np.float64], labels: NDArray[np.bool_], C: float
) -> LogisticRegression:
    faults = []
    # L-BFGS gives up where rounding hides what its line search still gains; Newton steps need none.
    for solver in ("lbfgs", "newton-cholesky"):
        model = LogisticRegression(C=C, solver=solver, tol=_TOLERANCE, max_iter=_MAX_ITERATIONS)
        with warnings.catch_warnings():
            for kind in (ConvergenceWarning, LinAlgWarning):
                warnings.simplefilter("error", kind)
            try:
                return model.fit(standardised, labels)
            except (ConvergenceWarning, LinAlgWarning) as fault:
                faults.append(f"{solver}: {str(fault).splitlines()[0]}")
    raise ProbeError(
        f"The probe at C = {C} did not converge in scikit-learn ({'; '.join(faults)}). "
        f"Use a smaller C, or --solver batched."
    )
