"""The embedded real model: loading, dequantisation, and what is known about it."""

import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize

from activations import HFBackend, ModelSpec, describe_source, extract, load_backend
from interp import load_items, open_source
from interp.errors import ModelError
from probes import fit_probe
from probes.batched import Split
from probes.layer import solver_named
from steering import POSITIONS, SignedItems, sweep_steering

SPEC = ModelSpec.parse("smollm2", device="cpu")


@pytest.fixture(scope="module")
def backend() -> HFBackend:
    return load_backend(SPEC)


def test_weights_are_dequantised_in_full(backend: HFBackend) -> None:
    reader = GGUFReader(SPEC.location)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for name, weight in (
        ("blk.7.ffn_down.weight", backend.model.model.layers[7].mlp.down_proj.weight),
        ("token_embd.weight", backend.model.model.embed_tokens.weight),
    ):
        tensor = tensors[name]
        expected = dequantize(tensor.data, tensor.tensor_type).reshape(weight.shape)
        assert weight.dtype == torch.float32
        np.testing.assert_array_equal(weight.detach().numpy(), expected)


def test_transformers_is_told_to_dequantise(capfd: pytest.CaptureFixture[str]) -> None:
    """Else it would keep some families packed where kernels are installed, in another attention."""
    loaded = load_backend(ModelSpec.parse("smollm2", device="cpu", dtype="bfloat16"))
    said = capfd.readouterr()
    assert loaded.fingerprint()["quantization"] is None
    assert loaded.model.model.layers[7].mlp.down_proj.weight.dtype == torch.bfloat16
    assert type(loaded.model.model.layers[7].mlp.down_proj) is torch.nn.Linear
    assert (said.out, said.err) == ("", "")


@torch.inference_mode()
def test_captures_equal_what_transformers_reports(backend: HFBackend) -> None:
    items = load_items(open_source("facts:elements"), n=3)
    prompts = backend.tokenize(items)
    sequences = [prompt.ids_with_stub for prompt in prompts]
    positions = [len(prompt.ids) - 1 for prompt in prompts]
    verdicts = backend.verdict_ids(prompts)
    assert (verdicts.true_text, verdicts.false_text) == (" True", " False")
    capture = backend.capture(sequences, positions, [verdicts.true_id, verdicts.false_id])
    for row, (ids, position) in enumerate(zip(sequences, positions, strict=True)):
        output = backend.model(torch.tensor([ids]), output_hidden_states=True)
        states = torch.stack([state[0, position] for state in output.hidden_states])
        # The last entry is after the final norm, so it is compared through the norm.
        torch.testing.assert_close(capture.resid_pre0[row], states[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(capture.resid_post[row, :-1], states[1:-1], rtol=1e-3, atol=1e-2)
        normed = backend.model.model.norm(capture.resid_post[row, -1])
        torch.testing.assert_close(normed, states[-1], rtol=1e-3, atol=1e-2)
        expected = output.logits[0, -1, [verdicts.true_id, verdicts.false_id]]
        torch.testing.assert_close(capture.logits[row], expected, rtol=1e-3, atol=1e-3)


def test_the_template_opens_the_assistants_turn_and_starts_once(backend: HFBackend) -> None:
    (prompt,) = backend.tokenize(load_items(open_source("facts:capitals"), n=1))
    text = backend.tokenizer.decode(list(prompt.ids))
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert text.count("<|im_start|>assistant") == 1
    assert text.startswith("<|im_start|>system")


def test_the_model_is_awake(backend: HFBackend) -> None:
    ids = backend.tokenizer("The capital of France is")["input_ids"]
    (continuation,) = backend.generate([ids], 3)
    assert "Paris" in backend.decode(continuation)


def test_the_header_is_read_once_and_gguf_is_left_as_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    read: list[str] = []

    class Counted(GGUFReader):
        def __init__(self, path: str) -> None:
            read.append(path)
            super().__init__(path)

    monkeypatch.setattr(gguf, "GGUFReader", Counted)
    table = gguf.get_tensor_name_map
    load_backend(SPEC)
    assert read == [SPEC.location]
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(ModelError):
        load_backend(ModelSpec.parse(f"gguf:{tmp_path}/broken.gguf", device="cpu"))
    assert gguf.GGUFReader is Counted
    assert gguf.get_tensor_name_map is table


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.99])
def test_a_truncated_gguf_is_one_paragraph(tmp_path: Path, share: float) -> None:
    path = tmp_path / "short.gguf"
    shutil.copy(SPEC.location, path)
    size = path.stat().st_size
    with path.open("r+b") as handle:
        handle.truncate(int(size * share))
    with pytest.raises(ModelError, match=r"cannot be loaded.*may be truncated") as caught:
        load_backend(ModelSpec.parse(f"gguf:{path}", device="cpu"))
    message: Any = str(caught.value)
    assert "\n" not in message
    assert f"{int(size * share):,} bytes" in message


def test_probes_of_real_residuals_are_those_of_scikit_learn_converged(backend: HFBackend) -> None:
    items = load_items(open_source("facts"), view="statement", n=48)
    prompts = backend.tokenize(items)
    ids = backend.verdict_ids(prompts)
    with torch.inference_mode():
        capture = backend.capture(
            [prompt.ids for prompt in prompts],
            [len(prompt.ids) - 1 for prompt in prompts],
            [ids.true_id, ids.false_id],
        )
    labels = np.array([bool(item.label) for item in items])
    train = np.arange(48) % 12 < 8
    for layer in (5, 15, 29):
        x = capture.resid_post[:, layer].numpy()
        strengths = (0.001, 0.01, 1.0)
        decide = solver_named("batched")
        (values, gradient), *_ = decide(x, [Split(train, ~train)], labels[:, None], strengths)
        assert gradient is not None
        assert gradient <= 1e-7
        for index, strength in enumerate(strengths):
            expected = fit_probe(x[train], labels[train], C=strength).decide(x[~train])
            gap = np.abs(values[:, index, 0] - expected).max()
            assert gap <= 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_steering_grid_is_that_of_plain_passes(
    backend: HFBackend, positions: str, tmp_path: Path
) -> None:
    items = load_items(open_source("facts:capitals"), n=4)
    source = describe_source(open_source("facts:capitals"), items, view=None, seed=0)
    cache = extract(backend, items, tmp_path / "four.h5", source=source)
    fold = np.arange(4) // 2  # both hold a true and a false one
    decisions = np.random.default_rng(0).normal(size=(4, cache.n_layers))
    signed = SignedItems(fold, np.full(4, 15), decisions, cache.manifest)
    options: dict[str, Any] = {"alphas": [2], "layers": [4, 28], "positions": positions}
    options |= {"conditions": ("signed",)}
    fast = sweep_steering(cache, signed, backend, **options)
    plain = sweep_steering(cache, signed, backend, **options, plain=True)
    assert fast.settings["fast_path"]["used"]
    assert fast.cells == plain.cells
    gap = np.linalg.norm(fast.logits - plain.logits, axis=-1)
    assert (gap <= 1e-4 * np.linalg.norm(plain.logits, axis=-1)).all()
    if positions in ("prompt", "all"):
        assert np.array_equal(fast.logits, plain.logits)
    # A control: every cell moves every item.
    assert (np.abs(plain.logits[1:] - plain.logits[0]).max(axis=-1) > 1e-3).all()
