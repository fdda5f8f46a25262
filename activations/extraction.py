"""Extraction: items through a model into an activation cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from activations.backend import ModelBackend, Prompt, VerdictIds
from activations.batches import BATCH_TOKENS, plan_batches, run_batches
from activations.cache import ActivationCache, CacheWriter, manifest_differences, refuse_mismatch
from interp.errors import ModelError
from interp.items import Item, items_sha256
from interp.prompts import ANSWER_STUB
from interp.records import package_versions
from interp.registry import ItemSource
from interp.vocabulary import Store, TokenRule

__all__ = ["describe_source", "extract", "manifest_of"]

_SELF_CHECK_SHARE: Final = 0.01
_SELF_CHECK_LEAST: Final = 4

Progress = Callable[[int], None]
"""Called with the number of items that were finished since the last call."""


def describe_source(
    source: ItemSource, items: Sequence[Item], *, view: str | None, seed: int
) -> dict[str, Any]:
    """What a manifest says of the items: where they come from and their digest."""
    return {
        "name": source.name,
        "version": source.version,
        "fingerprint": source.fingerprint(),
        "view": view or source.views[0],
        "n": len(items),
        "seed": seed,
        "items_sha256": items_sha256(items),
    }


def manifest_of(
    backend: ModelBackend,
    source: dict[str, Any],
    verdicts: VerdictIds,
    *,
    token_rule: TokenRule,
    store: Store,
) -> dict[str, Any]:
    """Everything that the numbers in a cache depend on; two equal manifests, equal numbers."""
    return {
        "model": dict(backend.fingerprint()),
        "source": source,
        "token_rule": token_rule,
        "answer_stub": ANSWER_STUB,
        "verdict_ids": asdict(verdicts),
        "store": store,
        "backend": "hf",
        "versions": package_versions(),
    }


def extract(
    backend: ModelBackend,
    items: Sequence[Item],
    path: Path,
    *,
    source: dict[str, Any],
    token_rule: TokenRule = "last_prompt",
    store: Store = "float32",
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress = lambda _: None,
) -> ActivationCache:
    """Write the activations of all items to `path`, or reopen or resume what is there.

    A finished file with the same manifest is opened and nothing is computed (package versions may
    differ then); an unfinished one is resumed; any other is refused untouched.

    Args:
        backend: a running model.
        items: what to run, in the order of the file's rows.
        path: of the finished cache.
        source: from `describe_source`.
        token_rule: the token at which residual streams are read.
        store: `float32` or `float16`.
        batch_tokens: padded tokens a batch.
        progress: called after each batch.

    Raises:
        CacheError: `path` belongs to another extraction; the differing fields are named.
        ModelError: an activation is not finite; layer and item are named.
        ItemError: an item has no token for the rule.
    """
    prompts = backend.tokenize(items)
    verdicts = backend.verdict_ids(prompts)
    manifest = manifest_of(backend, source, verdicts, token_rule=token_rule, store=store)
    if path.exists():
        cache = ActivationCache.open(path)
        differences = manifest_differences(cache.manifest, manifest, ignore=("versions",))
        if differences:
            cache.close()
        refuse_mismatch(path, differences)
        progress(len(items))
        return cache
    positions = [prompt.position(token_rule) for prompt in prompts]
    logit_ids = (verdicts.true_id, verdicts.false_id)

    def run(index: Sequence[int]) -> Any:
        return backend.capture(
            [prompts[i].ids_with_stub for i in index], [positions[i] for i in index], logit_ids
        )

    with CacheWriter.open(
        path,
        manifest=manifest,
        items=items,
        prompts=prompts,
        n_layers=backend.n_layers,
        d_model=backend.d_model,
        store=store,
    ) as writer:
        pending = writer.pending()
        progress(len(items) - len(pending))
        lengths = [len(prompts[i].ids_with_stub) for i in pending]
        batches = [pending[batch].tolist() for batch in plan_batches(lengths, batch_tokens)]
        for index, capture in run_batches(batches, run):
            _require_finite(capture.resid_post, [items[i].item_id for i in index])
            writer.write(index, capture)
            progress(len(index))
        writer.finish(_self_check(writer, prompts, run))
    return ActivationCache.open(path)


def _require_finite(resid_post: torch.Tensor, item_ids: Sequence[str]) -> None:
    bad = torch.nonzero(~torch.isfinite(resid_post).all(dim=2))
    if len(bad):
        row, layer = bad[0].tolist()
        raise ModelError(
            f"The residual stream of item {item_ids[row]!r} is not finite from layer {layer} on. "
            f"The model overflows in this dtype; use --dtype float32 or bfloat16."
        )


def _self_check(writer: CacheWriter, prompts: Sequence[Prompt], run: Callable[..., Any]) -> float:
    """Run a sample again, each item alone and unpadded; the largest relative difference."""
    n = len(prompts)
    size = min(n, max(_SELF_CHECK_LEAST, round(_SELF_CHECK_SHARE * n)))
    sample = np.unique(np.linspace(0, n - 1, size).round().astype(int)).tolist()
    stored = writer.rows(sample)
    worst = 0.0
    for row, index in enumerate(sample):
        alone = run([index]).resid_post[0].numpy()
        size = np.maximum(np.linalg.norm(alone, axis=1), np.finfo(np.float32).tiny)
        difference = np.linalg.norm(stored[row] - alone, axis=1) / size
        if not np.isfinite(difference).all():
            raise ModelError(
                f"The self-check of item {prompts[index].item_id!r} is not finite: run alone, the "
                f"model gives other values than in a batch. Use --dtype float32."
            )
        worst = max(worst, float(difference.max()))
    return worst
