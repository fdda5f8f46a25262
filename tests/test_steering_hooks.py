"""Steering through hooks: policies, padding, caches, models of any kind, refusals."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from families import FAMILIES as ALL_FAMILIES
from families import build
from peft import LoraConfig, get_peft_model
from steered import PROMPTS, by_hand, generated, greedy_by_hand, padded, some_direction, unit

from activations import HFBackend
from activations.hooks import count_hooks, find_blocks
from interp.direction import Eraser
from interp.errors import SteeringError
from steering import POSITIONS, add, clamp, erase, project_out, steer
from steering.positions import selected

FAMILIES = ("llama", "qwen3", "gemma3", "gpt2")


def test_the_policies_by_hand() -> None:
    # Two columns of padding on the left of the second row; prompts of 3 and 2 tokens.
    index = torch.tensor([[0, 1, 2, 3, 4], [-1, -1, 0, 1, 2]])
    lengths = torch.tensor([3, 2])
    expected = {
        "last_prompt": [[0, 0, 1, 0, 0], [0, 0, 0, 1, 0]],
        "prompt": [[1, 1, 1, 0, 0], [0, 0, 1, 1, 0]],
        "generated": [[0, 0, 1, 1, 1], [0, 0, 0, 1, 1]],
        "all": [[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]],
    }
    assert set(expected) == set(POSITIONS)
    for policy in POSITIONS:
        assert selected(policy, index, lengths).int().tolist() == expected[policy]
    # A cached pass over the next token: after the prompt, so only two policies name it.
    later = torch.tensor([[5], [3]])
    found = {policy: selected(policy, later, lengths).any().item() for policy in POSITIONS}
    assert found == {"last_prompt": False, "prompt": False, "generated": True, "all": True}


@pytest.mark.parametrize("policy", POSITIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_generation_is_the_same_cached_uncached_batched_and_single(
    family: str, policy: str, tiny_model: Callable[..., Any]
) -> None:
    model = tiny_model(family)
    direction, alphas = some_direction(), [30.0, -40.0, 50.0]
    expected = [
        greedy_by_hand(model, prompt, direction, alpha * 2.0, policy)
        for prompt, alpha in zip(PROMPTS, alphas, strict=True)
    ]
    for use_cache in (True, False):
        with steer(model, [add(direction, alphas, positions=policy)]):
            assert generated(model, PROMPTS, use_cache=use_cache) == expected
        for prompt, alpha, wanted in zip(PROMPTS, alphas, expected, strict=True):
            with steer(model, [add(direction, alpha, positions=policy)]):
                assert generated(model, [prompt], use_cache=use_cache) == [wanted]
    # A control: without steering, or at the tokens of another policy, it is another text.
    assert generated(model, PROMPTS) != expected
    other = {"last_prompt": "all", "all": "last_prompt", "prompt": "generated"}.get(
        policy, "prompt"
    )
    with steer(model, [add(direction, alphas, positions=other)]):
        assert generated(model, PROMPTS) != expected


@pytest.mark.parametrize("policy", POSITIONS)
@pytest.mark.parametrize("padding", ["left", "right"])
def test_a_pass_over_prompt_and_stub_knows_where_the_prompt_ends(
    policy: str, padding: str, tiny_backend: Callable[..., HFBackend]
) -> None:
    backend = tiny_backend(padding=padding)
    direction, stub = some_direction(), [33, 44]
    sequences = [prompt + stub for prompt in PROMPTS]
    # The backend pads on the right without a mask, so it has to be told the lengths.
    with steer(
        backend,
        [add(direction, [1.0, 2.0, -3.0], positions=policy)],
        prompt_lengths=[len(prompt) for prompt in PROMPTS],
        lengths=[len(sequence) for sequence in sequences],
    ):
        got = backend.logits(sequences, range(40))
    for row, size in enumerate((2.0, 4.0, -6.0)):
        expected = by_hand(
            backend.model, sequences[row], len(PROMPTS[row]), direction, size, policy
        )
        torch.testing.assert_close(got[row], expected[:40], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("masked", [True, False])
def test_padding_is_never_written_to(masked: bool, tiny_model: Callable[..., Any]) -> None:
    model, seen = tiny_model("llama"), []
    inputs = padded(PROMPTS) if masked else {"input_ids": padded(PROMPTS)["input_ids"].flip(1)}
    real = padded(PROMPTS)["attention_mask"].bool()
    if not masked:
        real = real.flip(1)

    def keep(_module: Any, _args: Any, output: Any) -> None:
        seen.append(output.clone())

    with torch.inference_mode():
        # Steering is prepended, so a hook that was there first sees the steered stream.
        handle = find_blocks(model)[1].register_forward_hook(keep)
        model(**inputs)
        lengths = None if masked else [len(prompt) for prompt in PROMPTS]
        with steer(model, [add(some_direction(), 3, positions="all")], lengths=lengths):
            model(**inputs)
        handle.remove()
    moved = (seen[1] - seen[0]).norm(dim=-1)
    torch.testing.assert_close(moved[real], torch.full_like(moved[real], 6.0), rtol=1e-4, atol=0)
    assert moved[~real].max() == 0


@pytest.mark.parametrize("name", ["BLOOM", "Falcon", "OPT", "CodeGen", "GPT-NeoX"])
def test_families_whose_blocks_return_tuples_or_tensors(name: str) -> None:
    model, direction = build(name), some_direction(layer=1)
    ids = [7, 30, 41, 5, 99]
    with steer(model, [add(direction, 2)], prompt_lengths=[3]), torch.inference_mode():
        got = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
    expected = by_hand(model, ids, 3, direction, 4.0, "last_prompt")
    torch.testing.assert_close(got, expected)
    with torch.inference_mode():
        assert not torch.allclose(got, model(torch.tensor([ids])).logits[0, -1], rtol=1e-3)
    assert ALL_FAMILIES[name].refused is None


def test_a_backend_refuses_the_direction_of_another_model(
    tiny_backend: Callable[..., HFBackend],
) -> None:
    backend, ours = tiny_backend(), some_direction()
    eraser = Eraser(ours.vector.astype(float), ours.vector.astype(float), np.zeros(32), 0.0)
    foreign = some_direction(model_id="tiny-llama-2")
    for wrong in (
        add(foreign),
        project_out(foreign),
        clamp(foreign, 1),
        erase(eraser, 1, model_id="tiny-llama-2"),
    ):
        with (
            pytest.raises(SteeringError, match="read from 'tiny-llama-2', not from 'tiny-llama'"),
            steer(backend, [wrong]),
        ):
            pass
    # An adapter's stream is its base's; another program's file and no name at all do not say.
    for right in (
        add(ours),
        add(some_direction(model_id="tiny-llama+adapter")),
        add(some_direction(model_id="llama", method="file")),
        erase(eraser, 1),
        erase(eraser, 1, model_id="tiny-llama"),
    ):
        with steer(backend, [right]):
            pass
    # The object alone has no name to compare with.
    with steer(backend.model, [add(foreign)]):
        pass
    with pytest.raises(SteeringError, match="layers 0 to 2"), steer(backend, [erase(eraser, 3)]):
        pass
    with pytest.raises(SteeringError, match="layers count from 0"):
        erase(eraser, -1)
    with pytest.raises(SteeringError, match="not finite"):
        erase(Eraser(eraser.write * np.nan, eraser.read, eraser.mean, 0.0), 1)


@pytest.fixture
def adapted(tiny_model: Callable[..., Any]) -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")
        torch.manual_seed(1)
        config = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
        yield get_peft_model(tiny_model("llama"), config).eval()


def test_a_peft_model_is_steered_whichever_way_it_is_called(adapted: Any) -> None:
    direction = some_direction()
    merged = adapted.base_model.model
    expected = [greedy_by_hand(merged, p, direction, 6.0, "generated") for p in PROMPTS]
    with steer(adapted, [add(direction, 3, positions="generated")]):
        assert generated(adapted, PROMPTS) == expected
        inputs = padded(PROMPTS[:1])
        with torch.inference_mode():
            once = adapted(**inputs).logits[0, -1]
    wanted = by_hand(merged, PROMPTS[0], len(PROMPTS[0]), direction, 6.0, "generated")
    torch.testing.assert_close(once, wanted)


def test_a_new_prompt_starts_anew(tiny_model: Callable[..., Any]) -> None:
    model, direction = tiny_model("llama"), some_direction()
    # The last one goes on from the one before, so its prompt is still that one.
    passes = [([5, 9, 30, 12], 4), ([5, 8], 2), ([77, 3, 4, 9, 6], 5), ([77, 3, 4, 9, 6, 1, 11], 5)]
    expected = [by_hand(model, ids, n, direction, 6.0, "last_prompt") for ids, n in passes]
    with steer(model, [add(direction, 3)]), torch.inference_mode():
        for (ids, _), wanted in zip(passes, expected, strict=True):
            got = model(torch.tensor([ids])).logits[0, -1]
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_nothing_stays_on_the_model(tiny_model: Callable[..., Any]) -> None:
    model = tiny_model("llama")
    before = count_hooks(model)
    with pytest.raises(RuntimeError, match="stop"), steer(model, [add(some_direction())]):
        assert count_hooks(model) == before + 2
        raise RuntimeError("stop")
    assert count_hooks(model) == before


def test_what_cannot_be_steered_is_refused(tiny_model: Callable[..., Any]) -> None:
    model = tiny_model("llama")
    ids = torch.tensor([[5, 9, 30]])

    def refused(match: str, steering: Any, on: Any = model, **options: Any) -> None:
        with pytest.raises(SteeringError, match=match), steer(on, [steering], **options):
            on(ids)

    refused(r"has 2 entries.*another model \(tiny-llama\)", add(unit([1.0, 0.0])))
    refused("layers 0 to 2", add(some_direction(layer=3)))
    refused("2 sequences, but the batch has 1", add(some_direction(), [1, 2]))
    refused("prompt_lengths for 2 sequences", add(some_direction()), prompt_lengths=[1, 2])
    refused("lengths for 2 sequences", add(some_direction()), lengths=[1, 2])
    with pytest.raises(SteeringError, match=r"no position policy 'last'.*last_prompt"):
        add(some_direction(), positions="last")
    with pytest.raises(SteeringError, match="finite"):
        add(some_direction(), float("nan"))
    with pytest.raises(SteeringError, match="expected a model"):
        steer(object(), []).__enter__()
    compiled = torch.compile(tiny_model("llama"), backend="eager")
    refused(r"compiled \(torch.compile\)", add(some_direction()), on=compiled)
    inside = tiny_model("llama")
    inside.model.layers[1].compile(backend="eager")
    refused(r"compiled \(torch.compile\)", add(some_direction()), on=inside)
    # Where the prompt ends cannot be known.
    with torch.inference_mode():
        kept = model(ids, use_cache=True).cache
        with (
            pytest.raises(SteeringError, match="Give prompt_lengths="),
            steer(model, [add(some_direction())]),
        ):
            model(torch.tensor([[4]]), cache=kept)
    square = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    with (
        pytest.raises(SteeringError, match="attention mask of shape"),
        steer(model, [add(some_direction())]),
    ):
        model(ids, attention_mask=square)
