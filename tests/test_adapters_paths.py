"""Where an adapter's keys say its modules are, against where the base has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import peft
import pytest
import torch
from adapter_models import gpt2, llama, save_case
from audits import attached, codes, configure, one, rewrite
from safetensors.torch import load_file, save_file

LORA = peft.LoraConfig(r=4, target_modules=["q_proj"])
FULL = "base_model.model.model.layers"


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    save_case(tmp_path, llama, LORA, scale=0.01)
    return tmp_path


def rename(file: Path, change: Callable[[str], str]) -> None:
    save_file({change(name): tensor for name, tensor in load_file(file).items()}, file)


# New start of the keys, and the code.
PATHS: Mapping[str, str] = {
    "base_model.model.base_model.model.model.layers": "doubled_prefix",
    "base_model.layers": "missing_prefix",
}
ASTRAY = (
    "base_model.model.layers",
    "base_model.model.model.language_model.layers",
    "base_model.model.language_model.layers",
    "base_model.model.language_model.model.layers",
    "base_model.model.model.model.layers",
)


@pytest.mark.parametrize(
    "start", ["base_model.model.base_model.model.model.layers", "base_model.layers"]
)
def test_prefixes_that_peft_ignores(start: str, trained: Path) -> None:
    rewrite(trained / "adapter", lambda n, t: {n.replace(FULL, start): t})
    for base in (None, trained / "base"):
        audit = one(trained / "adapter", base=base)
        assert audit.verdict == "broken" and PATHS[start] in codes(audit)
    assert attached(trained) == 0


@pytest.mark.parametrize("start", ASTRAY)
def test_paths_that_the_base_does_not_have(start: str, trained: Path) -> None:
    rewrite(trained / "adapter", lambda n, t: {n.replace(FULL, start): t})
    audit = one(trained / "adapter", base=trained / "base")
    assert audit.verdict == "broken" and "path_differs_from_base" in codes(audit)
    assert attached(trained) == 0


def test_files_of_the_bare_model_are_no_difference(tmp_path: Path) -> None:
    """GPT-2's files have no `transformer.`, its modules do."""
    config = peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)
    save_case(tmp_path, gpt2, config, scale=0.01)
    rename(tmp_path / "base" / "model.safetensors", lambda n: n.removeprefix("transformer."))
    audit = one(tmp_path / "adapter", base=tmp_path / "base")
    assert audit.verdict == "effective" and "path_differs_from_base" not in codes(audit)
    assert audit.totals.relative is not None


def test_an_adapter_of_the_bare_model_fits_the_files_with_a_head(tmp_path: Path) -> None:
    save_case(tmp_path, llama, LORA, scale=0.01)
    save_case(tmp_path / "bare", lambda: llama().model, LORA, scale=0.01)
    audit = one(tmp_path / "bare" / "adapter", base=tmp_path / "base")
    assert audit.verdict == "effective" and "path_differs_from_base" not in codes(audit)


LAYOUTS = {
    "gemma 3": (
        "language_model.model",
        "vision_tower.vision_model.encoder",
        "model.language_model",
    ),
    "llava": ("language_model.model", "vision_tower.vision_model.encoder", "language_model.model"),
    "text alone": ("language_model.model", "vision_tower.vision_model.encoder", "model"),
    "vision": (
        "vision_tower.vision_model.encoder",
        "language_model.model",
        "model.vision_tower.vision_model.encoder",
    ),
}


def several(folder: Path, *starts: str) -> None:
    """Make the base one with two parts of like names, of which the first is the adapter's."""
    file = folder / "base" / "model.safetensors"
    tensors = {}
    for name, tensor in load_file(file).items():
        if ".layers." in name:
            for place, start in enumerate(starts):
                new = name.replace("model.layers", f"{start}.layers")
                tensors[new] = tensor if place == 0 else torch.zeros(3, 3)
    save_file(tensors, file)
    config = folder / "base" / "config.json"
    raw = json.loads(config.read_text())
    config.write_text(json.dumps(raw | {"text_config": {}, "vision_config": {}}))


@pytest.mark.parametrize("case", LAYOUTS)
def test_parts_of_like_names_are_told_apart_by_what_leads_to_them(case: str, trained: Path) -> None:
    own, other, start = LAYOUTS[case]
    several(trained, own, other)
    rewrite(
        trained / "adapter", lambda n, t: {n.replace(FULL, f"base_model.model.{start}.layers"): t}
    )
    audit = one(trained / "adapter", base=trained / "base")
    assert audit.verdict == "effective" and codes(audit) <= {"base_overridden"}
    assert audit.totals.relative is not None


def test_parts_that_cannot_be_told_apart_are_said(trained: Path) -> None:
    several(trained, "first", "second")
    audit = one(trained / "adapter", base=trained / "base")
    assert audit.verdict == "effective" and "base_ambiguous" in codes(audit)


def test_a_new_head_is_not_taken_for_the_old_one(trained: Path) -> None:
    """RoBERTa's classifier.dense is not its lm_head.dense."""
    file = trained / "base" / "model.safetensors"
    save_file(load_file(file) | {"lm_head.dense.weight": torch.zeros(5, 5)}, file)
    adapter = trained / "adapter" / "adapter_model.safetensors"
    head = {"base_model.model.classifier.dense.weight": torch.ones(16, 16)}
    save_file(load_file(adapter) | head, adapter)
    configure(trained / "adapter", modules_to_save=["classifier"])
    audit = one(trained / "adapter", base=trained / "base")
    assert audit.verdict == "effective" and "saved_tensors_unverified" in codes(audit)
    # A factor there attaches to nothing.
    rename(adapter, lambda n: n.replace("model.layers.0.self_attn.q_proj", "classifier.dense"))
    assert "module_absent_from_base" in codes(one(trained / "adapter", base=trained / "base"))


def test_no_outer_segment_in_a_model_of_several_inputs(trained: Path) -> None:
    several(trained, "language_model.model")
    rewrite(trained / "adapter", lambda n, t: {n.replace(FULL, "base_model.model.layers"): t})
    audit = one(trained / "adapter", base=trained / "base")
    assert audit.verdict == "broken" and "path_differs_from_base" in codes(audit)


@pytest.mark.parametrize(
    ("folder", "same"),
    [
        ("Tiny-1B", True),
        ("tiny-1b/final", True),
        ("models--org--Tiny-1B/snapshots/0123", True),
        ("Tiny-1B-Instruct", False),
        ("models--org--Tiny-1B-Instruct/snapshots/0123", False),
        ("models--other--Tiny-1B/snapshots/0123", False),
        ("my-Tiny-1B", False),
    ],
)
def test_another_base_of_a_like_name_is_said(folder: str, same: bool, trained: Path) -> None:
    configure(trained / "adapter", base_model_name_or_path="org/Tiny-1B")
    (trained / folder).parent.mkdir(parents=True, exist_ok=True)
    (trained / "base").rename(trained / folder)
    audit = one(trained / "adapter", base=trained / folder)
    assert ("base_overridden" not in codes(audit)) == same


@pytest.mark.parametrize("init", ["brand_new", "pissa2", "1"])
def test_initialisations_that_nobody_knows(init: str, trained: Path) -> None:
    configure(trained / "adapter", init_lora_weights=init)
    audit = one(trained / "adapter", base=trained / "base")
    assert audit.verdict == "indeterminate" and "rewritten_base" in codes(audit)
    # With the adapter before training it can be told.
    start = trained / "start"
    start.mkdir()
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        (start / file).write_bytes((trained / "adapter" / file).read_bytes())
    audit = one(trained / "adapter", base=trained / "base", initial=start)
    assert audit.verdict == "untrained"


@pytest.mark.parametrize("init", [True, False, "gaussian", "eva", "orthogonal", "mica"])
def test_initialisations_that_leave_the_base(init: str | bool, trained: Path) -> None:
    configure(trained / "adapter", init_lora_weights=init)
    assert one(trained / "adapter", base=trained / "base").verdict == "effective"
