"""Steering grids with what lies below the steered layer run once, against plain passes.

Run with one thread (OMP_NUM_THREADS=1). Prints CPU seconds, medians of alternated repetitions, and
their ratio beside the bound: the ratio of the blocks that tokens go through, as if the rest and all
memory traffic were free. Plain passes skip the output head too but for the two verdict tokens. They
cost the same for every cell, so a few cells are timed and multiplied.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from activations import Edit, HFBackend, ModelSpec, load_backend
from activations.branches import Branches, head_rows
from activations.reuse import branch_logits, keep_residuals, resumed_logits
from interp import load_items, open_source

REPETITIONS: Final = 3
PLAIN_CELLS: Final = 2

Ids = tuple[int, ...]


def cpu(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = run()
    return time.process_time() - start, result


def plain_cell(
    backend: HFBackend, prompts: Sequence[Ids], stub: Ids, ids: Ids, layer: int, shift: torch.Tensor
) -> torch.Tensor:
    def push(hidden: torch.Tensor) -> torch.Tensor:
        changed = hidden.clone()
        for row, prompt in enumerate(prompts):
            changed[row, len(prompt) - 1] += shift
        return changed

    with backend.intervene([Edit(layer, "resid_post", push)]), head_rows(backend.model, ids):
        return backend.logits([prompt + stub for prompt in prompts], range(len(ids)))


def branched(
    backend: HFBackend,
    prompts: Sequence[Ids],
    stub: Ids,
    ids: Ids,
    layers: Sequence[int],
    shifts: torch.Tensor,
    shared: Any = None,
) -> torch.Tensor:
    """(n_cells, n_items, 2), one item after the other."""
    branches = Branches(layers, shifts[:, None])
    items = []
    for prompt in prompts:
        kept = backend.prefill([prompt[:-1]], shared)
        items.append(branch_logits(backend, kept, [prompt[-1:] + stub], ids, branches)[1:])
    return torch.cat(items, dim=1)


def last_prompt(backend: HFBackend, prompts: Sequence[Ids], stub: Ids, ids: Ids, n: int) -> None:
    """All layers × `n` sizes at the last prompt token."""
    blocks, length = backend.n_layers, len(prompts[0])
    layers = [layer for layer in range(blocks) for _ in range(n)]
    generator = torch.Generator().manual_seed(0)
    shifts = torch.randn(len(layers), backend.d_model, generator=generator)
    seq = 1 + len(stub)
    # In the last block one token of a cell is enough, and beside it keys and values of the others,
    # which are left out here as everything else is.
    above = sum(seq * (blocks - 2 - layer) + 1 for layer in layers if layer < blocks - 1)
    work = (length + len(stub)) * blocks + above
    bound = (length + len(stub)) * blocks * len(layers) / work
    seconds: dict[str, list[float]] = {"plain": [], "once": []}
    gap = 0.0
    for repetition in range(REPETITIONS):
        cells = [(7 * repetition + 31 * i) % (len(layers) - n) for i in range(PLAIN_CELLS)]
        spent, plain = cpu(
            lambda cells=cells: [
                plain_cell(backend, prompts, stub, ids, layers[c], shifts[c]) for c in cells
            ]
        )
        seconds["plain"].append(spent / PLAIN_CELLS * len(layers))
        spent, got = cpu(lambda: branched(backend, prompts, stub, ids, layers, shifts))
        seconds["once"].append(spent)
        gap = max(
            gap, *(float((got[c] - p).abs().max()) for c, p in zip(cells, plain, strict=True))
        )
    report(
        f"last_prompt, {length} tokens, stub of {len(stub)}, {blocks} layers × {n}", seconds, bound
    )
    print(f"  largest difference of a logit {gap:.1e}")


def everywhere(backend: HFBackend, prompts: Sequence[Ids], ids: Ids) -> None:
    """Five layers × two sizes at all tokens."""
    blocks = backend.n_layers
    layers = [blocks * part // 6 for part in range(1, 6)]
    shifts = torch.randn(2, backend.d_model, generator=torch.Generator().manual_seed(0))
    cells = [(layer, shift) for layer in layers for shift in shifts]
    work = blocks + sum(blocks - 1 - layer for layer, _ in cells)
    seconds: dict[str, list[float]] = {"plain": [], "once": []}

    def plain() -> list[torch.Tensor]:
        found = [backend.logits(prompts, ids)]
        for layer, shift in cells:
            with backend.intervene([Edit(layer, "resid_post", lambda h, s=shift: h + s)]):
                found.append(backend.logits(prompts, ids))
        return found

    def once() -> list[torch.Tensor]:
        kept = keep_residuals(backend, prompts, ids, layers)
        return [
            kept.logits,
            *(resumed_logits(backend, kept, ids, at, lambda h, s=s: h + s) for at, s in cells),
        ]

    same = True
    for _ in range(REPETITIONS):
        spent, expected = cpu(plain)
        seconds["plain"].append(spent)
        spent, got = cpu(once)
        seconds["once"].append(spent)
        same &= all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    bound = blocks * (1 + len(cells)) / work
    report(f"all tokens, layers {layers} × 2 and the unsteered run", seconds, bound)
    print(f"  bit for bit the same: {same}")


def shared(backend: HFBackend, tokens: Ids, stub: Ids, ids: Ids) -> None:
    """A prefix of 400 tokens and own suffixes of 60: one layer × 5 sizes."""
    prompts = [tokens[:400] + tokens[400 + i : 459 + i] + (tokens[i],) for i in range(12)]
    layers = [backend.n_layers * 2 // 3] * 5
    shifts = torch.randn(5, backend.d_model, generator=torch.Generator().manual_seed(0))
    seconds: dict[str, list[float]] = {"plain": [], "once": []}
    for _ in range(REPETITIONS):
        spent, expected = cpu(lambda: branched(backend, prompts, stub, ids, layers, shifts))
        seconds["plain"].append(spent)

        def once() -> torch.Tensor:
            prefix = backend.share_prefix(tokens[:400])
            return branched(backend, prompts, stub, ids, layers, shifts, prefix)

        spent, got = cpu(once)
        seconds["once"].append(spent)
    report("the same grid without and with a shared prefix of 400 of 460 tokens", seconds, None)
    print(f"  largest difference of a logit {float((got - expected).abs().max()):.1e}")


def report(what: str, seconds: dict[str, list[float]], bound: float | None) -> None:
    medians = {name: statistics.median(runs) for name, runs in seconds.items()}
    ratio = medians["plain"] / medians["once"]
    print(what)
    print(f"  plain {medians['plain']:.2f}, once {medians['once']:.2f} CPU s: ratio {ratio:.2f}")
    if bound is not None:
        print(f"  bound {bound:.2f}: {ratio / bound:.0%} of it")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    backend = load_backend(ModelSpec.parse("smollm2", device="cpu"))
    found = backend.tokenize(load_items(open_source("facts:elements"), n=max(8, arguments.items)))
    verdicts = backend.verdict_ids(found)
    ids, stub = (verdicts.true_id, verdicts.false_id), found[0].stub_ids
    tokens = tuple(token for prompt in found for token in prompt.ids)
    prompts = [tokens[at : at + 150] for at in range(0, 40 * arguments.items, 40)]
    last_prompt(backend, prompts, (), ids, 5)
    last_prompt(backend, prompts, stub, ids, 5)
    everywhere(backend, [prompt + stub for prompt in prompts], ids)
    shared(backend, tokens, stub, ids)


if __name__ == "__main__":
    main()
