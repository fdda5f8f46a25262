"""`interp unco` and `interp run noticed-but-silent` as a user runs them, on a tiny model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ok, refused

from experiments.noticed_but_silent import compare, reply_items, verdict
from experiments.unco_play import model_agent, play_tasks, scripted_agent, states_of
from interp.errors import ModelError, ResultError
from interp.files import partial_path
from interp.sources.unco.build import build_groups
from interp.sources.unco.environment import Action, Malformed, Observation, State
from interp.sources.unco.episodes import episode_record
from interp.sources.unco.tasks import Task


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    ok("unco", "build", "--groups", "6", "--seed", "1", "--out", str(path))
    return path


def _json(*arguments: str) -> Any:
    return json.loads(ok(*arguments, "--json").stdout)


def test_build_play_and_report_agree(tasks: Path, tmp_path: Path) -> None:
    assert len(tasks.read_text().splitlines()) == 30
    logs = []
    for agent in ("oracle", "gullible"):
        log = tmp_path / f"{agent}.jsonl"
        rows = _json("unco", "play", str(tasks), "--agent", agent, "--out", str(log))
        accuracy = {row["setting"]: row["accuracy"] for row in rows}
        wrong = {"misaligned", "incomplete", "missed", "mixed"} if agent == "gullible" else set()
        assert accuracy == {s: float(s not in wrong) for s in accuracy} and len(accuracy) == 5
        logs.append(str(log))
    out = tmp_path / "report"
    found = _json("unco", "report", *logs, "--out", str(out))
    assert {row["agent"] for row in found["settings"]} == {"oracle", "gullible"}
    kept = {(r["agent"], r["setting"]): r["kept"] for r in found["settings"]}
    assert kept["oracle", "mixed"] == 1.0 and kept["gullible", "mixed"] == 0.0
    for name in ("settings.csv", "recovery.csv", "unco.json", "figures/unco.png"):
        assert (out / name).stat().st_size > 0
    text = ok("unco", "report", *logs).output
    assert "100.0%" in text and "targeted" in text
    assert "twice" in refused("unco", "report", logs[0], logs[0])


def test_arms_are_told_apart_in_the_report(tasks: Path, tmp_path: Path) -> None:
    logs = []
    for arm in ("none", "action"):
        log = tmp_path / f"{arm}.jsonl"
        ok("unco", "play", str(tasks), "--agent", "hint", "--arm", arm, "--out", str(log))
        logs.append(str(log))
    rows = _json("unco", "report", *logs, "--out", str(tmp_path / "arms"))["settings"]
    by = {(row["arm"], row["setting"]): row["accuracy"] for row in rows}
    assert by["none", "mixed"] == 0.0 and by["action", "mixed"] == 1.0
    assert (tmp_path / "arms" / "figures" / "unco.png").exists()


def test_building_again_gives_the_same_bytes(tasks: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.jsonl"
    summary = _json("unco", "build", "--groups", "6", "--seed", "1", "--out", str(again))
    assert again.read_bytes() == tasks.read_bytes()
    assert summary["tasks"] == 30
    assert summary["candidates"] == 6 + sum(summary["rejected"].values())


def test_mistakes_are_named(tasks: Path, tmp_path: Path) -> None:
    log = str(tmp_path / "log.jsonl")
    assert "no.jsonl" in refused("unco", "play", str(tmp_path / "no.jsonl"), "--out", log)
    assert "missed" in refused("unco", "play", str(tasks), "--settings", "mised", "--out", log)
    assert "line 1" in refused("unco", "report", str(tasks))
    ok("unco", "play", str(tasks), "--settings", "missed", "--out", log)
    (tmp_path / "latin").write_bytes(b"\xff\xfe{}")
    assert "UTF-8" in refused("unco", "play", str(tmp_path / "latin"), "--out", log)
    assert "UTF-8" in refused("unco", "report", str(tmp_path / "latin"))
    assert "arm" in refused("unco", "play", str(tasks), "--arm", "action", "--out", log)
    assert "--played" in refused("run", "noticed-but-silent", "--groups", "3", "--played", "4")


def test_a_file_in_another_encoding_ends_in_one_sentence(tmp_path: Path) -> None:
    only = tmp_path / "only.csv"
    only.write_bytes("trace_key,trace_id\nM\xfcll,1\n".encode("latin-1"))
    traces = tmp_path / "traces.json"
    traces.write_text("[]")
    arguments = ("tomas", "code", traces, "--coder", "ann", "--only", only)
    assert "UTF-8" in refused(*arguments, "--log", tmp_path / "log.jsonl")


def test_a_stopped_run_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    chosen = [task for group in build_groups(4, 2) for task in group]
    identity = {"tasks": "x"}

    def run(out: Path, agent: Any) -> list[Any]:
        return play_tasks(
            chosen, agent, out, identity=identity, name="oracle", seed=0, arm="none",
            max_rounds=8, opening=False,
        )  # fmt: skip

    whole = tmp_path / "whole.jsonl"
    run(whole, scripted_agent("oracle", 0))
    stopped = tmp_path / "stopped.jsonl"
    run(stopped, scripted_agent("oracle", 0))
    lines = stopped.read_text().splitlines(keepends=True)
    # As a kill leaves it: some lines, and one that is cut short.
    partial_path(stopped).write_text("".join(lines[:7]) + lines[7][:40])
    stopped.unlink()
    asked: list[int] = []

    def counting(seen: Sequence[Observation]) -> Sequence[Action]:
        asked.append(len(seen))
        return scripted_agent("oracle", 0)(seen)

    run(stopped, counting)
    assert stopped.read_bytes() == whole.read_bytes()
    assert asked[0] == len(chosen) - 7
    assert not partial_path(stopped).exists()
    other = tmp_path / "foreign.jsonl"
    other.write_text("{}\n")
    with pytest.raises(ResultError, match="whose"):
        run(other, counting)


def test_a_model_plays_to_the_end(tiny_backend: Any) -> None:
    chosen = [t for g in build_groups(1, 3) for t in g if t.setting in ("missed", "mixed")]
    backend = tiny_backend("llama", max_position_embeddings=8192)
    agent = model_agent(backend, max_new_tokens=6, batch_tokens=8192)
    states = states_of(chosen, agent, arm="none", max_rounds=2, opening=True)
    records = [episode_record(state, "tiny", 0) for state in states]
    assert all(record["ended"] for record in records)
    # A random model writes no JSON: every turn of its own is counted as malformed.
    assert {r["counts"]["malformed"] for r in records} == {2}
    assert all(entry["met"] for r in records for entry in r["defects"])


def test_an_exchange_that_outgrows_the_model_is_counted(tiny_backend: Any) -> None:
    (task,) = [t for g in build_groups(1, 3) for t in g if t.setting == "mixed"]

    def states(room: int) -> State:
        backend = tiny_backend("llama", max_position_embeddings=room)
        agent = model_agent(backend, max_new_tokens=6, batch_tokens=8192)
        return states_of([task], agent, arm="none", max_rounds=2, opening=True)[0]

    longest = 8192
    reason = states(longest).rounds[1].action
    assert isinstance(reason, Malformed) and "JSON" in reason.reason
    reason = states(2048).rounds[1].action
    assert isinstance(reason, Malformed) and "fits" in reason.reason
    # A task that does not fit at all is the user's mistake.
    agent = model_agent(tiny_backend("llama"), max_new_tokens=6, batch_tokens=8192)
    with pytest.raises(ModelError, match="takes at most"):
        states_of([task], agent, arm="none", max_rounds=2, opening=False)


def _episode(task: Task, follow_up: str) -> dict[str, Any]:
    (state,) = states_of(
        [task], scripted_agent("gullible", 0), arm="none", max_rounds=4, opening=True
    )
    record = episode_record(state, "a", 0)
    record["defects"][0]["follow_up"] = follow_up
    return record


def test_noticed_but_silent_by_hand() -> None:
    chosen = [t for g in build_groups(4, 4) for t in g if t.setting in ("misaligned", "incomplete")]
    items = reply_items(chosen, 0)
    labels = np.array([item.label for item in items])
    assert labels.sum() == len(chosen) == len(items) // 2

    class Sweep:
        """What `compare` reads of a probe sweep: right everywhere but on one useless reply."""

        label = labels
        group_id = tuple(item.group_id for item in items)
        correct_nested = np.ones(len(items), dtype=bool)

    Sweep.correct_nested[int(np.flatnonzero(~labels)[0])] = False
    episodes = [_episode(task, "targeted" if i == 1 else "none") for i, task in enumerate(chosen)]
    said_true = np.ones(len(items))
    metrics, rows = compare(Sweep, items, said_true, episodes, seed=0)  # type: ignore[arg-type]
    assert metrics["probe_noticed"] == 7 / 8 and metrics["targeted"] == 1 / 8
    assert metrics["noticed_but_silent"] == 6 / 8  # one unnoticed, one acted upon
    assert metrics["said_so"] == 0.0 and metrics["said_accuracy"] == 0.5
    assert [row["probe_noticed"] for row in rows] == [False] + [True] * 7
    assert metrics["silent_given_noticed"] == 6 / 7 and metrics["silent_given_unnoticed"] == 1.0
    assert metrics["probe_recall_useful"] == 1.0 and metrics["probe_recall_useless"] == 7 / 8
    shown = metrics | {"probe_p_familywise": 0.005, "probe_text_baseline_accuracy": 0.5}
    assert "85.7% of those where the probe had noticed" in verdict(shown)
    assert "nothing shows" in verdict(shown | {"probe_p_familywise": 0.4})
    assert "nothing shows" in verdict(shown | {"probe_text_baseline_accuracy": 0.99})
    assert "no permutation test" in verdict(shown | {"probe_p_familywise": None})
    assert "says nothing about what it knew" in verdict(shown | {"acted": 0.1})
