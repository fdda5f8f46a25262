"""The four abilities on two axes, the rules exam, conditions and policies.

Source: Avalon-ToM-Bench, section 3.1 (axes) and appendix on prompts (non-answers).
"""

from __future__ import annotations

from typing import Final, Literal, get_args

__all__ = [
    "ABILITIES",
    "CONDITIONS",
    "EPISTEMIC",
    "INFERENCE",
    "MAIN_ORDER",
    "POLICIES",
    "RULES",
    "Condition",
    "Policy",
]

ABILITIES: Final = (
    "perspective_taking",
    "strategic_signaling",
    "intention_attribution",
    "tacit_coordination",
)
"""In the paper's order, which is also the cell order of every array over the 2×2 grid."""

EPISTEMIC: Final = (True, True, False, False)
"""Per ability: about what a seat knows (True) or about what it wants (False)."""

INFERENCE: Final = (True, False, True, False)
"""Per ability: a state that is read off (True) or an act that is made or decoded (False)."""

RULES: Final = "rules"
"""Category of the rules exam: reported, never part of an average over abilities."""

Condition = Literal["base", "cot", "no_cot", "thinking", "injected"]
"""How a model was asked. `base`: as it comes; `cot` and `no_cot`: told to reason step by step, or
to answer at once; `thinking`: with its trained reasoning mode on; `injected`: with the correct
answer in the prompt."""

CONDITIONS: Final[tuple[Condition, ...]] = get_args(Condition)

MAIN_ORDER: Final[tuple[Condition, ...]] = ("base", "cot", "thinking", "no_cot")
"""The first of these that a model has is its main condition: the one on the leaderboard."""

Policy = Literal["wrong", "left_out"]
"""`wrong`: a reply without a verdict is a wrong answer; `left_out`: it is no answer at all."""

POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)
