"""A sweep with `--group none` leaks; all that is made from it says so, on screen and in files."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import ok

from figures.expression_gap import draw_accuracy_by_layer, draw_four_way, draw_steering
from figures.steering import draw_dose_response
from figures.steering_tables import read_cells
from interp.direction import read_direction
from interp.vocabulary import GROUPS_IGNORED

SAID = "GROUPS WERE IGNORED"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    """A cache, a probe with groups whole and one that ignored them."""
    folder = tmp_path_factory.mktemp("ignored")
    cache = folder / "facts.h5"
    ok("extract", "--source", "facts", "--n", 40, "--model", model_folder, "--out", cache)
    base = ("probe", cache, "--permutations", 0, "--no-text-baselines")
    ok(*base, "--out", folder / "whole")
    printed = ok(*base, "--group", "none", "--out", folder / "leaks")
    assert SAID in printed.stdout
    assert "quote this" not in printed.stdout
    assert "leaks: do not quote" in printed.stdout
    return folder


def legend(summary: dict[str, Any]) -> str:
    return " ".join(t.get_text() for t in draw_accuracy_by_layer(summary).legends[0].get_texts())


def test_the_figure_says_what_not_to_quote(made: Path) -> None:
    leaks, whole = (json.loads((made / n / "probe.json").read_text()) for n in ("leaks", "whole"))
    assert "not to quote" in legend(leaks)
    assert "(to quote)" in legend(whole)


@pytest.mark.parametrize(
    ("first", "second", "which"),
    [
        ("leaks", "whole", "the first sweep"),
        ("whole", "leaks", "the second sweep"),
        ("leaks", "leaks", "both sweeps"),
        ("whole", "whole", None),
    ],
)
def test_a_comparison(made: Path, first: str, second: str, which: str | None) -> None:
    base = ("probe", "compare", made / first, made / second)
    found = json.loads(ok(*base, "--json").stdout)
    assert found["grouping"] == {
        "first": "none" if first == "leaks" else "group",
        "second": "none" if second == "leaks" else "group",
    }
    printed = " ".join(ok(*base).stdout.split())
    if which is None:
        assert found["verdict"].startswith("The nested")
        assert SAID not in printed
    else:
        assert found["verdict"].startswith(f"{GROUPS_IGNORED} (in {which}): The nested")
        assert printed.count(SAID) == (first == "leaks") + (second == "leaks")


def test_steering(made: Path, model_folder: Path) -> None:
    for name, says in (("leaks", True), ("whole", False)):
        out = made / f"steer-{name}"
        result = ok(
            *("steer", made / "facts.h5", "--probe", made / name, "--model", model_folder),
            *("--layers", 1, "--alphas", 2, "--random-directions", 2, "--out", out),
        )
        assert (SAID in result.stderr) == says
        assert (GROUPS_IGNORED in result.stdout) == says
        summary = json.loads((out / "steer.json").read_text())
        assert summary["grouping"] == ("none" if says else "group")
        assert summary["verdict"].startswith(f"{GROUPS_IGNORED}: ") == says
        cells = read_cells(out / "draws.csv")
        titles = (
            draw_dose_response(cells, summary).get_suptitle(),
            draw_steering(summary).axes[0].get_title(loc="left"),
        )
        assert all(title.startswith(GROUPS_IGNORED) == says for title in titles)
    ok("report", made / "steer-leaks")
    assert f"{GROUPS_IGNORED}: " in (made / "steer-leaks" / "report.html").read_text()


def test_a_direction(made: Path) -> None:
    path = made / "d.npz"
    base = ("direction", made / "facts.h5", "--layer", 1, "--without-fold", 0, "--out", path)
    result = ok(*base, "--probe", made / "leaks", "--json")
    assert SAID in result.stderr
    assert json.loads(result.stdout)["details"]["grouping"] == "none"
    assert read_direction(path).details["grouping"] == "none"
    result = ok(*base, "--probe", made / "whole", "--json")
    assert SAID not in result.stderr
    assert "grouping" not in json.loads(result.stdout)["details"]


def test_drift(made: Path) -> None:
    base = ("drift", made / "facts.h5", made / "facts.h5")
    rows = json.loads(ok(*base, "--group", "none", "--json").stdout)
    assert {row["grouping"] for row in rows} == {"none"}
    assert SAID in ok(*base, "--group", "none").stdout
    assert SAID not in ok(*base).stdout


def test_an_expression_gap(model_folder: Path, tmp_path: Path) -> None:
    ok(
        *("run", "expression-gap", "--model", model_folder, "--source", "facts", "--n", 40),
        *("--max-new-tokens", 2, "--random-directions", 2, "--permutations", 2, "--device", "cpu"),
        *("--group", "none", "--out", tmp_path / "gap"),
    )
    readouts = json.loads((tmp_path / "gap" / "readouts.json").read_text())
    assert readouts["grouping"] == "none"
    assert readouts["verdict"].startswith(f"{GROUPS_IGNORED}: ")
    assert draw_four_way(readouts).axes[0].get_title(loc="left").startswith(GROUPS_IGNORED)
    steering = json.loads((tmp_path / "gap" / "steer" / "steer.json").read_text())
    assert steering["verdict"].startswith(f"{GROUPS_IGNORED}: ")
