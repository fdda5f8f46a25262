"""Tiny random models of the decoder families of transformers, and how captures are judged on them.

`tests/test_architectures.py` asserts what is measured here; `docs/architectures.py` tabulates it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM

from activations import HFBackend
from activations.hooks import count_hooks
from interp.errors import ModelError, SharingError

N_VOCAB = 300
_WIDTH = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
_GATED = {"num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 256}
_LLAMA = _WIDTH | _GATED
_HEAD = {"head_dim": 8}
_GPT = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_SHARED_EXPERT = _EXPERTS | {"shared_expert_intermediate_size": 24}
_LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_PLAIN = _WIDTH | {"intermediate_size": 48, "max_position_embeddings": 256}
# Shorter than the longest sequence, so that a window cuts something off.
_WINDOW = {"sliding_window": 6}
_MIXED = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
_LINEAR = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}


@dataclass(frozen=True, slots=True)
class Family:
    """A decoder family at toy size.

    Attributes:
        config: name of the configuration class in transformers.
        settings: its arguments.
        states_from: entry of `output_hidden_states` that is the output of block 0.
        left: whether captures under left padding are right.
        shares: whether prefixes can be shared.
        continues: whether prompts of one batch can be kept and continued, as steering does; the
            others refuse.
        refused: words of the error, for a family whose captures are refused.
    """

    config: str
    settings: dict[str, Any] = field(default_factory=dict)
    states_from: int = 1
    left: bool = True
    shares: bool = True
    continues: bool = True
    refused: str | None = None


FAMILIES: dict[str, Family] = {
    "BioGPT": Family("BioGptConfig", _PLAIN),
    "BLOOM": Family("BloomConfig", {"hidden_size": 32, "n_layer": 3, "n_head": 4}),
    "CodeGen": Family("CodeGenConfig", _GPT | {"rotary_dim": 4}),
    "Cohere": Family("CohereConfig", _LLAMA),
    "Cohere 2": Family("Cohere2Config", _LLAMA | _WINDOW),
    "DeepSeek-V3": Family(
        "DeepseekV3Config",
        _LLAMA
        | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
        | {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4}
        | {"v_head_dim": 8, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
        | {"num_key_value_heads": 4},
    ),
    "Exaone 4": Family("Exaone4Config", _LLAMA | _WINDOW | _MIXED),
    "Falcon": Family("FalconConfig", _WIDTH),
    "Falcon, ALiBi": Family("FalconConfig", _WIDTH | {"alibi": True}),
    "Gemma": Family("GemmaConfig", _LLAMA | _HEAD),
    "Gemma 2": Family("Gemma2Config", _LLAMA | _HEAD | _WINDOW | {"query_pre_attn_scalar": 8}),
    "Gemma 3": Family("Gemma3TextConfig", _LLAMA | _HEAD | _WINDOW | _MIXED),
    "Gemma 3n": Family(
        "Gemma3nTextConfig",
        _LLAMA
        | _HEAD
        | {"vocab_size_per_layer_input": N_VOCAB, "hidden_size_per_layer_input": 8}
        | {"num_kv_shared_layers": 1, "laurel_rank": 4, "altup_num_inputs": 2}
        | {"activation_sparsity_pattern": [0.0] * 3},
        refused="hidden states of shape",
    ),
    "GLM": Family("GlmConfig", _LLAMA | _HEAD),
    "GLM-4": Family("Glm4Config", _LLAMA | _HEAD),
    "GPT-2": Family("GPT2Config", _GPT),
    "GPT-BigCode": Family("GPTBigCodeConfig", _GPT),
    "GPT-J": Family("GPTJConfig", _GPT | {"rotary_dim": 4}),
    "GPT-Neo": Family(
        "GPTNeoConfig",
        {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 6}
        | {"attention_types": [[["global", "local"], 1]], "max_position_embeddings": 256},
    ),
    "GPT-NeoX": Family("GPTNeoXConfig", _PLAIN),
    "gpt-oss": Family("GptOssConfig", _LLAMA | _HEAD | _LOCAL_EXPERTS | _WINDOW),
    "Granite": Family("GraniteConfig", _LLAMA),
    "Granite MoE": Family("GraniteMoeConfig", _LLAMA | _LOCAL_EXPERTS),
    "Jamba": Family(
        "JambaConfig",
        _LLAMA
        | {"num_experts": 2, "mamba_d_state": 4, "use_mamba_kernels": False}
        | {"attn_layer_period": 2, "attn_layer_offset": 1},
        shares=False,
        continues=False,
    ),
    "Llama": Family("LlamaConfig", _LLAMA),
    "Mamba": Family(
        "MambaConfig",
        {"hidden_size": 32, "num_hidden_layers": 3, "state_size": 4},
        states_from=0,
        shares=False,
        continues=False,
    ),
    "Mistral": Family("MistralConfig", _LLAMA | _WINDOW),
    "Mixtral": Family("MixtralConfig", _LLAMA | _LOCAL_EXPERTS | {"sliding_window": None}),
    "MPT": Family("MptConfig", {"d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": 256}),
    "Nemotron": Family("NemotronConfig", _LLAMA),
    "OLMo": Family("OlmoConfig", _LLAMA),
    "OLMo 2": Family("Olmo2Config", _LLAMA),
    "OLMo 3": Family("Olmo3Config", _LLAMA | _WINDOW | _MIXED),
    "OLMoE": Family("OlmoeConfig", _LLAMA | {"num_experts": 4, "num_experts_per_tok": 2}),
    "OPT": Family(
        "OPTConfig",
        _WIDTH | {"ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 256},
    ),
    "Persimmon": Family("PersimmonConfig", _PLAIN),
    "Phi": Family("PhiConfig", _LLAMA),
    "Phi-3": Family("Phi3Config", _LLAMA),
    "Qwen2": Family("Qwen2Config", _LLAMA),
    "Qwen2-MoE": Family("Qwen2MoeConfig", _LLAMA | _SHARED_EXPERT),
    "Qwen3": Family("Qwen3Config", _LLAMA | _HEAD),
    "Qwen3-MoE": Family("Qwen3MoeConfig", _LLAMA | _HEAD | _EXPERTS),
    "Qwen3-Next": Family(
        "Qwen3NextConfig",
        _LLAMA
        | _HEAD
        | _SHARED_EXPERT
        | _LINEAR
        | {"linear_num_value_heads": 4, "linear_num_key_heads": 2}
        | {"linear_key_head_dim": 8, "linear_value_head_dim": 8},
        shares=False,
        continues=False,
    ),
    "RecurrentGemma": Family(
        "RecurrentGemmaConfig",
        _WIDTH | _HEAD | {"intermediate_size": 48, "lru_width": 32, "attention_window_size": 6},
        left=False,
        shares=False,
        continues=False,
    ),
    "RWKV": Family(
        "RwkvConfig",
        {"hidden_size": 32, "num_hidden_layers": 3, "attention_hidden_size": 32},
        states_from=0,
        left=False,
        shares=False,
        continues=False,
    ),
    "SmolLM3": Family("SmolLM3Config", _LLAMA),
    "StableLM": Family("StableLmConfig", _LLAMA),
    "StarCoder2": Family("Starcoder2Config", _LLAMA),
    "XGLM": Family(
        "XGLMConfig",
        {"d_model": 32, "num_layers": 3, "attention_heads": 4, "ffn_dim": 48}
        | {"max_position_embeddings": 256},
    ),
}

# Unequal lengths, one of a single token; wanted tokens at the start, inside and at the end.
SEQUENCES = [[7, 30, 41, 5, 99, 12, 250, 9, 9, 31], [8, 77, 3], [11, 4, 60, 61, 62], [200]]
POSITIONS = [6, 2, 0, 0]
PREFIX = list(range(10, 50))
TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class Measured:
    """Largest relative differences from the reference; infinite where nothing came out.

    Attributes:
        right: captures of a batch as it is run by default: packed, or padded on the right.
        padded: padded on the right.
        left: padded on the left.
        states: captures against `output_hidden_states`, the last layer left out.
        logits: of the last token.
        shared: captures after a shared prefix against the plain pass.
        continued: logits after kept prefixes of one batch against the plain pass.
        neighbour: captures against the neighbouring layer: what a wrong layer would give.
        refused: message of the error, if captures are refused.
        unshared: message of the error, if sharing is refused.
        hooks_left: hooks that stay on the model.
        packs: whether captures are packed.
    """

    right: float = float("inf")
    padded: float = float("inf")
    left: float = float("inf")
    states: float = float("inf")
    logits: float = float("inf")
    shared: float = float("inf")
    continued: float | None = float("inf")
    neighbour: float = float("inf")
    refused: str | None = None
    unshared: str | None = None
    hooks_left: int = 0
    packs: bool = False


def build(name: str) -> Any:
    """A random model of a family, with weights large enough for layers to differ."""
    family = FAMILIES[name]
    ends = {"eos_token_id": 1, "bos_token_id": 1, "pad_token_id": 1}
    config_class = getattr(transformers, family.config)
    config = config_class(**{"vocab_size": N_VOCAB} | ends | family.settings)
    config.initializer_range = 0.3
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def relative(got: Tensor, expected: Tensor) -> float:
    return float(((got - expected).norm(dim=-1) / expected.norm(dim=-1)).max())


@torch.inference_mode()
def alone(model: Any, blocks: Any, ids: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """One unpadded sequence under hooks of our own.

    Returns:
        (n_layers + 1, seq, d_model) input of block 0 and outputs of all blocks, the same from
        `output_hidden_states`, (n_vocab,) logits of the last token.
    """
    streams: list[Tensor] = []

    def keep_input(_module: Any, args: Any, kwargs: Any) -> None:
        streams.append((args[0] if args else kwargs["hidden_states"])[0].clone())

    def keep_output(_module: Any, _args: Any, output: Any) -> None:
        streams.append((output[0] if isinstance(output, tuple) else output)[0].clone())

    handles = [blocks[0].register_forward_pre_hook(keep_input, with_kwargs=True)]
    handles += [block.register_forward_hook(keep_output) for block in blocks]
    try:
        output = model(torch.tensor([ids]), output_hidden_states=True)
    finally:
        for handle in handles:
            handle.remove()
    states = torch.stack([state[0] for state in output.hidden_states])
    return torch.stack(streams), states, output.logits[0, -1]


def measure(
    name: str, wrap: Callable[[HFBackend], HFBackend] = lambda backend: backend
) -> Measured:
    """Run a family both ways and compare.

    Args:
        name: of the family.
        wrap: changes the backend; for controls.
    """
    family, model = FAMILIES[name], build(name)
    backend = {
        side: wrap(HFBackend(model, None, model_id=name, padding=side))  # type: ignore[arg-type]
        for side in ("right", "left")
    }
    backend["padded"] = wrap(HFBackend(model, None, model_id=name))
    backend["padded"]._unpackable = "to see that it is the same"
    # transformers puts hooks of its own on a model when hidden states are first asked for.
    references = [alone(model, backend["right"].blocks, ids) for ids in SEQUENCES]
    before = count_hooks(model)
    every_id = list(range(N_VOCAB))
    try:
        captured = {side: backend[side].capture(SEQUENCES, POSITIONS, every_id) for side in backend}
    except ModelError as error:
        return Measured(refused=str(error), hooks_left=count_hooks(model) - before)
    worst = {"right": 0.0, "padded": 0.0, "left": 0.0, "states": 0.0, "logits": 0.0}
    neighbour = float("inf")
    for row, (position, (streams, states, logits)) in enumerate(
        zip(POSITIONS, references, strict=True)
    ):
        expected = streams[:, position]
        for side, capture in captured.items():
            got = torch.cat([capture.resid_pre0[row][None], capture.resid_post[row]])
            worst[side] = max(worst[side], relative(got, expected))
        right = captured["right"]
        # The last entry of the hidden states comes after the final norm.
        inner = states[family.states_from : -1, position]
        worst["states"] = max(worst["states"], relative(right.resid_post[row][: len(inner)], inner))
        worst["logits"] = max(worst["logits"], relative(right.logits[row], logits))
        neighbour = min(neighbour, relative(right.resid_post[row], expected[:-1]))
    shared, unshared = float("inf"), None
    try:
        prefix = backend["right"].share_prefix(PREFIX)
        plain = backend["right"].capture(
            [PREFIX + ids for ids in SEQUENCES], [len(PREFIX) + p for p in POSITIONS], every_id
        )
        after = backend["right"].capture_after(prefix, SEQUENCES, POSITIONS, every_id)
        shared = relative(after.resid_post, plain.resid_post)
    except SharingError as error:
        unshared = str(error)
    return Measured(
        **worst,
        shared=shared,
        continued=continued(backend["right"]),
        neighbour=neighbour,
        unshared=unshared,
        hooks_left=count_hooks(model) - before,
        packs=backend["right"].padded_because is None,
    )


def continued(backend: HFBackend) -> float | None:
    """Logits after kept prefixes against the plain pass; None if the model refuses."""
    suffix, every_id = [21, 8, 150], list(range(N_VOCAB))
    plain = backend.logits([ids + suffix for ids in SEQUENCES], every_id)
    try:
        kept = backend.prefill(SEQUENCES)
        return relative(backend.logits_after(kept, [suffix] * len(SEQUENCES), every_id), plain)
    except ModelError:
        return None


def table_row(name: str, measured: Measured) -> str:
    """One row of the support table."""
    if measured.refused is not None:
        return f"| {name} | `{FAMILIES[name].config}` | refused | refused | refused | refused | – |"

    def cell(difference: float) -> str:
        return "equal" if difference < TOLERANCE else "**differs**"

    shared = "not possible" if measured.unshared is not None else cell(measured.shared)
    steering = "not possible" if measured.continued is None else cell(measured.continued)
    right = cell(max(measured.right, measured.padded, measured.states, measured.logits))
    cells = (f"`{FAMILIES[name].config}`", right, cell(measured.left), shared, steering)
    cells += ("yes" if measured.packs else "no",)
    return f"| {name} | {' | '.join(cells)} |"
