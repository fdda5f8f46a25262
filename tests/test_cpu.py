"""What makes passes on a CPU quicker leaves the numbers, the model and its hooks as they were."""

import os
import platform
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from reference import POSITIONS, SEQUENCES, relative
from torch import nn
from torch.profiler import ProfilerActivity, profile

from activations import HFBackend
from activations.cpu import _usable, through_onednn

needs_onednn = pytest.mark.skipif(not _usable(), reason="torch has no oneDNN for this processor")


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.plain = nn.Linear(48, 80)
        self.bare = nn.Linear(48, 80, bias=False)
        self.wide = nn.Linear(1536, 8)
        self.short = nn.Linear(48, 80).to(torch.bfloat16)
        self.patched = nn.Linear(48, 80)
        self.patched.forward = lambda input: input * 0  # type: ignore[method-assign]


def products(run: Callable[[], object]) -> int:
    """How many products oneDNN's operator computes while something runs."""
    # Without the second argument torch warns of a change to come.
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as seen:
        run()
    return sum(event.count for event in seen.key_averages() if "_linear_pointwise" in event.key)


@needs_onednn
def test_layers_give_the_same_numbers_and_get_their_own_forward_back() -> None:
    layers = Layers()
    hidden, much = torch.randn(2, 33, 48), torch.randn(2, 33, 1536)
    calls: list[nn.Module] = []
    layers.plain.register_forward_hook(lambda module, _args, _output: calls.append(module))

    def run() -> list[torch.Tensor]:
        with torch.inference_mode():
            half = layers.short(hidden.to(torch.bfloat16))
            left = [half, layers.patched(hidden), layers.wide(much)]
            return [layers.plain(hidden), layers.bare(hidden), *left]

    expected = run()
    got = []
    with through_onednn(layers):
        # The two plain float32 layers, and not those of another kind or with long sums.
        assert products(lambda: got.extend(run())) == 2
    assert relative(got[0], expected[0]) < 1e-6
    assert relative(got[1], expected[1]) < 1e-6
    assert all(torch.equal(a, b) for a, b in zip(got[2:], expected[2:], strict=True))
    assert calls == [layers.plain] * 2
    assert [name for name, part in layers.named_children() if "forward" in vars(part)] == [
        "patched"
    ]
    with pytest.raises(ZeroDivisionError), through_onednn(layers):
        raise ZeroDivisionError
    assert "forward" not in vars(layers.plain)
    assert products(run) == 0


@needs_onednn
def test_packed_captures_multiply_through_onednn_and_give_the_same_again(
    tiny_backend: Callable[..., HFBackend],
) -> None:
    backend = tiny_backend()
    assert backend.padded_because is None
    first = backend.capture(SEQUENCES, POSITIONS, [3])
    linear = sum(type(part) is nn.Linear for part in backend.blocks.modules())
    assert products(lambda: backend.capture(SEQUENCES, POSITIONS, [3])) == linear
    again = backend.capture(SEQUENCES, POSITIONS, [3])
    assert torch.equal(again.resid_post, first.resid_post)
    assert torch.equal(again.logits, first.logits)
    assert not any("forward" in vars(part) for part in backend.model.modules())


FAULTS = """
import resource
import torch
from activations.cpu import keep_freed_memory

keep_freed_memory()
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        parts = [torch.zeros(1 << 20) for _ in range(5)]
        del parts
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="tells glibc what to keep")
def test_memory_that_is_freed_and_taken_again_is_not_mapped_anew() -> None:
    # With several threads torch's memory comes from several heaps.
    own = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    own["OMP_NUM_THREADS"] = "1"

    def faults(**more: str) -> int:
        command = [sys.executable, "-c", FAULTS]
        run = subprocess.run(command, env=own | more, capture_output=True, text=True, check=True)
        return int(run.stdout)

    # 20 times 20 MiB are 102,400 pages of 4 KiB.
    assert faults() < 1_000
    # The control, and a promise: who sets a threshold has it kept.
    assert faults(MALLOC_TRIM_THRESHOLD_="131072") > 20_000
