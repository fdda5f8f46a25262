"""Activation caches in memory, for tests that need no model."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Cache"]


class Cache:
    """A cache in memory: what sweeps and directions read of an `ActivationCache`."""

    def __init__(
        self,
        layers: np.ndarray,
        labels: np.ndarray,
        groups: list[str],
        categories: list[str] | None = None,
    ) -> None:
        self.layers = layers.astype(np.float32)
        self.n_items, self.n_layers, self.d_model = layers.shape
        self.label = labels.astype(np.int8)
        self.group_id = tuple(groups)
        self.item_id = tuple(f"i{index}" for index in range(self.n_items))
        self.category = tuple(categories or ["c"] * self.n_items)
        self.resid_norm = np.ones((self.n_items, self.n_layers), np.float32)
        self.answer_logits = np.full((self.n_items, 2), np.nan, np.float32)
        self.manifest: dict[str, Any] = {
            "model": {"model_id": "m"},
            "source": {"name": "s"},
            "token_rule": "last_prompt",
        }

    def resid_post(self, layer: int) -> np.ndarray:
        return self.layers[:, layer]

    def resid_pre0(self) -> np.ndarray:
        return self.layers[:, 0]
