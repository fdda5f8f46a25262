"""Residual streams by a loop over the blocks, written by hand: what every backend is held to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["FAMILIES", "POSITIONS", "SEQUENCES", "TOLERANCE", "loop_over_blocks", "relative"]

FAMILIES = ("llama", "qwen3", "gemma3", "gpt2")
# Unequal lengths; ids below the tokenizer's size.
SEQUENCES = [[7, 30, 41, 5, 99, 12, 250], [8, 77, 3], [11, 4, 60, 61, 62], [200, 201]]
POSITIONS = [4, 2, 0, 1]
# float32 rounding: a padded batch with a mask sums in another order than one row alone.
TOLERANCE = 1e-5


def loop_over_blocks(model: Any, family: str, ids: list[int]) -> tuple[list[Tensor], Tensor]:
    """Residual streams of one unpadded sequence and its logits, block by block.

    The causal mask is written out and attention is eager, so that nothing here relies on how
    transformers builds masks.
    """
    tokens = torch.tensor([ids])
    seq = len(ids)
    positions = torch.arange(seq)[None]
    mask = torch.full((seq, seq), torch.finfo(torch.float32).min).triu(1)[None, None]
    if family == "gpt2":
        inner = model.transformer
        hidden = inner.wte(tokens) + inner.wpe(positions)
        blocks, norm = inner.h, inner.ln_f
    else:
        inner = model.model
        hidden = inner.embed_tokens(tokens)
        blocks, norm = inner.layers, inner.norm
    streams = [hidden]
    for layer, block in enumerate(blocks):
        inputs: dict[str, Any] = {"attention_mask": mask}
        if family == "gemma3":
            kind = model.config.layer_types[layer]
            inputs["position_embeddings"] = inner.rotary_emb(hidden, positions, kind)
        elif family != "gpt2":
            inputs["position_embeddings"] = inner.rotary_emb(hidden, positions)
        output = block(hidden, **inputs)
        hidden = output[0] if isinstance(output, tuple) else output
        streams.append(hidden)
    return [stream[0] for stream in streams], model.lm_head(norm(hidden))[0]


def relative(got: Tensor, expected: Tensor) -> float:
    return float(((got - expected).norm(dim=-1) / expected.norm(dim=-1)).max())
