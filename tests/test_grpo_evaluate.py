"""Greedy evaluation of a base and its adapters, and the whole grpo-audit experiment."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attaching import save_adapter
from commands import ok, refused

from activations import HFBackend
from experiments.grpo.audit_run import GrpoAuditConfig, report, run_grpo_audit
from experiments.grpo.config import read_config
from experiments.grpo.evaluate import Pool, conditions_of, evaluate, items_of
from experiments.grpo.similarity import load_encoder, similarities
from experiments.grpo.train import load_base
from figures import draw_grpo_audit
from interp import Item, Message, load_items, open_source, read_run
from interp.errors import CacheError, ModelError, TrainingError
from interp.open_grading import grade_answer

NEW = 10


def words(n: int = 6) -> tuple[Item, ...]:
    gold = "the capital of France is Paris true false answer statement"
    return tuple(
        Item(f"w{i}", (Message("user", f"Say something, {i}."),), None, gold, f"g{i}", "words")
        for i in range(n)
    )


@pytest.fixture(scope="module")
def backend(model_folder: Path) -> HFBackend:
    return load_base(read_config(None, {"model": str(model_folder), "device": "cpu"}))


@pytest.fixture(scope="module")
def adapters(
    tmp_path_factory: pytest.TempPathFactory, backend: HFBackend, model_folder: Path
) -> tuple[Path, Path]:
    """One that has been moved at random, and one that has not moved; trained on `tiny-llama`."""
    folder = tmp_path_factory.mktemp("adapters")
    backend.model.name_or_path = str(model_folder)
    save_adapter(backend.model, folder / "moved")
    save_adapter(backend.model, folder / "idle", trained=False)
    return folder / "moved", folder / "idle"


def replies_of(rows: list[dict[str, str]], condition: str) -> list[str]:
    return [row["reply"] for row in rows if row["condition"] == condition]


def test_conditions_are_compared_item_by_item(
    backend: HFBackend, adapters: tuple[Path, Path], tmp_path: Path
) -> None:
    conditions = conditions_of(adapters)
    assert [c.name for c in conditions] == ["base", "moved", "idle"]
    pools = [Pool("train", words(), 0.0), Pool("held_out", words(4)[2:], 0.1)]
    found = evaluate(
        backend, conditions, pools, tmp_path, max_new_tokens=NEW, prefix="[ANSWER]", stop="e"
    )
    assert json.loads((tmp_path / "evaluation.json").read_text()) == json.loads(json.dumps(found))
    with (tmp_path / "items.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert len(rows) == 3 * (6 + 2)
    matrix = found["pools"]["train"]["identical"]
    in_train = [row for row in rows if row["pool"] == "train"]
    for first in matrix:
        for second in matrix:
            same = sum(
                a == b
                for a, b in zip(
                    replies_of(in_train, first), replies_of(in_train, second), strict=True
                )
            )
            assert matrix[first][second] == matrix[second][first] == same
    # What has not moved decodes as the base does; the control is what has.
    assert matrix["base"]["idle"] == 6
    assert matrix["base"]["moved"] < 3
    for name, scores in found["pools"]["train"]["conditions"].items():
        mine = [row for row in in_train if row["condition"] == name]
        grades = [grade_answer(row["reply"], row["gold"], threshold=0.0) for row in mine]
        assert [float(row["rouge_l_f1"]) for row in mine] == [g.f1 for g in grades]
        assert scores["positives"] == sum(g.reward for g in grades)
        assert scores["positive_ids"] == [
            row["item_id"] for row, g in zip(mine, grades, strict=True) if g.reward
        ]
        assert scores["same_as_base"] == sum(row["same_as_base"] == "True" for row in mine)
    # Replies end with the stop text, and start with the prefix.
    assert all(row["reply"].startswith("[ANSWER]") for row in rows)
    ended = [row["reply"].removeprefix("[ANSWER]") for row in rows]
    assert any("e" in text for text in ended)
    assert all("e" not in text[:-1] for text in ended)
    moved = next(c for c in found["conditions"] if c["name"] == "moved")
    assert moved["modules"] == 6 and len(moved["sha256"]) == 64


def test_an_adapted_condition_is_the_merged_model(
    backend: HFBackend, adapters: tuple[Path, Path], tmp_path: Path
) -> None:
    merged = HFBackend(
        save_adapter(backend.model, tmp_path / "same"), backend.tokenizer, model_id="merged"
    )
    pools = [Pool("train", words(), 0.0)]
    alone = evaluate(merged, conditions_of([]), pools, tmp_path / "m", max_new_tokens=NEW)
    evaluate(backend, conditions_of(adapters[:1]), pools, tmp_path / "a", max_new_tokens=NEW)
    with (
        (tmp_path / "m" / "items.csv").open(newline="") as m,
        (tmp_path / "a" / "items.csv").open(newline="") as a,
    ):
        expected = replies_of(list(csv.DictReader(m)), "base")
        assert replies_of(list(csv.DictReader(a)), "moved") == expected
    assert alone["pools"]["train"]["identical"] == {"base": {"base": 6}}


def test_an_adapter_of_another_base_is_refused(
    backend: HFBackend, adapters: tuple[Path, Path], tmp_path: Path
) -> None:
    pools = [Pool("train", words(2), 0.0)]
    moved = tmp_path / "moved"
    moved.mkdir()
    for path in adapters[0].iterdir():
        (moved / path.name).write_bytes(path.read_bytes())
    config = json.loads((moved / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "Qwen/Qwen2.5-1.5B-Instruct"
    (moved / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(TrainingError, match=r"trained on 'Qwen/Qwen2.5-1.5B-Instruct', this is"):
        evaluate(backend, conditions_of([moved]), pools, tmp_path / "e", max_new_tokens=2)
    assert not (tmp_path / "e").exists()
    # The same folder's name elsewhere is the same base.
    config["base_model_name_or_path"] = "/elsewhere/tiny-llama"
    (moved / "adapter_config.json").write_text(json.dumps(config))
    evaluate(backend, conditions_of([moved]), pools, tmp_path / "e", max_new_tokens=2)
    # An adapter whose parameters cannot reach the output is not evaluated as if it did.
    config["lora_alpha"] = 0
    (moved / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="leaves the output as it is"):
        evaluate(backend, conditions_of([moved]), pools, tmp_path / "f", max_new_tokens=2)
    with pytest.raises(TrainingError, match="given twice"):
        conditions_of([moved, moved, moved])
    with pytest.raises(TrainingError, match="has no adapter_config"):
        conditions_of([tmp_path])
    with pytest.raises(TrainingError, match="nothing to evaluate"):
        evaluate(backend, conditions_of([moved]), [], tmp_path / "g", max_new_tokens=2)


def letters(texts: Any) -> np.ndarray[Any, Any]:
    """An encoder that counts letters."""
    return np.array([[text.lower().count(chr(97 + i)) for i in range(26)] for text in texts], float)


def test_the_second_score_is_the_cosine(
    backend: HFBackend, adapters: tuple[Path, Path], tmp_path: Path
) -> None:
    # (1, 1) against (1, 0): 1/√2; letters in another order: 1; nothing in common: 0.
    found = similarities(letters, ["ab", "ba", "c", "", "7"], ["a", "ab", "a", "a", "a"])
    np.testing.assert_allclose(found, [2**-0.5, 1, 0, 0, 0], atol=1e-12)
    pools = [Pool("train", words(), 0.0)]
    done = evaluate(
        *(backend, conditions_of(adapters[:1]), pools, tmp_path),
        max_new_tokens=NEW,
        prefix="[ANSWER]",
        encoder=letters,
    )
    with (tmp_path / "items.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    a, b = letters([r["answer"] for r in rows]), letters([r["gold"] for r in rows])
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    expected = (a * b).sum(axis=1) / np.where(norms > 0, norms, 1)
    np.testing.assert_allclose([float(r["similarity"]) for r in rows], expected, atol=1e-12)
    mean = done["pools"]["train"]["conditions"]["base"]["mean_similarity"]
    assert mean == pytest.approx(float(np.mean(expected[:6])))
    with pytest.raises(TrainingError, match=r"shape \(2,\) for 2 texts"):
        similarities(lambda texts: np.zeros(len(texts)), ["a"], ["b"])


def test_a_missing_encoder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    with pytest.raises(TrainingError, match="no folder"):
        load_encoder(tmp_path / "none")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(TrainingError, match=r"interp\[similarity\]"):
        load_encoder(tmp_path)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    """A finished grpo-audit run on the tiny model."""
    folder = tmp_path_factory.mktemp("audit") / "run"
    ok(
        *("run", "grpo-audit", "--model", model_folder, "--steps", 4, "--n", 8),
        *("--n-held-out", 4, "--device", "cpu", "--seed", 42, "--out", folder, "--json"),
    )
    return folder


def test_only_the_learning_rate_makes_the_difference(audited: Path) -> None:
    result = json.loads((audited / "grpo_audit.json").read_text())
    small, large = result["runs"]
    assert (small["learning_rate"], large["learning_rate"]) == (1e-6, 2e-3)
    # In both there was something to learn from, so that is no explanation.
    for run in (small, large):
        assert run["rewards"]["zero_variance_share"] < 1
    assert small["verdict"] == small["verdict_from_files"] == "negligible"
    assert large["verdict"] == large["verdict_from_files"] == "effective"
    assert small["possible_at_start"] < 1 < large["possible_at_start"]
    assert small["pools"]["train"]["same_as_base"] == 8
    assert large["pools"]["train"]["same_as_base"] < 8
    record = read_run(audited)
    assert record.metrics["same_as_base_share_train lr-1e-06"] == 1
    names = {artifact.path for artifact in record.artifacts}
    assert names >= {
        *("train.jsonl", "held_out.jsonl", "report.md", "grpo_audit.json", "audit/audit.json"),
        *("evaluation/items.csv", "evaluation/identical.csv", "figures/trajectories.png"),
        *("lr-1e-06/rewards.jsonl", "lr-0.002/adapter_audit.jsonl"),
    }
    text = (audited / "report.md").read_text()
    assert "cannot move the policy" in text
    assert "no finding about the reward" in text


def test_a_finished_audit_is_not_run_again_and_another_is_refused(
    audited: Path, model_folder: Path, tmp_path: Path
) -> None:
    config = GrpoAuditConfig(
        model=str(model_folder), steps=4, n=8, n_held_out=4, device="cpu", seed=42
    )
    before = {path: path.stat().st_mtime_ns for path in audited.rglob("*")}
    assert run_grpo_audit(config, audited) == read_run(audited)
    assert before == {path: path.stat().st_mtime_ns for path in audited.rglob("*")}
    with pytest.raises(CacheError, match="steps: the file has 4, this run has 5"):
        run_grpo_audit(
            GrpoAuditConfig(
                model=str(model_folder), steps=5, n=8, n_held_out=4, device="cpu", seed=42
            ),
            audited,
        )
    message = refused(
        *("run", "grpo-audit", "--model", model_folder, "--learning-rates", "1e-3,1e-3"),
        *("--out", tmp_path / "x"),
    )
    assert "at least two different" in message
    assert not (tmp_path / "x").exists()


def test_its_figure_is_drawn_from_the_files_alone(audited: Path, tmp_path: Path) -> None:
    names = ["grpo_audit.json", "lr-1e-06/adapter_audit.jsonl", "lr-0.002/adapter_audit.jsonl"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((audited / name).read_bytes())
    (drawn,) = draw_grpo_audit(tmp_path)
    assert drawn.read_bytes() == (audited / "figures" / "trajectories.png").read_bytes()


def test_the_report_says_what_follows(audited: Path) -> None:
    runs = json.loads((audited / "grpo_audit.json").read_text())["runs"]
    assert "No run moved its weights" in report(runs[:1])
    assert "Every run moved its weights" in report(runs[1:])


def test_evaluate_takes_over_what_the_run_was(
    audited: Path,
    model_folder: Path,
    tmp_path: Path,
    tiny_model: Callable[..., Any],
    tokenizer: Any,
) -> None:
    out = tmp_path / "e"
    found = json.loads(
        ok(
            *("grpo", "evaluate", audited / "lr-1e-06", audited / "lr-0.002"),
            *("--held-out", "partners:held-out", "--n", 4, "--seed", 42, "--out", out, "--json"),
        ).stdout
    )
    # The same items, prefix, stop and lengths as in the run, so the same answers.
    expected = json.loads((audited / "evaluation" / "evaluation.json").read_text())
    assert found["prefix"] == "[ANSWER]"
    for pool in ("train", "held_out"):
        mine, theirs = (e["pools"][pool]["conditions"] for e in (found, expected))
        for ours, name in (("base", "base"), ("run/lr-0.002", "lr-0.002")):
            assert mine[ours]["positive_ids"] == theirs[name]["positive_ids"]
            assert mine[ours]["mean_rouge_l_f1"] == theirs[name]["mean_rouge_l_f1"]
        assert mine["run/lr-0.002"]["seed"] == 42
    assert items_of(audited / "lr-1e-06") == load_items(open_source(f"tomas:{audited}/train.jsonl"))
    table = ok(
        *("grpo", "evaluate", audited / "lr-1e-06", "--out", out, "--set", "max_new_tokens=4")
    ).stdout
    assert "run/lr-1e-06" in table and "8" in table
    # Another model of the same shapes: the fingerprint of the run tells them apart.
    other = tmp_path / "tiny-llama"
    tiny_model("llama", seed=1).save_pretrained(other)
    tokenizer.save_pretrained(other)
    message = refused(
        *("grpo", "evaluate", audited / "lr-1e-06", "--model", other, "--out", tmp_path / "f")
    )
    assert "was trained on tiny-llama with weights" in message
    assert "There are no items" in refused(
        *("grpo", "evaluate", audited / "lr-1e-06", "--train", "none", "--out", tmp_path / "f")
    )


def test_train_and_config_from_the_command_line(model_folder: Path, tmp_path: Path) -> None:
    base = ["grpo", "train", "--model", model_folder, "--n", 4, "--out", tmp_path / "g", "--json"]
    base += ["--set", "max_steps=1", "--set", "max_new_tokens=4", "--set", "seeds=[1, 2]"]
    base += ["--set", "device=cpu", "--set", "answer_prefix=[ANSWER]"]
    rows = json.loads(ok(*base).stdout)
    assert [row["seed"] for row in rows] == [1, 2]
    for row in rows:
        assert read_run(Path(row["folder"])).config["answer_prefix"] == "[ANSWER]"
        assert row["n_steps"] == 1
    assert "Did you mean max_steps" in refused(*base, "--set", "max_stepz=1")
    assert "no gold answer" in refused(*base, "--source", "facts", "--out", tmp_path / "h")
    shown = ok("grpo", "config", "--set", "max_steps=7").stdout
    path = tmp_path / "c.toml"
    path.write_text(shown)
    assert read_config(path) == read_config(None, {"max_steps": 7})
    assert json.loads(ok("grpo", "config", "--json").stdout)["max_steps"] == 200
