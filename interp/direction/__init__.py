"""Directions in the residual stream: how they are made, what they are compared with, their files.

All functions work on numpy arrays; no model is run here.
"""

from interp.direction.core import (
    Direction,
    random_direction,
    read_direction,
    unit_direction,
    write_direction,
)
from interp.direction.covariance import ShrunkCovariance, shrunk_covariance
from interp.direction.erasure import Eraser, fit_eraser
from interp.direction.kinds import (
    FITTED_KINDS,
    FittedKind,
    class_mean_direction,
    fit_direction,
    writer_direction,
)
from interp.direction.vectors import (
    class_mean_difference,
    orthogonal_draw,
    paired_component,
    shuffle_labels,
    unembedding_difference,
    whitened_difference,
)

__all__ = [
    "FITTED_KINDS",
    "Direction",
    "Eraser",
    "FittedKind",
    "ShrunkCovariance",
    "class_mean_difference",
    "class_mean_direction",
    "fit_direction",
    "fit_eraser",
    "orthogonal_draw",
    "paired_component",
    "random_direction",
    "read_direction",
    "shrunk_covariance",
    "shuffle_labels",
    "unembedding_difference",
    "unit_direction",
    "whitened_difference",
    "write_direction",
    "writer_direction",
]
