"""One check of the names of devices, for everything that computes with torch.

Here, in the only part of `interp` that imports it.
"""

from __future__ import annotations

from interp.errors import InterpError

__all__ = ["usable_device"]


def usable_device(device: str, error: type[InterpError], *, double: bool = False) -> str:
    """The device itself, with `auto` resolved to a GPU where torch sees one, else to the CPU.

    Args:
        device: a device of torch, or `auto`.
        error: to raise.
        double: whether float64 is needed there.

    Raises:
        error: torch knows no such device, or it cannot be used here.
    """
    # Late, because importing the package must not import torch.
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        # Something comes back from it: neither a device that is not there nor `meta` does that.
        torch.zeros(1, device=device, dtype=torch.float64 if double else None).cpu()
    except (RuntimeError, AssertionError, TypeError) as fault:
        raise error(
            f"The device {device!r} cannot be used ({str(fault).splitlines()[0]}). Take cpu or "
            f"auto."
        ) from fault
    return device
