from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from steered import unit

from activations import ActivationCache, Edit, HFBackend, describe_source, extract
from interp import Item, load_items, open_source
from interp.direction import (
    class_mean_direction,
    random_direction,
    read_direction,
    write_direction,
)
from interp.errors import SteeringError
from steering import SignedItems, fold_direction, sweep_steering, write_steering

FAMILIES = ("llama", "qwen3", "gemma3", "gpt2")


def test_the_class_mean_direction_by_hand(tmp_path: Path) -> None:
    activations = np.array([[3, 0, 1], [5, 0, 1], [0, 0, 1], [0, -6, 1]], dtype=np.float32)
    labels = np.array([True, True, False, False])
    # Means (4, 0, 1) and (0, -3, 1): difference (4, 3, 0), length 5.
    found = class_mean_direction(
        activations, labels, layer=2, median_norm=1.5, model_id="m", token_rule="last_prompt"
    )
    np.testing.assert_allclose(found.vector, [0.8, 0.6, 0.0], atol=1e-7)
    assert found.class_gap == pytest.approx(5)
    assert (found.n_true, found.n_false, found.layer) == (2, 2, 2)
    write_direction(tmp_path / "d.npz", found)
    read = read_direction(tmp_path / "d.npz")
    assert np.array_equal(read.vector, found.vector)
    assert replace(read, vector=found.vector) == replace(found, vector=found.vector)


def test_directions_that_are_none_are_refused(tmp_path: Path) -> None:
    zero, same = np.zeros((2, 3), dtype=np.float32), np.array([True, False])
    place: dict[str, Any] = {"layer": 1, "median_norm": 1, "model_id": "m", "token_rule": "t"}
    with pytest.raises(SteeringError, match="there is no direction"):
        class_mean_direction(zero, same, **place)
    with pytest.raises(SteeringError, match="2 True and 0 False"):
        class_mean_direction(zero, np.array([True, True]), **place)
    with pytest.raises(SteeringError, match="unit norm; got 3"):
        unit([1.0], vector=np.array([3.0], dtype=np.float32))
    with pytest.raises(SteeringError, match="finite"):
        unit([1.0], vector=np.array([np.nan], dtype=np.float32))
    with pytest.raises(SteeringError, match="layers count from 0"):
        unit([1.0], layer=-1)
    (tmp_path / "d.npz").write_text("no")
    with pytest.raises(SteeringError, match="not a direction file"):
        read_direction(tmp_path / "d.npz")


def test_random_directions_are_uniform_on_the_sphere() -> None:
    rng = np.random.default_rng(0)
    like = unit([1.0, 0.0, 0.0, 0.0])
    draws = np.stack([random_direction(like, rng).vector for _ in range(4000)])
    np.testing.assert_allclose(np.linalg.norm(draws, axis=1), 1, atol=1e-5)
    # Mean 0 and covariance I/4; four standard errors.
    assert np.abs(draws.mean(axis=0)).max() < 4 * 0.5 / np.sqrt(4000)
    assert np.abs(draws.T @ draws / 4000 - np.eye(4) / 4).max() < 0.02


@pytest.mark.parametrize("family", FAMILIES)
def test_the_sweep_equals_plain_passes(
    family: str, prepared: Callable[..., tuple[HFBackend, ActivationCache, SignedItems]]
) -> None:
    backend, cache, signed = prepared(family)
    sweep = sweep_steering(cache, signed, backend, alphas=[0, 0.5, 2], n_random=4, seed=3)
    names = [(cell.condition, cell.size, cell.draw) for cell in sweep.cells]
    assert names[0] == ("baseline", 0.0, "")
    assert len(names) == 1 + 2 * (2 + 4)
    assert sweep.settings["fast_path"]["used"], sweep.settings
    # Forced choice from the cache is the baseline.
    np.testing.assert_allclose(sweep.logits[0], cache.answer_logits, rtol=1e-4, atol=1e-4)
    prompts = backend.tokenize(cache.items())
    verdicts = backend.verdict_ids(prompts)
    signs = np.where(
        signed.decision_values[np.arange(cache.n_items), signed.layer_nested] > 0, 1, -1
    )
    assert (sweep.sign == signs).all()
    for alpha, condition, factor in ((0.5, "signed", 1), (2.0, "negated", -1)):
        cell = names.index((condition, alpha, ""))
        for row in range(0, cache.n_items, 7):
            layer, fold = int(signed.layer_nested[row]), signed.fold[row]
            training = signed.fold != fold
            stream, labels = cache.resid_post(layer), cache.label.astype(bool)
            difference = stream[training & labels].mean(axis=0) - stream[training & ~labels].mean(
                axis=0
            )
            size = factor * signs[row] * alpha * np.nanmedian(cache.resid_norm[training, layer])
            shift = torch.from_numpy(size * difference / np.linalg.norm(difference)).float()
            position = len(prompts[row].ids) - 1

            def push(hidden: torch.Tensor, shift=shift, position=position) -> torch.Tensor:
                pushed = hidden.clone()
                pushed[:, position] += shift
                return pushed

            with backend.intervene([Edit(layer, "resid_post", push)]):
                plain = backend.logits(
                    [prompts[row].ids_with_stub], [verdicts.true_id, verdicts.false_id]
                )
            np.testing.assert_allclose(sweep.logits[cell, row], plain[0], rtol=1e-3, atol=1e-3)
    # A random direction is one draw, at each item's own layer and norm.
    like = fold_direction(cache, 0)
    draw = random_direction(like, np.random.default_rng(3)).vector
    cell = names.index(("random", 0.5, "-0"))
    for row in range(0, cache.n_items, 7):
        layer, training = int(signed.layer_nested[row]), signed.fold != signed.fold[row]
        size = -signs[row] * 0.5 * np.nanmedian(cache.resid_norm[training, layer])
        shift = torch.from_numpy(size * draw).float()
        position = len(prompts[row].ids) - 1

        def push(hidden: torch.Tensor, shift=shift, position=position) -> torch.Tensor:
            pushed = hidden.clone()
            pushed[:, position] += shift
            return pushed

        with backend.intervene([Edit(layer, "resid_post", push)]):
            plain = backend.logits(
                [prompts[row].ids_with_stub], [verdicts.true_id, verdicts.false_id]
            )
        np.testing.assert_allclose(sweep.logits[cell, row], plain[0], rtol=1e-3, atol=1e-3)
    moved = np.abs(sweep.logits[names.index(("signed", 2.0, ""))] - sweep.logits[0])
    # After the last block only the head follows, and it reads the stub's token, not this one.
    below = signed.layer_nested < cache.n_layers - 1
    assert (moved[below].max(axis=1) > 1e-4).all()
    assert moved[~below].max() == 0
    assert sweep.n_without_effect == (~below).sum() > 0


def test_negated_is_signed_with_the_other_sign(
    prepared: Callable[..., tuple[HFBackend, ActivationCache, SignedItems]],
) -> None:
    backend, cache, signed = prepared()
    sweep = sweep_steering(cache, signed, backend, alphas=[1], n_random=2)
    opposite = replace(signed, decision_values=-signed.decision_values)
    other = sweep_steering(cache, opposite, backend, alphas=[1], n_random=2)
    by = {(c.condition, c.draw): row for row, c in enumerate(sweep.cells)}
    assert np.array_equal(sweep.logits[by["signed", ""]], other.logits[by["negated", ""]])
    assert np.array_equal(sweep.logits[by["random", "+0"]], other.logits[by["random", "-0"]])


def test_directions_of_a_fold_never_see_its_labels(
    prepared: Callable[..., tuple[HFBackend, ActivationCache, SignedItems]],
) -> None:
    _, cache, signed = prepared()
    for fold in range(5):
        inside = signed.fold == fold
        before = fold_direction(cache, 1, training=~inside)
        all_items = fold_direction(cache, 1)
        labels = cache.label.copy()
        labels[inside] = 1 - labels[inside]

        class Relabelled:
            label = labels

            def __getattr__(self, name: str) -> Any:
                return getattr(cache, name)

        relabelled: Any = Relabelled()
        after = fold_direction(relabelled, 1, training=~inside)
        assert np.array_equal(after.vector, before.vector)
        assert not np.allclose(fold_direction(relabelled, 1).vector, all_items.vector)


def test_fixed_layers_use_the_decision_of_that_layer(
    prepared: Callable[..., tuple[HFBackend, ActivationCache, SignedItems]],
) -> None:
    backend, cache, signed = prepared()
    sweep = sweep_steering(cache, signed, backend, alphas=[1], layers=[0, 2], n_random=2)
    assert [cell.layer for cell in sweep.cells if cell.condition == "signed"] == ["0", "2"]
    assert set(sweep.chosen) == {("0", 1.0)}
    single = sweep_steering(cache, signed, backend, alphas=[1], layers=[2], n_random=2)
    first = [c.layer + c.condition for c in sweep.cells].index("2signed")
    second = [c.layer + c.condition for c in single.cells].index("2signed")
    # Up to rounding: how many rows go through a block together depends on the grid.
    np.testing.assert_allclose(sweep.logits[first], single.logits[second], rtol=1e-5, atol=1e-5)


def test_the_folder_holds_cells_logits_and_summary(
    tmp_path: Path, prepared: Callable[..., tuple[HFBackend, ActivationCache, SignedItems]]
) -> None:
    backend, cache, signed = prepared()
    sweep = sweep_steering(cache, signed, backend, alphas=[1, 4], n_random=4)
    summary = write_steering(tmp_path / "steer", sweep)
    assert summary["quoted_alpha"] == 4
    assert set(summary["conditions"]) == {"baseline", "signed", "negated", "random"}
    assert summary["random_directions"] == 4
    (signed_row,) = sweep.cells_of("nested", 4.0, "signed")
    assert (sweep.quoted("signed") == signed_row).all()
    assert summary["conditions"]["signed"]["accuracy"] == sweep.correct[signed_row].mean()
    gap = sweep.correct[signed_row].mean() - sweep.correct[0].mean()
    assert summary["signed_minus_baseline"]["value"] == pytest.approx(gap)
    lines = (tmp_path / "steer" / "cells.csv").read_text().splitlines()
    assert lines[0] == (
        "layer,alpha,alpha_absolute,condition,accuracy,true_recall,false_recall,macro_f1,"
        "non_answers,flips_to_right,flips_to_wrong"
    )
    # Three conditions at alpha 0, 1 and 4.
    assert len(lines) == 1 + 3 * 3
    assert len((tmp_path / "steer" / "draws.csv").read_text().splitlines()) == 1 + len(sweep.cells)


def test_what_does_not_belong_together_is_refused(
    tmp_path: Path,
    tiny_backend: Callable[..., HFBackend],
    prepared: Callable[..., tuple[HFBackend, ActivationCache, SignedItems]],
) -> None:
    backend, cache, signed = prepared()
    with pytest.raises(SteeringError, match=r"another model.*weights"):
        sweep_steering(cache, signed, tiny_backend(seed=1), alphas=[1])
    for alphas in ([0], [], [-1], [float("nan")]):
        with pytest.raises(SteeringError, match="--alphas"):
            sweep_steering(cache, signed, backend, alphas=alphas)
    with pytest.raises(SteeringError, match="at least 1"):
        sweep_steering(cache, signed, backend, alphas=[1], n_random=0)
    source = cache.manifest["source"] | {"view": "statement"}
    elsewhere = replace(signed, manifest=cache.manifest | {"source": source})
    with pytest.raises(SteeringError, match=r"another cache.*source\.view"):
        sweep_steering(cache, elsewhere, backend, alphas=[1])
    with pytest.raises(SteeringError, match="not finite under steering"):
        sweep_steering(cache, signed, backend, alphas=[1e38])
    other, stub_cache, stub_signed = prepared("gpt2", token_rule="answer_stub")
    with pytest.raises(SteeringError, match="--token last_prompt"):
        sweep_steering(stub_cache, stub_signed, other, alphas=[1])


def test_items_without_labels_have_no_direction(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend]
) -> None:
    items = [
        Item(i.item_id, i.messages, None, "open", i.group_id, i.category, i.metadata)
        for i in load_items(open_source("facts"), n=8)
    ]
    source = describe_source(open_source("facts"), items, view=None, seed=0)
    with extract(tiny_backend(), items, tmp_path / "c.h5", source=source) as cache:
        assert cache.label.tolist() == [-1] * 8
        with pytest.raises(SteeringError, match="no label"):
            fold_direction(cache, 0)
