"""Adapter audits: cores and blocks against the materialised ΔW and its full SVD.

Shapes of a 7B model (Qwen2.5-7B), rank 64, all linear modules: 28 layers of 7 modules. One layer
is timed, in CPU seconds of one thread, and multiplied by 28. The two sides are alternated; ours is
repeated and the median taken. The dense side takes minutes with --only all; the default is a quick
look at two modules, small ones, for which less is gained.

The audit of the whole adapter, from a file and without a base, runs in a process of its own, so
that its peak memory is its own: torch included, nothing of the benchmark's. Exits with 1 where a
figure falls short: memory under 1 GB (10⁹ bytes), and with --only all norms and spectra 200 times
faster, with the exact maximum 40 times.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
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

NORM_RATIO, MAX_RATIO, MOST_MEMORY = 200, 40, 10**9
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


def compare(names: list[str], repeats: int) -> bool:
    """Both sides of one layer, extrapolated; whether ours is as much faster as it should be."""
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
    ratio, with_max = sum(dense) / sum(norms), sum(dense) / (sum(norms) + sum(maxima))
    print(
        f"{LAYERS} layers: norms {sum(norms) * LAYERS:.1f} s, with max "
        f"{(sum(norms) + sum(maxima)) * LAYERS:.1f} s, dense {sum(dense) * LAYERS:.0f} s"
    )
    if set(names) != set(SHAPES):
        print(f"these modules alone: {ratio:.0f} x, with the exact maximum {with_max:.0f} x")
        return True  # what is wanted is of a whole layer
    good = ratio >= NORM_RATIO, with_max >= MAX_RATIO
    print(f"norms and spectra: {ratio:.0f} x (wanted: {NORM_RATIO}) {_mark(good[0])}")
    print(f"with the exact maximum: {with_max:.0f} x (wanted: {MAX_RATIO}) {_mark(good[1])}")
    return all(good)


def write_adapter(folder: Path, layers: int) -> None:
    """A bfloat16 adapter of all linear modules; one layer's factors are in memory at a time."""
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


def audit_here(folder: Path) -> None:
    """The audit alone, in this process; prints what it took as JSON."""
    start, cpu = time.perf_counter(), time.process_time()
    (audit,) = audit_path(folder)
    took = {
        "wall": time.perf_counter() - start,
        "cpu": time.process_time() - cpu,
        # Kibibytes on Linux.
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "modules": len(audit.modules),
        "verdict": audit.verdict,
        "largest": audit.totals.max_abs_delta,
    }
    print(json.dumps(took))


def whole_audit(layers: int) -> bool:
    """Time and peak memory of an audit from a file, in a child process; whether it is small."""
    with tempfile.TemporaryDirectory() as name:
        write_adapter(Path(name), layers)
        size = (Path(name) / "adapter_model.safetensors").stat().st_size
        command = [sys.executable, __file__, "--audit", name]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    took = json.loads(done.stdout.splitlines()[-1])
    print(
        f"audit of {took['modules']} modules from a file of {size / 1e9:.2f} GB: "
        f"{took['wall']:.1f} s wall, {took['cpu']:.1f} s CPU; {took['verdict']}, max|ΔW| "
        f"{took['largest']:.3g}"
    )
    good = took["peak"] < MOST_MEMORY
    gigabytes = took["peak"] / 1e9
    print(f"peak memory of its process: {gigabytes:.2f} GB (wanted: under 1) {_mark(good)}")
    return bool(good)


def _mark(good: bool) -> str:
    return "ok" if good else "SHORT"


def main() -> int:
    """Run what was asked for; 1 if a figure falls short."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="q_proj,k_proj", help="modules, comma-separated, or all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--audit-layers", type=int, default=LAYERS, help="0 leaves the audit out")
    parser.add_argument("--audit", type=Path, help="audit this folder in this process, and stop")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.audit is not None:
        audit_here(options.audit)
        return 0
    good = whole_audit(options.audit_layers) if options.audit_layers else True
    names = list(SHAPES) if options.only == "all" else options.only.split(",")
    return 0 if compare(names, options.repeats) and good else 1


if __name__ == "__main__":
    sys.exit(main())
