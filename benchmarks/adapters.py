"""Adapter audits: cores and blocks against the materialised ΔW and its full SVD.

Shapes of a 7B model (Qwen2.5-7B), rank 64, all linear modules: 28 layers of 7 modules. One layer
is timed, in CPU seconds of one thread, and multiplied by 28. The two sides are alternated; ours is
repeated and the median taken. The dense side takes minutes: --only q_proj,k_proj for a quick look.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

from interp.adapters import audit_path
from interp.adapters.delta import LowRank, materialise
from interp.adapters.norms import max_abs, spectrum

HIDDEN, KV, INNER, LAYERS, RANK = 3584, 512, 18944, 28, 64
SHAPES = {
    "q_proj": (HIDDEN, HIDDEN),
    "k_proj": (KV, HIDDEN),
    "v_proj": (KV, HIDDEN),
    "o_proj": (HIDDEN, HIDDEN),
    "gate_proj": (INNER, HIDDEN),
    "up_proj": (INNER, HIDDEN),
    "down_proj": (HIDDEN, INNER),
}


def factors(out: int, inner: int, seed: int) -> LowRank:
    generator = torch.Generator().manual_seed(seed)
    a = (torch.rand(1, RANK, inner, generator=generator) * 2 - 1) / math.sqrt(inner)
    return LowRank(torch.randn(1, out, RANK, generator=generator) * 1e-3, a, 2.0)


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def svdvals(delta: LowRank) -> torch.Tensor:
    """The dense side, in its faster orientation: LAPACK is several times slower on wide ones."""
    matrix = materialise(delta)
    return torch.linalg.svdvals(matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T)


def compare(names: list[str], repeats: int) -> None:
    norms: list[float] = []
    maxima: list[float] = []
    dense: list[float] = []
    seen: dict[tuple[int, int], tuple[float, float, float]] = {}
    for seed, name in enumerate(names):
        shape = SHAPES[name]
        if shape not in seen:
            delta = factors(*shape, seed)
            ours = [cpu_seconds(lambda d=delta: spectrum(d)) for _ in range(repeats)]
            exact = [cpu_seconds(lambda d=delta: max_abs(d)) for _ in range(repeats)]
            reference: list[torch.Tensor] = []
            full = cpu_seconds(lambda d=delta, r=reference: r.append(svdvals(d)))
            ours += [cpu_seconds(lambda d=delta: spectrum(d)) for _ in range(repeats)]
            exact += [cpu_seconds(lambda d=delta: max_abs(d)) for _ in range(repeats)]
            error = abs(spectrum(delta).spectral / float(reference[0][0]) - 1)
            if error > 1e-4:
                raise SystemExit(f"{name}: the spectral norms differ by {error:.1e}")
            seen[shape] = (statistics.median(ours), statistics.median(exact), full)
        norm, exact_max, full = seen[shape]
        print(
            f"{name:10} {shape[0]:6} x {shape[1]:<6} norms {norm * 1e3:8.1f} ms   max "
            f"{exact_max * 1e3:8.1f} ms   dense {full:8.2f} s   {full / norm:7.0f} x, with max "
            f"{full / (norm + exact_max):6.0f} x"
        )
        norms.append(norm)
        maxima.append(exact_max)
        dense.append(full)
    print(
        f"{LAYERS} layers: norms {sum(norms) * LAYERS:.1f} s, with max "
        f"{(sum(norms) + sum(maxima)) * LAYERS:.1f} s, dense {sum(dense) * LAYERS:.0f} s: "
        f"{sum(dense) / sum(norms):.0f} x, with max {sum(dense) / (sum(norms) + sum(maxima)):.0f} x"
    )


def whole_audit(layers: int) -> None:
    """Wall time and peak memory of an audit from a file, without a base."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tensors = {}
        for layer in range(layers):
            for seed, (module, shape) in enumerate(SHAPES.items()):
                delta = factors(*shape, seed)
                key = f"base_model.model.model.layers.{layer}.{module}"
                tensors[f"{key}.lora_A.weight"] = delta.right[0].bfloat16()
                tensors[f"{key}.lora_B.weight"] = delta.left[0].bfloat16()
        save_file(tensors, folder / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK}
        (folder / "adapter_config.json").write_text(json.dumps(config))
        del tensors
        start, cpu = time.perf_counter(), time.process_time()
        (audit,) = audit_path(folder)
        print(
            f"audit of {layers * len(SHAPES)} modules from a file: "
            f"{time.perf_counter() - start:.1f} s wall, {time.process_time() - cpu:.1f} s CPU; "
            f"{audit.verdict}, max|ΔW| {audit.totals.max_abs_delta:.3g}"
        )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"peak memory of this process: {peak:.2f} GiB (torch and the benchmark included)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="q_proj,k_proj", help="modules, comma-separated, or all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--audit-layers", type=int, default=LAYERS, help="0 leaves the audit out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.audit_layers:
        # First, so that the peak is not that of the dense side.
        whole_audit(options.audit_layers)
    names = list(SHAPES) if options.only == "all" else options.only.split(",")
    compare(names, options.repeats)


if __name__ == "__main__":
    sys.exit(main())
