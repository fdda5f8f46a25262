"""ΔW of the methods that turn a weight: OFT, BOFT and HRA, each by its own formula."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from interp.adapters.updates import Context, Group, Update, multiplied, working

__all__ = ["boft_updates", "hra_updates", "oft_updates"]


def oft_updates(group: Group, context: Context) -> Iterator[Update]:
    """W Rᵀ − W, R block-diagonal, the Cayley transform of skew blocks (Qiu et al., 2023)."""
    embedding = "oft_embedding_R" in group.tensors
    raw, upper = context.config.raw, group.tensors["oft_embedding_R" if embedding else "oft_R"]
    size = round((1 + (1 + 8 * upper.shape[1]) ** 0.5) / 2)
    skew = torch.zeros(upper.shape[0], size, size, dtype=working(upper))
    row, column = torch.triu_indices(size, size, 1)
    skew[:, row, column] = upper.to(skew.dtype)
    skew = skew - skew.transpose(1, 2)
    if raw.get("coft"):
        # Constrained OFT: blocks longer than this are shortened whenever they are used.
        longest = float(raw.get("eps", 6e-5)) / math.sqrt(len(skew))
        length = torch.linalg.matrix_norm(skew, keepdim=True)
        skew = torch.where(length > longest, skew * (longest / length), skew)
    eye = torch.eye(size, dtype=skew.dtype).expand_as(skew)
    if raw.get("use_cayley_neumann"):
        # (I + Q)(I − Q)⁻¹ with the inverse as a truncated series: I + 2Q + 2Q² + …, the last
        # power once; PEFT never stops before the third power once it has passed the first.
        terms = min(int(raw.get("num_cayley_neumann_terms", 5)), 1000)
        top = max(terms - 1, 3) if terms > 2 else terms - 1
        rotation, power = eye.clone(), eye
        for n in range(1, top + 1):
            power = power @ skew
            rotation = rotation + power * (1 if n == top and terms > 2 else 2)
    else:
        rotation = torch.linalg.solve(eye + skew, eye - skew, left=False)
    if embedding:
        rotation = rotation.transpose(1, 2)  # its rows are rotated as outputs, not as inputs

    def rows(weight: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        del start, stop
        return _rotated(weight, rotation) - weight.to(working(weight, rotation))

    yield multiplied(group, context, "method", rows, starts_zero=not bool(upper.any()))


def boft_updates(group: Group, context: Context) -> Iterator[Update]:
    """Scaled rows of W Mᵀ, minus W; M a product of permuted block rotations (Liu, 2024)."""
    raw, scale = group.tensors["boft_R"], group.tensors["boft_s"].flatten()
    n_asked = context.config.raw.get("boft_n_butterfly_factor")
    # Without its compiled extension PEFT takes one factor, whatever was asked for.
    if isinstance(n_asked, int) and raw.shape[0] not in (1, n_asked):
        raise ValueError(f"{raw.shape[0]} butterfly factors, the config has {n_asked}")
    weight = None if context.base is None else context.base.get(f"{group.module}.weight")
    if weight is not None and weight.shape[0] != scale.numel():
        raise ValueError(f"{scale.numel()} scales of {weight.shape[0]} outputs")
    still = not bool((raw - raw.transpose(-1, -2)).any()) and bool((scale == 1).all())
    skew = raw.to(working(raw))
    skew = (skew - skew.transpose(-1, -2)) / 2
    eye = torch.eye(skew.shape[-1], dtype=skew.dtype).expand_as(skew)
    rotation = torch.linalg.solve(eye + skew, eye - skew, left=False)
    n_factors, n_blocks, size, _ = rotation.shape

    def rows(weight: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        dtype = working(weight, rotation)
        moved = weight.to(dtype)
        for i in range(n_factors):
            order = _butterfly(n_blocks * size, n_blocks >> i, size // 2, n_factors > 1)
            back = torch.argsort(order)
            # M = P D Pᵀ: Pᵀ puts entry i where `order` names it, P takes it back.
            moved = _rotated(moved[:, back], rotation[i])[:, order]
        return moved * scale[start:stop, None].to(dtype) - weight.to(dtype)

    yield multiplied(group, context, "method", rows, starts_zero=still)


def hra_updates(group: Group, context: Context) -> Iterator[Update]:
    """W H − W, H a product of Householder reflections (Yuan et al., 2024)."""
    vectors = group.tensors["hra_u"]
    unit = vectors.to(working(vectors))
    unit = unit / torch.linalg.vector_norm(unit, dim=0)
    orthogonal = bool(context.config.raw.get("apply_GS"))
    if orthogonal:
        # Gram-Schmidt up to signs, which reflections do not see.
        unit = torch.linalg.qr(unit).Q
    # Reflections in equal pairs cancel: that is how it starts.
    still = vectors.shape[1] % 2 == 0 and bool(torch.equal(vectors[:, ::2], vectors[:, 1::2]))

    def rows(weight: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        del start, stop
        dtype = working(weight, unit)
        moved = weight.to(dtype)
        for column in unit.to(dtype).T:
            moved = moved - 2 * (moved @ column)[:, None] * column
        return moved - weight.to(dtype)

    yield multiplied(group, context, "method", rows, starts_zero=still and not orthogonal)


def _rotated(weight: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Rows times blockdiag(rotation)ᵀ; one block is used for all where there is only one."""
    dtype = working(weight, rotation)
    n_blocks, size = rotation.shape[0], rotation.shape[-1]
    cut = weight.to(dtype).reshape(weight.shape[0], -1, size)
    blocks = (
        rotation.to(dtype).expand(cut.shape[1], -1, -1) if n_blocks == 1 else rotation.to(dtype)
    )
    return torch.einsum("rbk,bjk->rbj", cut, blocks).flatten(1)


def _butterfly(n: int, n_blocks: int, half: int, shuffled: bool) -> torch.Tensor:
    """Order in which BOFT takes features: in each block, even groups of `half`, then odd ones."""
    order = torch.arange(n)
    if not shuffled or n_blocks < 1:
        return order
    groups = order.reshape(n_blocks, -1, half)
    return torch.cat((groups[:, ::2], groups[:, 1::2]), dim=1).flatten()
