"""From an adapter's files to its updates, one module at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final

import torch

from interp.adapters.base import BaseModel
from interp.adapters.config import AdapterConfig, parse_config, read_config
from interp.adapters.findings import Finding, finding, named
from interp.adapters.keys import SHARED, ParsedKey, foreign_keys, key_findings, parse_key
from interp.adapters.locate import AdapterFolder
from interp.adapters.methods import BUILDERS, about_method, unsupported_options
from interp.adapters.projections import regenerated
from interp.adapters.rounding import widened
from interp.adapters.saved import saved_update, token_updates
from interp.adapters.targets import about_targets
from interp.adapters.tensors import Tensors, open_tensors
from interp.adapters.updates import Context, Group, Update
from interp.errors import AdapterError

__all__ = ["OpenAdapter", "adapter_of", "open_adapter", "read_updates"]

_MISFITS: Final = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    RuntimeError,
    ArithmeticError,
    re.error,
)


@dataclass(frozen=True, slots=True)
class OpenAdapter:
    """An adapter whose tensors can be read.

    Attributes:
        config: None if it cannot be read.
        keys: tensor names, taken apart.
        tensors: the open weight file, or those in memory.
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
    if folder.weights is None:
        if folder.foreign is not None:
            findings = [_not_loaded(folder.foreign, config is not None)]
        else:
            findings.append(
                finding("weights_missing", f"{folder.path} has no adapter_model.safetensors.")
            )
    paths = () if folder.weights is None else (folder.weights,)
    with open_tensors(*paths) as tensors:
        findings += tensors.findings
        if paths and not tensors.findings and not list(tensors):
            findings.append(finding("no_tensors", f"{paths[0].name} holds no tensors."))
        yield _examined(config, findings, tensors)


@contextmanager
def adapter_of(
    tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any]
) -> Iterator[OpenAdapter]:
    """An adapter in memory.

    Args:
        tensors: by the names that they would have in the file, as
            `peft.get_peft_model_state_dict` gives them.
        config: the fields of `adapter_config.json`.
    """
    try:
        parsed, findings = parse_config(_as_json(config))
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        parsed, findings = None, [finding("config_unreadable", f"A wrong value ({error}).")]
    with Tensors((), loaded=tensors) as opened:
        if not tensors:
            findings.append(finding("no_tensors", "There are no tensors."))
        yield _examined(parsed, findings, opened)


def _not_loaded(file: Path, configured: bool) -> Finding:
    """Why a file that looks like an adapter's weights is none to PEFT."""
    if re.search(r"-\d+-of-\d+\.|\.index\.json$", file.name):
        return finding(
            "sharded_weights", f"{file.name} is a part of an adapter, or lists its parts."
        )
    if file.name.startswith("adapter_model.") and file.suffix in (".pt", ".pth", ".ckpt"):
        return finding(
            "weights_missing",
            f"{file.name} is no name that PEFT loads.",
            remedy="Load it with weights_only=True and save it as adapter_model.safetensors, with "
            "its adapter_config.json"
            + (" beside it." if configured else ", which is missing too."),
        )
    return finding("foreign_format", f"{file.name} is not PEFT's.")


def _as_json(value: Any) -> Any:
    """What a live config becomes in its file: sets are lists, enumerations their values."""
    if isinstance(value, Mapping):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(_as_json, value), key=str)
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def _examined(
    config: AdapterConfig | None, findings: list[Finding], tensors: Tensors
) -> OpenAdapter:
    names = list(tensors)
    tool = foreign_keys(names)
    keys = tuple(parse_key(name) for name in names)
    if tool is not None:
        findings.append(finding("foreign_format", f"The keys are {tool}'s: {names[0]}."))
    elif config is None or config.method in BUILDERS:
        findings += key_findings(list(keys))
    pruned = _pruned(config, keys, tensors)
    empty = [key.key for key in keys if 0 in tensors.shape(key.key) and key.module not in pruned]
    if empty:
        findings.append(
            finding("zero_size_tensor", f"{len(empty)} tensors are empty: {named(empty)}.")
        )
    if config is not None:
        findings += about_method(config)
        if tool is None and keys:
            findings += about_targets(config, keys)
    return OpenAdapter(config, keys, tensors, tuple(findings))


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
        if key.part in SHARED and 0 not in tensors.shape(key.key):
            read = _read(tensors, [key])
            if isinstance(read, Finding):
                yield Update(f"{key.module}.weight", key.module, "linear", findings=(read,))
                continue
            tensor = read[key]
            if not bool(tensor.isfinite().all()):
                yield _not_finite(key.module, [key.key])
            if not key.module:
                shared[key.part] = tensor
    if not shared and config.method in ("VERA", "RANDLORA") and base is not None:
        shared = _regenerated(config, adapter, base)
    # Above a wrapped output projection the factors are on the stacked inputs' parameter.
    stacked = {key.module.removesuffix(".out_proj") for key in adapter.keys if key.attention}
    groups: dict[tuple[str, int], list[ParsedKey]] = {}
    for key in adapter.keys:
        if key.part not in SHARED:
            groups.setdefault((key.module, key.depth), []).append(key)
    taken: set[str] = set()
    pruned = _pruned(config, adapter.keys, tensors)
    for (module, depth), keys in sorted(groups.items(), key=lambda item: _order(item[0])):
        if module not in pruned and any(0 in tensors.shape(key.key) for key in keys):
            continue
        read = _read(tensors, keys)
        if isinstance(read, Finding):
            yield Update(f"{module}.weight", module, "linear", findings=(read,))
            continue
        broken = [
            key.key for key, tensor in read.items() if not bool(widened(tensor).isfinite().all())
        ]
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
            parameter = "in_proj_weight" if module in stacked else "weight"
            # PEFT adds the product to such a projection itself, and then merges it once more.
            n_times = 2 if keys[0].attention else 1
            group = Group(module, depth, parts, shared, parameter, n_times)
            for update in _built(group, context):
                if update.kind == "experts" and update.name in taken:
                    found = finding("bad_shape", f"Two pairs of factors fit {update.name}.")
                    yield replace(update, delta=None, findings=(*update.findings, found))
                else:
                    taken.add(update.name)
                    yield update


def _pruned(
    config: AdapterConfig | None, keys: tuple[ParsedKey, ...], tensors: Tensors
) -> frozenset[str]:
    """Modules of which AdaLoRA has kept no rank at all: its empty factors are no damage."""
    if config is None or config.method != "ADALORA":
        return frozenset()
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    for key in keys:
        shapes.setdefault(key.module, {})[key.part] = tuple(tensors.shape(key.key))
    found = set()
    for module, parts in shapes.items():
        a, b, e = (parts.get(f"lora_{name}", ()) for name in "ABE")
        if len(a) == len(b) == 2 and e == (0, 1) and a[0] == b[1] == 0 and a[1] * b[0] > 0:
            found.add(module)
    return frozenset(found)


def _regenerated(
    config: AdapterConfig, adapter: OpenAdapter, base: BaseModel
) -> dict[str, torch.Tensor]:
    """Shared bases from their seed; empty where the base does not tell all widths."""
    scales = ("vera_lambda_b", "randlora_gamma")
    modules = sorted({key.module for key in adapter.keys if key.part in scales})
    shapes = []
    for module in modules:
        weight = base.get(f"{module}.weight")
        if weight is None or weight.ndim != 2:
            return {}
        out, inner = weight.shape[::-1] if Context(config, base).turned(module) else weight.shape
        shapes.append((int(out), int(inner)))
    try:
        return regenerated(config, shapes)
    except (ValueError, TypeError, RuntimeError, OverflowError):
        return {}


def _read(tensors: Tensors, keys: list[ParsedKey]) -> dict[ParsedKey, torch.Tensor] | Finding:
    try:
        read = {key: tensors.get(key.key) for key in keys}
    except AdapterError as error:
        return finding("weights_unreadable", str(error))
    for key, tensor in read.items():
        if tensor.is_complex() or tensor.layout != torch.strided or tensor.is_quantized:
            kind = f"{str(tensor.dtype).removeprefix('torch.')}, {tensor.layout}"
            return finding("bad_shape", f"{key.key} holds no plain real numbers ({kind}).")
    # What replaces the base's own is compared with it in the format that it is stored in.
    kept = ("saved", "trainable_tokens_delta")
    return {k: t if k.part in kept else widened(t) for k, t in read.items()}


def _not_finite(module: str, names: list[str]) -> Update:
    found = finding("non_finite", f"NaN or infinity in {named(names)}.")
    return Update(f"{module}.weight", module, "linear", findings=(found,))


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
