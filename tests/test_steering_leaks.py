"""Nothing of an item reaches its own directions, signs, layer or size."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from steering_grids import (
    FOLDS,
    N,
    made_up,
    relabelled,
    settings,
    vector_of,
)

from activations import ActivationCache, HFBackend
from interp.direction.vectors import class_mean_difference
from probes.solver import fit_probe
from steering import SignedItems, sweep_steering
from steering.plan import INNER, make_plan
from steering.results import Cell

Prepared = Callable[..., tuple[HFBackend, ActivationCache, SignedItems]]


def test_directions_and_signs_come_from_folds_without_the_item() -> None:
    cache, signed = made_up(gap=1.0)
    labels = cache.label.astype(bool)
    cells, plans, push, absolute = make_plan(cache, signed, settings(), None)
    sign = np.where(signed.decision_values[:, 2] > 0, 1, -1)
    for fold in range(FOLDS):
        inside = signed.fold == fold
        vector, sizes = vector_of(plans, cells, fold, Cell("2", 2.0, "signed"))
        expected = class_mean_difference(cache.resid_post(2)[~inside], labels[~inside])
        np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), rtol=1e-5)
        np.testing.assert_array_equal(sizes, 2.0 * sign[inside])
        for condition, signs in (
            ("oracle", np.where(labels, 1, -1)),
            ("fixed", np.ones(N)),
            ("negated", -sign),
        ):
            same, sizes = vector_of(plans, cells, fold, Cell("2", 1.0, condition))
            np.testing.assert_array_equal(same, vector)
            np.testing.assert_array_equal(sizes, signs[inside])
        # Controls have the signs of `signed`; members of a pair are mirror images.
        plus, sizes = vector_of(plans, cells, fold, Cell("2", 1.0, "random", "+1"))
        minus, mirrored = vector_of(plans, cells, fold, Cell("2", 1.0, "random", "-1"))
        np.testing.assert_array_equal(sizes, sign[inside])
        np.testing.assert_array_equal(plus, -minus)
        np.testing.assert_array_equal(mirrored, sizes)
        orthogonal, sizes = vector_of(plans, cells, fold, Cell("2", 1.0, "orthogonal", "2"))
        assert abs(orthogonal @ vector) < 1e-5
        np.testing.assert_array_equal(sizes, sign[inside])
        # What chooses for another fold saw neither fold.
        other = (fold + 1) % FOLDS
        both = ~inside & (signed.fold != other)
        vector, sizes = vector_of(plans, cells, fold, Cell("2", 1.0, INNER, str(other)))
        expected = class_mean_difference(cache.resid_post(2)[both], labels[both])
        np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), rtol=1e-5)
        assert signed.inner is not None
        np.testing.assert_array_equal(sizes, np.where(signed.inner[other][inside, 2] > 0, 1, -1))
    # Every cell but those that choose holds all items; those leave their fold out.
    for number, cell in enumerate(cells):
        left_out = signed.fold == int(cell.draw) if cell.condition == INNER else np.zeros(N, bool)
        assert ((push[number] == 0) == left_out).all()
        assert absolute[number] == pytest.approx(cell.size)
    # A random direction is one draw for all folds.
    draws = [vector_of(plans, cells, f, Cell("0", 1.0, "random", "+0"))[0] for f in range(FOLDS)]
    assert all(np.array_equal(draw, draws[0]) for draw in draws)


def test_held_out_items_do_not_lean_along_directions_of_permuted_labels() -> None:
    # In sample, True items lean along the class mean by construction: that is what a leak gives.
    outside, inside = [], []
    for seed in range(40):
        cache, signed = made_up(seed)
        cells, plans, _, _ = make_plan(cache, signed, settings(conditions=("signed",)), None)
        signs = np.where(cache.label.astype(bool), 1.0, -1.0)
        stream = cache.resid_post(2)
        lean = np.empty(N)
        for fold in range(FOLDS):
            rows = signed.fold == fold
            vector, _ = vector_of(plans, cells, fold, Cell("2", 1.0, "signed"))
            lean[rows] = stream[rows] @ vector
        outside.append((lean * signs).mean())
        everything = class_mean_difference(stream, cache.label.astype(bool))
        inside.append((stream @ everything * signs).mean() / np.linalg.norm(everything))
    error = np.std(outside) / math.sqrt(len(outside))
    assert np.mean(outside) < 2.5 * error
    assert min(inside) > 0
    assert np.mean(inside) > 4 * error


def test_permuted_labels_gain_nothing_but_leaked_signs_do(prepared: Prepared) -> None:
    backend, cache, signed = prepared()
    layer = cache.n_layers - 1
    stream = cache.resid_post(layer)
    rng = np.random.default_rng(5)
    gained, leaked = [], []
    for _ in range(3):
        labels = rng.permutation(cache.label.astype(bool))
        honest, dishonest = (
            np.zeros_like(signed.decision_values),
            np.zeros_like(signed.decision_values),
        )
        for fold in range(5):
            inside = signed.fold == fold
            probe = fit_probe(stream[~inside], labels[~inside], C=10.0)
            honest[inside, layer] = probe.decide(stream[inside])
        dishonest[:, layer] = fit_probe(stream, labels, C=10.0).decide(stream)
        for decisions, found in ((honest, gained), (dishonest, leaked)):
            sweep = sweep_steering(
                relabelled(cache, labels),
                replace(signed, decision_values=decisions),
                backend,
                alphas=[20],
                layers=[layer],
                conditions=("signed", "writer"),
                positions="generated",
            )
            for condition in ("signed", "writer"):
                (cell,) = sweep.cells_of(str(layer), 20.0, condition)
                change = sweep.correct[cell].mean() - sweep.correct[0].mean()
                found.append((condition, change))
    by = {c: [v for name, v in gained if name == c] for c in ("signed", "writer")}
    # Standard error of a mean of 3 × 40 paired changes, each at most 1: below 0.1.
    assert np.mean(by["signed"]) < 0.2
    assert np.mean(by["writer"]) < 0.2
    # The control: with signs from probes that saw the item, the same grid "finds" a lot.
    assert np.mean([v for name, v in leaked if name == "writer"]) > 0.3


def test_layer_and_size_are_chosen_without_the_fold(prepared: Prepared) -> None:
    backend, cache, signed = prepared()
    rng = np.random.default_rng(0)
    inner = rng.normal(size=(5, cache.n_items, cache.n_layers))
    for fold in range(5):
        inner[fold, signed.fold == fold] = np.nan
    signed = replace(signed, inner=inner)
    options: dict[str, Any] = {"alphas": [4, 16], "layers": [0, 1], "conditions": ("signed",)}
    sweep = sweep_steering(cache, signed, backend, **options)
    assert sweep.chosen_on_inner_folds
    for fold in range(5):
        others = signed.fold != fold
        best = max(
            sweep.correct[number, others].mean()
            for number, cell in enumerate(sweep.cells)
            if (cell.condition, cell.draw) == (INNER, str(fold))
        )
        place, size = sweep.chosen[fold]
        (picked,) = (
            number
            for number in sweep.cells_of(place, size, INNER)
            if sweep.cells[number].draw == str(fold)
        )
        assert sweep.correct[picked, others].mean() == best
    # Labels and decisions of a fold change nothing in what is chosen for it.
    inside = signed.fold == 2
    labels = cache.label.copy()
    labels[inside] = 1 - labels[inside]
    changed = replace(
        signed, decision_values=np.where(inside[:, None], -1, 1) * signed.decision_values
    )
    again = sweep_steering(relabelled(cache, labels), changed, backend, **options)
    assert again.chosen[2] == sweep.chosen[2]
    assert (again.logits[0] == sweep.logits[0]).all()
    # Quoted items come from the cell of their fold.
    for fold in range(5):
        (cell,) = sweep.cells_of(*sweep.chosen[fold], "signed")
        rows = signed.fold == fold
        assert (sweep.quoted("signed")[0, rows] == cell).all()
