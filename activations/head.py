"""What a model's head reads for its verdict: rows of the unembedding, and the final norm."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from activations.hooks import find_blocks
from interp.errors import ModelError

__all__ = ["VerdictHead", "verdict_head"]


@dataclass(frozen=True, slots=True)
class VerdictHead:
    """The part of the head that tells True from False.

    Attributes:
        rows: (2, d_model) float32, the unembedding of True and of False.
        norm_weight: (d_model,) float32, the factor that the final norm applies after normalising;
            None where no module stands between the last block and the head.
        centred: whether the final norm subtracts the mean.
    """

    rows: NDArray[np.float32]
    norm_weight: NDArray[np.float32] | None
    centred: bool


def verdict_head(model: Any, true_id: int, false_id: int) -> VerdictHead:
    """Read the rows of two tokens and measure the final norm.

    The norm is what the last block's output enters first, found in a pass over one token. Its
    factor is measured and not looked up by name, because families store it differently (Gemma's is
    one more than its parameter).

    Args:
        model: a causal language model of transformers.
        true_id: token of True.
        false_id: token of False.

    Raises:
        ModelError: the model has no output embedding.
    """
    head = model.get_output_embeddings()
    if head is None:
        raise ModelError(f"{type(model).__name__} has no output embedding to read a verdict from.")
    rows = head.weight[[true_id, false_id]].detach().float().cpu().numpy()
    norm = _final_norm(model, head, true_id)
    if norm is None:
        return VerdictHead(rows, None, centred=False)
    weight, centred = _measured(norm, rows.shape[1])
    return VerdictHead(rows, weight, centred)


def _final_norm(model: Any, head: nn.Module, token: int) -> nn.Module | None:
    """The first module after the blocks that takes the last block's output; not the head."""
    blocks = find_blocks(model)
    inside = {id(module) for module in blocks.modules()}
    last: list[Tensor] = []
    found: list[nn.Module] = []

    def keep(_module: nn.Module, _args: object, output: object) -> None:
        first = output[0] if isinstance(output, tuple) else output
        assert isinstance(first, Tensor)
        last.append(first)

    def compare(module: nn.Module, args: tuple[object, ...]) -> None:
        first = args[0] if args else None
        if last and isinstance(first, Tensor) and first.shape == last[-1].shape:
            same = first.device == last[-1].device and torch.equal(first, last[-1])
            if same and not any(True for _ in module.children()):
                found.append(module)

    handles = [blocks[-1].register_forward_hook(keep)]
    handles += [
        module.register_forward_pre_hook(compare)
        for module in model.modules()
        if id(module) not in inside
    ]
    try:
        device = model.get_input_embeddings().weight.device
        with torch.no_grad():
            model(input_ids=torch.tensor([[token]], device=device))
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found and found[0] is not head else None


def _measured(norm: nn.Module, width: int) -> tuple[NDArray[np.float32], bool]:
    """Factor of a norm on what it normalised, and whether it subtracts the mean."""
    exact = copy.deepcopy(norm).float().cpu()
    # Mean 0 and root mean square 1 but for the factor, beside which a norm's epsilon vanishes:
    # so the normalised stream is `signs`, and the bias cancels between both signs.
    signs = torch.ones(1, 1, width)
    signs[..., 1::2] = -1
    size = 1000.0
    with torch.no_grad():
        positive, negative = exact(size * signs), exact(-size * signs)
        shifted, twice = exact(size * signs + size / 2), exact(2 * size * signs)
    weight = ((positive - negative) / 2 * signs)[0, 0]
    slack = 1e-3 * float(weight.abs().max())
    centred = torch.allclose(shifted, positive, rtol=1e-3, atol=slack)
    if not torch.allclose(twice, positive, rtol=1e-3, atol=slack):
        weight = weight / size  # a layer that scales without normalising, or does nothing
    return weight.numpy(), centred
