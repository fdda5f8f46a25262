"""`interp probe`, `probe-compare` and `direction` as a user meets them, on a tiny model."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from commands import ok, refused

from activations import ActivationCache
from figures.expression_gap import draw_accuracy_by_layer
from interp.direction import read_direction
from probes import C_GRID, fit_probe, probe_direction, read_sweep, sweep_layers


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    """Activations of eighty generated statements."""
    path = tmp_path_factory.mktemp("cache") / "facts.h5"
    base = ("extract", "--model", model_folder, "--source", "facts", "--n", 80)
    ok(*base, "--device", "cpu", "--out", path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """A probe folder with all controls."""
    path = tmp_path_factory.mktemp("probe") / "probe"
    ok("probe", cache, "--permutations", 30, "--out", path)
    return path


def test_a_sweep_comes_with_its_controls(folder: Path) -> None:
    summary: dict[str, Any] = json.loads((folder / "probe.json").read_text())
    assert summary["scheme"] == "group_flip"
    assert summary["solver"] == "batched"
    assert summary["relative_gradient"] <= 1e-7
    assert 1 / 31 <= summary["p_familywise"] <= 1
    assert set(summary["text_baselines"]) == {"statement", "prompt", "length"}
    assert summary["text_baseline_accuracy"] == max(summary["text_baselines"].values())
    assert summary["verdict"].startswith("Decodable beyond wording: ")
    with h5py.File(folder / "probes.h5") as file:
        null = file["null_scores"][:]
        decisions, label = file["decision_values"][:], file["label"][:].astype(bool)
    assert null.shape == (3, 30)
    # The p-values follow from the file.
    observed = ((decisions > 0) == label[:, None]).mean(axis=0)
    best = (1 + (null.max(axis=0) >= observed.max() - 1e-9).sum()) / 31
    assert summary["p_familywise"] == pytest.approx(best)


def test_both_solvers_print_the_same_numbers(cache: Path, folder: Path, tmp_path: Path) -> None:
    base = ("probe", cache, "--permutations", 30, "--json")
    reference = json.loads(ok(*base, "--solver", "sklearn", "--out", tmp_path / "r").stdout)
    ours = json.loads((folder / "probe.json").read_text())
    assert reference["solver"] == "sklearn"
    for name in ("accuracy_nested", "layers_nested", "p_familywise", "text_baseline_accuracy"):
        assert reference[name] == ours[name]
    np.testing.assert_array_equal(
        read_sweep(tmp_path / "r").null_scores, read_sweep(folder).null_scores
    )


def test_the_table_says_what_to_quote_and_what_follows(cache: Path, tmp_path: Path) -> None:
    printed = ok("probe", cache, "--C", "auto", "--permutations", 5, "--out", tmp_path / "p").stdout
    for words in (
        "quote this",
        "optimistic",
        "text alone",
        "5 label permutations (group_flip)",
        "Decodable beyond wording",
        "median of the choices",
    ):
        assert words in printed.replace("\n", " "), words
    assert set(read_sweep(tmp_path / "p").C.ravel()) <= set(C_GRID)
    # What the model says itself stands beside it, and all of it in the figure.
    with ActivationCache.open(cache) as opened:
        own = (opened.answer_logits[:, 0] > opened.answer_logits[:, 1]) == (opened.label == 1)
    summary = json.loads((tmp_path / "p" / "probe.json").read_text())
    assert summary["accuracy_own_answer"] == own.mean()
    assert "the model's own forced choice" in printed
    drawn = draw_accuracy_by_layer(summary).legends[0].get_texts()
    names = {text.get_text() for text in drawn}
    assert {"the model's own forced choice", "labels permuted, 95% of draws", "chance"} <= names
    assert (tmp_path / "p" / "accuracy_by_layer.png").stat().st_size > 10_000
    bare = ok("probe", cache, "--permutations", 0, "--no-text-baselines", "--out", tmp_path / "q")
    assert "Not tested" in bare.stdout
    assert "text alone" not in bare.stdout


def test_held_out_categories_and_the_control_task_are_printed(cache: Path, tmp_path: Path) -> None:
    base = ("probe", cache, "--permutations", 0, "--no-text-baselines", "--out", tmp_path / "p")
    printed = ok(*base, "--transfer", "category,template").stdout.replace("\n", " ")
    for words in ("Each category held out", "Each template held out", "capitals", "not applicable"):
        assert words in printed, words
    assert "types that recur across folds)" in printed
    summary = json.loads((tmp_path / "p" / "probe.json").read_text())
    assert set(summary["transfer"]) == {"category", "template"}
    assert len(summary["transfer"]["category"]) == 4


def test_a_probe_without_c_is_printed_without_one(cache: Path, tmp_path: Path) -> None:
    base = ("probe", cache, "--permutations", 19, "--no-text-baselines", "--out", tmp_path / "p")
    printed = ok(*base, "--probe", "lda").output
    assert "lda, which has no C" in printed and "C =" not in printed
    assert "C = 0.01" in ok(*base, "--probe", "ridge").output


def test_random_weights_of_the_same_architecture(
    cache: Path, model_folder: Path, tmp_path: Path
) -> None:
    base = ("probe", cache, "--permutations", 0, "--no-text-baselines", "--out", tmp_path / "p")
    # The cache names its model by the folder's name, which is no place to find it.
    message = refused(*base, "--untrained")
    assert "which the cache names but does not hold" in message
    assert "--model goes with --untrained" in refused(*base, "--model", model_folder)
    # The model here is one of random weights itself, drawn with seed 0.
    printed = ok(*base, "--untrained", "--model", model_folder, "--seed", 5).stdout
    assert "random weights" in printed
    assert "Beyond random weights: no, p = " in printed
    found = json.loads((tmp_path / "p" / "probe.json").read_text())["untrained"]
    trained, drawn = ActivationCache.open(cache), ActivationCache.open(tmp_path / "p/untrained.h5")
    with trained, drawn:
        assert drawn.item_id == trained.item_id
        assert drawn.manifest["source"] == trained.manifest["source"]
        assert drawn.manifest["model"]["weights"] != trained.manifest["model"]["weights"]
        assert not np.allclose(drawn.resid_post(2), trained.resid_post(2), atol=0.1)
        sweep = read_sweep(tmp_path / "p")
        again = sweep_layers(drawn, folds=sweep.fold)
    assert found["accuracy_nested"] == again.correct_nested.mean()
    assert found["accuracy_by_layer"] == again.correct.mean(axis=0).tolist()
    gain = sweep.correct_nested.astype(float) - again.correct_nested
    assert found["gain"]["value"] == pytest.approx(gain.mean())


def test_folds_from_a_file(cache: Path, folder: Path, tmp_path: Path) -> None:
    sweep = read_sweep(folder)
    given = {item: int(4 - fold) for item, fold in zip(sweep.item_id, sweep.fold, strict=True)}
    path = tmp_path / "folds.json"
    path.write_text(json.dumps(given))
    base = ("probe", cache, "--permutations", 0, "--fold-file", path, "--out", tmp_path / "p")
    ok(*base)
    again = read_sweep(tmp_path / "p")
    assert again.fold.tolist() == list(given.values())
    np.testing.assert_allclose(again.decision_values, sweep.decision_values, atol=1e-6)
    # A sweep's own folds come as such a file.
    written = folder / "folds.json"
    ok("probe", cache, "--permutations", 0, "--fold-file", written, "--out", tmp_path / "q")
    assert (read_sweep(tmp_path / "q").fold == sweep.fold).all()
    path.write_text(json.dumps(given | {sweep.item_id[0]: (given[sweep.item_id[0]] + 1) % 5}))
    assert "cut group" in refused(*base)
    assert "There is no file" in refused(*base[:-3], tmp_path / "none.json", *base[-2:])


def test_two_sweeps_are_compared_on_the_same_items(
    cache: Path, folder: Path, tmp_path: Path
) -> None:
    ok("probe", cache, "--permutations", 0, "--C", 1, "--out", tmp_path / "p")
    found = json.loads(ok("probe-compare", folder, tmp_path / "p", "--json").stdout)
    first, second = read_sweep(folder), read_sweep(tmp_path / "p")
    gap = first.correct_nested.mean() - second.correct_nested.mean()
    assert found["difference"]["value"] == pytest.approx(gap)
    assert "McNemar" in ok("probe-compare", folder, tmp_path / "p").stdout
    # Both spellings are one command.
    again = ok("probe", "compare", folder, tmp_path / "p", "--json").stdout
    assert json.loads(again) == found
    assert "paired: A minus B" in ok("probe", "compare", "--help").stdout
    assert "no probe folder" in refused("probe", "compare", folder, tmp_path / "none")


def test_a_direction_from_probe_weights(cache: Path, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    base = ("direction", cache, "--layer", 1, "--method", "probe", "--out", path)
    ok(*base, "--probe", folder, "--without-fold", 2)
    sweep = read_sweep(folder)
    kept = sweep.fold != 2
    with h5py.File(cache) as file:
        x = file["resid_post"][:, 1]
    weight = fit_probe(x[kept], sweep.label[kept], C=0.01).weight
    found = read_direction(path)
    assert (found.method, found.n_true + found.n_false) == ("probe", kept.sum())
    np.testing.assert_allclose(found.vector, weight / np.linalg.norm(weight), atol=1e-5)
    assert "probe direction at layer 1" in ok(*base, "--C", 1).stderr
    assert not np.allclose(read_direction(path).vector, found.vector, atol=1e-3)
    assert "--C is -1" in refused(*base, "--C", -1)


def test_probes_of_another_kind_and_their_directions(cache: Path, tmp_path: Path) -> None:
    base = ("probe", cache, "--permutations", 0, "--no-text-baselines", "--out", tmp_path / "p")
    printed = ok(*base, "--probe", "mass_mean", "--C", "auto", "--one-standard-error").stdout
    assert "Probe (mass_mean)" in printed
    sweep = read_sweep(tmp_path / "p")
    assert (sweep.probe, sweep.one_standard_error) == ("mass_mean", True)
    path = tmp_path / "d.npz"
    base = ("direction", cache, "--layer", 1, "--out", path)
    ok(*base, "--kind", "probe", "--probe", tmp_path / "p", "--without-fold", 0)
    with ActivationCache.open(cache) as opened:
        expected = probe_direction(
            opened, 1, C=sweep.C[1, 0], training=sweep.fold != 0, kind="mass_mean"
        )
    np.testing.assert_allclose(read_direction(path).vector, expected.vector, atol=1e-6)
    assert read_direction(path).method == "probe_mass_mean"
    ok(*base, "--kind", "lda")
    assert read_direction(path).method == "probe_lda"
    message = refused("probe", cache, "--probe", "lda", "--solver", "sklearn", "--out", tmp_path)
    assert "goes with --probe logistic" in message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--transfer", "topic"], "--transfer has 'topic'; expected category or template"),
        (["--C", "big"], "--C is 'big'; expected a positive number"),
        (["--C", "0"], "expected a positive number"),
        (["--C", "nan"], "expected a positive number"),
    ],
)
def test_bad_options_get_one_paragraph(
    cache: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    assert words in refused("probe", cache, "--out", tmp_path / "p", *arguments)
    assert not (tmp_path / "p").exists()


def test_a_row_of_an_unfinished_cache_is_named(cache: Path, tmp_path: Path) -> None:
    copied = tmp_path / "stopped.h5"
    copied.write_bytes(cache.read_bytes())
    with h5py.File(copied, "r+") as file:
        file["done"][2:4] = False
        name = file["item_id"].asstr()[2]
    words = refused("probe", copied, "--out", tmp_path / "p")
    assert f"2 unfinished rows (first: '{name}')" in " ".join(words.split())
    assert not (tmp_path / "p").exists()
