"""The transformers backend: forward hooks on the decoder blocks of a Hugging Face model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from activations.backend import Capture, Edit, Prefix, Prompt, SharedPrefix, VerdictIds
from activations.captures import record
from activations.digests import identity, parameters_sha256
from activations.greedy import greedy_continuations, stop_ids_of
from activations.hooks import edited, find_blocks, has_foreign_hooks, input_device, observed
from activations.kept import keeps_all, lend, repeat, why_not_continuable, why_not_lendable
from activations.packed import UnpackableError, capture_packed, in_rows, why_not_packable
from activations.tokens import PaddedBatch, pad, require_room, tokenize, verdict_ids
from interp.errors import ModelError, SharingError
from interp.items import Item
from interp.vocabulary import Library

__all__ = ["HFBackend"]


class HFBackend:
    """Runs a causal language model of transformers.

    Batches are padded on the right without an attention mask where nothing is generated: a causal
    model never looks ahead, so the padding changes nothing, and the pass is faster without a
    mask. Captures on a CPU have no padding at all where the model can do without (see
    `activations.packed`). `padding="left"` pads on the left with a mask and explicit positions; the
    result is the same up to rounding.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        model_id: str,
        weights: str | None = None,
        revision: str | None = None,
        adapter: str | None = None,
        padding: Literal["left", "right"] = "right",
        template_args: Mapping[str, Any] | None = None,
    ) -> None:
        """Wrap a loaded model; it is put in evaluation mode and otherwise left as it is.

        Args:
            model: a causal language model of transformers.
            tokenizer: its fast tokenizer.
            model_id: what results call it.
            weights: fingerprint of the weights; None hashes the parameters.
            revision: recorded.
            adapter: fingerprint of an attached adapter; None for the bare model.
            padding: side of the padding in `capture` and `logits`.
            template_args: further variables of the chat template, such as `enable_thinking`.
        """
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.blocks = find_blocks(model)
        self.padding: Literal["left", "right"] = padding
        self.template_args = dict(template_args or {})
        self._model_id = model_id
        self._weights = weights
        self._revision = revision
        self._adapter = adapter
        self._parameters = frozenset(inspect.signature(model.forward).parameters)
        # transformers renamed the argument, and the output's attribute, in 5.2x.
        self._cache_name = "cache" if "cache" in self._parameters else "past_key_values"
        text_config = model.config.get_text_config(decoder=True)
        self._d_model = int(text_config.hidden_size)
        # (n, seq) of bool, which columns are tokens; while a packed pass runs.
        self.packed: list[Tensor] = []

    @property
    def library(self) -> Library:
        """Which library runs the model."""
        return "hf"

    @property
    def n_layers(self) -> int:
        """Number of decoder blocks."""
        return len(self.blocks)

    @property
    def d_model(self) -> int:
        """Width of the residual stream."""
        return self._d_model

    @property
    def model_id(self) -> str:
        """What results call the model."""
        return self._model_id

    @property
    def device(self) -> torch.device:
        """Where token ids go: the device of the input embedding."""
        return input_device(self.model)

    def fingerprint(self) -> Mapping[str, Any]:
        """Identity of everything in the model that the numbers depend on."""
        if self._weights is None:
            self._weights = parameters_sha256(self.model)
        return {
            "model_id": self._model_id,
            "revision": self._revision,
            "weights": self._weights,
            "adapter": self._adapter,
            "template_args": self.template_args,
            **identity(self.model, self.tokenizer),
        }

    def tokenize(self, items: Sequence[Item]) -> tuple[Prompt, ...]:
        """See `activations.tokens.tokenize`; a prompt that the model cannot take is an error."""
        prompts = tokenize(self.tokenizer, items, self.template_args)
        for prompt in prompts:
            what = f"Item {prompt.item_id!r}: the prompt"
            require_room(self.model, self._model_id, len(prompt.ids_with_stub), what)
        return prompts

    def verdict_ids(self, prompts: Sequence[Prompt]) -> VerdictIds:
        """See `activations.tokens.verdict_ids`."""
        return verdict_ids(self.tokenizer, prompts)

    def _forward(self, logit_columns: Tensor, **inputs: Any) -> Any:
        """One forward pass with the output head on some columns only, where the model can.

        `position_ids` are left out for models that have none (ALiBi); everything else that is
        passed must be understood, or the model raises.
        """
        if "logits_to_keep" in self._parameters:
            inputs["logits_to_keep"] = logit_columns
        if "position_ids" not in self._parameters:
            del inputs["position_ids"]
        return self._run(inputs)

    def _run(self, inputs: Mapping[str, Any]) -> Any:
        """One forward pass; what it gives has `logits` and, if it was asked for, a cache."""
        return self.model(**inputs)

    def observed(
        self, on_resid_post: Callable[[int, Tensor], None], on_resid_pre0: Callable[[Tensor], None]
    ) -> AbstractContextManager[None]:
        """Watch every forward pass inside the context; see `activations.hooks.observed`."""
        return observed(self.blocks, on_resid_post, on_resid_pre0)

    def _logits_at(
        self, batch: PaddedBatch, columns: Tensor, logit_ids: Sequence[int], **inputs: Any
    ) -> Tensor:
        """(n, n_ids) logits at one column a sequence; the head runs on those columns only."""
        unique, index = torch.unique(columns, return_inverse=True)
        output = self._forward(
            unique, input_ids=batch.ids, position_ids=batch.position_ids, **inputs
        )
        logits = output.logits
        if logits.shape[1] == len(unique):
            columns = index
        rows = torch.arange(len(columns), device=logits.device)
        ids = torch.tensor(logit_ids, device=logits.device)
        chosen: Tensor = logits[rows, columns.to(logits.device)][:, ids]
        return chosen.float().cpu()

    def _plain_pass(self, batch: PaddedBatch, logit_ids: Sequence[int], **inputs: Any) -> Tensor:
        """Logits after the last token of each sequence."""
        if self.padding == "left" and batch.is_ragged:
            inputs["attention_mask"] = batch.is_token.long()
        last = batch.starts + batch.lengths - 1
        return self._logits_at(batch, last, logit_ids, use_cache=False, **inputs)

    @torch.inference_mode()
    def capture(
        self, sequences: Sequence[Sequence[int]], positions: Sequence[int], logit_ids: Sequence[int]
    ) -> Capture:
        """Residual streams of every layer at one token a sequence, and logits after the last.

        Args:
            sequences: token ids; padded here.
            positions: index of the wanted token in each sequence.
            logit_ids: vocabulary ids whose logits are wanted.
        """
        batch = pad(sequences, self.padding, self.device)
        # The first token is left out of the norms: it holds the attention sink.
        counted = batch.is_token & (batch.position_ids > 0)
        return self._captured(batch, positions, counted, logit_ids)

    @property
    def padded_because(self) -> str | None:
        """Why captures are padded and not packed; None where they are packed."""
        if has_foreign_hooks(self.model):
            return "a hook on it expects a row a sequence"
        return self._unpackable

    @cached_property
    def _unpackable(self) -> str | None:
        return why_not_packable(self, self._parameters)

    def _captured(
        self,
        batch: PaddedBatch,
        positions: Sequence[int],
        counted: Tensor,
        logit_ids: Sequence[int],
        prefix: SharedPrefix | None = None,
    ) -> Capture:
        """One captured pass, packed where the model can; see `activations.captures.record`."""
        columns = batch.starts + torch.tensor(positions, device=self.device)
        if self.padded_because is None:
            try:
                return capture_packed(self, batch, columns, counted, logit_ids, prefix)
            except UnpackableError as reason:
                self._unpackable = str(reason)

        def run() -> Tensor:
            if prefix is None:
                return self._plain_pass(batch, logit_ids)
            shifted = replace(batch, position_ids=batch.position_ids + prefix.n_tokens)
            kept = {self._cache_name: lend(prefix.state, len(batch.ids))}
            return self._logits_at(shifted, batch.lengths - 1, logit_ids, use_cache=True, **kept)

        before = torch.empty(self.n_layers, 0) if prefix is None else prefix.resid_norm[:, 1:]
        return record(self.observed, columns, counted, before, self.d_model, run)

    @torch.inference_mode()
    def share_prefix(self, ids: Sequence[int]) -> SharedPrefix:
        """Run a prefix once; its keys and values are lent to any number of continuations.

        Raises:
            SharingError: the model keeps no keys and values, or of a kind that rows cannot share.
        """
        batch = pad([ids], "right", self.device)
        norms = torch.empty(self.n_layers, len(ids))

        def on_resid_post(layer: int, hidden: Tensor) -> None:
            norms[layer] = hidden[0].float().norm(dim=-1).cpu()

        with self.observed(on_resid_post, lambda _hidden: None):
            cache = getattr(self._start(batch, None), self._cache_name, None)
        reason = why_not_lendable(cache)
        if reason is not None:
            raise SharingError(
                f"Prefixes cannot be shared by {type(self.model).__name__}: {reason}."
            )
        return SharedPrefix(
            *(cache, len(ids), norms),
            ragged=keeps_all(cache, len(ids)),
            read_once=self.padded_because is None,
        )

    @torch.inference_mode()
    def capture_after(
        self,
        prefix: SharedPrefix,
        suffixes: Sequence[Sequence[int]],
        positions: Sequence[int],
        logit_ids: Sequence[int],
    ) -> Capture:
        """What `capture` gives for the prefix followed by each suffix.

        Args:
            prefix: from `share_prefix`.
            suffixes: token ids after the prefix, of any lengths; padded on the right here.
            positions: index of the wanted token in each suffix.
            logit_ids: vocabulary ids whose logits are wanted.
        """
        batch = pad(suffixes, "right", self.device)
        return self._captured(batch, positions, batch.is_token, logit_ids, prefix)

    def intervene(self, edits: Sequence[Edit]) -> AbstractContextManager[None]:
        """Apply edits to every forward pass inside the context; see `activations.hooks.edited`."""
        return edited(self.blocks, [in_rows(edit, self.packed) for edit in edits])

    @torch.inference_mode()
    def logits(self, sequences: Sequence[Sequence[int]], logit_ids: Sequence[int]) -> Tensor:
        """(n, n_ids) logits after the last token of each sequence, in one plain pass."""
        return self._plain_pass(pad(sequences, self.padding, self.device), logit_ids)

    @torch.inference_mode()
    def prefill(
        self, sequences: Sequence[Sequence[int]], after: SharedPrefix | None = None
    ) -> Prefix:
        """Keys and values of prefixes; left-padded, so that suffixes line up.

        Args:
            sequences: token ids.
            after: from `share_prefix`, if all sequences start with its tokens.

        Raises:
            ModelError: the model keeps another state than keys and values.
        """
        batch = pad(sequences, "left", self.device)
        cache = getattr(self._start(batch, after), self._cache_name, None)
        reason = why_not_continuable(cache)
        if reason is not None:
            raise ModelError(
                f"{type(self.model).__name__} cannot go on after a kept prompt: {reason}. Expected "
                f"keys and values of attention layers."
            )
        return Prefix(cache, batch.is_token, batch.lengths)

    def _start(self, batch: PaddedBatch, after: SharedPrefix | None) -> Any:
        """First pass over a left-padded batch, for its cache and its last logits.

        With `after`, the first columns are read from the prefix and the others are run. Rows start
        at different columns, so a shorter row runs the last tokens of the prefix once more; the
        layout is that of the plain pass, which all position schemes know.
        """
        begun, state = 0, {}
        if after is not None:
            begun = after.n_tokens
            state = {self._cache_name: repeat(after.state, begun, batch)}
        ids, positions = batch.ids[:, begun:], batch.position_ids[:, begun:]
        return self._run_on(ids, positions, batch.is_token, **state)

    def _run_on(self, ids: Tensor, positions: Tensor, is_token: Tensor, **state: Any) -> Any:
        """One pass that keeps keys and values, with logits after the last column only."""
        return self._forward(
            torch.tensor([ids.shape[1] - 1], device=self.device),
            input_ids=ids,
            position_ids=positions,
            attention_mask=None if bool(is_token.all()) else is_token.long(),
            use_cache=True,
            **state,
        )

    @torch.inference_mode()
    def logits_after(
        self, prefix: Prefix, suffixes: Sequence[Sequence[int]], logit_ids: Sequence[int]
    ) -> Tensor:
        """(n, n_ids) logits after suffixes of equal length that continue a prefix.

        Raises:
            ModelError: the suffixes differ in length or number from what the prefix allows.
        """
        lengths = {len(suffix) for suffix in suffixes}
        if len(suffixes) != len(prefix.lengths) or len(lengths) != 1:
            raise ModelError(
                f"Got {len(suffixes)} suffixes of lengths {sorted(lengths)} for "
                f"{len(prefix.lengths)} prefixes; expected one suffix a prefix, all of one length."
            )
        batch = pad(suffixes, "right", self.device)
        seq = batch.ids.shape[1]
        mask = None
        if not bool(prefix.is_token.all()):
            mask = torch.cat([prefix.is_token, batch.is_token], dim=1).long()
        shifted = replace(batch, position_ids=batch.position_ids + prefix.lengths[:, None])
        return self._logits_at(
            shifted,
            torch.full_like(batch.lengths, seq - 1),
            logit_ids,
            attention_mask=mask,
            use_cache=True,
            # A pass extends the cache it is given, so each one gets its own, of views.
            **{self._cache_name: lend(prefix.state, len(suffixes))},
        )

    @torch.inference_mode()
    def generate(
        self,
        sequences: Sequence[Sequence[int]],
        max_new_tokens: int,
        after: SharedPrefix | None = None,
    ) -> tuple[tuple[int, ...], ...]:
        """Greedy continuations, cut before the first end-of-turn token; `after` as in `prefill`."""
        longest = max(len(sequence) for sequence in sequences)
        n_tokens = longest + max_new_tokens
        require_room(self.model, self._model_id, n_tokens, "A prompt with its answer")
        batch = pad(sequences, "left", self.device)
        output = self._start(batch, after)
        ids, positions = batch.ids, batch.position_ids

        def step(new: Tensor, following: Tensor, is_token: Tensor) -> Tensor:
            nonlocal output, ids, positions
            cache, state = getattr(output, self._cache_name, None), {}
            if cache is None:
                # Nothing was kept: everything is run again.
                ids, positions = torch.cat([ids, new], 1), torch.cat([positions, following], 1)
            else:
                ids, positions, state = new, following, {self._cache_name: cache}
            output = self._run_on(ids, positions, is_token, **state)
            logits: Tensor = output.logits[:, -1]
            return logits

        stops = stop_ids_of(self.model, self.tokenizer)
        return greedy_continuations(batch, output.logits[:, -1], step, stops, max_new_tokens)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))
