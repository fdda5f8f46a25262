"""Steering cells over a kept prefix against plain passes: same logits, side by side in one run.

Run with one thread (OMP_NUM_THREADS=1). Prints CPU seconds and wall seconds, medians of alternated
repetitions, and their ratio.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from activations import Edit, ModelSpec, load_backend
from interp import load_items, open_source

LAYER, N_ITEMS, N_CELLS, REPETITIONS = 15, 16, 4, 3


def main() -> None:
    torch.set_num_threads(1)
    backend = load_backend(ModelSpec.parse("smollm2", device="cpu"))
    prompts = backend.tokenize(load_items(open_source("facts:elements"), n=N_ITEMS))
    verdicts = backend.verdict_ids(prompts)
    ids = (verdicts.true_id, verdicts.false_id)
    shifts = torch.randn(N_CELLS, backend.d_model, generator=torch.Generator().manual_seed(0))

    def edit(shift: torch.Tensor, columns: list[int]) -> Edit:
        def apply(hidden: torch.Tensor) -> torch.Tensor:
            changed = hidden.clone()
            changed[torch.arange(len(columns)), torch.tensor(columns)] += shift
            return changed

        return Edit(LAYER, "resid_post", apply)

    def plain() -> torch.Tensor:
        cells = []
        for shift in shifts:
            with backend.intervene([edit(shift, [len(p.ids) - 1 for p in prompts])]):
                cells.append(backend.logits([p.ids_with_stub for p in prompts], ids))
        return torch.stack(cells)

    def kept() -> torch.Tensor:
        prefix = backend.prefill([p.ids[:-1] for p in prompts])
        suffixes = [p.ids[-1:] + p.stub_ids for p in prompts]
        cells = []
        for shift in shifts:
            with backend.intervene([edit(shift, [0] * N_ITEMS)]):
                cells.append(backend.logits_after(prefix, suffixes, ids))
        return torch.stack(cells)

    def timed(run: Callable[[], torch.Tensor]) -> tuple[float, float, torch.Tensor]:
        cpu, wall = time.process_time(), time.perf_counter()
        result = run()
        return time.process_time() - cpu, time.perf_counter() - wall, result

    seconds: dict[str, list[tuple[float, float]]] = {"plain": [], "kept prefix": []}
    difference = 0.0
    for _ in range(REPETITIONS):
        results = {}
        for name, run in (("plain", plain), ("kept prefix", kept)):
            cpu, wall, results[name] = timed(run)
            seconds[name].append((cpu, wall))
        gap = (results["plain"] - results["kept prefix"]).abs().max()
        difference = max(difference, float(gap))
    tokens = statistics.mean(len(p.ids_with_stub) for p in prompts)
    print(f"{N_ITEMS} items of {tokens:.0f} tokens, {N_CELLS} cells at layer {LAYER}")
    medians = {}
    for name, runs in seconds.items():
        medians[name] = statistics.median(cpu for cpu, _ in runs)
        wall = statistics.median(wall for _, wall in runs)
        print(f"{name:12} {medians[name]:7.2f} CPU s {wall:7.2f} s")
    print(f"ratio {medians['plain'] / medians['kept prefix']:.1f} (CPU)")
    print(f"largest difference of a logit {difference:.1e}")


if __name__ == "__main__":
    main()
