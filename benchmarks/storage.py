"""What the activation cache costs: writing and reading, and memory by number of items.

    OMP_NUM_THREADS=1 python benchmarks/storage.py             writing rows, and reading one layer
    OMP_NUM_THREADS=1 python benchmarks/storage.py growth      peaks of 1,000 and of 10,000 items

Writing is compared with a pass by `benchmarks/extract.py`'s seconds a prompt, reading with a plain
file in the same run. Each number of items is extracted by a process of its own.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from activations import ActivationCache, Capture, HFBackend, Prompt, extract
from activations.cache import CacheWriter
from interp import Item, Message


def storage() -> None:
    """What writing costs beside a pass, and what reading a layer costs beside a plain file."""
    n, n_layers, d_model, size = 2048, 30, 576, 16
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(size, n_layers, d_model, generator=generator)
    capture = Capture(rows, rows[:, 0], torch.zeros(size, 2), rows[:, :, 0].abs())
    items = tuple(
        Item(str(i), (Message("user", "Is it?"),), True, None, str(i), "c", {}) for i in range(n)
    )
    prompts = [Prompt(item.item_id, (1, 2), (), None) for item in items]
    manifest = {"model": {}, "source": {}, "store": "float32"}
    with tempfile.TemporaryDirectory() as folder:
        path, flat = Path(folder) / "c.h5", Path(folder) / "flat"
        with CacheWriter.open(
            path,
            manifest=manifest,
            items=items,
            prompts=prompts,
            n_layers=n_layers,
            d_model=d_model,
        ) as writer:
            cpu, wall = time.process_time(), time.perf_counter()
            for first in range(0, n, size):
                writer.write(range(first, first + size), capture)
            spent = time.process_time() - cpu, time.perf_counter() - wall
            writer.finish(0.0, {"off": None})
        print(
            f"writing {n} rows of {n_layers} layers × {d_model} in batches of {size}: "
            f"{1e3 * spent[0] / n:.3f} ms CPU and {1e3 * spent[1] / n:.3f} ms wall a row"
        )
        np.zeros((n_layers, n, d_model), np.float32).tofile(flat)
        with ActivationCache.open(path) as cache:
            pairs = []
            for layer in [*range(n_layers)] * 5:
                start = time.perf_counter()
                cache.resid_post(layer)
                middle = time.perf_counter()
                np.fromfile(flat, np.float32, n * d_model, offset=4 * n * d_model * layer)
                pairs.append((middle - start, time.perf_counter() - middle))
        ours, plain = (1e3 * statistics.median(times) for times in zip(*pairs, strict=True))
        print(f"reading one layer: {ours:.2f} ms; the same from a plain file: {plain:.2f} ms")


def growth() -> None:
    """Peak memory of a whole extraction over a toy model, by number of items."""
    for n in (1_000, 10_000):
        command = [sys.executable, "-P", __file__, "growth", "--items", str(n)]
        run = subprocess.run(command, check=True, capture_output=True, text=True)
        print(f"{n:6} items: {float(run.stdout):.0f} MiB at the peak", flush=True)


def memory_of_extraction(n: int) -> float:
    """MiB at the peak of this process."""
    torch.set_num_threads(1)
    letters = list("abcdefghij")
    words = {word: i for i, word in enumerate(["?", "True", "False", "ANSWER", ":", *letters])}
    core = Tokenizer(models.WordLevel(words, unk_token="?"))  # noqa: S106
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    config = LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="?")  # noqa: S106
    backend = HFBackend(model, tokenizer, model_id="toy")
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(letters, 12)) for _ in range(n)]
    items = tuple(
        Item(f"i{i}", (Message("user", text),), bool(i % 2), None, f"g{i}", "c", {})
        for i, text in enumerate(texts)
    )
    with tempfile.TemporaryDirectory() as folder:
        extract(backend, items[:64], Path(folder) / "warm.h5", source={}).close()
        extract(backend, items, Path(folder) / "c.h5", source={}).close()
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", nargs="?", choices=("storage", "growth"), default="storage")
    parser.add_argument("--items", type=int, help="of growth: print the peak of this number alone")
    options = parser.parse_args()
    if options.case == "storage":
        storage()
    elif options.items:
        print(memory_of_extraction(options.items))
    else:
        growth()


if __name__ == "__main__":
    main()
