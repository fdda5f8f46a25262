"""How large must ΔW be before anybody could notice? LoRA adapters of chosen size.

For each relative size ρ = ‖ΔW‖_F / ‖W‖_F (the same in every adapted module), the embedded model is
compared with its base twice: on True/False items (the answer position, greedy answers), and on
ordinary text, where it is sure of little. The direction of ΔW is random, or that of a short
training on other text, which moves what the model says far more at the same size. The audit's
thresholds are to be read beside these tables.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

from activations import HFBackend, ModelSpec, describe_source, load_backend
from activations.adapter import adapted
from activations.batches import BATCH_TOKENS
from experiments.compare import compare_adapters
from interp import load_items, open_source

SIZES, RANK, N_ITEMS, NEW_TOKENS = (1e-5, 1e-4, 3e-4, 1e-3, 1e-2), 8, 20, 16
STEPS, RATE, TEXT_TOKENS = 30, 1e-4, 48

# What the trained directions learn, and none of the texts that they are judged on.
LESSON = (
    "The night ferry was late again, and nobody on the pier could say why. Ines had counted the "
    "crates twice, and twice she had come out one short. She wrote the number down, crossed it "
    "out, and wrote it down again, as if the ink could change what the tide had taken.",
    "To repair a bicycle tyre, first take the wheel off the frame, lever one side of the tyre over "
    "the rim and pull the tube out. Pump it up a little and hold it under water: bubbles show "
    "where the hole is. Dry the tube, roughen it, and wait until the glue is no longer wet.",
)
TEXTS = (
    "The history of the city begins with a small harbour where fishermen",
    "My grandmother used to say that the best soup is made from",
    "In this paper we study how neural networks",
    "The three most important things to know about growing tomatoes are",
    "It was raining when the train finally stopped, and the conductor",
    "A good explanation of gravity for a child would be that",
    "The committee met on Tuesday to discuss the budget, and after two hours",
    "She opened the letter, read the first line, and",
)


def write_adapters(folder: Path, kind: str) -> list[Path]:
    """LoRA adapters on q and v, one for each of `SIZES`: every module has just that size.

    Args:
        folder: gets one folder for each size.
        kind: `random`, or `trained` by AdamW on `LESSON`.
    """
    backend = load_backend(ModelSpec.parse("smollm2", device="cpu"))
    torch.manual_seed(0)
    config = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=["q_proj", "v_proj"])
    wrapped: Any = get_peft_model(backend.model, config)
    if kind == "trained":
        train(wrapped, backend)
    layers = [m for m in wrapped.modules() if "default" in getattr(m, "lora_B", {})]
    if kind == "random":
        for layer in layers:
            torch.nn.init.normal_(layer.lora_B["default"].weight)
    written = []
    for rho in SIZES:
        for layer in layers:
            a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
            size = layer.scaling["default"] * (b @ a).norm() / layer.base_layer.weight.norm()
            b.data.mul_(rho / size.item())
        written.append(folder / f"{kind}-{rho:g}")
        wrapped.save_pretrained(written[-1])
    return written


def train(wrapped: Any, backend: HFBackend) -> None:
    """A few steps on two texts, which all agree: the coherent case."""
    parameters = [p for p in wrapped.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.0)
    for step in range(STEPS):
        ids = torch.tensor([backend.tokenizer(LESSON[step % len(LESSON)])["input_ids"]])
        wrapped(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def on_text(backend: HFBackend, ids: Sequence[list[int]]) -> tuple[torch.Tensor, list[Any]]:
    """(n, d_vocab) log probabilities of the next token, and greedy continuations."""
    d_vocab = backend.model.get_output_embeddings().weight.shape[0]
    logits = torch.cat([backend.logits([one], range(d_vocab)) for one in ids])
    greedy = [tuple(backend.generate([one], TEXT_TOKENS)[0]) for one in ids]
    return logits.double().log_softmax(dim=1), greedy


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")
    source = open_source("facts")
    items = load_items(source, n=N_ITEMS)
    described = describe_source(source, items, view=None, seed=0)
    backend = load_backend(ModelSpec.parse("smollm2", device="cpu"))
    ids = [list(backend.tokenizer(text)["input_ids"]) for text in TEXTS]
    before, continued = on_text(backend, ids)
    print(f"SmolLM2-135M, r {RANK}, q and v, float32")
    print(f"items: {N_ITEMS} of facts, {NEW_TOKENS} new tokens; texts: {len(TEXTS)}, {TEXT_TOKENS}")
    columns = ("KL mean", "KL max", "flips", "same greedy", "drift", "text KL", "KL max", "flips")
    print(f"{'direction':>10} {'rho':>6}" + "".join(f"{c:>12}" for c in (*columns, "same text")))
    with tempfile.TemporaryDirectory() as scratch:
        for kind in ("random", "trained"):
            folders = write_adapters(Path(scratch), kind)
            found = compare_adapters(
                backend,
                folders,
                items,
                Path(scratch) / kind,
                source=described,
                max_new_tokens=NEW_TOKENS,
                batch_tokens=BATCH_TOKENS,
            )
            for rho, folder, row in zip(SIZES, folders, found, strict=True):
                with adapted(backend, folder) as changed:
                    after, text = on_text(changed, ids)
                kl = (before.exp() * (before - after)).sum(dim=1)
                flips = int((before.argmax(dim=1) != after.argmax(dim=1)).sum())
                same = sum(a == b for a, b in zip(continued, text, strict=True))
                drift = max(layer.relative_change for layer in row.drift)
                figures = (
                    *(f"{row.kl_mean:.1e}", f"{row.kl_max:.1e}", str(row.argmax_flips)),
                    *(f"{row.identical_greedy:.0%}", f"{drift:.1e}"),
                    *(f"{float(kl.mean()):.1e}", f"{float(kl.max()):.1e}", str(flips)),
                    f"{same} of {len(TEXTS)}",
                )
                print(f"{kind:>10} {rho:6.0e}" + "".join(f"{figure:>12}" for figure in figures))


if __name__ == "__main__":
    main()
