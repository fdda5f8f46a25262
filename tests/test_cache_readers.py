"""Reading a cache: as numpy or torch, one layer at a time."""

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from activations import ActivationCache, HFBackend, describe_source, extract
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
    run = subprocess.run(
        [sys.executable, "-c", READER, str(path)],
        capture_output=True,
        text=True,
        env=dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1"),
        check=False,
    )
    assert run.returncode == 0, run.stderr


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
