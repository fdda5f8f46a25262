"""Direction files: round trips, exact metadata, what other programs read and write, junk."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from interp.direction import (
    Direction,
    read_direction,
    read_directions,
    require_model,
    unit_direction,
    write_direction,
    write_directions,
)
from interp.errors import SteeringError

SUFFIXES = (".npz", ".safetensors", ".gguf")


def direction(layer: int = 3, seed: int = 0, width: int = 24, **changes: Any) -> Direction:
    made = unit_direction(
        np.random.default_rng(seed).normal(size=width),
        method="whitened",
        layer=layer,
        median_norm=17.3 + layer,
        model_id="tiny-llama",
        token_rule="last_prompt",
        n_true=12,
        n_false=11,
        details={"shrinkage": 0.25, "note": "größer"},
    )
    return replace(made, **changes)


def same(a: Direction, b: Direction) -> bool:
    return replace(a, vector=b.vector) == b


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_one_direction_comes_back(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"d{suffix}"
    write_direction(path, direction())
    found = read_direction(path)
    assert same(found, direction())
    # A control vector holds another length, so its unit vector is rounded once more.
    np.testing.assert_allclose(found.vector, direction().vector, atol=1e-7)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    write_direction(path, direction(seed=1))  # over the finished file
    assert np.abs(read_direction(path).vector - found.vector).max() > 0.1


@pytest.mark.parametrize("suffix", SUFFIXES[1:])
def test_directions_of_several_layers_come_back_in_order(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"d{suffix}"
    written = [direction(layer, seed=layer) for layer in (11, 2, 5)]
    write_directions(path, written)
    found = read_directions(path)
    assert [each.layer for each in found] == [2, 5, 11]
    for each in written:
        one = read_direction(path, each.layer)
        assert same(one, each)
        np.testing.assert_allclose(one.vector, each.vector, atol=1e-7)
    with pytest.raises(SteeringError, match="layers 2, 5, 11, and no layer was named"):
        read_direction(path)
    with pytest.raises(SteeringError, match="layers 2, 5, 11, and layer 3 was asked for"):
        read_direction(path, 3)


def parse_gguf(path: Path) -> tuple[dict[str, tuple[int, Any]], list[tuple[str, tuple, int, Any]]]:
    """Metadata (type, value) and tensors (name, dimensions, type, values), by the format's text."""
    data, at = path.read_bytes(), 0

    def take(form: str) -> Any:
        nonlocal at
        value = struct.unpack_from(f"<{form}", data, at)[0]
        at += struct.calcsize(f"<{form}")
        return value

    def text() -> str:
        nonlocal at
        size = take("Q")
        at += size
        return data[at - size : at].decode()

    assert (take("I"), take("I")) == (0x46554747, 3)
    n_tensors, n_fields = take("Q"), take("Q")
    fields = {}
    for _ in range(n_fields):
        key, kind = text(), take("I")
        fields[key] = (kind, text() if kind == 8 else take({4: "I", 5: "i"}[kind]))
    listed = []
    for _ in range(n_tensors):
        name = text()
        shape = tuple(take("Q") for _ in range(take("I")))
        listed.append((name, shape, take("I"), take("Q")))
    start = -(-at // 32) * 32
    return fields, [
        (name, shape, kind, np.frombuffer(data, "<f4", int(np.prod(shape)), start + offset))
        for name, shape, kind, offset in listed
    ]


def as_llama_cpp_applies(path: Path, n_layers: int, strength: float) -> dict[int, np.ndarray]:
    """What llama.cpp adds to the output of each block: its loader and its adapter, step by step."""
    width, buffer = -1, np.zeros(0, np.float32)
    for name, shape, kind, values in parse_gguf(path)[1]:
        prefix, _, number = name.partition(".")
        assert prefix == "direction"
        assert int(number) > 0  # the loader drops a file that names layer 0
        assert kind == 0  # F32
        assert len(shape) == 1
        assert width in (-1, shape[0])
        width = shape[0]
        buffer = np.pad(buffer, (0, max(0, width * int(number) - buffer.size)))
        buffer[width * (int(number) - 1) :][:width] += values * np.float32(strength)
    # The adapter's entry `il` starts at width · (il − 1), and entry 0 does not exist.
    return {
        il: buffer[width * (il - 1) :][:width]
        for il in range(1, n_layers)
        if buffer.size >= width * il
    }


def test_a_control_vector_has_the_keys_and_the_meaning_that_llama_cpp_reads(
    tmp_path: Path,
) -> None:
    path = tmp_path / "v.gguf"
    written = [direction(layer, seed=layer) for layer in (2, 5)]
    write_directions(path, written, model_hint="llama")
    fields, tensors = parse_gguf(path)
    ours = fields.pop("interp.directions")
    assert fields == {
        "general.architecture": (8, "controlvector"),
        "controlvector.model_hint": (8, "llama"),
        "controlvector.layer_count": (4, 2),  # 4: uint32
    }
    assert [each["layer"] for each in json.loads(ours[1])] == [2, 5]
    assert [(name, shape, kind) for name, shape, kind, _ in tensors] == [
        ("direction.2", (24,), 0),
        ("direction.5", (24,), 0),
    ]
    # Strength is alpha, and the block is the direction's own: not the one before or after.
    applied = as_llama_cpp_applies(path, n_layers=8, strength=4)
    assert set(applied) == {1, 2, 3, 4, 5}
    for layer, added in applied.items():
        expected = np.zeros(24)
        for each in written:
            if each.layer == layer:
                expected = 4 * each.median_norm * each.vector
        np.testing.assert_allclose(added, expected, rtol=1e-6)


def test_a_control_vector_is_read_as_repeng_reads_it(tmp_path: Path) -> None:
    """Its layers are module indices from 0, each tensor taken as it lies in the file."""
    path = tmp_path / "v.gguf"
    write_directions(path, [direction(2), direction(5, seed=1)], model_hint="llama")
    reader = gguf.GGUFReader(path)
    for key, value in (
        ("general.architecture", "controlvector"),
        ("controlvector.model_hint", "llama"),
    ):
        assert bytes(reader.get_field(key).parts[-1]).decode() == value
    found = {int(tensor.name.split(".")[1]): tensor.data for tensor in reader.tensors}
    assert set(found) == {2, 5}
    np.testing.assert_allclose(found[5], direction(5, seed=1).vector * 22.3, rtol=1e-6)
    # Doubled and exported, with repeng's keys alone.
    foreign(tmp_path / "theirs.gguf", {f"direction.{n}": 2 * v for n, v in found.items()})
    again = read_direction(tmp_path / "theirs.gguf", 5)
    np.testing.assert_allclose(again.vector, direction(5, seed=1).vector, atol=1e-6)
    assert again.median_norm == pytest.approx(2 * 22.3)


def foreign(
    path: Path, tensors: dict[str, np.ndarray], architecture: str = "controlvector"
) -> None:
    """A GGUF file as another program writes it."""
    writer = gguf.GGUFWriter(path, architecture)
    if architecture == "controlvector":
        writer.add_string("controlvector.model_hint", "mistral")
        writer.add_uint32("controlvector.layer_count", len(tensors))
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_control_vectors_of_other_programs_keep_their_own_length(tmp_path: Path) -> None:
    path = tmp_path / "v.gguf"
    rng = np.random.default_rng(0)
    tensors = {f"direction.{n}": rng.normal(size=8).astype(np.float32) for n in (0, 1, 30)}
    foreign(path, tensors)
    found = read_directions(path)
    assert [each.layer for each in found] == [0, 1, 30]
    for each in found:
        # One alpha is what the file's own strength of 1 adds.
        added = each.median_norm * each.vector
        np.testing.assert_allclose(added, tensors[f"direction.{each.layer}"], rtol=1e-5)
        assert (each.method, each.model_id, each.details["file"]) == ("file", "mistral", "v.gguf")
        require_model(each, model_id="whatever", d_model=8, n_layers=31)
    save_file(tensors, tmp_path / "v.safetensors")
    again = read_directions(tmp_path / "v.safetensors")
    assert all(np.array_equal(a.vector, b.vector) for a, b in zip(again, found, strict=True))


def test_safetensors_hold_unit_vectors(tmp_path: Path) -> None:
    write_direction(tmp_path / "d.safetensors", direction())
    with safe_open(tmp_path / "d.safetensors", framework="numpy") as file:
        assert list(file.keys()) == ["direction.3"]
        assert np.array_equal(file.get_tensor("direction.3"), direction().vector)
        fields = json.loads(file.metadata()["direction.3"])
    assert fields["median_norm"] == 20.3
    assert fields["details"]["note"] == "größer"


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"direction.1": np.zeros(8, np.float32)}, "vector is zero; there is no direction"),
        ({"direction.1": np.full(8, np.nan, np.float32)}, "vector is not finite"),
        ({"direction.1": np.full(8, np.inf, np.float32)}, "vector is not finite"),
        ({"direction.1": np.ones((2, 4), np.float32)}, "one vector"),
        ({"direction.1": np.ones(8, np.float16)}, "expected F32"),
        ({"direction.x": np.ones(8, np.float32)}, "'direction.x'; expected direction.<layer>"),
        ({"blk.1.weight": np.ones(8, np.float32)}, r"'blk.1.weight'; expected"),
        ({"direction.-1": np.ones(8, np.float32)}, r"'direction.-1'; expected"),
        (
            {"direction.1": np.ones(8, np.float32), "direction.01": np.ones(8, np.float32)},
            "several tensors of layer 1",
        ),
        (
            {"direction.1": np.ones(8, np.float32), "direction.2": np.ones(9, np.float32)},
            r"several widths: \[8, 9\]",
        ),
        ({}, "holds no tensor"),
    ],
)
def test_control_vectors_that_hold_no_direction(
    tmp_path: Path, tensors: dict[str, np.ndarray], words: str
) -> None:
    foreign(tmp_path / "v.gguf", tensors)
    with pytest.raises(SteeringError, match=words):
        read_directions(tmp_path / "v.gguf")


def test_what_a_format_cannot_hold_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    two = [direction(1), direction(2)]
    for path, written, words in (
        ("d.gguf", [direction(0)], "cannot hold layer 0"),
        ("d.gguf", [direction(4, hook_point="resid_pre")], "the output of layer 3"),
        ("d.npz", two, "holds one direction; got 2"),
        ("d.pt", two, "ends in '.pt'"),
        ("d", two, "ends in 'nothing'"),
        ("d.gguf", [], r"layers \[\]"),
        ("d.safetensors", [direction(1), direction(1, seed=2)], r"layers \[1, 1\]"),
        ("d.gguf", [direction(1), direction(2, width=9)], r"have \[9, 24\] entries"),
    ):
        with pytest.raises(SteeringError, match=words):
            write_directions(tmp_path / path, written)
    assert not list(tmp_path.iterdir())
    with pytest.raises(SteeringError, match="positive number, because alpha counts it"):
        direction(median_norm=float("nan"))
    foreign(tmp_path / "model.gguf", {"direction.1": np.ones(8, np.float32)}, "llama")
    with pytest.raises(SteeringError, match="architecture 'llama'"):
        read_direction(tmp_path / "model.gguf")
    save_file({"weight": np.ones(8, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(SteeringError, match="tensor 'weight'"):
        read_direction(tmp_path / "model.safetensors")
    save_file({"direction.1": np.ones(8, np.int32)}, tmp_path / "ints.safetensors")
    with pytest.raises(SteeringError, match="floating-point"):
        read_direction(tmp_path / "ints.safetensors")
    with pytest.raises(SteeringError, match="no file"):
        read_direction(tmp_path / "none.gguf")


def test_a_direction_of_another_model_is_refused() -> None:
    ours = {"model_id": "tiny-llama", "d_model": 24, "n_layers": 4}
    require_model(direction(), **ours)
    with pytest.raises(SteeringError, match="has 24 entries, but tiny-llama has d_model 32"):
        require_model(direction(), **ours | {"d_model": 32})
    with pytest.raises(SteeringError, match="layers 0 to 2"):
        require_model(direction(), **ours | {"n_layers": 3})
    with pytest.raises(SteeringError, match="read from 'tiny-llama', not from 'other'"):
        require_model(direction(), **ours | {"model_id": "other"})


@pytest.fixture(scope="module")
def whole_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("directions")
    for suffix in SUFFIXES:
        write_direction(folder / f"d{suffix}", direction())
    return folder


@settings(max_examples=200)
@given(data=st.data(), suffix=st.sampled_from(SUFFIXES))
def test_damage_is_an_error_of_ours_or_harmless(
    whole_files: Path, data: st.DataObject, suffix: str
) -> None:
    whole = (whole_files / f"d{suffix}").read_bytes()
    damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for at in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=4)):
        if at < len(damaged):
            damaged[at] = data.draw(st.integers(0, 255))
    path = whole_files / f"damaged{suffix}"
    path.write_bytes(bytes(damaged))
    try:
        found = read_directions(path)
    except SteeringError:
        return
    assert all(np.linalg.norm(each.vector) == pytest.approx(1, abs=1e-4) for each in found)
