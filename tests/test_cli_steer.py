"""`interp steer` as a user runs it."""

import csv
import json
from pathlib import Path

import pytest
from commands import ok, refused

from interp.errors import InterpError

COLUMNS = (
    "layer,alpha,alpha_absolute,condition,accuracy,true_recall,false_recall,macro_f1,non_answers,"
    "flips_to_right,flips_to_wrong"
)


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("steer")
    cache = folder / "facts.h5"
    ok("extract", "--source", "facts", "--n", 40, "--model", model_folder, "--out", cache)
    ok("probe", cache, "--permutations", 0, "--no-text-baselines", "--out", folder / "probe")
    return folder


def test_a_grid_with_all_conditions(probed: Path, model_folder: Path) -> None:
    every = "signed,oracle,fixed,negated,random,shuffled,orthogonal,writer,text"
    arguments = (
        *("steer", probed / "facts.h5", "--probe", probed / "probe", "--model", model_folder),
        *("--layers", "0,1", "--alphas", "1,8", "--conditions", every),
        *("--random-directions", 3, "--control-draws", 2, "--json"),
    )
    result = ok(*arguments, "--out", probed / "fast")
    assert "--alphas has no 0; it is added" in result.stderr
    summary = json.loads(result.stdout)
    assert summary == json.loads((probed / "fast" / "steer.json").read_text())
    assert summary["chosen_on_inner_folds"]
    assert summary["fast_path"]["used"]
    assert summary["random_directions"] == 4
    assert summary["null"]["p_value"] is None
    assert summary["verdict"].endswith(".")
    assert "writer" in summary["cosines"][0]["names"]
    lines = (probed / "fast" / "cells.csv").read_text().splitlines()
    assert lines[0] == COLUMNS
    rows = list(csv.DictReader(lines))
    # Eight conditions at three sizes and `text` at none, at two layers.
    assert len(rows) == 2 * (8 * 3 + 1)
    unsteered = {row["accuracy"] for row in rows if row["alpha"] == "0.0"}
    assert len(unsteered) == 1
    assert all(
        (probed / "fast" / "figures" / f"{name}.png").exists() for name in ("grid", "recalls")
    )
    plain = ok(*arguments, "--plain", "--out", probed / "plain")
    assert "from the first token: --plain" in plain.stderr
    assert (probed / "plain" / "cells.csv").read_text() == (
        probed / "fast" / "cells.csv"
    ).read_text()


def test_what_cannot_be_run_is_refused_in_one_paragraph(probed: Path, model_folder: Path) -> None:
    start = ("steer", probed / "facts.h5", "--probe", probed / "probe", "--model", model_folder)
    for options, words in (
        (("--layers", "0,9"), "Layer 9 is out of range"),
        (("--conditions", "signed,sign"), "no steering condition 'sign'"),
        (("--positions", "last"), "Did you mean last_prompt?"),
        (("--alphas", "0"), "expected positive numbers"),
        (("--random-directions", "0"), "--random-directions is 0"),
    ):
        assert words in refused(*start, *options, "--out", probed / "no")
    assert not (probed / "no").exists()


def test_the_grid_is_on_disk_before_the_side_effects(
    probed: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (
        *("steer", probed / "facts.h5", "--probe", probed / "probe", "--model", model_folder),
        *("--conditions", "signed,random", "--random-directions", 2, "--generate", 5),
        *("--max-new-tokens", 3),
    )

    def killed(*_: object, **__: object) -> None:
        raise InterpError("stopped here")

    with monkeypatch.context() as patch:
        patch.setattr("steering.effects.side_effects", killed)
        assert "stopped here" in refused(*arguments, "--out", probed / "stopped")
    before = json.loads((probed / "stopped" / "steer.json").read_text())
    assert before["verdict"]
    assert (probed / "stopped" / "figures" / "grid.png").exists()
    ok(*arguments, "--out", probed / "whole")
    after = json.loads((probed / "whole" / "steer.json").read_text())
    generated = after.pop("generated")
    assert after == before
    assert set(generated) == {"baseline", "signed", "random"}
    columns = {"macro_f1", "true_recall", "flips_to_right", "flips_to_wrong", "kl", "perplexity"}
    assert columns <= set(generated["signed"])
    assert generated["baseline"]["flips_to_right"] == generated["baseline"]["kl"] == 0
