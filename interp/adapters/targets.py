"""Which modules a config means, as PEFT reads it, against those that the file and the base have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from interp.adapters.base import BaseModel, leading
from interp.adapters.config import AdapterConfig
from interp.adapters.findings import Finding, finding, named
from interp.adapters.keys import ParsedKey

__all__ = ["about_base_targets", "about_targets", "idle_targets", "may_own", "targeted", "within"]

_ALL_LINEAR: Final = "all-linear"
# PEFT itself adds these to the saved modules of such tasks; a model has one of them.
_HEADS: Final = {
    "SEQ_CLS": ("classifier", "score"),
    "TOKEN_CLS": ("classifier", "score"),
    "QUESTION_ANS": ("qa_outputs",),
}
_TOKENS: Final = "trainable_tokens_delta"
# Ends that models tie to each other.
_TIED_ENDS: Final = ("embed_tokens", "wte", "word_embeddings", "shared", "lm_head", "embed_out")
_NUMBERED_EXPERT: Final = re.compile(r"\.experts\.\d+\.")


def targeted(config: AdapterConfig, module: str) -> bool | None:
    """Whether PEFT would put factors on a module of this name; None if the config does not say.

    `exclude_modules` and `modules_to_save` win over `target_modules`; a text is a regular
    expression of the whole name, a list holds names or ends of names, which
    `layers_to_transform` narrows by the first number in the name.
    """
    targets = config.raw.get("target_modules")
    if _excluded(config, module):
        return False
    if isinstance(targets, str):
        if targets.lower() == _ALL_LINEAR:
            return None
        return _matches(targets, module)
    if not isinstance(targets, list):
        return None
    if not _ends(module, [str(target) for target in targets]):
        return False
    layers = _layers(config)
    return layers is None or _layer(config, module) in layers


def may_own(config: AdapterConfig, module: str, target: str) -> bool:
    """Whether a target parameter can be one of this module's own, by the names alone.

    A target without a dot names a parameter of any module. Modules whose matrix is targeted as
    such have no parameter of that name.
    """
    owner = target.rpartition(".")[0]
    if owner:
        return _ends(module, [owner])
    if isinstance(config.raw.get("target_modules"), str) and targeted(config, module) is None:
        # All linear modules are targeted: what is left are fused experts.
        return "expert" in module.rpartition(".")[2]
    return targeted(config, module) is not True


def about_targets(config: AdapterConfig, keys: Sequence[ParsedKey]) -> list[Finding]:
    """Names in the config that nothing in the file answers to, and the other way round."""
    found = _about_saved_names(config, keys)
    modules = {key.module for key in keys if key.part not in ("saved", _TOKENS) and key.module}
    if not modules:
        return found
    idle = idle_targets(config, modules)
    if idle:
        found.append(finding("targets_match_nothing", f"No module for {named(idle)}."))
    strays = [
        module
        for module in sorted(modules)
        if targeted(config, module) is False
        and not any(may_own(config, module, target) for target in config.target_parameters)
        and not _follows(config, module, modules)
    ]
    # Names with a wrong start fit no regular expression either: that is said elsewhere.
    if strays and all(key.prefixed and not key.module.startswith("base_model.") for key in keys):
        found.append(
            finding(
                "not_targeted",
                f"{len(strays)} of {len(modules)} modules in the file are none that the config "
                f"targets: {named(strays)}.",
            )
        )
    names = modules | {
        f"{module}.{target.rpartition('.')[2]}"
        for module in modules
        for target in config.target_parameters
    }
    patterns = sorted({*config.rank_pattern, *config.alpha_pattern})
    unused = [p for p in patterns if not any(_fits(p, name) for name in names)]
    if unused:
        found.append(finding("pattern_matches_nothing", f"No module for {named(unused)}."))
    return found


def about_base_targets(
    config: AdapterConfig, keys: Sequence[ParsedKey], base: BaseModel
) -> list[Finding]:
    """Modules of the base that the config means and the file lacks."""
    saved = {key.module for key in keys if key.part == "saved"}
    lost = [
        name
        for name in config.modules_to_save
        if not any(within(module, name) for module in saved)
        and any(within(tensor.rpartition(".")[0], name) for tensor in base.tensors)
    ]
    found = []
    if lost:
        found.append(
            finding("saved_modules_missing", f"modules_to_save has {named(lost)}, the file not.")
        )
    modules = {key.module for key in keys if key.part not in ("saved", _TOKENS) and key.module}
    targets = config.target_parameters
    strays = [
        module
        for module in sorted(modules)
        if targeted(config, module) is False
        and not _follows(config, module, modules)
        # Names alone excuse these: the base tells whether there is such a parameter.
        and any(may_own(config, module, target) for target in targets)
        and not any("." in target and may_own(config, module, target) for target in targets)
        and not any(base.holds(f"{module}.{target}") for target in targets)
    ]
    if strays:
        found.append(
            finding(
                "not_targeted",
                f"{named(strays)} are none that the config targets, and have none of the "
                f"parameters {named(sorted(targets))}.",
            )
        )
    there = _live_modules(modules, base)
    wanted = [name for name in sorted(there) if targeted(config, name)]
    missing = [name for name in wanted if name not in modules]
    if missing and len(missing) < len(wanted):
        found.append(
            finding(
                "targets_missing_from_file",
                f"{len(missing)} of {len(wanted)} modules that the config targets have no tensors "
                f"in the file: {named(missing)}.",
            )
        )
    return found


def _about_saved_names(config: AdapterConfig, keys: Sequence[ParsedKey]) -> list[Finding]:
    """Saved modules, tokens and parameters that the config names and the file lacks."""
    saved = {key.module for key in keys if key.part == "saved"}
    lacking = [n for n in config.modules_to_save if not any(within(m, n) for m in saved)]
    heads = _HEADS.get(str(config.raw.get("task_type")), ())
    if any(within(module, head) for module in saved for head in heads):
        lacking = [name for name in lacking if name not in heads]
    found = []
    if lacking and not any(within(m, n) for m in saved for n in config.modules_to_save):
        found.append(
            finding(
                "saved_modules_missing",
                f"modules_to_save has {named(lacking)}, and the file holds no saved module.",
            )
        )
    elif lacking:
        found.append(finding("targets_match_nothing", f"No saved module for {named(lacking)}."))
    if config.token_indices and not any(key.part == _TOKENS for key in keys):
        found.append(
            finding("saved_modules_missing", "The config has trainable tokens, the file has none.")
        )
    with_factors: dict[str, set[int]] = {}
    for key in keys:
        if key.part in ("lora_A", "lora_B"):
            with_factors.setdefault(key.module, set()).add(key.depth)
    by_owner: dict[str, list[str]] = {}
    for target in config.target_parameters:
        by_owner.setdefault(target.rpartition(".")[0], []).append(target)
    for owner, parameters in by_owner.items():
        n_wanted = len(set(parameters))
        fitting = [d for m, d in with_factors.items() if may_own(config, m, parameters[0])]
        if not fitting:
            found.append(
                finding("targets_match_nothing", f"No module for {named(sorted(parameters))}.")
            )
        # Names without a dot may be those of several modules.
        elif owner and any(len(depths) < n_wanted for depths in fitting):
            found.append(
                finding(
                    "targets_missing_from_file",
                    f"Some modules have factors for fewer than {named(sorted(parameters))}.",
                )
            )
    return found


def _follows(config: AdapterConfig, module: str, modules: Iterable[str]) -> bool:
    """Whether PEFT puts factors on a module because another one has them.

    That is so of the other end of tied embeddings, and of the output projection inside torch's
    multi-head attention.
    """
    attention = module.removesuffix(".out_proj")
    if attention != module and attention in modules and targeted(config, attention):
        return True
    return (
        bool(config.raw.get("ensure_weight_tying"))
        and _ends(module, _TIED_ENDS)
        and any(_ends(m, _TIED_ENDS) and targeted(config, m) for m in modules if m != module)
    )


def idle_targets(config: AdapterConfig, modules: Iterable[str]) -> list[str]:
    """Targets and layers without a module, other than those that the config itself excludes."""
    raw = config.raw
    targets, modules = raw.get("target_modules"), list(modules)
    if config.method == "ADAPTION_PROMPT" and isinstance(targets, str):
        targets = [targets]  # the end of a name there, no pattern
    idle: list[str] = []
    if isinstance(targets, str) and targets.lower() != _ALL_LINEAR:
        if not any(_matches(targets, module) for module in modules):
            idle.append(targets)
    elif isinstance(targets, list):
        layers = _layers(config)
        for target in map(str, targets):
            if any(_ends(module, [target]) for module in modules):
                continue
            # What is excluded, or in a layer that is left out, is meant to be missing. A pattern
            # of exclusion may hit names that only the base can tell.
            number = _layer(config, f"{target}.")
            skipped = layers is not None and number is not None and number not in layers
            if not skipped and not _may_be_excluded(config, target):
                idle.append(target)
    wanted = _layers(config)
    if wanted is not None and not isinstance(targets, str):
        there = {_layer(config, f"{module}.") for module in modules}
        idle += [f"layer {layer}" for layer in wanted if layer not in there]
    return idle


def _may_be_excluded(config: AdapterConfig, target: str) -> bool:
    excluded = config.raw.get("exclude_modules")
    if isinstance(excluded, str) and excluded:
        return True
    if _excluded(config, target):
        return True
    names = map(str, excluded) if isinstance(excluded, list) else ()
    return any(_ends(name, [target]) for name in names)


def _excluded(config: AdapterConfig, module: str) -> bool:
    excluded = config.raw.get("exclude_modules")
    if isinstance(excluded, str) and excluded:
        if _matches(excluded, module):
            return True
    elif isinstance(excluded, list) and _ends(module, [str(name) for name in excluded]):
        return True
    return any(
        re.match(rf"(^|.*\.){re.escape(name)}($|\..*)", module) for name in config.modules_to_save
    )


def _layers(config: AdapterConfig) -> list[int] | None:
    layers: Any = config.raw.get("layers_to_transform")
    if layers is None or layers == []:
        return None
    return list(layers) if isinstance(layers, list) else [layers]


def _layer(config: AdapterConfig, module: str) -> int | None:
    """The layer's number by the first number in a name, or the one after `layers_pattern`."""
    patterns = config.raw.get("layers_pattern")
    names = [patterns] if isinstance(patterns, str) else list(patterns or [])
    starts = [rf"(?:^|.*?\.){name}\." for name in names if name] or [r"(?:^|.*?\.)[^.]*\."]
    for start in starts:
        try:
            match = re.match(rf"{start}(\d+)\.", module)
        except re.error:
            continue
        if match:
            return int(match[1])
    return None


def _live_modules(modules: set[str], base: BaseModel) -> set[str]:
    """Modules with a matrix in the base, called as the live model calls them.

    Only those below the places where the adapter has modules: a base of several parts may be
    larger than the model that was adapted.
    """
    starts: dict[tuple[str, ...], tuple[str, ...]] = {}
    for module in modules:
        file = base.find(f"{module}.weight")
        if file is not None:
            starts[tuple(leading(file))] = tuple(leading(f"{module}.weight"))
    found = set()
    for tensor in base.tensors:
        module, _, leaf = tensor.rpartition(".")
        # Experts that files keep apart are one module in the live model.
        if (
            leaf != "weight"
            or _NUMBERED_EXPERT.search(tensor)
            or len(base.tensors.shape(tensor)) < 2
        ):
            continue
        start = tuple(leading(tensor))
        if start in starts:
            rest = module.split(".")[len(start) :]
            found.add(".".join([*starts[start], *rest]))
    return found


def _matches(pattern: str, module: str) -> bool:
    try:
        return re.fullmatch(pattern, module) is not None
    except re.error:
        return False


def _ends(module: str, names: Sequence[str]) -> bool:
    return any(module == name or module.endswith(f".{name}") for name in names)


def within(module: str, name: str) -> bool:
    """Whether a module is one that `modules_to_save` names, or lies in it.

    PEFT compares the ends of names without regard to dots: `head` means `lm_head`.
    """
    return f"{name}." in f"{module}."


def _fits(pattern: str, module: str) -> bool:
    try:
        return re.match(rf"(.*\.)?({pattern})$", module) is not None
    except re.error:
        return True
