"""Same-shaped modules as one batch give the figures of one after the other."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

import peft
import pytest
import torch
from adapter_models import experts, llama, save_case
from hypothesis import given
from hypothesis import strategies as st

from interp.adapters.base import open_base
from interp.adapters.delta import LowRank, materialise
from interp.adapters.findings import breaks
from interp.adapters.locate import find_adapters
from interp.adapters.norms import maxima, spectra
from interp.adapters.read import open_adapter, read_updates
from interp.adapters.working import measure_all

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


@given(
    st.integers(1, 4), st.integers(1, 3), st.integers(1, 9), st.integers(1, 4), st.integers(1, 7),
    st.integers(1, 300), st.integers(0, 99),
)  # fmt: skip
def test_a_batch_of_factors_equals_the_matrices(
    k: int, n: int, out: int, rank: int, inner: int, elements: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    deltas = [
        LowRank(
            torch.randn(n, out, rank, generator=generator, dtype=torch.float64),
            torch.randn(n, rank, inner, generator=generator, dtype=torch.float64),
            0.5 + place,
        )
        for place in range(k)
    ]
    for delta, found, largest in zip(
        deltas, spectra(deltas), maxima(deltas, elements), strict=True
    ):
        whole = materialise(delta).reshape(n, out, inner)
        values = torch.linalg.svdvals(whole)[:, : min(out, rank, inner)].flatten()
        expected = values.sort(descending=True).values.tolist()
        assert found.singular_values == pytest.approx(expected, abs=1e-9)
        assert math.isclose(largest, float(whole.abs().max()), rel_tol=1e-9)


def test_a_zero_among_others() -> None:
    zero, one = torch.zeros(1, 3, 2), torch.ones(1, 2, 4)
    deltas = [LowRank(one.reshape(1, 4, 2), one, 1.0), LowRank(zero.new_zeros(1, 4, 2), one, 1.0)]
    assert maxima(deltas) == [2.0, 0.0]
    assert [found.frobenius for found in spectra(deltas)] == pytest.approx([8.0, 0.0])


@pytest.mark.parametrize("batch", [2, 5, 32])
@pytest.mark.parametrize("case", ["dense", "experts", "mixed"])
def test_an_adapter_in_batches(case: str, batch: int, tmp_path: Path) -> None:
    build, config = {
        "dense": (llama, peft.LoraConfig(r=4, target_modules=LINEAR)),
        "experts": (
            experts,
            peft.LoraConfig(r=2, target_modules=["q_proj"], target_parameters=EXPERTS),
        ),
        "mixed": (
            llama,
            peft.LoraConfig(r=4, target_modules=LINEAR, use_dora=True, modules_to_save=["lm_head"]),
        ),
    }[case]
    save_case(tmp_path, build, config)
    (folder,) = find_adapters(tmp_path / "adapter")
    found = []
    for size in (None, batch):
        with open_adapter(folder) as adapter, open_base(tmp_path / "base") as base:
            modules, notes = measure_all(
                read_updates(adapter, base), "true", "cpu", lambda _: None, batch=size
            )
        assert notes == [] and all(module.frobenius for module in modules)
        found.append([asdict(module) for module in modules])
    for one, other in zip(*found, strict=True):
        values = one.pop("singular_values"), other.pop("singular_values")
        assert values[1] == pytest.approx(values[0], rel=1e-9, abs=1e-12)
        exact = {k: v for k, v in one.items() if not isinstance(v, float)}
        assert exact == {k: v for k, v in other.items() if k in exact}
        floats = {k: v for k, v in one.items() if isinstance(v, float)}
        assert {k: other[k] for k in floats} == pytest.approx(floats, rel=1e-9)
    assert len(found[0]) > batch or batch == 32


def test_one_bad_update_does_not_spoil_its_batch(tmp_path: Path) -> None:
    save_case(tmp_path, llama, peft.LoraConfig(r=4, target_modules=["q_proj", "o_proj"]))
    (folder,) = find_adapters(tmp_path / "adapter")
    with open_adapter(folder) as adapter:
        updates = list(read_updates(adapter, None))
    first = updates[0].delta
    assert isinstance(first, LowRank)
    first.left[0, 0, 0] = math.inf
    modules, notes = measure_all(iter(updates), "true", "cpu", lambda _: None, batch=4)
    (note,) = notes
    assert breaks(note.code) and updates[0].name in note.message
    assert [module.frobenius is None for module in modules] == [True, False, False, False]
