"""What a steering grid claims: leaks, nulls, choices and the verdict."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from caches import Cache

from activations import ActivationCache, HFBackend
from activations.head import verdict_head
from interp.direction import unit_direction
from interp.direction.vectors import class_mean_difference
from interp.errors import SteeringError
from interp.grading import parse_verdict
from probes.solver import fit_probe
from steering import CONDITIONS, SignedItems, SteeringSweep, add, steer, sweep_steering
from steering.effects import neutral_texts, side_effects
from steering.plan import INNER, Settings, make_plan, require_conditions
from steering.results import BASELINE, Cell, cell_rows
from steering.summary import summarise
from steering.sweep import make_settings, with_verdict

Prepared = Callable[..., tuple[HFBackend, ActivationCache, SignedItems]]
N, FOLDS, LAYERS, WIDTH = 60, 5, 3, 12


def made_up(seed: int = 0, gap: float = 0.0) -> tuple[Cache, SignedItems]:
    """Streams with a few wide axes, twins in groups of two, and labels that shift one axis."""
    rng = np.random.default_rng(seed)
    labels = np.tile([True, False], N // 2)
    scales = np.array([8.0, 6.0, *[0.5] * (WIDTH - 2)])
    streams = rng.normal(size=(N, LAYERS, WIDTH)) * scales
    streams[labels, :, 3] += gap
    groups = [f"g{index // 2}" for index in range(N)]
    fold = np.arange(N) // 2 % FOLDS
    cache = Cache(streams, labels, groups)
    decisions = rng.normal(size=(N, LAYERS))
    inner = rng.normal(size=(FOLDS, N, LAYERS))
    for number in range(FOLDS):
        inner[number, fold == number] = np.nan
    return cache, SignedItems(fold, fold % LAYERS, decisions, cache.manifest, inner)


def settings(**changes: Any) -> Settings:
    fields: dict[str, Any] = {
        "places": ("0", "2"),
        "sizes": (1.0, 2.0),
        "alpha_unit": "median",
        "conditions": ("signed", "oracle", "fixed", "negated", "random", "shuffled", "orthogonal"),
        "n_random": 4,
        "n_control": 3,
        "seed": 7,
    }
    return Settings(**fields | changes)


def vector_of(plans: Any, cells: Any, fold: int, cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    """Direction and signed sizes of a fold in a cell."""
    (index,) = np.flatnonzero(plans[fold].cells == cells.index(cell))
    return plans[fold].vectors[plans[fold].which[index]], plans[fold].coefficients[index]


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


def relabelled(cache: ActivationCache, labels: np.ndarray) -> Any:
    class View:
        label = labels.astype(np.int8)

        def __getattr__(self, name: str) -> Any:
            return getattr(cache, name)

    return View()


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


def sweep_of(correct: dict[tuple[str, str], np.ndarray], **changes: Any) -> SteeringSweep:
    """A sweep whose cells are right where they are said to be; layer 3, size 1."""
    n = len(next(iter(correct.values())))
    label = np.arange(n) % 2 == 0
    cells = [Cell(BASELINE, 0.0, BASELINE)]
    cells += [
        Cell("3", 1.0, condition, draw) for condition, draw in correct if condition != BASELINE
    ]
    said = np.stack([np.equal(right, label) for right in correct.values()])
    logits = np.where(said[..., None], [1.0, -1.0], [-1.0, 1.0]).astype(np.float32)
    fields: dict[str, Any] = {
        "cells": tuple(cells),
        "logits": logits,
        "push": np.ones((len(cells), n), np.int8),
        "alpha": np.array([cell.size for cell in cells]),
        "alpha_absolute": np.array([2 * cell.size for cell in cells]),
        "sign": np.ones(n, np.int64),
        "fold": np.arange(n) // 2 % 5,
        "item_id": tuple(map(str, range(n))),
        "label": label,
        "group_id": tuple(f"g{index // 2}" for index in range(n)),
        "chosen": (("3", 1.0),) * 5,
        "chosen_on_inner_folds": False,
        "n_without_effect": 0,
        "settings": {"positions": "last_prompt"},
        "seed": 0,
        "manifest": {},
    }
    return SteeringSweep(**fields | changes)


def right(n: int, total: int = 100) -> np.ndarray:
    return np.random.default_rng(n).permutation(np.arange(total) < n)


def test_the_p_value_counts_random_directions_whose_best_cell_is_as_good() -> None:
    cells = {(BASELINE, ""): right(50), ("signed", ""): right(70), ("negated", ""): right(30)}
    draws = {("random", f"{mark}{i}"): right(60 + (i < 3) * 10) for i in range(50) for mark in "+-"}
    sweep = sweep_of(cells | draws)
    null = summarise(sweep, cell_rows(sweep))["null"]
    # Three pairs reach 70 of 100: six of a hundred directions; signed itself and its mirror count.
    assert null["n_directions"] == 100
    assert null["p_value"] == pytest.approx((1 + 6) / 102)
    assert null["range"] == [0.6, 0.7]
    fewer = sweep_of(cells | dict(list(draws.items())[:98]))
    null = summarise(fewer, cell_rows(fewer))["null"]
    assert null["p_value"] is None
    assert null["range"] == [0.6, 0.7]


def test_the_verdict_follows_from_the_paired_intervals() -> None:
    base, good = right(50), np.arange(100) < 95
    cells = {(BASELINE, ""): base, ("signed", ""): good, ("fixed", ""): base}
    sweep = sweep_of(cells | {("random", "+0"): base, ("writer", ""): good})
    summary = summarise(sweep, cell_rows(sweep))
    verdict = summary["verdict"]
    assert "raises the accuracy" in verdict
    assert "more than signing random directions" in verdict
    assert "no more and no less than signing the unembedding" in verdict
    assert "one sign for all items does not move it" in verdict
    assert verdict.count(".") == verdict.count("[") * 3 + 1  # one sentence, decimals aside
    assert summary["signed_minus_writer"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    worse = sweep_of({(BASELINE, ""): good, ("signed", ""): base, ("random", "+0"): good})
    assert "lowers the accuracy" in summarise(worse, cell_rows(worse))["verdict"]
    # A model that always says the same can only show the pushes the other way.
    assert "to every item" not in verdict
    odd = np.arange(100) % 2 == 1
    for said, always in ((~odd, True), (odd, False)):
        stuck = sweep_of({(BASELINE, ""): said, ("signed", ""): good})
        words = summarise(stuck, cell_rows(stuck))["verdict"]
        assert words.startswith(f"Unsteered, the model says {always} to every item; steering")
    (row,) = (r for r in summary["grid"] if (r["condition"], r["alpha"]) == ("signed", 1.0))
    assert row["minus_random"]["value"] == pytest.approx(good.mean() - base.mean())
    assert row["flips_to_right"] == (good & ~base).sum()
    assert row["flips_to_wrong"] == (base & ~good).sum()


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


def test_side_effects_are_none_without_steering_and_grow_with_it(prepared: Prepared) -> None:
    backend, cache, signed = prepared()
    options: dict[str, Any] = {"alphas": [1e-6, 8], "layers": [1], "conditions": ("signed",)}
    sweep = sweep_steering(cache, signed, backend, **options, positions="generated")
    wanted = make_settings(cache, **options, alpha_unit="median", n_random=2, n_control=1, seed=0)
    found = {}
    for size in (1e-6, 8.0):
        found[size] = side_effects(
            cache,
            signed,
            backend,
            replace(sweep, chosen=(("1", size),) * 5),
            wanted,
            verdict_head(backend.model, 3, 5),
            n_items=6,
            max_new_tokens=3,
            batch_tokens=2048,
        )
    assert found[8.0][BASELINE]["kl"] == 0
    losses = []
    for text in neutral_texts():
        ids = backend.tokenizer(text)["input_ids"]
        with torch.inference_mode():
            logits = backend.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        losses += [-float(logits[at - 1, ids[at]]) for at in range(len(ids) // 2, len(ids))]
    assert found[8.0][BASELINE]["perplexity"] == pytest.approx(math.exp(np.mean(losses)), rel=1e-3)
    small, large = found[1e-6]["signed"], found[8.0]["signed"]
    assert small["kl"] < 1e-6 < 1e-3 < large["kl"]
    assert small["perplexity"] == pytest.approx(found[8.0][BASELINE]["perplexity"], rel=1e-4)
    assert large["perplexity"] != pytest.approx(small["perplexity"], rel=1e-2)
    assert large["n_items"] == 6


def test_side_effects_of_a_batch_are_those_of_each_item_alone(prepared: Prepared) -> None:
    # Nested layers, so that a batch holds items of several folds, layers and directions.
    backend, cache, signed = prepared()
    options: dict[str, Any] = {"alphas": [4], "conditions": ("signed", "random")}
    sweep = sweep_steering(cache, signed, backend, **options, layers=None)
    grid = make_settings(
        cache, **options, layers=None, alpha_unit="median", n_random=10, n_control=10, seed=0
    )
    found = side_effects(
        cache, signed, backend, sweep, grid, None, n_items=40, max_new_tokens=3, batch_tokens=4096
    )
    cells, plans, _, _ = make_plan(cache, signed, grid, None)
    vocabulary = range(backend.model.lm_head.out_features)
    prompts = backend.tokenize(cache.items())
    for condition, draw in (("signed", ""), ("random", "+0")):
        divergences, right = [], []
        for row, (prompt, fold) in enumerate(zip(prompts, signed.fold, strict=True)):
            vector, sizes = vector_of(plans, cells, fold, Cell("nested", 4.0, condition, draw))
            place = int(np.flatnonzero(plans[fold].rows == row)[0])
            direction = unit_direction(
                vector,
                method="by hand",
                layer=int(signed.layer_nested[row]),
                median_norm=1.0,
                model_id="",
                token_rule="last_prompt",
            )
            before = backend.logits([prompt.ids_with_stub], vocabulary)[0].log_softmax(-1)
            push = add(direction, float(sizes[place]))
            with steer(backend, [push], prompt_lengths=[len(prompt.ids)]):
                after = backend.logits([prompt.ids_with_stub], vocabulary)[0].log_softmax(-1)
            with steer(backend, [push]):
                (text,) = backend.generate([prompt.ids], 3)
            divergences.append(float((before.exp() * (before - after)).sum()))
            right.append(parse_verdict(backend.decode(text)) == cache.label[row])
        assert found[condition]["kl"] == pytest.approx(np.mean(divergences), rel=1e-3)
        assert found[condition]["kl"] > 1e-4
        assert found[condition]["accuracy"] == np.mean(right)
    assert found["signed"]["kl"] != pytest.approx(found["random"]["kl"], rel=0.05)


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
