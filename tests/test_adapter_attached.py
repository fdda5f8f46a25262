"""Attaching PEFT adapters: the adapted model is the merged one, and the base comes back whole."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from attaching import save_adapter
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result

from activations import ActivationCache, HFBackend
from activations.adapter import adapted, adapter_sha256
from activations.hooks import count_hooks
from experiments.cli import app
from interp.errors import ModelError

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
SEQUENCES = [[7, 30, 41, 5, 99], [8, 77, 3]]
IDS = list(range(40))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_rslora": True},
        {"use_dora": True},
        {"modules_to_save": ["lm_head"]},
        # These rewrite the base when they are attached, the second in place.
        {"init_lora_weights": "pissa"},
        {"init_lora_weights": "olora"},
        {"init_lora_weights": "olora", "target_modules": "all-linear"},
    ],
    ids=lambda options: "-".join(map(str, [*options, *options.values()][:2])) or "lora",
)
def test_the_adapted_model_is_the_merged_one_and_the_base_comes_back(
    tmp_path: Path,
    tiny_model: Callable[..., Any],
    tiny_backend: Callable[..., HFBackend],
    options: dict[str, Any],
) -> None:
    merged = save_adapter(tiny_model("llama"), tmp_path / "a", **options)
    backend = tiny_backend("llama")
    before, hooks = backend.logits(SEQUENCES, IDS), count_hooks(backend.model)
    names = [name for name, _ in backend.model.named_modules()]
    with adapted(backend, tmp_path / "a") as changed:
        got = changed.logits(SEQUENCES, IDS)
        capture = changed.capture(SEQUENCES, [2, 1], IDS)
        fingerprint = changed.fingerprint()
    with torch.inference_mode():
        for row, ids in enumerate(SEQUENCES):
            expected = merged(torch.tensor([ids])).logits[0, -1, :40]
            torch.testing.assert_close(got[row], expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(got, before, atol=1e-3)
    assert torch.isfinite(capture.resid_post).all()
    assert torch.equal(backend.logits(SEQUENCES, IDS), before)
    assert all(parameter.requires_grad for parameter in backend.model.parameters())
    assert count_hooks(backend.model) == hooks
    assert [name for name, _ in backend.model.named_modules()] == names
    assert fingerprint["adapter"] == adapter_sha256(tmp_path / "a")
    differing = {k for k, v in backend.fingerprint().items() if fingerprint[k] != v}
    assert differing == {"adapter", "model_id"}


def test_an_untrained_adapter_changes_nothing(
    tmp_path: Path, tiny_model: Callable[..., Any], tiny_backend: Callable[..., HFBackend]
) -> None:
    save_adapter(tiny_model("llama"), tmp_path / "a", trained=False)
    backend = tiny_backend("llama")
    with adapted(backend, tmp_path / "a") as changed:
        inside = changed.logits(SEQUENCES, IDS)
    torch.testing.assert_close(inside, backend.logits(SEQUENCES, IDS), rtol=0, atol=1e-6)


def test_tensors_that_match_nothing_are_an_error_that_names_them(
    tmp_path: Path, tiny_model: Callable[..., Any], tiny_backend: Callable[..., HFBackend]
) -> None:
    save_adapter(tiny_model("llama"), tmp_path / "a")
    path = tmp_path / "a" / "adapter_model.safetensors"
    tensors = load_file(path)
    # A wrapper segment in the keys, as some trainers leave it: PEFT would load nothing of it.
    save_file(
        {key.replace("model.layers", "_orig_mod.layers"): v for key, v in tensors.items()}, path
    )
    backend = tiny_backend("llama")
    before = backend.logits(SEQUENCES, IDS)
    with pytest.raises(ModelError, match=r"12 of its tensors match no module.*_orig_mod"):
        adapted(backend, tmp_path / "a").__enter__()
    assert torch.equal(backend.logits(SEQUENCES, IDS), before)


def test_adapters_of_another_model_and_folders_without_one_are_refused(
    tmp_path: Path, tiny_model: Callable[..., Any], tiny_backend: Callable[..., HFBackend]
) -> None:
    save_adapter(tiny_model("llama", hidden_size=48), tmp_path / "wide")
    backend = tiny_backend("llama")
    before = backend.logits(SEQUENCES, IDS)
    with pytest.raises(
        ModelError, match=r"cannot be attached to tiny-llama \(RuntimeError.*size mismatch for .*q_"
    ):
        adapted(backend, tmp_path / "wide").__enter__()
    assert torch.equal(backend.logits(SEQUENCES, IDS), before)
    with pytest.raises(ModelError, match=r"no adapter_config\.json"):
        adapted(backend, tmp_path).__enter__()


def test_a_target_that_matches_no_module_is_named(
    tmp_path: Path, tiny_model: Callable[..., Any], tiny_backend: Callable[..., HFBackend]
) -> None:
    save_adapter(tiny_model("llama"), tmp_path / "a")
    path = tmp_path / "a" / "adapter_config.json"
    config = json.loads(path.read_text())
    backend = tiny_backend("llama")
    before = backend.logits(SEQUENCES, IDS)
    # The tensors all fit: PEFT takes what it finds, and says nothing of the rest.
    path.write_text(json.dumps(config | {"target_modules": ["q_proj", "v_proj", "gone"]}))
    with pytest.raises(ModelError, match=r"no module for 'gone' among its targets"):
        adapted(backend, tmp_path / "a").__enter__()
    assert torch.equal(backend.logits(SEQUENCES, IDS), before)


def test_only_what_is_wrong_with_the_tensors_is_said(
    tmp_path: Path, tiny_model: Callable[..., Any], tiny_backend: Callable[..., HFBackend]
) -> None:
    # Warnings are errors here: PEFT's own, which lists all tensors, must not come through.
    for layers, said, unsaid in (
        (2, "4 that the model expects are not in the file", "match no module"),
        (4, "4 of its tensors match no module", "not in the file"),
    ):
        save_adapter(tiny_model("llama", num_hidden_layers=layers), tmp_path / str(layers))
        with pytest.raises(ModelError, match=said) as refused:
            adapted(tiny_backend("llama"), tmp_path / str(layers)).__enter__()
        assert unsaid not in str(refused.value)


VIRTUAL = {"task_type": "CAUSAL_LM", "num_virtual_tokens": 3}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (lambda: peft.PromptTuningConfig(**VIRTUAL), "PROMPT_TUNING.*virtual tokens"),
        (lambda: peft.PrefixTuningConfig(**VIRTUAL), "PREFIX_TUNING.*virtual tokens"),
        (lambda: peft.PromptEncoderConfig(**VIRTUAL), "P_TUNING.*virtual tokens"),
        (
            lambda: peft.LoraConfig(
                task_type="CAUSAL_LM", target_modules=["q_proj"], alora_invocation_tokens=[7, 9]
            ),
            "LORA.*invocation tokens",
        ),
        (
            lambda: peft.PolyConfig(task_type="CAUSAL_LM", target_modules=["q_proj"]),
            "POLY.*task_ids",
        ),
    ],
    ids=["prompt", "prefix", "p", "alora", "poly"],
)
def test_adapters_that_the_wrapper_puts_in_are_refused_before_anything_is_written(
    tmp_path: Path,
    model_folder: Path,
    tiny_model: Callable[..., Any],
    tiny_backend: Callable[..., HFBackend],
    config: Callable[[], Any],
    words: str,
) -> None:
    """The model inside PEFT's wrapper is the base there: its activations would be the base's."""
    peft.get_peft_model(tiny_model("llama"), config()).save_pretrained(tmp_path / "a")
    backend = tiny_backend("llama")
    before = backend.logits(SEQUENCES, IDS)
    with pytest.raises(ModelError, match=words):
        adapted(backend, tmp_path / "a").__enter__()
    assert torch.equal(backend.logits(SEQUENCES, IDS), before)
    out = tmp_path / "c.h5"
    model = ["--model", str(model_folder), "--device", "cpu", "--adapter", str(tmp_path / "a")]
    run = CliRunner().invoke(app, ["extract", *model, "--source", "facts", "--out", str(out)])
    assert (run.exit_code, "Traceback" in run.output) == (2, False)
    assert not list(tmp_path.glob("c.h5*"))


def test_an_adapter_of_a_kind_without_unload_is_taken_off(
    tmp_path: Path, tiny_model: Callable[..., Any], tiny_backend: Callable[..., HFBackend]
) -> None:
    config = peft.AdaptionPromptConfig(
        adapter_layers=2, adapter_len=3, target_modules="self_attn", task_type="CAUSAL_LM"
    )
    wrapped = peft.get_peft_model(tiny_model("llama"), config).eval()
    with torch.no_grad():
        for parameter in wrapped.parameters():
            if parameter.requires_grad:
                parameter.add_(0.5)
    wrapped.save_pretrained(tmp_path / "a")
    with torch.inference_mode():
        expected = wrapped(torch.tensor([SEQUENCES[0]])).logits[0, -1, :40]
    backend = tiny_backend("llama")
    before = backend.logits(SEQUENCES, IDS)
    with adapted(backend, tmp_path / "a") as changed:
        got = changed.logits(SEQUENCES[:1], IDS)[0]
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(got, before[0], atol=1e-3)
    assert torch.equal(backend.logits(SEQUENCES, IDS), before)


def test_without_peft_the_extra_is_named(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModelError, match=r"pip install 'interp\[train\]'"):
        adapted(tiny_backend(), tmp_path).__enter__()


def test_the_commands_attach_an_adapter_and_record_it(
    tmp_path: Path, tiny_model: Callable[..., Any], tokenizer: Any, model_folder: Path
) -> None:
    merged = save_adapter(tiny_model("llama"), tmp_path / "grpo")
    merged.save_pretrained(tmp_path / "merged")
    tokenizer.save_pretrained(tmp_path / "merged")
    runner = CliRunner()

    def run(*arguments: object) -> Result:
        return runner.invoke(app, [str(argument) for argument in arguments])

    items = ["--source", "facts", "--n", 40, "--device", "cpu"]
    base, adapter = ["--model", model_folder], ["--adapter", tmp_path / "grpo"]
    paths = {name: tmp_path / f"{name}.h5" for name in ("base", "adapted", "merged")}
    for model, name in (
        (base, "base"),
        (base + adapter, "adapted"),
        (["--model", tmp_path / "merged"], "merged"),
    ):
        assert run("extract", *model, *items, "--out", paths[name]).exit_code == 0
    with (
        ActivationCache.open(paths["adapted"]) as got,
        ActivationCache.open(paths["merged"]) as expected,
    ):
        # The adapter shares prefixes like any model.
        assert got.prefix_sharing is not None
        assert got.prefix_sharing["off"] is None
        np.testing.assert_allclose(got.resid_post(2), expected.resid_post(2), rtol=1e-3, atol=1e-4)
        digest = got.manifest["model"]["adapter"]
    assert digest == adapter_sha256(tmp_path / "grpo")
    rows = json.loads(run("drift", paths["base"], paths["adapted"], "--json").stdout)
    assert min(row["relative_change"] for row in rows) > 0.01
    # A file of the base is no file of the adapted model.
    refused = run("extract", *base, *adapter, *items, "--out", paths["base"])
    assert refused.exit_code == 2
    assert "model.adapter: the file has None" in refused.stderr
    # Steering needs the model that the cache was made with.
    assert run("probe", paths["adapted"], "--out", tmp_path / "probe").exit_code == 0
    steer = ["steer", paths["adapted"], "--probe", tmp_path / "probe", *base, "--device", "cpu"]
    steer += ["--random-directions", 1, "--out", tmp_path / "steer"]
    without = run(*steer)
    assert without.exit_code == 2
    assert "adapter: the file has" in without.stderr
    assert run(*steer, *adapter).exit_code == 0
    answers = run(
        "answer", *base, *adapter, *items, "--condition", "forced", "--out", tmp_path / "a"
    )
    assert answers.exit_code == 0
    manifest = json.loads((tmp_path / "a.manifest.json").read_text())
    assert manifest["model"]["adapter"] == digest
