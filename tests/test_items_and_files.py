import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interp import Item, Message, read_items, true_false_messages, write_items
from interp.errors import ItemError, ResultError
from interp.files import atomic_path, read_json, sha256_json, write_json
from interp.items import items_sha256
from interp.records import RunRecord, Started, artifacts_of, finish_run, read_run, write_run

text = st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), children, max_size=3)
    ),
    max_leaves=5,
)
items = st.builds(
    Item,
    item_id=text,
    messages=st.builds(lambda a, b: (Message("system", a), Message("user", b)), text, text),
    label=st.none() | st.booleans(),
    gold=st.none() | text,
    group_id=text,
    category=text,
    metadata=st.dictionaries(text, json_values, max_size=3),
)


@given(st.lists(items, max_size=5, unique_by=lambda item: item.item_id))
def test_items_survive_a_file(tmp_path_factory: pytest.TempPathFactory, values) -> None:
    path = tmp_path_factory.mktemp("items") / "items.jsonl"
    write_items(path, values)
    assert read_items(path) == tuple(values)
    assert len(path.read_text(encoding="utf-8").split("\n")) == len(values) + 1


def test_the_fingerprint_sees_every_field() -> None:
    base = Item("a", (Message("user", "q"),), True, None, "g", "c", {"k": 1})
    others = [
        Item("b", base.messages, True, None, "g", "c", {"k": 1}),
        Item("a", (Message("user", "Q"),), True, None, "g", "c", {"k": 1}),
        Item("a", base.messages, False, None, "g", "c", {"k": 1}),
        Item("a", base.messages, True, "x", "g", "c", {"k": 1}),
        Item("a", base.messages, True, None, "h", "c", {"k": 1}),
        Item("a", base.messages, True, None, "g", "d", {"k": 1}),
        Item("a", base.messages, True, None, "g", "c", {"k": 2}),
    ]
    assert len({items_sha256([item]) for item in [base, *others]}) == 8
    assert items_sha256([base, others[0]]) != items_sha256([others[0], base])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"messages": None}, "`messages` must be a list"),
        ({"messages": [{"role": "user"}]}, "`role` and `content`"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "role 'bot'"),
        ({"messages": [{"role": "user", "content": " "}]}, "expected text"),
        ({"messages": [{"role": "system", "content": "x"}]}, "must be the user's"),
        ({"label": "yes"}, "label is 'yes'"),
        ({"group_id": ""}, "group_id"),
        ({"extra": 1}, "unknown fields extra"),
        ({"item_id": "first"}, "more than once"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, change, message: str) -> None:
    record = {
        "item_id": "second",
        "messages": [{"role": "user", "content": "q"}],
        "label": True,
        "gold": None,
        "group_id": "g",
        "category": "c",
        "metadata": {},
    }
    path = tmp_path / "items.jsonl"
    lines = [record | {"item_id": "first"}, record | change]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ItemError, match=message) as caught:
        read_items(path)
    assert "items.jsonl" in str(caught.value)
    if message != "more than once":
        assert "line 2" in str(caught.value)


def test_the_true_false_prompt_has_its_blocks_in_order() -> None:
    system, user = true_false_messages("It rains.", system="Rules.", setup="S.", history="H.")
    assert system == Message("system", "Rules.")
    blocks = user.content.split("\n\n")
    assert blocks[0] == "SETUP: S."
    assert blocks[1] == "WHAT HAS HAPPENED: H."
    assert blocks[3] == "STATEMENT: It rains."
    assert "ANSWER: True" in blocks[-1]
    (bare,) = true_false_messages("It rains.")
    assert "SETUP" not in bare.content
    assert "HAPPENED" not in bare.content


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"a": float("nan")})
    with pytest.raises(RuntimeError, match="halfway"), atomic_path(path) as aside:
        aside.write_text("half")
        raise RuntimeError("halfway")
    assert read_json(path, "a result") == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


def test_json_faults_are_named(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="There is no file"):
        read_json(tmp_path / "none.json", "a result")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(ResultError, match="holds a list"):
        read_json(tmp_path / "list.json", "a result")
    (tmp_path / "half.json").write_text('{"a": ')
    with pytest.raises(ResultError, match="is not JSON"):
        read_json(tmp_path / "half.json", "a result")
    with pytest.raises(ResultError, match="is a folder"):
        read_json(tmp_path, "a result")


def test_json_digest_ignores_the_order_of_keys_only() -> None:
    assert sha256_json({"a": 1, "b": [1, 2]}) == sha256_json({"b": [1, 2], "a": 1})
    assert sha256_json({"a": 1, "b": [1, 2]}) != sha256_json({"a": 1, "b": [2, 1]})


def test_run_records_round_trip_and_list_finished_files_only(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("abc")
    (tmp_path / "b.jsonl.partial").write_text("half")
    artifacts = artifacts_of(tmp_path)
    assert [artifact.path for artifact in artifacts] == ["sub/a.txt"]
    # sha256 of "abc" is the test vector of FIPS 180-2.
    assert artifacts[0].sha256.startswith("ba7816bf8f01cfea")
    record = RunRecord(
        run_id="r",
        experiment="e",
        command="interp run e",
        config={"n": 1},
        seeds={"items": 0},
        started_utc="2026-01-01T00:00:00+00:00",
        finished_utc="2026-01-01T00:01:00+00:00",
        cpu_seconds=1.5,
        git_commit=None,
        git_dirty=None,
        versions={"python": "3.11"},
        model={},
        source={},
        metrics={"accuracy": 0.5},
        artifacts=artifacts,
    )
    write_run(tmp_path, record)
    assert read_run(tmp_path) == record
    (tmp_path / "run.json").write_text('{"run_id": "r"}')
    with pytest.raises(ResultError, match="not a run record"):
        read_run(tmp_path)


def test_a_finished_run_is_recorded_last(tmp_path: Path) -> None:
    started = Started.now()
    (tmp_path / "result.json").write_text("{}")
    (tmp_path / "half.json.partial").write_text("{")
    given: dict[str, Any] = {
        "experiment": "e", "command": "interp run e", "config": {"n": 1}, "seeds": {"items": 3},
        "model": {"model_id": "m"}, "source": {"name": "facts"}, "metrics": {"accuracy": 0.5},
    }  # fmt: skip
    record = finish_run(tmp_path, started, **given)
    assert read_run(tmp_path) == record
    assert {name: getattr(record, name) for name in given} == given
    assert record.run_id == tmp_path.name and record.started_utc == started.utc
    assert record.finished_utc >= started.utc and record.cpu_seconds >= 0
    assert "python" in record.versions
    # The record itself is no artifact of the run, nor is what was not finished.
    assert [artifact.path for artifact in record.artifacts] == ["result.json"]
    # What the process had done before the run does not count.
    earlier = Started(started.utc, started.cpu_seconds - 100)
    assert finish_run(tmp_path, earlier, **given).cpu_seconds >= 100 + record.cpu_seconds
