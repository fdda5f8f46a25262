"""Scores of True/False decisions, with intervals that respect groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from scipy.stats import binomtest, t
from sklearn.metrics import f1_score, roc_auc_score

__all__ = [
    "Calibration",
    "Estimate",
    "ReliabilityBin",
    "Scores",
    "bootstrap_mean",
    "bootstrap_means",
    "calibrate",
    "class_weights",
    "cross_validation_spread",
    "few_groups",
    "group_codes",
    "mcnemar_exact",
    "out_of_fold_threshold",
    "resampled_groups",
    "score_decisions",
    "sign_flip_p",
]

N_RESAMPLES: Final = 10_000
"""Bootstrap resamples: the 2.5% quantile then has a standard error below 0.3 of a percentile."""


_COUNTS_AT_ONCE: Final = 2_000_000
N_BINS: Final = 10
"""Bins of the reliability curve."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95% group-bootstrap interval.

    Attributes:
        value: the mean over items.
        low: lower end: 2.5% quantile over resampled groups, moved away from the mean as
            `bootstrap_mean` says.
        high: upper end.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1%} [{self.low:.1%}, {self.high:.1%}]"


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of decisions on True/False items; all fractions.

    Attributes:
        accuracy: share of right decisions.
        balanced_accuracy: mean of the two recalls.
        macro_f1: unweighted mean of the F1 scores of the two classes.
        true_recall: share of True items decided True.
        false_recall: share of False items decided False.
        auroc: area under the ROC curve of the decision values; NaN where none are given.
    """

    accuracy: float
    balanced_accuracy: float
    macro_f1: float
    true_recall: float
    false_recall: float
    auroc: float


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Items whose predicted probability of True falls into one tenth.

    Attributes:
        low: lower edge of the bin.
        high: upper edge.
        n: items in it.
        predicted: mean predicted probability of True; None in an empty bin.
        observed: share of True items; None in an empty bin.
    """

    low: float
    high: float
    n: int
    predicted: float | None
    observed: float | None


@dataclass(frozen=True, slots=True)
class Calibration:
    """Whether log odds mean what they say.

    Attributes:
        log_loss: mean negative log probability of the label, in nats.
        ece: expected calibration error: mean over items of |predicted − observed| of their bin.
        bins: the reliability curve, ten bins of equal width.
    """

    log_loss: float
    ece: float
    bins: tuple[ReliabilityBin, ...]


def class_weights(labels: ArrayLike) -> NDArray[np.float64]:
    """Weights of items under which the mean of right decisions is the balanced accuracy.

    Exactly 1 where both classes are equally large, so that accuracy and balanced accuracy are then
    the same number.

    Args:
        labels: (n_items, ...) of bool; every column has both classes.

    Returns:
        the same shape, n_items / (2 · size of the item's class).
    """
    gold = np.asarray(labels, dtype=bool)
    n_true = gold.sum(axis=0)
    n_false = len(gold) - n_true
    return np.asarray(len(gold) / (2 * np.where(gold, n_true, n_false)))


def calibrate(labels: ArrayLike, decision_values: ArrayLike) -> Calibration:
    """Log loss and calibration of decision values taken as log odds of True.

    Args:
        labels: (n_items,) of bool.
        decision_values: (n_items,) of float.
    """
    gold = np.asarray(labels, dtype=bool)
    odds = np.asarray(decision_values, dtype=float)
    probability = expit(odds)
    place = np.minimum((probability * N_BINS).astype(int), N_BINS - 1)
    bins, error = [], 0.0
    for index in range(N_BINS):
        inside = place == index
        n = int(inside.sum())
        predicted = float(probability[inside].mean()) if n else None
        observed = float(gold[inside].mean()) if n else None
        if predicted is not None and observed is not None:
            error += n * abs(predicted - observed) / len(gold)
        bins.append(ReliabilityBin(index / N_BINS, (index + 1) / N_BINS, n, predicted, observed))
    # log(1 + exp(·)) of the wrong-way log odds never overflows this way.
    log_loss = float(np.logaddexp(0, np.where(gold, -odds, odds)).mean())
    return Calibration(log_loss, error, tuple(bins))


def score_decisions(
    labels: ArrayLike, verdicts: ArrayLike, decision_values: ArrayLike | None = None
) -> Scores:
    """Score verdicts against labels.

    Args:
        labels: (n_items,) of bool, both classes present.
        verdicts: (n_items,) of bool.
        decision_values: (n_items,) of float, larger means True; for the AUROC.
    """
    gold, said = np.asarray(labels, dtype=bool), np.asarray(verdicts, dtype=bool)
    true_recall, false_recall = float(said[gold].mean()), float((~said[~gold]).mean())
    return Scores(
        accuracy=float((said == gold).mean()),
        balanced_accuracy=(true_recall + false_recall) / 2,
        macro_f1=float(f1_score(gold, said, average="macro", zero_division=0.0)),
        true_recall=true_recall,
        false_recall=false_recall,
        auroc=float("nan")
        if decision_values is None
        else float(roc_auc_score(gold, np.asarray(decision_values, dtype=float))),
    )


def group_codes(group_ids: Sequence[str]) -> NDArray[np.int64]:
    """(n_items,) integer code of each item's group, in order of first occurrence."""
    codes = {group: code for code, group in enumerate(dict.fromkeys(group_ids))}
    return np.array([codes[group] for group in group_ids], dtype=np.int64)


def cross_validation_spread(instability: float, n_folds: int) -> float:
    """How much wider than its group bootstrap the interval of a cross-validated accuracy must be.

    Two groups in different folds train the probe that judges the other. Where there is nothing to
    learn, what makes the one right makes the other right too: their scores share the same term
    y₁·y₂·k(x₁, x₂). The scores of an item and of the items that trained its probe then correlate by
    1 over the number of training items, which for signs is 2/π of it (arcsine law), so that the
    variance of the accuracy is 1 + 2/π times what independent groups would have. Verdicts that
    stand whatever a few training items say share nothing. Between the two the excess is taken in
    proportion to the share of verdicts that change when a further fold is left out of the training,
    relative to that share where decisions are noise (an angle of arccos √((K−2)/(K−1)) between the
    two sums of K−1 and K−2 terms).

    That a variance of cross-validation cannot be estimated from its scores alone is shown by Bengio
    and Grandvalet (2004); this uses more than the scores, and is tested by simulation.

    Args:
        instability: share of verdicts that change when a further fold is left out.
        n_folds: K, at least 3.

    Returns:
        factor on the distance of both ends from the mean, between 1 and about 1.28.
    """
    by_noise = np.arccos(np.sqrt((n_folds - 2) / (n_folds - 1))) / np.pi
    return float(np.sqrt(1 + 2 / np.pi * min(1.0, instability / by_noise)))


def bootstrap_mean(
    values: ArrayLike, group_ids: Sequence[str], *, seed: int, spread: float = 1.0
) -> Estimate:
    """Mean over items, with an interval from resampling whole groups.

    Items of a group are not independent, so groups are drawn with replacement and the mean is
    taken over all items of the drawn groups. The quantiles of G groups are too close to the mean,
    like an interval from a normal instead of a t distribution with the variance divided by G: their
    distances are multiplied by t/z · √(G/(G−1)) (Hesterberg 2015, section 5.3). One group says
    nothing about others, so its interval is the range that values can have.

    Args:
        values: (n_items,), for instance whether a decision is right, or a paired difference. The
            range of booleans is 0 to 1, that of numbers is from the least to the largest of them.
        group_ids: (n_items,), the group of each item.
        seed: of the resampling.
        spread: further factor on the distances, where groups are not independent
            (`cross_validation_spread`); the interval never leaves the range of the values.
    """
    (estimate,) = bootstrap_means(np.asarray(values)[:, None], group_ids, seed=seed, spread=spread)
    return estimate


def bootstrap_means(
    columns: NDArray[np.floating | np.bool_],
    group_ids: Sequence[str],
    *,
    seed: int,
    spread: float = 1.0,
) -> list[Estimate]:
    """`bootstrap_mean` of several columns (n_items, n_columns) under the same resamples."""
    array = np.asarray(columns, dtype=float)
    codes = group_codes(group_ids)
    sizes = np.bincount(codes)
    n_groups = len(sizes)
    sums = np.zeros((n_groups, array.shape[1]))
    np.add.at(sums, codes, array)
    means = np.concatenate(
        [
            (weights @ sums) / (weights @ sizes)[:, None]
            for weights in resampled_groups(n_groups, seed=seed)
        ]
    )
    mean, least, most = array.mean(axis=0), array.min(axis=0), array.max(axis=0)
    if np.asarray(columns).dtype == bool:
        least, most = np.zeros_like(least), np.ones_like(most)
    if n_groups == 1:
        low, high = least, most
    else:
        wider = spread * few_groups(n_groups)
        low, high = mean + wider * (np.quantile(means, [0.025, 0.975], axis=0) - mean)
        low, high = np.maximum(low, least), np.minimum(high, most)
    return [Estimate(*map(float, row)) for row in zip(mean, low, high, strict=True)]


def resampled_groups(n_groups: int, *, seed: int) -> Iterator[NDArray[np.float64]]:
    """How often each group occurs in each bootstrap resample, in pieces (n_resamples, n_groups).

    Pieces are bounded in size, so that memory does not grow with the number of groups.
    """
    rng = np.random.default_rng(seed)
    piece = max(1, min(N_RESAMPLES, _COUNTS_AT_ONCE // n_groups))
    for start in range(0, N_RESAMPLES, piece):
        rows = min(piece, N_RESAMPLES - start)
        # Drawing groups with replacement is drawing how often each occurs.
        draws = rng.integers(n_groups, size=(rows, n_groups))
        offsets = np.arange(rows)[:, None] * n_groups
        counts = np.bincount((draws + offsets).ravel(), minlength=rows * n_groups)
        yield counts.reshape(rows, n_groups).astype(float)


def few_groups(n_groups: int) -> float:
    """Factor on the distances of bootstrap quantiles from the mean, for at least two groups."""
    z = t.ppf(0.975, np.inf)
    return float(t.ppf(0.975, n_groups - 1) / z * np.sqrt(n_groups / (n_groups - 1)))


def mcnemar_exact(first_correct: ArrayLike, second_correct: ArrayLike) -> float:
    """Two-sided exact p-value that two classifiers are right equally often on the same items.

    Only items on which they differ count; these are Binomial(1/2) under the null (McNemar 1947).
    Items are taken as independent: with groups, read it beside the group bootstrap.
    """
    first, second = np.asarray(first_correct, dtype=bool), np.asarray(second_correct, dtype=bool)
    only_first, only_second = int((first & ~second).sum()), int((~first & second).sum())
    if only_first + only_second == 0:
        return 1.0
    return float(binomtest(only_first, only_first + only_second, 0.5).pvalue)


def sign_flip_p(
    differences: ArrayLike,
    group_ids: Sequence[str],
    *,
    seed: int,
    spread: float = 1.0,
    two_sided: bool = False,
) -> float:
    """p-value that paired differences are positive on average, by flipping the sign of groups.

    If neither of two classifiers is better, swapping them in a whole group changes nothing.

    Args:
        differences: (n_items,), first minus second.
        group_ids: (n_items,), the group of each item; its items change sign together.
        seed: of the flips.
        spread: factor on the standard deviation under the null, where groups are not independent
            (`cross_validation_spread`), as `bootstrap_mean` widens the interval. What it adds is
            normal: stretching the few values that counts take would often change none.
        two_sided: whether differences are negative on average would count as well.

    Returns:
        share of sign patterns, the observed one included, with at least the observed mean.
    """
    sums = np.bincount(group_codes(group_ids), weights=np.asarray(differences, dtype=float))
    rng = np.random.default_rng(seed)
    flipped = rng.choice([-1.0, 1.0], size=(N_RESAMPLES, len(sums))) @ sums
    if spread > 1:
        shared = np.sqrt(spread**2 - 1) * np.linalg.norm(sums)
        flipped = flipped + shared * rng.standard_normal(N_RESAMPLES)
    observed = sums.sum()
    if two_sided:
        flipped, observed = np.abs(flipped), abs(observed)
    return float((1 + (flipped >= observed - 1e-9).sum()) / (1 + N_RESAMPLES))


def out_of_fold_threshold(
    decision_values: ArrayLike, labels: ArrayLike, folds: ArrayLike
) -> NDArray[np.bool_]:
    """Verdicts by a threshold that is fitted on the other folds.

    For each fold, the threshold is the midpoint between neighbouring decision values that gives
    the highest accuracy on the items outside the fold. Where several are equally good, the
    middle one of them is taken. A bias towards one verdict does not survive
    this; what remains wrong is not a matter of the threshold.

    Args:
        decision_values: (n_items,), larger means True.
        labels: (n_items,) of bool.
        folds: (n_items,), the fold of each item.

    Returns:
        (n_items,) of bool.
    """
    values, gold = np.asarray(decision_values, dtype=float), np.asarray(labels, dtype=bool)
    fold = np.asarray(folds)
    verdicts = np.zeros(len(values), dtype=bool)
    for k in np.unique(fold):
        held_out = fold == k
        verdicts[held_out] = values[held_out] > _best_threshold(values[~held_out], gold[~held_out])
    return verdicts


def _best_threshold(values: NDArray[np.float64], gold: NDArray[np.bool_]) -> float:
    order = np.argsort(values, kind="stable")
    ordered, right = values[order], gold[order]
    # Threshold j lies below item j: items before it are called False, the rest True.
    n_right = np.concatenate([[0], np.cumsum(~right)]) + np.concatenate(
        [np.cumsum(right[::-1])[::-1], [0]]
    )
    edges = np.concatenate(
        [[ordered[0] - 1.0], (ordered[1:] + ordered[:-1]) / 2, [ordered[-1] + 1.0]]
    )
    # Between equal values there is no threshold.
    possible = np.concatenate([[True], ordered[1:] > ordered[:-1], [True]])
    best = np.flatnonzero(possible & (n_right == n_right[possible].max()))
    return float(edges[best[len(best) // 2]])
