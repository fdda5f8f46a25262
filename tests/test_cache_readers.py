"""Reading a cache: as numpy or torch, one layer at a time."""

import os
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
from commands import invoke

from activations import ActivationCache, HFBackend, describe_source, extract
from experiments.tables import self_check_sentence
from interp import Item, Message, open_source

ROOT = Path(__file__).resolve().parents[1]

READER = """
import sys
from pathlib import Path
from activations import ActivationCache
with ActivationCache.open(Path(sys.argv[1])) as cache:
    values = cache.resid_post(1)
    assert "torch" not in sys.modules
    tensor = cache.tensor(1)
    import torch
    assert tensor.dtype == torch.float32
    assert torch.equal(tensor, torch.from_numpy(values))
    # A tensor of one's own: changing it changes neither the file nor what is read next.
    tensor.zero_()
    assert torch.equal(cache.tensor(1), torch.from_numpy(values))
"""


@pytest.mark.parametrize("store", ["float32", "float16"])
def test_layers_are_read_as_numpy_without_torch_and_as_torch(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], facts: tuple[Item, ...], store: Any
) -> None:
    path = tmp_path / "c.h5"
    source = describe_source(open_source("facts"), facts, view=None, seed=1)
    extract(tiny_backend(), facts, path, source=source, store=store).close()
    child = subprocess.run(
        [sys.executable, "-c", READER, str(path)],
        capture_output=True,
        text=True,
        env=dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1"),
        check=False,
    )
    assert child.returncode == 0, child.stderr


def test_reading_a_layer_does_not_load_the_file(tmp_path: Path) -> None:
    from activations.layout import create_file

    n, n_layers, d_model = 512, 24, 256  # 12 MiB, half a MiB a layer
    items = tuple(Item(str(i), (Message("user", "?"),), None, None, "g", "c", {}) for i in range(n))
    path = tmp_path / "c.h5"
    create_file(
        path,
        manifest={},
        items=items,
        n_tokens=[1] * n,
        n_layers=n_layers,
        d_model=d_model,
        store="float32",
    )
    with ActivationCache.open(path, allow_unfinished=True) as cache:
        cache.resid_post(0)
        tracemalloc.start()
        cache.resid_post(5)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    layer = 4 * n * d_model
    assert layer <= peak < 2 * layer


def test_verify_says_what_is_wrong_and_exits_with_3(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], facts: tuple[Item, ...]
) -> None:
    path, other = tmp_path / "c.h5", tmp_path / "other.h5"
    source = describe_source(open_source("facts"), facts, view=None, seed=1)
    extract(tiny_backend(), facts, path, source=source).close()
    assert invoke("cache", "verify", path).exit_code == 0

    def faults_of(change: Callable[[h5py.File], None]) -> str:
        shutil.copy(path, other)
        with h5py.File(other, "r+") as file:
            change(file)
        result = invoke("cache", "verify", other)
        assert result.exit_code == 3
        assert "not sound" in result.stdout
        return str(result.stdout)

    def set_label(file: h5py.File) -> None:
        file["label"][3] = 1 - file["label"][3]

    def exchange_items(file: h5py.File) -> None:
        for name in ("item", "item_id", "group_id", "category", "label"):
            values = file[name][:]
            values[[0, -1]] = values[[-1, 0]]
            file[name][:] = values

    def rename(file: h5py.File) -> None:
        file["item_id"][0] = "someone else"

    def depends_on_the_batch(file: h5py.File) -> None:
        file.attrs["self_check_max_relative"] = 2e-3

    def undo(file: h5py.File) -> None:
        file["done"][5] = 0

    def drop(file: h5py.File) -> None:
        del file["answer_logits"]

    assert "label differs from what the items say" in faults_of(set_label)
    assert "item_id differs from what the items say" in faults_of(rename)
    # Rows in another order are as consistent as before, but not what the manifest names.
    assert "the items are not those of the manifest" in faults_of(exchange_items)
    assert "beyond what rounding explains in float32" in faults_of(depends_on_the_batch)
    assert "1 of 40 rows are not written" in faults_of(undo)
    assert "answer_logits" in faults_of(drop)
    # A file that cannot be opened is not sound either; one that is not there is a mistake.
    other.write_bytes(path.read_bytes()[:5000])
    cut = invoke("cache", "verify", other)
    assert cut.exit_code == 3
    assert "truncated" in cut.stdout
    assert invoke("cache", "verify", tmp_path / "none.h5").exit_code == 2


def test_the_rounding_of_a_float16_file_is_no_fault(tmp_path: Path, model_folder: Path) -> None:
    path = tmp_path / "c.h5"
    base = ("extract", "--source", "facts", "--n", 40, "--model", model_folder, "--device", "cpu")
    said = invoke(*base, "--store", "float16", "--out", path)
    assert said.exit_code == 0
    assert "WARNING" not in said.stderr
    assert "allowed in float32 stored as float16: 0.00059" in said.stderr.replace("\n", " ")
    with ActivationCache.open(path) as cache:
        # The control: it is more than a float32 file may have.
        assert cache.self_check_max_relative is not None
        assert 1e-4 < cache.self_check_max_relative < 2**-11
    assert invoke("cache", "verify", path).exit_code == 0
    with h5py.File(path, "r+") as file:
        file.attrs["self_check_max_relative"] = 1e-3
    assert invoke("cache", "verify", path).exit_code == 3


def test_the_self_check_is_explained_in_the_models_number_type() -> None:
    assert "which is rounding (allowed in float32: 0.0001)" in self_check_sentence(9e-7, "float32")
    assert self_check_sentence(2e-3, "float32").startswith("WARNING: the self-check is 0.002")
    # The same number is ordinary noise in bfloat16, and said to be.
    noise = self_check_sentence(1.5e-2, "bfloat16")
    assert "moves activations by 1 to 2%" in noise
    assert "by some tenths of a percent" in self_check_sentence(3e-3, "float16")
    assert self_check_sentence(0, "float32").endswith("are the same, bit for bit")
    assert self_check_sentence(0.2, "bfloat16").startswith("WARNING")
