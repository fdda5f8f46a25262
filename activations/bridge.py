"""The TransformerLens backend: hook points of a `TransformerBridge` around a private copy."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from activations.backend import Edit
from activations.hf import HFBackend
from activations.hooks import require_layers
from interp.errors import ModelError
from interp.vocabulary import Library

__all__ = ["TransformerLensBackend"]


class TransformerLensBackend(HFBackend):
    """Runs a model of transformers through TransformerLens, weights unprocessed.

    TransformerLens renames parameters, wraps modules and switches the model to eager attention, so
    it gets a copy; the model that was given stays as it is. Token ids go in, never text: given
    text, TransformerLens would put a BOS of its own before it.
    """

    def __init__(self, backend: HFBackend) -> None:
        """Copy the model of a running backend and put a bridge around the copy.

        Raises:
            ModelError: TransformerLens does not know the architecture.
        """
        from transformer_lens.model_bridge import TransformerBridge

        own = copy.deepcopy(backend.model)
        # Missing on a model that was never saved; TransformerLens looks nowhere else.
        own.config.architectures = [type(own).__name__]
        # The digest is of the parameters under the names that the model came with.
        super().__init__(
            own,
            backend.tokenizer,
            model_id=backend.model_id,
            weights=backend.fingerprint()["weights"],
            revision=backend.fingerprint()["revision"],
            adapter=backend.fingerprint()["adapter"],
            padding=backend.padding,
            template_args=backend.template_args,
        )
        try:
            self._bridge = TransformerBridge.boot_transformers(
                self.model_id,
                hf_model=own,
                tokenizer=copy.deepcopy(self.tokenizer),
                device=self.device,
                dtype=own.dtype,
            )
        except ValueError as error:
            reason = str(error).split(" Available architectures")[0][:200]
            raise ModelError(
                f"TransformerLens cannot run {type(own).__name__} ({reason}). Use --backend hf."
            ) from error
        with torch.inference_mode():
            # The bridge puts hooks of its own on its modules when it first runs.
            self._bridge(torch.zeros(1, 2, dtype=torch.long, device=self.device))

    @property
    def library(self) -> Library:
        """Which library runs the model."""
        return "transformer_lens"

    def _run(self, inputs: Mapping[str, Any]) -> Any:
        options = dict(inputs)
        logits, cache = self._bridge(
            options.pop("input_ids"), return_type="logits_and_cache", **options
        )
        # With some releases of transformers the bridge hands a cache around and leaves it empty;
        # going on from that would forget all earlier tokens.
        if cache is not None and not all(layer.is_initialized for layer in cache.layers):
            cache = None
        return SimpleNamespace(logits=logits, **{self._cache_name: cache})

    def observed(
        self, on_resid_post: Callable[[int, Tensor], None], on_resid_pre0: Callable[[Tensor], None]
    ) -> AbstractContextManager[None]:
        """Watch every forward pass inside the context, at the bridge's hook points."""

        def pre0(hidden: Tensor, hook: Any) -> None:  # noqa: ARG001
            on_resid_pre0(hidden)

        def at(layer: int) -> Callable[..., None]:
            def post(hidden: Tensor, hook: Any) -> None:  # noqa: ARG001
                on_resid_post(layer, hidden)

            return post

        points = [(f"blocks.{layer}.hook_out", at(layer)) for layer in range(self.n_layers)]
        return self._hooked([("blocks.0.hook_in", pre0), *points], first=False)

    def intervene(self, edits: Sequence[Edit]) -> AbstractContextManager[None]:
        """Apply edits to every forward pass inside the context, before any other hook."""
        require_layers(edits, self.n_layers)

        def changing(edit: Edit) -> Callable[..., Tensor]:
            def change(hidden: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
                return edit.apply(hidden)

            return change

        names = {"resid_post": "hook_out", "resid_pre": "hook_in"}
        return self._hooked(
            [(f"blocks.{edit.layer}.{names[edit.hook_point]}", changing(edit)) for edit in edits],
            first=True,
        )

    @contextmanager
    def _hooked(
        self, hooks: Sequence[tuple[str, Callable[..., Any]]], *, first: bool
    ) -> Iterator[None]:
        """Hooks at named points; `first` puts them before all that are there already."""
        points = self._bridge.hook_dict
        added = []
        try:
            # Each one is put before the others, so the last one to be added runs first.
            for name, function in reversed(hooks) if first else hooks:
                point = points[name]
                added.append((point, point.add_hook(function, prepend=first)))
            yield
        finally:
            for point, handle in added:
                handle.hook.remove()
                point.fwd_hooks[:] = [kept for kept in point.fwd_hooks if kept is not handle]
