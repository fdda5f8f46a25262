"""Extraction side by side in one run: what a shared prefix saves, in seconds and in memory.

Prompts have a long prefix in common (a ruleset) and own tokens after it. Five ways get the same
activations, all layers at the last token:

- shared: this toolkit, the prefix run once;
- plain: this toolkit without sharing (hooks, no head but for the last position);
- loop: one prompt at a time with `output_hidden_states`, which keeps all positions;
- batched: padded batches with `output_hidden_states`;
- tuned: the same with `logits_to_keep=1`.

Run with one thread (OMP_NUM_THREADS=1). Alternated repetitions; medians of CPU seconds and wall
seconds. Memory is what a way adds to the process at its peak, each way in a process of its own;
it is counted from after loading. The self-check that `interp extract` ends with (prompts run alone,
at least four) is part of no way here. The gain grows with the number of prompts, because the prefix
is run once; the printed bound is what the number of tokens allows.

    python benchmarks/extract.py [--items N] [--prefix T] [--own T] [--ways A,B] [--memory]
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from activations import HFBackend, ModelSpec, Prompt, load_backend
from activations.batches import BATCH_TOKENS
from activations.passes import Reading, SharingPlan, run_passes
from activations.sharing import find_groups

LOGIT_IDS = (0, 1)


def make_prompts(backend: HFBackend, n: int, n_prefix: int, n_own: int) -> list[Prompt]:
    """Random tokens: how long a pass takes does not depend on which they are."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = backend.model.config.get_text_config().vocab_size

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(100, vocabulary, (count,), generator=generator).tolist())

    prefix = ids(n_prefix)
    # Own parts differ in length, as items do.
    own = torch.randint(int(0.8 * n_own), int(1.2 * n_own) + 1, (n,), generator=generator)
    return [Prompt(str(i), prefix + ids(int(length)), (), None) for i, length in enumerate(own)]


def ours(backend: HFBackend, prompts: list[Prompt], share: bool) -> Tensor:
    reading = Reading(prompts, [len(prompt.ids) - 1 for prompt in prompts], LOGIT_IDS)
    rows, groups = tuple(range(len(prompts))), ()
    if share:
        groups, rows = find_groups([prompt.ids for prompt in prompts], reading.positions)
    plan = SharingPlan(groups, rows, 0, 0, None)
    result = torch.empty(len(prompts), backend.n_layers, backend.d_model)
    for index, capture in run_passes(backend, reading, plan, batch_tokens=BATCH_TOKENS):
        result[index] = capture.resid_post
    return result


@torch.inference_mode()
def hidden_states(backend: HFBackend, prompts: list[Prompt], size: int, **options: int) -> Tensor:
    """All hidden states of all positions, of which the last token's are kept."""
    result = torch.empty(len(prompts), backend.n_layers, backend.d_model)
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index].ids))
    for first in range(0, len(order), size):
        index = order[first : first + size]
        lengths = [len(prompts[i].ids) for i in index]
        longest = max(lengths)
        ids = torch.zeros(len(index), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, i in enumerate(index):
            ids[row, : lengths[row]] = torch.tensor(prompts[i].ids)
            mask[row, : lengths[row]] = 1
        output = backend.model(
            input_ids=ids, attention_mask=mask, output_hidden_states=True, **options
        )
        for row, i in enumerate(index):
            states = [state[row, lengths[row] - 1] for state in output.hidden_states[1:]]
            result[i] = torch.stack(states)
    return result


WAYS: dict[str, Callable[[HFBackend, list[Prompt]], Tensor]] = {
    "shared": lambda backend, prompts: ours(backend, prompts, share=True),
    "plain": lambda backend, prompts: ours(backend, prompts, share=False),
    "loop": lambda backend, prompts: hidden_states(backend, prompts, 1),
    "batched": lambda backend, prompts: hidden_states(backend, prompts, 4),
    "tuned": lambda backend, prompts: hidden_states(backend, prompts, 2, logits_to_keep=1),
}


def memory_mib(field: str) -> float:
    """`VmRSS` (now) or `VmHWM` (at the peak) of this process; Linux only."""
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    if found is None:
        raise SystemExit(f"--memory needs {field} in /proc/self/status, which Linux has.")
    return int(found[1]) / 1024


def setting(options: argparse.Namespace) -> tuple[HFBackend, list[Prompt]]:
    torch.set_num_threads(1)
    backend = load_backend(ModelSpec.parse(options.model, device="cpu"))
    prompts = make_prompts(backend, options.items, options.prefix, options.own)
    # A first short pass: what is set up once is no way's cost.
    backend.capture([prompts[0].ids[:8]], [0], LOGIT_IDS)
    return backend, prompts


def compare(options: argparse.Namespace) -> None:
    backend, prompts = setting(options)
    ways = options.ways.split(",")
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    results: dict[str, Tensor] = {}
    for repetition in range(options.repetitions):
        # Another order each time, so that no way always follows the same one.
        for name in ways[repetition % len(ways) :] + ways[: repetition % len(ways)]:
            cpu, wall = time.process_time(), time.perf_counter()
            results[name] = WAYS[name](backend, prompts)
            seconds[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    tokens = sum(len(prompt.ids) for prompt in prompts)
    run = options.prefix + tokens - options.prefix * len(prompts)
    print(
        f"{options.model}, float32, one thread: {len(prompts)} prompts, {options.prefix} shared "
        f"tokens, {tokens:,} in all, {run:,} of them run with sharing (at most "
        f"{tokens / run:.1f} times faster); {options.repetitions} repetitions"
    )
    medians = {
        name: tuple(statistics.median(values) for values in zip(*runs, strict=True))
        for name, runs in seconds.items()
    }
    print(f"{'way':8} {'CPU s':>8} {'wall s':>8} {'CPU s a prompt':>15} {'CPU, times shared':>18}")
    for name, (cpu, wall) in medians.items():
        times = cpu / medians["shared"][0]
        print(f"{name:8} {cpu:8.2f} {wall:8.2f} {cpu / len(prompts):15.3f} {times:18.2f}")
    for name in {"plain", "loop"}.intersection(ways):
        # The last hidden state of transformers comes after the final norm.
        got, expected = results["shared"][:, :-1], results[name][:, :-1]
        difference = ((got - expected).norm(dim=2) / expected.norm(dim=2)).max()
        print(f"largest relative difference of shared from {name}: {difference:.1e}")


def measure_memory(options: argparse.Namespace) -> None:
    peaks = {}
    for name in options.ways.split(","):
        arguments = [f"--{key}={getattr(options, key)}" for key in ("model", "prefix", "own")]
        child = subprocess.run(
            [sys.executable, __file__, *arguments, f"--items={options.items}", f"--only={name}"],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        peaks[name] = float(child.stdout.split()[-1])
    for name, peak in peaks.items():
        print(f"{name:8} {peak:8.0f} MiB above the loaded model at the peak")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--items", type=int, default=4)
    parser.add_argument("--prefix", type=int, default=1000)
    parser.add_argument("--own", type=int, default=150)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--ways", default=",".join(WAYS), help="shared and others")
    parser.add_argument("--memory", action="store_true", help="also measure peak memory")
    parser.add_argument("--only", choices=WAYS, help="run one way and print its peak memory")
    options = parser.parse_args()
    if options.only:
        backend, prompts = setting(options)
        # The peak so far, of loading, is forgotten.
        Path("/proc/self/clear_refs").write_text("5")
        before = memory_mib("VmRSS")
        WAYS[options.only](backend, prompts)
        print(memory_mib("VmHWM") - before)
        return
    compare(options)
    if options.memory:
        measure_memory(options)


if __name__ == "__main__":
    main()
