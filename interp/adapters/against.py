"""An adapter's names and tensors against the base model that it is meant for."""

from __future__ import annotations

import re
from pathlib import Path

from interp.adapters.base import BaseModel
from interp.adapters.findings import Finding, finding, named
from interp.adapters.read import OpenAdapter
from interp.adapters.results import ModuleAudit
from interp.adapters.targets import about_base_targets, within

__all__ = ["about_base", "about_saved", "same_model"]

# What the name of a GGUF file adds to the model's.
_QUANTISATION = re.compile(r"(?i)[._-]((i?q\d\w*)|bf16|f16|f32|mxfp4\w*)$")
_TIED_ENDS = ("embed_tokens.weight", "wte.weight", "lm_head.weight")


def about_base(adapter: OpenAdapter, base: BaseModel, modules: list[ModuleAudit]) -> list[Finding]:
    """What of the adapter the base does not have, has elsewhere, or has in another form."""
    config = adapter.config
    findings = _absent(base, modules)
    headless = config is not None and config.headless
    astray = {
        module.name: there
        for module in modules
        if (there := base.astray(module.name, headless=headless))
    }
    if astray:
        name, there = next(iter(astray.items()))
        findings.append(
            finding(
                "path_differs_from_base",
                f"{len(astray)} of {len(modules)} are elsewhere in the base: {name} is {there}.",
            )
        )
    named_base = "" if config is None else config.base_model
    if named_base and base.path is not None and not _same_name(named_base, base.path):
        findings.append(
            finding("base_overridden", f"The config names {named_base}, not {base.path}.")
        )
    if base.dequantised:
        findings.append(
            finding("base_dequantised", f"Relative figures are over {base.label}, dequantised.")
        )
    if config is not None:
        findings += about_base_targets(config, adapter.keys, base)
    return findings + _tied(base, modules)


def _absent(base: BaseModel, modules: list[ModuleAudit]) -> list[Finding]:
    missing = [m.name for m in modules if m.kind not in ("saved", "bias") and m.base_norm is None]
    missing = [name for name in missing if base.get(name) is None]
    packed = [name for name in missing if base.quantized(name)]
    unclear = [name for name in missing if base.ambiguous(name)]
    absent = [name for name in missing if name not in packed and name not in unclear]
    findings = []
    if unclear:
        findings.append(
            finding("base_ambiguous", f"Several tensors of the base fit {named(unclear)}.")
        )
    if packed:
        findings.append(finding("base_quantized", f"Not in floating point: {named(packed)}."))
    if absent and base.renamed:
        findings.append(
            finding(
                "base_names_unknown",
                f"{len(absent)} of {len(modules)} are called otherwise in {base.label}, or are "
                f"not in it: {named(absent)}.",
            )
        )
    elif absent:
        findings.append(
            finding(
                "module_absent_from_base",
                f"{len(absent)} of {len(modules)} are not in {base.label}: {named(absent)}.",
            )
        )
    return findings


def _tied(base: BaseModel, modules: list[ModuleAudit]) -> list[Finding]:
    """Input and output embeddings that are one tensor, adapted as if they were two."""
    tied = [m for m in modules if m.name.endswith(_TIED_ENDS) and not m.starts_zero]
    if not base.tied or not tied:
        return []
    names = named([module.name for module in tied])
    factored = {m.name for m in tied if m.kind not in ("saved", "tokens")}
    if len(factored) > 1:
        return [
            finding(
                "tied_embeddings",
                f"The base ties {names}: loaded, each has its own change, as listed here; a merge "
                f"adds both to the one tensor.",
            )
        ]
    if factored:
        return [
            finding(
                "tied_embeddings",
                f"The base ties {names} to its other end: loaded, the change is at this end only; "
                f"a merge changes both.",
            )
        ]
    return [finding("tied_embeddings", f"The base ties {names}.")]


def about_saved(adapter: OpenAdapter, modules: list[ModuleAudit]) -> list[Finding]:
    """Base tensors that are saved without having been asked for in the config."""
    config = adapter.config
    if config is None:
        return []
    asked = config.modules_to_save
    if config.method == "LN_TUNING":
        return []  # tuned norms are saved whole
    extra = [
        m.name
        for m in modules
        if m.kind == "saved" and not any(within(m.module, name) for name in asked)
    ]
    if not extra:
        return []
    return [finding("base_tensors_saved", f"The file holds base tensors: {named(extra)}.")]


def _same_name(named_base: str, path: Path) -> bool:
    """Whether a folder, or one that it lies in, is called as the config calls the base."""
    # A folder of the Hub's cache has the name further up.
    names = {Path(named_base).name, f"models--{named_base.replace('/', '--')}"}
    segments = {*path.parts, *path.resolve().parts}
    if path.suffix == ".gguf":
        segments.add(_QUANTISATION.sub("", path.stem))
    return not {name.casefold() for name in names}.isdisjoint(s.casefold() for s in segments)


def same_model(name: str, configured: str, base: BaseModel | None) -> bool | None:
    """Whether a model's name is that of an adapter's base; None where the base has none.

    Args:
        name: Hub id, alias, or the name of a folder or file.
        configured: what the adapter's config calls its base, may be empty.
        base: that was given, if any.
    """
    path = None if base is None else base.path
    if path is not None and _same_name(name, path):
        return True
    if configured:
        return Path(configured).name.casefold() == Path(name).name.casefold()
    return None if path is None else False
