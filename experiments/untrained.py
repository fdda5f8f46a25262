"""The untrained baseline: the same items through the same architecture with random weights.

What a probe reads of it comes from the tokens and the architecture alone, not from training.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from activations import ActivationCache, HFBackend, ModelSpec, extract, load_backend
from interp.errors import CacheError, ModelError

__all__ = ["untrained_cache"]


def untrained_cache(
    cache: ActivationCache,
    path: Path,
    *,
    model: str | None = None,
    device: str = "auto",
    seed: int = 0,
    progress: Callable[[int], None] = lambda _: None,
) -> ActivationCache:
    """Extract the cache's own items again, from its model's architecture with weights drawn anew.

    Items, token rule, data type and chat template are those of the cache; the weights follow the
    model's own initialisation.

    Args:
        cache: open cache.
        path: of the new cache; a finished one is reopened.
        model: the cache's model; None takes the id that the cache names.
        device: torch device or `auto`.
        seed: of the weights.
        progress: called after each batch.

    Raises:
        ModelError: the model cannot be found, or has another shape than the cache.
        CacheError: the file holds the activations of other weights, for instance of another seed.
    """
    manifest = cache.manifest["model"]
    name = model or manifest["model_id"]
    try:
        spec = ModelSpec.parse(
            name,
            dtype=manifest["dtype"],
            device=device,
            attn=manifest["attn_implementation"],
            template_args=manifest.get("template_args"),
        )
    except ModelError as error:
        raise ModelError(
            f"--untrained needs the architecture of {manifest['model_id']!r}, which the cache "
            f"names but does not hold: {error} Give the model itself with --model."
        ) from error
    trained = load_backend(spec)
    found = (trained.n_layers, trained.d_model)
    if found != (cache.n_layers, cache.d_model):
        raise ModelError(
            f"--untrained: {spec.model_id} has {found[0]} layers of {found[1]}, the cache has "
            f"{cache.n_layers} of {cache.d_model}. Give the cache's own model with --model."
        )
    torch.manual_seed(seed)
    drawn = AutoModelForCausalLM.from_config(
        trained.model.config,
        dtype=getattr(torch, spec.dtype),
        attn_implementation=manifest["attn_implementation"],
    ).to(trained.model.device)
    backend = HFBackend(
        drawn,
        trained.tokenizer,
        model_id=f"{spec.model_id}, untrained",
        template_args=spec.template_args,
    )
    try:
        return extract(
            backend,
            cache.items(),
            path,
            source=cache.manifest["source"],
            token_rule=cache.manifest["token_rule"],
            progress=progress,
        )
    except CacheError as error:
        raise CacheError(f"--untrained, weights drawn with --seed {seed}: {error}") from error
