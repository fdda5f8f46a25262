"""Steering grids that take a projection out or set it, and along other directions."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ok, refused
from steering_grids import relabelled, right, sweep_of

from activations import ActivationCache, HFBackend
from experiments.steer_inputs import KINDS, signed_items, steered_direction
from interp.direction import unit_direction, write_direction, write_directions
from interp.errors import SteeringError
from probes import sweep_layers
from steering import SignedItems, clamp, project_out, steer, sweep_steering
from steering.plan import make_plan
from steering.results import BASELINE, Cell, cell_rows
from steering.summary import summarise
from steering.sweep import make_settings, verdict_head_of

Prepared = Callable[..., tuple[HFBackend, ActivationCache, SignedItems]]
CONDITIONS = {"clamp": ("signed", "random", "writer"), "project_out": ("fixed", "random", "writer")}


def settings(cache: ActivationCache, **changes: Any) -> Any:
    fields: dict[str, Any] = {"alphas": [2.0], "layers": [1], "conditions": ("signed",)}
    fields |= {"alpha_unit": "median", "n_random": 2, "n_control": 2, "seed": 0}
    return make_settings(cache, **fields | changes)


@pytest.mark.parametrize("kind", ["clamp", "project_out"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "gpt2"])
def test_a_grid_is_the_same_with_plain_passes_and_by_hand(
    family: str, kind: Any, prepared: Prepared
) -> None:
    backend, cache, signed = prepared(family)
    prompts = backend.tokenize(cache.items())
    ids = backend.verdict_ids(prompts)
    head = verdict_head_of(backend, ids.true_id, ids.false_id)
    for positions in ("last_prompt", "generated", "all"):
        options: dict[str, Any] = {"alphas": [2], "layers": [0, 1], "n_random": 2}
        options |= {"conditions": CONDITIONS[kind], "positions": positions, "intervention": kind}
        fast = sweep_steering(cache, signed, backend, **options)
        plain = sweep_steering(cache, signed, backend, **options, plain=True)
        assert fast.settings["fast_path"]["used"]
        gap = np.linalg.norm(fast.logits - plain.logits, axis=-1)
        assert (gap <= 1e-4 * np.linalg.norm(plain.logits, axis=-1)).all()
        # A control: every cell does something.
        assert (np.abs(fast.logits[1:] - fast.logits[0]).max(axis=(1, 2)) > 1e-3).all()
        # Items of another fold than the first, alone, through the hooks.
        lead = CONDITIONS[kind][0]
        (cell,) = fast.cells_of("1", 2.0, lead)
        conditions = {name: options[name] for name in ("conditions", "intervention")}
        cells, plans, _, _ = make_plan(cache, signed, settings(cache, **conditions), head)
        for row in (3, 11):
            plan = plans[signed.fold[row]]
            (index,) = np.flatnonzero(plan.cells == cells.index(Cell("1", 2.0, lead)))
            made = unit_direction(
                plan.vectors[plan.which[index]],
                method="by hand",
                layer=1,
                median_norm=1.0,
                model_id="",
                token_rule="last_prompt",
            )
            amount = float(plan.coefficients[index, list(plan.rows).index(row)])
            assert amount == 2 if kind == "project_out" else abs(amount) > 2
            edit = {"clamp": clamp, "project_out": project_out}[kind]
            with steer(
                backend,
                [edit(made, amount, positions=positions)],
                prompt_lengths=[len(prompts[row].ids)],
            ):
                expected = backend.logits([prompts[row].ids_with_stub], [ids.true_id, ids.false_id])
            np.testing.assert_allclose(fast.logits[cell, row], expected[0], rtol=1e-5, atol=2e-5)


def test_what_has_no_sign_is_not_signed_and_has_no_pairs(prepared: Prepared) -> None:
    _, cache, signed = prepared()
    made = settings(cache, conditions=("fixed", "random"), intervention="project_out", n_random=6)
    cells, plans, push, absolute = make_plan(cache, signed, made, None)
    draws = [cell.draw for cell in cells if cell.condition == "random"]
    assert draws == [f"+{number}" for number in range(6)]
    vectors = plans[0].vectors[plans[0].which]
    assert np.linalg.matrix_rank(vectors) == 7
    assert (push == 1).all()
    assert (absolute == 2).all()
    with pytest.raises(SteeringError, match="has no condition signed, text"):
        settings(cache, conditions=("text", "signed", "fixed"), intervention="project_out")
    with pytest.raises(SteeringError, match="shares of the projection"):
        settings(cache, conditions=("fixed",), intervention="project_out", alpha_unit="absolute")


def test_the_verdict_on_a_projection_taken_out_is_about_its_change() -> None:
    base, worse = right(80), np.arange(100) < 20
    cells = {(BASELINE, ""): base, ("fixed", ""): worse, ("writer", ""): base}
    draws = {("random", f"+{number}"): base if number else right(10) for number in range(99)}
    sweep = sweep_of(cells | draws, settings={"positions": "all", "intervention": "project_out"})
    summary = summarise(sweep, cell_rows(sweep))
    verdict = summary["verdict"]
    assert verdict.startswith("Taking the projection on the class mean out lowers the accuracy")
    assert "less than taking out random directions" in verdict
    assert "signs alone" not in verdict
    # One random direction changes more, so it and the direction itself are as extreme.
    assert summary["null"]["p_value"] == pytest.approx(2 / 100)
    assert summary["null"]["fixed"] == pytest.approx(0.6)
    given = replace(
        sweep,
        settings={
            "intervention": "clamp",
            "direction": "file x.npz",
            "direction_fitted_by_fold": False,
        },
    )
    words = summarise(given, cell_rows(given))["verdict"]
    assert words.startswith("The direction is given, and may have been fitted to these items")


@pytest.mark.parametrize("kind", KINDS[1:])
def test_directions_are_fitted_without_the_fold(kind: str, prepared: Prepared) -> None:
    _, cache, _ = prepared()
    sweep = sweep_layers(cache, C=0.1, seed=0, wording=False)
    signed = signed_items(sweep)

    def vectors(of: Any) -> np.ndarray:
        along, layers = steered_direction(of, sweep, kind, [1])
        assert along is not None
        assert layers == [1]
        cells, plans, _, _ = make_plan(of, signed, settings(of, direction=along), None)
        place = cells.index(Cell("1", 2.0, "signed"))
        return np.stack(
            [plan.vectors[plan.which[np.flatnonzero(plan.cells == place)[0]]] for plan in plans]
        )

    honest = vectors(cache)
    other = cache.label.copy()
    inside = sweep.fold == 2
    other[inside] = np.random.default_rng(1).permutation(other[inside])
    found = vectors(relabelled(cache, other.astype(bool)))
    # Labels of the fold itself change nothing for it, and do for every other fold.
    assert np.array_equal(found[2], honest[2])
    for fold in (0, 1, 3, 4):
        assert not np.allclose(found[fold], honest[fold], atol=1e-3)
    # It points to True on the items that it was fitted on, and is no class mean.
    stream, label = cache.resid_post(1), cache.label.astype(bool)
    along = stream[~inside] @ honest[2]
    assert along[label[~inside]].mean() > along[~label[~inside]].mean()
    _, plans, _, _ = make_plan(cache, signed, settings(cache), None)
    own = plans[2].vectors[plans[2].which[np.flatnonzero(plans[2].cells == 0)[0]]]
    assert abs(own @ honest[2]) < 0.999


def test_a_file_is_said_to_be_no_evidence(
    tmp_path: Path, model_folder: Path, prepared: Prepared
) -> None:
    cache = tmp_path / "facts.h5"
    ok("extract", "--source", "facts", "--n", 40, "--model", model_folder, "--out", cache)
    ok("probe", cache, "--permutations", 0, "--no-text-baselines", "--out", tmp_path / "probe")
    base = ("steer", cache, "--probe", tmp_path / "probe", "--model", model_folder)
    base = (*base, "--random-directions", 2, "--json")
    ok("direction", cache, "--layer", 1, "--out", tmp_path / "truth.npz")
    result = ok(*base, "--direction", tmp_path / "truth.npz", "--out", tmp_path / "file")
    assert "what follows is no evidence" in result.stderr
    summary = json.loads(result.stdout)
    assert summary["verdict"].startswith("The direction is given, and may have been fitted")
    assert summary["direction"] == "file truth.npz"
    assert not summary["direction_fitted_by_fold"]
    assert summary["layers"] == ["1"]
    # Fitted by fold and taken out.
    result = ok(
        *(*base, "--direction", "probe", "--intervention", "project_out", "--layers", "1"),
        *("--alphas", "1", "--positions", "all", "--generate", 4, "--max-new-tokens", 2),
        *("--out", tmp_path / "out"),
    )
    summary = json.loads(result.stdout)
    assert summary["intervention"] == "project_out"
    assert "aking the projection on the probe's weights out" in summary["verdict"]
    assert set(summary["conditions"]) == {"baseline", "fixed", "random", "writer"}
    assert summary["quoted_alpha_absolute"] == 1
    for options, words in (
        (("--direction", "probes"), "no direction 'probes'. Did you mean probe?"),
        (("--direction", tmp_path / "no.npz"), "no.npz"),
        (("--direction", tmp_path / "truth.npz", "--layers", "0,1"), "--layers has [0]"),
        (("--intervention", "project_out", "--conditions", "signed"), "without a sign"),
    ):
        assert words in refused(*base, *options, "--out", tmp_path / "bad")
    other = unit_direction(
        np.ones(32), method="x", layer=1, median_norm=1.0, model_id="another", token_rule="all"
    )
    write_direction(tmp_path / "other.npz", other)
    message = refused(*base, "--direction", tmp_path / "other.npz", "--out", tmp_path / "bad")
    assert "read from 'another'" in message
    path = tmp_path / "two.safetensors"
    write_directions(path, [replace(other, method="file"), replace(other, method="file", layer=2)])
    assert "layers 1, 2; say with --layers which" in refused(
        *base, "--direction", path, "--out", tmp_path / "bad"
    )
    assert not (tmp_path / "bad").exists()
