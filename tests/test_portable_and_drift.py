"""Merged, exported and compared caches."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from safetensors import safe_open
from typer.testing import CliRunner

from activations import ActivationCache, HFBackend, describe_source, extract
from activations.cache import verify
from activations.portable import export_cache, merge_caches
from experiments.cli import app
from experiments.drift import layer_drift
from interp import Item, load_items, open_source
from interp.errors import CacheError
from probes.solver import fit_probe
from probes.splits import make_folds

ROOT = Path(__file__).resolve().parents[1]
SOURCE = open_source("facts")


def described(items: tuple[Item, ...], **changes: Any) -> dict[str, Any]:
    return describe_source(SOURCE, items, view=None, seed=1) | changes


def cached(
    backend: HFBackend, items: tuple[Item, ...], path: Path, *, seed: int = 1, **options: Any
) -> Path:
    extract(backend, items, path, source=described(items, seed=seed), **options).close()
    return path


@pytest.fixture
def shards(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], facts: tuple[Item, ...]
) -> list[Path]:
    """Forty items in three files."""
    backend = tiny_backend()
    parts = (facts[:7], facts[7:30], facts[30:])
    return [cached(backend, part, tmp_path / f"{i}.h5") for i, part in enumerate(parts)]


def test_merged_shards_are_what_one_extraction_writes(
    tmp_path: Path,
    tiny_backend: Callable[..., HFBackend],
    facts: tuple[Item, ...],
    shards: list[Path],
) -> None:
    before = [path.read_bytes() for path in shards]
    merged = tmp_path / "merged.h5"
    assert merge_caches(merged, shards) == 40
    assert [path.read_bytes() for path in shards] == before
    whole = cached(tiny_backend(), facts, tmp_path / "whole.h5")
    with h5py.File(merged) as a, h5py.File(whole) as b:
        assert set(a) == set(b)
        assert json.loads(a.attrs["manifest"]) == json.loads(b.attrs["manifest"])
        for name in b:
            assert (a[name].dtype, a[name].chunks) == (b[name].dtype, b[name].chunks)
            if b[name].dtype.kind == "f":
                np.testing.assert_allclose(a[name][:], b[name][:], rtol=1e-4, atol=1e-5)
            else:
                np.testing.assert_array_equal(a[name][:], b[name][:])
    with ActivationCache.open(merged) as cache:
        assert verify(cache) == []
        checks = []
        for row, path in zip((0, 7, 30), shards, strict=True):
            with ActivationCache.open(path) as shard:
                checks.append(shard.self_check_max_relative)
                # Bit for bit, in the order given.
                part = cache.resid_post(2)[row : row + shard.n_items]
                np.testing.assert_array_equal(part, shard.resid_post(2))
        assert cache.self_check_max_relative == max(filter(None, checks))
        assert cache.prefix_sharing is not None
        assert cache.prefix_sharing["tokens"] > 0
    # So an extraction of all the items opens it and computes nothing.
    backend = tiny_backend()
    backend.capture = backend.capture_after = None  # type: ignore[assignment, method-assign]
    cached(backend, facts, merged)


def test_shards_of_other_settings_and_items_given_twice_are_refused(
    tmp_path: Path,
    tiny_backend: Callable[..., HFBackend],
    facts: tuple[Item, ...],
    shards: list[Path],
) -> None:
    out = tmp_path / "out.h5"
    late = cached(tiny_backend(), facts[30:], tmp_path / "late.h5", token_rule="answer_stub")
    other = cached(tiny_backend(seed=1), facts[30:], tmp_path / "other.h5")
    view = tmp_path / "view.h5"
    extract(
        tiny_backend(), facts[30:], view, source=described(facts[30:], view="statement")
    ).close()
    for path, field in (
        (late, "token_rule"),
        (other, "model.weights"),
        (view, "source.view"),
    ):
        with pytest.raises(CacheError, match=rf"not shards of one extraction.*{field}: "):
            merge_caches(out, [shards[0], path])
    with pytest.raises(CacheError, match="expected every item once"):
        merge_caches(out, [shards[0], shards[1], shards[0]])
    with pytest.raises(CacheError, match="at least two"):
        merge_caches(out, shards[:1])
    partial = shards[2].rename(tmp_path / "2.h5.partial")
    with pytest.raises(CacheError, match="not finished"):
        merge_caches(out, shards)
    partial.rename(shards[2])
    with pytest.raises(CacheError, match="exists and is left"):
        merge_caches(shards[0], shards[1:])
    assert not out.exists()
    # Another seed gives another item set, and is recorded.
    seeded = cached(tiny_backend(), facts[30:], tmp_path / "seeded.h5", seed=2)
    merge_caches(out, [shards[0], seeded])
    with ActivationCache.open(out) as cache:
        assert cache.manifest["source"]["seed"] == [1, 2]
        assert cache.manifest["source"]["n"] == 17


KILLED = """
import os, signal, sys
from pathlib import Path
from activations.cache import ActivationCache
from activations.portable import merge_caches
right, calls = ActivationCache.array, []
def array(self, name, rows):
    calls.append(name)
    if len(calls) == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    return right(self, name, rows)
ActivationCache.array = array
merge_caches(Path(sys.argv[1]), [Path(path) for path in sys.argv[2:]])
"""


def test_a_killed_merge_leaves_the_shards_and_can_be_repeated(
    tmp_path: Path, shards: list[Path]
) -> None:
    before = [path.read_bytes() for path in shards]
    out = tmp_path / "out.h5"
    run = subprocess.run(
        [sys.executable, "-c", KILLED, str(out), *map(str, shards)],
        env=dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1"),
        check=False,
    )
    assert run.returncode == -signal.SIGKILL
    assert not out.exists()
    assert [path.read_bytes() for path in shards] == before
    assert merge_caches(out, shards) == 40


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("store", ["float32", "float16"])
def test_exports_hold_the_arrays_and_the_identity(
    tmp_path: Path,
    tiny_backend: Callable[..., HFBackend],
    facts: tuple[Item, ...],
    suffix: str,
    store: str,
) -> None:
    path = cached(tiny_backend(), facts, tmp_path / "c.h5", store=store)
    out = tmp_path / f"x{suffix}"
    with ActivationCache.open(path) as cache:
        export_cache(cache, out)
        with pytest.raises(CacheError, match=r"\.safetensors or \.npz"):
            export_cache(cache, tmp_path / "x.pt")
        if suffix == ".npz":
            with np.load(out, allow_pickle=False) as read:
                arrays = dict(read)
            texts = {name: arrays[name].tolist() for name in ("item_id", "group_id", "category")}
            manifest = json.loads(str(arrays["manifest"]))
        else:
            with safe_open(out, framework="numpy") as read:
                arrays = {name: read.get_tensor(name) for name in read.keys()}  # noqa: SIM118
                metadata = read.metadata()
            texts = {
                name: json.loads(metadata[name]) for name in ("item_id", "group_id", "category")
            }
            manifest = json.loads(metadata["manifest"])
        assert manifest == cache.manifest
        for name, values in texts.items():
            assert tuple(values) == getattr(cache, name)
        assert arrays["resid_post"].shape == (40, 3, 32)
        assert arrays["resid_post"].dtype == store
        for layer in range(3):
            np.testing.assert_array_equal(
                arrays["resid_post"][:, layer].astype(np.float32), cache.resid_post(layer)
            )
        np.testing.assert_array_equal(arrays["answer_logits"], cache.answer_logits)
        np.testing.assert_array_equal(arrays["label"], cache.label)
    assert {entry.name for entry in tmp_path.iterdir()} == {"c.h5", out.name}


def test_drift_is_what_its_definition_says(
    tmp_path: Path,
    tiny_backend: Callable[..., HFBackend],
    facts: tuple[Item, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained = tiny_backend()
    with torch.no_grad():
        generator = torch.Generator().manual_seed(3)
        weight = trained.model.model.layers[1].mlp.down_proj.weight
        weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    paths = [
        cached(tiny_backend(), facts, tmp_path / "a.h5"),
        cached(trained, facts, tmp_path / "b.h5"),
    ]
    # Of 40 rows, so that the last part is a smaller one.
    monkeypatch.setattr("experiments.drift.ROWS_PER_CHUNK", 16)
    with ActivationCache.open(paths[0]) as a, ActivationCache.open(paths[1]) as b:
        rows = layer_drift(a, b)
        same = layer_drift(a, a)
        labels = a.label.astype(bool)
        folds = make_folds(labels, a.group_id, n_folds=5, seed=0)
        for row in rows:
            x, y = a.resid_post(row.layer), b.resid_post(row.layer)
            cosines, changes, right = [], [], 0
            for first, second in zip(x.astype(float), y.astype(float), strict=True):
                size = np.linalg.norm(first)
                cosines.append(first @ second / (size * np.linalg.norm(second)))
                changes.append(np.linalg.norm(second - first) / size)
            for item in range(40):
                training = folds != folds[item]
                probe = fit_probe(x[training], labels[training], C=0.01)
                right += int((probe.decide(y[item : item + 1])[0] > 0) == labels[item])
            assert row.cosine == pytest.approx(np.mean(cosines), abs=1e-6)
            assert row.relative_change == pytest.approx(np.mean(changes), rel=1e-4, abs=1e-6)
            assert row.probe_transfer == right / 40
    # The weights of layer 1 changed: nothing before it moved, everything from it on did.
    assert rows[0].relative_change < 1e-6
    assert min(rows[1].relative_change, rows[2].relative_change) > 0.05
    assert rows[2].cosine < 0.999
    assert [(row.cosine, row.relative_change) for row in same] == [
        (pytest.approx(1.0), 0.0) for _ in range(3)
    ]


def test_drift_of_other_rows_is_refused(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], facts: tuple[Item, ...]
) -> None:
    backend = tiny_backend()
    a = cached(backend, facts, tmp_path / "a.h5")
    options: dict[str, Any] = {"token_rule": "answer_stub"}
    others = {
        "1 items are in one of them": cached(backend, facts[1:], tmp_path / "b.h5"),
        "another order": cached(backend, facts[::-1], tmp_path / "c.h5"),
        "the same --token": cached(backend, facts, tmp_path / "d.h5", **options),
        "models of one shape": cached(tiny_backend(num_hidden_layers=2), facts, tmp_path / "e.h5"),
        "items of other content": cached(
            backend, load_items(SOURCE, view="statement", n=40, seed=1), tmp_path / "f.h5"
        ),
    }
    for words, path in others.items():
        with (
            ActivationCache.open(a) as first,
            ActivationCache.open(path) as second,
            pytest.raises(CacheError, match=words),
        ):
            layer_drift(first, second)


def test_the_commands(tmp_path: Path, shards: list[Path]) -> None:
    runner = CliRunner()
    merged = tmp_path / "merged.h5"
    run = runner.invoke(app, ["cache", "merge", str(merged), *map(str, shards)])
    assert run.exit_code == 0, run.output
    assert "40 items of 3 caches" in run.stderr
    again = runner.invoke(app, ["cache", "merge", str(merged), *map(str, shards)])
    assert (again.exit_code, "Traceback" in again.output) == (2, False)
    run = runner.invoke(app, ["drift", str(merged), str(merged), "--json"])
    rows = json.loads(run.stdout)
    assert [list(row) for row in rows] == [
        ["layer", "cosine", "relative_change", "probe_transfer", "grouping"]
    ] * 3
    assert [row["layer"] for row in rows] == [0, 1, 2]
    run = runner.invoke(app, ["drift", str(merged), str(merged)])
    assert "probe transfer" in run.stdout
    # Seven items are too few for folds; the streams can be compared all the same.
    few = ["drift", str(shards[0]), str(shards[0]), "--json"]
    run = runner.invoke(app, few)
    assert (run.exit_code, run.stdout) == (2, "")
    assert "--folds 0 compares the streams alone" in run.stderr
    run = runner.invoke(app, [*few, "--folds", "0"])
    assert [row["probe_transfer"] for row in json.loads(run.stdout)] == [None] * 3
    assert [row["relative_change"] for row in json.loads(run.stdout)] == [0.0] * 3
    out = tmp_path / "x.npz"
    run = runner.invoke(app, ["cache", "export", str(merged), "--out", str(out)])
    assert run.exit_code == 0, run.output
    assert out.exists()
