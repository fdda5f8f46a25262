"""Directions in the residual stream: how they are made, what they are compared with, their files.

All functions work on numpy arrays; no model is run here.
"""

from interp.direction.core import (
    Direction,
    random_direction,
    unit_direction,
)
from interp.direction.cosines import CosineTable, cosine_table
from interp.direction.covariance import ShrunkCovariance, shrunk_covariance
from interp.direction.erasure import Eraser, fit_eraser
from interp.direction.files import (
    read_direction,
    read_directions,
    require_model,
    write_direction,
    write_directions,
)
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
    "CosineTable",
    "Direction",
    "Eraser",
    "FittedKind",
    "ShrunkCovariance",
    "class_mean_difference",
    "class_mean_direction",
    "cosine_table",
    "fit_direction",
    "fit_eraser",
    "orthogonal_draw",
    "paired_component",
    "random_direction",
    "read_direction",
    "read_directions",
    "require_model",
    "shrunk_covariance",
    "shuffle_labels",
    "unembedding_difference",
    "unit_direction",
    "whitened_difference",
    "write_direction",
    "write_directions",
    "writer_direction",
]
