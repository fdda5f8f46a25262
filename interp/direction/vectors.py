"""The arithmetic of every kind of direction: pure functions on arrays, not yet normalised.

All vectors point towards True. Random choices are passed in or drawn from a given generator.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from interp.direction.covariance import shrunk_covariance
from interp.errors import SteeringError

__all__ = [
    "class_mean_difference",
    "orthogonal_draw",
    "paired_component",
    "shuffle_labels",
    "unembedding_difference",
    "whitened_difference",
    "within_class",
]


def _checked(
    activations: NDArray[np.float32], labels: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Activations in float64 and labels, after refusing what no direction can be read from."""
    if activations.ndim != 2 or len(activations) != len(labels):
        raise SteeringError(
            f"Got activations of shape {activations.shape} and {len(labels)} labels; expected "
            f"(n_items, d_model) and one label an item."
        )
    n_true, n_false = int(labels.sum()), int((~labels).sum())
    if not n_true or not n_false:
        raise SteeringError(
            f"A True − False direction needs both classes; got {n_true} True and {n_false} False."
        )
    exact = activations.astype(np.float64)
    if not np.isfinite(exact).all():
        rows = int((~np.isfinite(exact)).any(axis=1).sum())
        raise SteeringError(
            f"{rows} of {len(exact)} activations are not finite; check the cache with "
            f"`interp cache verify`."
        )
    return exact, labels


def class_mean_difference(
    activations: NDArray[np.float32], labels: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Mean of the True rows minus mean of the False rows.

    Args:
        activations: (n_items, d_model).
        labels: (n_items,) of bool, both classes.

    Returns:
        (d_model,).

    Raises:
        SteeringError: a class is empty, or values are not finite.
    """
    exact, labels = _checked(activations, labels)
    difference: NDArray[np.float64] = exact[labels].mean(axis=0) - exact[~labels].mean(axis=0)
    return difference


def within_class(
    activations: NDArray[np.float32], labels: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """(n_items, d_model) rows minus the mean of their own class."""
    exact, labels = _checked(activations, labels)
    for kept in (labels, ~labels):
        exact[kept] -= exact[kept].mean(axis=0)
    return exact


def whitened_difference(
    activations: NDArray[np.float32],
    labels: NDArray[np.bool_],
    shrinkage: float | None = None,
) -> tuple[NDArray[np.float64], float]:
    """The class-mean difference times the inverse covariance shared by both classes.

    It is the normal of the linear discriminant's boundary: made to detect, not to control.
    Source: Marks and Tegmark 2023, "The Geometry of Truth", section 5.1 (mass-mean probing with
    the covariance correction).

    Args:
        activations: (n_items, d_model).
        labels: (n_items,) of bool, both classes.
        shrinkage: of the covariance, 0 to 1; None estimates it.

    Returns:
        (d_model,) vector and the shrinkage used.
    """
    covariance = shrunk_covariance(within_class(activations, labels), shrinkage)
    return covariance.solve(class_mean_difference(activations, labels)), covariance.shrinkage


def paired_component(
    activations: NDArray[np.float32], labels: NDArray[np.bool_], groups: Sequence[str]
) -> tuple[NDArray[np.float64], float, int]:
    """First principal component of the True − False differences of a group's twins.

    A group gives one difference: the mean of its True rows minus the mean of its False rows (for
    a pair of twins, one minus the other). What the statements of a group share cancels. The
    differences are not centred, because their common part is the signal: this is the principal
    component of the differences taken both ways round. Its sign makes the mean difference
    positive along it.

    Args:
        activations: (n_items, d_model).
        labels: (n_items,) of bool.
        groups: (n_items,); groups of one class have no difference and are left out.

    Returns:
        (d_model,) unit vector, the share of the differences' squared length along it, and how
        many groups gave a difference.

    Raises:
        SteeringError: no group has both classes, or all differences are zero.
    """
    exact, labels = _checked(activations, labels)
    members: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    differences = []
    for rows in members.values():
        is_true = labels[rows]
        if is_true.any() and not is_true.all():
            block = exact[rows]
            differences.append(block[is_true].mean(axis=0) - block[~is_true].mean(axis=0))
    if not differences:
        raise SteeringError(
            "No group holds both a True and a False item, so there are no pairs to take "
            "differences of. Use --kind class_mean."
        )
    stacked = np.stack(differences)
    _, singular, axes = np.linalg.svd(stacked, full_matrices=False)
    if singular[0] == 0:
        raise SteeringError("All paired differences are zero; there is no direction.")
    component: NDArray[np.float64] = axes[0]
    if stacked.mean(axis=0) @ component < 0:
        component = -component
    return component, float(singular[0] ** 2 / (singular**2).sum()), len(differences)


def shuffle_labels(
    labels: NDArray[np.bool_], rng: np.random.Generator, groups: Sequence[str] | None = None
) -> NDArray[np.bool_]:
    """Labels dealt out anew, the number of each kept.

    With `groups`, a group that holds both classes is shuffled inside, so that the new class means
    differ in what the real ones differ in and not in topics; groups of one class exchange theirs.

    Args:
        labels: (n_items,) of bool.
        rng: source of the shuffle.
        groups: (n_items,), or None to shuffle all items together.

    Returns:
        (n_items,) of bool.
    """
    if groups is None:
        return rng.permutation(labels)
    members: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    shuffled = labels.copy()
    single: dict[int, list[list[int]]] = {}  # exchanged among equal sizes: counts stay
    for rows in members.values():
        if labels[rows].any() and not labels[rows].all():
            shuffled[rows] = rng.permutation(labels[rows])
        else:
            single.setdefault(len(rows), []).append(rows)
    for alike in single.values():
        values = rng.permutation(np.array([labels[rows[0]] for rows in alike]))
        for rows, value in zip(alike, values, strict=True):
            shuffled[rows] = value
    return shuffled


def orthogonal_draw(
    activations: NDArray[np.float32],
    direction: NDArray[np.floating],
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """A draw from a Gaussian with the activations' covariance, minus its part along a direction.

    Fixed weights give matching draws for several subsets of the items (the folds).

    Args:
        activations: (n_items, d_model).
        direction: (d_model,), not zero.
        weights: (n_items,) standard normal.

    Returns:
        (d_model,).

    Raises:
        SteeringError: the direction is zero, or the activations vary along it alone.
    """
    exact, along = activations.astype(np.float64), direction.astype(np.float64)
    norm = np.linalg.norm(along)
    if not np.isfinite(norm) or norm == 0:
        raise SteeringError("There is no direction to be orthogonal to: it is zero or not finite.")
    unit = along / norm
    drawn = (exact - exact.mean(axis=0)).T @ weights / np.sqrt(len(exact))
    remaining: NDArray[np.float64] = drawn - (drawn @ unit) * unit
    # Once more: where nearly everything lay along the direction, rounding left some of it.
    remaining = remaining - (remaining @ unit) * unit
    if np.linalg.norm(remaining) <= 1e-6 * np.linalg.norm(drawn):
        raise SteeringError(
            "The activations vary along the direction alone, so nothing orthogonal to it lies "
            "within their covariance. Give more items."
        )
    return remaining


def unembedding_difference(
    unembedding: NDArray[np.float32],
    true_id: int,
    false_id: int,
    *,
    norm_weight: NDArray[np.float32] | None = None,
    centred: bool = False,
) -> NDArray[np.float64]:
    """What raises the logit of True over that of False at the last layer: the trivial writer.

    The head reads W·(w ⊙ n(h)) with the final norm's weight w and the normalised stream n(h). At a
    fixed norm of h the difference of logits grows fastest along w ⊙ (W[True] − W[False]); a norm
    that subtracts the mean (LayerNorm) takes the mean of that away too.

    Args:
        unembedding: (d_vocab, d_model) rows of the output head.
        true_id: token of True.
        false_id: token of False.
        norm_weight: (d_model,) the factor that the final norm applies (Gemma's is 1 + its
            parameter); None for a model without a final norm, or to leave it out.
        centred: whether the final norm subtracts the mean.

    Returns:
        (d_model,).

    Raises:
        SteeringError: a token id outside the vocabulary, or a norm of another width.
    """
    size, width = unembedding.shape
    for token in (true_id, false_id):
        if not 0 <= token < size:
            raise SteeringError(f"Token {token} is outside the head's {size} rows.")
    difference: NDArray[np.float64] = (
        unembedding[true_id].astype(np.float64) - unembedding[false_id]
    )
    if norm_weight is not None:
        if norm_weight.shape != (width,):
            raise SteeringError(
                f"The final norm has the shape {norm_weight.shape}; the head reads {width}."
            )
        difference = difference * norm_weight
    if centred:
        difference = difference - difference.mean()
    return difference
