"""Does an adapter change what the model does? Base and adapted model on the same items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from activations import ActivationCache, HFBackend, extract
from activations.adapter import adapted, adapter_sha256, require_effect
from activations.answers import require_labels
from activations.batches import plan_batches, run_batches
from experiments.drift import DriftRow, layer_drift
from interp.errors import ProbeError
from interp.grading import parse_verdict
from interp.items import Item
from interp.statistics import Estimate, bootstrap_mean, mcnemar_exact

__all__ = ["Comparison", "compare_adapters", "verdict"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """An adapted model beside its base, on the same items.

    Attributes:
        path: the adapter.
        n_items: items compared.
        kl_mean: mean KL(base ‖ adapted) of the next-token distribution after the answer stub, nats.
        kl_max: the largest.
        argmax_flips: items whose most likely next token there changes.
        identical_greedy: share of items whose greedy answer is the same, token for token.
        forced_before: forced-choice accuracy of the base.
        forced_after: of the adapted model.
        forced_change: paired difference, with interval.
        mcnemar_p: exact p-value that both are right equally often.
        greedy_before: accuracy of the base's greedy answers; no verdict is wrong.
        greedy_after: of the adapted model's.
        drift: one row a layer: cosine, relative change, and how well probes of the base transfer.
    """

    path: str
    n_items: int
    kl_mean: float
    kl_max: float
    argmax_flips: int
    identical_greedy: float
    forced_before: float
    forced_after: float
    forced_change: Estimate
    mcnemar_p: float
    greedy_before: float
    greedy_after: float
    drift: tuple[DriftRow, ...]


@dataclass(frozen=True, slots=True)
class _Run:
    """What one model does: (n, d_vocab) log probabilities, and greedy token ids."""

    log_probabilities: Tensor
    forced: NDArray[np.bool_]
    greedy: tuple[tuple[int, ...], ...]
    greedy_correct: NDArray[np.bool_]


def compare_adapters(
    backend: HFBackend,
    paths: Sequence[Path],
    items: Sequence[Item],
    folder: Path,
    *,
    source: dict[str, Any],
    max_new_tokens: int,
    batch_tokens: int,
    seed: int = 0,
    progress: Callable[[int], None] = lambda _: None,
) -> list[Comparison]:
    """Run the base once and each adapted model on the items; the caches stay in `folder`.

    Args:
        backend: the base model.
        paths: PEFT adapter folders.
        items: True/False items.
        folder: gets `base.h5` and one cache an adapter, named after folder and fingerprint.
        source: from `activations.describe_source`.
        max_new_tokens: cut of greedy answers.
        batch_tokens: padded tokens a batch.
        seed: of folds and intervals.
        progress: called once a model.

    Raises:
        ModelError: an adapter does not fit the model, or has no effect whatever its values are.
    """
    labels = require_labels(items)
    options: dict[str, Any] = {"source": source, "batch_tokens": batch_tokens}
    # Every adapter is attached once before anything is run: one that does not fit costs nothing.
    names = {path: f"{path.resolve().name}-{adapter_sha256(path)[:8]}" for path in paths}
    prompt = backend.tokenize(items[:1])[0]
    for path in paths:
        with adapted(backend, path) as changed:
            require_effect(changed, path, prompt.ids_with_stub)
    before = _run(backend, items, labels, max_new_tokens, batch_tokens)
    progress(1)
    found = []
    with extract(backend, items, folder / "base.h5", **options) as base:
        for path in paths:
            with adapted(backend, path) as changed:
                after = _run(changed, items, labels, max_new_tokens, batch_tokens)
                cache = extract(changed, items, folder / f"{names[path]}.h5", **options)
            with cache:
                rows = _drift(base, cache, seed)
            found.append(_compared(path, items, labels, before, after, rows, seed))
            progress(1)
    return found


def _drift(base: ActivationCache, cache: ActivationCache, seed: int) -> tuple[DriftRow, ...]:
    try:
        return layer_drift(base, cache, seed=seed)
    except ProbeError:
        # Too few items or groups for folds: the streams can be compared all the same.
        return layer_drift(base, cache, n_folds=None)


def _compared(
    path: Path,
    items: Sequence[Item],
    labels: NDArray[np.bool_],
    before: _Run,
    after: _Run,
    rows: tuple[DriftRow, ...],
    seed: int,
) -> Comparison:
    p, q = before.log_probabilities, after.log_probabilities
    kl = (p.exp() * (p - q)).sum(dim=1)
    same = [a == b for a, b in zip(before.greedy, after.greedy, strict=True)]
    right = [run.forced == labels for run in (before, after)]
    groups = [item.group_id for item in items]
    return Comparison(
        path=str(path),
        n_items=len(items),
        kl_mean=float(kl.mean()),
        kl_max=float(kl.max()),
        argmax_flips=int((p.argmax(dim=1) != q.argmax(dim=1)).sum()),
        identical_greedy=float(np.mean(same)),
        forced_before=float(right[0].mean()),
        forced_after=float(right[1].mean()),
        forced_change=bootstrap_mean(right[1].astype(float) - right[0], groups, seed=seed),
        mcnemar_p=mcnemar_exact(*right),
        greedy_before=float(before.greedy_correct.mean()),
        greedy_after=float(after.greedy_correct.mean()),
        drift=rows,
    )


def _run(
    backend: HFBackend,
    items: Sequence[Item],
    labels: NDArray[np.bool_],
    max_new_tokens: int,
    batch_tokens: int,
) -> _Run:
    prompts = backend.tokenize(items)
    verdicts = backend.verdict_ids(prompts)
    d_vocab = backend.model.get_output_embeddings().weight.shape[0]
    logits = torch.empty(len(prompts), d_vocab)
    greedy: list[tuple[int, ...]] = [()] * len(prompts)

    def run(index: Sequence[int]) -> tuple[Tensor, tuple[tuple[int, ...], ...]]:
        asked = backend.logits([prompts[i].ids_with_stub for i in index], range(d_vocab))
        return asked, backend.generate([prompts[i].ids for i in index], max_new_tokens)

    lengths = [len(prompt.ids_with_stub) + max_new_tokens for prompt in prompts]
    for index, (values, generated) in run_batches(plan_batches(lengths, batch_tokens), run):
        logits[index] = values
        for i, ids in zip(index, generated, strict=True):
            greedy[i] = ids
    said = [parse_verdict(backend.decode(ids)) for ids in greedy]
    return _Run(
        log_probabilities=logits.double().log_softmax(dim=1),
        forced=(logits[:, verdicts.true_id] > logits[:, verdicts.false_id]).numpy(),
        greedy=tuple(greedy),
        greedy_correct=np.array(
            [
                verdict is not None and verdict == gold
                for verdict, gold in zip(said, labels, strict=True)
            ]
        ),
    )


def verdict(comparison: Comparison) -> str:
    """One sentence on what the adapter does to the model's behaviour on these items."""
    change = comparison.forced_change
    size = f"{100 * change.value:+.1f} points [{100 * change.low:+.1f}, {100 * change.high:+.1f}]"
    if comparison.kl_mean == 0 and comparison.identical_greedy == 1:
        return "The adapter changes nothing on these items: same distribution, same greedy text."
    said = (
        "every greedy answer is the same"
        if comparison.identical_greedy == 1
        else f"{comparison.identical_greedy:.0%} of the greedy answers are the same"
    )
    moved = "changes" if change.low > 0 or change.high < 0 else "does not change"
    return (
        f"KL {comparison.kl_mean:.1e} nats at the answer, {comparison.argmax_flips} of "
        f"{comparison.n_items} most likely tokens flip, and {said}; the adapter {moved} the "
        f"accuracy of the forced choice beyond its interval ({size})."
    )
