"""From an adapter's files to its updates, one module at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from interp.adapters.base import BaseModel
from interp.adapters.config import AdapterConfig, read_config
from interp.adapters.findings import Finding, finding, named
from interp.adapters.keys import ParsedKey, foreign_keys, key_findings, layer_of, parse_key
from interp.adapters.locate import AdapterFolder
from interp.adapters.methods import BUILDERS, unsupported_options
from interp.adapters.saved import saved_update, token_updates
from interp.adapters.tensors import Tensors, open_tensors
from interp.adapters.updates import Context, Group, Update
from interp.errors import AdapterError

__all__ = ["OpenAdapter", "open_adapter", "read_updates"]

_MISFITS: Final = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    RuntimeError,
    ArithmeticError,
    re.error,
)
_SHARED: Final = ("vera_A", "vera_B", "randlora_A", "randlora_B")


@dataclass(frozen=True, slots=True)
class OpenAdapter:
    """An adapter whose files are open.

    Attributes:
        config: None if it cannot be read.
        keys: tensor names, taken apart.
        tensors: the open weight file.
        findings: about the files, the config and the names.
    """

    config: AdapterConfig | None
    keys: tuple[ParsedKey, ...]
    tensors: Tensors
    findings: tuple[Finding, ...]


@contextmanager
def open_adapter(folder: AdapterFolder) -> Iterator[OpenAdapter]:
    """Open an adapter's files; nothing in them is executed."""
    config, findings = read_config(folder.config)
    paths: tuple[Path, ...] = () if folder.weights is None else (folder.weights,)
    if folder.weights is None:
        if folder.foreign is not None:
            findings = [finding("foreign_format", f"{folder.foreign.name} is not PEFT's.")]
        else:
            findings.append(
                finding("weights_missing", f"{folder.path} has no adapter_model.safetensors.")
            )
    with ExitStack() as stack:
        tensors = stack.enter_context(open_tensors(*paths))
        findings += tensors.findings
        names = list(tensors)
        if paths and not tensors.findings and not names:
            findings.append(finding("no_tensors", f"{paths[0].name} holds no tensors."))
        tool = foreign_keys(names)
        keys = tuple(parse_key(name) for name in names)
        if tool is not None:
            findings.append(finding("foreign_format", f"The keys are {tool}'s: {names[0]}."))
        elif config is None or config.method in BUILDERS:
            findings += key_findings(list(keys))
        empty = [name for name in names if 0 in tensors.shape(name)]
        if empty:
            findings.append(
                finding("zero_size_tensor", f"{len(empty)} tensors are empty: {named(empty)}.")
            )
        if config is not None:
            findings += _about_method(config) + _unmatched(config, keys)
        yield OpenAdapter(config, keys, tensors, tuple(findings))


def read_updates(adapter: OpenAdapter, base: BaseModel | None) -> Iterator[Update]:
    """The updates of an adapter, in the order of modules; tensors are read as they are needed.

    An adapter whose method is not known yields none.
    """
    config = adapter.config
    if config is None or config.method not in BUILDERS or unsupported_options(config):
        return
    context = Context(config, base)
    tensors = adapter.tensors
    shared: dict[str, torch.Tensor] = {}
    for key in adapter.keys:
        # RandLora repeats the shared bases in every module: these copies are only checked.
        if key.part in _SHARED and 0 not in tensors.shape(key.key):
            read = _read(tensors, [key])
            if isinstance(read, Finding):
                yield Update(f"{key.module}.weight", key.module, "linear", findings=(read,))
                continue
            tensor = read[key]
            if not bool(tensor.isfinite().all()):
                yield _not_finite(key.module, [key.key])
            if not key.module:
                shared[key.part] = tensor
    groups: dict[tuple[str, int], list[ParsedKey]] = {}
    for key in adapter.keys:
        if key.part not in _SHARED:
            groups.setdefault((key.module, key.depth), []).append(key)
    for (module, depth), keys in sorted(groups.items(), key=lambda item: _order(item[0])):
        if any(0 in tensors.shape(key.key) for key in keys):
            continue
        read = _read(tensors, keys)
        if isinstance(read, Finding):
            yield Update(f"{module}.weight", module, "linear", findings=(read,))
            continue
        broken = [key.key for key, tensor in read.items() if not bool(tensor.isfinite().all())]
        if broken:
            yield _not_finite(module, broken)
            continue
        for key, tensor in read.items():
            if key.part == "saved":
                bias = key.leaf == "bias" and config.bias != "none"
                yield saved_update(f"{module}.{key.leaf}", module, tensor, base, bias=bias)
        parts = {
            f"{key.part}.bias" if key.leaf == "bias" else key.part: tensor
            for key, tensor in read.items()
            if key.part != "saved"
        }
        if parts:
            yield from _built(Group(module, depth, parts, shared), context)


def _read(tensors: Tensors, keys: list[ParsedKey]) -> dict[ParsedKey, torch.Tensor] | Finding:
    try:
        read = {key: tensors.get(key.key) for key in keys}
    except AdapterError as error:
        return finding("weights_unreadable", str(error))
    for key, tensor in read.items():
        if tensor.is_complex() or tensor.layout != torch.strided or tensor.is_quantized:
            kind = f"{str(tensor.dtype).removeprefix('torch.')}, {tensor.layout}"
            return finding("bad_shape", f"{key.key} holds no plain real numbers ({kind}).")
    return {key: _wide(tensor) for key, tensor in read.items()}


def _not_finite(module: str, names: list[str]) -> Update:
    found = finding("non_finite", f"NaN or infinity in {named(names)}.")
    return Update(f"{module}.weight", module, "linear", findings=(found,))


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Floats of one byte have no arithmetic: widened."""
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() < 2 else tensor


def _built(group: Group, context: Context) -> Iterator[Update]:
    tokens = "trainable_tokens_delta" in group.tensors
    builder = token_updates if tokens else BUILDERS[context.config.method]
    try:
        yield from builder(group, context)
    except torch.OutOfMemoryError:
        raise
    except (*_MISFITS, AdapterError) as error:
        found = finding("bad_shape", f"{group.module}: the tensors do not fit together ({error}).")
        yield Update(f"{group.module}.weight", group.module, "linear", findings=(found,))


def _order(key: tuple[str, int]) -> tuple[list[tuple[int, str]], int]:
    """Natural order of module names: layer 2 before layer 10."""
    pieces = re.split(r"(\d+)", key[0])
    return [(int(piece), "") if piece.isdecimal() else (0, piece) for piece in pieces], -key[1]


def _about_method(config: AdapterConfig) -> list[Finding]:
    if config.method not in BUILDERS:
        return [finding("unsupported_method", f"{config.method} has no formula here.")]
    options = unsupported_options(config)
    if options:
        return [finding("unsupported_option", f"{named(list(options))} changes what ΔW is.")]
    if config.method == "LORA" and config.rewrites_base:
        return [
            finding(
                "rewritten_base",
                f"init_lora_weights is {config.init!r}: the factors started as part of the base, "
                f"so s·BA is not what training changed.",
            )
        ]
    if config.method == "LORA" and config.unknown_init:
        return [
            finding(
                "rewritten_base",
                f"init_lora_weights is {config.init!r}, which is not known: it may have taken part "
                f"of the base into the factors.",
            )
        ]
    if config.method == "LORA" and config.init in ("false", "none"):
        return [finding("random_initialisation", f"init_lora_weights is {config.init}.")]
    return []


def _unmatched(config: AdapterConfig, keys: tuple[ParsedKey, ...]) -> list[Finding]:
    """Targets and patterns of the config that no module in the file answers to."""
    modules = {key.module for key in keys if key.part != "saved"}
    if not modules:
        return []
    findings = []
    targets = config.raw.get("target_modules")
    missing: list[str] = []
    if isinstance(targets, list):
        missing = [str(t) for t in targets if not any(_ends(m, str(t)) for m in modules)]
    layers = config.raw.get("layers_to_transform")
    if layers is not None:
        wanted = layers if isinstance(layers, list) else [layers]
        there = {layer_of(module)[0] for module in modules}
        missing += [f"layer {layer}" for layer in wanted if layer not in there]
    if missing:
        findings.append(finding("targets_match_nothing", f"No module for {named(missing)}."))
    parameters = {
        f"{module}.{target.rpartition('.')[2]}"
        for module in modules
        for target in config.target_parameters
    }
    patterns = [*config.rank_pattern, *config.alpha_pattern]
    idle = [p for p in patterns if not any(_fits(p, name) for name in modules | parameters)]
    if idle:
        findings.append(
            finding("pattern_matches_nothing", f"No module for {named(sorted(set(idle)))}.")
        )
    return findings


def _ends(module: str, target: str) -> bool:
    return module == target or module.endswith(f".{target}")


def _fits(pattern: str, module: str) -> bool:
    try:
        return re.match(rf"(.*\.)?({pattern})$", module) is not None
    except re.error:
        return True
