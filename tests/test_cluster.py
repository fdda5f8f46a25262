"""Extraction on a local Ray cluster: the file of one process, also after a worker was killed."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from commands import ok, refused

from activations import ActivationCache
from activations.cluster import shard_paths
from interp.files import partial_path


def holders(path: Path) -> set[int]:
    """Processes that have a file open."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if entry.readlink() == path:
                found.add(int(entry.parts[2]))
        except OSError:
            continue
    return found


def kill_first(path: Path, stop: threading.Event, killed: list[int]) -> None:
    """SIGKILL the process that writes `path`, once there is one."""
    while not stop.wait(0.01):
        if path.exists():
            for pid in holders(path) - {os.getpid()}:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                return


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks for writers in /proc")
# Ray leaves sockets and files to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_two_workers_give_the_file_of_one_process_though_one_is_killed(
    tmp_path: Path, model_folder: Path
) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    base = ["extract", "--source", "facts", "--n", 240, "--model", model_folder, "--device", "cpu"]
    base += ["--batch-tokens", 60]
    one, two = tmp_path / "one.h5", tmp_path / "two.h5"
    ok(*base, "--out", one)
    stop, killed = threading.Event(), list[int]()
    first = partial_path(shard_paths(two.resolve(), 2)[0])
    killer = threading.Thread(target=kill_first, args=(first, stop, killed))
    killer.start()
    try:
        ok(*base, "--out", two, "--engine", "ray", "--workers", 2)
    finally:
        stop.set()
        killer.join()
    # The control: a worker died while it was writing.
    assert len(killed) == 1
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["one.h5", "two.h5"]
    with ActivationCache.open(one) as a, ActivationCache.open(two) as b:
        assert a.manifest == b.manifest
        assert a.items() == b.items()
        assert b.self_check_max_relative is not None
        assert b.self_check_max_relative < 1e-5
    with h5py.File(one) as a, h5py.File(two) as b:
        # No arithmetic on embeddings; of the rest, sums are rounded by what shares a batch.
        np.testing.assert_array_equal(b["resid_pre0"][:], a["resid_pre0"][:])
        for name in ("resid_post", "answer_logits", "resid_norm"):
            difference = np.linalg.norm(b[name][:] - a[name][:], axis=-1)
            assert (difference <= 2e-6 * np.linalg.norm(a[name][:], axis=-1)).all(), name
    # The merged file is taken as what it is: nothing is computed, whichever engine is asked.
    before = two.read_bytes()
    ok(*base, "--out", two)
    ok(*base, "--out", two, "--engine", "ray", "--workers", 3)
    assert two.read_bytes() == before
    message = refused(*base, "--out", two, "--engine", "ray", "--workers", 2, "--seed", 5)
    assert "source.seed: the file has 0, this run has 5" in message


def test_what_ray_cannot_do_is_said(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base: list[Any] = ["extract", "--source", "facts", "--n", 8, "--model", model_folder]
    base += ["--out", tmp_path / "c.h5", "--engine", "ray"]
    cases: dict[str, Callable[[], Any]] = {
        "--workers is 9 for 8 items": lambda: refused(*base, "--workers", 9),
        "begun with --engine local": lambda: (
            partial_path(tmp_path / "c.h5").touch(),
            refused(*base, "--workers", 2),
        )[1],
        "another number of workers": lambda: (
            partial_path(tmp_path / "c.h5").unlink(),
            (tmp_path / "c.h5.shard-1-of-3").touch(),
            refused(*base, "--workers", 2),
        )[2],
    }
    for words, run in cases.items():
        assert words in run()
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'interp[ray]'" in refused(*base, "--workers", 2)
