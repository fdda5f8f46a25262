"""Initial factors that an initialisation takes from the base alone: PiSSA and OLoRA.

PEFT runs the same computation again whenever such an adapter is loaded. Their product does not
depend on the signs, or the rotations among equal singular values, that two libraries may choose.
Others cannot be told from the base: `pissa_niter_N` draws random numbers, CorDA and LoRA-GA look at
data, LoftQ at a quantised copy of the base.

Sources: PiSSA (Meng et al., 2024), section 3; OLoRA (Büyükakyüz, 2024), section 3.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import torch

from interp.adapters.config import AdapterConfig
from interp.adapters.delta import LowRank, to_matrix
from interp.adapters.findings import Finding, finding
from interp.adapters.thresholds import RECOMPUTED_RHO
from interp.adapters.updates import Update

__all__ = ["leading_triplets", "recomputed"]

_LARGE: Final = 1024
_FOR_SURE: Final = 10.0  # times the error that a change must be to be told from it


def recomputed(update: Update, config: AdapterConfig) -> Update | Finding | None:
    """The update of the adapter as it was initialised, from the base's weight.

    Args:
        update: of the trained adapter.
        config: its config, which is `recomputable`.

    Returns:
        the initial update; why it cannot be told; None for updates that started at zero.
    """
    a, b, rank, scaling = update.a, update.b, update.rank, update.scaling
    # Embeddings and convolutions start as plain LoRA whatever the config says.
    if a is None or b is None or a.ndim > 2 or update.zero == "a":
        return None
    if update.origin is None or update.origin.ndim != 2 or rank is None or not scaling:
        return _unknown(update, "the base has no such matrix")
    weight = to_matrix(update.origin, update.layout).float()
    if tuple(weight.shape) != (b.shape[0], a.shape[1]) or rank > min(weight.shape):
        return _unknown(update, "the base has another shape")
    if config.init == "olora":
        if update.layout == "transposed":
            return _unknown(update, "OLoRA does not fit a Conv1D")
        q, r = torch.linalg.qr(weight)
        left, right = q[:, :rank], r[:rank]
    else:
        u, values, v = leading_triplets(weight, rank)
        roots = (values[:rank] / scaling).sqrt()
        left, right = u[:, :rank] * roots, roots[:, None] * v[:rank]
        size = float(torch.linalg.vector_norm(weight, dtype=torch.float64))
        error = _error(values, rank, size)
        if error > RECOMPUTED_RHO * _FOR_SURE:
            moved = (b.double() @ a.double() - left.double() @ right.double()).norm() * scaling
            if float(moved) <= _FOR_SURE * error * size:
                return _unknown(
                    update,
                    f"singular values {rank} and {rank + 1} of the base lie too close together",
                )
    # Each pair of columns has the signs that the trained ones have.
    signs = torch.sign((left * b.float()).sum(dim=0) + (right * a.float()).sum(dim=1))
    signs = torch.where(signs == 0, 1.0, signs)
    left, right = _as_started(left * signs, right * signs[:, None], a, b, update.origin.dtype)
    return Update(
        update.name,
        update.module,
        update.kind,
        layout=update.layout,
        delta=LowRank(left[None], right[None], scaling),
        a=right,
        b=left,
        rank=rank,
        scaling=scaling,
        # Under DoRA what is left of the base and the product make the base again.
        magnitude=None
        if update.magnitude is None
        else torch.linalg.vector_norm(weight, dim=1).reshape(update.magnitude.shape),
    )


def leading_triplets(
    weight: torch.Tensor, rank: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The `rank` largest singular triplets and one more, in float32; of small matrices all.

    Of large ones by Lanczos in float64, to machine precision: several times faster than all.
    """
    if min(weight.shape) < _LARGE or (rank + 1) * 16 > min(weight.shape):
        return tuple(torch.linalg.svd(weight, full_matrices=False))
    from scipy.sparse.linalg import ArpackError, svds

    start = np.random.default_rng(0).standard_normal(min(weight.shape))
    try:
        u, values, v = svds(weight.double().numpy(), k=rank + 1, v0=start, tol=0)
    except ArpackError:
        return tuple(torch.linalg.svd(weight, full_matrices=False))
    order = np.argsort(values)[::-1].copy()
    found = (u[:, order], values[order], v[order])
    first, second, third = (torch.from_numpy(part.copy()).float() for part in found)
    return first, second, third


def _as_started(
    left: torch.Tensor, right: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The factors as training found them: rounded to the format that the base was loaded in.

    PEFT rounds them to it even where it then widens them again. That is the base's own format,
    unless another one comes much closer to the trained factors: small steps leave it visible, and
    beside large ones the rounding does not matter.
    """
    formats = dict.fromkeys((dtype, torch.float32, torch.bfloat16, torch.float16))
    rounded = [(left.to(form).float(), right.to(form).float()) for form in formats]

    def distance(pair: tuple[torch.Tensor, torch.Tensor]) -> float:
        parts = zip(pair, (b, a), strict=True)
        return math.prod(float((ours - saved.float()).norm()) for ours, saved in parts)

    nearest = min(rounded, key=distance)
    return nearest if distance(nearest) < distance(rounded[0]) / 4 else rounded[0]


def _error(values: torch.Tensor, rank: int, size: float) -> float:
    """How far off the best product of that rank may be in float32, over `size` = ‖W‖_F.

    A perturbation of eps·σ₁ turns the leading space by about that over the gap behind it.
    """
    if rank >= len(values):
        return 0.0
    values = values.double()
    gap = float(values[rank - 1] - values[rank])
    step = torch.finfo(torch.float32).eps * float(values[0])
    if size == 0 or step == 0:
        return 0.0
    turned = min(1.0, step / gap) if gap > 0 else 1.0
    return turned * float(values[rank - 1]) / size


def _unknown(update: Update, why: str) -> Finding:
    return finding("rewritten_base", f"The start of {update.name} cannot be computed: {why}.")
