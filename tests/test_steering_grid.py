"""Controls, units and settings of a steering grid."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from steering_grids import made_up, settings, vector_of

from activations import ActivationCache, HFBackend
from interp.errors import SteeringError
from steering import CONDITIONS, SignedItems, sweep_steering
from steering.plan import distinct, make_plan
from steering.results import Cell, cell_rows
from steering.settings import require_conditions
from steering.sweep import with_verdict

Prepared = Callable[..., tuple[HFBackend, ActivationCache, SignedItems]]


def test_a_shuffled_direction_is_unremarkable_among_shuffled_ones_only() -> None:
    cache, signed = made_up(gap=3.0)
    cells, plans, _, _ = make_plan(cache, signed, settings(n_control=21, n_random=40), None)
    centred = cache.resid_post(2) - cache.resid_post(2).mean(axis=0)

    def spread(condition: str, draw: str) -> float:
        vector, _ = vector_of(plans, cells, 0, Cell("2", 1.0, condition, draw))
        return float((centred @ vector).std())

    shuffled = [spread("shuffled", str(number)) for number in range(21)]
    isotropic = [spread("random", f"+{number}") for number in range(20)]
    rank = sum(other >= shuffled[0] for other in shuffled[1:])
    assert 0 < rank < 20
    # Class means follow the wide axes, whatever the labels; isotropic draws do not.
    assert np.median(shuffled) > max(np.median(isotropic), np.quantile(isotropic, 0.8))


def test_cells_that_differ_by_signs_are_run_once_with_either() -> None:
    cache, signed = made_up(gap=3.0)
    _, plans, _, _ = make_plan(cache, signed, settings(), None)
    for plan in plans:
        runs, taken = distinct(plan)
        # Of 2 layers × 2 sizes, signed, oracle, fixed and negated: two runs for four cells.
        assert len(plan.cells) - len(runs.cells) == 2 * 2 * 2
        assert (np.diff(runs.layers) >= 0).all()
        for cell, row in enumerate(taken):
            assert (runs.layers[row] == plan.layers[cell]).all()
            for item, run in enumerate(row):
                assert runs.coefficients[run, item] == plan.coefficients[cell, item]
                np.testing.assert_array_equal(
                    runs.vectors[runs.which[run]], plan.vectors[plan.which[cell]]
                )


def test_the_random_null_is_centred(prepared: Prepared) -> None:
    backend, cache, signed = prepared()
    sweep = sweep_steering(
        cache, signed, backend, alphas=[0.01], layers=[0], conditions=("random",), n_random=20
    )
    difference = sweep.logits[..., 0].astype(float) - sweep.logits[..., 1]
    moved = difference[1:] - difference[0]
    pairs = moved[0::2] + moved[1::2]
    # Mirror images cancel to first order: what is left is far smaller than what each moves.
    assert np.abs(pairs).mean() < 0.1 * np.abs(moved).mean()
    assert abs(moved.mean()) < 0.05 * np.abs(moved).mean()


def test_text_and_absolute_sizes(prepared: Prepared) -> None:
    backend, cache, signed = prepared()
    sweep = sweep_steering(
        cache,
        signed,
        backend,
        alphas=[3],
        layers=[1],
        conditions=("signed", "text"),
        alpha_unit="absolute",
    )
    items = cache.items()
    assert with_verdict(items[0], True).messages[-1].content.endswith("the statement is true.")
    (cell,) = sweep.cells_of("1", 3.0, "text")
    ids = backend.verdict_ids(backend.tokenize(items))
    for row in (0, 7, 23):
        told = with_verdict(items[row], bool(signed.decision_values[row, 1] > 0))
        (prompt,) = backend.tokenize([told])
        expected = backend.logits([prompt.ids_with_stub], [ids.true_id, ids.false_id])[0]
        np.testing.assert_allclose(sweep.logits[cell, row], expected, rtol=1e-4, atol=1e-4)
    (cell,) = sweep.cells_of("1", 3.0, "signed")
    assert sweep.alpha_absolute[cell] == pytest.approx(3)
    assert sweep.alpha[cell] == pytest.approx(3 / np.nanmedian(cache.resid_norm[:, 1]))
    rows = cell_rows(sweep)
    assert [row["alpha"] for row in rows if row["condition"] == "text"] == [None]
    assert next(row["alpha"] for row in rows if row["condition"] == "signed") == 0


def test_settings_that_cannot_work_are_refused(prepared: Prepared) -> None:
    backend, cache, signed = prepared()
    with pytest.raises(SteeringError, match=r"no steering condition 'sign'.*signed"):
        require_conditions(["sign"])
    with pytest.raises(SteeringError, match="at least one"):
        require_conditions([])
    assert require_conditions(CONDITIONS[::-1]) == CONDITIONS
    with pytest.raises(SteeringError, match="has 40; steering needs"):
        shorter = replace(signed, fold=signed.fold[:-1])
        sweep_steering(cache, shorter, backend, alphas=[1])
    uneven = replace(signed, layer_nested=np.arange(40) % 3)
    with pytest.raises(SteeringError, match="expected one layer a fold"):
        sweep_steering(cache, uneven, backend, alphas=[1])
    with pytest.raises(SteeringError, match="no position policy 'end'"):
        sweep_steering(cache, signed, backend, alphas=[1], positions="end")
    none = replace(signed, inner=np.full((5, 40, 3), np.nan))
    with pytest.raises(SteeringError, match="no inner decisions"):
        sweep_steering(cache, none, backend, alphas=[1])

    class Other:
        n_tokens = cache.n_tokens + 1

        def __getattr__(self, name: str) -> Any:
            return getattr(cache, name)

    other: Any = Other()
    with pytest.raises(SteeringError, match="not those of the items to steer"):
        sweep_steering(other, signed, backend, alphas=[1])
