"""Python arguments that name nothing, or are of another shape, are refused with the choices."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from probe_sweeps import sweep, twins

from activations import ActivationCache, ModelSpec, describe_source, extract
from activations.compression import require_compression
from activations.libraries import require_library
from interp import Item, open_source
from interp.errors import CacheError, InterpError, ModelError, ProbeError, SteeringError
from probes import check_folds, make_folds, probe_direction
from probes.closed import closed_weights
from probes.layer import probe_named, solver_named
from steering import sweep_steering

CACHE = twins(np.random.default_rng(0))
LABELS = CACHE.label.astype(bool)
FOLDS = make_folds(LABELS, CACHE.group_id, n_folds=4, seed=0)
KINDS = "logistic, mass_mean, ridge, lda"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"probe": "svm"}, f"probe is 'svm'; expected one of {KINDS}"),
        ({"solver": "lbfgs"}, "solver is 'lbfgs'; expected one of batched, sklearn"),
        ({"solver": "lbfgs", "probe": "lda"}, "solver is 'lbfgs'"),
        ({"grouping": "groups"}, "grouping is 'groups'; expected one of group, none"),
        ({"grouping": "groups", "folds": FOLDS}, "grouping is 'groups'"),
        ({"grouping": None}, "grouping is None"),
        ({"transfer": "category"}, r"transfer is 'category'; expected a list, such as \['cat"),
        ({"transfer": ["topic"]}, "transfer is 'topic'; expected one of category, template"),
        ({"C": "big"}, "C is 'big'; expected a positive number or 'auto'"),
        ({"C": None}, "C is None"),
        ({"device": "foo"}, "The device 'foo' cannot be used"),
        ({"folds": FOLDS.astype(float)}, "folds holds float64 values; expected integers"),
        ({"folds": FOLDS > 1}, "folds holds bool values"),
        ({"folds": [str(fold) for fold in FOLDS]}, "folds holds str"),
        ({"folds": [*FOLDS, 0]}, r"folds has the shape \(81,\); expected \(80,\), one fold an"),
        ({"folds": np.stack([FOLDS, FOLDS])}, r"the shape \(2, 80\)"),
        ({"folds": 5}, r"the shape \(\)"),
        ({"folds": FOLDS[:-1]}, r"the shape \(79,\)"),
        ({"folds": FOLDS + 2}, r"The folds are \[2, 3, 4, 5\]; expected at least 3, numbered"),
    ],
)
def test_a_sweep_takes_nothing_for_something_else(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ProbeError, match=message):
        sweep(CACHE, **options)


def test_folds_may_be_any_sequence_of_integers() -> None:
    wanted = sweep(CACHE, folds=FOLDS).decision_values
    for folds in (FOLDS.tolist(), tuple(FOLDS.tolist()), FOLDS.astype(np.uint8)):
        np.testing.assert_array_equal(sweep(CACHE, folds=folds).decision_values, wanted)
    found = check_folds(FOLDS.tolist(), LABELS, CACHE.group_id)
    assert found.dtype == np.int64


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: probe_direction(CACHE, 0, C=1.0, kind="svm"), ProbeError, "kind is 'svm'"),
        (lambda: closed_weights("svm", np.eye(3), LABELS[:3, None], (1.0,)), ProbeError, "'svm'"),
        (lambda: probe_named("svm", "batched"), ProbeError, "probe is 'svm'"),
        (lambda: solver_named("lbfgs"), ProbeError, "solver is 'lbfgs'"),
        (
            lambda: make_folds(LABELS, CACHE.group_id, n_folds=4, seed=0, grouping="groups"),
            ProbeError,
            "grouping is 'groups'",
        ),
        (lambda: require_compression("zip"), CacheError, "compression is 'zip'.* none, blosc"),
        (lambda: require_library("jax"), ModelError, "library is 'jax'.* hf, transformer_lens"),
        (lambda: ModelSpec.parse("smollm2", dtype="fp32"), ModelError, "dtype is 'fp32'"),
        (lambda: ModelSpec.parse("smollm2", library="jax"), ModelError, "library is 'jax'"),
        (lambda: ModelSpec.parse("smollm2", quantization="int2"), ModelError, "is 'int2'"),
    ],
)
def test_other_functions(call: Callable[[], Any], error: type[InterpError], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_extraction_and_steering(
    prepared: Callable[..., Any], facts: tuple[Item, ...], tmp_path: Path
) -> None:
    backend, cache, signed = prepared()
    source = describe_source(open_source("facts"), facts, view=None, seed=1)
    for options, message in (
        ({"token_rule": "last"}, "token_rule is 'last'; expected one of last_prompt, statement_e"),
        ({"store": "float64"}, "store is 'float64'"),
        ({"compression": "zip"}, "compression is 'zip'"),
    ):
        with pytest.raises(CacheError, match=message):
            extract(backend, facts, tmp_path / "new.h5", source=source, **options)
        assert not list(tmp_path.glob("new*"))
    for options, message in (
        ({"alpha_unit": "norm"}, "alpha_unit is 'norm'; expected one of median, absolute"),
        ({"intervention": "ablate"}, "intervention is 'ablate'; expected one of add, project_out"),
    ):
        with pytest.raises(SteeringError, match=message):
            sweep_steering(cache, signed, backend, alphas=(1.0,), **options)
    cache.close()


def test_a_closed_cache_says_so(prepared: Callable[..., Any]) -> None:
    _, cache, _ = prepared()
    path = cache.path
    cache.close()
    for read in (
        lambda: sweep(cache),
        lambda: cache.resid_post(0),
        lambda: cache.resid_pre0(),
        lambda: cache.items(),
        lambda: cache.label,
        lambda: cache.item_id,
        lambda: cache.prefix_sharing,
        lambda: cache.self_check_max_relative,
        lambda: cache.array("label", slice(2)),
    ):
        with pytest.raises(CacheError, match=r"llama\.h5 is closed; open it again"):
            read()
    cache.close()
    with ActivationCache.open(path) as again:
        assert len(again.items()) == 40
