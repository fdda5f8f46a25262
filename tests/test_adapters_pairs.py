"""Cosines, alignments and overlaps against the materialised matrices; the refusal of twins."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from adapter_models import llama, save_case
from peft import LoraConfig

from interp.adapters.delta import LowRank, materialise
from interp.adapters.pairs import compare_runs, cosine, direction_overlap, left_alignment
from interp.errors import AdapterError


def factors(seed: int, rank: int = 3, n: int = 1) -> LowRank:
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(n, 10, rank, generator=generator, dtype=torch.float64)
    return LowRank(left, torch.randn(n, rank, 7, generator=generator, dtype=torch.float64), 0.5)


@pytest.mark.parametrize("n", [1, 4])
def test_cosine_equals_that_of_the_matrices(n: int) -> None:
    first, second = factors(0, 3, n), factors(1, 2, n)
    a, b = materialise(first).flatten(), materialise(second).flatten()
    assert cosine(first, second) == pytest.approx(float(a @ b / (a.norm() * b.norm())))
    assert cosine(first, first) == pytest.approx(1)
    assert cosine(first, LowRank(second.left * 0, second.right, 1.0)) is None


def test_left_alignment_equals_that_of_the_matrices() -> None:
    first, second = factors(0), factors(1)
    u, v = (torch.linalg.svd(materialise(d))[0][:, 0] for d in (first, second))
    assert left_alignment(first, second) == pytest.approx(abs(float(u @ v)))
    assert left_alignment(first, LowRank(-first.left, first.right, 2.0)) == pytest.approx(1)
    assert left_alignment(first, LowRank(second.left * 0, second.right, 1.0)) is None


def test_overlap_with_a_direction() -> None:
    delta = factors(2)
    vector = np.zeros(10, dtype=np.float32)
    vector[3] = 2.0  # its length does not count
    assert direction_overlap(delta, vector) == pytest.approx(float(materialise(delta)[3].norm()))
    total = math.hypot(*(direction_overlap(delta, row) for row in np.eye(10, dtype=np.float32)))
    assert total == pytest.approx(float(materialise(delta).norm()))
    with pytest.raises(AdapterError, match="does not fit"):
        direction_overlap(delta, np.ones(7, dtype=np.float32))


def test_runs_that_started_alike_are_refused(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("twin", 0), ("other", 1)):
        config = LoraConfig(r=4, target_modules=["q_proj"])
        save_case(tmp_path / name, llama, config, scale=0.01, seed=seed)
    found = compare_runs(tmp_path / "one" / "adapter", tmp_path / "other" / "adapter")
    assert len(found) == 2
    assert all(pair.cosine is not None and abs(pair.cosine) < 0.9 for pair in found)
    with pytest.raises(AdapterError, match="started alike"):
        compare_runs(tmp_path / "one" / "adapter", tmp_path / "twin" / "adapter")
