"""Configurations of GRPO runs: the shipped one, changed ones, impossible ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.grpo.config import config_to_json, parse_settings, read_config
from interp.errors import InterpError, TrainingError

# What Table IV says.
PAPER = {
    "lora_rank": 8,
    "lora_alpha": 16,
    "lora_dropout": 0.0,
    "lora_targets": ("q_proj", "v_proj"),
    "learning_rate": 1e-6,
    "lr_scheduler": "linear",
    "warmup_steps": 0,
    "max_steps": 200,
    "prompts_per_step": 1,
    "group_size": 4,
    "gradient_accumulation": 1,
    "max_prompt_tokens": 512,
    "max_new_tokens": 128,
    "stop": "[/ANSWER]",
    "temperature": 1.0,
    "top_p": 1.0,
    "train_threshold": 0.2,
    "held_out_threshold": 0.4,
    "seeds": (42, 43),
}


def test_the_shipped_configuration_is_table_iv() -> None:
    config = read_config()
    assert {name: getattr(config, name) for name in PAPER} == PAPER
    model, _, revision = config.model.partition("@")
    assert model == "Qwen/Qwen2.5-1.5B-Instruct"
    assert len(revision) == 40


def test_every_value_can_be_overridden(tmp_path: Path) -> None:
    shipped = config_to_json(read_config())
    for name, value in shipped.items():
        other: Any
        if isinstance(value, bool):
            other = not value
        elif isinstance(value, int):
            other = value + 1
        elif isinstance(value, float):
            other = value / 2 + 0.01
        elif isinstance(value, list):
            other = value[:1]
        else:
            other = f"{value}x"
        found = config_to_json(read_config(None, {name: other}))
        assert found == shipped | {name: other}
    path = tmp_path / "mine.toml"
    path.write_text("learning_rate = 1e-4\nmax_steps = 7\n")
    config = read_config(path, parse_settings(["max_steps=9", "model=smollm2", "seeds=[1, 2]"]))
    assert (config.learning_rate, config.max_steps, config.model) == (1e-4, 9, "smollm2")
    assert config.seeds == (1, 2)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"learning_rat": 1}, "Did you mean learning_rate"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast'; expected a number"),
        ({"learning_rate": 0}, "more than 0"),
        ({"learning_rate": float("nan")}, "more than 0"),
        ({"learning_rate": float("inf")}, "more than 0"),
        ({"max_steps": 2.5}, "max_steps is 2.5; expected a whole number"),
        ({"group_size": 1}, "at least 2"),
        ({"seeds": []}, "seeds is \\[\\]; expected a list of whole numbers"),
        ({"seeds": [1, 1]}, "each one once"),
        ({"top_p": 0}, "top_p is 0"),
        ({"train_threshold": 1}, "less than 1"),
        ({"stop_if_capped": 1}, "true or false"),
    ],
)
def test_impossible_values_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(TrainingError, match=words):
        read_config(None, settings)


def test_bad_settings_and_files(tmp_path: Path) -> None:
    for texts in (["x"], ["=1"], ["a=1", "a=2"]):
        with pytest.raises(TrainingError, match="NAME=VALUE"):
            parse_settings(texts)
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(TrainingError, match="is not TOML"):
        read_config(tmp_path / "bad.toml")
    with pytest.raises(InterpError, match="GRPO configuration"):
        read_config(tmp_path / "none.toml")
