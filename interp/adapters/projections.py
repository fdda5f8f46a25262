"""The frozen random bases of VeRA and RandLora where the file leaves them out.

With `save_projection=False` only `projection_prng_key` is kept. PEFT draws the bases on the CPU
from a generator with that seed, in the largest widths of all adapted modules; the same draws are
made here. The widths of the inputs are in no tensor of such a file: they need the base.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from interp.adapters.config import AdapterConfig

__all__ = ["regenerated"]

_MOST_ELEMENTS = 2**29


def regenerated(
    config: AdapterConfig, shapes: Sequence[tuple[int, int]]
) -> dict[str, torch.Tensor]:
    """The shared bases as PEFT draws them.

    Args:
        config: of VeRA or RandLora.
        shapes: (out, in) of every adapted module.

    Returns:
        by part, `vera_A` and `vera_B` or `randlora_A` and `randlora_B`.

    Raises:
        ValueError: no modules, or a base that no model has.
    """
    if not shapes:
        raise ValueError("there are no modules to take the widths of the shared bases from")
    out, inner = (max(shape[side] for shape in shapes) for side in (0, 1))
    if config.r * max(out, inner) > _MOST_ELEMENTS:
        raise ValueError(f"shared bases of rank {config.r} and width {max(out, inner)}")
    # VeRA's and RandLora's own default is 0.
    key = int(config.raw.get("projection_prng_key") or 0)
    generator = torch.Generator().manual_seed(key)
    if config.method == "VERA":
        return {
            "vera_A": _kaiming((config.r, inner), generator, torch.float32, gain=2),
            "vera_B": _kaiming((out, config.r), generator, torch.float32, gain=2),
        }
    long, short = max(out, inner), min(out, inner)
    n_bases = -(-short // config.r)
    if config.raw.get("very_sparse") or config.raw.get("sparse"):
        sparsity = math.sqrt(short) if config.raw.get("very_sparse") else 3.0
        a = _sparse((config.r, 1, short), sparsity, generator)
        b = _sparse((long, n_bases, config.r), sparsity, generator)
    else:
        # PEFT draws these in bfloat16 (in float16 on GPUs that lack it: 0.4% away from here).
        a = _kaiming((config.r, 1, short), generator, torch.bfloat16, gain=1 / 3)
        shape = (long, 1, config.r)
        drawn = [_kaiming(shape, generator, torch.bfloat16, gain=1 / 3) for _ in range(n_bases)]
        b = torch.cat(drawn, dim=1)
    return {"randlora_A": a / a.std(), "randlora_B": b / b.std()}


def _kaiming(
    shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype, *, gain: float
) -> torch.Tensor:
    """Uniform with variance gain/fan_in, with fan_in as torch counts it: all but the first side."""
    # In this order of operations, so that the last bits are the same.
    bound = math.sqrt(3.0) * (math.sqrt(gain) / math.sqrt(math.prod(shape[1:])))
    return torch.empty(shape, dtype=dtype).uniform_(-bound, bound, generator=generator)


def _sparse(shape: tuple[int, ...], sparsity: float, generator: torch.Generator) -> torch.Tensor:
    """−1 and 1 with probability 1/(2·sparsity) each, else 0."""
    drawn = torch.rand(shape, generator=generator, dtype=torch.float32)
    low, high = drawn < 1 / (2 * sparsity), drawn > 1 - 1 / (2 * sparsity)
    return high.float() - low.float()
