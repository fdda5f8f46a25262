"""Steering written by hand, to compare hooks with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from activations.hooks import find_blocks
from interp.direction import Direction

__all__ = [
    "NEW",
    "PROMPTS",
    "by_hand",
    "generated",
    "greedy_by_hand",
    "padded",
    "some_direction",
    "unit",
]


PROMPTS = [[5, 9, 30, 12], [8, 77], [200, 3, 41, 6, 17, 90, 4]]


NEW = 6


def unit(values: Any, layer: int = 1, **changes: Any) -> Direction:
    vector = np.array(values, dtype=np.float32)
    fields: dict[str, Any] = {
        "vector": vector / np.linalg.norm(vector),
        "layer": layer,
        "hook_point": "resid_post",
        "method": "class_mean",
        "class_gap": 1.0,
        "median_norm": 2.0,
        "model_id": "tiny-llama",
        "token_rule": "last_prompt",
        "n_true": 1,
        "n_false": 1,
    }
    return Direction(**fields | changes)


def some_direction(layer: int = 1, seed: int = 0, **changes: Any) -> Direction:
    return unit(np.random.default_rng(seed).normal(size=32), layer, **changes)


def named(policy: str, length: int, prompt: int) -> list[int]:
    """The tokens of an unpadded sequence that a policy names, written out."""
    return {
        "last_prompt": [prompt - 1],
        "prompt": list(range(prompt)),
        "generated": list(range(prompt - 1, length)),
        "all": list(range(length)),
    }[policy]


@torch.inference_mode()
def by_hand(
    model: Any, ids: list[int], prompt: int, direction: Direction, size: float, policy: str
) -> Tensor:
    """Logits after one unpadded sequence under a hook of our own, no cache."""
    shift = torch.from_numpy(direction.vector) * size

    def hook(_module: Any, _args: Any, output: Any) -> Any:
        hidden = (output[0] if isinstance(output, tuple) else output).clone()
        hidden[:, named(policy, len(ids), prompt)] += shift
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    handle = find_blocks(model)[direction.layer].register_forward_hook(hook)
    try:
        logits: Tensor = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        return logits
    finally:
        handle.remove()


def greedy_by_hand(
    model: Any, prompt: list[int], direction: Direction, size: float, policy: str
) -> list[int]:
    ids = list(prompt)
    for _ in range(NEW):
        logits = by_hand(model, ids, len(prompt), direction, size, policy)
        ids.append(int(logits.argmax()))
    return ids[len(prompt) :]


def padded(prompts: list[list[int]]) -> dict[str, Tensor]:
    longest = max(map(len, prompts))
    return {
        "input_ids": torch.tensor([[1] * (longest - len(p)) + p for p in prompts]),
        "attention_mask": torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts]),
    }


def generated(model: Any, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    inputs = padded(prompts)
    output = model.generate(
        **inputs,
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        do_sample=False,
        pad_token_id=1,
        eos_token_id=399,
        **options,
    )
    return [row[inputs["input_ids"].shape[1] :] for row in output.tolist()]
