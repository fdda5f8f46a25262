"""An update beside a direction of the residual stream: how much of ΔW writes along it?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from interp.adapters.delta import Delta, LowRank, blocks
from interp.adapters.findings import Finding, finding
from interp.adapters.results import DirectionOverlap, ModuleAudit
from interp.direction import Direction
from interp.errors import AdapterError

__all__ = ["about_direction", "direction_overlap", "overlap_of", "writes"]

# Ends of modules whose output is added to the residual stream, in the families of transformers.
_WRITERS: Final = (
    *("o_proj", "down_proj", "out_proj", "c_proj", "fc_out", "fc2", "dense_4h_to_h", "wo", "w2"),
    *("attention.dense", "self_attention.dense", "output.dense", "self_attn.dense"),
)


def writes(module: str) -> bool:
    """Whether a module's output is added to the residual stream, by its name."""
    return any(module == end or module.endswith(f".{end}") for end in _WRITERS)


def direction_overlap(delta: Delta, vector: NDArray[np.float32]) -> float:
    """‖vᵀΔW‖ for a unit vector v in the output space: how much of ΔW writes along v.

    For modules that write to the residual stream (o_proj, down_proj), with v the direction of a
    probe. Beside ‖ΔW‖_F/√out, what a random direction gives.

    Args:
        delta: of one matrix, or of stacked ones (fused experts), which count as one.
        vector: (out,); its length does not count.

    Raises:
        AdapterError: the sizes do not fit.
    """
    unit = torch.as_tensor(np.asarray(vector), dtype=torch.float64)
    n_outputs = delta.left.shape[1] if isinstance(delta, LowRank) else delta.n_rows
    if unit.shape != (n_outputs,):
        raise AdapterError(
            f"A direction of shape {tuple(unit.shape)} does not fit ΔW with {n_outputs} output "
            f"features. Take a module that writes to the residual stream."
        )
    unit = unit / unit.norm()
    if isinstance(delta, LowRank):
        # vᵀL first, so that nothing larger than the factors is made.
        left = torch.einsum("o,nor->nr", unit.to(delta.left.device), delta.left.double())
        written = torch.einsum("nr,nri->ni", left, delta.right.double())
        return float(written.norm()) * abs(delta.scale)
    written = torch.zeros(delta.n_columns, dtype=torch.float64)
    for start, stop in blocks(delta):
        written += unit[start:stop] @ delta.rows(start, stop).double().cpu()
    return float(written.norm())


def overlap_of(modules: Sequence[ModuleAudit], direction: Direction) -> DirectionOverlap | None:
    """Over all modules that write into the stream that the direction was read from.

    Args:
        modules: audited with this direction.
        direction: read after block `layer` (`resid_post`), or before it (`resid_pre`).

    Returns:
        None where no module writes to it.
    """
    last = direction.layer if direction.hook_point == "resid_post" else direction.layer - 1
    counted = [
        (m.direction_overlap, m.frobenius)
        for m in modules
        if m.direction_overlap is not None
        and m.frobenius is not None
        and m.layer is not None
        and m.layer <= last
    ]
    if not counted:
        return None
    d_model = direction.vector.shape[0]
    return DirectionOverlap(
        layer=direction.layer,
        method=direction.method,
        n_modules=len(counted),
        overlap=math.hypot(*(overlap for overlap, _ in counted)),
        expected=math.hypot(*(size for _, size in counted)) / math.sqrt(d_model),
    )


def about_direction(
    modules: Sequence[ModuleAudit], direction: Direction, *, same_model: bool | None
) -> list[Finding]:
    """Why there is no overlap, and whether the direction is of another model.

    Args:
        modules: audited with this direction.
        direction: that was given.
        same_model: whether its model is called as the adapter's base; None where that is not known.
    """
    found = []
    if same_model is False:
        found.append(
            finding(
                "direction_of_another_model",
                f"The direction was read from {direction.model_id!r}, which neither the config nor "
                f"the base is called.",
            )
        )
    if overlap_of(modules, direction) is not None:
        return found
    sizes = {m.shape[0] for m in modules if m.shape is not None and writes(m.module)}
    size = direction.vector.shape[0]
    if sizes and size not in sizes:
        why = f"modules that write have {', '.join(map(str, sorted(sizes)))} outputs, it has {size}"
    else:
        why = f"no adapted module writes to the residual stream before it (layer {direction.layer})"
    return [*found, finding("direction_not_written", f"Nothing along the direction: {why}.")]
