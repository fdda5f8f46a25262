"""Impossible values in a config, and files that are not what their names say: a verdict each."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import peft
import pytest
import torch
from adapter_models import llama, save_case
from audits import codes, configure, one, rewrite
from safetensors.torch import load_file

from interp.adapters import audit_to_json

HUGE = 10**400
INF = float("inf")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    save_case(folder, llama, config, scale=0.01)
    return folder


@pytest.fixture
def adapter(sound: Path, tmp_path: Path) -> Path:
    for file in (sound / "adapter").iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    "changes",
    [
        {"r": INF},
        {"r": HUGE},
        {"r": 10**300},
        {"lora_alpha": HUGE},
        {"lora_alpha": -INF},
        *({name: {"q_proj": value}} for name in ("rank_pattern", "alpha_pattern")
          for value in (INF, HUGE, float("nan"))),
        {"layers_to_transform": [[1]]},
        {"layers_to_transform": {}},
        {"layers_to_transform": [{}]},
        {"trainable_token_indices": [INF]},
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["LORA", "LOHA", "LOKR"])
def test_impossible_values_are_a_broken_config(
    changes: dict[str, object], method: str, adapter: Path
) -> None:
    if method != "LORA":
        changes = {name.removeprefix("lora_"): value for name, value in changes.items()}
    configure(adapter, peft_type=method, **changes)
    audit = one(adapter)
    assert audit.verdict == "broken" and "config_unreadable" in codes(audit)
    json.dumps(audit_to_json(audit), allow_nan=False)


@pytest.mark.parametrize("method", ["LOHA", "LOKR", "RANDLORA"])
def test_a_rank_of_zero(method: str, adapter: Path) -> None:
    configure(adapter, peft_type=method, r=0)
    assert codes(one(adapter)) >= {"config_unreadable"}


def test_a_number_of_more_digits_than_python_reads(adapter: Path) -> None:
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 1' + "0" * 9999 + "}")
    assert "config_unreadable" in codes(one(adapter))


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (peft.OFTConfig(oft_block_size=4, r=0, target_modules=["q_proj"]),
         {"num_cayley_neumann_terms": HUGE}),
        (peft.OFTConfig(oft_block_size=4, r=0, target_modules=["q_proj"]),
         {"num_cayley_neumann_terms": [1]}),
        (peft.IA3Config(target_modules=["q_proj"], feedforward_modules=[]),
         {"feedforward_modules": "("}),
        (peft.RandLoraConfig(r=3, target_modules=["q_proj"]), {"randlora_alpha": HUGE}),
    ],
)  # fmt: skip
def test_impossible_options_of_methods(
    config: peft.PeftConfig, changes: dict[str, object], tmp_path: Path
) -> None:
    save_case(tmp_path, llama, config)
    configure(tmp_path / "adapter", **changes)
    audit = one(tmp_path / "adapter", base=tmp_path / "base")
    json.dumps(audit_to_json(audit), allow_nan=False)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00" * 64, b"\xff" * 64, b"junk", b"\x80\x02.", b"PK\x03\x04junk", b"\x80\x02N.",
     b"hello world\n", b"(lp0\n.", b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f."],
)  # fmt: skip
@pytest.mark.parametrize("name", ["adapter_model.bin", "optimizer.pt", "training_args.bin"])
def test_junk_in_pickles(data: bytes, name: str, adapter: Path) -> None:
    history = [{"step": step, "learning_rate": 1e-3} for step in (1, 2)]
    state = {"global_step": 2, "log_history": history}
    (adapter / "trainer_state.json").write_text(json.dumps(state))
    (adapter / name).write_bytes(data)
    if name == "adapter_model.bin":
        (adapter / "adapter_model.safetensors").unlink()
    audit = one(adapter)
    broken = name == "adapter_model.bin"
    assert (audit.verdict == "broken") == broken


def test_complex_tensors(adapter: Path) -> None:
    rewrite(adapter, lambda n, t: {n: t.to(torch.complex64) if "layers.0" in n else t})
    audit = one(adapter)
    assert audit.verdict == "broken" and "bad_shape" in codes(audit)


@pytest.mark.parametrize("kind", ["sparse", "numbered"])
def test_tensors_of_other_kinds_in_a_bin(kind: str, adapter: Path) -> None:
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        changed = {
            "sparse": {name: tensor.to_sparse() for name, tensor in tensors.items()},
            "numbered": dict(enumerate(tensors.values())),
        }[kind]
        torch.save(changed, adapter / "adapter_model.bin")
        file.unlink()
        assert one(adapter).verdict == "broken"
