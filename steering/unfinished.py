"""What a killed sweep had found: kept beside its results, and taken up by the same command."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from activations.manifests import manifest_differences, refuse_mismatch
from interp.files import atomic_path
from steering.plan import FoldPlan, SignedItems
from steering.settings import Settings

__all__ = ["Unfinished", "digest", "identity"]


def identity(signed: SignedItems, settings: Settings, **further: Any) -> dict[str, Any]:
    """What the logits of a grid depend on, apart from rounding.

    Args:
        signed: folds, layers and decisions.
        settings: what is crossed.
        further: model, positions and the like; JSON-serialisable.
    """
    along = settings.direction
    fields = {
        "items": signed.manifest,
        # Not the signs alone: directions of the probe depend on its strength.
        "probe": digest(signed.fold, signed.layer_nested, signed.decision_values),
        "inner": None if signed.inner is None else digest(signed.inner > 0),
        "layers": settings.places,
        "alphas": settings.sizes,
        "alpha_unit": settings.alpha_unit,
        "conditions": settings.conditions,
        "random_directions": settings.n_random,
        "control_draws": settings.n_control,
        "seed": settings.seed,
        "intervention": settings.intervention,
        "direction": "class_mean" if along is None else along.name,
        **further,
    }
    # As it comes back from a file: lists for tuples.
    plain: dict[str, Any] = json.loads(json.dumps(fields))
    return plain


def digest(*arrays: NDArray[Any]) -> str:
    """Hex sha256 of arrays: of their types, shapes and bytes."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(f"{array.dtype}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


class Unfinished:
    """Logits of finished batches in an append-only file whose first line is its identity.

    A last line that a kill cut off is dropped: its items are run again.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        """Open the file, if there is one; it is made for the first batch that is kept.

        Args:
            path: of the file.
            manifest: from `identity`.

        Raises:
            CacheError: the file belongs to other settings; the differing fields are named.
        """
        self.path = path
        self._head = json.dumps(manifest)
        data = path.read_bytes() if path.exists() else b""
        whole = data.rfind(b"\n") + 1
        head, *self._lines = data[:whole].splitlines() or [b""]
        if not self._lines:
            # Nothing is lost with it.
            path.unlink(missing_ok=True)
            return
        refuse_mismatch(path, manifest_differences(json.loads(head), manifest))
        if whole < len(data):
            with path.open("r+b") as handle:
                handle.truncate(whole)

    def append(
        self, fold: int, batch: Sequence[int], base: NDArray[np.float32], cells: NDArray[np.float32]
    ) -> None:
        """Keep what was found for some items.

        Args:
            fold: of the items.
            batch: (k,) places in the fold.
            base: (k, 2) unsteered logits.
            cells: (n_cells, k, 2) in the cells of the fold.
        """
        line = {"fold": fold, "batch": list(batch), "base": _text(base), "cells": _text(cells)}
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(self.path) as aside:
                aside.write_text(self._head + "\n", encoding="utf-8")
        with self.path.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(line) + "\n")

    def restore(
        self,
        plans: Sequence[FoldPlan],
        baseline: NDArray[np.float32],
        logits: NDArray[np.float32],
    ) -> int:
        """Fill in what the file holds, in place; the number of items that it holds.

        Args:
            plans: one a fold.
            baseline: (n_items, 2).
            logits: (n_cells, n_items, 2).
        """
        n_found = 0
        for line in self._lines:
            entry = json.loads(line)
            plan, batch = plans[entry["fold"]], entry["batch"]
            rows = plan.rows[batch]
            baseline[rows] = _numbers(entry["base"]).reshape(len(rows), 2)
            values = _numbers(entry["cells"]).reshape(len(plan.cells), len(rows), 2)
            logits[plan.cells[:, None], rows[None, :]] = values
            n_found += len(rows)
        return n_found


def _text(values: NDArray[np.float32]) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode()


def _numbers(text: str) -> NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(text), dtype="<f4").astype(np.float32)
