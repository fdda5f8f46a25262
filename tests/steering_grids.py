"""Made-up activations and sweeps whose right answers are known."""

from __future__ import annotations

from typing import Any

import numpy as np
from caches import Cache

from activations import ActivationCache
from steering import SignedItems, SteeringSweep
from steering.results import BASELINE, Cell
from steering.settings import Settings

__all__ = [
    "FOLDS",
    "LAYERS",
    "WIDTH",
    "N",
    "made_up",
    "relabelled",
    "right",
    "settings",
    "sweep_of",
    "vector_of",
]


N, FOLDS, LAYERS, WIDTH = 60, 5, 3, 12


def made_up(seed: int = 0, gap: float = 0.0) -> tuple[Cache, SignedItems]:
    """Streams with a few wide axes, twins in groups of two, and labels that shift one axis."""
    rng = np.random.default_rng(seed)
    labels = np.tile([True, False], N // 2)
    scales = np.array([8.0, 6.0, *[0.5] * (WIDTH - 2)])
    streams = rng.normal(size=(N, LAYERS, WIDTH)) * scales
    streams[labels, :, 3] += gap
    groups = [f"g{index // 2}" for index in range(N)]
    fold = np.arange(N) // 2 % FOLDS
    cache = Cache(streams, labels, groups)
    decisions = rng.normal(size=(N, LAYERS))
    inner = rng.normal(size=(FOLDS, N, LAYERS))
    for number in range(FOLDS):
        inner[number, fold == number] = np.nan
    return cache, SignedItems(fold, fold % LAYERS, decisions, cache.manifest, inner)


def settings(**changes: Any) -> Settings:
    fields: dict[str, Any] = {
        "places": ("0", "2"),
        "sizes": (1.0, 2.0),
        "alpha_unit": "median",
        "conditions": ("signed", "oracle", "fixed", "negated", "random", "shuffled", "orthogonal"),
        "n_random": 4,
        "n_control": 3,
        "seed": 7,
    }
    return Settings(**fields | changes)


def vector_of(plans: Any, cells: Any, fold: int, cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    """Direction and signed sizes of a fold in a cell."""
    (index,) = np.flatnonzero(plans[fold].cells == cells.index(cell))
    return plans[fold].vectors[plans[fold].which[index]], plans[fold].coefficients[index]


def relabelled(cache: ActivationCache, labels: np.ndarray) -> Any:
    class View:
        label = labels.astype(np.int8)

        def __getattr__(self, name: str) -> Any:
            return getattr(cache, name)

    return View()


def sweep_of(correct: dict[tuple[str, str], np.ndarray], **changes: Any) -> SteeringSweep:
    """A sweep whose cells are right where they are said to be; layer 3, size 1."""
    n = len(next(iter(correct.values())))
    label = np.arange(n) % 2 == 0
    cells = [Cell(BASELINE, 0.0, BASELINE)]
    cells += [
        Cell("3", 1.0, condition, draw) for condition, draw in correct if condition != BASELINE
    ]
    said = np.stack([np.equal(right, label) for right in correct.values()])
    logits = np.where(said[..., None], [1.0, -1.0], [-1.0, 1.0]).astype(np.float32)
    fields: dict[str, Any] = {
        "cells": tuple(cells),
        "logits": logits,
        "push": np.ones((len(cells), n), np.int8),
        "alpha": np.array([cell.size for cell in cells]),
        "alpha_absolute": np.array([2 * cell.size for cell in cells]),
        "sign": np.ones(n, np.int64),
        "fold": np.arange(n) // 2 % 5,
        "item_id": tuple(map(str, range(n))),
        "label": label,
        "group_id": tuple(f"g{index // 2}" for index in range(n)),
        "chosen": (("3", 1.0),) * 5,
        "chosen_on_inner_folds": False,
        "n_without_effect": 0,
        "settings": {"positions": "last_prompt"},
        "seed": 0,
        "manifest": {},
    }
    return SteeringSweep(**fields | changes)


def right(n: int, total: int = 100) -> np.ndarray:
    return np.random.default_rng(n).permutation(np.arange(total) < n)
