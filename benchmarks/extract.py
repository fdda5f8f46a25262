"""Extraction side by side in one run: this toolkit against the usual ways, in time and in memory.

Every way gives the same activations: all layers at the last token of every prompt. Two cases:

- prefix: prompts have a long prefix in common (a ruleset) and own tokens after it;
- mixed: prompts of 60 to 400 tokens that have nothing in common.

The ways:

- ours: `extract`'s passes as they are by default (packed; a shared prefix is run once);
- plain: the same without sharing (hooks, head at the last position only);
- loop: one prompt at a time with `output_hidden_states`, which keeps all positions;
- batched: padded batches with `output_hidden_states`, in the order given;
- tuned: length-sorted batches, `output_hidden_states`, `logits_to_keep=1`, no mask;
- masked: the same with the attention mask that padded batches usually come with;
- lens: TransformerLens, `run_with_cache` with a names filter, length-sorted, head on one position;
- nnsight: a trace that reads every block and stops before the head, length-sorted.

Run with one thread (OMP_NUM_THREADS=1). Each way has a process of its own, as it has in use: what
one does to the memory allocator neither serves nor hurts another. They run in turn, never at once.
Medians over the repetitions of CPU seconds a prompt (and how many of these the system took, which
is mostly new pages of memory) and of wall seconds. `--others N` runs all ways but ours on the first
N prompts only: what they cost a prompt does not depend on how many there are, and ours does. Memory
is what a way adds to its process at its peak, counted from after loading. The self-check that
`interp extract` ends with (prompts run alone, at least four) is part of no way here.

    python benchmarks/extract.py prefix [--items N] [--others N] [--ways A,B] [--memory]
    python benchmarks/extract.py mixed …

What the file costs, and memory by number of items: benchmarks/storage.py.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from activations import HFBackend, ModelSpec, Prompt, in_library, load_backend
from activations.batches import BATCH_TOKENS, plan_batches
from activations.passes import Reading, SharingPlan, run_passes
from activations.sharing import find_groups

LOGIT_IDS = (0, 1)

SORTED_TOKENS = 768
"""Padded tokens a batch of the length-sorted ways: batches of 2,048 took them 5 to 19% longer. Ours
runs packed batches of its own size."""


@dataclass
class Setting:
    """A loaded model, and the same in the other libraries once they are needed."""

    backend: HFBackend

    @cached_property
    def bridge(self) -> Any:
        return in_library(self.backend, "transformer_lens")._bridge  # type: ignore[attr-defined]

    @cached_property
    def traced(self) -> Any:
        return in_library(self.backend, "nnsight")

    def empty(self, n: int) -> Tensor:
        return torch.empty(n, self.backend.n_layers, self.backend.d_model)


def make_prompts(backend: HFBackend, options: argparse.Namespace) -> list[Prompt]:
    """Random tokens: how long a pass takes does not depend on which they are."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = backend.model.config.get_text_config().vocab_size

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(100, vocabulary, (count,), generator=generator).tolist())

    low, high, prefix = 60, 400, ()
    if options.case == "prefix":
        # Own parts differ in length, as items do.
        low, high, prefix = int(0.8 * options.own), int(1.2 * options.own), ids(options.prefix)
    own = torch.randint(low, high + 1, (options.items,), generator=generator)
    return [Prompt(str(i), prefix + ids(int(n)), (), None) for i, n in enumerate(own)]


def passes(setting: Setting, prompts: list[Prompt], share: bool) -> Tensor:
    reading = Reading(prompts, [len(prompt.ids) - 1 for prompt in prompts], LOGIT_IDS)
    rows, groups = tuple(range(len(prompts))), ()
    if share:
        groups, rows = find_groups([prompt.ids for prompt in prompts], reading.positions)
    plan = SharingPlan(groups, rows, 0, 0, None)
    result = setting.empty(len(prompts))
    for index, capture in run_passes(setting.backend, reading, plan, batch_tokens=BATCH_TOKENS):
        result[index] = capture.resid_post
    return result


def padded(prompts: list[Prompt], index: list[int]) -> tuple[Tensor, list[int]]:
    lengths = [len(prompts[i].ids) for i in index]
    ids = torch.zeros(len(index), max(lengths), dtype=torch.long)
    for row, i in enumerate(index):
        ids[row, : lengths[row]] = torch.tensor(prompts[i].ids)
    return ids, [length - 1 for length in lengths]


def sorted_batches(prompts: list[Prompt]) -> list[list[int]]:
    return plan_batches([len(prompt.ids) for prompt in prompts], SORTED_TOKENS)


def in_order(size: int) -> Callable[[list[Prompt]], list[list[int]]]:
    return lambda prompts: [
        list(range(first, min(first + size, len(prompts))))
        for first in range(0, len(prompts), size)
    ]


@torch.inference_mode()
def hidden_states(
    setting: Setting,
    prompts: list[Prompt],
    plan: Callable[[list[Prompt]], list[list[int]]],
    *,
    mask: bool,
    **options: Any,
) -> Tensor:
    """All hidden states of all positions, of which the last token's are kept."""
    result = setting.empty(len(prompts))
    for index in plan(prompts):
        ids, last = padded(prompts, index)
        if mask:
            lengths = torch.tensor(last)[:, None]
            options["attention_mask"] = (torch.arange(ids.shape[1]) <= lengths).long()
        output = setting.backend.model(input_ids=ids, output_hidden_states=True, **options)
        for row, i in enumerate(index):
            result[i] = torch.stack([state[row, last[row]] for state in output.hidden_states[1:]])
    return result


@torch.inference_mode()
def lens(setting: Setting, prompts: list[Prompt]) -> Tensor:
    names = [f"blocks.{layer}.hook_out" for layer in range(setting.backend.n_layers)]
    result = setting.empty(len(prompts))
    for index in sorted_batches(prompts):
        ids, last = padded(prompts, index)
        _, cache = setting.bridge.run_with_cache(ids, names_filter=names, logits_to_keep=1)
        for row, i in enumerate(index):
            result[i] = torch.stack([cache[name][row, last[row]] for name in names])
    return result


@torch.inference_mode()
def nnsight(setting: Setting, prompts: list[Prompt]) -> Tensor:
    model, blocks = setting.traced._traced, setting.traced._envoys
    result = setting.empty(len(prompts))
    for index in sorted_batches(prompts):
        ids, last = padded(prompts, index)
        rows = torch.arange(len(index))
        with model.trace(input_ids=ids, use_cache=False) as tracer:
            for layer, block in enumerate(blocks):
                result[index, layer] = block.output[rows, last]
            tracer.stop()
    return result


WAYS: dict[str, Callable[[Setting, list[Prompt]], Tensor]] = {
    "ours": lambda setting, prompts: passes(setting, prompts, share=True),
    "plain": lambda setting, prompts: passes(setting, prompts, share=False),
    "loop": lambda setting, prompts: hidden_states(setting, prompts, in_order(1), mask=False),
    "batched": lambda setting, prompts: hidden_states(setting, prompts, in_order(4), mask=True),
    "tuned": lambda setting, prompts: hidden_states(
        setting, prompts, sorted_batches, mask=False, logits_to_keep=1, use_cache=False
    ),
    "masked": lambda setting, prompts: hidden_states(
        setting, prompts, sorted_batches, mask=True, logits_to_keep=1, use_cache=False
    ),
    "lens": lens,
    "nnsight": nnsight,
}


def memory_mib(field: str) -> float:
    """`VmRSS` (now) or `VmHWM` (at the peak) of this process; Linux only."""
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    if found is None:
        raise SystemExit(f"Memory needs {field} in /proc/self/status, which Linux has.")
    return int(found[1]) / 1024


def prepare(options: argparse.Namespace, name: str) -> tuple[Setting, list[Prompt]]:
    torch.set_num_threads(1)
    setting = Setting(load_backend(ModelSpec.parse(options.model, device="cpu")))
    prompts = make_prompts(setting.backend, options)
    # A first short pass: what is set up once is no way's cost.
    WAYS[name](setting, [Prompt("short", prompts[0].ids[:8], (), None)] * 2)
    return setting, prompts


@dataclass
class Timed:
    """What one repetition of a way took, in seconds a prompt."""

    cpu: float
    system: float
    wall: float


def serve(name: str, options: argparse.Namespace, pipe: Any) -> None:
    """Run one way whenever asked to, in a process of its own."""
    setting, prompts = prepare(options, name)
    given = prompts if name == "ours" else prompts[: options.others or len(prompts)]
    pipe.send(None)
    while pipe.recv():
        before, wall = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        result = WAYS[name](setting, given)
        after, spent = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter() - wall
        system = after.ru_stime - before.ru_stime
        cpu = after.ru_utime - before.ru_utime + system
        timed = Timed(*(seconds / len(given) for seconds in (cpu, system, spent)))
        pipe.send((timed, result.numpy()))


@contextmanager
def started(ways: list[str], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A pipe to the process of each way; one after the other they load the model."""
    context, pipes, processes = multiprocessing.get_context("spawn"), {}, []
    try:
        for name in ways:
            pipes[name], theirs = context.Pipe()
            processes.append(context.Process(target=serve, args=(name, options, theirs)))
            processes[-1].start()
            theirs.close()
            pipes[name].recv()
        yield pipes
        for pipe in pipes.values():
            pipe.send(False)
    finally:
        for process in processes:
            process.join(10)
            process.kill()


def compare(options: argparse.Namespace) -> None:
    ways = options.ways.split(",")
    runs: dict[str, list[Timed]] = {name: [] for name in ways}
    results: dict[str, Tensor] = {}
    with started(ways, options) as pipes:
        for repetition in range(options.repetitions):
            # Another order each time, so that no way always follows the same one.
            for name in ways[repetition % len(ways) :] + ways[: repetition % len(ways)]:
                pipes[name].send(True)
                timed, result = pipes[name].recv()
                results[name] = torch.from_numpy(result)
                runs[name].append(timed)
                print(f"# {name}: {timed}", file=sys.stderr, flush=True)
    prompts = make_prompts(load_backend(ModelSpec.parse(options.model, device="cpu")), options)
    n_others = options.others or len(prompts)
    tokens = sum(len(prompt.ids) for prompt in prompts)
    saved = options.prefix * (len(prompts) - 1) if options.case == "prefix" else 0
    print(
        f"{options.case}: {options.model}, float32, one thread; ours over {len(prompts)} prompts "
        f"({tokens:,} tokens, {tokens - saved:,} of them run: at most "
        f"{tokens / (tokens - saved):.2f} times faster than an equal forward), the others over "
        f"{n_others}; {options.repetitions} repetitions"
    )
    batches = sorted_batches(prompts)
    lengths = [len(prompt.ids) for prompt in prompts]
    run = sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)
    print(f"padded over real tokens, length-sorted: {run / tokens:.3f}; ours is packed, 1.000")
    print(f"{'way':8} {'CPU s a prompt':>15} {'of it system':>13} {'wall s':>7} {'times ours':>11}")
    medians = {name: medians_of(timed) for name, timed in runs.items()}
    for name, median in medians.items():
        ratio = median.cpu / medians[ways[0]].cpu
        print(f"{name:8} {median.cpu:15.3f} {median.system:13.3f} {median.wall:7.3f} {ratio:11.2f}")
    for name in ways[1:]:
        # The last hidden state of transformers comes after the final norm.
        got, expected = results[ways[0]][: len(results[name]), :-1], results[name][:, :-1]
        difference = ((got - expected).norm(dim=2) / expected.norm(dim=2)).max()
        print(f"largest relative difference of {ways[0]} from {name}: {difference:.1e}")


def medians_of(runs: list[Timed]) -> Timed:
    columns = zip(*(astuple(run) for run in runs), strict=True)
    return Timed(*(statistics.median(column) for column in columns))


def child(options: argparse.Namespace, *arguments: str) -> float:
    """Run this file again, in a process of its own; it prints a number last."""
    same = [f"--{key}={getattr(options, key)}" for key in ("model", "prefix", "own")]
    run = subprocess.run(
        [sys.executable, __file__, options.case, *same, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(run.stdout.split()[-1])


def peak(work: Callable[[], object]) -> float:
    """MiB that some work adds to this process at its peak."""
    # The peak so far, of loading, is forgotten.
    Path("/proc/self/clear_refs").write_text("5")
    before = memory_mib("VmRSS")
    work()
    return memory_mib("VmHWM") - before


def measure_memory(options: argparse.Namespace) -> None:
    for name in options.ways.split(","):
        mib = child(options, f"--items={options.memory}", f"--only={name}")
        print(
            f"{name:8} {mib:8.0f} MiB above the loaded model at the peak ({options.memory} prompts)"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=("prefix", "mixed"))
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument(
        "--others", type=int, default=8, help="prompts of all ways but ours; 0: all"
    )
    parser.add_argument("--prefix", type=int, default=1000)
    parser.add_argument("--own", type=int, default=150)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument(
        "--ways", default=",".join(WAYS), help="the first is compared with the rest"
    )
    parser.add_argument("--memory", type=int, default=0, help="also measure peaks, over N prompts")
    parser.add_argument("--only", help="run one way and print its peak memory")
    options = parser.parse_args()
    if options.only:
        setting, prompts = prepare(options, options.only)
        print(peak(lambda: WAYS[options.only](setting, prompts)))
    else:
        compare(options)
        if options.memory:
            measure_memory(options)


if __name__ == "__main__":
    main()
