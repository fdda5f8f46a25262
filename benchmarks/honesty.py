"""Does a sweep flatter? Random labels over many layers, repeated, against what it claims.

    OMP_NUM_THREADS=1 python benchmarks/honesty.py [--repetitions 200] [--layers 30]
    OMP_NUM_THREADS=1 python benchmarks/honesty.py --cache FACTS.h5

Activations are noise of their own in every layer, so the true accuracy is one half. `twins`:
groups of two True and two False items; `constant`: groups of one label each whose items look alike,
the labels of groups drawn anew. For each design it prints how often the nested interval covers one
half, and how often it would if groups were taken as independent; the mean nested accuracy; how far
the best layer flatters; and how often p is at most 0.05, 0.1 and 0.2. Then a signal is planted at
one layer, and ungrouped folds are shown for comparison.

With the cache of a model's residual streams (interp extract --source facts --n 408 --out FACTS.h5)
it prints the verdict on the real labels, and on labels permuted as the groups allow, twenty times.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

# A script's folder comes first on the path, and holds a file that is named like a package.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parent]
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from caches import Cache  # noqa: E402

from activations import ActivationCache  # noqa: E402
from interp.statistics import group_codes  # noqa: E402
from probes import ProbeSweep, make_folds, sweep_layers  # noqa: E402
from probes.permutation import choose_scheme, draw_labels, null_test  # noqa: E402
from probes.summary import summarise  # noqa: E402

WIDTH = 24
LEVELS = (0.05, 0.1, 0.2)


def draw(design: str, n_groups: int, layers: int, seed: int, signal: float = 0.0) -> Cache:
    rng = np.random.default_rng(seed)
    if design == "twins":
        labels, size = np.tile([True, False, True, False], n_groups), 4
        x = rng.normal(size=(len(labels), layers, WIDTH))
    else:
        size = 3
        labels = np.repeat(rng.permutation(np.arange(n_groups) % 2 == 0), size)
        shared = np.repeat(rng.normal(size=(n_groups, layers, WIDTH)), size, axis=0)
        x = shared + 0.3 * rng.normal(size=shared.shape)
    x[:, layers // 2, 0] += signal * (labels - 0.5)
    return Cache(x, labels, [f"g{index}" for index in np.repeat(np.arange(n_groups), size)])


@dataclass
class Tally:
    covered: int = 0
    covered_plain: int = 0


def plain_interval(sweep: ProbeSweep) -> tuple[float, float]:
    """1.96 standard errors of the mean over groups, as if groups were independent."""
    right = sweep.correct_nested.astype(float)
    sums = np.bincount(group_codes(sweep.group_id), weights=right - right.mean())
    error = 1.96 * np.sqrt((sums**2).sum()) / len(right)
    return right.mean() - error, right.mean() + error


def random_labels(design: str, n_groups: int, layers: int, repetitions: int, draws: int) -> None:
    tally, nested, optimism, family, single, spreads = Tally(), [], [], [], [], []
    for seed in range(repetitions):
        found = sweep_layers(
            draw(design, n_groups, layers, seed),  # type: ignore[arg-type]
            n_permutations=draws,
            seed=seed,
        )
        interval = found.estimate_nested(found.correct_nested)
        low, high = plain_interval(found)
        tally.covered += interval.low <= 0.5 <= interval.high
        tally.covered_plain += low <= 0.5 <= high
        nested.append(interval.value)
        spreads.append(found.spread_nested)
        optimism.append(found.correct[:, found.best_layer].mean() - interval.value)
        test = null_test(found.scores, found.null_scores)
        family.append(test.p_familywise)
        single.append(test.p)
    print(f"{design}, {n_groups} groups, {layers} layers, {repetitions} repetitions")
    print(
        f"  nested interval covers 0.5 in {tally.covered} (independent groups: "
        f"{tally.covered_plain}); widened by {np.mean(spreads):.2f} on average"
    )
    print(
        f"  nested accuracy {np.mean(nested):.4f} (standard error "
        f"{np.std(nested) / np.sqrt(repetitions):.4f}); best layer flatters by "
        f"{np.mean(optimism):+.3f}"
    )
    for name, values in (("family-wise p", family), ("p of a layer", single)):
        shares = [float(np.mean(np.asarray(values) <= level)) for level in LEVELS]
        text = ", ".join(f"{share:.3f} <= {a}" for share, a in zip(shares, LEVELS, strict=True))
        print(f"  {name}: share at each level {text}", flush=True)


def planted(n_groups: int, layers: int, repetitions: int) -> None:
    hits, significant = 0, 0
    for seed in range(repetitions):
        found = sweep_layers(
            draw("twins", n_groups, layers, seed, signal=2.0),  # type: ignore[arg-type]
            n_permutations=19,
            seed=seed,
        )
        hits += found.layers_nested == (layers // 2,) * 5
        test = null_test(found.scores, found.null_scores)
        significant += test.p_familywise <= 0.05
    print(
        f"signal at layer {layers // 2}: all five folds choose it in {hits} of {repetitions}, "
        f"significant in {significant}"
    )


def leakage(repetitions: int) -> None:
    """Pairs that share a signature: of one label (constant), or True and False (twins)."""
    for design in ("constant", "twins"):
        scores: dict[str, list[float]] = {"group": [], "none": []}
        for seed in range(repetitions):
            rng = np.random.default_rng(seed)
            shared = np.repeat(rng.normal(size=(40, 1, 60)), 2, axis=0)
            x = shared + 0.3 * rng.normal(size=shared.shape)
            labels = (
                np.tile([True, False], 40)
                if design == "twins"
                else np.repeat(rng.permutation(np.arange(40) % 2 == 0), 2)
            )
            cache = Cache(x, labels, [f"g{index // 2}" for index in range(80)])
            for grouping, kept in scores.items():
                found = sweep_layers(cache, C=1.0, grouping=grouping, seed=seed)  # type: ignore[arg-type]
                kept.append(found.correct_nested.mean())
        print(
            f"signatures shared by pairs, {design}: groups whole {np.mean(scores['group']):.3f}, "
            f"groups ignored {np.mean(scores['none']):.3f}"
        )


def embedded(path: Path, repetitions: int, draws: int) -> None:
    """A model's own activations: the real labels, and labels that are permuted by group."""
    with ActivationCache.open(path) as cache:
        real, items = cache.label.astype(bool), cache.items()
        layers = np.stack([cache.resid_post(k) for k in range(cache.n_layers)], axis=1)
        held = Cache(layers, real, list(cache.group_id), list(cache.category))
        held.item_id, held.manifest = cache.item_id, dict(cache.manifest)
    folds = make_folds(real, held.group_id, n_folds=5, seed=0)
    scheme = choose_scheme(real, held.group_id, folds, grouped=True)
    shuffled = draw_labels(scheme, real, held.group_id, folds, n_permutations=repetitions, seed=1)
    significant, known = 0, []
    for index, labels in enumerate((real, *shuffled.T)):
        held.label = labels.astype(np.int8)
        found = summarise(
            sweep_layers(held, folds=folds, items=items, n_permutations=draws, seed=index)  # type: ignore[arg-type]
        )
        p = max(found["p_familywise"], found["p_beyond_wording"])
        if index:
            significant += p <= 0.05
            known.append(found["accuracy_nested"])
        else:
            print(f"real labels: {found['accuracy_nested']:.3f}; {found['verdict']}", flush=True)
    print(
        f"labels permuted ({scheme}), {repetitions} times: beyond wording (p <= 0.05) in "
        f"{significant}; nested accuracy {np.mean(known):.3f} on average"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--permutations", type=int, default=39)
    parser.add_argument("--cache", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.cache is not None:
        embedded(chosen.cache, max(1, chosen.repetitions // 10), chosen.permutations)
        return
    for design, n_groups in (("twins", 20), ("twins", 60), ("constant", 40)):
        random_labels(design, n_groups, chosen.layers, chosen.repetitions, chosen.permutations)
    planted(30, chosen.layers, max(1, chosen.repetitions // 10))
    leakage(max(1, chosen.repetitions // 10))


if __name__ == "__main__":
    main()
