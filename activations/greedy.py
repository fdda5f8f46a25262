"""Greedy decoding over a left-padded batch, whatever runs the model."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from activations.tokens import PaddedBatch

__all__ = ["greedy_continuations", "stop_ids_of"]

Step = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From the newest ids and positions (n, 1), and is_token (n, seq) of all columns, to the next
logits (n, d_vocab)."""


def stop_ids_of(model: Any, tokenizer: Any) -> frozenset[int]:
    """Ids that end a reply: what the model's generation settings name, and the tokenizer's own."""
    named = model.generation_config.eos_token_id
    stops = {named} if isinstance(named, int) else set(named or ())
    return frozenset(stops | ({tokenizer.eos_token_id} - {None}))


def greedy_continuations(
    batch: PaddedBatch,
    first: Tensor,
    step: Step,
    stop_ids: Collection[int],
    max_new_tokens: int,
) -> tuple[tuple[int, ...], ...]:
    """Take the likeliest token until every row has stopped; rows are cut before their stop.

    Written out, because `generate` of transformers fills in what the model's own generation
    settings ask for (a repetition penalty, say), and the answer would no longer be the greedy one.

    Args:
        batch: the prompts.
        first: (n, d_vocab) logits after them.
        step: runs one more token a row.
        stop_ids: ids that end a row.
        max_new_tokens: cut.
    """
    stops = torch.tensor(sorted(stop_ids), device=first.device)
    finished = torch.zeros(len(first), dtype=torch.bool, device=first.device)
    is_token, positions, logits = batch.is_token, batch.position_ids, first
    produced: list[Tensor] = []
    while True:
        ids = logits.argmax(dim=-1, keepdim=True)
        produced.append(ids)
        finished |= torch.isin(ids[:, 0], stops)
        if len(produced) == max_new_tokens or bool(finished.all()):
            break
        more = torch.ones_like(ids, dtype=torch.bool, device=is_token.device)
        is_token = torch.cat([is_token, more], dim=1)
        positions = positions[:, -1:] + 1
        logits = step(ids, positions, is_token)
    return tuple(_until(row, stop_ids) for row in torch.cat(produced, dim=1).tolist())


def _until(ids: list[int], stops: Collection[int]) -> tuple[int, ...]:
    end = next((index for index, token in enumerate(ids) if token in stops), len(ids))
    return tuple(ids[:end])
