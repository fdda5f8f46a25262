"""A disk that fills up while results are written: an `OSError` that names the file, nothing left.

A limit on the size of files stands for the full disk: it stops a write with an error in the same
way, anywhere and for everybody. It is set in a process of its own, which must also end well: HDF5
is able to end it with a segmentation fault.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

HEAD = """
import errno, json, os, resource, signal, sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = Path(sys.argv[1])
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

@contextmanager
def full_after(n_bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))

def state():
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}

def sizes(largest):
    # From the first byte to the last one, which is one too few.
    return sorted({0, 1, 97, *np.linspace(512, largest - 1, 12).astype(int).tolist()})

def must_fail(write, largest, name):
    before = state()
    for size in sizes(largest):
        try:
            with full_after(size):
                write()
        except OSError as error:
            assert error.errno in (errno.EFBIG, errno.EIO), error
            assert str(error.filename).endswith(name), (size, error.filename)
        else:
            raise AssertionError(f"{size} of {largest} bytes were enough")
        assert state() == before, (size, set(state()) ^ set(before))
"""

RESULTS = """
from dataclasses import replace
from probe_sweeps import sweep, twins
from steering_grids import right, sweep_of
from probes import read_sweep, write_sweep
from steering.results import cell_rows, write_sweep_files

cache = twins(np.random.default_rng(0))
found = sweep(cache, n_permutations=4)
write_sweep(folder / "probe", found)
(folder / "probe" / "accuracy_by_layer.png").write_bytes(b"drawn")
size = (folder / "probe" / "probes.h5").stat().st_size
# What is there stays as it was, in a folder that had a result and in one that had none.
must_fail(lambda: write_sweep(folder / "probe", replace(found, seed=5)), size, "probe/probes.h5")
assert read_sweep(folder / "probe").seed == 0
must_fail(lambda: write_sweep(folder / "new", found), size, "new/probes.h5")
assert list((folder / "new").iterdir()) == []
# The control: with room enough the new one takes its place, and old figures are gone.
with full_after(1 << 20):
    write_sweep(folder / "probe", replace(found, seed=5))
assert read_sweep(folder / "probe").seed == 5
assert not (folder / "probe" / "accuracy_by_layer.png").exists()

steered = sweep_of({(n, n): right(40 + i) for i, n in enumerate(("baseline", "signed"))})
steered = replace(steered, cells=(steered.cells[0], replace(steered.cells[1], condition="signed")))
summary = {"quoted_layer": "3", "quoted_alpha": 1.0}
rows = cell_rows(steered)
write = lambda: write_sweep_files(folder / "steer", steered, rows, summary)
write()
largest = max(p.stat().st_size for p in (folder / "steer").iterdir())
must_fail(write, largest, "")
"""

CACHES = """
import h5py
from activations import ActivationCache
from activations.layout import create_file
from activations.portable import export_cache, merge_caches
from activations.compression import write_compressed
from interp import load_items, open_source
from interp.direction import Direction, write_directions
from interp.errors import CacheError

items = load_items(open_source("facts"), n=8, seed=1)
def create(path, some=items, **options):
    create_file(path, manifest=options or {"store": "float32", "source": {}}, items=some,
        n_tokens=[3] * len(some), n_layers=3, d_model=16, store="float32")

from interp.files import new_file
def new(path, some=items):
    with new_file(path) as aside:
        create(aside, some)

for name, some in (("a.h5", items[:4]), ("b.h5", items[4:])):
    new(folder / name, some)
    with h5py.File(folder / name, "r+") as file:
        file["done"][:] = 1
size = (folder / "a.h5").stat().st_size
must_fail(lambda: new(folder / "c.h5.partial", items[:4]), size, "c.h5.partial")
shards = (folder / "a.h5", folder / "b.h5")
must_fail(lambda: merge_caches(folder / "all.h5", shards), size, "all.h5")
with h5py.File(folder / "a.h5") as file:
    write_compressed(file, folder / "small.h5")
    size = (folder / "small.h5").stat().st_size
    (folder / "small.h5").unlink()
    must_fail(lambda: write_compressed(file, folder / "small.h5"), size, "small.h5")
    write_compressed(file, folder / "small.h5")
with ActivationCache.open(folder / "a.h5") as cache, ActivationCache.open(folder / "small.h5") as b:
    assert cache.item_id == b.item_id and (cache.done == b.done).all()
    before = state()
    for ending in (".npz", ".safetensors"):
        with full_after(1000):
            try:
                export_cache(cache, folder / f"x{ending}")
            except (OSError, CacheError) as error:
                assert f"x{ending}" in str(error), error
            else:
                raise AssertionError(ending)
        assert state() == before
vector = np.ones(2000, np.float32) / np.sqrt(2000)
direction = Direction(vector=vector.astype(np.float32), layer=1, hook_point="resid_post",
    method="probe", class_gap=None, median_norm=1.0, model_id="m", token_rule="last_prompt",
    n_true=1, n_false=1)
for ending in (".npz", ".safetensors", ".gguf"):
    write = lambda: write_directions(folder / f"d{ending}", [direction], model_hint="m")
    must_fail(write, 1000, f"d{ending}")
    write()
"""


@pytest.mark.parametrize(
    "script", [RESULTS, CACHES], ids=["results of sweeps", "caches and directions"]
)
def test_a_full_disk_is_an_error_that_leaves_what_was_there(script: str, tmp_path: Path) -> None:
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    done = subprocess.run(
        [sys.executable, "-c", HEAD + script + "\nprint('whole')\n", tmp_path],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "whole", "")
