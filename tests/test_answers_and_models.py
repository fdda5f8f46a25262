import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from activations import HFBackend, ModelSpec, answer, describe_source, forced_answers, load_backend
from activations.answers import forced_logits
from interp import Item, open_source, parse_verdict
from interp.errors import CacheError, ItemError, ModelError
from interp.files import partial_path
from interp.grading import read_answers

SOURCE = open_source("facts")


def options(facts: tuple[Item, ...]) -> dict[str, Any]:
    return {
        "source": describe_source(SOURCE, facts, view=None, seed=1),
        "max_new_tokens": 5,
        "batch_tokens": 600,
    }


def test_forced_choice_by_hand(facts: tuple[Item, ...]) -> None:
    logits = np.array([[2, 1], [1, 2], [1, 1]], dtype=np.float32)
    first = forced_answers(facts[:3], logits)
    assert [entry.verdict for entry in first] == [True, False, False]
    assert [entry.correct for entry in first] == [
        entry.verdict == item.label for entry, item in zip(first, facts, strict=False)
    ]
    assert first[0].raw == "ANSWER: True"
    assert all(entry.answered for entry in first)


def test_answers_are_what_single_runs_give(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], facts: tuple[Item, ...]
) -> None:
    backend = tiny_backend()
    answers = answer(backend, facts, tmp_path / "a.jsonl", **options(facts))
    assert read_answers(tmp_path / "a.jsonl") == answers
    assert [(a.condition, a.item_id) for a in answers] == [
        (condition, item.item_id) for condition in ("forced", "greedy") for item in facts
    ]
    prompts = backend.tokenize(facts)
    verdicts = backend.verdict_ids(prompts)
    for row in range(0, len(facts), 5):
        ids = prompts[row].ids_with_stub
        with torch.inference_mode():
            last = backend.model(torch.tensor([ids])).logits[0, -1]
        forced, greedy = answers[row], answers[len(facts) + row]
        assert forced.logit_true == pytest.approx(float(last[verdicts.true_id]), abs=1e-4)
        assert forced.logit_false == pytest.approx(float(last[verdicts.false_id]), abs=1e-4)
        (alone,) = backend.generate([prompts[row].ids], 5)
        assert greedy.raw == backend.decode(alone)
        assert greedy.n_tokens == len(alone)
        assert greedy.verdict is parse_verdict(greedy.raw)
        assert greedy.correct == (greedy.verdict is not None and greedy.verdict == facts[row].label)
    fields = "item_id condition verdict correct answered raw n_tokens logit_true logit_false"
    first = json.loads((tmp_path / "a.jsonl").read_text().splitlines()[0])
    assert list(first) == fields.split()


def test_a_stopped_run_goes_on_even_after_a_torn_line(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], facts: tuple[Item, ...]
) -> None:
    whole = answer(tiny_backend(), facts, tmp_path / "whole.jsonl", **options(facts))
    path, backend = tmp_path / "a.jsonl", tiny_backend()
    right, calls = backend.generate, []

    def stops(sequences: Any, *rest: Any) -> Any:
        calls.append(len(sequences))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return right(sequences, *rest)

    backend.generate = stops  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        answer(backend, facts, path, **options(facts))
    assert not path.exists()
    with partial_path(path).open("a") as handle:
        handle.write('{"item_id": "torn')
    n_done = len(facts) + sum(calls[:2])
    seen: list[int] = []
    resumed = answer(tiny_backend(), facts, path, progress=seen.append, **options(facts))
    assert seen[0] == n_done
    assert sum(seen) == 2 * len(facts)
    assert [a.raw for a in resumed] == [a.raw for a in whole]
    assert not partial_path(path).exists()


def test_an_unfinished_file_of_other_settings_is_refused_untouched(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], facts: tuple[Item, ...]
) -> None:
    path, backend = tmp_path / "a.jsonl", tiny_backend()
    backend.generate = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign,assignment]
    with pytest.raises(KeyboardInterrupt):
        answer(backend, facts, path, **options(facts))
    before = partial_path(path).read_bytes()
    other = options(facts)
    other["source"] = other["source"] | {"view": "statement"}
    with pytest.raises(CacheError, match=r"source\.view"):
        answer(tiny_backend(), facts, path, **other)
    assert partial_path(path).read_bytes() == before
    partial_path(path).write_bytes(b"".join(before.splitlines(keepends=True)[1:]))
    with pytest.raises(CacheError, match=r"a\.jsonl\.partial holds the results of another"):
        answer(tiny_backend(), facts, path, **options(facts))


def test_an_answer_file_of_other_settings_is_refused_untouched(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], facts: tuple[Item, ...]
) -> None:
    path = tmp_path / "a.jsonl"
    answer(tiny_backend(), facts, path, **options(facts))
    before = path.read_bytes()
    with pytest.raises(CacheError, match=r"model\.weights"):
        answer(tiny_backend(seed=1), facts, path, **options(facts))
    with pytest.raises(CacheError, match="max_new_tokens: the file has 5, this run has 6"):
        answer(tiny_backend(), facts, path, **options(facts) | {"max_new_tokens": 6})
    assert path.read_bytes() == before
    foreign = tmp_path / "b.jsonl"
    foreign.write_text("mine\n")
    with pytest.raises(CacheError, match=r"there is no b\.jsonl\.manifest\.json beside it"):
        answer(tiny_backend(), facts, foreign, **options(facts))
    assert foreign.read_text() == "mine\n"


def test_open_ended_items_cannot_be_graded(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], facts: tuple[Item, ...]
) -> None:
    item = facts[0]
    bare = Item("open", item.messages, None, "x", "g", "c", {})
    with pytest.raises(ItemError, match="'open'"):
        answer(tiny_backend(), [bare], tmp_path / "a.jsonl", **options(facts))
    assert list(tmp_path.iterdir()) == []


def test_a_saved_folder_loads_as_the_model_it_was(
    model_folder: Path, tiny_backend: Callable[..., HFBackend], facts: tuple[Item, ...]
) -> None:
    loaded = load_backend(ModelSpec.parse(str(model_folder), device="cpu"))
    built = tiny_backend()
    prompts = built.tokenize(facts[:3])
    assert loaded.tokenize(facts[:3]) == prompts
    np.testing.assert_array_equal(forced_logits(loaded, prompts), forced_logits(built, prompts))
    assert loaded.model_id == "tiny-llama"


def test_the_weights_fingerprint_follows_the_bytes(model_folder: Path, tmp_path: Path) -> None:
    copied = tmp_path / "tiny-llama"
    shutil.copytree(model_folder, copied)
    same = load_backend(ModelSpec.parse(str(copied), device="cpu")).fingerprint()
    assert same == load_backend(ModelSpec.parse(str(model_folder), device="cpu")).fingerprint()
    weights = copied / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    other = load_backend(ModelSpec.parse(str(copied), device="cpu")).fingerprint()
    assert {name for name in same if same[name] != other[name]} == {"weights"}


@pytest.mark.parametrize(
    ("text", "kind", "model_id", "revision"),
    [
        ("Qwen/Qwen3-0.6B", "hub", "Qwen/Qwen3-0.6B", None),
        ("Qwen/Qwen3-0.6B@abc", "hub", "Qwen/Qwen3-0.6B", "abc"),
    ],
)
def test_hub_ids_are_told_apart(text: str, kind: str, model_id: str, revision: str | None) -> None:
    spec = ModelSpec.parse(text)
    assert (spec.kind, spec.model_id, spec.revision) == (kind, model_id, revision)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("/no/such/folder", "no model folder"),
        ("./none", "no model folder"),
        ("smollm", "Did you mean smollm2"),
        ("gguf:/no/such.gguf", "no GGUF file"),
        ("{tmp}/empty", "no config.json"),
        ("{tmp}/weights.gguf", "Write gguf:"),
        ("", "--model is empty. Known: smollm2"),
    ],
)
def test_models_that_are_not_there_are_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "weights.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=message):
        ModelSpec.parse(text.format(tmp=tmp_path))


def test_a_hub_that_cannot_be_reached_is_one_paragraph() -> None:
    with pytest.raises(ModelError, match=r"'nobody/nothing' cannot be loaded.*Check the id"):
        load_backend(ModelSpec.parse("nobody/nothing", device="cpu"))


def test_an_attention_that_transformers_does_not_know_is_not_blamed_on_the_file(
    model_folder: Path,
) -> None:
    names = ["nosuch"]
    # One that it knows, and whose package is missing, is an error of other words.
    if find_spec("flash_attn") is None:
        names.append("flash_attention_2")
    for name in names:
        with pytest.raises(ModelError, match="Give another --attn") as caught:
            load_backend(ModelSpec.parse(str(model_folder), device="cpu", attn=name))
        assert "complete model folder" not in str(caught.value)


def test_a_folder_that_is_no_model_is_one_paragraph(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "nonsense"}')
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_backend(ModelSpec.parse(str(tmp_path), device="cpu"))
