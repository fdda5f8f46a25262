"""Cosines between directions of one layer: does what detects also control?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.direction.core import Direction
from interp.errors import SteeringError

__all__ = ["CosineTable", "cosine_table"]


@dataclass(frozen=True, slots=True)
class CosineTable:
    """Every direction of a layer against every other.

    Attributes:
        layer: 0-based block index.
        names: (n,) of the directions.
        cosines: (n, n), symmetric, 1 on the diagonal.
        chance: √(2/(π·d_model)), the expected |cosine| of two random directions.
    """

    layer: int
    names: tuple[str, ...]
    cosines: NDArray[np.float64]
    chance: float

    def cosine(self, first: str, second: str) -> float:
        """Cosine of two of the directions, by name."""
        return float(self.cosines[self.names.index(first), self.names.index(second)])

    def angle(self, first: str, second: str) -> float:
        """Angle of two of the directions in degrees, 0 to 180."""
        return float(np.degrees(np.arccos(np.clip(self.cosine(first, second), -1, 1))))

    def record(self) -> dict[str, Any]:
        """For JSON; with a `writer` also each direction's detection–control angle to it."""
        found: dict[str, Any] = {
            "layer": self.layer,
            "names": list(self.names),
            "cosines": [[float(value) for value in row] for row in self.cosines],
            "chance": self.chance,
        }
        if "writer" in self.names:
            found["detection_control_angle"] = {
                name: self.angle(name, "writer") for name in self.names if name != "writer"
            }
        return found


def cosine_table(directions: Mapping[str, Direction]) -> CosineTable:
    """Compare directions of one layer.

    The angle to the `writer` (the unembedding's True − False difference, what raises the answer
    most directly) is the detection–control angle: at 90° the answer's logits do not read what the
    probe reads, at least not without further blocks.

    Args:
        directions: name to direction; all of one layer and width.

    Raises:
        SteeringError: none, or of several layers or widths.
    """
    places = {(each.layer, each.vector.shape[0]) for each in directions.values()}
    if len(places) != 1:
        raise SteeringError(
            f"Cosines compare directions of one layer and one width; got (layer, d_model) "
            f"{sorted(places)}."
        )
    ((layer, width),) = places
    vectors = np.stack([each.vector.astype(np.float64) for each in directions.values()])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, 1.0)
    return CosineTable(layer, tuple(directions), cosines, float(np.sqrt(2 / (np.pi * width))))
