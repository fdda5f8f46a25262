"""Side effects of steering: answers in words, divergence, perplexity."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from steering_grids import (
    vector_of,
)

from activations import ActivationCache, HFBackend
from activations.head import verdict_head
from interp.direction import unit_direction
from interp.grading import parse_verdict
from steering import SignedItems, add, steer, sweep_steering
from steering.effects import neutral_texts, side_effects
from steering.plan import make_plan
from steering.results import BASELINE, Cell
from steering.sweep import make_settings

Prepared = Callable[..., tuple[HFBackend, ActivationCache, SignedItems]]


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
