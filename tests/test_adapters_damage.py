"""Whatever is done to an adapter's tensors, there is a verdict and never a traceback."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from adapter_models import save_case
from safetensors.torch import load_file, save_file
from test_adapters_formulas import LORA, OTHER

from interp.adapters import audit_path
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


@pytest.mark.parametrize("case", [*LORA, *OTHER])
def test_damaged_tensors_always_give_a_verdict(case: str, tmp_path: Path) -> None:
    save_case(tmp_path, *(LORA | OTHER)[case])
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    sound = load_file(file)
    first = [name for name in sound if "layers.1" not in name and "h.1." not in name]
    for name in first[:6]:
        for damage, change in DAMAGE.items():
            new = change(sound[name])
            changed = {n: t for n, t in sound.items() if n != name}
            if new is not None:
                changed[name] = new.contiguous()
            save_file(changed, file)
            for base in (None, tmp_path / "base"):
                (audit,) = audit_path(tmp_path / "adapter", base=base)
                assert audit.verdict in VERDICTS
                if damage in ("nan", "empty"):
                    assert audit.verdict == "broken", (name, damage)
