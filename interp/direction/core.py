"""`Direction`: a unit vector in the residual stream, with what is needed to use it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from interp.errors import SteeringError
from interp.vocabulary import HookPoint

__all__ = [
    "Direction",
    "random_direction",
    "unit_direction",
]


@dataclass(frozen=True, slots=True)
class Direction:
    """A direction at one layer's residual stream.

    Attributes:
        vector: (d_model,) float32, unit norm.
        layer: 0-based block index.
        hook_point: `resid_post` (the block's output) or `resid_pre` (its input).
        method: how it was made: `class_mean`, `random`, …
        class_gap: ‖mean of True − mean of False‖ in units of the residual stream; None where
            the method has none.
        median_norm: median residual norm at that layer, first position excluded; one alpha.
        model_id: of the model it was read from.
        token_rule: position it was read at.
        n_true: True items it was fitted on.
        n_false: False items it was fitted on.
        details: what else fixes it: shrinkage, seed, tokens, …
    """

    vector: NDArray[np.float32]
    layer: int
    hook_point: HookPoint
    method: str
    class_gap: float | None
    median_norm: float
    model_id: str
    token_rule: str
    n_true: int
    n_false: int
    details: Mapping[str, float | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.vector.ndim != 1 or not np.isfinite(self.vector).all():
            raise SteeringError(
                f"A direction must be one finite vector; got shape {self.vector.shape}, finite: "
                f"{bool(np.isfinite(self.vector).all())}."
            )
        norm = float(np.linalg.norm(self.vector.astype(np.float64)))
        if abs(norm - 1) > 1e-4:
            raise SteeringError(f"A direction must have unit norm; got {norm:.6g}. Normalise it.")
        if self.layer < 0:
            raise SteeringError(f"A direction's layer is {self.layer}; layers count from 0.")
        if not np.isfinite(self.median_norm) or self.median_norm <= 0:
            raise SteeringError(
                f"The median residual norm at layer {self.layer} is {self.median_norm}; expected a "
                f"positive number, because alpha counts it."
            )


def unit_direction(
    vector: NDArray[np.floating],
    *,
    method: str,
    layer: int,
    median_norm: float,
    model_id: str,
    token_rule: str,
    class_gap: float | None = None,
    n_true: int = 0,
    n_false: int = 0,
    details: Mapping[str, float | str] | None = None,
) -> Direction:
    """A `resid_post` direction along a vector of any length but zero.

    Args:
        vector: (d_model,); it is divided by its norm.
        method: see `Direction`, as are the others.
        layer: 0-based block index.
        median_norm: median residual norm there.
        model_id: recorded.
        token_rule: recorded.
        class_gap: recorded.
        n_true: recorded.
        n_false: recorded.
        details: recorded.

    Raises:
        SteeringError: the vector is zero or not finite.
    """
    exact = vector.astype(np.float64)
    # Divided by the largest entry first: squares of tiny or huge entries leave float64's range.
    largest = float(np.abs(exact).max(initial=0))
    if not np.isfinite(largest) or largest == 0:
        raise SteeringError(
            f"Layer {layer}: the {method} vector is {'zero' if largest == 0 else 'not finite'}; "
            f"there is no direction."
        )
    scaled = exact / largest
    return Direction(
        vector=(scaled / np.linalg.norm(scaled)).astype(np.float32),
        layer=layer,
        hook_point="resid_post",
        method=method,
        class_gap=class_gap,
        median_norm=median_norm,
        model_id=model_id,
        token_rule=token_rule,
        n_true=n_true,
        n_false=n_false,
        details={} if details is None else dict(details),
    )


def random_direction(like: Direction, rng: np.random.Generator) -> Direction:
    """A direction drawn uniformly from the sphere, for the same place as `like`."""
    draw = rng.standard_normal(like.vector.shape[0])
    vector: NDArray[np.float32] = np.asarray(draw / np.linalg.norm(draw), dtype=np.float32)
    return replace(like, vector=vector, method="random", class_gap=None, n_true=0, n_false=0)
