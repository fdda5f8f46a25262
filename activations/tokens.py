"""From items to token ids, and from token ids to padded batches."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor

from activations.backend import Prompt, VerdictIds
from interp.errors import ItemError, ModelError
from interp.items import Item
from interp.prompts import ANSWER_STUB

__all__ = [
    "PaddedBatch",
    "pad",
    "render",
    "require_room",
    "require_template_args",
    "tokenize",
    "verdict_ids",
]

VERDICTS: Final = (" True", " False")

_OURS: Final = (
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "conversation",
    "messages",
    "tokenize",
)
"""What the template is called with here, and a user may not change."""

_NO_ARGUMENTS: Final[Mapping[str, Any]] = {}


def require_template_args(tokenizer: Any, template_args: Mapping[str, Any]) -> None:
    """Raise `ModelError` unless the chat template can make use of every argument.

    A template ignores names that it does not know, so that a mistyped one would change nothing
    and be recorded all the same.
    """
    if not template_args:
        return
    template = tokenizer.chat_template
    if template is None:
        raise ModelError(
            f"--template-arg {next(iter(template_args))} was given, but this tokenizer has no chat "
            f"template. Leave it out."
        )
    for name in template_args:
        if name in _OURS or not re.search(rf"\b{re.escape(name)}\b", str(template)):
            raise ModelError(
                f"--template-arg {name} has no effect: the chat template of this model does not "
                f"read {name!r}, or it is set already. Check the name in the model's template."
            )


def render(tokenizer: Any, item: Item, template_args: Mapping[str, Any] = _NO_ARGUMENTS) -> str:
    """The prompt as text, generation prompt included; plain text without a chat template."""
    turns = [{"role": message.role, "content": message.content} for message in item.messages]
    if tokenizer.chat_template is None:
        return "\n\n".join(turn["content"] for turn in turns) + "\n"
    try:
        return str(
            tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=True, **template_args
            )
        )
    except Exception as error:
        raise ItemError(
            f"Item {item.item_id!r}: the model's chat template refuses its messages ({error})."
        ) from error


def _encode(tokenizer: Any, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Ids and character spans; the template has written the special tokens already."""
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, spans = list(encoding["input_ids"]), [tuple(s) for s in encoding["offset_mapping"]]
    bos = tokenizer.bos_token_id
    adds_bos = bos is not None and tokenizer("a")["input_ids"][:1] == [bos]
    if adds_bos and ids[:1] != [bos]:
        ids, spans = [bos, *ids], [(0, 0), *spans]
    return ids, spans


def tokenize(
    tokenizer: Any, items: Sequence[Item], template_args: Mapping[str, Any] = _NO_ARGUMENTS
) -> tuple[Prompt, ...]:
    """Tokenise items for a forward pass.

    Args:
        tokenizer: a fast tokenizer of transformers.
        items: their prompts are rendered with the tokenizer's chat template.
        template_args: further variables of the chat template, such as `enable_thinking`.

    Raises:
        ItemError: a prompt has no tokens but special ones, or the template refuses it.
        ModelError: the tokenizer cannot map tokens to characters (it is not a fast one), or the
            template does not read an argument.
    """
    if not tokenizer.is_fast:
        raise ModelError(
            f"{type(tokenizer).__name__} is a slow tokenizer; expected a fast one (tokenizer.json)."
        )
    require_template_args(tokenizer, template_args)
    prompts: list[Prompt] = []
    special = set(tokenizer.all_special_ids)
    # One integer object for each token id, however often it occurs: prompts are held in memory.
    known: dict[int, int] = {}

    def compact(ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(known.setdefault(token, token) for token in ids)

    for item in items:
        text = render(tokenizer, item, template_args)
        ids, spans = _encode(tokenizer, text)
        if special.issuperset(ids):
            raise ItemError(
                f"Item {item.item_id!r}: its prompt is {text!r}, which has no tokens but special "
                f"ones. Expected a prompt with text; check the item and the chat template."
            )
        with_stub, _ = _encode(tokenizer, text + ANSWER_STUB)
        if with_stub[: len(ids)] == ids:
            stub = with_stub[len(ids) :]
        else:
            # The stub would merge with the prompt's last token; a model that generates cannot
            # do that either, so the stub then starts a token of its own.
            stub = list(tokenizer(ANSWER_STUB, add_special_tokens=False)["input_ids"])
        prompts.append(Prompt(item.item_id, compact(ids), compact(stub), _end(text, spans, item)))
    return tuple(prompts)


def _end(text: str, spans: Sequence[tuple[int, int]], item: Item) -> int | None:
    """Index of the token that holds the last character of the statement."""
    start = text.rfind(item.statement) if item.statement else -1
    if start < 0 or item.statement is None:
        return None
    last = start + len(item.statement) - 1
    return max((index for index, (a, b) in enumerate(spans) if a <= last < b), default=None)


def require_room(model: Any, model_id: str, n_tokens: int, what: str) -> None:
    """Raise `ModelError` unless a model has positions for `n_tokens`; `what` has them."""
    text_config = model.config.get_text_config(decoder=True)
    limit = getattr(text_config, "max_position_embeddings", None)
    if limit is not None and n_tokens > limit:
        raise ModelError(
            f"{what} has {n_tokens} tokens; {model_id} takes at most {limit}. Use a "
            f"shorter prompt, fewer new tokens or another model."
        )


def verdict_ids(tokenizer: Any, prompts: Sequence[Prompt]) -> VerdictIds:
    """Ids of the first token of " True" and " False" right after the answer stub.

    They are read off in context, because " True" and "True" are different tokens.

    Raises:
        ModelError: both verdicts start with the same token, or the stub's tokens change when a
            verdict follows.
    """
    stub = tuple(prompts[0].stub_ids)
    context = tokenizer.decode(list(stub))
    base = list(tokenizer(context, add_special_tokens=False)["input_ids"])
    firsts: list[int] = []
    for verdict in VERDICTS:
        ids = list(tokenizer(context + verdict, add_special_tokens=False)["input_ids"])
        if ids[: len(base)] != base or len(ids) == len(base):
            raise ModelError(
                f"The tokens of {context!r} change when {verdict!r} follows, so the forced choice "
                f"has no single position with this tokenizer."
            )
        firsts.append(ids[len(base)])
    if firsts[0] == firsts[1]:
        raise ModelError(
            f"' True' and ' False' both start with the token {tokenizer.decode(firsts[:1])!r} "
            f"({firsts[0]}) after {context!r}; the forced choice needs different first tokens."
        )
    texts = [str(tokenizer.decode([first])) for first in firsts]
    return VerdictIds(firsts[0], firsts[1], texts[0], texts[1])


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Sequences of unequal length in one tensor.

    Attributes:
        ids: (n, seq) token ids.
        is_token: (n, seq) of bool, False on padding.
        position_ids: (n, seq), 0 at each sequence's first token.
        starts: (n,) column of each sequence's first token.
        lengths: (n,) tokens a sequence.
    """

    ids: Tensor
    is_token: Tensor
    position_ids: Tensor
    starts: Tensor
    lengths: Tensor

    @property
    def is_ragged(self) -> bool:
        """Whether there is any padding."""
        return not bool(self.is_token.all())


def pad(
    sequences: Sequence[Sequence[int]], side: Literal["left", "right"], device: torch.device
) -> PaddedBatch:
    """Pad to the longest sequence.

    Padding repeats a token of its own sequence: which id stands there must not matter, and a pad
    id that is also an end-of-turn id would only invite guessing what is padding from the ids.
    """
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    seq = int(lengths.max())
    rows = []
    for sequence in sequences:
        filler = [sequence[0]] * (seq - len(sequence))
        rows.append([*filler, *sequence] if side == "left" else [*sequence, *filler])
    starts = seq - lengths if side == "left" else torch.zeros_like(lengths)
    offset = torch.arange(seq)[None, :] - starts[:, None]
    is_token = (offset >= 0) & (offset < lengths[:, None])
    return PaddedBatch(
        ids=torch.tensor(rows).to(device),
        is_token=is_token.to(device),
        position_ids=offset.clamp(min=0).to(device),
        starts=starts.to(device),
        lengths=lengths.to(device),
    )
