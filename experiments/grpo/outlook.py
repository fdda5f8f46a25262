"""What a training run can still reach, from its learning rates alone.

For AdamW no weight moves by more than Σ lr_t·c_t (`interp.adapters.budget`). With that bound β on
the entries of both factors, and B and A as they are now, s·(B + b)(A + a) differs from s·BA by at
most

    s·(‖b‖_F ‖A‖₂ + ‖B‖_F ‖a‖_F + ‖b‖_F ‖a‖_F),    ‖b‖_F ≤ β√n_B, ‖a‖_F ≤ β√n_A,

in the Frobenius norm, and by at most max_j Σ_k|A_kj| · sβ + s·r·max|B|·β + s·r·β² in one entry.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from interp.adapters.budget import adam_bounds
from interp.adapters.results import ModuleAudit
from interp.adapters.thresholds import WEAK_DELTA, WEAK_RHO

__all__ = ["planned_rates", "possible_size", "remaining_bound"]

_FACTORED: Final = ("linear", "embedding", "conv", "experts")


def planned_rates(scheduler: Any, n_steps: int) -> NDArray[np.float64]:
    """Learning rate of every step 1 … n_steps; the largest over the parameter groups.

    Schedulers that are no function of the step (as `LambdaLR` is) give the peak for every step.

    Args:
        scheduler: of torch, possibly wrapped by accelerate; it is not stepped.
        n_steps: steps of the whole run.
    """
    scheduler = getattr(scheduler, "scheduler", scheduler)
    bases = [float(rate) for rate in getattr(scheduler, "base_lrs", [])]
    lambdas = getattr(scheduler, "lr_lambdas", None)
    if not bases:
        return np.zeros(n_steps)
    if lambdas is None:
        return np.full(n_steps, max(bases))
    return np.array(
        [
            max(base * float(factor(step)) for base, factor in zip(bases, lambdas, strict=True))
            for step in range(n_steps)
        ]
    )


def remaining_bound(rates: NDArray[np.float64], done: int, beta1: float, beta2: float) -> float:
    """Σ lr_t·c_t over the steps after the first `done`."""
    bounds = adam_bounds(len(rates), beta1, beta2) if len(rates) else np.zeros(0)
    return float((rates[done:] * bounds[done:]).sum())


def possible_size(modules: Sequence[ModuleAudit], bound: float) -> float | None:
    """The largest size that any module can still reach, in units of the threshold of `weak`.

    Below 1 no gradients can make the adapter `effective`.

    Args:
        modules: figures of now.
        bound: how far an entry of a factor can still move.

    Returns:
        None where something is trained that has no such bound, or nothing is.
    """
    sizes = [_possible(module, bound) for module in modules]
    if any(size is None for size in sizes):
        return None
    return max((size for size in sizes if size is not None), default=None)


def _possible(module: ModuleAudit, bound: float) -> float | None:
    known = (module.reach_max, module.reach_frobenius, module.scaling, module.rank, module.shape)
    if module.kind not in _FACTORED or None in known:
        return None
    reach_max, reach_frobenius, scaling, rank, shape = known
    assert reach_max is not None and reach_frobenius is not None and shape is not None
    scale, n_b = abs(scaling or 0.0), module.n_moved or 0
    if module.base_norm:
        n_a = (rank or 0) * max(shape)  # the smaller side would do for one of them
        now = module.frobenius or 0.0
        more = bound * reach_frobenius
        more += scale * (module.moved_norm or 0.0) * bound * math.sqrt(n_a)
        more += scale * bound**2 * math.sqrt(n_a * n_b)
        return (now + more) / module.base_norm / WEAK_RHO
    now = module.max_abs_delta or 0.0
    more = bound * reach_max
    more += scale * (rank or 0) * ((module.moved_max or 0.0) * bound + bound**2)
    return (now + more) / WEAK_DELTA
