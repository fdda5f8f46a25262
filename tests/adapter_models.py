"""Tiny models, adapters on them with random content, and PEFT's merge as the reference."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    MixtralConfig,
    Qwen3MoeConfig,
)


def llama(**changes: Any) -> torch.nn.Module:
    usual: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 24,
        "vocab_size": 40,
        "attention_bias": True,
    }
    return AutoModelForCausalLM.from_config(LlamaConfig(**(usual | changes)))


def tied() -> torch.nn.Module:
    return llama(tie_word_embeddings=True)


def gpt2() -> torch.nn.Module:
    return AutoModelForCausalLM.from_config(
        GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=40, n_positions=32)
    )


def untied_gpt2() -> torch.nn.Module:
    """Conv1D throughout, square ones too, and a head that is a plain Linear."""
    config = GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=40, n_positions=32)
    config.tie_word_embeddings = False
    return AutoModelForCausalLM.from_config(config)


def experts() -> torch.nn.Module:
    return AutoModelForCausalLM.from_config(
        Qwen3MoeConfig(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            intermediate_size=24,
            moe_intermediate_size=12,
            num_experts=4,
            num_experts_per_tok=2,
            vocab_size=40,
        )
    )


def mixtral() -> torch.nn.Module:
    """Its files call the experts otherwise than its modules do."""
    return AutoModelForCausalLM.from_config(MixtralConfig(**_EXPERTS, intermediate_size=12))


def turned_experts() -> torch.nn.Module:
    """Experts stored (E, in, out), not square."""
    return AutoModelForCausalLM.from_config(GptOssConfig(**_EXPERTS, intermediate_size=12))


def square_gate() -> torch.nn.Module:
    """The same with a square gate_up_proj, whose shape does not tell how it is stored."""
    return AutoModelForCausalLM.from_config(GptOssConfig(**_EXPERTS, intermediate_size=8))


def square_down() -> torch.nn.Module:
    """The same with a square down_proj."""
    return AutoModelForCausalLM.from_config(GptOssConfig(**_EXPERTS, intermediate_size=16))


_EXPERTS: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": 40,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
}


class Convolutions(torch.nn.Module):
    """Two convolutions, one over a line, one over a plane."""

    def __init__(self) -> None:
        super().__init__()
        self.plane = torch.nn.Conv2d(6, 10, (3, 2))
        self.point = torch.nn.Conv2d(6, 10, 1)
        self.line = torch.nn.Conv1d(6, 10, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.plane(x)

    def save_pretrained(self, folder: Path) -> None:
        from safetensors.torch import save_file

        Path(folder).mkdir(parents=True, exist_ok=True)
        save_file(self.state_dict(), str(Path(folder) / "model.safetensors"))


class SquareConvolutions(Convolutions):
    """Kernels as high as wide: of others, PEFT's rotations cannot be merged."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.plane = torch.nn.Conv2d(6, 10, 3)
        self.point = torch.nn.Conv2d(6, 10, 1)


class GroupedConvolutions(Convolutions):
    """Two groups of channels in each."""

    def __init__(self) -> None:
        super().__init__()
        self.plane = torch.nn.Conv2d(6, 10, (3, 2), groups=2)
        self.inner = torch.nn.Conv2d(6, 10, (2, 3), groups=2)


class Attention(Convolutions):
    """torch's own multi-head attention, whose queries, keys and values are one parameter."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.attn = torch.nn.MultiheadAttention(8, 2)


def attention() -> torch.nn.Module:
    return Attention()


def vera(**options: Any) -> peft.VeraConfig:
    """A VeRA config whose shared bases are not saved; PEFT warns of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peft.VeraConfig(save_projection=False, **options)


def randlora(**options: Any) -> peft.RandLoraConfig:
    """The same of RandLora."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peft.RandLoraConfig(save_projection=False, **options)


def save_case(
    folder: Path,
    build: Callable[[], torch.nn.Module],
    config: peft.PeftConfig,
    *,
    scale: float = 0.3,
    seed: int = 0,
    safe: bool = True,
) -> dict[str, torch.Tensor]:
    """Save a base and an adapter with random content; returns merged − base by parameter name.

    All is float64, so that the difference keeps its digits. `folder/base` and `folder/adapter`.
    """
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = build().double()
        before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
        base.save_pretrained(folder / "base")
        model = peft.get_peft_model(base, config).double()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                # AdaLoRA's ranknum is marked trainable but not saved: a loaded one is the rank.
                if parameter.requires_grad and scale and "ranknum" not in name:
                    parameter.add_(torch.randn_like(parameter) * scale)
        model.save_pretrained(folder / "adapter", safe_serialization=safe)
        merged = model.merge_and_unload()
    after = merged.state_dict()
    return {name: after[name] - before[name] for name in before}
