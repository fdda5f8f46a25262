import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from reference import relative

from activations import ActivationCache, HFBackend, describe_source, extract
from activations.cache import verify
from interp import Item, load_items, open_source
from interp.errors import CacheError, ModelError
from interp.files import partial_path

SOURCE = open_source("facts")


def described(items: tuple[Item, ...], **changes: Any) -> dict[str, Any]:
    return describe_source(SOURCE, items, view=None, seed=1) | changes


def arrays(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        return {name: dataset[:] for name, dataset in file.items()}


def test_the_file_holds_what_the_backend_gives(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], facts: tuple[Item, ...]
) -> None:
    backend = tiny_backend()
    with extract(backend, facts, tmp_path / "c.h5", source=described(facts)) as cache:
        prompts = backend.tokenize(facts)
        verdicts = backend.verdict_ids(prompts)
        for row, prompt in enumerate(prompts):
            alone = backend.capture(
                [prompt.ids_with_stub],
                [len(prompt.ids) - 1],
                [verdicts.true_id, verdicts.false_id],
            )
            stored = np.stack([cache.resid_post(layer)[row] for layer in range(3)])
            assert relative(torch.from_numpy(stored), alone.resid_post[0]) < 5e-6
            np.testing.assert_allclose(
                cache.answer_logits[row], alone.logits[0], rtol=1e-4, atol=1e-5
            )
            np.testing.assert_allclose(cache.resid_norm[row], alone.resid_norm[0], rtol=1e-4)
        assert cache.item_id == tuple(item.item_id for item in facts)
        assert cache.label.tolist() == [int(bool(item.label)) for item in facts]
        assert cache.items() == facts
        assert cache.n_tokens.tolist() == [len(prompt.ids) for prompt in prompts]
        assert cache.self_check_max_relative is not None
        assert cache.self_check_max_relative < 1e-5
        assert verify(cache) == []
    with h5py.File(tmp_path / "c.h5") as file:
        assert file["resid_post"].chunks == (40, 1, 32)
        assert set(file) >= {
            *("resid_post", "resid_pre0", "answer_logits", "item_id", "label"),
            *("group_id", "category", "n_tokens", "done"),
        }
    assert not partial_path(tmp_path / "c.h5").exists()


def test_the_activations_do_not_depend_on_the_stub(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], facts: tuple[Item, ...]
) -> None:
    backend = tiny_backend()
    with extract(backend, facts, tmp_path / "c.h5", source=described(facts)) as cache:
        prompt = backend.tokenize(facts[:1])[0]
        without_stub = backend.capture([prompt.ids], [len(prompt.ids) - 1], [0])
        assert (
            relative(torch.from_numpy(cache.resid_post(2)[0]), without_stub.resid_post[0, 2]) < 5e-6
        )


def test_each_token_rule_reads_another_token(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], facts: tuple[Item, ...]
) -> None:
    backend = tiny_backend()
    streams = {}
    for rule in ("last_prompt", "statement_end", "answer_stub"):
        with extract(
            backend,
            facts,
            tmp_path / f"{rule}.h5",
            source=described(facts),
            token_rule=rule,  # type: ignore[arg-type]
        ) as cache:
            streams[rule] = cache.resid_post(1)
    assert not np.allclose(streams["last_prompt"], streams["statement_end"])
    assert not np.allclose(streams["last_prompt"], streams["answer_stub"])


def test_the_self_check_sees_a_backend_that_depends_on_its_batch(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], facts: tuple[Item, ...]
) -> None:
    backend = tiny_backend()
    right = backend.capture

    def leaky(sequences: Any, positions: Any, logit_ids: Any) -> Any:
        capture = right(sequences, positions, logit_ids)
        factor = 1 + 1e-3 * (len(sequences) > 1)
        return replace(capture, resid_post=capture.resid_post * factor)

    backend.capture = leaky  # type: ignore[method-assign]
    options: dict[str, Any] = {"source": described(facts), "prefix_sharing": False}
    with extract(backend, facts, tmp_path / "c.h5", **options) as cache:
        assert cache.self_check_max_relative == pytest.approx(1e-3, rel=0.01)


def test_a_finished_file_is_reopened_not_recomputed(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], facts: tuple[Item, ...]
) -> None:
    backend = tiny_backend()
    extract(backend, facts, tmp_path / "c.h5", source=described(facts)).close()
    before = (tmp_path / "c.h5").read_bytes()

    def never(*_: object) -> None:
        raise AssertionError("computed again")

    backend.capture = never  # type: ignore[assignment]
    extract(backend, facts, tmp_path / "c.h5", source=described(facts)).close()
    assert (tmp_path / "c.h5").read_bytes() == before


def test_a_run_that_stops_goes_on_where_it_was(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], facts: tuple[Item, ...]
) -> None:
    path = tmp_path / "c.h5"
    backend = tiny_backend()
    right = backend.capture
    seen: list[int] = []

    def stops(sequences: Any, positions: Any, logit_ids: Any) -> Any:
        seen.append(len(sequences))
        if len(seen) == 4:
            raise KeyboardInterrupt
        return right(sequences, positions, logit_ids)

    options: dict[str, Any] = {
        "source": described(facts),
        "batch_tokens": 400,
        "prefix_sharing": False,
    }
    backend.capture = stops  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        extract(backend, facts, path, **options)
    assert not path.exists()
    with ActivationCache.open(partial_path(path), allow_unfinished=True) as cache:
        done = cache.done
        assert done.sum() == sum(seen[:3])
        assert np.isfinite(cache.resid_post(0)[done]).all()
        assert np.isnan(cache.resid_post(0)[~done]).all()
        assert any("not written" in fault for fault in verify(cache))
    with pytest.raises(CacheError, match="is not finished"):
        ActivationCache.open(path)

    finished: list[int] = []
    extract(backend, facts, path, progress=finished.append, **options).close()
    assert finished[0] == sum(seen[:3])
    assert sum(finished) == len(facts)
    extract(tiny_backend(), facts, tmp_path / "whole.h5", **options).close()
    for name, values in arrays(path).items():
        np.testing.assert_array_equal(values, arrays(tmp_path / "whole.h5")[name], err_msg=name)


@pytest.mark.parametrize("unfinished", [False, True])
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model": {"seed": 1}}, "model.weights"),
        ({"model": {"family": "gpt2"}}, "model.model_id"),
        ({"model": {"attn": "eager"}}, "model.attn_implementation"),
        ({"view": "statement"}, "source.view"),
        ({"seed": 2}, "source.seed"),
        ({"items": 36}, "source.items_sha256"),
        ({"token_rule": "answer_stub"}, "token_rule"),
        ({"store": "float16"}, "store"),
        ({"dtype": torch.bfloat16}, "model.dtype"),
        ({"template_args": {"m": "unused"}}, "model.template_args.m"),
    ],
)
def test_a_file_of_another_extraction_is_refused_untouched(
    tmp_path: Path,
    tiny_backend: Callable[..., HFBackend],
    facts: tuple[Item, ...],
    change: dict[str, Any],
    field: str,
    unfinished: bool,
) -> None:
    path = tmp_path / "c.h5"
    extract(tiny_backend(), facts, path, source=described(facts)).close()
    there = path
    if unfinished:
        there = path.rename(partial_path(path))
    before = there.read_bytes()
    backend = tiny_backend(**change.get("model", {}))
    if "dtype" in change:
        backend.model.to(change["dtype"])
    backend.template_args = change.get("template_args", {})
    items = facts[: change.get("items", len(facts))]
    source = described(items) | {k: v for k, v in change.items() if k in ("view", "seed")}
    options = {k: v for k, v in change.items() if k in ("token_rule", "store")}
    with pytest.raises(CacheError, match=rf"(?s)differ: .*{field}: the file has"):
        extract(backend, items, path, source=source, **options)
    assert there.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [there.name]


def test_other_package_versions_reopen_a_finished_file_but_do_not_resume(
    tmp_path: Path,
    tiny_backend: Callable[..., HFBackend],
    facts: tuple[Item, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "c.h5"
    extract(tiny_backend(), facts, path, source=described(facts)).close()
    monkeypatch.setattr("activations.extraction.package_versions", lambda: {"torch": "99"})
    extract(tiny_backend(), facts, path, source=described(facts)).close()
    path.rename(partial_path(path))
    with pytest.raises(CacheError, match=r"versions\.torch"):
        extract(tiny_backend(), facts, path, source=described(facts))


def test_overflow_is_an_error_that_names_layer_and_item(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], facts: tuple[Item, ...]
) -> None:
    backend = tiny_backend()
    with torch.no_grad():
        backend.model.model.layers[1].mlp.down_proj.weight.fill_(float("inf"))
    with pytest.raises(ModelError, match=r"item '.*' is not finite from layer 1"):
        extract(backend, facts, tmp_path / "c.h5", source=described(facts))


def test_float16_storage_is_refused_where_it_overflows(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], facts: tuple[Item, ...]
) -> None:
    small, large = tmp_path / "small.h5", tmp_path / "large.h5"
    with (
        extract(tiny_backend(), facts, small, source=described(facts), store="float16") as half,
        extract(tiny_backend(), facts, tmp_path / "full.h5", source=described(facts)) as full,
    ):
        np.testing.assert_allclose(half.resid_post(1), full.resid_post(1), rtol=2e-3, atol=1e-3)
        assert half.manifest["store"] == "float16"
    backend = tiny_backend()
    with torch.no_grad():
        backend.model.model.embed_tokens.weight.mul_(1e6)
    with pytest.raises(CacheError, match=r"large\.h5\.partial and use --store float32"):
        extract(backend, facts, large, source=described(facts), store="float16")


def test_bfloat16_is_widened(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], facts: tuple[Item, ...]
) -> None:
    backend = tiny_backend()
    backend.model.to(torch.bfloat16)
    with extract(backend, facts, tmp_path / "c.h5", source=described(facts)) as cache:
        assert cache.resid_post(0).dtype == np.float32
        widened = torch.from_numpy(cache.resid_post(0))
        assert torch.equal(widened.bfloat16().float(), widened)


def damaged(path: Path, kind: str) -> None:
    if kind == "truncated":
        with path.open("r+b") as handle:
            handle.truncate(path.stat().st_size // 2)
    elif kind == "text":
        path.write_text("statement,label\n")
    elif kind == "foreign":
        with h5py.File(path, "w") as file:
            file["x"] = [1]
    elif kind == "schema":
        with h5py.File(path, "r+") as file:
            file.attrs["schema_version"] = 99
    elif kind == "dataset":
        with h5py.File(path, "r+") as file:
            del file["resid_post"]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("truncated", "truncated"),
        ("text", "not a readable HDF5"),
        ("foreign", "not an activation cache"),
        ("schema", "schema version 99"),
        ("dataset", "damaged"),
    ],
)
def test_files_that_are_not_sound_caches_are_refused(
    tmp_path: Path,
    tiny_backend: Callable[..., HFBackend],
    facts: tuple[Item, ...],
    kind: str,
    message: str,
) -> None:
    path = tmp_path / "c.h5"
    extract(tiny_backend(), facts, path, source=described(facts)).close()
    damaged(path, kind)
    with pytest.raises(CacheError, match=message):
        ActivationCache.open(path)


def test_a_missing_file_and_a_missing_layer_are_named(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], facts: tuple[Item, ...]
) -> None:
    with pytest.raises(CacheError, match="There is no file"):
        ActivationCache.open(tmp_path / "none.h5")
    with extract(tiny_backend(), facts, tmp_path / "c.h5", source=described(facts)) as cache:
        for layer in (-1, 3):
            with pytest.raises(CacheError, match=rf"Layer {layer} is out of range.*layers 0 to 2"):
                cache.resid_post(layer)


def test_verify_finds_a_row_that_is_not_finite(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], facts: tuple[Item, ...]
) -> None:
    path = tmp_path / "c.h5"
    extract(tiny_backend(), facts, path, source=described(facts)).close()
    with h5py.File(path, "r+") as file:
        file["resid_post"][5, 1, 3] = np.nan
        file["answer_logits"][2, 0] = np.inf
        file["resid_norm"][1, 1] = np.nan
    with ActivationCache.open(path) as cache:
        assert verify(cache) == [
            "resid_post, layer 1: 1 written rows are not finite",
            "answer_logits: some written rows are not finite",
            "resid_norm: some written rows are not finite",
        ]


def test_a_cache_can_be_moved(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], facts: tuple[Item, ...]
) -> None:
    extract(tiny_backend(), facts, tmp_path / "c.h5", source=described(facts)).close()
    shutil.move(tmp_path / "c.h5", tmp_path / "elsewhere.h5")
    with ActivationCache.open(tmp_path / "elsewhere.h5") as cache:
        assert cache.items() == load_items(SOURCE, n=40, seed=1)
