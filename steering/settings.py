"""What a steering sweep crosses, and what of it makes sense together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from interp.errors import SteeringError, did_you_mean
from steering.interventions import AlphaUnit, InterventionKind

__all__ = [
    "CONDITIONS",
    "NESTED",
    "Condition",
    "Settings",
    "SteeredDirection",
    "nonzero_alphas",
    "require_conditions",
    "require_meaning",
]

Condition = Literal[
    "signed",
    "oracle",
    "fixed",
    "negated",
    "random",
    "shuffled",
    "orthogonal",
    "writer",
    "text",
]
"""`signed`: the class mean, signed by the item's out-of-fold probe decision; `oracle`: signed by
the label, an upper bound; `fixed`: towards True for every item; `negated`: against `signed`;
`random`: directions uniform on the sphere, in ± pairs; `shuffled`: class means of permuted labels;
`orthogonal`: drawn within the activations' covariance, orthogonal to the class mean; `writer`: the
unembedding's True − False difference; `text`: the probe's verdict in words, at the end of the
prompt. `random`, `shuffled`, `orthogonal`, `writer` and `text` use the signs of `signed`."""

CONDITIONS: Final[tuple[Condition, ...]] = get_args(Condition)
_BY_SIGN: Final = ("signed", "oracle", "negated", "text")
NESTED: Final = "nested"


@dataclass(frozen=True, slots=True)
class SteeredDirection:
    """What is steered along, where it is not the class mean.

    Attributes:
        name: for the results.
        fit: from a layer, the items to fit on (n_items,) of bool and the labels (n_items,) of bool
            to a vector (d_model,) of any length, towards True.
        fitted: False where the vector is given (a file): then it is the same for all folds and may
            have seen the labels of the items that it is applied to.
    """

    name: str
    fit: Callable[[int, NDArray[np.bool_], NDArray[np.bool_]], NDArray[np.floating]]
    fitted: bool = True


@dataclass(frozen=True, slots=True)
class Settings:
    """What is crossed in a sweep.

    Attributes:
        places: layers as text, or `nested`.
        sizes: positive sizes, each once.
        alpha_unit: what a size counts.
        conditions: which, in the order of the tables.
        n_random: random directions, an even number: ± pairs.
        n_control: draws of `shuffled` and of `orthogonal`.
        seed: of all draws.
        intervention: what is done along the directions. Of `project_out` a size is the share that
            is taken out, without a sign; of `clamp` it is the projection that is set.
        direction: what stands for the class mean; None is the class mean itself.
    """

    places: tuple[str, ...]
    sizes: tuple[float, ...]
    alpha_unit: AlphaUnit
    conditions: tuple[Condition, ...]
    n_random: int
    n_control: int
    seed: int
    intervention: InterventionKind = "add"
    direction: SteeredDirection | None = None

    @property
    def signless(self) -> bool:
        """Whether a direction and its mirror image do the same: then nothing is signed."""
        return self.intervention == "project_out"


def require_conditions(names: Sequence[str]) -> tuple[Condition, ...]:
    """Conditions by name, each once, in the order of the tables.

    Raises:
        SteeringError: one is unknown, or there is none.
    """
    for name in names:
        if name not in CONDITIONS:
            raise SteeringError(
                f"There is no steering condition {name!r}. {did_you_mean(name, CONDITIONS)}"
            )
    if not names:
        raise SteeringError("No steering condition is given; expected at least one.")
    return tuple(condition for condition in CONDITIONS if condition in names)


def require_meaning(settings: Settings) -> None:
    """Refuse conditions that an intervention gives no meaning to.

    Raises:
        SteeringError: conditions that differ by sign only, or absolute sizes, of `project_out`.
    """
    if not settings.signless:
        return
    signed = [name for name in settings.conditions if name in _BY_SIGN]
    if signed:
        raise SteeringError(
            f"A projection is taken out without a sign, so `project_out` has no condition "
            f"{', '.join(signed)}. Use --conditions fixed,random,shuffled,orthogonal,writer."
        )
    if settings.alpha_unit == "absolute":
        raise SteeringError(
            "Sizes of `project_out` are shares of the projection (1 takes it out, 2 mirrors it); "
            "--alpha-unit absolute has no meaning for it."
        )


def nonzero_alphas(alphas: Sequence[float], n_random: int) -> list[float]:
    """The sizes to run beside the baseline, each once; refuses settings that cannot work.

    Raises:
        SteeringError: a size is negative or not finite, none is left, or `n_random` is below 1.
    """
    sizes = [float(alpha) for alpha in dict.fromkeys(alphas) if alpha != 0]
    if not sizes or not all(np.isfinite(sizes)) or min(sizes) < 0:
        raise SteeringError(f"--alphas is {list(alphas)}; expected positive numbers (0 is added).")
    if n_random < 1:
        raise SteeringError(f"--random-directions is {n_random}; expected at least 1.")
    return sizes
