"""Steering a model object: which tokens are written to, and that nothing else changes it."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from families import FAMILIES as ALL_FAMILIES
from families import build
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from activations import HFBackend
from activations.hooks import count_hooks, find_blocks
from interp.direction import Direction, Eraser, fit_eraser
from interp.errors import SteeringError
from steering import POSITIONS, add, clamp, erase, project_out, steer
from steering.interventions import added
from steering.positions import selected

FAMILIES = ("llama", "qwen3", "gemma3", "gpt2")
PROMPTS = [[5, 9, 30, 12], [8, 77], [200, 3, 41, 6, 17, 90, 4]]
NEW = 6


def unit(values: Any, layer: int = 1, **changes: Any) -> Direction:
    vector = np.array(values, dtype=np.float32)
    fields: dict[str, Any] = {
        "vector": vector / np.linalg.norm(vector),
        "layer": layer,
        "hook_point": "resid_post",
        "method": "class_mean",
        "class_gap": 1.0,
        "median_norm": 2.0,
        "model_id": "tiny-llama",
        "token_rule": "last_prompt",
        "n_true": 1,
        "n_false": 1,
    }
    return Direction(**fields | changes)


def some_direction(layer: int = 1, seed: int = 0, **changes: Any) -> Direction:
    return unit(np.random.default_rng(seed).normal(size=32), layer, **changes)


def named(policy: str, length: int, prompt: int) -> list[int]:
    """The tokens of an unpadded sequence that a policy names, written out."""
    return {
        "last_prompt": [prompt - 1],
        "prompt": list(range(prompt)),
        "generated": list(range(prompt - 1, length)),
        "all": list(range(length)),
    }[policy]


@torch.inference_mode()
def by_hand(
    model: Any, ids: list[int], prompt: int, direction: Direction, size: float, policy: str
) -> Tensor:
    """Logits after one unpadded sequence under a hook of our own, no cache."""
    shift = torch.from_numpy(direction.vector) * size

    def hook(_module: Any, _args: Any, output: Any) -> Any:
        hidden = (output[0] if isinstance(output, tuple) else output).clone()
        hidden[:, named(policy, len(ids), prompt)] += shift
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    handle = find_blocks(model)[direction.layer].register_forward_hook(hook)
    try:
        logits: Tensor = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        return logits
    finally:
        handle.remove()


def greedy_by_hand(
    model: Any, prompt: list[int], direction: Direction, size: float, policy: str
) -> list[int]:
    ids = list(prompt)
    for _ in range(NEW):
        logits = by_hand(model, ids, len(prompt), direction, size, policy)
        ids.append(int(logits.argmax()))
    return ids[len(prompt) :]


def padded(prompts: list[list[int]]) -> dict[str, Tensor]:
    longest = max(map(len, prompts))
    return {
        "input_ids": torch.tensor([[1] * (longest - len(p)) + p for p in prompts]),
        "attention_mask": torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts]),
    }


def generated(model: Any, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    inputs = padded(prompts)
    output = model.generate(
        **inputs,
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        do_sample=False,
        pad_token_id=1,
        eos_token_id=399,
        **options,
    )
    return [row[inputs["input_ids"].shape[1] :] for row in output.tolist()]


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


@pytest.mark.parametrize("family", FAMILIES)
def test_alpha_zero_is_the_unsteered_model_bit_for_bit(
    family: str, tiny_backend: Callable[..., HFBackend]
) -> None:
    backend = tiny_backend(family)
    direction = some_direction(model_id=backend.model_id)
    baseline = backend.logits(PROMPTS, [3, 5, 9])
    for policy in POSITIONS:
        with steer(backend, [add(direction, 0, positions=policy)]):
            assert torch.equal(backend.logits(PROMPTS, [3, 5, 9]), baseline)
        with steer(backend, [add(direction, [1, 0, -2], positions=policy)]):
            steered = backend.logits([prompt[:2] for prompt in PROMPTS], [3, 5, 9])
        plain = backend.logits([prompt[:2] for prompt in PROMPTS], [3, 5, 9])
        assert torch.equal(steered[1], plain[1])
        assert not torch.allclose(steered[[0, 2]], plain[[0, 2]])
    assert torch.equal(backend.logits(PROMPTS, [3, 5, 9]), baseline)


def test_the_last_layer_moves_the_logits_by_the_unembedding(
    tiny_backend: Callable[..., HFBackend],
) -> None:
    backend = tiny_backend()
    direction = unit(np.linspace(-1, 1, 32), layer=2)
    sequences, head = [[5, 9, 30], [8, 7, 1]], backend.model.lm_head.weight[:40].detach()
    # With the final norm: RMSNorm of the stream before and after, written out.
    streams = backend.capture(sequences, [2, 2], range(40)).resid_post[:, 2]
    shift = torch.tensor([[6.0], [-3.0]]) * torch.from_numpy(direction.vector)
    norm = backend.model.model.norm

    def normed(stream: Tensor) -> Tensor:
        scale = torch.rsqrt(stream.pow(2).mean(dim=1, keepdim=True) + norm.variance_epsilon)
        return stream * scale * norm.weight.detach()

    before = backend.logits(sequences, range(40))
    with steer(backend, [add(direction, [3.0, -1.5])]):
        after = backend.logits(sequences, range(40))
    expected = (normed(streams + shift) - normed(streams)) @ head.T
    torch.testing.assert_close(after - before, expected, rtol=1e-3, atol=1e-4)
    # Without it the logits are linear in the stream: the unembedding of the shift alone.
    backend.model.model.norm = nn.Identity()
    before = backend.logits(sequences, range(40))
    with steer(backend, [add(direction, [3.0, -1.5])]):
        after = backend.logits(sequences, range(40))
    torch.testing.assert_close(after - before, shift @ head.T, rtol=1e-4, atol=1e-4)


def test_several_layers_and_both_hook_points_at_once(
    tiny_backend: Callable[..., HFBackend],
) -> None:
    backend = tiny_backend()
    first = some_direction(layer=0)
    # What enters block 1 is what left block 0, so both ways of writing there are one.
    same = some_direction(layer=1, hook_point="resid_pre")
    other = some_direction(layer=2, seed=5, hook_point="resid_pre")
    with steer(backend, [add(first, 1.5), add(other, 1)]):
        got = backend.logits([[5, 9, 30]], range(40))
    with steer(backend, [add(other, 1), add(same, 0.5), add(same, 1)]):
        again = backend.logits([[5, 9, 30]], range(40))
    torch.testing.assert_close(got, again)
    with steer(backend, [add(first, 1.5)]):
        assert not torch.allclose(backend.logits([[5, 9, 30]], range(40)), got)


def test_absolute_sizes_and_the_number_type_of_the_layer() -> None:
    hidden = torch.arange(12.0).reshape(3, 4)
    vectors = torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 1.0], [0, 1.0, 0, 0]])
    moved = added(hidden, vectors, torch.tensor([10.0, -1.0, 0.0])) - hidden
    assert moved.tolist() == [[10, 0, 0, 0], [0, 0, 0, -1], [0, 0, 0, 0]]
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert added(hidden.to(dtype), vectors, torch.ones(3)).dtype == dtype
    rows = torch.tensor([0, 0, 0])
    median = add(unit([1.0, 0, 0, 0]), 3).change(hidden, rows)
    absolute = add(unit([1.0, 0, 0, 0]), 3, alpha_unit="absolute").change(hidden, rows)
    assert (median - hidden)[:, 0].tolist() == [6, 6, 6]
    assert (absolute - hidden)[:, 0].tolist() == [3, 3, 3]


def test_project_out_and_clamp_set_the_projection_of_the_named_tokens(
    tiny_backend: Callable[..., HFBackend],
) -> None:
    backend, direction = tiny_backend(), some_direction()
    vector = torch.from_numpy(direction.vector)

    def along(interventions: list[Any]) -> Tensor:
        # Read at the second token too, which `last_prompt` does not name.
        with steer(backend, interventions):
            streams = [backend.capture([ids], [at], [3]).resid_post[0, 1] for ids, at in reads]
        return torch.stack(streams) @ vector

    reads = [([5, 9, 30], 2), ([5, 9, 30], 1), ([8, 7, 1], 2)]
    plain = along([])
    assert (plain.abs() > 0.1).all()
    torch.testing.assert_close(
        along([project_out(direction)]), plain * torch.tensor([0, 1, 0]), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(
        along([project_out(direction, 2, positions="all")]), -plain, rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(
        along([clamp(direction, 7, positions="prompt")]),
        torch.full((3,), 7.0),
        rtol=1e-4,
        atol=1e-4,
    )
    with steer(backend, [clamp(direction, [1.0, -2.0])]):
        both = backend.capture([[5, 9, 30], [8, 7, 1]], [2, 2], [3]).resid_post[:, 1] @ vector
    torch.testing.assert_close(both, torch.tensor([1.0, -2.0]), rtol=1e-4, atol=1e-4)


def test_erasing_in_a_running_model_is_the_closed_form(
    tiny_backend: Callable[..., HFBackend],
) -> None:
    backend = tiny_backend()
    rng = np.random.default_rng(3)
    prompts = rng.integers(5, 200, size=(40, 3)).tolist()
    labels = np.array([prompt[-1] > 100 for prompt in prompts])

    def streams(at: int, *steering: Any) -> Any:
        with steer(backend, steering):
            return backend.capture(prompts, [at] * 40, [3] * 40).resid_post[:, 1].numpy()

    plain = streams(2)
    eraser = fit_eraser(plain, labels)
    found = streams(2, erase(eraser, 1))
    # x − ((x − mean) · read) write, and so the same mean for either class.
    wanted = plain - ((plain - eraser.mean) @ eraser.read)[:, None] * eraser.write
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    gap = np.abs(plain[labels].mean(0) - plain[~labels].mean(0)).max()
    assert gap > 0.1
    assert np.abs(found[labels].mean(0) - found[~labels].mean(0)).max() < 1e-4 * gap + 1e-5
    # A strength a sequence: not at all, half, wholly.
    shares = np.tile([0.0, 0.5, 1.0, 1.0], 10)
    np.testing.assert_allclose(
        streams(2, erase(eraser, 1, shares.tolist())),
        plain + shares[:, None] * (wanted - plain),
        atol=1e-4,
    )
    # The token before is only named by other policies.
    before = streams(1)
    assert np.array_equal(streams(1, erase(eraser, 1)), before)
    np.testing.assert_allclose(
        streams(1, erase(eraser, 1, positions="all")), eraser.erase(before), atol=1e-4
    )


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


def test_a_bfloat16_model_stays_one(tiny_model: Callable[..., Any]) -> None:
    model = tiny_model("llama").to(torch.bfloat16)
    with torch.inference_mode():
        before = model(torch.tensor([[5, 9, 30]])).logits
        with steer(model, [add(some_direction(), 3)]):
            after = model(torch.tensor([[5, 9, 30]])).logits
    assert after.dtype == torch.bfloat16
    assert torch.equal(after[:, :2], before[:, :2])
    assert not torch.allclose(after[:, 2], before[:, 2])


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
