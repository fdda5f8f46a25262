"""Answers and steering after a shared prefix: the same as from whole prompts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sharing import FAMILIES, N_PREFIX, count_tokens, described, items_at_tables, random_ids

from activations import Edit, HFBackend, answer, extract
from interp import Item
from interp.errors import ModelError
from interp.files import partial_path
from probes import sweep_layers
from steering import SignedItems, sweep_steering

ONE_LENGTH = "gemma3-window-16"


def sequences_of(case: str) -> tuple[list[int], list[list[int]]]:
    """A prefix and sequences that start with it; the longest is more than twice as long."""
    (prefix,) = random_ids(N_PREFIX)
    lengths = (9, 9, 9) if case == ONE_LENGTH else (9, 3, 70, 1, 30)
    return prefix, [prefix + own for own in random_ids(*lengths, seed=1)]


@pytest.mark.parametrize("case", FAMILIES)
@pytest.mark.parametrize("attn", ["sdpa", "eager"])
def test_replies_after_a_shared_prefix_are_those_to_whole_prompts(
    case: str, attn: str, tiny_backend: Callable[..., HFBackend]
) -> None:
    family, changes = FAMILIES[case]
    backend = tiny_backend(family, attn=attn, **changes)
    prefix, sequences = sequences_of(case)
    shared = backend.share_prefix(prefix)
    assert shared.ragged == (case != ONE_LENGTH)
    alone = tuple(backend.generate([ids], 12)[0] for ids in sequences)
    assert backend.generate(sequences, 12, shared) == alone
    # The prefix is left as it was, and rows do not depend on their neighbours.
    assert backend.generate(sequences[:2], 12, shared) == alone[:2]
    # The controls: replies differ between rows, and another prefix gives others.
    assert len(set(alone)) == len(alone)
    (other,) = random_ids(N_PREFIX, seed=2)
    assert backend.generate(sequences, 12, backend.share_prefix(other)) != alone


@pytest.mark.parametrize("case", FAMILIES)
def test_a_kept_prompt_after_a_shared_prefix_goes_on_as_one_run_whole(
    case: str, tiny_backend: Callable[..., HFBackend]
) -> None:
    family, changes = FAMILIES[case]
    backend = tiny_backend(family, **changes)
    prefix, sequences = sequences_of(case)
    suffixes = [[9, 14, 21]] * len(sequences)
    every_id = list(range(300))
    plain = backend.prefill(sequences)
    kept = backend.prefill(sequences, backend.share_prefix(prefix))
    assert torch.equal(kept.is_token, plain.is_token)
    assert torch.equal(kept.lengths, plain.lengths)
    edit = Edit(1, "resid_post", lambda hidden: hidden * 1.5)
    for edits in ([], [edit]):
        with backend.intervene(edits):
            got = backend.logits_after(kept, suffixes, every_id)
            again = backend.logits_after(kept, suffixes, every_id)
            expected = backend.logits_after(plain, suffixes, every_id)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(again, got)
    (other,) = random_ids(N_PREFIX, seed=2)
    wrong = backend.prefill(sequences, backend.share_prefix(other))
    assert not torch.allclose(backend.logits_after(wrong, suffixes, every_id), expected, atol=0.01)


def test_sequences_that_cannot_go_on_after_a_prefix_are_refused(
    tiny_backend: Callable[..., HFBackend],
) -> None:
    prefix, (first, *_) = sequences_of("llama")
    backend = tiny_backend()
    with pytest.raises(ModelError, match=r"\[61\] after a prefix of 61 tokens; expected longer"):
        backend.generate([prefix], 3, backend.share_prefix(prefix))
    family, changes = FAMILIES[ONE_LENGTH]
    backend = tiny_backend(family, **changes)
    with pytest.raises(ModelError, match="of one length where the model keeps a window only"):
        backend.generate([first, first[:-2]], 3, backend.share_prefix(prefix))


@pytest.fixture(scope="module")
def tables() -> tuple[Item, ...]:
    return items_at_tables(40)


def settings(items: tuple[Item, ...]) -> dict[str, Any]:
    return {
        "source": described(items),
        "batch_tokens": 1200,
    }


@pytest.mark.parametrize("case", FAMILIES)
def test_an_answer_file_with_sharing_equals_one_without(
    case: str, tmp_path: Path, tiny_backend: Callable[..., HFBackend], tables: tuple[Item, ...]
) -> None:
    family, changes = FAMILIES[case]
    backend = tiny_backend(family, **changes)
    seen = count_tokens(backend)
    found, tokens = {}, {}
    for sharing in (True, False):
        seen.clear()
        found[sharing] = answer(
            *(backend, tables, tmp_path / f"{sharing}.jsonl"),
            max_new_tokens=6,
            prefix_sharing=sharing,
            **settings(tables),
        )
        tokens[sharing] = sum(seen)
    for with_, without in zip(found[True], found[False], strict=True):
        assert (with_.item_id, with_.condition) == (without.item_id, without.condition)
        assert (with_.raw, with_.n_tokens) == (without.raw, without.n_tokens)
        assert with_.logit_true == pytest.approx(without.logit_true, abs=1e-4)
        assert with_.logit_false == pytest.approx(without.logit_false, abs=1e-4)
    # The control: replies (where the tiny model is not stuck) and logits differ between items.
    assert family == "gemma3" or len({a.raw for a in found[False]}) > 10
    assert np.std([a.logit_true for a in found[False]]) > 0.01
    assert tokens[True] < 0.75 * tokens[False]
    # The manifest does not depend on it, so one reopens the other's file.
    answer(
        *(backend, tables, tmp_path / "True.jsonl"),
        max_new_tokens=6,
        prefix_sharing=False,
        **settings(tables),
    )


def test_a_run_that_stops_among_shared_batches_asks_the_rest_only(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], tables: tuple[Item, ...]
) -> None:
    path, backend = tmp_path / "a.jsonl", tiny_backend()
    options = settings(tables) | {"max_new_tokens": 4}
    whole = answer(backend, tables, tmp_path / "whole.jsonl", **options)
    right, asked = backend.generate, []

    def stops(sequences: Any, *rest: Any) -> Any:
        if len(asked) == 3:
            raise KeyboardInterrupt
        asked.append(len(sequences))
        return right(sequences, *rest)

    backend.generate = stops  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        answer(backend, tables, path, **options)
    assert len(partial_path(path).read_text().splitlines()) == 1 + len(tables) + sum(asked)
    again: list[int] = []

    def counts(sequences: Any, *rest: Any) -> Any:
        again.append(len(sequences))
        return right(sequences, *rest)

    backend.generate = counts  # type: ignore[method-assign]
    resumed = answer(backend, tables, path, **options)
    assert sum(again) == len(tables) - sum(asked)
    assert [a.raw for a in resumed] == [a.raw for a in whole]


def test_steering_after_a_shared_prefix_equals_steering_whole_prompts(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], tables: tuple[Item, ...]
) -> None:
    backend = tiny_backend()
    options = settings(tables)
    with extract(backend, tables, tmp_path / "a.h5", **options) as cache:
        sweep = sweep_layers(cache, C=0.01, n_folds=5, seed=0)
        signed = SignedItems(sweep.fold, sweep.layer_nested, sweep.decision_values, sweep.manifest)
        seen = count_tokens(backend)
        found, tokens = {}, {}
        for sharing in (True, False):
            seen.clear()
            found[sharing] = sweep_steering(
                *(cache, signed, backend),
                alphas=[0.5],
                n_random=1,
                batch_tokens=1200,
                prefix_sharing=sharing,
            ).logits
            tokens[sharing] = sum(seen)
    np.testing.assert_allclose(found[True], found[False], rtol=1e-4, atol=1e-4)
    # The control: the cells differ by far more than that.
    assert np.abs(found[False][1] - found[False][0]).max() > 0.01
    assert tokens[True] < 0.75 * tokens[False]
