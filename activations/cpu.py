"""What makes passes on a CPU quicker, without changing a model or copying its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Final

import torch
from torch import Tensor, nn

from activations.branches import replaced_forward

__all__ = ["keep_freed_memory", "through_onednn"]

_LARGEST: Final = 31 << 20
"""Bytes; glibc learns nothing from blocks over 32 MiB."""

_WIDEST: Final = 1024
"""Inputs of a layer: oneDNN adds up longer sums in one go, and rounds them more. At 576 inputs its
error was 1.5 times that of MKL, at 1,536 twice."""


@cache
def keep_freed_memory() -> None:
    """Let the process reuse the memory that one layer frees for the next.

    glibc gives freed memory back to the system once it is more than twice the largest block that
    was freed so far, and a pass frees more than that in every layer: its pages were mapped and
    cleared anew each time, 7% of an extraction. The block that is freed here is never written to,
    so it costs nothing. Whoever has set glibc's thresholds has them kept; another allocator does
    not care.
    """
    torch.empty(_LARGEST, dtype=torch.uint8)


@contextmanager
def through_onednn(module: nn.Module) -> Iterator[None]:
    """Within the context, plain float32 layers inside `module` multiply through oneDNN.

    On an x86 processor torch does it through MKL, which keeps its best code for the processors of
    its maker. oneDNN is part of torch too; on an AMD processor it took 8 to 14% less time for the
    shapes of a small model. Layers with long sums are left alone, for it rounds them more, and so
    are those that others have given another forward function. The weights are read as they are,
    and hooks stay. Nothing changes where oneDNN is not at hand.
    """
    with ExitStack() as stack:
        for part in module.modules() if _usable() else ():
            if isinstance(part, nn.Linear) and _is_plain(part):
                stack.enter_context(replaced_forward(part, _product(part)))
        yield


def _is_plain(module: nn.Linear) -> bool:
    return (
        type(module) is nn.Linear
        and "forward" not in vars(module)
        and module.weight.dtype is torch.float32
        and module.weight.device.type == "cpu"
        and module.in_features <= _WIDEST
    )


def _product(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    def forward(input: Tensor) -> Tensor:
        if input.dtype is not torch.float32:
            return nn.functional.linear(input, layer.weight, layer.bias)
        return _linear(input, layer.weight, layer.bias)

    return forward


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(input, weight, bias, "none", [], "")
    return result


@cache
def _usable() -> bool:
    """Whether torch has the operator, which it does not promise, and it does what it should."""
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        return False
    numbers = torch.arange(24, dtype=torch.float32)
    input, weight, bias = numbers[:12].view(3, 4), numbers[4:].view(5, 4), numbers[:5]
    try:
        with torch.inference_mode():
            got = _linear(input, weight, bias)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.equal(got, nn.functional.linear(input, weight, bias))
