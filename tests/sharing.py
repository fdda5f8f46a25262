"""Prompts with common beginnings, and models to run them on, for the tests of shared prefixes."""

from dataclasses import replace
from typing import Any

import torch

from activations import HFBackend, describe_source
from interp import Item, Message, load_items, open_source

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen3": ("qwen3", {}),
    "gpt2": ("gpt2", {}),
    "gemma3": ("gemma3", {}),
    # Windows far shorter than the prefix, and longer than it but shorter than the sequences.
    "gemma3-window-16": (
        "gemma3",
        {
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "gemma3-window-70": ("gemma3", {"sliding_window": 70}),
}
N_PREFIX = 61
SYSTEM = ("The rules of the first table. " * 12, "Quite other rules hold at this table. " * 9)


def random_ids(*lengths: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(4, 300, (n,), generator=generator).tolist() for n in lengths]


def items_at_tables(n: int) -> tuple[Item, ...]:
    """Items under two long system messages, and one of its own."""
    facts = load_items(open_source("facts"), n=n, seed=1)
    items = [
        replace(item, messages=(Message("system", SYSTEM[row % 2]), *item.messages))
        for row, item in enumerate(facts)
    ]
    items[5] = replace(facts[5], messages=(Message("user", "Alone. " * 30), *facts[5].messages))
    return tuple(items)


def described(items: tuple[Item, ...]) -> dict[str, Any]:
    return describe_source(open_source("facts"), items, view=None, seed=1)


def count_tokens(backend: HFBackend) -> list[int]:
    """Positions run by every later forward pass, filled as they happen."""
    seen: list[int] = []
    backend.blocks[0].register_forward_hook(
        lambda _m, _a, output: seen.append(output.shape[0] * output.shape[1])
    )
    return seen
