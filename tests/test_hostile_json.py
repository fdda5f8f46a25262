"""JSON that Python cannot hold, from files and options of a user's: one paragraph, no traceback."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import refused
from probe_sweeps import twins

from activations import ModelSpec
from experiments.options import template_args
from interp import load_items, open_source, read_answers, read_items
from interp.errors import InterpError, ProbeError
from interp.files import parse_json, read_json
from interp.mast.human import read_human
from interp.sources.tomas.schema import read_tomas
from interp.sources.unco.episodes import read_episodes
from interp.sources.unco.tasks import read_tasks
from probes import read_folds

DEEP = "[" * 100_000
LONG = "1" * 5_000


@pytest.mark.parametrize("text", [DEEP, LONG, f'{{"a": {DEEP}', f'{{"a": {LONG}}}'])
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("x.json", lambda path: read_json(path, "a result")),
        ("x.json", lambda path: read_folds(path, ("i0",))),
        ("x.jsonl", read_items),
        ("x.jsonl", read_answers),
        ("x.jsonl", lambda path: load_items(open_source(f"jsonl:{path}"))),
        ("x.jsonl", lambda path: load_items(open_source(f"avalon-tom-bench:{path}"))),
        ("x.json", lambda path: load_items(open_source(f"avalon-tom-bench:{path}"))),
        ("x.jsonl", read_tomas),
        ("x.json", read_human),
        ("x.jsonl", read_episodes),
        ("x.jsonl", read_tasks),
        ("x.json", lambda path: ModelSpec.parse("smollm2", device_map="{" + path.read_text())),
    ],
)
def test_files(text: str, name: str, read: Callable[[Path], Any], tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InterpError) as caught:
        read(path)
    assert len(str(caught.value)) < 1000


def test_what_is_json_stays_what_it_is() -> None:
    for value in ({"a": [1, None, 10**30]}, [], "text", 1.5):
        assert parse_json(json.dumps(value)) == value
    with pytest.raises(json.JSONDecodeError, match="nested too deeply"):
        parse_json(DEEP)
    with pytest.raises(json.JSONDecodeError, match="too many digits"):
        parse_json(LONG)
    # A template's variable that is no JSON is text.
    assert template_args([f"a={LONG}"]) == {"a": LONG}


@pytest.mark.parametrize("fold", [10**30, 80, -1, 1.0, True, "0", None])
def test_a_fold_that_is_no_number_of_one(fold: object, tmp_path: Path) -> None:
    cache = twins(np.random.default_rng(0))
    folds = {item: index // 4 % 4 for index, item in enumerate(cache.item_id)}
    path = tmp_path / "folds.json"
    path.write_text(json.dumps(folds | {"i1": fold}))
    with pytest.raises(ProbeError, match=r"the fold of 'i1' is .*smaller than the number of items"):
        read_folds(path, cache.item_id)


def test_folds_and_a_fold_file_exclude_each_other(tmp_path: Path) -> None:
    base = ("probe", tmp_path / "none.h5", "--out", tmp_path / "p", "--fold-file", tmp_path / "f")
    for n in (5, 7):
        assert "exclude each other" in refused(*base, "--folds", n)
    assert "exclude" not in refused(*base)
