"""What interventions do to a running model: closed forms and hand calculations."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from steered import PROMPTS, some_direction, unit
from torch import Tensor, nn

from activations import HFBackend
from interp.direction import fit_eraser
from steering import POSITIONS, add, clamp, erase, project_out, steer
from steering.interventions import added

FAMILIES = ("llama", "qwen3", "gemma3", "gpt2")


@pytest.mark.parametrize("family", FAMILIES)
def test_alpha_zero_is_the_unsteered_model_bit_for_bit(
    family: str, tiny_backend: Callable[..., HFBackend]
) -> None:
    backend = tiny_backend(family)
    direction = some_direction(model_id=backend.model_id)
    baseline = backend.logits(PROMPTS, [3, 5, 9])
    for policy in POSITIONS:
        with steer(backend, [add(direction, 0, positions=policy)]):
            assert torch.equal(backend.logits(PROMPTS, [3, 5, 9]), baseline)
        with steer(backend, [add(direction, [1, 0, -2], positions=policy)]):
            steered = backend.logits([prompt[:2] for prompt in PROMPTS], [3, 5, 9])
        plain = backend.logits([prompt[:2] for prompt in PROMPTS], [3, 5, 9])
        assert torch.equal(steered[1], plain[1])
        assert not torch.allclose(steered[[0, 2]], plain[[0, 2]])
    assert torch.equal(backend.logits(PROMPTS, [3, 5, 9]), baseline)


def test_the_last_layer_moves_the_logits_by_the_unembedding(
    tiny_backend: Callable[..., HFBackend],
) -> None:
    backend = tiny_backend()
    direction = unit(np.linspace(-1, 1, 32), layer=2)
    sequences, head = [[5, 9, 30], [8, 7, 1]], backend.model.lm_head.weight[:40].detach()
    # With the final norm: RMSNorm of the stream before and after, written out.
    streams = backend.capture(sequences, [2, 2], range(40)).resid_post[:, 2]
    shift = torch.tensor([[6.0], [-3.0]]) * torch.from_numpy(direction.vector)
    norm = backend.model.model.norm

    def normed(stream: Tensor) -> Tensor:
        scale = torch.rsqrt(stream.pow(2).mean(dim=1, keepdim=True) + norm.variance_epsilon)
        return stream * scale * norm.weight.detach()

    before = backend.logits(sequences, range(40))
    with steer(backend, [add(direction, [3.0, -1.5])]):
        after = backend.logits(sequences, range(40))
    expected = (normed(streams + shift) - normed(streams)) @ head.T
    torch.testing.assert_close(after - before, expected, rtol=1e-3, atol=1e-4)
    # Without it the logits are linear in the stream: the unembedding of the shift alone.
    backend.model.model.norm = nn.Identity()
    before = backend.logits(sequences, range(40))
    with steer(backend, [add(direction, [3.0, -1.5])]):
        after = backend.logits(sequences, range(40))
    torch.testing.assert_close(after - before, shift @ head.T, rtol=1e-4, atol=1e-4)


def test_several_layers_and_both_hook_points_at_once(
    tiny_backend: Callable[..., HFBackend],
) -> None:
    backend = tiny_backend()
    first = some_direction(layer=0)
    # What enters block 1 is what left block 0, so both ways of writing there are one.
    same = some_direction(layer=1, hook_point="resid_pre")
    other = some_direction(layer=2, seed=5, hook_point="resid_pre")
    with steer(backend, [add(first, 1.5), add(other, 1)]):
        got = backend.logits([[5, 9, 30]], range(40))
    with steer(backend, [add(other, 1), add(same, 0.5), add(same, 1)]):
        again = backend.logits([[5, 9, 30]], range(40))
    torch.testing.assert_close(got, again)
    with steer(backend, [add(first, 1.5)]):
        assert not torch.allclose(backend.logits([[5, 9, 30]], range(40)), got)


def test_absolute_sizes_and_the_number_type_of_the_layer() -> None:
    hidden = torch.arange(12.0).reshape(3, 4)
    vectors = torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 1.0], [0, 1.0, 0, 0]])
    moved = added(hidden, vectors, torch.tensor([10.0, -1.0, 0.0])) - hidden
    assert moved.tolist() == [[10, 0, 0, 0], [0, 0, 0, -1], [0, 0, 0, 0]]
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert added(hidden.to(dtype), vectors, torch.ones(3)).dtype == dtype
    rows = torch.tensor([0, 0, 0])
    median = add(unit([1.0, 0, 0, 0]), 3).change(hidden, rows)
    absolute = add(unit([1.0, 0, 0, 0]), 3, alpha_unit="absolute").change(hidden, rows)
    assert (median - hidden)[:, 0].tolist() == [6, 6, 6]
    assert (absolute - hidden)[:, 0].tolist() == [3, 3, 3]


def test_project_out_and_clamp_set_the_projection_of_the_named_tokens(
    tiny_backend: Callable[..., HFBackend],
) -> None:
    backend, direction = tiny_backend(), some_direction()
    vector = torch.from_numpy(direction.vector)

    def along(interventions: list[Any]) -> Tensor:
        # Read at the second token too, which `last_prompt` does not name.
        with steer(backend, interventions):
            streams = [backend.capture([ids], [at], [3]).resid_post[0, 1] for ids, at in reads]
        return torch.stack(streams) @ vector

    reads = [([5, 9, 30], 2), ([5, 9, 30], 1), ([8, 7, 1], 2)]
    plain = along([])
    assert (plain.abs() > 0.1).all()
    torch.testing.assert_close(
        along([project_out(direction)]), plain * torch.tensor([0, 1, 0]), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(
        along([project_out(direction, 2, positions="all")]), -plain, rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(
        along([clamp(direction, 7, positions="prompt")]),
        torch.full((3,), 7.0),
        rtol=1e-4,
        atol=1e-4,
    )
    with steer(backend, [clamp(direction, [1.0, -2.0])]):
        both = backend.capture([[5, 9, 30], [8, 7, 1]], [2, 2], [3]).resid_post[:, 1] @ vector
    torch.testing.assert_close(both, torch.tensor([1.0, -2.0]), rtol=1e-4, atol=1e-4)


def test_erasing_in_a_running_model_is_the_closed_form(
    tiny_backend: Callable[..., HFBackend],
) -> None:
    backend = tiny_backend()
    rng = np.random.default_rng(3)
    prompts = rng.integers(5, 200, size=(40, 3)).tolist()
    labels = np.array([prompt[-1] > 100 for prompt in prompts])

    def streams(at: int, *steering: Any) -> Any:
        with steer(backend, steering):
            return backend.capture(prompts, [at] * 40, [3] * 40).resid_post[:, 1].numpy()

    plain = streams(2)
    eraser = fit_eraser(plain, labels)
    found = streams(2, erase(eraser, 1))
    # x − ((x − mean) · read) write, and so the same mean for either class.
    wanted = plain - ((plain - eraser.mean) @ eraser.read)[:, None] * eraser.write
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    gap = np.abs(plain[labels].mean(0) - plain[~labels].mean(0)).max()
    assert gap > 0.1
    assert np.abs(found[labels].mean(0) - found[~labels].mean(0)).max() < 1e-4 * gap + 1e-5
    # A strength a sequence: not at all, half, wholly.
    shares = np.tile([0.0, 0.5, 1.0, 1.0], 10)
    np.testing.assert_allclose(
        streams(2, erase(eraser, 1, shares.tolist())),
        plain + shares[:, None] * (wanted - plain),
        atol=1e-4,
    )
    # The token before is only named by other policies.
    before = streams(1)
    assert np.array_equal(streams(1, erase(eraser, 1)), before)
    np.testing.assert_allclose(
        streams(1, erase(eraser, 1, positions="all")), eraser.erase(before), atol=1e-4
    )


def test_a_bfloat16_model_stays_one(tiny_model: Callable[..., Any]) -> None:
    model = tiny_model("llama").to(torch.bfloat16)
    with torch.inference_mode():
        before = model(torch.tensor([[5, 9, 30]])).logits
        with steer(model, [add(some_direction(), 3)]):
            after = model(torch.tensor([[5, 9, 30]])).logits
    assert after.dtype == torch.bfloat16
    assert torch.equal(after[:, :2], before[:, :2])
    assert not torch.allclose(after[:, 2], before[:, 2])
