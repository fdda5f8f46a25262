"""Base and checkpoints in one run: the files of single runs, row by row the same items."""

import gc
import json
import shutil
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from attaching import save_adapter
from commands import ok, refused
from safetensors.torch import load_file, save_file

import activations.checkpoints
from activations import ActivationCache, HFBackend, ModelSpec, describe_source
from activations.adapter import adapted
from activations.checkpoints import cache_paths, extract_each
from activations.cluster import Job
from interp import Item, open_source
from interp.errors import AdapterError, CacheError
from interp.files import partial_path

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")


def as_trl_saves(folder: Path, model: Any) -> Path:
    """A run: an untrained checkpoint, a trained one, and the final adapter."""
    save_adapter(model, folder / "checkpoint-2", trained=False)
    save_adapter(model, folder / "checkpoint-10", r=2)
    save_adapter(model, folder)
    return folder


@pytest.fixture
def run(tmp_path: Path, tiny_model: Callable[..., Any]) -> Path:
    return as_trl_saves(tmp_path / "grpo", tiny_model("llama"))


def contents(path: Path) -> dict[str, Any]:
    with h5py.File(path) as file:
        arrays = {name: file[name][:].tobytes() for name in file if name not in TEXTS}
        texts = {name: file[name].asstr()[:].tolist() for name in TEXTS}
        return arrays | texts | {f"attribute {k}": str(v) for k, v in file.attrs.items()}


TEXTS = ("item_id", "group_id", "category", "item")


def test_the_files_are_those_of_single_runs(tmp_path: Path, model_folder: Path, run: Path) -> None:
    base = ["extract", "--model", model_folder, "--source", "facts", "--n", 24, "--device", "cpu"]
    out = tmp_path / "ladder"
    printed = ok(*base, "--adapter", run, "--checkpoints", "--out", out, "--json").stdout
    rows = json.loads(printed)
    adapters = [None, run / "checkpoint-2", run / "checkpoint-10", run]
    assert [row["adapter"] for row in rows] == [None, *map(str, adapters[1:])]
    names = ["base", "checkpoint-2", "checkpoint-10", "grpo"]
    assert [row["file"] for row in rows] == [str(out / f"{name}.h5") for name in names]
    for row, adapter in zip(rows, adapters, strict=True):
        path = Path(row["file"])
        alone = tmp_path / "alone" / path.name
        one = [*base, *([] if adapter is None else ["--adapter", adapter])]
        (single,) = json.loads(ok(*one, "--out", alone, "--json").stdout)
        assert contents(path) == contents(alone)
        assert single["self_check_max_relative"] == row["self_check_max_relative"]
        assert (row["self_check_fault"], row["n_items"]) == (None, 24)
        # Each reopens the other's file.
        before = path.read_bytes()
        ok(*one, "--out", path)
        assert path.read_bytes() == before
    taken = (tmp_path / "alone" / "base.h5").read_bytes()
    ok(*base, "--adapter", run, "--checkpoints", "--out", tmp_path / "alone")
    assert (tmp_path / "alone" / "base.h5").read_bytes() == taken
    with ActivationCache.open(Path(rows[0]["file"])) as first:
        for row in rows[1:]:
            with ActivationCache.open(Path(row["file"])) as cache:
                assert cache.item_id == first.item_id
                changes = [
                    np.mean(
                        np.linalg.norm(cache.resid_post(layer) - first.resid_post(layer), axis=1)
                        / np.linalg.norm(first.resid_post(layer), axis=1)
                    )
                    for layer in range(3)
                ]
            assert row["largest_change"] == pytest.approx(max(changes), rel=1e-5)
    # Untrained factors change nothing; others do, and not alike.
    assert (rows[1]["largest_change"], rows[1]["largest_change_layer"]) == (0, None)
    assert "changes nothing on these items" in rows[1]["verdict"]
    assert min(rows[2]["largest_change"], rows[3]["largest_change"]) > 0.01
    assert rows[2]["largest_change"] != rows[3]["largest_change"]
    table = ok(*base, "--adapter", run, "--checkpoints", "--out", out).stdout
    assert "largest change" in table
    assert table.count("it moves the residual streams by at most") == 2


def test_a_change_is_reported_beside_rounding_where_it_is_near(
    tmp_path: Path, model_folder: Path, run: Path
) -> None:
    base = ["extract", "--model", model_folder, "--source", "facts", "--n", 8, "--device", "cpu"]
    base += ["--adapter", run, "--checkpoints", "--out", tmp_path / "out", "--json"]
    change = json.loads(ok(*base).stdout)[2]["largest_change"]
    for factor, words in (
        (0.05, None),
        (0.2, "where rounding alone does up to"),
        (2, "no more than rounding does"),
    ):
        # A finished file is taken as it is.
        with h5py.File(tmp_path / "out" / "base.h5", "r+") as file:
            file.attrs["self_check_max_relative"] = factor * change
        result = ok(*base)
        rows = json.loads(result.stdout)
        # The worst self-check is explained, as that of a single run is.
        assert "base.h5: WARNING: the self-check is" in result.stderr.replace("\n", " ")
        assert rows[2]["largest_change"] == change
        assert words is None or words in rows[2]["verdict"]
        assert ("rounding" in rows[2]["verdict"]) == (words is not None)
        # Said where it is so, and more than float32 may have.
        assert "beyond what rounding explains" in rows[0]["self_check_fault"]
        assert rows[2]["self_check_fault"] is None


def test_several_adapters_are_given_one_by_one_in_any_library(
    tmp_path: Path, model_folder: Path, run: Path
) -> None:
    base = ["extract", "--model", model_folder, "--source", "facts", "--n", 8, "--device", "cpu"]
    for library in ("nnsight", "transformer_lens"):
        pytest.importorskip(library, reason=f"the extra {library} is not installed")
        options = ["--backend", library]
        out = tmp_path / library
        adapters = ["--adapter", run, "--adapter", run / "checkpoint-10"]
        ok(*base, *options, *adapters, "--out", out)
        assert sorted(path.name for path in out.iterdir()) == [
            *("base.h5", "checkpoint-10.h5", "grpo.h5"),
        ]
        alone = tmp_path / f"{library}.h5"
        ok(*base, *options, "--adapter", run / "checkpoint-10", "--out", alone)
        assert contents(out / "checkpoint-10.h5") == contents(alone)


def test_a_base_that_an_adapter_leaves_changed_is_loaded_again(
    tmp_path: Path,
    model_folder: Path,
    run: Path,
    facts: tuple[Item, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = describe_source(open_source("facts"), facts, view=None, seed=1)
    job = Job(ModelSpec.parse(str(model_folder), device="cpu"), None, source)
    adapters = [run / "checkpoint-2", run / "checkpoint-10"]
    right = extract_each(job, adapters, facts, tmp_path / "right")
    loads: list[weakref.ref[Any]] = []

    @contextmanager
    def dirty(backend: HFBackend, path: Path) -> Iterator[HFBackend]:
        with adapted(backend, path) as changed:
            yield changed
        backend.model.model.layers[0].mlp.down_proj.weight.data.mul_(1.01)

    loading = activations.checkpoints.load_backend
    monkeypatch.setattr(activations.checkpoints, "adapted", dirty)

    def load(spec: ModelSpec) -> HFBackend:
        gc.collect()
        # One model at a time is in memory.
        assert not any(model() for model in loads)
        backend = loading(spec)
        loads.append(weakref.ref(backend.model))
        return backend

    monkeypatch.setattr(activations.checkpoints, "load_backend", load)
    got = extract_each(job, adapters, facts, tmp_path / "got")
    assert [contents(path) for path in got] == [contents(path) for path in right]
    # Once to begin with, once after the trials, once after the first adapter.
    assert len(loads) == 3


def test_an_adapter_that_fails_leaves_what_was_finished(
    tmp_path: Path, model_folder: Path, run: Path
) -> None:
    base = ["extract", "--model", model_folder, "--source", "facts", "--n", 8, "--device", "cpu"]
    base += ["--adapter", run, "--checkpoints", "--out", tmp_path / "out"]
    weights = run / "checkpoint-10" / "adapter_model.safetensors"
    good = load_file(weights)
    save_file({name: tensor * float("nan") for name, tensor in good.items()}, weights)
    assert "is not finite from layer 0 on" in refused(*base)
    out = tmp_path / "out"
    begun = partial_path(out / "checkpoint-10.h5")
    assert {path.name for path in out.iterdir()} == {"base.h5", "checkpoint-2.h5", begun.name}
    finished = [(out / name).read_bytes() for name in ("base.h5", "checkpoint-2.h5")]
    save_file(good, weights)
    # What was begun with other weights is not gone on with.
    assert "model.adapter: the file has" in refused(*base)
    begun.unlink()
    ok(*base)
    assert [(out / name).read_bytes() for name in ("base.h5", "checkpoint-2.h5")] == finished
    assert len(list(out.iterdir())) == 4


def test_what_cannot_be_run_is_refused_before_anything_is(
    tmp_path: Path, model_folder: Path, run: Path, tiny_model: Callable[..., Any]
) -> None:
    out = tmp_path / "out"
    base = ["extract", "--model", model_folder, "--source", "facts", "--n", 8, "--device", "cpu"]
    file = tmp_path / "file"
    file.write_text("mine")
    empty = tmp_path / "empty"
    empty.mkdir()
    wide, full, torn = tmp_path / "wide", tmp_path / "full", tmp_path / "torn"
    save_adapter(tiny_model("llama", hidden_size=48), wide)
    tiny_model("llama").save_pretrained(full)
    as_trl_saves(torn, tiny_model("llama"))
    (torn / "checkpoint-10" / "adapter_model.safetensors").unlink()
    runs = tmp_path / "runs"
    as_trl_saves(runs, tiny_model("llama"))
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (runs / name).unlink()
    for arguments, words in (
        (["--checkpoints"], "--checkpoints needs the run's folder"),
        (["--adapter", empty, "--checkpoints"], "neither an adapter"),
        (["--adapter", tmp_path / "gone", "--checkpoints"], "There is no "),
        (["--adapter", full, "--checkpoints"], "give it as --model"),
        (["--adapter", runs], "holds 2 (first: checkpoint-2)"),
        (["--adapter", run, "--adapter", runs], "add --checkpoints"),
        (["--adapter", run, "--adapter", run], "is given twice"),
        (["--adapter", run, "--adapter", run / "checkpoint-2", "--checkpoints"], "given twice"),
        (["--adapter", run, "--adapter", wide], "cannot be attached to tiny-llama"),
        (["--adapter", torn, "--checkpoints"], "checkpoint-10 has no adapter_model.safetensors"),
    ):
        assert words in refused(*base, *arguments, "--out", out), arguments
        assert not out.exists()
    # A checkpoint without an adapter is none of the run's adapters: it is not left out in silence.
    for fill in (lambda folder: folder.mkdir(), tiny_model("llama").save_pretrained):
        fill(run / "checkpoint-20")
        message = refused(*base, "--adapter", run, "--checkpoints", "--out", out)
        assert "checkpoint-20 holds no adapter" in message
        assert not out.exists()
        shutil.rmtree(run / "checkpoint-20")
    out.mkdir()
    (out / "grpo.h5").write_text("mine")
    message = refused(*base, "--adapter", run, "--checkpoints", "--out", out)
    assert "grpo.h5 is not a readable HDF5 file" in message
    assert [path.name for path in out.iterdir()] == ["grpo.h5"]
    for path in (file, tmp_path / "out.h5"):
        message = refused(*base, "--adapter", run, "--checkpoints", "--out", path)
        assert "Give a folder" in message
    assert file.read_text() == "mine"
    assert not (tmp_path / "out.h5").exists()


def test_names_of_caches_are_told_apart_by_parent_folders(tmp_path: Path) -> None:
    def names(*folders: str) -> list[str]:
        paths = cache_paths(tmp_path / "out", [tmp_path / folder for folder in folders])
        assert all(path.parent == tmp_path / "out" and path.suffix == ".h5" for path in paths)
        return [path.stem for path in paths]

    assert names() == ["base"]
    assert names("a/checkpoint-2", "a") == ["base", "checkpoint-2", "a"]
    assert names("a/last", "b/last", "b/x") == ["base", "a-last", "b-last", "b-x"]
    # One that is called like the base, whatever its capitals.
    assert names("a/Base") == ["base", "a-Base"]
    assert names("a.1/x.2") == ["base", "x.2"]
    with pytest.raises(AdapterError, match="would have the same names"):
        names("a-b/c", "a/b-c", "x/c", "x/b-c")
    with pytest.raises(AdapterError, match="given twice"):
        names("a/last", "b/../a/last")
    with pytest.raises(CacheError, match="Give a folder"):
        cache_paths(tmp_path / "x.h5", [])
