"""What a GRPO run depends on: ToMAS's Table IV as a file, and what a user changes of it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, get_type_hints

from interp.errors import TrainingError, did_you_mean
from interp.files import require_file

__all__ = ["GrpoConfig", "config_to_json", "parse_settings", "read_config", "table_iv"]


@dataclass(frozen=True, slots=True)
class GrpoConfig:
    """A GRPO configuration; the shipped values are in `table_iv.toml`, beside this file.

    Attributes:
        condition: what results call the run.
        model: alias, Hub id with optional `@revision`, folder or `gguf:PATH`.
        dtype: of the base's weights; the adapter is float32.
        device: torch device or `auto`.
        lora_rank: r.
        lora_alpha: α; the scaling is α/r.
        lora_dropout: of the adapter's input.
        lora_targets: names of the adapted modules.
        learning_rate: peak of the schedule.
        lr_scheduler: of transformers (`linear`, `constant`, `cosine`, …).
        warmup_steps: steps of linear warm-up.
        optimizer: `optim` of transformers.
        weight_decay: decoupled.
        max_grad_norm: gradients are clipped to it.
        kl_beta: weight of the KL term; 0 leaves the reference model out.
        max_steps: optimiser steps.
        prompts_per_step: items a step.
        group_size: completions of one item; advantages are relative to their mean.
        gradient_accumulation: batches a step.
        gradient_checkpointing: less memory, more time.
        seeds: one run each.
        max_prompt_tokens: longer prompts are refused.
        max_new_tokens: cut of completions.
        stop: text that ends a completion; empty for none.
        temperature: of sampling.
        top_p: of sampling.
        answer_prefix: text that the assistant's turn starts with, in training and evaluation.
        train_threshold: reward 1 if ROUGE-L F1 is strictly above it.
        held_out_threshold: an evaluated answer is positive if its F1 is strictly above it.
        save_steps: a checkpoint every so many steps.
        logging_steps: a log entry every so many steps.
        audit_steps: an audit of the live adapter every so many steps; 0 for none.
        stop_if_capped: stop a run whose learning rates cannot move the policy.
    """

    condition: str
    model: str
    dtype: str
    device: str
    lora_rank: int
    lora_alpha: int
    lora_dropout: float
    lora_targets: tuple[str, ...]
    learning_rate: float
    lr_scheduler: str
    warmup_steps: int
    optimizer: str
    weight_decay: float
    max_grad_norm: float
    kl_beta: float
    max_steps: int
    prompts_per_step: int
    group_size: int
    gradient_accumulation: int
    gradient_checkpointing: bool
    seeds: tuple[int, ...]
    max_prompt_tokens: int
    max_new_tokens: int
    stop: str
    temperature: float
    top_p: float
    answer_prefix: str
    train_threshold: float
    held_out_threshold: float
    save_steps: int
    logging_steps: int
    audit_steps: int
    stop_if_capped: bool


_NAMES: Final = tuple(field.name for field in fields(GrpoConfig))
_AT_LEAST_ONE: Final = (
    *("lora_rank", "max_steps", "prompts_per_step", "gradient_accumulation", "max_prompt_tokens"),
    *("max_new_tokens", "save_steps", "logging_steps"),
)
_POSITIVE: Final = ("lora_alpha", "learning_rate", "temperature", "max_grad_norm")
_NOT_NEGATIVE: Final = ("warmup_steps", "weight_decay", "kl_beta", "audit_steps")
_FRACTIONS: Final = ("lora_dropout", "train_threshold", "held_out_threshold")


def table_iv() -> dict[str, Any]:
    """The shipped values, as the file has them."""
    text = files("experiments.grpo").joinpath("table_iv.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def read_config(path: Path | None = None, settings: Mapping[str, Any] | None = None) -> GrpoConfig:
    """Table IV, changed by a file, changed by settings.

    Args:
        path: TOML with some of the names; None for none.
        settings: name to value, as from `parse_settings`.

    Raises:
        TrainingError: an unknown name, a value of the wrong type or out of range, or no TOML.
    """
    values = table_iv()
    if path is not None:
        require_file(path, "a GRPO configuration (TOML)", TrainingError)
        try:
            changed = tomllib.loads(path.read_text(encoding="utf-8"))
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise TrainingError(f"{path} is not TOML ({error}).") from error
        values |= _known(changed, str(path))
    values |= _known(settings or {}, "--set")
    hints = get_type_hints(GrpoConfig)
    config = GrpoConfig(**{name: _typed(name, values[name], hints[name]) for name in _NAMES})
    _require_range(config)
    return config


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """From `NAME=VALUE` texts; VALUE is TOML, or else text.

    Raises:
        TrainingError: a text without `=`, or a name twice.
    """
    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name or name in settings:
            raise TrainingError(
                f"--set is {text!r}; expected NAME=VALUE, each name once, for example "
                f"learning_rate=1e-4."
            )
        try:
            settings[name] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            settings[name] = value
    return settings


def config_to_json(config: GrpoConfig) -> dict[str, Any]:
    """All fields, lists for tuples."""
    values = asdict(config)
    return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


def _known(values: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    for name in values:
        if name not in _NAMES:
            raise TrainingError(f"{where} names {name!r}. {did_you_mean(name, _NAMES)}")
    return values


def _typed(name: str, value: Any, kind: Any) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind in (tuple[str, ...], tuple[int, ...]):
        inner = str if kind == tuple[str, ...] else int
        several = list(value) if isinstance(value, list | tuple) else [value]
        if several and all(type(each) is inner for each in several):
            return tuple(several)
        expected = f"a list of {'texts' if inner is str else 'whole numbers'}"
    elif type(value) is kind:
        return value
    else:
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
        expected = names[kind]
    raise TrainingError(f"{name} is {value!r}; expected {expected}.")


def _require_range(config: GrpoConfig) -> None:
    for names, least, words in (
        (_AT_LEAST_ONE, 1, "at least 1"),
        (_NOT_NEGATIVE, 0, "at least 0"),
    ):
        for name in names:
            if getattr(config, name) < least:
                raise TrainingError(f"{name} is {getattr(config, name)}; expected {words}.")
    for name in _POSITIVE:
        if not 0 < getattr(config, name) < float("inf"):
            raise TrainingError(f"{name} is {getattr(config, name)}; expected more than 0.")
    for name in _FRACTIONS:
        if not 0 <= getattr(config, name) < 1:
            raise TrainingError(
                f"{name} is {getattr(config, name)}; expected at least 0 and less than 1."
            )
    if not 0 < config.top_p <= 1:
        raise TrainingError(f"top_p is {config.top_p}; expected more than 0 and at most 1.")
    if config.group_size < 2:
        raise TrainingError(
            f"group_size is {config.group_size}; expected at least 2: the advantage of a single "
            f"completion is always 0."
        )
    if len(set(config.seeds)) != len(config.seeds):
        raise TrainingError(f"seeds are {list(config.seeds)}; expected each one once.")
