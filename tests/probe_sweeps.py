"""Caches without a signal, and what sweeps of them need."""

from typing import Any

import numpy as np
from caches import Cache

from interp import Item, Message
from probes import sweep_layers


def twins(
    rng: np.random.Generator, *, n_groups: int = 20, layers: int = 3, width: int = 12
) -> Cache:
    """Groups of two True and two False items, without a signal."""
    labels = np.tile([True, False, True, False], n_groups)
    groups = [f"g{index}" for index in np.repeat(np.arange(n_groups), 4)]
    return Cache(rng.normal(size=(len(labels), layers, width)), labels, groups)


def constant_groups(rng: np.random.Generator, *, n_groups: int = 40, layers: int = 3) -> Cache:
    """Groups of one label each, whose items look alike."""
    labels = np.repeat(np.arange(n_groups) % 2 == 0, 3)
    groups = [f"g{index}" for index in np.repeat(np.arange(n_groups), 3)]
    shared = np.repeat(rng.normal(size=(n_groups, layers, 12)), 3, axis=0)
    return Cache(shared + 0.3 * rng.normal(size=shared.shape), labels, groups)


def sweep(cache: Cache, **options: Any):
    return sweep_layers(cache, **options)  # type: ignore[arg-type]


def items_of(cache: Cache, statements: list[str]) -> tuple[Item, ...]:
    return tuple(
        Item(
            item_id,
            (Message("user", f"Is it so? {statement}"),),
            bool(label),
            None,
            group,
            "c",
            {"statement": statement},
        )
        for item_id, label, group, statement in zip(
            cache.item_id, cache.label, cache.group_id, statements, strict=True
        )
    )
