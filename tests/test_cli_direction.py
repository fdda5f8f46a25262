"""`interp direction`, the table of cosines, and the writer that a model's head gives."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import ok, refused
from torch import nn

from activations import ActivationCache, ModelSpec, load_backend
from activations.head import verdict_head
from activations.hooks import count_hooks
from interp.direction import (
    cosine_table,
    fit_direction,
    read_direction,
    read_directions,
    unembedding_difference,
    unit_direction,
)
from interp.errors import SteeringError

FAMILIES = ("llama", "qwen3", "gemma3", "gpt2")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    """Activations of eighty generated statements."""
    path = tmp_path_factory.mktemp("cache") / "facts.h5"
    base = ("extract", "--model", model_folder, "--source", "facts", "--n", 80)
    ok(*base, "--device", "cpu", "--out", path)
    return path


def norms_of(model: Any) -> list[nn.Module]:
    return [module for module in model.modules() if "norm" in type(module).__name__.lower()]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_heads_writer_is_the_gradient_of_the_verdict(
    family: str, tiny_model: Callable[..., Any]
) -> None:
    """Against autograd through the model's own final norm and head, at a random stream."""
    model = tiny_model(family)
    with torch.no_grad():
        for norm in norms_of(model):
            for parameter in norm.parameters():
                parameter.uniform_(-0.5, 2)
    final = norms_of(model)[-1]
    hooks = sum(count_hooks(module) for module in model.modules())
    head = verdict_head(model, 7, 3)
    assert sum(count_hooks(module) for module in model.modules()) == hooks
    assert head.centred == (family == "gpt2")

    stream = 5 * torch.randn(32, generator=torch.Generator().manual_seed(1))
    stream.requires_grad_()
    logits = model.get_output_embeddings()(final(stream))
    (logits[7] - logits[3]).backward()
    gradient = stream.grad.double().numpy()

    def cosine_of(vector: np.ndarray) -> float:
        # The verdict does not depend on the stream's norm: compare at a fixed one.
        base = stream.detach().double().numpy()
        base = base - base.mean() if head.centred else base
        vector = vector - base * (vector @ base) / (base @ base)
        return float(vector @ gradient / np.linalg.norm(vector) / np.linalg.norm(gradient))

    options: dict[str, Any] = {"norm_weight": head.norm_weight, "centred": head.centred}
    assert cosine_of(unembedding_difference(head.rows, 0, 1, **options)) > 1 - 1e-5
    # Control: the rows alone, without the norm's weight, point elsewhere.
    assert cosine_of(unembedding_difference(head.rows, 0, 1)) < 0.95


def test_a_head_without_a_final_norm_is_read_as_it_is(tiny_model: Callable[..., Any]) -> None:
    model = tiny_model("llama")
    model.model.norm = nn.Identity()
    head = verdict_head(model, 7, 3)
    rows = model.lm_head.weight[[7, 3]].detach().numpy()
    assert np.array_equal(head.rows, rows)
    assert not head.centred
    found = unembedding_difference(head.rows, 0, 1, norm_weight=head.norm_weight)
    np.testing.assert_allclose(found, rows[0].astype(float) - rows[1], rtol=1e-5, atol=1e-6)


def test_cosines_and_angles_by_hand() -> None:
    place: dict[str, Any] = {
        "layer": 4,
        "median_norm": 1.0,
        "model_id": "m",
        "token_rule": "last_prompt",
    }
    vectors = {"class_mean": [1, 0, 0], "probe": [1, 1, 0], "writer": [0, -2, 0]}
    table = cosine_table(
        {k: unit_direction(np.array(v, float), method=k, **place) for k, v in vectors.items()}
    )
    half = np.sqrt(0.5)
    np.testing.assert_allclose(
        table.cosines, [[1, half, 0], [half, 1, -half], [0, -half, 1]], atol=1e-7
    )
    angles = table.record()["detection_control_angle"]
    assert angles == pytest.approx({"class_mean": 90, "probe": 135}, abs=1e-4)
    assert table.chance == pytest.approx(np.sqrt(2 / (3 * np.pi)))
    rng = np.random.default_rng(0)
    pairs = rng.normal(size=(4000, 2, 200))
    pairs /= np.linalg.norm(pairs, axis=2, keepdims=True)
    wide = cosine_table({"a": unit_direction(pairs[0, 0], method="a", **place)})
    assert np.abs((pairs[:, 0] * pairs[:, 1]).sum(1)).mean() == pytest.approx(wide.chance, rel=0.05)
    assert "detection_control_angle" not in wide.record()
    elsewhere = unit_direction(np.ones(3), method="b", **place | {"layer": 5})
    with pytest.raises(SteeringError, match="one layer and one width"):
        cosine_table({"a": unit_direction(np.ones(3), method="a", **place), "b": elsewhere})
    with pytest.raises(SteeringError, match="one layer"):
        cosine_table({})


def test_the_command_writes_every_kind_and_compares_all(
    cache: Path, model_folder: Path, tmp_path: Path
) -> None:
    base = ("direction", cache, "--layer", 1, "--json")
    with ActivationCache.open(cache) as opened:
        rows, labels = opened.resid_post(1), opened.label.astype(bool)
        groups = list(opened.group_id)
        place: dict[str, Any] = {
            "layer": 1,
            "median_norm": float(np.median(opened.resid_norm[:, 1])),
            "model_id": opened.manifest["model"]["model_id"],
            "token_rule": "last_prompt",
        }
    made = {}
    for kind in ("class_mean", "whitened", "pca", "leace", "probe", "orthogonal", "shuffled"):
        out = tmp_path / f"{kind}.npz"
        record = json.loads(ok(*base, "--kind", kind, "--seed", 3, "--out", out).stdout)
        made[kind] = read_direction(out)
        assert record["method"] == made[kind].method == kind
        if kind != "probe":
            expected = fit_direction(kind, rows, labels, groups=groups, seed=3, **place)
            np.testing.assert_allclose(made[kind].vector, expected.vector, atol=1e-6)
        table = record["cosines"]
        at = table["names"].index(kind)
        beside = table["names"].index("class_mean")
        assert table["cosines"][at][beside] == pytest.approx(
            float(made[kind].vector @ made["class_mean"].vector), abs=1e-6
        )
    assert abs(float(made["orthogonal"].vector @ made["class_mean"].vector)) < 1e-6
    old = ok(*base, "--method", "probe", "--out", tmp_path / "old.npz")
    assert json.loads(old.stdout)["method"] == "probe"  # the option's earlier name


def test_a_control_vector_of_several_layers_and_the_models_writer(
    cache: Path, model_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "truth.gguf"
    result = ok("direction", cache, "--layer", "1,2", "--model", model_folder, "--out", out)
    assert [each.layer for each in read_directions(out)] == [1, 2]
    assert b"llama" in out.read_bytes()  # the hint is the model's type
    assert "Cosines at layer 1" in result.stdout
    assert "angle to writer" in result.stdout
    assert "Two random directions" in result.stdout
    found = json.loads(
        ok(
            *("direction", cache, "--layer", 2, "--kind", "writer", "--model", model_folder),
            *("--json", "--out", tmp_path / "w.safetensors"),
        ).stdout
    )
    backend = load_backend(ModelSpec.parse(str(model_folder), device="cpu"))
    rows = backend.model.lm_head.weight.detach().numpy()
    weight = backend.model.model.norm.weight.detach().numpy()
    tokens = found["details"]
    expected = (rows[tokens["true_id"]] - rows[tokens["false_id"]]) * weight
    written = read_direction(tmp_path / "w.safetensors")
    np.testing.assert_allclose(
        written.vector, expected / np.linalg.norm(expected), atol=1e-5, rtol=1e-4
    )
    angles = found["cosines"]["detection_control_angle"]
    assert set(angles) == {"class_mean", "whitened", "pca", "leace", "probe"}
    mean = read_directions(out)[1].vector
    degrees = np.degrees(np.arccos(float(mean @ written.vector)))
    assert angles["class_mean"] == pytest.approx(degrees, abs=1e-3)


def test_mistakes_are_refused_and_leave_nothing(
    cache: Path, tmp_path: Path, tiny_model: Callable[..., Any], tokenizer: Any
) -> None:
    base = ("direction", cache, "--layer")
    out = tmp_path / "d.npz"
    for arguments, words in (
        (("1", "--kind", "writer", "--out", out), "give --model"),
        (("1", "--shrinkage", 0.5, "--out", out), "--kind whitened or leace"),
        (("1", "--kind", "leace", "--shrinkage", 2, "--out", out), "from 0 to 1"),
        (("x", "--out", out), "--layer is 'x'"),
        (("9", "--out", out), "layers 0 to 2"),
        (("1,2", "--out", out), "holds one direction; got 2"),
        (("0", "--out", tmp_path / "d.gguf"), "cannot hold layer 0"),
        (("1", "--out", tmp_path / "d.bin"), "ends in '.bin'"),
    ):
        assert words in refused(*base, *arguments)
    other = tmp_path / "other"
    tiny_model("llama", seed=1).save_pretrained(other)
    tokenizer.save_pretrained(other)
    message = refused(*base, 1, "--model", other, "--out", out)
    assert "another model" in message
    assert {path.name for path in tmp_path.iterdir()} == {"other"}
