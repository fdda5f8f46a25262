"""Whatever is done to an adapter's tensors, there is a verdict and never a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from adapter_models import save_case
from audits import codes, one
from safetensors.torch import load_file, save_file
from test_adapters_formulas import LORA, OTHER

from interp.adapters import audit_to_json
from interp.adapters.findings import breaks
from interp.adapters.keys import parse_key
from interp.adapters.thresholds import VERDICTS

DAMAGE: Mapping[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "gone": lambda t: None,
    "flat": lambda t: t.flatten(),
    "cut": lambda t: t[: max(1, t.shape[0] - 1)],
    "longer": lambda t: torch.cat((t, t)),
    "turned": lambda t: t.transpose(0, -1),
    "scalar": lambda t: t.flatten()[0],
    "empty": lambda t: t[:0],
    "nan": lambda t: t * float("nan"),
    "whole numbers": lambda t: t.mul(10).to(torch.int32),
}


# Factors that must fit each other and the base: any damage to one of them shows.
FACTORS = frozenset(
    [
        "lora_A",
        "lora_B",
        "lora_E",
        "lora_embedding_A",
        "lora_embedding_B",
        "lora_magnitude_vector",
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
        "oft_R",
        "boft_R",
        "boft_s",
        "hra_u",
        "ia3_l",
        "vera_lambda_b",
        "vera_lambda_d",
        "randlora_lambda",
        "randlora_gamma",
    ]
)
# A vector has no other form to be turned or flattened into; without its magnitudes, DoRA is LoRA.
SAFE = {"lora_magnitude_vector": {"flat", "turned", "gone"}, "boft_s": {"flat", "turned"}}
# The only tensor of its module: without it the module is not in the file.
ALONE = ("oft_R", "hra_u", "ia3_l")


def must_break(name: str, tensor: torch.Tensor, damage: str, *, with_base: bool) -> bool:
    if damage in ("nan", "empty"):
        return True
    part = parse_key(name).part
    if damage == "whole numbers" or not with_base or part not in FACTORS:
        return False
    if damage in SAFE.get(part, ()) or (damage == "gone" and part in ALONE):
        return False
    changed = DAMAGE[damage](tensor)
    return changed is None or changed.shape != tensor.shape


@pytest.mark.parametrize("case", [*LORA, *OTHER])
def test_damaged_tensors_always_give_a_verdict(case: str, tmp_path: Path) -> None:
    save_case(tmp_path, *(LORA | OTHER)[case])
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    sound = load_file(file)
    for base in (None, tmp_path / "base"):
        # The control: nothing below is broken before it is damaged.
        assert one(tmp_path / "adapter", base=base).verdict != "broken"
    # One tensor of each kind, of the first block.
    first: dict[tuple[str, str], str] = {}
    for name in sorted(sound):
        parsed = parse_key(name)
        if "layers.1" not in name and "h.1." not in name:
            first.setdefault((parsed.part, parsed.leaf), name)
    for name in first.values():
        for damage, change in DAMAGE.items():
            new = change(sound[name])
            changed = {n: t for n, t in sound.items() if n != name}
            if new is not None:
                changed[name] = new.contiguous()
            save_file(changed, file)
            for base in (None, tmp_path / "base"):
                audit = one(tmp_path / "adapter", base=base)
                assert audit.verdict in VERDICTS
                broken = audit.verdict == "broken"
                assert broken == any(breaks(code) for code in codes(audit))
                json.dumps(audit_to_json(audit), allow_nan=False)
                if must_break(name, sound[name], damage, with_base=base is not None):
                    assert broken, (name, damage, audit.summary)
                if damage == "gone" and base is not None and parse_key(name).part in ALONE:
                    lost = {"targets_missing_from_file", "targets_match_nothing"}
                    assert codes(audit) & lost, name


def test_whole_numbers_are_read_as_numbers(tmp_path: Path) -> None:
    save_case(tmp_path, *LORA["plain"])
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    sound = load_file(file)
    found = []
    for dtype in (torch.int32, torch.float32):
        save_file({n: t.mul(10).to(torch.int32).to(dtype) for n, t in sound.items()}, file)
        found.append(one(tmp_path / "adapter", base=tmp_path / "base"))
    assert found[0].totals == found[1].totals and found[0].totals.frobenius
