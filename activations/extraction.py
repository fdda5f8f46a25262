"""Extraction: items through a model into an activation cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
import torch

from activations.backend import ModelBackend, VerdictIds
from activations.background import writing
from activations.batches import BATCH_TOKENS
from activations.cache import ActivationCache, CacheWriter, manifest_differences, refuse_mismatch
from activations.captures import relative
from activations.compression import require_compression
from activations.passes import Reading, capture_plain, plan_sharing, run_passes
from interp.errors import CacheError, ModelError, require_choice
from interp.files import partial_path
from interp.items import Item
from interp.prompts import ANSWER_STUB
from interp.records import package_versions
from interp.registry import describe_source
from interp.vocabulary import Compression, Library, Store, TokenRule

__all__ = ["describe_source", "extract", "manifest_of"]

_DISTRIBUTIONS: Final[Mapping[Library, tuple[str, ...]]] = {
    "hf": (),
    "transformer_lens": ("transformer-lens",),
    "nnsight": ("nnsight",),
}
"""Packages that numbers depend on, beside those that they always depend on."""

_SELF_CHECK_SHARE: Final = 0.01
_SELF_CHECK_LEAST: Final = 4

Progress = Callable[[int], None]
"""Called with the number of items that were finished since the last call."""


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
        "backend": backend.library,
        "versions": package_versions(*_DISTRIBUTIONS[backend.library]),
    }


def extract(
    backend: ModelBackend,
    items: Sequence[Item],
    path: str | Path,
    *,
    source: dict[str, Any],
    token_rule: TokenRule = "last_prompt",
    store: Store = "float32",
    batch_tokens: int = BATCH_TOKENS,
    prefix_sharing: bool = True,
    file_locking: bool = True,
    compression: Compression = "none",
    background: bool | None = None,
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
        prefix_sharing: run first tokens that prompts have in common once, where it pays and the
            model can. The numbers are the same up to rounding, so the manifest does not depend on
            it; what was shared stands in the file's `prefix_sharing`.
        file_locking: lock the file against other writers; see `CacheWriter.open`.
        compression: of the finished file; the numbers are the same, so the manifest does not
            depend on it.
        background: write in a thread beside the computing; None does so where a GPU computes.
        progress: called after each batch.

    Raises:
        CacheError: `path` belongs to another extraction; the differing fields are named.
        ModelError: an activation is not finite; layer and item are named.
        ItemError: an item has no token for the rule.
    """
    path = Path(path)
    require_choice("token_rule", token_rule, get_args(TokenRule), CacheError)
    require_choice("store", store, get_args(Store), CacheError)
    require_compression(compression)
    prompts = backend.tokenize(items)
    verdicts = backend.verdict_ids(prompts)
    manifest = manifest_of(backend, source, verdicts, token_rule=token_rule, store=store)
    if path.exists():
        cache = ActivationCache.open(path, file_locking=file_locking)
        differences = manifest_differences(cache.manifest, manifest, ignore=("versions",))
        if differences:
            cache.close()
        refuse_mismatch(path, differences)
        # Left by a run that was killed when it had just put the compressed file in its place.
        partial_path(path).unlink(missing_ok=True)
        progress(len(items))
        return cache
    reading = Reading(
        prompts,
        [prompt.position(token_rule) for prompt in prompts],
        (verdicts.true_id, verdicts.false_id),
    )
    with CacheWriter.open(
        path,
        manifest=manifest,
        items=items,
        prompts=prompts,
        n_layers=backend.n_layers,
        d_model=backend.d_model,
        store=store,
        file_locking=file_locking,
    ) as writer:
        pending = frozenset(writer.pending().tolist())
        progress(len(items) - len(pending))
        sample, every = _sample(len(items)), range(len(items))
        plan = plan_sharing(backend, reading, every, prefix_sharing=prefix_sharing, prefer=sample)
        passes = run_passes(backend, reading, plan, batch_tokens=batch_tokens, pending=pending)
        beside = backend.device.type == "cuda" if background is None else background
        with writing(writer.write, background=beside) as write:
            for rows, capture in passes:
                _require_finite(capture.resid_post, [items[row].item_id for row in rows])
                write(rows, capture)
                progress(len(rows))
        difference = _self_check(writer, backend, reading, sample, plan.alone)
        writer.finish(difference, plan.record(), compression)
    return ActivationCache.open(path, file_locking=file_locking)


def _require_finite(resid_post: torch.Tensor, item_ids: Sequence[str]) -> None:
    bad = torch.nonzero(~torch.isfinite(resid_post).all(dim=2))
    if len(bad):
        row, layer = bad[0].tolist()
        raise ModelError(
            f"The residual stream of item {item_ids[row]!r} is not finite from layer {layer} on. "
            f"The model overflows in this dtype; use --dtype float32 or bfloat16."
        )


def _sample(n: int) -> list[int]:
    """Rows that are run again, spread evenly, ascending."""
    size = min(n, max(_SELF_CHECK_LEAST, round(_SELF_CHECK_SHARE * n)))
    rows: list[int] = np.unique(np.linspace(0, n - 1, size).round().astype(int)).tolist()
    return rows


def _self_check(
    writer: CacheWriter,
    backend: ModelBackend,
    reading: Reading,
    sample: Sequence[int],
    known: Mapping[int, torch.Tensor],
) -> float:
    """Largest relative difference between rows as stored and as run alone, unpadded, unshared.

    Args:
        writer: of the file.
        backend: the model.
        reading: what was read.
        sample: ascending rows to compare.
        known: rows that were run alone already.
    """
    worst = 0.0
    for row, stored in zip(sample, writer.rows(sample), strict=True):
        alone = known.get(row)
        if alone is None:
            alone = capture_plain(backend, reading, [row]).resid_post[0]
        difference = relative(torch.from_numpy(stored), alone)
        if not np.isfinite(difference):
            raise ModelError(
                f"The self-check of item {reading.prompts[row].item_id!r} is not finite: run "
                f"alone, the model gives other values than in a batch. Use --dtype float32."
            )
        worst = max(worst, difference)
    return worst
