"""Batches on several processes: the same numbers, and nobody left behind."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from activations import ActivationCache, HFBackend, answer, describe_source, extract
from activations.workers import spread_batches, workers_for
from interp import Item, open_source
from interp.errors import ModelError, SteeringError
from interp.grading import Answer
from steering import SignedItems, SteeringSweep, sweep_steering

Prepared = Callable[..., tuple[HFBackend, ActivationCache, SignedItems]]

BATCHES = [[0, 3], [1], [2, 4, 5], [6]]


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def _squares(batch: list[int]) -> tuple[int, NDArray[np.float64]]:
    return os.getpid(), np.array(batch, dtype=np.float64) ** 2


def test_every_batch_is_run_once_and_elsewhere() -> None:
    found = list(spread_batches(BATCHES, _squares, workers=2))
    assert sorted(batch for batch, _ in found) == sorted(BATCHES)
    for batch, (process, values) in found:
        assert process != os.getpid()
        np.testing.assert_array_equal(values, np.square(batch))
    (_, (alone, _)), *_ = spread_batches(BATCHES, _squares, workers=1)
    assert alone == os.getpid()


def test_threads_are_shared_out(two_threads: None) -> None:
    found = spread_batches(BATCHES, lambda _: torch.get_num_threads(), workers=2)
    assert {threads for _, threads in found} == {1}
    assert torch.get_num_threads() == 2


def test_a_closure_over_tensors_is_lent_by_the_fork() -> None:
    weights = torch.arange(7.0)
    found = {
        batch[0]: value
        for batch, value in spread_batches(
            BATCHES, lambda batch: float(weights[batch].sum()), workers=2
        )
    }
    assert found == {0: 3.0, 1: 1.0, 2: 11.0, 6: 6.0}


def test_an_error_of_a_batch_is_raised_here(tmp_path: Path) -> None:
    def run(batch: list[int]) -> int:
        (tmp_path / str(os.getpid())).touch()
        if 4 in batch:
            raise SteeringError("The model's logits are not finite.")
        return 0

    with pytest.raises(SteeringError, match="not finite"):
        list(spread_batches(BATCHES, run, workers=2))
    _require_gone(int(path.name) for path in tmp_path.iterdir())


def _require_gone(workers: Iterable[int]) -> None:
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


def test_no_worker_outlives_the_work_to_hold_a_lock(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = [process for _, (process, _) in spread_batches(BATCHES, _squares, workers=2)]
        _require_gone(found)
    with (tmp_path / "file").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # And where the results are not all wanted.
    some = spread_batches(BATCHES, _squares, workers=2)
    _, (worker, _) = next(some)
    os.kill(worker, 0)
    some.close()  # type: ignore[attr-defined]
    _require_gone([worker])


def test_a_process_that_is_killed_is_reported() -> None:
    def run(batch: list[int]) -> int:
        if 1 in batch:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    with pytest.raises(ModelError, match=r"killed.*OMP_NUM_THREADS=1"):
        list(spread_batches(BATCHES, run, workers=2))


_PARENT = """
import os, signal
from activations.workers import spread_batches

def run(batch):
    os.write(1, (str(os.getpid()) + os.linesep).encode())  # in one piece
    signal.pause()

list(spread_batches([[0], [1]], run, workers=2))
"""


def test_workers_end_with_a_parent_that_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert len({int(parent.stdout.readline()) for _ in range(2)} - {parent.pid}) == 2
    parent.kill()
    # The pipe ends when the last process that holds it ends; a worker left behind never would.
    rest, _ = parent.communicate(timeout=60)
    assert rest == ""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="forks on Linux only")
def test_one_process_a_thread_where_nothing_is_lost(prepared: Prepared, two_threads: None) -> None:
    backend, _, _ = prepared()
    assert workers_for(backend) == 2
    # What a hook of others notes down would stay in the other process.
    handle = backend.model.register_forward_hook(lambda *_: None)
    assert workers_for(backend) == 1
    handle.remove()
    torch.set_num_threads(1)
    assert workers_for(backend) == 1


@pytest.mark.parametrize("positions", ["last_prompt", "all"])
def test_a_sweep_is_the_same_on_any_number_of_processes(
    prepared: Prepared, positions: str, request: pytest.FixtureRequest
) -> None:
    backend, cache, signed = prepared()

    def swept() -> SteeringSweep:
        return sweep_steering(
            *(cache, signed, backend),
            alphas=[0, 1, 4],
            layers=[0, 1],
            conditions=("signed", "random", "text"),
            n_random=4,
            positions=positions,
            batch_tokens=512,
            progress=counted.append,
        )

    counted: list[int] = []
    alone = swept()
    request.getfixturevalue("two_threads")
    spread = swept()
    assert sum(counted) == 2 * cache.n_items
    assert len(counted) > 4
    np.testing.assert_array_equal(spread.logits, alone.logits)
    assert not np.array_equal(alone.logits[0], alone.logits[-3])


@pytest.mark.parametrize("shared", [True, False])
def test_a_cache_and_answers_are_the_same_on_any_number_of_processes(
    tmp_path: Path,
    tiny_backend: Callable[..., HFBackend],
    facts: tuple[Item, ...],
    shared: bool,
    request: pytest.FixtureRequest,
) -> None:
    backend = tiny_backend()
    source = describe_source(open_source("facts"), facts, view=None, seed=1)

    def made(name: str) -> tuple[dict[str, Any], tuple[Answer, ...]]:
        options: dict[str, Any] = {"batch_tokens": 128, "prefix_sharing": shared}
        extract(backend, facts, tmp_path / name, source=source, **options).close()
        with h5py.File(tmp_path / name) as file:
            arrays = {part: dataset[:] for part, dataset in file.items()}
        answers = answer(
            *(backend, facts, tmp_path / f"{name}.jsonl"),
            source=source,
            max_new_tokens=4,
            **options,
        )
        return arrays, answers

    arrays, answers = made("alone.h5")
    request.getfixturevalue("two_threads")
    assert workers_for(backend) == 2
    spread, said = made("spread.h5")
    assert arrays.keys() == spread.keys()
    for part, values in arrays.items():
        np.testing.assert_array_equal(spread[part], values, err_msg=part)
    assert said == answers
