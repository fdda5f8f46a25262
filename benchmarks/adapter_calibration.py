"""How large must ΔW be before anybody could notice? Random LoRA adapters of chosen size.

For each relative size ρ = ‖ΔW‖_F / ‖W‖_F (the same in every adapted module), the embedded model is
compared with its base on a few items: KL at the answer position, argmax flips, identical greedy
answers. The audit's thresholds are to be read beside this table.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model

from activations import ModelSpec, describe_source, load_backend
from activations.batches import BATCH_TOKENS
from experiments.compare import compare_adapters
from interp import load_items, open_source

SIZES, RANK, N_ITEMS, NEW_TOKENS = (1e-5, 1e-4, 3e-4, 1e-3, 1e-2), 8, 20, 16


def write_adapter(folder: Path, rho: float) -> None:
    """A LoRA adapter on q and v whose every module has the relative size `rho`."""
    model = load_backend(ModelSpec.parse("smollm2", device="cpu")).model
    torch.manual_seed(0)
    wrapped = get_peft_model(
        model, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=["q_proj", "v_proj"])
    )
    with torch.no_grad():
        for module in wrapped.modules():
            if "default" in getattr(module, "lora_B", {}):
                a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
                b.normal_()
                delta = module.scaling["default"] * (b @ a)
                b.mul_(rho * module.base_layer.weight.norm() / delta.norm())
    wrapped.save_pretrained(folder)


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")
    source = open_source("facts")
    items = load_items(source, n=N_ITEMS)
    described = describe_source(source, items, view=None, seed=0)
    print(f"SmolLM2-135M, r {RANK}, q and v, {N_ITEMS} items, {NEW_TOKENS} new tokens, float32")
    print(f"{'rho':>8} {'KL mean':>9} {'KL max':>9} {'flips':>6} {'same greedy':>12} {'drift':>9}")
    with tempfile.TemporaryDirectory() as scratch:
        for rho in SIZES:
            folder = Path(scratch) / f"rho-{rho:g}"
            write_adapter(folder, rho)
            (found,) = compare_adapters(
                load_backend(ModelSpec.parse("smollm2", device="cpu")),
                [folder],
                items,
                Path(scratch) / "caches",
                source=described,
                max_new_tokens=NEW_TOKENS,
                batch_tokens=BATCH_TOKENS,
            )
            change = max(row.relative_change for row in found.drift)
            print(
                f"{rho:8.0e} {found.kl_mean:9.1e} {found.kl_max:9.1e} {found.argmax_flips:6d} "
                f"{found.identical_greedy:12.0%} {change:9.1e}"
            )


if __name__ == "__main__":
    main()
