"""How far two caches of the same items lie apart: two checkpoints, or a model and its adapter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from activations import ActivationCache
from activations.layout import ROWS_PER_CHUNK
from interp.errors import CacheError
from interp.vocabulary import Grouping
from probes.solver import fit_probe
from probes.splits import make_folds

__all__ = ["DriftRow", "layer_drift"]

_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class DriftRow:
    """Two models at one layer.

    Attributes:
        layer: 0-based block index.
        cosine: mean over items of the cosine between the two residual streams.
        relative_change: mean over items of ‖b − a‖ / ‖a‖.
        probe_transfer: accuracy on b of probes fitted on a, each on folds without the items that
            it judges; None without True/False labels of both kinds.
    """

    layer: int
    cosine: float
    relative_change: float
    probe_transfer: float | None


def layer_drift(
    a: ActivationCache,
    b: ActivationCache,
    *,
    C: float = 0.01,
    n_folds: int | None = 5,
    seed: int = 0,
    grouping: Grouping = "group",
) -> tuple[DriftRow, ...]:
    """Compare two caches row by row, at every layer.

    Args:
        a: open cache, the reference.
        b: open cache of the same items in the same order.
        C: inverse L2 strength of the probes.
        n_folds: folds of the transfer; None leaves the transfer out.
        seed: of the folds.
        grouping: `group` keeps groups whole.

    Raises:
        CacheError: other items, another order, token rule or shape.
        ProbeError: labels and groups that cannot be split.
    """
    _require_same_rows(a, b)
    labels, folds = a.label, None
    if n_folds is not None and set(labels.tolist()) == {0, 1}:
        folds = make_folds(
            labels.astype(bool), a.group_id, n_folds=n_folds, seed=seed, grouping=grouping
        )
    totals = np.zeros((2, a.n_layers))
    # A few rows at a time: how much memory this takes does not depend on the number of items.
    for start in range(0, a.n_items, ROWS_PER_CHUNK):
        rows = slice(start, start + ROWS_PER_CHUNK)
        blocks = a.array("resid_post", rows), b.array("resid_post", rows)
        for layer in range(a.n_layers):
            first, second = (block[:, layer].astype(np.float64) for block in blocks)
            norm, other = np.linalg.norm(first, axis=1), np.linalg.norm(second, axis=1)
            cosine = np.einsum("nd,nd->n", first, second) / (norm * other)
            # Rounding may leave the interval that a cosine lives in.
            totals[0, layer] += np.clip(cosine, -1, 1).sum()
            totals[1, layer] += (np.linalg.norm(second - first, axis=1) / norm).sum()
    cosines, changes = (totals / a.n_items).tolist()
    found = []
    for layer in range(a.n_layers):
        transfer = None
        if folds is not None:
            pair = a.resid_post(layer), b.resid_post(layer)
            transfer = _transfer(*pair, labels.astype(bool), folds, C)
        found.append(DriftRow(layer, cosines[layer], changes[layer], transfer))
    return tuple(found)


def _transfer(
    first: NDArray[np.float32],
    second: NDArray[np.float32],
    labels: NDArray[np.bool_],
    folds: NDArray[np.int64],
    C: float,
) -> float:
    right = 0
    for fold in range(int(folds.max()) + 1):
        held_out = folds == fold
        probe = fit_probe(first[~held_out], labels[~held_out], C=C)
        right += int(((probe.decide(second[held_out]) > 0) == labels[held_out]).sum())
    return right / len(labels)


def _require_same_rows(a: ActivationCache, b: ActivationCache) -> None:
    if (a.n_layers, a.d_model) != (b.n_layers, b.d_model):
        raise CacheError(
            f"{a.path} has {a.n_layers} layers of width {a.d_model}, {b.path} has {b.n_layers} of "
            f"width {b.d_model}; drift compares models of one shape."
        )
    rules = a.manifest["token_rule"], b.manifest["token_rule"]
    if rules[0] != rules[1]:
        raise CacheError(
            f"{a.path} was read at {rules[0]!r} and {b.path} at {rules[1]!r}; extract both with "
            f"the same --token."
        )
    if a.item_id != b.item_id:
        first, second = set(a.item_id), set(b.item_id)
        odd = sorted(first ^ second)
        if odd:
            shown = ", ".join(map(repr, odd[:_SHOWN]))
            what = f"{len(odd)} items are in one of them only (first: {shown})"
        else:
            what = "they hold the same items in another order"
        raise CacheError(
            f"{a.path} and {b.path} cannot be compared row by row: {what}. Extract both from the "
            f"same source, n and seed."
        )
    if a.items() != b.items():
        raise CacheError(
            f"{a.path} and {b.path} have the same item ids, but items of other content. Extract "
            f"both from the same source and view."
        )
