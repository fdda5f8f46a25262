"""Names of tensors in an adapter file, taken apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from interp.adapters.findings import Finding, finding, named

__all__ = [
    "ATTENTION",
    "PREFIX",
    "SHARED",
    "ParsedKey",
    "foreign_keys",
    "key_findings",
    "layer_of",
    "parse_key",
]

PREFIX: Final = "base_model.model."

_WRAPPERS: Final = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")

ATTENTION: Final = ("base_layer", "out_proj")
"""Inside torch's multi-head attention PEFT wraps the output projection below the base layer."""

SHARED: Final = (
    *("vera_A", "vera_B", "randlora_A", "randlora_B", "pvera_A", "pvera_B"),
    "vblora_vector_bank",
)
"""Tensors that all modules of an adapter share."""

_PARTS: Final = frozenset(
    [
        "lora_A",
        "lora_B",
        "lora_E",
        "lora_embedding_A",
        "lora_embedding_B",
        "lora_magnitude_vector",
        "lora_velora_embed",
        "ranknum",
        "ia3_l",
        "hada_w1_a",
        "hada_w1_b",
        "hada_w2_a",
        "hada_w2_b",
        "hada_t1",
        "hada_t2",
        "lokr_w1",
        "lokr_w1_a",
        "lokr_w1_b",
        "lokr_w2",
        "lokr_w2_a",
        "lokr_w2_b",
        "lokr_t2",
        "vera_A",
        "vera_B",
        "vera_lambda_b",
        "vera_lambda_d",
        "oft_R",
        "oft_r",
        "oft_embedding_R",
        "boft_R",
        "boft_s",
        "hra_u",
        "randlora_A",
        "randlora_B",
        "randlora_lambda",
        "randlora_gamma",
        "trainable_tokens_delta",
        *("c3a_kernel", "fourierft_spectrum", "miss_block", "road_theta", "road_alpha"),
        *("delora_A", "delora_B", "delora_lambda", "delora_w_norm"),
        *("gralora_A", "gralora_B", "gralora_A_general", "gralora_B_general"),
        *("hira_A", "hira_B", "hira_embedding_A", "hira_embedding_B"),
        *("pvera_A", "pvera_B", "pvera_lambda_b", "pvera_lambda_d"),
        *("shira_weight", "shira_indices"),
        *("vblora_logits_A", "vblora_logits_B", "vblora_vector_bank"),
    ]
)

_FOREIGN: Final = {
    "kohya": ("lora_down", "lora_up", "lora_unet_", "lora_te_"),
    "diffusers": (".lora.down.", ".lora.up.", "_lora.down.", "_lora.up."),
    "MLX": (".lora_a", ".lora_b"),
}


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """One tensor name.

    Attributes:
        key: as it stands in the file.
        module: the base model's module, without prefix and wrappers.
        part: `lora_A`, `ia3_l`, … or `saved` for a tensor that replaces the base's own.
        leaf: last segment: `weight`, `bias`, a parameter's name, or "".
        adapter: adapter name that stands in the key, else "".
        wrappers: segments that a training wrapper left behind.
        prefixed: whether the key starts as PEFT expects.
        depth: how many `base_layer` segments were taken out of the module's end.
        attention: whether it is the output projection of torch's multi-head attention, whose other
            factors are on the parameter `in_proj_weight` of the module above.
    """

    key: str
    module: str
    part: str
    leaf: str
    adapter: str
    wrappers: tuple[str, ...]
    prefixed: bool
    depth: int
    attention: bool = False


def parse_key(key: str) -> ParsedKey:
    """Take a tensor name apart; never fails."""
    segments = key.split(".")
    # "module" is a wrapper only in front: models have submodules of that name.
    wrappers = [s for i, s in enumerate(segments) if s in _WRAPPERS and (i == 0 or s != "module")]
    if segments[:3] == ["base_model", "model", "module"]:
        wrappers.append("module")
        del segments[2]
    segments = [s for i, s in enumerate(segments) if s not in wrappers or (i > 0 and s == "module")]
    prefixed = segments[:2] == ["base_model", "model"] and not wrappers
    if segments[:2] == ["base_model", "model"]:
        segments = segments[2:]
    elif segments[0] == "base_model":
        segments = segments[1:]
    adapter = ""
    place = next((i for i, s in enumerate(segments) if s in _PARTS), None)
    if place is None:
        part, module, leaf = "saved", segments[:-1], segments[-1]
        if "modules_to_save" in module:
            at = module.index("modules_to_save")
            adapter = ".".join(module[at + 1 : at + 2])
            module = module[:at] + module[at + 2 :]
        if module[-1:] == ["ln_tuning_layers"]:
            module = module[:-1]
    else:
        part, module, rest = segments[place], segments[:place], segments[place + 1 :]
        leaf = rest[-1] if rest and rest[-1] in ("weight", "bias") else ""
        adapter = ".".join(rest[:-1] if leaf else rest)
        if module and module[-1] == "token_adapter":
            module = module[:-1]
    depth = 0
    while module and module[-1] == "base_layer":
        module, depth = module[:-1], depth + 1
    attention = part != "saved" and tuple(module[-2:]) == ATTENTION
    if attention:
        module = [*module[:-2], module[-1]]
    return ParsedKey(
        key, ".".join(module), part, leaf, adapter, tuple(wrappers), prefixed, depth, attention
    )


def foreign_keys(keys: Iterable[str]) -> str | None:
    """Name of another tool's format that the keys are in, if they are."""
    for key in keys:
        for tool, marks in _FOREIGN.items():
            if any(mark in key for mark in marks):
                return tool
    return None


def key_findings(keys: list[ParsedKey]) -> list[Finding]:
    """What PEFT would do with these names on load."""
    findings = []
    wrapped = [parsed.key for parsed in keys if parsed.wrappers]
    if wrapped:
        names = sorted({wrapper for parsed in keys for wrapper in parsed.wrappers})
        findings.append(
            finding("wrapper_segments", f"{len(wrapped)} keys hold {named(names)}: {wrapped[0]}.")
        )
    bare = [
        parsed.key
        for parsed in keys
        if not parsed.prefixed
        and not parsed.wrappers
        # Bases that all modules share lie one level up, on the tuner itself.
        and not (parsed.part in SHARED and parsed.key.startswith("base_model."))
    ]
    if bare:
        findings.append(
            finding("missing_prefix", f"{len(bare)} keys lack '{PREFIX}': {named(bare, 2)}.")
        )
    doubled = [parsed.key for parsed in keys if parsed.module.startswith("base_model.")]
    if doubled:
        findings.append(
            finding("doubled_prefix", f"{len(doubled)} keys hold the prefix twice: {doubled[0]}.")
        )
    adapters = sorted({parsed.adapter for parsed in keys if parsed.adapter})
    other = [name for name in adapters if name != "default"]
    if other:
        findings.append(
            finding("adapter_name_not_default", f"Keys hold the adapter name {named(other)}.")
        )
    elif adapters:
        findings.append(
            finding("adapter_name_in_key", f"Keys hold the adapter name {named(adapters)}.")
        )
    return findings


def layer_of(module: str) -> tuple[int | None, str]:
    """0-based block index of a module, and the module's name without it.

    The first number is the block; `encoder` or `decoder` before it stays in the name.
    """
    segments = module.split(".")
    place = next((i for i, s in enumerate(segments) if s.isdecimal()), None)
    if place is None:
        return None, segments[-1]
    before = [s for s in segments[:place] if s in ("encoder", "decoder", "visual", "vision_tower")]
    return int(segments[place]), ".".join(before + segments[place + 1 :]) or segments[0]
