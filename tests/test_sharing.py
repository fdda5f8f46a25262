"""Shared prefixes: run once, and nothing in the numbers changes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from sharing import FAMILIES, N_PREFIX, described, items_at_tables, random_ids
from torch import Tensor
from transformers.cache_utils import DynamicCache, StaticLayer

from activations import HFBackend, Prompt, extract
from activations.hooks import count_hooks
from activations.kept import why_not_lendable
from activations.passes import Reading, plan_sharing, run_passes
from interp import Item
from interp.errors import ModelError, SharingError

# Rounding of float32, accumulated over a few layers.
TOLERANCE = 5e-6


def relative(got: Tensor, expected: Tensor) -> float:
    return float(((got - expected).norm(dim=-1) / expected.norm(dim=-1)).max())


@pytest.mark.parametrize("case", FAMILIES)
@pytest.mark.parametrize("attn", ["sdpa", "eager"])
def test_after_a_shared_prefix_everything_equals_the_plain_pass(
    case: str, attn: str, tiny_backend: Callable[..., HFBackend]
) -> None:
    family, changes = FAMILIES[case]
    backend = tiny_backend(family, attn=attn, **changes)
    (prefix,) = random_ids(N_PREFIX)
    suffixes = random_ids(9, 3, 12, 1, 30, seed=1)
    positions = [4, 2, 11, 0, 29]
    every_id = list(range(300))
    plain = backend.capture(
        [prefix + suffix for suffix in suffixes], [N_PREFIX + p for p in positions], every_id
    )
    hooks = count_hooks(backend.model)
    shared = backend.share_prefix(prefix)
    got = backend.capture_after(shared, suffixes, positions, every_id)
    assert count_hooks(backend.model) == hooks
    assert relative(got.resid_post, plain.resid_post) < TOLERANCE
    assert torch.equal(got.resid_pre0, plain.resid_pre0)
    assert relative(got.logits, plain.logits) < TOLERANCE
    assert relative(got.resid_norm, plain.resid_norm) < TOLERANCE
    # A continuation leaves the prefix as it was.
    again = backend.capture_after(shared, suffixes, positions, every_id)
    assert torch.equal(again.resid_post, got.resid_post)
    # The control: another prefix of the same length shows, so these numbers do depend on it.
    (other,) = random_ids(N_PREFIX, seed=2)
    wrong = backend.capture_after(backend.share_prefix(other), suffixes, positions, every_id)
    assert relative(wrong.resid_post, plain.resid_post) > 0.01


def test_the_norms_are_those_of_prefix_and_suffix(tiny_backend: Callable[..., HFBackend]) -> None:
    backend = tiny_backend()
    (prefix,), suffixes = random_ids(N_PREFIX), random_ids(4, 9, seed=1)
    shared = backend.share_prefix(prefix)
    got = backend.capture_after(shared, suffixes, [0, 0], [0]).resid_norm
    streams: list[Tensor] = []
    handles = [
        block.register_forward_hook(lambda _m, _a, output: streams.append(output))
        for block in backend.blocks
    ]
    for row, suffix in enumerate(suffixes):
        streams.clear()
        with torch.inference_mode():
            backend.model(torch.tensor([prefix + suffix]))
        norms = torch.stack([stream[0, 1:].norm(dim=-1).median() for stream in streams])
        torch.testing.assert_close(got[row], norms, rtol=1e-5, atol=0)
        own = torch.stack([stream[0, N_PREFIX:].norm(dim=-1).median() for stream in streams])
        assert not torch.allclose(got[row], own, rtol=1e-3)
    for handle in handles:
        handle.remove()


def test_a_lent_prefix_takes_no_memory_of_its_own(tiny_backend: Callable[..., HFBackend]) -> None:
    backend = tiny_backend()
    (prefix,), suffixes = random_ids(N_PREFIX), random_ids(*[3] * 8, seed=1)
    shared = backend.share_prefix(prefix)
    kept = [(layer.keys.data_ptr(), tuple(layer.keys.shape)) for layer in shared.state.layers]
    backend.capture_after(shared, suffixes, [0] * 8, [0])
    after = [(layer.keys.data_ptr(), tuple(layer.keys.shape)) for layer in shared.state.layers]
    assert after == kept
    assert all(shape[0] == 1 for _, shape in after)


def test_a_state_that_rows_cannot_share_is_named() -> None:
    assert why_not_lendable(object()) == "the model keeps its state in a object"
    cache = DynamicCache()
    cache.update(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4), 0)
    assert why_not_lendable(cache) is None
    cache.layers.append(StaticLayer(max_cache_len=8))
    assert "StaticLayer" in str(why_not_lendable(cache))
    two = DynamicCache()
    two.update(torch.ones(2, 2, 3, 4), torch.ones(2, 2, 3, 4), 0)
    assert "more than one row" in str(why_not_lendable(two))


@pytest.fixture(scope="module")
def tables() -> tuple[Item, ...]:
    return items_at_tables(24)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "gpt2"])
@pytest.mark.parametrize("rule", ["last_prompt", "statement_end", "answer_stub"])
def test_a_file_with_sharing_equals_one_without(
    tmp_path: Path,
    tiny_backend: Callable[..., HFBackend],
    tables: tuple[Item, ...],
    family: str,
    rule: Any,
) -> None:
    backend = tiny_backend(family)
    options: dict[str, Any] = {
        "source": described(tables),
        "token_rule": rule,
        "batch_tokens": 1200,
    }
    with extract(backend, tables, tmp_path / "on.h5", **options) as shared:
        record = shared.prefix_sharing
        manifest = shared.manifest
        assert shared.self_check_max_relative is not None
        assert shared.self_check_max_relative < TOLERANCE
    with extract(backend, tables, tmp_path / "off.h5", prefix_sharing=False, **options) as plain:
        assert plain.manifest == manifest
        off = plain.prefix_sharing
    assert record is not None
    assert off is not None
    assert (record["prefixes"], record["items"], record["off"]) == (2, 23, None)
    assert record["tokens_saved"] > 0.5 * record["tokens"]
    assert (off["prefixes"], off["off"]) == (0, "--no-prefix-sharing")
    with h5py.File(tmp_path / "on.h5") as a, h5py.File(tmp_path / "off.h5") as b:
        assert set(a) == set(b)
        for name in a:
            on, without = a[name][:], b[name][:]
            if on.dtype.kind == "f":
                assert relative(torch.from_numpy(on), torch.from_numpy(without)) < 5e-6, name
            else:
                np.testing.assert_array_equal(on, without, err_msg=name)


def test_fewer_tokens_are_run(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], tables: tuple[Item, ...]
) -> None:
    backend = tiny_backend()
    seen: list[int] = []
    backend.blocks[0].register_forward_hook(
        lambda _m, _a, output: seen.append(output.shape[0] * output.shape[1])
    )
    counts = {}
    for sharing in (True, False):
        seen.clear()
        extract(
            backend,
            tables,
            tmp_path / f"{sharing}.h5",
            source=described(tables),
            prefix_sharing=sharing,
        ).close()
        counts[sharing] = sum(seen)
    # The self-check runs four of the 24 items in full either way.
    assert counts[True] < 0.5 * counts[False]


def plain_reading(backend: HFBackend, items: tuple[Item, ...]) -> Reading:
    prompts = backend.tokenize(items)
    return Reading(prompts, [len(prompt.ids) - 1 for prompt in prompts], (3, 5))


def test_a_wanted_token_inside_the_common_part_ends_the_prefix_before_it(
    tiny_backend: Callable[..., HFBackend],
) -> None:
    backend = tiny_backend()
    (head,), tails = random_ids(100), random_ids(5, 9, 7, seed=1)
    prompts = [Prompt(str(i), (*head, *tail), (1, 2), None) for i, tail in enumerate(tails)]
    positions = [40, 99, 104]
    reading = Reading(prompts, positions, (3, 5))
    plan = plan_sharing(backend, reading, range(3), prefix_sharing=True)
    assert [(group.length, group.rows) for group in plan.groups] == [(99, (1, 2))]
    reading = Reading(prompts, [40, 41, 42], (3, 5))
    plan = plan_sharing(backend, reading, range(3), prefix_sharing=True)
    assert [(group.length, group.rows) for group in plan.groups] == [(40, (0, 1, 2))]
    for rows, capture in run_passes(backend, reading, plan, batch_tokens=500):
        for index, row in enumerate(rows):
            alone = backend.capture([prompts[row].ids_with_stub], [40 + row], [3, 5])
            assert relative(capture.resid_post[index], alone.resid_post[0]) < TOLERANCE


def test_a_model_that_cannot_continue_is_run_plainly_and_it_is_said(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], tables: tuple[Item, ...]
) -> None:
    backend = tiny_backend()
    right = backend.capture_after

    def wrong(prefix: Any, *rest: Any) -> Any:
        capture = right(prefix, *rest)
        return replace(capture, resid_post=capture.resid_post * 1.01)

    backend.capture_after = wrong  # type: ignore[method-assign]
    with extract(backend, tables, tmp_path / "a.h5", source=described(tables)) as cache:
        assert cache.prefix_sharing is not None
        assert "differs from a plain pass by 0.01" in cache.prefix_sharing["off"]
        assert cache.prefix_sharing["tokens_saved"] == 0
        assert cache.self_check_max_relative is not None
        assert cache.self_check_max_relative < 1e-5

    def refuses(_: Any) -> Any:
        raise SharingError("Prefixes cannot be shared by Tiny: " + "state " * 500)

    backend.share_prefix = refuses  # type: ignore[method-assign]
    with extract(backend, tables, tmp_path / "b.h5", source=described(tables)) as cache:
        assert cache.prefix_sharing is not None
        assert cache.prefix_sharing["off"].startswith("Prefixes cannot be shared by Tiny")


def test_a_run_that_stops_among_shared_batches_goes_on(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], tables: tuple[Item, ...]
) -> None:
    backend = tiny_backend()
    right = backend.capture_after
    calls: list[int] = []

    def stops(prefix: Any, suffixes: Any, *rest: Any) -> Any:
        calls.append(len(suffixes))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return right(prefix, suffixes, *rest)

    options: dict[str, Any] = {"source": described(tables), "batch_tokens": 800}
    backend.capture_after = stops  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        extract(backend, tables, tmp_path / "c.h5", **options)
    finished: list[int] = []
    with (
        extract(backend, tables, tmp_path / "c.h5", progress=finished.append, **options) as cut,
        extract(tiny_backend(), tables, tmp_path / "whole.h5", **options) as whole,
    ):
        # The first call only tested sharing.
        assert finished[0] == sum(calls[1:3])
        for layer in range(3):
            # Not a bit differs: the batches are those that would have been run.
            np.testing.assert_array_equal(cut.resid_post(layer), whole.resid_post(layer))
        assert cut.prefix_sharing == whole.prefix_sharing


def test_a_prefix_that_does_not_fit_is_an_error_not_a_crash(
    tiny_backend: Callable[..., HFBackend], tables: tuple[Item, ...]
) -> None:
    backend = tiny_backend()

    def full(_: Any) -> Any:
        raise torch.OutOfMemoryError("full")

    backend.share_prefix = full  # type: ignore[method-assign]
    with pytest.raises(ModelError, match="One sequence alone does not fit"):
        plan_sharing(backend, plain_reading(backend, tables), range(24), prefix_sharing=True)


def test_an_overflow_is_reported_as_such_not_as_a_sharing_fault(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], tables: tuple[Item, ...]
) -> None:
    backend = tiny_backend()
    backend.model.to(torch.float16)
    with torch.no_grad():
        # Finite weights; products beyond 65504 only at layer 2.
        backend.model.model.layers[2].mlp.down_proj.weight.mul_(3e4)
    with pytest.raises(ModelError, match=r"item '.*' is not finite from layer 2 .*float32"):
        extract(backend, tables, tmp_path / "c.h5", source=described(tables))
