"""`adapter_config.json`, read the way PEFT reads it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from interp.adapters.findings import Finding, finding, named

__all__ = ["AdapterConfig", "parse_config", "pattern_value", "read_config"]

_T = TypeVar("_T")

PEFT_DEFAULT_RANK: Final = 8
PEFT_DEFAULT_ALPHA: Final = 8.0

_DIVIDED_BY_RANK: Final = ("LORA", "LOHA", "LOKR", "RANDLORA")
_LARGEST_RANK: Final = 2**31 - 1

# Initialisations that take part of the base weight into the factors, so that the base that the
# adapter is applied to is no longer the released one.
_REWRITING: Final = ("pissa", "olora", "corda", "loftq", "lora_ga")

# Those that leave the base as it is; of any other nothing is known.
_KEEPING: Final = ("true", "false", "none", "gaussian", "eva", "orthogonal", "mica")

# Options under which ΔW is not s·BA, and for which no formula here is tested.
_OTHER_FORMULA: Final = (
    "use_qalora",
    "use_bdlora",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "megatron_config",
    "layer_replication",
)


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What of the config decides the update.

    Attributes:
        method: `peft_type` in capitals: LORA, ADALORA, IA3, …
        r: rank where no pattern says otherwise.
        lora_alpha: numerator of the scaling where no pattern says otherwise.
        use_rslora: scaling α/√r in place of α/r.
        rank_pattern: regular expression of module names to rank.
        alpha_pattern: the same for α.
        fan_in_fan_out: base weights are stored (in, out), as in GPT-2's Conv1D.
        use_dora: columns are rescaled by a learned magnitude.
        init: `init_lora_weights` as text: `true`, `gaussian`, `pissa`, …
        bias: `none`, `all` or `<method>_only`.
        modules_to_save: names of modules that are saved whole.
        target_parameters: names of parameters (fused experts) with factors.
        token_indices: of trainable tokens: rows by module name; "" where no name is given.
        base_model: `base_model_name_or_path`.
        raw: the whole object.
    """

    method: str
    r: int
    lora_alpha: float
    use_rslora: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    fan_in_fan_out: bool
    use_dora: bool
    init: str
    bias: str
    modules_to_save: tuple[str, ...]
    target_parameters: tuple[str, ...]
    token_indices: Mapping[str, tuple[int, ...]]
    base_model: str
    raw: Mapping[str, Any]

    def rank_of(self, module: str) -> int:
        """Rank that the config gives a module."""
        return pattern_value(self.rank_pattern, module, self.r)

    def scaling_of(self, module: str) -> float:
        """α/r, or α/√r under rsLoRA, with the module's own α and r."""
        rank = self.rank_of(module)
        alpha = pattern_value(self.alpha_pattern, module, self.lora_alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    @property
    def headless(self) -> bool:
        """Whether it was trained on the bare model, whose modules have no outer `model.`."""
        mapping = self.raw.get("auto_mapping")
        name = mapping.get("base_model_class") if isinstance(mapping, dict) else None
        bare = isinstance(name, str) and name.endswith("Model") and "Head" not in name
        return bare or self.raw.get("task_type") == "FEATURE_EXTRACTION"

    @property
    def rewrites_base(self) -> bool:
        """Whether the initialisation moved part of the base into the factors."""
        return self.init.startswith(_REWRITING)

    @property
    def recomputable(self) -> bool:
        """Whether the base alone fixes the factors that training started from."""
        return self.method == "LORA" and self.init in ("pissa", "olora")

    @property
    def unknown_init(self) -> bool:
        """Whether it is not known what the initialisation did to the base."""
        return not self.rewrites_base and self.init not in _KEEPING

    @property
    def other_formula(self) -> tuple[str, ...]:
        """Options that are set and change what ΔW is."""
        return tuple(name for name in _OTHER_FORMULA if self.raw.get(name))


def pattern_value(patterns: Mapping[str, _T], module: str, default: _T) -> _T:
    """Value of the first pattern that matches a whole module name or its end, else `default`."""
    for pattern, value in patterns.items():
        try:
            if re.match(rf"(.*\.)?({pattern})$", module):
                return value
        except re.error:
            continue
    return default


def read_config(path: Path) -> tuple[AdapterConfig | None, list[Finding]]:
    """Read a config file; what is wrong with it comes back as findings."""
    if not path.is_file():
        return None, [finding("config_missing", f"There is no {path.name} in {path.parent}.")]
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        return None, [finding("config_unreadable", f"{path.name} is not JSON ({error}).")]
    if not isinstance(raw, dict):
        return None, [finding("config_unreadable", f"{path.name} is not a JSON object.")]
    try:
        return parse_config(raw)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        return None, [finding("config_unreadable", f"{path.name} has a wrong value ({error}).")]


def parse_config(raw: Mapping[str, Any]) -> tuple[AdapterConfig | None, list[Finding]]:
    """Take the fields that matter, with PEFT's defaults.

    Raises:
        TypeError: a field has the wrong type.
        ValueError: a field has an impossible value.
        OverflowError: a number is too large for a float, or infinite where it must be whole.
    """
    findings = []
    method = raw.get("peft_type")
    if not isinstance(method, str) or not method:
        if "lora_parameters" in raw or "fine_tune_type" in raw:
            return None, [finding("foreign_format", "The config is one of MLX, not of PEFT.")]
        return None, [finding("config_unreadable", "The config has no peft_type.")]
    method = method.upper()
    lora = method == "LORA"
    rank = raw.get("r")
    alpha = raw.get("alpha" if method in ("LOHA", "LOKR") else "lora_alpha")
    if lora and rank is None:
        findings.append(finding("rank_missing", "The config has no r."))
    if lora and alpha is None:
        findings.append(finding("alpha_missing", "The config has no lora_alpha."))
    if lora and alpha is not None and float(alpha) == 0:
        findings.append(finding("alpha_zero", "lora_alpha is 0."))
    r = PEFT_DEFAULT_RANK if rank is None else int(rank)
    if (method in _DIVIDED_BY_RANK and r < 1) or r > _LARGEST_RANK:
        raise ValueError(f"r is {r:.3g}; expected at least 1 and at most {_LARGEST_RANK}")
    layers = raw.get("layers_to_transform")
    if not all(
        isinstance(n, int | None) for n in (layers if isinstance(layers, list) else [layers])
    ):
        raise TypeError("layers_to_transform is neither a number nor a list of numbers")
    if alpha is not None and not math.isfinite(float(alpha)):
        raise ValueError(f"alpha is {alpha}; expected a finite number")
    patterns = {
        name: _numbers(raw.get(name)) if method != "ADALORA" else {}
        for name in ("rank_pattern", "alpha_pattern")
    }
    invalid = [p for found in patterns.values() for p in found if not _compiles(p)]
    if invalid:
        findings.append(finding("pattern_invalid", f"Cannot be compiled: {named(invalid)}."))
    unscaled = [name for name, value in patterns["alpha_pattern"].items() if value == 0]
    if lora and unscaled:
        findings.append(
            finding(
                "alpha_zero",
                f"alpha_pattern gives 0 to {named(unscaled)}.",
                remedy="The scaling is 0 there, so nothing is applied: correct alpha_pattern.",
            )
        )
    return AdapterConfig(
        method=method,
        r=r,
        lora_alpha=PEFT_DEFAULT_ALPHA if alpha is None else float(alpha),
        use_rslora=bool(raw.get("use_rslora")),
        rank_pattern={key: max(1, int(value)) for key, value in patterns["rank_pattern"].items()},
        alpha_pattern=patterns["alpha_pattern"],
        fan_in_fan_out=bool(raw.get("fan_in_fan_out")),
        use_dora=bool(raw.get("use_dora")),
        init=str(raw.get("init_lora_weights", True)).lower(),
        bias=str(raw.get("bias") or "none"),
        modules_to_save=_names(raw.get("modules_to_save")),
        target_parameters=_names(raw.get("target_parameters")),
        token_indices=_tokens(raw),
        base_model=str(raw.get("base_model_name_or_path") or ""),
        raw=raw,
    ), findings


def _numbers(value: object) -> dict[str, float]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TypeError(f"a pattern is a {type(value).__name__}; expected an object")
    found = {str(key): float(number) for key, number in value.items()}
    if not all(map(math.isfinite, found.values())):
        raise ValueError("a pattern's value is not finite")
    return found


def _names(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise TypeError(f"a list of names is a {type(value).__name__}")
    return tuple(str(name) for name in value)


def _tokens(raw: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    value = raw.get("trainable_token_indices", raw.get("token_indices"))
    if value is None:
        return {}
    by_name = value if isinstance(value, dict) else {"": value}
    return {name: tuple(int(index) for index in rows) for name, rows in by_name.items()}


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True
