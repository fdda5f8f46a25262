"""Functions that take a path take it as text too, as it is typed in a notebook."""

import importlib
import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest
from probe_sweeps import sweep
from steering_grids import right, sweep_of

from activations import ActivationCache, ModelSpec, describe_source, extract, load_backend
from activations import answer as run_answer
from figures import draw_probe, draw_steering_sweep, write_report
from interp import (
    Item,
    open_source,
    read_answers,
    read_items,
    read_run,
    write_answers,
    write_items,
)
from interp.behaviour import read_answer_sets, read_item_table
from interp.direction import read_direction, read_directions, write_direction, write_directions
from interp.errors import ResultError
from probes import probe_direction, read_folds, read_sweep, write_sweep
from steering import write_steering

PACKAGES = (
    *("interp", "activations", "probes", "steering", "figures"),
    *("interp.direction", "interp.adapters", "interp.behaviour", "interp.mast"),
    "interp.conversion",
)


def path_arguments() -> list[tuple[str, str]]:
    """(function, annotation) of every public argument that is a path."""
    found = []
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            functions = {name: value} if inspect.isfunction(value) else {}
            if inspect.isclass(value):
                made = {k: v for k, v in vars(value).items() if isinstance(v, classmethod)}
                functions = {f"{name}.{k}": v.__func__ for k, v in made.items()}
            for called, function in functions.items():
                for parameter in inspect.signature(function).parameters.values():
                    annotation = str(parameter.annotation)
                    if re.search(r"\bPath\b", annotation) and "Callable" not in annotation:
                        found.append((f"{package}.{called}({parameter.name})", annotation))
    return found


def test_every_public_path_may_be_text() -> None:
    found = path_arguments()
    assert len(found) > 30
    assert [name for name, annotation in found if "str" not in annotation] == []


def test_what_a_notebook_calls(
    tmp_path: Path, model_folder: Path, facts: tuple[Item, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_items("items.jsonl", facts)
    assert read_items("items.jsonl") == facts
    backend = load_backend(ModelSpec.parse(str(model_folder), device="cpu"))
    source = describe_source(open_source("facts"), facts, view=None, seed=1)
    extract(backend, facts, "small.h5", source=source).close()
    run_answer(backend, facts, "answers.jsonl", source=source, max_new_tokens=1)
    answers = read_answers("answers.jsonl")
    write_answers("again.jsonl", answers)
    assert read_answers("again.jsonl") == answers
    table = read_item_table(["items.jsonl"])
    assert read_answer_sets(["answers.jsonl"], table)
    with ActivationCache.open("small.h5") as cache:
        assert cache.path == Path("small.h5")
        found = sweep(cache)
        made = probe_direction(cache, 1, C=1.0)
    write_sweep("probe", found)
    assert (read_sweep("probe").fold == found.fold).all()
    assert (read_folds("probe/folds.json", found.item_id) == found.fold).all()
    assert draw_probe("probe") == Path("probe/accuracy_by_layer.png")
    assert write_report("probe", "probe.html") == Path("probe.html")
    write_direction("d.npz", made)
    write_directions("d.safetensors", [made])
    assert np.array_equal(read_direction("d.npz").vector, made.vector)
    assert len(read_directions("d.safetensors")) == 1


def test_steering_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    steered = sweep_of({("baseline", ""): right(40), ("signed", ""): right(60)})
    write_steering("steer", steered)
    assert json.loads(Path("steer/steer.json").read_text())["n_items"] == 100
    assert draw_steering_sweep("steer")[0].parent == Path("steer/figures")
    with pytest.raises(ResultError, match="steer"):
        read_run("steer")
