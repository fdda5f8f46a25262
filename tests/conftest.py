"""Tiny random models and a tokenizer, built here: no test downloads anything."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import pytest
import torch
from commands import ok
from hypothesis import settings
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from activations import ActivationCache, HFBackend, describe_source, extract
from interp import Item, load_items, open_source
from steering import SignedItems

# Shared cores are noisy: a slow example is no failure.
settings.register_profile("interp", deadline=None)
settings.load_profile("interp")
torch.set_num_threads(1)

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
_WIDTH = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
_GATED = {"num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48}
_LONG = {"max_position_embeddings": 512}


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE in which " True" and " False" are one token each."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = "ANSWER: True\nANSWER: False\nIs the statement true? The capital of France is Paris."
    core.train_from_iterator([text] * 50, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|end|>",
        pad_token="<|end|>",
        chat_template=CHAT_TEMPLATE,
    )


@pytest.fixture(scope="session")
def tiny_model(tokenizer: PreTrainedTokenizerFast) -> Callable[..., Any]:
    """Build a random causal language model of a family; the same each time for one seed."""

    def build(family: str, *, attn: str = "sdpa", seed: int = 0, **changes: Any) -> Any:
        vocab = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
        configs = {
            "llama": lambda: LlamaConfig(**_WIDTH | _GATED | _LONG | vocab | changes),
            "qwen3": lambda: Qwen3Config(**_WIDTH | _GATED | _LONG | vocab | changes),
            "gemma3": lambda: Gemma3TextConfig(**_WIDTH | _GATED | _LONG | vocab | changes),
            "gpt2": lambda: GPT2Config(
                n_embd=32, n_layer=3, n_head=4, **{"n_positions": 512} | vocab | changes
            ),
        }
        config = configs[family]()
        # Larger than usual, so that layers differ and a wrong layer or position shows.
        config.initializer_range = 0.3
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, attn_implementation=attn).eval()

    return build


@pytest.fixture(scope="session")
def tiny_backend(
    tiny_model: Callable[..., Any], tokenizer: PreTrainedTokenizerFast
) -> Callable[..., HFBackend]:
    """A backend around a tiny model."""

    def build(family: str = "llama", *, padding: str = "right", **changes: Any) -> HFBackend:
        model = tiny_model(family, **changes)
        return HFBackend(model, tokenizer, model_id=f"tiny-{family}", padding=padding)  # type: ignore[arg-type]

    return build


@pytest.fixture(scope="session")
def model_folder(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_model: Callable[..., Any],
    tokenizer: PreTrainedTokenizerFast,
) -> Path:
    """A tiny Llama as `save_pretrained` writes it."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    tiny_model("llama").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def facts() -> tuple[Item, ...]:
    """Forty statements in ten groups."""
    return load_items(open_source("facts"), n=40, seed=1)


@pytest.fixture
def prepared(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], facts: tuple[Item, ...]
) -> Callable[..., tuple[HFBackend, ActivationCache, SignedItems]]:
    """A backend, its cache, and made-up folds, layers and decisions."""

    def build(
        family: str = "llama", **options: Any
    ) -> tuple[HFBackend, ActivationCache, SignedItems]:
        backend = tiny_backend(family)
        source = describe_source(open_source("facts"), facts, view=None, seed=1)
        cache = extract(backend, facts, tmp_path / f"{family}.h5", source=source, **options)
        groups = {group: index for index, group in enumerate(dict.fromkeys(cache.group_id))}
        fold = np.array([groups[group] % 5 for group in cache.group_id])
        decisions = np.random.default_rng(0).normal(size=(cache.n_items, cache.n_layers))
        return backend, cache, SignedItems(fold, fold % cache.n_layers, decisions, cache.manifest)

    return build


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """base/ and adapter/ with a clear change in q and v."""
    import peft
    from adapter_models import llama, save_case

    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    save_case(tmp_path, llama, config, scale=0.01)
    return tmp_path


@pytest.fixture(scope="session")
def gap(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    """A finished expression-gap run."""
    folder = tmp_path_factory.mktemp("runs") / "gap"
    ok(
        *("run", "expression-gap", "--model", model_folder, "--source", "facts", "--n", 80),
        *("--max-new-tokens", 4, "--device", "cpu", "--out", folder, "--json"),
    )
    return folder
