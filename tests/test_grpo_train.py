"""GRPO on a tiny random model: what a run leaves behind, resuming, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from activations import HFBackend
from experiments.grpo.callback import TRAJECTORY, read_trajectory
from experiments.grpo.config import GrpoConfig, config_to_json, read_config
from experiments.grpo.prompts import reply_prompts, until_stop
from experiments.grpo.rewards import RewardLog, read_rewards, reward_summary
from experiments.grpo.train import REWARDS, load_base, train
from interp import Item, Message, load_items, open_source, read_run
from interp.errors import CacheError, ItemError, ResultError, TrainingError

SOURCE = {"name": "words", "fingerprint": "x"}


TINY = {
    "device": "cpu",
    "max_steps": 4,
    "save_steps": 2,
    "logging_steps": 1,
    "audit_steps": 2,
    "max_new_tokens": 8,
    "prompts_per_step": 2,
    "learning_rate": 1e-2,
    "lora_alpha": 16,
    "train_threshold": 0.0,
    "answer_prefix": "[ANSWER]",
    "stop": "",
    "seeds": [5],
}


# Words of the tiny tokenizer's training text: a random model writes some of them.
GOLD = "the capital of France is Paris true false answer statement"


def words(gold: str = GOLD) -> tuple[Item, ...]:
    return tuple(
        Item(f"w{i}", (Message("user", f"Say something, {i}."),), None, gold, f"g{i}", "words")
        for i in range(6)
    )


@pytest.fixture(scope="module")
def config(model_folder: Path) -> GrpoConfig:
    return read_config(None, TINY | {"model": str(model_folder)})


@pytest.fixture(scope="module")
def backend(config: GrpoConfig) -> HFBackend:
    return load_base(config)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, config: GrpoConfig, backend: HFBackend) -> Path:
    """A finished run of four steps."""
    folder = tmp_path_factory.mktemp("grpo") / "seed-5"
    train(config, 5, words(), folder, backend=backend, source=SOURCE, command="interp grpo train")
    return folder


def changed(config: GrpoConfig, **changes: Any) -> GrpoConfig:
    return read_config(None, config_to_json(config) | changes)


def factors(folder: Path, which: str) -> torch.Tensor:
    tensors = load_file(folder / "adapter_model.safetensors")
    return torch.cat([t.flatten() for name, t in sorted(tensors.items()) if which in name])


def test_a_run_leaves_everything_behind(run: Path, config: GrpoConfig, model_folder: Path) -> None:
    record = read_run(run)
    assert record.config == config_to_json(config)
    assert record.seeds == {"training": 5}
    assert record.versions["trl"] and record.versions["peft"]
    assert record.model["weights"]
    names = {artifact.path for artifact in record.artifacts}
    assert names >= {
        *("adapter_model.safetensors", "adapter_config.json", "trainer_state.json"),
        *(REWARDS, TRAJECTORY, "items.jsonl", "config.json"),
        *("checkpoint-2/adapter_model.safetensors", "checkpoint-4/trainer_state.json"),
    }
    # The base that `interp adapters` and PEFT look for.
    written = json.loads((run / "adapter_config.json").read_text())
    assert written["base_model_name_or_path"] == str(model_folder)
    assert (written["r"], written["lora_alpha"]) == (8, 16)
    # It learned: B has moved as far as four steps of AdamW at this rate move it.
    assert 1e-3 < float(factors(run, "lora_B").abs().max()) < 3e-2
    assert record.metrics["verdict"] == "effective"
    rows = read_trajectory(run / TRAJECTORY)
    assert [row["step"] for row in rows] == [0, 2, 4]
    state = json.loads((run / "trainer_state.json").read_text())
    logged = [e["adapter/max_abs_delta"] for e in state["log_history"] if "adapter/relative" in e]
    assert rows[-1]["max_abs_delta"] in logged


def test_every_completion_is_in_the_reward_log(run: Path) -> None:
    rows = read_rewards(run / REWARDS)
    assert len(rows) == 4 * 2 * 4
    assert [row["step"] for row in rows] == sorted(row["step"] for row in rows)
    for group in range(1, 9):
        found = [row for row in rows if row["group"] == group]
        assert len(found) == 4 and len({row["item_id"] for row in found}) == 1
    state = json.loads((run / "trainer_state.json").read_text())
    for entry in state["log_history"]:
        if "reward" in entry:
            mine = [row["reward"] for row in rows if row["step"] == entry["step"]]
            assert entry["reward"] == pytest.approx(sum(mine) / len(mine))
    summary = reward_summary(rows)
    metrics = read_run(run).metrics
    assert metrics["zero_variance_share"] == summary["zero_variance_share"] < 1
    assert metrics["reward_mean"] == summary["mean"]
    shares = [e["frac_reward_zero_std"] for e in state["log_history"] if "reward" in e]
    assert summary["zero_variance_share"] == pytest.approx(sum(shares) / len(shares))


def test_the_base_model_is_left_as_it_was(
    config: GrpoConfig, model_folder: Path, tmp_path: Path
) -> None:
    fresh, used = load_base(config), load_base(config)
    saving = changed(config, gradient_checkpointing=True)
    train(saving, 5, words(), tmp_path / "run", backend=used, source=SOURCE)
    before, after = dict(fresh.model.named_modules()), dict(used.model.named_modules())
    assert before.keys() == after.keys()
    for name in before:
        assert type(before[name]) is type(after[name])
        assert len(before[name]._forward_hooks) == len(after[name]._forward_hooks)
    assert set(fresh.model.__dict__) == set(used.model.__dict__)
    assert fresh.model.config.to_dict() == used.model.config.to_dict()
    ids = [[5, 6, 7, 8]]
    assert torch.equal(fresh.logits(ids, range(50)), used.logits(ids, range(50)))
    assert all(p.requires_grad for p in used.model.parameters())
    # So a second run in the same process gives what the first gave.
    train(config, 5, words(), tmp_path / "again", backend=used, source=SOURCE)
    assert torch.equal(factors(tmp_path / "run", "lora"), factors(tmp_path / "again", "lora"))


def test_a_killed_run_goes_on_and_ends_as_if_nothing_had_been(
    run: Path, config: GrpoConfig, backend: HFBackend, tmp_path: Path
) -> None:
    class Killed(Exception):
        pass

    def kill(done: int) -> None:
        steps.append(done)
        if sum(steps) == 3:
            raise Killed

    steps: list[int] = []
    folder = tmp_path / "seed-5"
    with pytest.raises(Killed):
        train(config, 5, words(), folder, backend=backend, source=SOURCE, progress=kill)
    assert not (folder / "run.json").exists()
    # A checkpoint that was being written counts for nothing.
    shutil.copytree(folder / "checkpoint-2", folder / "checkpoint-3")
    (folder / "checkpoint-3" / "optimizer.pt").unlink()
    with (folder / REWARDS).open("a") as handle:
        handle.write('{"step": 3, "gro')
    said: list[str] = []
    train(config, 5, words(), folder, backend=backend, source=SOURCE, note=said.append)
    assert f"Going on from {folder / 'checkpoint-2'}" in said
    assert torch.equal(factors(folder, "lora"), factors(run, "lora"))
    assert read_rewards(folder / REWARDS) == read_rewards(run / REWARDS)
    assert [row["step"] for row in read_trajectory(folder / TRAJECTORY)] == [0, 2, 4]
    # Finished: nothing is computed any more.
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    train(config, 5, words(), folder, backend=backend, source=SOURCE, note=said.append)
    assert "finished already" in said[-1]
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_folder_of_another_run_is_refused(
    run: Path, config: GrpoConfig, backend: HFBackend, tmp_path: Path
) -> None:
    with pytest.raises(CacheError, match=r"config\.learning_rate: the file has 0\.01, this run"):
        train(
            changed(config, learning_rate=1e-3),
            *(5, words(), run),
            backend=backend,
            source=SOURCE,
        )
    with pytest.raises(CacheError, match="seed: the file has 5, this run has 6"):
        train(config, 6, words(), run, backend=backend, source=SOURCE)
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ResultError, match="not empty and holds no run"):
        train(config, 5, words(), tmp_path, backend=backend, source=SOURCE)


def test_another_seed_starts_elsewhere(
    run: Path, config: GrpoConfig, backend: HFBackend, tmp_path: Path
) -> None:
    train(config, 6, words(), tmp_path / "six", backend=backend, source=SOURCE)
    assert not torch.equal(factors(run, "lora_A"), factors(tmp_path / "six", "lora_A"))


def test_equal_rewards_are_said_to_give_no_gradient(
    config: GrpoConfig, backend: HFBackend, tmp_path: Path
) -> None:
    said: list[str] = []
    few = changed(config, max_steps=6)
    gold = "zebra"
    train(few, 5, words(gold), tmp_path / "r", backend=backend, source=SOURCE, note=said.append)
    assert any("in the last 10 groups all rewards were equal" in text for text in said)
    assert any("all rewards were equal in all 12 groups" in text for text in said)
    assert not factors(tmp_path / "r", "lora_B").any()
    metrics = read_run(tmp_path / "r").metrics
    assert (metrics["zero_variance_share"], metrics["verdict"]) == (1, "untrained")
    assert any("every logged gradient was 0" in text for text in said)


def test_generation_stops_at_the_stop_text(
    config: GrpoConfig, backend: HFBackend, tmp_path: Path
) -> None:
    def completions(stop: str) -> list[str]:
        folder = tmp_path / (stop.strip() or "none")
        longer = changed(config, stop=stop, max_steps=2, max_new_tokens=24, audit_steps=0)
        train(longer, 5, words(), folder, backend=backend, source=SOURCE)
        return [row["completion"] for row in read_rewards(folder / REWARDS)]

    free, stopped = completions(""), completions("e")
    assert any("e" in text[:-1] for text in free)
    # The stop text ends a completion; the token that holds it may hold more.
    assert sum("e" in text[:-8] for text in stopped) < sum("e" in text[:-8] for text in free)
    assert sum(map(len, stopped)) < sum(map(len, free)) / 2


def test_dequantised_gguf_models_can_be_trained(
    config: GrpoConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.utils.quantization_config import GgufConfig

    backend = load_base(config)
    quantization = GgufConfig()
    backend.model.is_quantized = True
    backend.model.hf_quantizer = SimpleNamespace(
        is_trainable=False, quantization_config=quantization
    )
    backend.model.config.quantization_config = quantization
    short = changed(config, max_steps=2, audit_steps=0)
    monkeypatch.setattr(
        "activations.spec._locate", lambda _: ("gguf", str(tmp_path / "m.gguf"), "tiny-q8", None)
    )
    train(short, 5, words(), tmp_path / "a", backend=backend, source=SOURCE)
    for folder in (tmp_path / "a", tmp_path / "a" / "checkpoint-2"):
        written = json.loads((folder / "adapter_config.json").read_text())
        assert written["base_model_name_or_path"] == "tiny-q8"
    assert backend.model.is_quantized
    assert backend.model.config.quantization_config is quantization
    # The control: another kind of quantisation is still refused by transformers.
    quantization.quant_method = "other"
    with pytest.raises(TrainingError, match="trl refuses"):
        train(short, 5, words(), tmp_path / "b", backend=backend, source=SOURCE)


def test_prompts_are_tokenised_as_the_backend_does(
    backend: HFBackend,
) -> None:
    items = load_items(open_source("partners"), n=4)
    for prompt, reference in zip(
        reply_prompts(backend.tokenizer, items), backend.tokenize(items), strict=True
    ):
        assert prompt.ids == reference.ids == tuple(backend.tokenizer(prompt.text)["input_ids"])
    opened = reply_prompts(backend.tokenizer, items, prefix="[ANSWER]")
    assert all(prompt.text.endswith("[ANSWER]") for prompt in opened)
    with pytest.raises(TrainingError, match="4 of 4 prompts have more than 10 tokens"):
        reply_prompts(backend.tokenizer, items, max_tokens=10)
    with pytest.raises(ItemError, match="no gold answer"):
        reply_prompts(backend.tokenizer, load_items(open_source("facts"), n=4))
    assert until_stop("a [/ANSWER] b [/ANSWER]") == "a [/ANSWER]"
    assert until_stop("a", "") == until_stop("a") == "a"


def test_no_second_bos(tokenizer: Any) -> None:
    from tokenizers.processors import TemplateProcessing

    adding = type(tokenizer)(
        tokenizer_object=tokenizer.backend_tokenizer.__class__.from_str(
            tokenizer.backend_tokenizer.to_str()
        ),
        bos_token="<|system|>",  # any token will do
        eos_token="<|end|>",
        chat_template="{{ bos_token }}" + tokenizer.chat_template,
    )
    bos = adding.bos_token_id
    adding.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|system|> $A", special_tokens=[("<|system|>", bos)]
    )
    assert adding("a")["input_ids"][0] == bos
    (prompt,) = reply_prompts(adding, words()[:1])
    assert prompt.ids.count(bos) == 1 and prompt.ids[0] == bos
    assert tuple(adding(prompt.text)["input_ids"]) == prompt.ids


def test_the_reward_is_tomas_s(tmp_path: Path) -> None:
    log = RewardLog(tmp_path / "r.jsonl", threshold=0.5, group_size=2, prefix="[ANSWER]")
    state = SimpleNamespace(global_step=7)
    # "b c" against "a b": P = 1/2, R = 1/2, F1 = 0.5, which is not strictly above.
    rewards = log(
        ["p"] * 4,
        [" a b [/ANSWER] junk", "b c", "", "a b c d"],
        gold=["a b"] * 4,
        item_id=["x", "x", "y", "y"],
        trainer_state=state,
        completion_ids=[],
    )
    assert rewards == [1.0, 0.0, 0.0, 1.0]
    rows = read_rewards(log.path)
    assert [(row["step"], row["group"]) for row in rows] == [(8, 1), (8, 1), (8, 2), (8, 2)]
    assert [row["status"] for row in rows] == ["ok", "unclosed", "empty", "unclosed"]
    assert rows[3]["f1"] == pytest.approx(2 / 3)


def test_a_completion_with_other_line_ends_is_one_line(tmp_path: Path) -> None:
    log = RewardLog(tmp_path / "r.jsonl", threshold=0.5, group_size=2, prefix="[ANSWER]")
    texts = ["a\u2028b", "a\x85b\u2029"]
    log(
        ["p"] * 2,
        texts,
        gold=["a b"] * 2,
        item_id=["x", "x"],
        trainer_state=SimpleNamespace(global_step=0),
        completion_ids=[],
    )
    assert [row["completion"] for row in read_rewards(log.path)] == texts
    log.keep_until(1)
    assert len(read_rewards(log.path)) == 2


def test_a_missing_extra_is_named(
    config: GrpoConfig, backend: HFBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(TrainingError, match="runs in one process; got WORLD_SIZE = 2"):
        train(config, 5, words(), tmp_path / "x", backend=backend, source=SOURCE)
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(TrainingError, match=r"interp\[train\]"):
        train(config, 5, words(), tmp_path / "x", backend=backend, source=SOURCE)
    assert not (tmp_path / "x").exists()
