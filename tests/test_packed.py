"""Packed captures: no padding is run, a prefix is read once, and the numbers are the same."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference import POSITIONS, SEQUENCES, relative
from torch import Tensor

from activations import Edit, HFBackend
from activations.backend import Prompt
from activations.hooks import count_hooks
from activations.packed import UnpackableError, _Pass
from activations.passes import Reading, plan_sharing, run_passes

PREFIX = list(range(20, 81))


def padded(backend: HFBackend) -> HFBackend:
    """The same backend, told not to pack."""
    backend._unpackable = "the test says so"
    return backend


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
    """(seq, width) of one head: every row sees the keys up to its own, the last row all."""
    hidden = k.shape[0] - q.shape[0]
    scores = q.double() @ k.double().T * scaling
    later = torch.ones(scores.shape, dtype=torch.bool).triu(1 + hidden)
    return scores.masked_fill(later, float("-inf")).softmax(-1) @ v.double()


# In blocks of tokens and of heads, after a prefix and without one.
@example([150, 97], 0, (20, 2), 0.3, torch.float32)
@example([7, 150], 9, (20, 2), 0.3, torch.float32)
@settings(max_examples=30)
@given(
    st.lists(st.sampled_from([1, 7, 40, 95, 96, 128, 150]), min_size=1, max_size=3),
    st.integers(0, 90),
    st.sampled_from([(1, 1), (2, 3), (3, 1), (20, 2)]),
    st.floats(0.05, 3),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_attention_is_the_softmax_over_prefix_and_own_tokens(
    lengths: list[int],
    n_prefix: int,
    heads: tuple[int, int],
    scaling: float,
    dtype: torch.dtype,
) -> None:
    groups, each = heads
    generator = torch.Generator().manual_seed(len(lengths) + n_prefix)

    def draw(n_heads: int, n: int) -> Tensor:
        return torch.randn(1, n_heads, n, 8, generator=generator).to(dtype)

    total = sum(lengths)
    query, key, value = draw(groups * each, total), draw(groups, total), draw(groups, total)
    run = _Pass(lengths)
    kept = [draw(groups, n_prefix), draw(groups, n_prefix)] if n_prefix else []
    run.kept[:] = kept
    got = run.attend(query, key, value, scaling)
    assert got.shape == (1, total, groups * each, 8)
    start = 0
    for n in lengths:
        own = slice(start, start + n)
        for head in range(groups * each):
            keys, values = key[0, head // each, own], value[0, head // each, own]
            if kept:
                keys = torch.cat([kept[0][0, head // each], keys])
                values = torch.cat([kept[1][0, head // each], values])
            expected = softmax_attention(query[0, head, own], keys, values, scaling)
            allowed = 1e-2 if dtype is torch.bfloat16 else 1e-5
            torch.testing.assert_close(
                got[0, own, head].double(), expected, rtol=10 * allowed, atol=allowed
            )
        start += n


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize("with_prefix", [False, True])
def test_packed_and_padded_captures_agree_and_only_tokens_are_run(
    family: str, with_prefix: bool, tiny_backend: Callable[..., HFBackend]
) -> None:
    packed, plain = tiny_backend(family), padded(tiny_backend(family))
    assert packed.padded_because is None
    shapes: list[tuple[int, ...]] = []
    forward = packed.blocks[1].forward

    def watched(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        shapes.append(tuple(output.shape))
        return output

    packed.blocks[1].forward = watched
    hooks = count_hooks(packed.model)
    captures = []
    for backend in (packed, plain):
        if with_prefix:
            prefix = backend.share_prefix(PREFIX)
            assert prefix.read_once == (backend is packed)
            if backend is packed:
                shapes.clear()
            captures.append(backend.capture_after(prefix, SEQUENCES, POSITIONS, [3, 5, 8]))
        else:
            captures.append(backend.capture(SEQUENCES, POSITIONS, [3, 5, 8]))
    got, expected = captures
    # Not one token of padding, nor of the prefix.
    assert shapes == [(1, sum(map(len, SEQUENCES)), 32)]
    assert relative(got.resid_post, expected.resid_post) < 2e-6
    assert torch.equal(got.resid_pre0, expected.resid_pre0)
    assert relative(got.resid_norm, expected.resid_norm) < 2e-6
    torch.testing.assert_close(got.logits, expected.logits, rtol=1e-5, atol=1e-5)
    assert count_hooks(packed.model) == hooks
    assert packed.model.config._attn_implementation == "sdpa"
    # The control: sequences in another order give other rows.
    turned = packed.capture(SEQUENCES[::-1], POSITIONS[::-1], [3, 5, 8])
    assert relative(turned.resid_post, got.resid_post) > 0.05


WINDOW = {"sliding_window": 16}


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("llama", {"attn": "eager"}, "its attention is eager"),
        ("gemma3", WINDOW, "its attention has a window"),
        ("llama", {"padding": "left"}, "not asked for"),
    ],
)
def test_what_cannot_be_packed_is_padded_and_it_is_said(
    family: str, changes: dict[str, Any], reason: str, tiny_backend: Callable[..., HFBackend]
) -> None:
    backend = tiny_backend(family, **changes)
    assert reason in str(backend.padded_because)
    capture = backend.capture(SEQUENCES, POSITIONS, [3])
    for row, (ids, position) in enumerate(zip(SEQUENCES, POSITIONS, strict=True)):
        alone = backend.capture([ids], [position], [3])
        assert relative(capture.resid_post[row], alone.resid_post[0]) < 1e-5


def test_a_model_that_mixes_tokens_elsewhere_is_found_by_trying(
    tiny_backend: Callable[..., HFBackend],
) -> None:
    backend = tiny_backend()
    # As a convolution does: each token takes something of the one before it.
    mlp = backend.blocks[0].mlp
    own = mlp.forward

    def mixing(hidden: Tensor) -> Tensor:
        output: Tensor = own(hidden)
        return output + torch.nn.functional.pad(output, (0, 0, 1, 0))[:, :-1]

    mlp.forward = mixing
    assert "packed, it differs by" in str(backend.padded_because)
    capture = backend.capture(SEQUENCES, POSITIONS, [3])
    alone = backend.capture([SEQUENCES[1]], [POSITIONS[1]], [3])
    assert relative(capture.resid_post[1], alone.resid_post[0]) < 1e-5


def test_an_attention_that_turns_out_otherwise_falls_back(
    tiny_backend: Callable[..., HFBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = tiny_backend()
    expected = backend.capture(SEQUENCES, POSITIONS, [3])
    assert backend.padded_because is None

    def refuses(*_: Any) -> Tensor:
        raise UnpackableError("its attention has sinks")

    monkeypatch.setattr(_Pass, "attend", refuses)
    got = backend.capture(SEQUENCES, POSITIONS, [3])
    assert backend.padded_because == "its attention has sinks"
    assert backend.model.config._attn_implementation == "sdpa"
    assert relative(got.resid_post, expected.resid_post) < 2e-6


def test_hooks_of_others_are_given_a_row_a_sequence(
    tiny_backend: Callable[..., HFBackend],
) -> None:
    backend, plain = tiny_backend(), padded(tiny_backend())
    seen: list[tuple[int, ...]] = []

    def moves_the_first_row(_m: Any, _a: Any, output: Tensor) -> Tensor:
        seen.append(tuple(output.shape))
        return output * torch.tensor([2.0, *[1.0] * (len(output) - 1)])[:, None, None]

    before = backend.capture(SEQUENCES, POSITIONS, [3])
    captures = []
    for each in (backend, plain):
        handle = each.blocks[1].register_forward_hook(moves_the_first_row)
        assert "hook" in str(each.padded_because) or each is plain
        captures.append(each.capture(SEQUENCES, POSITIONS, [3]))
        handle.remove()
    assert {shape[0] for shape in seen} == {len(SEQUENCES)}
    assert torch.equal(captures[0].resid_post, captures[1].resid_post)
    assert relative(captures[0].resid_post[0, 1], 2 * before.resid_post[0, 1]) < 2e-6
    assert relative(captures[0].resid_post[1:], before.resid_post[1:]) < 2e-6
    # The hook gone, sequences are packed again.
    assert backend.padded_because is None


def test_hooks_that_transformers_leaves_behind_change_nothing(
    tiny_backend: Callable[..., HFBackend],
) -> None:
    backend = tiny_backend()
    before = backend.capture(SEQUENCES, POSITIONS, [3])
    fresh = count_hooks(backend.model)
    backend.model(input_ids=torch.tensor([[5, 6, 7]]), output_hidden_states=True)
    left = count_hooks(backend.model)
    assert left > fresh
    assert backend.padded_because is None
    after = backend.capture(SEQUENCES, POSITIONS, [3])
    assert torch.equal(after.resid_post, before.resid_post)
    assert count_hooks(backend.model) == left


@pytest.mark.parametrize("hook_point", ["resid_pre", "resid_post"])
def test_edits_are_given_rows_and_columns(
    hook_point: Any, tiny_backend: Callable[..., HFBackend]
) -> None:
    packed, plain = tiny_backend(), padded(tiny_backend())
    shapes: list[tuple[int, ...]] = []

    def third_token_of_the_first_row(hidden: Tensor) -> Tensor:
        shapes.append(tuple(hidden.shape))
        moved = hidden.clone()
        moved[0, 2] += 1.0
        return moved

    before = packed.capture(SEQUENCES, POSITIONS, [3, 5])
    captures = []
    for backend in (packed, plain):
        with backend.intervene([Edit(1, hook_point, third_token_of_the_first_row)]):
            captures.append(backend.capture(SEQUENCES, POSITIONS, [3, 5]))
    got, expected = captures
    assert shapes == [(len(SEQUENCES), max(map(len, SEQUENCES)), 32)] * 2
    assert relative(got.resid_post, expected.resid_post) < 2e-6
    torch.testing.assert_close(got.logits, expected.logits, rtol=1e-5, atol=1e-5)
    # The first row is moved, no other one, by not one bit.
    assert not torch.equal(got.resid_post[0], before.resid_post[0])
    assert torch.equal(got.resid_post[1:], before.resid_post[1:])


def test_batches_after_a_prefix_that_is_read_once_hold_as_many_rows_as_their_own_tokens_allow(
    tiny_backend: Callable[..., HFBackend],
) -> None:
    backend = tiny_backend()
    prompts = [Prompt(str(i), (*PREFIX, 7, 9, 100 + i), (1, 2), None) for i in range(30)]
    reading = Reading(prompts, [len(PREFIX) + 2] * 30, (3, 5))
    sizes = {}
    for name, each in (("packed", backend), ("padded", padded(tiny_backend()))):
        plan = plan_sharing(each, reading, range(30), prefix_sharing=True)
        batches = [rows for rows, _ in run_passes(each, reading, plan, batch_tokens=80)]
        sizes[name] = [len(rows) for rows in batches]
    # Behind 63 tokens: 3 of its own a row, against 3 and half of the prefix's.
    assert sizes == {"packed": [26, 4], "padded": [2] * 15}
