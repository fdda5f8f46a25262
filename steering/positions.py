"""Which tokens an intervention writes to, whatever the padding and the key/value cache."""

from __future__ import annotations

from typing import Final, Literal, get_args

from torch import Tensor

from interp.errors import SteeringError, did_you_mean

__all__ = ["POSITIONS", "Positions", "require_positions", "selected"]

Positions = Literal["last_prompt", "prompt", "generated", "all"]
"""`last_prompt`: the last token of the prompt; `prompt`: all of its tokens; `generated`: from the
last prompt token on, which is the one that the first generated token is read from; `all`: every
token. Padding is never written to."""

POSITIONS: Final[tuple[Positions, ...]] = get_args(Positions)


def require_positions(name: str) -> Positions:
    """The policy of that name.

    Raises:
        SteeringError: there is none.
    """
    for policy in POSITIONS:
        if policy == name:
            return policy
    raise SteeringError(f"There is no position policy {name!r}. {did_you_mean(name, POSITIONS)}")


def selected(positions: Positions, index: Tensor, prompt_lengths: Tensor) -> Tensor:
    """(n, seq) of bool: the tokens of a forward pass that a policy names.

    Args:
        positions: the policy.
        index: (n, seq) place of each token in its own sequence, from 0; negative on padding. A pass
            over a kept prompt holds the places of the new tokens only.
        prompt_lengths: (n,) tokens of each prompt.
    """
    last = prompt_lengths[:, None] - 1
    if positions == "last_prompt":
        return index == last
    if positions == "prompt":
        return (index >= 0) & (index <= last)
    if positions == "generated":
        return index >= last
    return index >= 0
