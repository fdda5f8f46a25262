"""Time of one live audit beside one forward and backward pass, at the shape of Qwen2.5-1.5B.

One decoder layer is timed with LoRA of rank 8 on q and v, as Table IV of ToMAS has it, and both
times are multiplied by the 28 layers. Embeddings, the output head and everything else that a step
of GRPO does (generation, above all) are left out, so the real share is smaller.

    python benchmarks/audit_callback.py
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

# A script's folder comes first on the path, and files in this one have names of packages.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parent]

import peft  # noqa: E402
import torch  # noqa: E402
from transformers import AutoModelForCausalLM, Qwen2Config  # noqa: E402

from experiments.grpo.callback import audit_model  # noqa: E402

LAYERS = 28


def one_layer() -> Any:
    """The shape of Qwen2.5-1.5B with one layer and a vocabulary too small to count."""
    torch.manual_seed(0)
    config = Qwen2Config(
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=1,
        num_attention_heads=12,
        num_key_value_heads=2,
        vocab_size=64,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lora = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"])
        model = peft.get_peft_model(AutoModelForCausalLM.from_config(config), lora)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=1e-5)
    return model


def seconds(work: Callable[[], Any], repeats: int) -> float:
    """Median CPU seconds of one thread, after one pass for nothing."""
    work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = one_layer()
    rates = [{"step": step, "learning_rate": 1e-6} for step in range(1, 101)]
    state = {"global_step": 100, "log_history": rates}
    audits = {
        "audit with the base": lambda: audit_model(model, state=state),
        "audit of the adapter alone": lambda: audit_model(model, relative=False, state=state),
    }
    spent = {name: seconds(work, arguments.repeats) * LAYERS for name, work in audits.items()}
    print(f"one layer, times {LAYERS}; CPU seconds of one thread, float32")
    for name, value in spent.items():
        print(f"{name:40s} {value:8.2f} s")
    for completions, tokens in ((4, 640), (4, 256)):
        ids = torch.randint(0, 64, (completions, tokens))

        def step(ids: torch.Tensor = ids) -> None:
            model.zero_grad()
            model(input_ids=ids, labels=ids).loss.backward()

        value = seconds(step, arguments.repeats) * LAYERS
        print(f"forward and backward, {completions} × {tokens} tokens".ljust(40), f"{value:8.2f} s")
        for name, audit in spent.items():
            share = audit / value
            print(f"    {name:36s} {share:8.2%} of it; every 10 steps {share / 10:.3%}")


if __name__ == "__main__":
    main()
