"""ΔW from saved files equals merged − base of PEFT, for every method and option."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import peft
import pytest
import torch
from adapter_models import (
    Convolutions,
    GroupedConvolutions,
    SquareConvolutions,
    attention,
    experts,
    gpt2,
    llama,
    mixtral,
    randlora,
    save_case,
    square_down,
    square_gate,
    tied,
    turned_experts,
    untied_gpt2,
    vera,
)
from peft.tuners.lora.config import VeloraConfig
from safetensors.torch import load_file

from interp.adapters.base import open_base
from interp.adapters.config import AdapterConfig
from interp.adapters.locate import find_adapters
from interp.adapters.read import open_adapter, read_updates
from interp.adapters.updates import full_delta

L = peft.LoraConfig
Q = ["q_proj"]
LINEAR = ["q_proj", "v_proj", "down_proj"]
PLANES = ["plane", "point"]
MIXED = ["c_attn", "attn.c_proj", "lm_head"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]

LORA: dict[str, tuple[Callable[[], torch.nn.Module], peft.PeftConfig]] = {
    "plain": (llama, L(r=4, lora_alpha=3, target_modules=LINEAR)),
    "rslora": (llama, L(r=4, lora_alpha=3, target_modules=LINEAR, use_rslora=True)),
    "patterns": (
        llama,
        L(
            r=4,
            lora_alpha=3,
            target_modules=LINEAR,
            rank_pattern={"layers.1.self_attn.q_proj": 2, "q_proj": 3},
            alpha_pattern={".*v_proj": 7, "0.self_attn.q_proj": 5},
        ),
    ),
    "patterns and rslora": (
        llama,
        L(r=4, target_modules=LINEAR, use_rslora=True, rank_pattern={"v_proj": 1}),
    ),
    "gaussian": (llama, L(r=4, target_modules=LINEAR, init_lora_weights="gaussian")),
    "conv1d": (gpt2, L(r=4, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)),
    "embedding": (llama, L(r=4, lora_alpha=3, target_modules=["q_proj", "embed_tokens"])),
    "tied embedding": (tied, L(r=4, target_modules=["embed_tokens"])),
    "conv": (Convolutions, L(r=3, lora_alpha=5, target_modules=["plane", "point", "line"])),
    "dora": (llama, L(r=4, target_modules=LINEAR, use_dora=True)),
    "dora conv1d": (gpt2, L(r=4, target_modules=["c_attn"], fan_in_fan_out=True, use_dora=True)),
    "dora embedding": (llama, L(r=4, target_modules=["embed_tokens"], use_dora=True)),
    "dora conv": (Convolutions, L(r=3, target_modules=["plane", "line"], use_dora=True)),
    "lora_bias": (llama, L(r=4, lora_alpha=3, target_modules=Q, lora_bias=True)),
    "bias lora_only": (llama, L(r=4, target_modules=Q, bias="lora_only")),
    "bias all": (llama, L(r=4, target_modules=Q, bias="all")),
    "modules_to_save": (llama, L(r=4, target_modules=Q, modules_to_save=["lm_head", "norm"])),
    "tokens": (llama, L(r=4, target_modules=Q, trainable_token_indices=[1, 3, 39])),
    "tied tokens": (tied, L(r=4, target_modules=Q, trainable_token_indices={"embed_tokens": [2]})),
    "experts": (experts, L(r=2, lora_alpha=3, target_modules=Q, target_parameters=EXPERTS)),
    "experts rank": (
        experts,
        L(r=2, target_modules=Q, target_parameters=EXPERTS, rank_pattern={"experts.down_proj": 3}),
    ),
    **{
        f"experts of {build.__name__}": (
            build,
            L(r=2, lora_alpha=3, target_modules=Q, target_parameters=EXPERTS[::-1]),
        )
        for build in (mixtral, turned_experts, square_gate, square_down)
    },
    "layers": (llama, L(r=4, target_modules=LINEAR, layers_to_transform=[1])),
    "exclude": (llama, L(r=4, target_modules=LINEAR, exclude_modules=["v_proj"])),
    "attention": (attention, L(r=4, lora_alpha=3, target_modules=["attn"])),
    "velora": (
        llama,
        L(r=4, target_modules=Q, velora_config=VeloraConfig(num_groups=4)),
    ),
    # PEFT's config keeps what the last wrapped module needs: it says nothing of the square c_proj.
    "conv1d and linear": (untied_gpt2, L(r=4, target_modules=MIXED)),
    "dora conv1d and linear": (untied_gpt2, L(r=4, target_modules=MIXED, use_dora=True)),
    "orthogonal": (llama, L(r=4, target_modules=Q, init_lora_weights="orthogonal")),
}

OTHER: dict[str, tuple[Callable[[], torch.nn.Module], peft.PeftConfig]] = {
    "adalora": (
        llama,
        peft.AdaLoraConfig(init_r=4, target_r=2, total_step=9, lora_alpha=3, target_modules=LINEAR),
    ),
    "ia3": (
        llama,
        peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
    ),
    "ia3 conv1d": (
        gpt2,
        peft.IA3Config(
            target_modules=["c_attn", "c_proj"], feedforward_modules=["c_proj"], fan_in_fan_out=True
        ),
    ),
    "ia3 conv1d and linear": (
        untied_gpt2,
        peft.IA3Config(target_modules=MIXED, feedforward_modules=["attn.c_proj"]),
    ),
    "ia3 conv": (
        Convolutions,
        peft.IA3Config(target_modules=["plane", "point"], feedforward_modules=["point"]),
    ),
    "ia3 conv groups": (
        GroupedConvolutions,
        peft.IA3Config(target_modules=["plane", "inner"], feedforward_modules=".*inner|inner"),
    ),
    "ia3 conv turned": (
        Convolutions,
        peft.IA3Config(target_modules=["plane", "point"], feedforward_modules=["plane"]),
    ),
    "oft embedding": (
        llama,
        peft.OFTConfig(oft_block_size=4, r=0, target_modules=["embed_tokens", "q_proj"]),
    ),
    "oft embedding solve": (
        llama,
        peft.OFTConfig(
            oft_block_size=4, r=0, target_modules=["embed_tokens"], use_cayley_neumann=False
        ),
    ),
    "loha": (llama, peft.LoHaConfig(r=3, alpha=5, target_modules=LINEAR)),
    "loha conv": (
        Convolutions,
        peft.LoHaConfig(r=3, alpha=5, target_modules=["plane"], use_effective_conv2d=True),
    ),
    "lokr": (llama, peft.LoKrConfig(r=2, alpha=5, target_modules=LINEAR)),
    "lokr factors": (
        llama,
        peft.LoKrConfig(r=1, alpha=5, target_modules=LINEAR, decompose_both=True),
    ),
    "lokr conv": (
        Convolutions,
        peft.LoKrConfig(r=1, alpha=5, target_modules=["plane"], use_effective_conv2d=True),
    ),
    "vera": (llama, peft.VeraConfig(r=4, target_modules=["q_proj", "down_proj"])),
    "vera drawn anew": (
        llama,
        vera(r=4, target_modules=["q_proj", "down_proj"]),
    ),
    "vera of another key": (
        gpt2,
        vera(
            r=3,
            target_modules=["c_attn", "c_proj"],
            fan_in_fan_out=True,
            projection_prng_key=7,
        ),
    ),
    **{
        f"randlora drawn anew, {kind}": (
            llama,
            randlora(
                r=3,
                target_modules=["q_proj", "up_proj"],
                projection_prng_key=5,
                sparse=kind != "dense",
                very_sparse=kind == "very sparse",
            ),
        )
        for kind in ("dense", "sparse", "very sparse")
    },
    "randlora": (
        llama,
        peft.RandLoraConfig(r=3, randlora_alpha=4, target_modules=["q_proj", "up_proj"]),
    ),
    "randlora down": (llama, peft.RandLoraConfig(r=3, target_modules=["down_proj", "v_proj"])),
    "oft": (llama, peft.OFTConfig(oft_block_size=4, r=0, target_modules=LINEAR)),
    "oft solve": (
        llama,
        peft.OFTConfig(oft_block_size=4, r=0, target_modules=LINEAR, use_cayley_neumann=False),
    ),
    "oft shared": (
        llama,
        peft.OFTConfig(oft_block_size=4, r=0, target_modules=LINEAR, block_share=True),
    ),
    "oft constrained": (
        llama,
        peft.OFTConfig(oft_block_size=4, r=0, target_modules=LINEAR, coft=True, eps=0.02),
    ),
    "oft constrained in part": (
        llama,
        peft.OFTConfig(
            oft_block_size=4,
            r=0,
            target_modules=LINEAR,
            coft=True,
            eps=2.0,
            use_cayley_neumann=False,
        ),
    ),
    "oft three terms": (
        llama,
        peft.OFTConfig(oft_block_size=4, r=0, target_modules=Q, num_cayley_neumann_terms=3),
    ),
    "boft": (llama, peft.BOFTConfig(boft_block_size=4, target_modules=LINEAR)),
    "boft butterfly": (
        llama,
        peft.BOFTConfig(boft_block_size=2, boft_n_butterfly_factor=3, target_modules=Q),
    ),
    "hra": (llama, peft.HRAConfig(r=4, target_modules=LINEAR)),
    "hra orthogonal": (llama, peft.HRAConfig(r=4, target_modules=LINEAR, apply_GS=True)),
    **{
        f"{config.peft_type.value.lower()} {what}".strip(): (build, config)
        for what, build, config in (
            ("", llama, peft.LNTuningConfig(target_modules=["input_layernorm", "norm"])),
            ("gpt2", gpt2, peft.LNTuningConfig(target_modules=["ln_1", "ln_f"])),
            ("", llama, peft.FourierFTConfig(n_frequency=6, target_modules=LINEAR)),
            (
                "of its own seed",
                llama,
                peft.FourierFTConfig(
                    n_frequency=30, scaling=7.0, random_loc_seed=3, target_modules=Q
                ),
            ),
            (
                "",
                llama,
                peft.VBLoRAConfig(
                    r=2, num_vectors=5, vector_length=4, topk=2, target_modules=["q_proj", "v_proj"]
                ),
            ),
            ("", llama, peft.MissConfig(r=4, target_modules=LINEAR)),
            ("with a rest", llama, peft.MissConfig(r=5, target_modules=LINEAR)),
            ("bat", llama, peft.MissConfig(r=4, target_modules=LINEAR, init_weights="bat")),
            (
                "mini",
                llama,
                peft.MissConfig(r=4, mini_r=2, target_modules=LINEAR, init_weights="mini"),
            ),
            *(
                (
                    variant,
                    llama,
                    peft.RoadConfig(variant=variant, group_size=4, target_modules=LINEAR),
                )
                for variant in ("road_1", "road_2", "road_4")
            ),
            ("", llama, peft.ShiraConfig(r=2, target_modules=LINEAR)),
            ("", llama, peft.C3AConfig(block_size=8, target_modules=LINEAR)),
            ("", llama, peft.DeloraConfig(r=2, target_modules=LINEAR)),
            ("", llama, peft.GraloraConfig(r=4, gralora_k=2, hybrid_r=1, target_modules=LINEAR)),
            (
                "conv1d",
                gpt2,
                peft.GraloraConfig(
                    r=4, gralora_k=2, target_modules=["c_attn"], fan_in_fan_out=True
                ),
            ),
            ("", llama, peft.HiraConfig(r=2, target_modules=[*LINEAR, "embed_tokens"])),
            (
                "conv1d",
                gpt2,
                peft.HiraConfig(r=2, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True),
            ),
            ("", llama, peft.PveraConfig(r=2, target_modules=LINEAR)),
        )
    },
    **{
        f"{config.peft_type.value.lower()} conv": (SquareConvolutions, config)
        for config in (
            peft.AdaLoraConfig(init_r=4, target_r=2, total_step=9, target_modules=PLANES),
            peft.OFTConfig(oft_block_size=3, r=0, target_modules=PLANES),
            peft.BOFTConfig(boft_block_size=2, target_modules=PLANES),
            peft.HRAConfig(r=2, target_modules=PLANES),
        )
    },
    "trainable tokens": (
        llama,
        peft.TrainableTokensConfig(token_indices=[0, 7], target_modules=["embed_tokens"]),
    ),
}


def computed(folder: Path, expected: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Our ΔW by parameter; parameters that no update names are left out."""
    (adapter,) = find_adapters(folder / "adapter")
    found: dict[str, torch.Tensor] = {}
    with open_adapter(adapter) as opened, open_base(folder / "base") as base:
        for update in read_updates(opened, base):
            assert update.findings == (), update.name
            assert update.complete, update.name
            assert update.origin is not None, update.name
            delta = full_delta(update, tuple(expected[update.name].shape))
            found[update.name] = found.get(update.name, 0) + delta
    return found


@pytest.mark.parametrize("case", [*LORA, *OTHER])
def test_delta_equals_merged_minus_base(case: str, tmp_path: Path) -> None:
    build, config = (LORA | OTHER)[case]
    expected = save_case(tmp_path, build, config)
    found = computed(tmp_path, expected)
    changed = {name for name, delta in expected.items() if delta.abs().max() > 1e-9}
    if "tied" in case:
        # One tensor under two names.
        changed -= {"lm_head.weight"}
    assert changed
    assert changed <= set(found)
    for name, delta in found.items():
        error = (delta.double() - expected[name]).norm()
        assert error <= 1e-5 * max(float(expected[name].norm()), 1e-6), name


def test_boft_with_several_butterfly_factors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PEFT falls back to one factor where its extension is not compiled."""
    from peft.tuners.boft import layer

    monkeypatch.setattr(layer, "get_fbd_cuda", lambda: object())
    monkeypatch.setattr(layer, "FastBlockDiag", _BlockDiagonal)
    config = peft.BOFTConfig(boft_block_size=2, boft_n_butterfly_factor=3, target_modules=Q)
    expected = save_case(tmp_path, llama, config)
    saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert {len(t) for n, t in saved.items() if "boft_R" in n} == {3}
    for name, delta in computed(tmp_path, expected).items():
        assert (delta - expected[name]).norm() <= 1e-5 * expected[name].norm(), name


class _BlockDiagonal:
    """What the extension computes: blocks put on the diagonal, for each factor."""

    @staticmethod
    def apply(blocks: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.block_diag(*factor) for factor in blocks])


def test_the_comparison_sees_a_wrong_scaling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = save_case(tmp_path, *LORA["rslora"])
    monkeypatch.setattr(AdapterConfig, "scaling_of", lambda self, _: self.lora_alpha / self.r)
    name = "model.layers.0.self_attn.q_proj.weight"
    delta = computed(tmp_path, expected)[name]
    assert (delta - expected[name]).norm() > 0.1 * expected[name].norm()


def test_the_plain_product_of_fused_experts_is_wrong(tmp_path: Path) -> None:
    """The control for the order of B's columns: the product as it stands raises nothing."""
    expected = save_case(tmp_path, *LORA["experts"])
    (adapter,) = find_adapters(tmp_path / "adapter")
    with open_adapter(adapter) as opened, open_base(tmp_path / "base") as base:
        update = next(u for u in read_updates(opened, base) if u.name.endswith("down_proj"))
    assert update.a is not None and update.b is not None and update.rank == 2
    naive = torch.stack(
        [
            update.b[:, 2 * e : 2 * e + 2] @ update.a[2 * e : 2 * e + 2] * update.scaling
            for e in range(4)
        ]
    )
    right = full_delta(update, tuple(expected[update.name].shape))
    assert torch.allclose(right, expected[update.name])
    assert (naive - expected[update.name]).norm() > 0.1 * expected[update.name].norm()
