"""What an audit can find: stable codes, how bad each is, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

__all__ = ["REMEDIES", "Finding", "Severity", "breaks", "finding", "gathered", "named"]

Severity = Literal["error", "warning", "info"]

_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a reader of the verdict should know.

    Attributes:
        code: stable, lower_snake_case; scripts may rely on it.
        severity: `error`, `warning` or `info`.
        message: what was found, with names and numbers.
        remedy: what to do.
    """

    code: str
    severity: Severity
    message: str
    remedy: str


_IGNORED: Final = "PEFT ignores such keys on load and the adapter does nothing: "

_BREAKING: Final = {
    "config_missing": "Copy adapter_config.json from the run, or save again.",
    "config_unreadable": "Save the adapter again with save_pretrained.",
    "weights_missing": "Copy adapter_model.safetensors from the run, or save again.",
    "sharded_weights": (
        "PEFT loads one file: join the parts into adapter_model.safetensors, or save again."
    ),
    "weights_unreadable": "The file is damaged or cut short: copy it again.",
    "unsafe_pickle": "Do not load it. Ask for the adapter as safetensors.",
    "foreign_format": "Convert it to the PEFT format first.",
    "no_tensors": "The file holds no adapter tensors: save again from the live model.",
    "zero_size_tensor": (
        "Sharded weights were not gathered before saving (ZeRO-3 or FSDP): gather, save again."
    ),
    "non_finite": "Training diverged: lower the learning rate, clip gradients.",
    "unpaired_factors": "A factor is missing: save again from the live model.",
    "bad_shape": "The tensors do not fit together: save again from the live model.",
    "rank_mismatch": "Weights and config are of different runs: pair them anew.",
    "wrapper_segments": f"{_IGNORED}unwrap the model before saving, or strip the segments.",
    "missing_prefix": f"{_IGNORED}put 'base_model.model.' before every key.",
    "doubled_prefix": (
        f"{_IGNORED}save the PEFT model itself, not one wrapped in another, or take one "
        "'base_model.model.' away."
    ),
    "path_differs_from_base": (
        f"{_IGNORED}rename the leading segments as the base has them, or give the base model that "
        "the adapter was trained on."
    ),
    "not_targeted": (
        "PEFT makes no place for such tensors on load, and ignores them: pair weights and config "
        "of one run."
    ),
    "saved_modules_missing": (
        "What was trained there is not in the file: save again from the live model, or take the "
        "name out of the config."
    ),
    "module_absent_from_base": "Give the base model that the adapter was trained on.",
    "another_base": "Give the model that the fine-tune started from.",
    "shape_differs_from_base": "Give the base model that the adapter was trained on.",
    "adapter_name_not_default": (
        f"{_IGNORED}save with save_pretrained, or take the name out of every key."
    ),
}
"""Remedies of errors that make an adapter `broken`."""

_ERRORS: Final = {
    "alpha_zero": "The scaling is 0, so nothing is applied: set lora_alpha.",
}
"""Of other errors."""

_WARNINGS: Final = {
    "base_ambiguous": (
        "Several parts of the base have such a module: rename the keys' leading segments."
    ),
    "targets_missing_from_file": (
        "They stay as the base has them: save again from the live model, or correct the targets."
    ),
    "base_names_unknown": "Files of this family rename modules: judge by max|ΔW|, without --base.",
    "adapter_name_in_key": (
        "Some loaders ignore such keys: save with save_pretrained, which takes the name out."
    ),
    "alpha_missing": "PEFT takes 8; write the value of the run into the config.",
    "rank_missing": "PEFT takes 8; write the value of the run into the config.",
    "rewritten_base": (
        "Give the adapter as it was before training (--initial DIR), or convert it to plain LoRA "
        "with path_initial_model_for_weight_conversion."
    ),
    "direction_of_another_model": (
        "Make sure that both names mean the same weights; directions of two models have nothing "
        "in common."
    ),
    "unsupported_method": "Merge it with PEFT and compare the two checkpoints.",
    "unsupported_option": "Merge it with PEFT and compare the two checkpoints.",
    "needs_base": "Give the base model: --base DIR.",
    "saved_tensors_unverified": "Give the base model: --base DIR.",
    "base_quantized": "Give the base model in float32, bfloat16 or float16.",
    "base_not_finite": "The base model's file is damaged: copy it again.",
    "random_initialisation": (
        "It changed the base before any training: compare with the initial adapter (--initial DIR)."
    ),
    "some_modules_zero": (
        "These modules got no gradient: check freezing, detached paths and layer choice."
    ),
    "targets_match_nothing": "Check the names in the config against the model.",
    "pattern_matches_nothing": "Check the patterns in the config against the model.",
    "pattern_invalid": "Write a regular expression that compiles.",
    "extreme_update": "Check the scaling, and that the run did not diverge.",
    "lr_capped": "Raise the learning rate or train longer; gradients cannot help.",
    "compatible_with_noise": (
        "B looks like a random walk: check reward variance, batch size and group size."
    ),
    "budget_exceeded": (
        "The trainer state is of another run, another learning rate was used for B, or B did not "
        "start at 0: for an adapter that was trained before (by SFT, say), give the one that this "
        "run started from (--initial DIR)."
    ),
    "no_learning_signal": "Every logged gradient is 0: check rewards and freezing.",
    "trainer_state_unreadable": "Copy trainer_state.json from the run again.",
}
"""Of warnings."""

_NOTES: Final = {
    "direction_not_written": (
        "Give a direction of this model, of a layer above modules such as o_proj or down_proj that "
        "the adapter changes."
    ),
    "start_recomputed": (
        "The figures hold for the original base; where the run had another one, give the adapter "
        "as it was before training (--initial DIR)."
    ),
    "base_dequantised": (
        "Norms are good to the quantisation's error; compare saved tensors with the base itself."
    ),
    "saved_tensors_identical": "They need not be saved: drop modules_to_save or bias.",
    "base_tensors_saved": "They replace the base's: make sure that this is meant.",
    "applied_after_invocation": (
        "Compare with the invocation in the prompt; without it the base answers."
    ),
    "tied_embeddings": "Embedding and output head change together; expect both.",
    "base_overridden": "Make sure that both names mean the same weights.",
    "coherent_step_limited": (
        "The gradients agree but the steps are too small: raise the learning rate."
    ),
}
"""Of what is merely good to know."""

_SEVERITIES: Final[dict[str, Severity]] = {
    **dict.fromkeys((*_BREAKING, *_ERRORS), "error"),
    **dict.fromkeys(_WARNINGS, "warning"),
    **dict.fromkeys(_NOTES, "info"),
}
REMEDIES: Final = {**_BREAKING, **_ERRORS, **_WARNINGS, **_NOTES}
"""From every code to what to do about it."""


def finding(code: str, message: str, *, remedy: str | None = None) -> Finding:
    """A finding of a known code, with that code's severity and remedy."""
    return Finding(code, _SEVERITIES[code], message, remedy or REMEDIES[code])


def gathered(findings: Sequence[Finding]) -> list[Finding]:
    """One finding a code and remedy, in the order of the first: a fault of every module is one."""
    alike: dict[tuple[str, str], list[Finding]] = {}
    for found in findings:
        alike.setdefault((found.code, found.remedy), []).append(found)
    gathered = []
    for same in alike.values():
        message = " ".join(found.message for found in same[:_SHOWN])
        if len(same) > _SHOWN:
            message += f" {len(same) - _SHOWN} more are like these."
        gathered.append(replace(same[0], message=message))
    return gathered


def breaks(code: str) -> bool:
    """Whether a finding of this code makes the adapter `broken`."""
    return code in _BREAKING


def named(names: list[str], limit: int = _SHOWN) -> str:
    """The first few names, and how many there are."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
