"""The transformers backend: forward hooks on the decoder blocks of a Hugging Face model."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from hashlib import sha256
from typing import Any, Literal

import torch
from torch import Tensor

from activations.backend import Capture, Edit, Prefix, Prompt, SharedPrefix, VerdictIds
from activations.captures import record
from activations.digests import parameters_sha256
from activations.hooks import edited, find_blocks, observed
from activations.kept import lend, why_not_continuable, why_not_lendable
from activations.tokens import PaddedBatch, pad, tokenize, verdict_ids
from interp.errors import ModelError, SharingError
from interp.items import Item
from interp.vocabulary import Library

__all__ = ["HFBackend"]


class HFBackend:
    """Runs a causal language model of transformers.

    Batches are padded on the right without an attention mask where nothing is generated: a causal
    model never looks ahead, so the padding changes nothing, and the pass is faster without a
    mask. `padding="left"` pads on the left with a mask and explicit positions; the result is the
    same up to rounding.
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
        weight: Tensor = self.model.get_input_embeddings().weight
        return weight.device

    def fingerprint(self) -> Mapping[str, Any]:
        """Identity of everything in the model that the numbers depend on."""
        if self._weights is None:
            self._weights = parameters_sha256(self.model)
        template = self.tokenizer.chat_template
        return {
            "model_id": self._model_id,
            "revision": self._revision,
            "weights": self._weights,
            "adapter": self._adapter,
            "tokenizer": sha256(self.tokenizer.backend_tokenizer.to_str().encode()).hexdigest(),
            "chat_template": None
            if template is None
            else sha256(str(template).encode()).hexdigest(),
            "template_args": self.template_args,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "attn_implementation": self.model.config._attn_implementation,
        }

    def tokenize(self, items: Sequence[Item]) -> tuple[Prompt, ...]:
        """See `activations.tokens.tokenize`; a prompt that the model cannot take is an error."""
        prompts = tokenize(self.tokenizer, items, self.template_args)
        for prompt in prompts:
            self._require_room(len(prompt.ids_with_stub), f"Item {prompt.item_id!r}: the prompt")
        return prompts

    def _require_room(self, n_tokens: int, what: str) -> None:
        text_config = self.model.config.get_text_config(decoder=True)
        limit = getattr(text_config, "max_position_embeddings", None)
        if limit is not None and n_tokens > limit:
            raise ModelError(
                f"{what} has {n_tokens} tokens; {self._model_id} takes at most {limit}. Use a "
                f"shorter prompt, fewer new tokens or another model."
            )

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

    def _cache_of(self, batch: PaddedBatch) -> Any:
        """Keys and values after a pass over a batch; None if the model keeps none."""
        output = self._forward(
            torch.zeros(1, dtype=torch.long, device=self.device),
            input_ids=batch.ids,
            position_ids=batch.position_ids,
            attention_mask=batch.is_token.long() if batch.is_ragged else None,
            use_cache=True,
        )
        return getattr(output, self._cache_name, None)

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
        return record(
            self.observed,
            batch.starts + torch.tensor(positions, device=self.device),
            counted,
            torch.empty(self.n_layers, 0),
            self.d_model,
            lambda: self._plain_pass(batch, logit_ids),
        )

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
            cache = self._cache_of(batch)
        reason = why_not_lendable(cache)
        if reason is not None:
            raise SharingError(
                f"Prefixes cannot be shared by {type(self.model).__name__}: {reason}."
            )
        return SharedPrefix(cache, len(ids), norms)

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
        shifted = replace(batch, position_ids=batch.position_ids + prefix.n_tokens)
        return record(
            self.observed,
            torch.tensor(positions, device=self.device),
            batch.is_token,
            prefix.resid_norm[:, 1:],
            self.d_model,
            lambda: self._logits_at(
                shifted,
                batch.lengths - 1,
                logit_ids,
                use_cache=True,
                **{self._cache_name: lend(prefix.state, len(suffixes))},
            ),
        )

    def intervene(self, edits: Sequence[Edit]) -> AbstractContextManager[None]:
        """Apply edits to every forward pass inside the context; see `activations.hooks.edited`."""
        return edited(self.blocks, edits)

    @torch.inference_mode()
    def logits(self, sequences: Sequence[Sequence[int]], logit_ids: Sequence[int]) -> Tensor:
        """(n, n_ids) logits after the last token of each sequence, in one plain pass."""
        return self._plain_pass(pad(sequences, self.padding, self.device), logit_ids)

    @torch.inference_mode()
    def prefill(self, sequences: Sequence[Sequence[int]]) -> Prefix:
        """Keys and values of prefixes; left-padded, so that suffixes line up.

        Raises:
            ModelError: the model keeps another state than keys and values.
        """
        batch = pad(sequences, "left", self.device)
        cache = self._cache_of(batch)
        reason = why_not_continuable(cache)
        if reason is not None:
            raise ModelError(
                f"{type(self.model).__name__} cannot go on after a kept prompt: {reason}. Expected "
                f"keys and values of attention layers."
            )
        return Prefix(cache, batch.is_token, batch.lengths)

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
            # A pass extends the cache it is given, so each one gets a copy.
            **{self._cache_name: copy.deepcopy(prefix.state)},
        )

    @torch.inference_mode()
    def generate(
        self, sequences: Sequence[Sequence[int]], max_new_tokens: int
    ) -> tuple[tuple[int, ...], ...]:
        """Greedy continuations, cut before the first end-of-turn token."""
        longest = max(len(sequence) for sequence in sequences)
        self._require_room(longest + max_new_tokens, "A prompt with its answer")
        batch = pad(sequences, "left", self.device)
        stops = self.model.generation_config.eos_token_id
        stop_ids = {stops} if isinstance(stops, int) else set(stops or ())
        if self.tokenizer.eos_token_id is not None:
            stop_ids.add(self.tokenizer.eos_token_id)
        # Written out, because `generate` fills in what the model's own generation settings ask
        # for (a repetition penalty, say), and the answer would no longer be the greedy one.
        last = torch.tensor([batch.ids.shape[1] - 1], device=self.device)
        is_token, positions, cache = batch.is_token, batch.position_ids, None
        ids, produced = batch.ids, []
        finished = torch.zeros(len(sequences), dtype=torch.bool, device=self.device)
        stop_tensor = torch.tensor(sorted(stop_ids), device=self.device)
        for _ in range(max_new_tokens):
            output = self._forward(
                last,
                input_ids=ids,
                position_ids=positions,
                attention_mask=is_token.long() if batch.is_ragged else None,
                use_cache=True,
                **({} if cache is None else {self._cache_name: cache}),
            )
            cache = getattr(output, self._cache_name, None)
            new = output.logits[:, -1].argmax(dim=-1, keepdim=True)
            produced.append(new)
            finished |= torch.isin(new[:, 0], stop_tensor)
            if bool(finished.all()):
                break
            is_token = torch.cat([is_token, torch.ones_like(new, dtype=torch.bool)], dim=1)
            following = positions[:, -1:] + 1
            if cache is None:
                # Nothing was kept: everything is run again.
                ids, positions = torch.cat([ids, new], 1), torch.cat([positions, following], 1)
            else:
                ids, positions = new, following
            last = torch.tensor([ids.shape[1] - 1], device=self.device)
        continuations = torch.cat(produced, dim=1).tolist()
        return tuple(_until(row, stop_ids) for row in continuations)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))


def _until(ids: Sequence[int], stops: set[int]) -> tuple[int, ...]:
    end = next((index for index, token in enumerate(ids) if token in stops), len(ids))
    return tuple(ids[:end])
