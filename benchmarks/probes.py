"""Probe solver against scikit-learn: side by side in one run, alternated, medians of CPU seconds.

    OMP_NUM_THREADS=1 python benchmarks/probes.py [CACHE.h5] [--layer 15] [--stack 1] [--parts …]
    OMP_NUM_THREADS=1 python benchmarks/probes.py --parts large [--spectrum flat]
    OMP_NUM_THREADS=1 python benchmarks/probes.py CACHE.h5 --parts large --stack 7
    OMP_NUM_THREADS=1 python benchmarks/probes.py CACHE.h5 --parts tolerance

With a cache, the items of one layer (with --stack K, K layers side by side, for a larger d);
otherwise 408 synthetic items in 102 groups whose spectrum decays as in residual streams. Both sides
get the same five folds and standardise inside the training fold. scikit-learn runs at its default
tolerance (1e-4) and converged (1e-10), in float64; ratios are its CPU seconds over ours. Refits of
permutations are timed on a few of them and scaled, and the line says so. `large` fits training sets
of four fifths of the items of a cache or of 10,000 × 4,096 synthetic ones, and measures its peak
memory too; scikit-learn does one fit there, which is scaled. `tolerance` takes every third layer
and tells how far scikit-learn's default tolerance stops from the solution.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

# A script's folder comes first on the path, and this file has the name of the package it measures.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parent]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from joblib import Parallel, delayed  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from threadpoolctl import threadpool_limits  # noqa: E402

from activations import ActivationCache  # noqa: E402
from probes import make_folds  # noqa: E402
from probes.batched import Split, decide_held_out  # noqa: E402
from probes.layer import decide_layer, one_by_one, solver_named  # noqa: E402

PARTS = ("one", "grid", "nested", "permutations", "threads", "choice", "tolerance", "large")
GRID = tuple(float(c) for c in np.logspace(-4, 1, 10))
N_PERMUTATIONS, N_REFITTED = 200, 4


def load(path: Path | None, layer: int, stack: int) -> tuple[np.ndarray, np.ndarray, list[str]]:
    if path is None:
        rng = np.random.default_rng(0)
        n, d = 408, 576 * stack
        spectrum = np.arange(1, d + 1) ** -0.8
        turned = np.linalg.qr(rng.normal(size=(d, d)))[0]
        x = (rng.normal(size=(n, d)) * spectrum) @ turned
        y = np.tile([True, False], n // 2)
        x += 0.3 * y[:, None] * turned[5] * spectrum[5]
        return x.astype(np.float32), y, [f"g{i // 4}" for i in range(n)]
    with ActivationCache.open(path) as cache:
        layers = [cache.resid_post(layer + k) for k in range(stack)]
        return np.concatenate(layers, axis=1), cache.label.astype(bool), list(cache.group_id)


def fold_by_sklearn(
    x: np.ndarray, labels: np.ndarray, out: np.ndarray, strength: float, tol: float
) -> np.ndarray:
    scaler = StandardScaler().fit(x[~out].astype(np.float64))
    train, shown = (scaler.transform(part.astype(np.float64)) for part in (x[~out], x[out]))
    model = LogisticRegression(C=strength, tol=tol, max_iter=100_000).fit(train, labels[~out])
    return np.asarray(model.decision_function(shown))


def threads(x: np.ndarray, y: np.ndarray, folds: np.ndarray, strength: float) -> None:
    """Wall time: threads of the linear algebra, and processes over folds."""

    def wall(run: Callable[[], object]) -> float:
        run()
        taken = []
        for _ in range(3):
            start = time.perf_counter()
            run()
            taken.append(time.perf_counter() - start)
        return 1e3 * statistics.median(taken)

    parts = [folds == fold for fold in range(int(folds.max()) + 1)]
    print(f"one C = {strength:g}, wall time on {torch.get_num_threads()} thread:")
    with threadpool_limits(1):
        mine = wall(lambda: our_side(x, y[:, None], folds, (strength,)))
        alone = wall(lambda: [fold_by_sklearn(x, y, out, strength, 1e-4) for out in parts])
    print(
        f"  ours {mine:.0f} ms; scikit-learn, one BLAS thread {alone:.0f} ms ({alone / mine:.1f})"
    )
    free = wall(lambda: [fold_by_sklearn(x, y, out, strength, 1e-4) for out in parts])
    print(f"  scikit-learn, BLAS threads as they come: {free:.0f} ms ({free / alone:.1f} of one)")
    for n_jobs in (2, 4):
        with Parallel(n_jobs=n_jobs) as pool:
            job = delayed(fold_by_sklearn)
            many = wall(lambda: pool(job(x, y, out, strength, 1e-4) for out in parts))  # noqa: B023
        print(f"  scikit-learn, n_jobs {n_jobs}: {many:.0f} ms ({many / mine:.1f} of ours)")


def chosen_strengths(x: np.ndarray, y: np.ndarray, folds: np.ndarray) -> None:
    """Which C cross-validation takes, by tolerance, on an outer fold's training part."""
    grid = tuple(float(c) for c in np.logspace(-4, 2, 10))
    picked: dict[str, list[float]] = {}
    for side, tol in (("default tolerance", 1e-4), ("converged", 1e-10)):
        for outer in range(int(folds.max()) + 1):
            right = np.zeros(len(grid))
            for inner in range(int(folds.max()) + 1):
                if inner == outer:
                    continue
                kept, judged = (folds != outer) & (folds != inner), folds == inner
                both = x[kept | judged], y[kept | judged], judged[kept | judged]
                for index, strength in enumerate(grid):
                    said = fold_by_sklearn(*both, strength, tol) > 0
                    right[index] += (said == y[judged]).sum()
            picked.setdefault(side, []).append(grid[int(right.argmax())])
    ours = decide_layer(x, y[:, None], folds, grid, solver_named("batched"), inner=1).C[:, 0]
    for side, strengths in (*picked.items(), ("ours", ours)):
        print(f"  C that each outer fold takes, {side}: {', '.join(f'{c:.3g}' for c in strengths)}")


def synthetic(n: int, d: int, spectrum: str) -> tuple[np.ndarray, np.ndarray]:
    """Items, and labels that they tell in part.

    The spectrum of the items decays as in residual streams, or is that of independent features.
    """
    rng = np.random.default_rng(0)
    if spectrum == "flat":
        x = rng.normal(size=(n, d)).astype(np.float32)
        signal = x @ rng.normal(size=d).astype(np.float32) / np.sqrt(d)
        return x, signal + rng.normal(size=n) > 0
    decay = np.arange(1, d + 1, dtype=np.float32) ** -0.8
    x = rng.normal(size=(n, d)).astype(np.float32) * decay
    x = x @ np.linalg.qr(rng.normal(size=(d, d)).astype(np.float32))[0]
    y = x @ (rng.normal(size=d).astype(np.float32) / decay.sum()) + 0.2 * rng.normal(size=n) > 0
    return x, y


def large(x: np.ndarray, y: np.ndarray, strengths: tuple[float, ...]) -> None:
    """One training set and five; ten columns are the labels and nine permutations of them."""
    (n, d), rng = x.shape, np.random.default_rng(1)
    labels = np.stack([y, *(rng.permutation(y) for _ in range(9))], axis=1)
    folds = rng.permutation(n) % 5
    splits = [Split(folds != fold, folds == fold) for fold in range(5)]
    jobs = {"one column": (1, 1), "ten columns": (1, 10), "one column, five folds": (5, 1)}
    print(f"{n} items × {d}, training sets of {splits[0].training.sum()}")
    for strength in strengths:
        seconds, values = {}, np.empty(0)
        for job, (fits, columns) in jobs.items():
            some, given = splits[:fits], labels[:, :columns]
            seconds[job], found = cpu(
                lambda s=some, y=given, c=strength: list(decide_held_out(x, s, y, (c,)))  # type: ignore[misc]
            )
            values = found[0].values[:, 0, 0]  # type: ignore[index]
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            print(
                f"C = {strength:g}, {job}: ours {seconds[job]:.2f} s, peak memory {peak:.2f} GiB",
                flush=True,
            )
        for tol in (1e-4, 1e-10):
            theirs, decided = cpu(
                lambda c=strength, tol=tol: fold_by_sklearn(x, y, folds == 0, c, tol)  # type: ignore[misc]
            )
            ratios = ", ".join(
                f"{job} {fits * columns * theirs / seconds[job]:.1f}"
                for job, (fits, columns) in jobs.items()
            )
            print(
                f"  scikit-learn, tol {tol:g}: {theirs:.2f} s a fit, ratios (scaled): {ratios}; "
                f"largest difference {np.abs(np.asarray(decided) - values).max():.1e} of "
                f"{np.abs(values).max():.2g}",
                flush=True,
            )


def sklearn_side(
    x: np.ndarray, labels: np.ndarray, folds: np.ndarray, grid: tuple[float, ...], tol: float
) -> np.ndarray:
    """(n_items, n_strengths, columns) decisions, a refit for every fold, strength and column."""
    decisions = np.empty((len(x), len(grid), labels.shape[1]))
    for fold in range(int(folds.max()) + 1):
        out = folds == fold
        scaler = StandardScaler().fit(x[~out].astype(np.float64))
        train, shown = (scaler.transform(part.astype(np.float64)) for part in (x[~out], x[out]))
        for column in range(labels.shape[1]):
            for index, strength in enumerate(grid):
                model = LogisticRegression(C=strength, tol=tol, max_iter=100_000)
                model.fit(train, labels[~out, column])
                decisions[out, index, column] = model.decision_function(shown)
    return decisions


def our_side(
    x: np.ndarray, labels: np.ndarray, folds: np.ndarray, grid: tuple[float, ...]
) -> np.ndarray:
    decisions = np.empty((len(x), len(grid), labels.shape[1]))
    splits = [Split(folds != fold, folds == fold) for fold in range(int(folds.max()) + 1)]
    for split, found in zip(splits, decide_held_out(x, splits, labels, grid), strict=True):
        decisions[split.shown] = found.values
    return decisions


def cpu(run: Callable[[], object]) -> tuple[float, object]:
    start = time.process_time()
    result = run()
    return time.process_time() - start, result


def compare(
    name: str,
    repetitions: int,
    ours: Callable[[], object],
    theirs: dict[str, Callable[[], object]],
    scale: float = 1,
) -> None:
    sides = {"ours": ours, **theirs}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    results: dict[str, np.ndarray] = {}
    for _ in range(repetitions):
        for side, run in sides.items():
            used, result = cpu(run)
            seconds[side].append(used * (1 if side == "ours" else scale))
            results[side] = np.asarray(result)
    mine = statistics.median(seconds["ours"])
    print(f"{name}: ours {1e3 * mine:.0f} ms")
    for side in theirs:
        median = statistics.median(seconds[side])
        note = " (scaled)" if scale != 1 else ""
        a, b = results["ours"], results[side]
        a = a[..., : b.shape[-1]]
        print(
            f"  {side:22} {1e3 * median:8.0f} ms{note}  ratio {median / mine:6.1f}  "
            f"largest difference {np.abs(a - b).max():.1e} of {np.abs(a).max():.2g}, "
            f"signs that differ {int(((a > 0) != (b > 0)).sum())} of {b.size}"
        )


def tolerance(path: Path) -> None:
    """The default tolerance against the solution, ours, which agrees with scikit-learn's 1e-10."""
    with ActivationCache.open(path) as cache:
        n_layers = cache.n_layers
    for strength in (1.0, 100.0):
        worst, flips = [], []
        for layer in range(0, n_layers, 3):
            x, y, groups = load(path, layer, 1)
            folds = make_folds(y, groups, n_folds=5, seed=0)
            ours = our_side(x, y[:, None], folds, (strength,))
            loose = sklearn_side(x, y[:, None], folds, (strength,), 1e-4)
            worst.append(np.abs(ours - loose).max())
            flips.append(int(((ours > 0) != (loose > 0)).sum()))
        print(
            f"C = {strength:g}, default tolerance at layers 0, 3, …: decisions miss the solution "
            f"by {min(worst):.2g} to {max(worst):.2g} (median {statistics.median(worst):.2g}), "
            f"signs that differ of {len(y)}: {min(flips)} to {max(flips)} ({flips})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cache", nargs="?", type=Path)
    parser.add_argument("--layer", type=int, default=15)
    parser.add_argument("--stack", type=int, default=1)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS[:6])
    parser.add_argument("--spectrum", choices=("decaying", "flat"), default="decaying")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--strengths", nargs="+", type=float, default=[0.01, 1.0, 100.0])
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    strengths = tuple(chosen.strengths)
    with threadpool_limits(1):
        if "tolerance" in chosen.parts:
            tolerance(chosen.cache)
        if "large" in chosen.parts:
            if chosen.cache is None:
                large(*synthetic(10_000, 4096, chosen.spectrum), strengths)
            else:
                large(*load(chosen.cache, chosen.layer, chosen.stack)[:2], strengths)
    if not set(chosen.parts) & set(PARTS[:6]):
        return
    x, y, groups = load(chosen.cache, chosen.layer, chosen.stack)
    folds = make_folds(y, groups, n_folds=5, seed=0)
    print(f"{x.shape[0]} items × {x.shape[1]}, 5 folds, {chosen.cache or 'synthetic'}")
    with threadpool_limits(1):
        measure(x, y, folds, chosen.parts, chosen.repetitions, strengths)
        if "choice" in chosen.parts:
            chosen_strengths(x, y, folds)
    if "threads" in chosen.parts:
        threads(x, y, folds, 1.0)


def measure(
    x: np.ndarray,
    y: np.ndarray,
    folds: np.ndarray,
    parts: list[str],
    repetitions: int,
    strengths: tuple[float, ...],
) -> None:
    labels = y[:, None]
    rng = np.random.default_rng(0)
    permuted = np.stack([rng.permutation(y) for _ in range(N_PERMUTATIONS)], axis=1)
    our_side(x, labels, folds, (0.01,))  # the first call loads libraries
    tolerances = {"scikit-learn, tol 1e-4": 1e-4, "scikit-learn, 1e-10": 1e-10}
    for strength in strengths if "one" in parts else ():
        one = (strength,)
        compare(
            f"one C = {strength:g}",
            repetitions,
            lambda one=one: our_side(x, labels, folds, one),
            {
                side: lambda one=one, tol=tol: sklearn_side(x, labels, folds, one, tol)
                for side, tol in tolerances.items()
            },
        )
    if "grid" in parts:
        compare(
            f"{len(GRID)} values of C, {GRID[0]:g} to {GRID[-1]:g}",
            repetitions,
            lambda: our_side(x, labels, folds, GRID),
            {"scikit-learn, tol 1e-4": lambda: sklearn_side(x, labels, folds, GRID, 1e-4)},
        )
    if "nested" in parts:
        nested = lambda decide: decide_layer(x, labels, folds, GRID, decide, inner=1)  # noqa: E731
        compare(
            "C chosen on inner folds (15 fits × 10 values)",
            repetitions,
            lambda: nested(solver_named("batched")).decisions,
            {"scikit-learn, tol 1e-4": lambda: nested(one_by_one(decide_loosely)).decisions},
        )
    for strength in strengths[:2] if "permutations" in parts else ():
        one = (strength,)
        compare(
            f"{N_PERMUTATIONS} permutations, C = {strength:g} (refits timed on {N_REFITTED})",
            repetitions,
            lambda one=one: our_side(x, permuted, folds, one),
            {
                side: lambda one=one, tol=tol: sklearn_side(
                    x, permuted[:, :N_REFITTED], folds, one, tol
                )
                for side, tol in tolerances.items()
            },
            scale=N_PERMUTATIONS / N_REFITTED,
        )


def decide_loosely(train, shown, labels, grid):  # type: ignore[no-untyped-def]
    scaler = StandardScaler().fit(train.astype(np.float64))
    a, b = (scaler.transform(part.astype(np.float64)) for part in (train, shown))
    values = [
        LogisticRegression(C=c, max_iter=100_000).fit(a, labels[:, 0]).decision_function(b)
        for c in grid
    ]
    return np.stack(values, axis=1)[:, :, None]


if __name__ == "__main__":
    main()
