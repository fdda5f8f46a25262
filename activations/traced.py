"""The nnsight backend: a pass is a trace that reads and writes the blocks in forward order."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from activations.backend import Edit
from activations.hf import HFBackend
from activations.hooks import hidden_of, require_layers, with_hidden
from interp.vocabulary import Library

__all__ = ["NNsightBackend"]


@dataclass(frozen=True, slots=True)
class _Watcher:
    """What is called back in a pass: with every block's output, and with the first input."""

    on_resid_post: Callable[[int, Tensor], None]
    on_resid_pre0: Callable[[Tensor], None]


class NNsightBackend(HFBackend):
    """Runs a model of transformers through nnsight.

    nnsight pads on the left and sets that on the tokenizer it is given, so it gets a copy.
    """

    def __init__(self, backend: HFBackend) -> None:
        """Wrap the model of a running backend; that one stays usable."""
        from nnsight.modeling.transformers import TransformersModel

        super().__init__(
            backend.model,
            backend.tokenizer,
            model_id=backend.model_id,
            weights=backend.fingerprint()["weights"],
            revision=backend.fingerprint()["revision"],
            adapter=backend.fingerprint()["adapter"],
            padding=backend.padding,
            template_args=backend.template_args,
        )
        self._traced: Any = TransformersModel(self.model, tokenizer=copy.deepcopy(self.tokenizer))
        path = next(name for name, module in self.model.named_modules() if module is self.blocks)
        envoy = self._traced
        for part in path.split("."):
            envoy = getattr(envoy, part)
        self._envoys = [envoy[layer] for layer in range(self.n_layers)]
        self._edits: list[Edit] = []
        self._watchers: list[_Watcher] = []

    @property
    def library(self) -> Library:
        """Which library runs the model."""
        return "nnsight"

    def _run(self, inputs: Mapping[str, Any]) -> Any:
        options = dict(inputs)
        cache = options.get(self._cache_name)
        if cache is not None and options.get("attention_mask") is None:
            # nnsight would fill in a mask of the new tokens alone.
            n, seq = options["input_ids"].shape
            length = seq + cache.get_seq_length()
            options["attention_mask"] = torch.ones(n, length, dtype=torch.long, device=self.device)
        with self._traced.trace(**options):
            self._visit()
            # A name that is assigned inside a trace is what comes out of it.
            output = self._traced.output.save()
        return output  # noqa: RET504

    def _visit(self) -> None:
        """Inside a trace: apply edits and call watchers, in the order in which blocks run."""
        for layer, block in enumerate(self._envoys):
            for edit in self._edits:
                if (edit.layer, edit.hook_point) == (layer, "resid_pre"):
                    block.input = edit.apply(block.input)
            if layer == 0:
                for watcher in self._watchers:
                    watcher.on_resid_pre0(block.input)
            for edit in self._edits:
                if (edit.layer, edit.hook_point) == (layer, "resid_post"):
                    block.output = with_hidden(block.output, edit.apply(hidden_of(block.output)))
            for watcher in self._watchers:
                watcher.on_resid_post(layer, hidden_of(block.output))

    @contextmanager
    def observed(
        self, on_resid_post: Callable[[int, Tensor], None], on_resid_pre0: Callable[[Tensor], None]
    ) -> Iterator[None]:
        """Watch every forward pass inside the context."""
        watcher = _Watcher(on_resid_post, on_resid_pre0)
        self._watchers.append(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)

    @contextmanager
    def intervene(self, edits: Sequence[Edit]) -> Iterator[None]:
        """Apply edits to every forward pass inside the context."""
        require_layers(edits, self.n_layers)
        before = self._edits
        # Of nested contexts the inner one edits first, as with hooks that are prepended.
        self._edits = [*edits, *before]
        try:
            yield
        finally:
            self._edits = before
