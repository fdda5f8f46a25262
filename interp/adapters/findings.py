"""What an audit can find: stable codes, how bad each is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["CODES", "Finding", "Severity", "breaks", "finding", "named"]

Severity = Literal["error", "warning", "info"]


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


# code: (severity, whether the adapter counts as broken, remedy)
_E: Final = "error"
_W: Final = "warning"
_I: Final = "info"
CODES: Final[dict[str, tuple[Severity, bool, str]]] = {
    "config_missing": (_E, True, "Copy adapter_config.json from the run, or save again."),
    "config_unreadable": (_E, True, "Save the adapter again with save_pretrained."),
    "weights_missing": (_E, True, "Copy adapter_model.safetensors from the run, or save again."),
    "sharded_weights": (
        _E,
        True,
        "PEFT loads one file: join the parts into adapter_model.safetensors, or save again.",
    ),
    "weights_unreadable": (_E, True, "The file is damaged or cut short: copy it again."),
    "unsafe_pickle": (_E, True, "Do not load it. Ask for the adapter as safetensors."),
    "foreign_format": (_E, True, "Convert it to the PEFT format first."),
    "no_tensors": (_E, True, "The file holds no adapter tensors: save again from the live model."),
    "zero_size_tensor": (
        _E,
        True,
        "Sharded weights were not gathered before saving (ZeRO-3 or FSDP): gather, save again.",
    ),
    "non_finite": (_E, True, "Training diverged: lower the learning rate, clip gradients."),
    "unpaired_factors": (_E, True, "A factor is missing: save again from the live model."),
    "bad_shape": (_E, True, "The tensors do not fit together: save again from the live model."),
    "rank_mismatch": (_E, True, "Weights and config are of different runs: pair them anew."),
    "wrapper_segments": (
        _E,
        True,
        "PEFT ignores such keys on load and the adapter does nothing: unwrap the model before "
        "saving, or strip the segments.",
    ),
    "missing_prefix": (
        _E,
        True,
        "PEFT ignores such keys on load and the adapter does nothing: put 'base_model.model.' "
        "before every key.",
    ),
    "doubled_prefix": (
        _E,
        True,
        "PEFT ignores such keys on load and the adapter does nothing: save the PEFT model itself, "
        "not one wrapped in another, or take one 'base_model.model.' away.",
    ),
    "path_differs_from_base": (
        _E,
        True,
        "PEFT ignores such keys on load and the adapter does nothing: rename the leading segments "
        "as the base has them, or give the base model that the adapter was trained on.",
    ),
    "base_ambiguous": (
        _W,
        False,
        "Several parts of the base have such a module: rename the keys' leading segments.",
    ),
    "not_targeted": (
        _E,
        True,
        "PEFT makes no place for such tensors on load, and ignores them: pair weights and config "
        "of one run.",
    ),
    "saved_modules_missing": (
        _E,
        True,
        "What was trained there is not in the file: save again from the live model, or take the "
        "name out of the config.",
    ),
    "targets_missing_from_file": (
        _W,
        False,
        "They stay as the base has them: save again from the live model, or correct the targets.",
    ),
    "module_absent_from_base": (_E, True, "Give the base model that the adapter was trained on."),
    "base_names_unknown": (
        _W,
        False,
        "Files of this family rename modules: judge by max|ΔW|, without --base.",
    ),
    "another_base": (_E, True, "Give the model that the fine-tune started from."),
    "shape_differs_from_base": (_E, True, "Give the base model that the adapter was trained on."),
    "adapter_name_in_key": (
        _W,
        False,
        "Some loaders ignore such keys: save with save_pretrained, which takes the name out.",
    ),
    "adapter_name_not_default": (
        _E,
        True,
        "PEFT ignores such keys on load and the adapter does nothing: save with save_pretrained, "
        "or take the name out of every key.",
    ),
    "alpha_zero": (_E, False, "The scaling is 0, so nothing is applied: set lora_alpha."),
    "alpha_missing": (_W, False, "PEFT takes 8; write the value of the run into the config."),
    "rank_missing": (_W, False, "PEFT takes 8; write the value of the run into the config."),
    "rewritten_base": (
        _W,
        False,
        "Give the adapter as it was before training (--initial DIR), or convert it to plain LoRA "
        "with path_initial_model_for_weight_conversion.",
    ),
    "direction_of_another_model": (
        _W,
        False,
        "Make sure that both names mean the same weights; directions of two models have nothing "
        "in common.",
    ),
    "direction_not_written": (
        _I,
        False,
        "Give a direction of this model, of a layer above modules such as o_proj or down_proj that "
        "the adapter changes.",
    ),
    "start_recomputed": (
        _I,
        False,
        "The figures hold for the original base; where the run had another one, give the adapter "
        "as it was before training (--initial DIR).",
    ),
    "unsupported_method": (_W, False, "Merge it with PEFT and compare the two checkpoints."),
    "unsupported_option": (_W, False, "Merge it with PEFT and compare the two checkpoints."),
    "needs_base": (_W, False, "Give the base model: --base DIR."),
    "saved_tensors_unverified": (_W, False, "Give the base model: --base DIR."),
    "base_quantized": (_W, False, "Give the base model in float32, bfloat16 or float16."),
    "base_dequantised": (
        _I,
        False,
        "Norms are good to the quantisation's error; compare saved tensors with the base itself.",
    ),
    "base_not_finite": (_W, False, "The base model's file is damaged: copy it again."),
    "random_initialisation": (
        _W,
        False,
        "Both factors were random before training: compare with the initial adapter.",
    ),
    "some_modules_zero": (
        _W,
        False,
        "These modules got no gradient: check freezing, detached paths and layer choice.",
    ),
    "targets_match_nothing": (_W, False, "Check the names in the config against the model."),
    "pattern_matches_nothing": (_W, False, "Check the patterns in the config against the model."),
    "pattern_invalid": (_W, False, "Write a regular expression that compiles."),
    "saved_tensors_identical": (_I, False, "They need not be saved: drop modules_to_save or bias."),
    "base_tensors_saved": (_I, False, "They replace the base's: make sure that this is meant."),
    "applied_after_invocation": (
        _I,
        False,
        "Compare with the invocation in the prompt; without it the base answers.",
    ),
    "tied_embeddings": (_I, False, "Embedding and output head change together; expect both."),
    "base_overridden": (_I, False, "Make sure that both names mean the same weights."),
    "extreme_update": (_W, False, "Check the scaling, and that the run did not diverge."),
    "lr_capped": (_W, False, "Raise the learning rate or train longer; gradients cannot help."),
    "compatible_with_noise": (
        _W,
        False,
        "B looks like a random walk: check reward variance, batch size and group size.",
    ),
    "coherent_step_limited": (
        _I,
        False,
        "The gradients agree but the steps are too small: raise the learning rate.",
    ),
    "budget_exceeded": (
        _W,
        False,
        "The trainer state is of another run, another learning rate was used for B, or B did not "
        "start at 0: for an adapter that was trained before (by SFT, say), give the one that this "
        "run started from (--initial DIR).",
    ),
    "no_learning_signal": (_W, False, "Every logged gradient is 0: check rewards and freezing."),
    "trainer_state_unreadable": (_W, False, "Copy trainer_state.json from the run again."),
}


def finding(code: str, message: str, *, remedy: str | None = None) -> Finding:
    """A finding of a known code, with that code's severity and remedy."""
    severity, _, usual = CODES[code]
    return Finding(code=code, severity=severity, message=message, remedy=remedy or usual)


def breaks(code: str) -> bool:
    """Whether a finding of this code makes the adapter `broken`."""
    return CODES[code][1]


def named(names: list[str], limit: int = 3) -> str:
    """The first few names, and how many there are."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
