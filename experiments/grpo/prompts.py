"""Prompts of open-ended items, the same in training and in evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from activations.tokens import render
from interp.errors import ItemError, ModelError, TrainingError
from interp.items import Item
from interp.open_grading import ANSWER_CLOSE

__all__ = ["ReplyPrompt", "reply_prompts", "until_stop"]


@dataclass(frozen=True, slots=True)
class ReplyPrompt:
    """The prompt of one item, with the start of the reply if there is one.

    Attributes:
        item_id: of the item.
        text: what `tokenizer(text)` turns into `ids`, special tokens added by the tokenizer.
        ids: token ids.
        gold: the item's gold answer.
    """

    item_id: str
    text: str
    ids: tuple[int, ...]
    gold: str


def reply_prompts(
    tokenizer: Any,
    items: Sequence[Item],
    *,
    prefix: str = "",
    max_tokens: int | None = None,
    template_args: Mapping[str, Any] | None = None,
) -> tuple[ReplyPrompt, ...]:
    """Render items with the chat template, as text that trl can tokenise.

    Args:
        tokenizer: of the model.
        items: open-ended ones.
        prefix: opens the assistant's turn.
        max_tokens: longer prompts are refused; None for no limit.
        template_args: further variables of the chat template.

    Raises:
        ItemError: an item has no gold.
        TrainingError: prompts are longer than `max_tokens`.
        ModelError: the tokenizer adds other special tokens than one at the start.
    """
    bos = tokenizer.bos_token_id
    adds_bos = bos is not None and tokenizer("a")["input_ids"][:1] == [bos]
    prompts = []
    for item in items:
        if item.gold is None:
            raise ItemError(
                f"Item {item.item_id!r} has no gold answer; GRPO items are open-ended, such as "
                f"those of tomas:PATH or partners."
            )
        text = render(tokenizer, item, template_args or {}) + prefix
        # The template has written the token that the tokenizer would write again.
        if adds_bos and text.startswith(tokenizer.bos_token):
            text = text[len(tokenizer.bos_token) :]
        ids = list(tokenizer(text)["input_ids"])
        bare = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        if ids != ([bos, *bare] if adds_bos else bare):
            raise ModelError(
                f"The tokenizer of this model adds tokens after a text ({ids[-3:]} in place of "
                f"{bare[-3:]}), so a reply cannot follow a prompt. Use another model."
            )
        prompts.append(ReplyPrompt(item.item_id, text, tuple(ids), item.gold))
    if max_tokens is not None:
        long = [p for p in prompts if len(p.ids) > max_tokens]
        if long:
            longest = max(len(p.ids) for p in long)
            raise TrainingError(
                f"{len(long)} of {len(prompts)} prompts have more than {max_tokens} tokens (the "
                f"longest {longest}, first: {long[0].item_id!r}). Nothing is cut silently: raise "
                f"max_prompt_tokens, or shorten the items."
            )
    return tuple(prompts)


def until_stop(reply: str, stop: str = ANSWER_CLOSE) -> str:
    """A reply up to and with its first stop text; all of it without one."""
    before, found, _ = reply.partition(stop) if stop else (reply, "", "")
    return before + found
