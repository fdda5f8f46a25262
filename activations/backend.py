"""`ModelBackend`: what the toolkit asks of a running model, whichever library runs it.

Shapes in this package: `n` sequences of a batch, `seq` padded positions, `n_layers`, `d_model`.
`layer` is the 0-based block index. `resid_post[layer]` is the output of block `layer`, before
any final norm; `resid_pre` of block 0 is the embedding stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from interp.errors import ItemError
from interp.items import Item
from interp.vocabulary import HookPoint, Library, TokenRule

__all__ = [
    "Capture",
    "Edit",
    "ModelBackend",
    "Prefix",
    "Prompt",
    "SharedPrefix",
    "VerdictIds",
]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A tokenised item.

    Attributes:
        item_id: of the item.
        ids: token ids of the prompt, from the first token to the end of the generation prompt.
        stub_ids: token ids of the answer stub as they follow the prompt.
        statement_end: index in `ids` of the statement's last token; None where the item has no
            statement or it does not occur in the prompt.
    """

    item_id: str
    ids: tuple[int, ...]
    stub_ids: tuple[int, ...]
    statement_end: int | None

    @property
    def ids_with_stub(self) -> tuple[int, ...]:
        """Prompt and answer stub; the model's verdict is the token after it."""
        return self.ids + self.stub_ids

    def position(self, rule: TokenRule) -> int:
        """Index into `ids_with_stub` of the token that a rule names.

        Raises:
            ItemError: the rule is `statement_end` and the prompt does not hold the statement.
        """
        if rule == "last_prompt":
            return len(self.ids) - 1
        if rule == "answer_stub":
            return len(self.ids) + len(self.stub_ids) - 1
        if self.statement_end is None:
            raise ItemError(
                f"Item {self.item_id!r}: metadata.statement is missing or does not occur in the "
                f"prompt, so there is no statement_end token. Use --token last_prompt."
            )
        return self.statement_end


@dataclass(frozen=True, slots=True)
class VerdictIds:
    """Token ids that stand for the two verdicts right after the answer stub.

    Attributes:
        true_id: first token of " True" in that place.
        false_id: first token of " False".
        true_text: the token as text.
        false_text: likewise.
    """

    true_id: int
    false_id: int
    true_text: str
    false_text: str


@dataclass(frozen=True, slots=True)
class Capture:
    """What one forward pass gives, on the CPU, float32.

    Attributes:
        resid_post: (n, n_layers, d_model), at one token a sequence.
        resid_pre0: (n, d_model), the embedding stream at the same token.
        logits: (n, n_ids), logits of the asked ids after the last token of each sequence.
        resid_norm: (n, n_layers), median norm of `resid_post` over the sequence's tokens, the
            first one excluded (it carries an attention sink many times larger); NaN where a
            sequence has one token only.
    """

    resid_post: Tensor
    resid_pre0: Tensor
    logits: Tensor
    resid_norm: Tensor


@dataclass(frozen=True, slots=True)
class Edit:
    """A change to the residual stream while a model runs.

    Attributes:
        layer: 0-based block index.
        hook_point: `resid_post` (the block's output) or `resid_pre` (its input).
        apply: from the hidden states (n, seq, d_model) to new ones; must not write in place.
    """

    layer: int
    hook_point: HookPoint
    apply: Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a backend keeps of the first tokens of a batch, to continue from any number of times.

    Attributes:
        state: the backend's keys and values; opaque, never changed by a continuation.
        is_token: (n, seq) of bool, False on padding.
        lengths: (n,) tokens a sequence.
    """

    state: Any
    is_token: Tensor
    lengths: Tensor


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """What a backend keeps of the first tokens that many sequences have in common.

    Attributes:
        state: the backend's keys and values of one row; opaque, never changed by a continuation.
        n_tokens: tokens of the prefix.
        resid_norm: (n_layers, n_tokens) norms of `resid_post`, on the CPU.
        ragged: whether sequences of unequal length may go on after it in `prefill` and `generate`.
        read_once: whether `capture_after` reads it once for a whole batch, and not once a sequence.
    """

    state: Any
    n_tokens: int
    resid_norm: Tensor
    ragged: bool = True
    read_once: bool = False


class ModelBackend(Protocol):
    """A running model. Every method takes one batch; batching is the caller's."""

    @property
    def library(self) -> Library: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def n_layers(self) -> int: ...
    @property
    def d_model(self) -> int: ...
    @property
    def model_id(self) -> str: ...
    @property
    def padded_because(self) -> str | None:
        """Why captures are padded; None where sequences are packed into one row instead."""
        ...

    def fingerprint(self) -> Mapping[str, Any]:
        """Identity of weights, tokenizer, chat template, dtype and attention implementation."""
        ...

    def tokenize(self, items: Sequence[Item]) -> tuple[Prompt, ...]:
        """Chat template applied once, exactly one BOS where the model has one."""
        ...

    def verdict_ids(self, prompts: Sequence[Prompt]) -> VerdictIds:
        """Which token ids are read as True and False after the stub."""
        ...

    def capture(
        self, sequences: Sequence[Sequence[int]], positions: Sequence[int], logit_ids: Sequence[int]
    ) -> Capture:
        """Residual streams of all layers at `positions[i]` of sequence `i`."""
        ...

    def share_prefix(self, ids: Sequence[int]) -> SharedPrefix:
        """Run a prefix once, for `capture_after`.

        Raises:
            SharingError: the model keeps a state that a batch cannot share; says which.
        """
        ...

    def capture_after(
        self,
        prefix: SharedPrefix,
        suffixes: Sequence[Sequence[int]],
        positions: Sequence[int],
        logit_ids: Sequence[int],
    ) -> Capture:
        """What `capture` gives for prefix + suffix; `positions` count from the suffix's start."""
        ...

    def intervene(self, edits: Sequence[Edit]) -> AbstractContextManager[None]:
        """Apply edits to every forward pass inside the context."""
        ...

    def logits(self, sequences: Sequence[Sequence[int]], logit_ids: Sequence[int]) -> Tensor:
        """(n, n_ids) after the last token. Inside `intervene`, hidden[i, t] is token t of i."""
        ...

    def prefill(
        self, sequences: Sequence[Sequence[int]], after: SharedPrefix | None = None
    ) -> Prefix:
        """Keys and values of prefixes, to be continued any number of times.

        With `after`, all sequences start with that prefix, which is not run again.
        """
        ...

    def logits_after(
        self, prefix: Prefix, suffixes: Sequence[Sequence[int]], logit_ids: Sequence[int]
    ) -> Tensor:
        """(n, n_ids) after suffixes of equal length.

        Inside `intervene`, hidden[i, t] is suffix token t of sequence i; edits do not reach the
        prefix.
        """
        ...

    def generate(
        self,
        sequences: Sequence[Sequence[int]],
        max_new_tokens: int,
        after: SharedPrefix | None = None,
    ) -> tuple[tuple[int, ...], ...]:
        """Greedy continuations, end-of-turn token left out; `after` as in `prefill`."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        ...
