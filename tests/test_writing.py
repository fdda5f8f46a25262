"""Compressed files, writing in the background, and models spread over devices."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from commands import ok, refused
from reference import POSITIONS, SEQUENCES, TOLERANCE, relative

from activations import (
    ActivationCache,
    Capture,
    HFBackend,
    ModelSpec,
    describe_source,
    extract,
    load_backend,
)
from activations.background import writing
from activations.cache import verify
from activations.hooks import count_hooks
from interp import Item, open_source
from interp.errors import CacheError, ModelError

SOURCE = open_source("facts")
# A part on disk stands for another device: accelerate brings its weights when they are needed.
SPREAD = {
    "model.embed_tokens": "disk",
    "model.layers.0": "cpu",
    "model.layers.1": "disk",
    "model.layers.2": "cpu",
    "model.norm": "cpu",
    "model.rotary_emb": "cpu",
    "lm_head": "cpu",
}


def contents(path: Path) -> dict[str, Any]:
    with h5py.File(path) as file:
        found = {name: dataset[:].tolist() for name, dataset in file.items()}
        return found | {name: np.asarray(value).tolist() for name, value in file.attrs.items()}


@pytest.mark.parametrize("background", [False, True])
def test_blosc_and_background_writing_change_no_number(
    background: bool,
    tmp_path: Path,
    tiny_backend: Callable[..., HFBackend],
    facts: tuple[Item, ...],
) -> None:
    pytest.importorskip("hdf5plugin", reason="the extra blosc is not installed")
    options: dict[str, Any] = {"source": describe_source(SOURCE, facts, view=None, seed=1)}
    plain, small = tmp_path / "plain.h5", tmp_path / "small.h5"
    extract(tiny_backend(), facts, plain, **options).close()
    options |= {"compression": "blosc", "batch_tokens": 300}
    with extract(tiny_backend(), facts, small, background=background, **options) as cache:
        assert verify(cache) == []
    with h5py.File(small) as file:
        for name in ("resid_post", "resid_pre0"):
            plist = file[name].id.get_create_plist()
            assert [plist.get_filter(i)[0] for i in range(plist.get_nfilters())] == [32001]
            assert np.isnan(file[name].fillvalue)
    with ActivationCache.open(plain) as a, ActivationCache.open(small) as b:
        for layer in range(3):
            np.testing.assert_allclose(
                b.resid_post(layer), a.resid_post(layer), rtol=1e-4, atol=1e-5
            )
    # The same file is reopened whatever the compression; nothing is left beside it.
    before = small.read_bytes()
    extract(tiny_backend(), facts, small, source=options["source"]).close()
    assert small.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain.h5", "small.h5"]


def test_a_compressed_file_is_smaller_and_holds_the_very_same_numbers(tmp_path: Path) -> None:
    pytest.importorskip("hdf5plugin", reason="the extra blosc is not installed")
    from activations.compression import write_compressed

    plain, small = tmp_path / "plain.h5", tmp_path / "small.h5"
    generator = np.random.default_rng(0)
    with h5py.File(plain, "w") as file:
        # Neighbours alike, as activations of one layer are.
        values = generator.normal(1, 1e-3, (150, 3, 32)).astype(np.float32)
        file.create_dataset("resid_post", data=values, chunks=(64, 1, 32), fillvalue=np.nan)
        file.create_dataset("resid_pre0", data=values[:, 0], chunks=(64, 32), fillvalue=np.nan)
        file["item_id"] = np.array(["é", "b"], dtype=h5py.string_dtype("utf-8"))
        file.attrs["manifest"] = "{}"
        file.attrs.create("prefix_sharing", b"{}", dtype="S64")
        write_compressed(file, small)
    assert contents(small) == contents(plain)
    with h5py.File(plain) as a, h5py.File(small) as b:
        assert b["resid_post"].id.get_storage_size() < 0.9 * a["resid_post"].id.get_storage_size()
        assert b.attrs.get_id("prefix_sharing").dtype == a.attrs.get_id("prefix_sharing").dtype


def test_blosc_needs_its_extra_to_write_and_to_read(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("hdf5plugin", reason="the extra blosc is not installed")
    base = ["extract", "--source", "facts", "--n", 8, "--model", model_folder, "--device", "cpu"]
    ok(*base, "--out", tmp_path / "c.h5", "--compression", "blosc")
    info = json.loads(ok("cache", "info", tmp_path / "c.h5", "--json").stdout)
    assert info["n_done"] == 8
    monkeypatch.setitem(sys.modules, "hdf5plugin", None)
    words = "pip install 'interp[blosc]'"
    assert words in refused("cache", "verify", tmp_path / "c.h5")
    assert words in refused(*base, "--out", tmp_path / "d.h5", "--compression", "blosc")
    assert [path.name for path in tmp_path.iterdir()] == ["c.h5"]


def test_batches_are_written_in_order_and_errors_come_back() -> None:
    capture = Capture(*(torch.zeros(1) for _ in range(4)))
    seen: list[Sequence[int]] = []
    with writing(lambda rows, _: seen.append(rows), background=True) as write:
        for row in range(20):
            write([row], capture)
    assert seen == [[row] for row in range(20)]

    def full(rows: Sequence[int], _: Capture) -> None:
        if rows == [2]:
            raise CacheError("the disk is full")
        seen.append(rows)

    seen.clear()
    with (
        pytest.raises(CacheError, match="the disk is full"),
        writing(full, background=True) as write,
    ):
        for row in range(3):
            write([row], capture)
    assert seen == [[0], [1]]


def test_hooks_see_every_layer_of_a_model_that_is_spread_out(
    tmp_path: Path, model_folder: Path
) -> None:
    whole = load_backend(ModelSpec.parse(str(model_folder), device="cpu"))
    expected = whole.capture(SEQUENCES, POSITIONS, [3, 5])
    for device_map in ("auto", '{"": "cpu"}', json.dumps(SPREAD)):
        backend = load_backend(ModelSpec.parse(str(model_folder), device_map=device_map))
        hooks = count_hooks(backend.model)
        assert backend.fingerprint()["weights"] == whole.fingerprint()["weights"]
        got = backend.capture(SEQUENCES, POSITIONS, [3, 5])
        assert relative(got.resid_post, expected.resid_post) < TOLERANCE
        assert relative(got.resid_pre0, expected.resid_pre0) < TOLERANCE
        torch.testing.assert_close(got.logits, expected.logits, rtol=1e-4, atol=1e-4)
        assert backend.generate(SEQUENCES, 4) == whole.generate(SEQUENCES, 4)
        assert count_hooks(backend.model) == hooks
    # The control: the last one was indeed spread out, with weights that are not in memory.
    assert set(backend.model.hf_device_map.values()) == {"cpu", "disk"}
    assert backend.model.model.layers[1].mlp.up_proj.weight.device.type == "meta"


def test_an_adapter_is_attached_to_a_mapped_model_or_refused_before_anything_is_changed(
    tmp_path: Path, tiny_model: Callable[..., Any], tokenizer: Any, model_folder: Path
) -> None:
    pytest.importorskip("peft", reason="the extra train is not installed")
    from attaching import save_adapter

    from activations.adapter import adapted

    merged = save_adapter(tiny_model("llama"), tmp_path / "a")
    expected = HFBackend(merged, tokenizer, model_id="merged").capture(SEQUENCES, POSITIONS, [3])
    for device_map in ("auto", '{"": "cpu"}'):
        backend = load_backend(ModelSpec.parse(str(model_folder), device_map=device_map))
        before, hooks = backend.capture(SEQUENCES, POSITIONS, [3]), count_hooks(backend.model)
        with adapted(backend, tmp_path / "a") as changed:
            got = changed.capture(SEQUENCES, POSITIONS, [3])
        assert relative(got.resid_post, expected.resid_post) < TOLERANCE
        assert relative(got.resid_post, before.resid_post) > 0.01
        after = backend.capture(SEQUENCES, POSITIONS, [3])
        assert torch.equal(after.resid_post, before.resid_post)
        assert count_hooks(backend.model) == hooks
    backend = load_backend(ModelSpec.parse(str(model_folder), device_map=json.dumps(SPREAD)))
    with pytest.raises(ModelError, match="kept away from the device that runs them"):
        adapted(backend, tmp_path / "a").__enter__()
    assert torch.equal(backend.capture(SEQUENCES, POSITIONS, [3]).resid_post, before.resid_post)
    # As a user sees it.
    base = ["extract", "--source", "facts", "--n", 8, "--model", model_folder]
    base += ["--adapter", tmp_path / "a", "--out", tmp_path / "c.h5", "--device-map"]
    assert "merge the adapter into it first" in refused(*base, json.dumps(SPREAD))
    ok(*base, "auto")
    info = json.loads(ok("cache", "info", tmp_path / "c.h5", "--json").stdout)
    assert info["manifest"]["model"]["adapter"] is not None


def test_device_maps_and_quantisation_that_cannot_be_are_refused(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = ["extract", "--source", "facts", "--n", 8, "--model", model_folder]
    base += ["--out", tmp_path / "c.h5"]
    assert "expected auto, balanced" in refused(*base, "--device-map", "everywhere")
    assert "is not JSON" in refused(*base, "--device-map", '{"": ')
    message = refused(*base, "--device-map", "auto", "--backend", "transformer_lens")
    assert "TransformerLens runs on one device" in message
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    assert "pip install 'interp[quantization]'" in refused(*base, "--quantization", "int8")
    assert not list(tmp_path.iterdir())
    spec = ModelSpec.parse(str(model_folder), quantization="int4")
    assert spec.quantization == "int4"
    with pytest.raises(ModelError, match="GGUF"):
        ModelSpec.parse("smollm2", quantization="int8")
