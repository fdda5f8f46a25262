"""A folder that is written anew shows nothing of what stood there, even where that is stopped."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import peft
import pytest
from adapter_models import llama, save_case
from audits import one
from commands import invoke, ok
from probe_sweeps import sweep, twins
from steering_grids import right, sweep_of

from figures import draw_adapters, draw_probe, draw_steering_sweep
from figures.behaviour import FIGURES as BEHAVIOUR
from interp import Item, write_answers, write_items
from interp.adapters import write_audits
from interp.files import drawn_files, replaced_together
from interp.grading import Answer
from probes import write_sweep
from steering import write_steering


class Stopped(Exception):
    """In place of a kill."""


def stops(*_: object, **__: object) -> None:
    raise Stopped


def shown(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def stale(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("of an older one")


def probe(folder: Path) -> None:
    write_sweep(folder, sweep(twins(np.random.default_rng(0))))


def steer(folder: Path) -> None:
    write_steering(folder, sweep_of({("baseline", ""): right(40), ("signed", ""): right(60)}))


def unco(folder: Path) -> None:
    tasks, log = folder / "w" / "tasks.jsonl", folder / "w" / "log.jsonl"
    ok("unco", "build", "--groups", 1, "--seed", 0, "--out", tasks)
    ok("unco", "play", tasks, "--agent", "oracle", "--out", log)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("figures.unco.draw_unco", stops)
        with pytest.raises(Stopped):
            invoke("unco", "report", log, "--out", folder)


def adapters(folder: Path) -> None:
    save_case(folder / "a", llama, peft.LoraConfig(r=2, target_modules=["q_proj"]), scale=0.01)
    write_audits(folder, [one(folder / "a" / "adapter")])


@pytest.mark.parametrize(
    ("write", "old"),
    [
        (probe, ("transfer.csv", *drawn_files("accuracy_by_layer", below=""), "report.html")),
        (
            steer,
            (*drawn_files("dose_response", "recalls", "grid", "item_shifts"), "report.html"),
        ),
        (unco, ("recovery.csv", *drawn_files("unco"))),
        (adapters, ("compared.csv", *drawn_files("heat_map", "spectrum", "trajectory"))),
    ],
)
def test_figures_and_tables_go_with_the_summary_they_show(
    write: Callable[[Path], None], old: tuple[str, ...], tmp_path: Path
) -> None:
    stale(tmp_path, *old, "notes.txt")
    write(tmp_path)
    left = [name for name in old if (tmp_path / name).exists()]
    assert [name for name in left if "of an older one" in (tmp_path / name).read_text()] == []
    assert not [name for name in left if not name.endswith(".csv")]
    # What is not of such a folder is kept.
    assert "notes.txt" in shown(tmp_path)


def test_those_are_the_figures_that_are_drawn(tmp_path: Path) -> None:
    """Else the list above would miss one that is drawn."""
    for write, draw in (
        (probe, lambda folder: [draw_probe(folder)]),
        (steer, draw_steering_sweep),
        (adapters, draw_adapters),
    ):
        folder = tmp_path / write.__name__
        write(folder)
        drawn = {path.name for path in draw(folder)}
        assert drawn
        write(folder)
        assert not {Path(name).name for name in shown(folder)} & drawn


def test_a_report_on_behaviour(
    tmp_path: Path, facts: tuple[Item, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_items(tmp_path / "items.jsonl", facts)
    said = [
        Answer(i.item_id, "greedy", True, i.label is True, True, "ANSWER: True", 3, None, None)
        for i in facts
    ]
    write_answers(tmp_path / "a.jsonl", said)
    out = tmp_path / "out"
    old = ("probe.csv", "injection.csv", "behaviour.json", *drawn_files(*BEHAVIOUR))
    stale(out, *old)
    monkeypatch.setattr("figures.draw_behaviour", stops)
    with pytest.raises(Stopped):
        invoke(
            *("behave", "report", tmp_path / "a.jsonl", "--items", tmp_path / "items.jsonl"),
            *("--out", out),
        )
    assert shown(out) & set(old) == {"behaviour.json"}
    assert "of an older one" not in (out / "behaviour.json").read_text()


@pytest.mark.parametrize("at", ["writing", "moving", "last"])
def test_a_writer_that_is_stopped(at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale(tmp_path, "a.csv", "b.csv", "done.json", "figure.png")
    before = shown(tmp_path)
    move = Path.replace

    def moves(path: Path, target: Path) -> Path:
        if at == "moving" or target.name == "done.json":
            raise Stopped
        return move(path, target)

    with (
        pytest.raises(Stopped),
        replaced_together(tmp_path, last="done.json", gone=("figure.png",)) as aside,
    ):
        for name in ("done.json", "a.csv"):
            (aside / name).write_text("new")
        if at == "writing":
            raise Stopped
        monkeypatch.setattr(Path, "replace", moves)
    if at == "writing":
        assert shown(tmp_path) == before
        assert (tmp_path / "done.json").read_text() == "of an older one"
    else:
        # Without the last file a folder is not finished, and no figure shows otherwise.
        assert shown(tmp_path) == {"a.csv", "b.csv"}
        assert (tmp_path / "a.csv").read_text() == "new" if at == "last" else "of an older one"
