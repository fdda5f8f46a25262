"""The command line as a user meets it, on a tiny model."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
from commands import invoke, ok, refused


def test_items_are_written_with_the_field_names(tmp_path: Path) -> None:
    ok("items", "facts:capitals", "--n", 8, "--seed", 3, "--out", tmp_path / "i.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "i.jsonl").read_text().splitlines()]
    assert len(lines) == 8
    assert list(lines[0]) == [
        "item_id",
        "messages",
        "label",
        "gold",
        "group_id",
        "category",
        "metadata",
    ]
    assert lines[0]["metadata"]["statement"] in lines[0]["messages"][-1]["content"]
    printed = ok("items", "facts:capitals", "--n", 8, "--seed", 3).stdout
    assert printed == (tmp_path / "i.jsonl").read_text()


def test_sources_as_json() -> None:
    listed = json.loads(ok("sources", "--json").stdout)
    assert {"facts", "csv", "jsonl", "truth"} <= {entry["name"] for entry in listed}


def test_cache_info_and_verify(gap: Path, tmp_path: Path) -> None:
    info = json.loads(ok("cache", "info", gap / "activations.h5", "--json").stdout)
    assert (info["n_items"], info["n_layers"], info["n_done"]) == (80, 3, 80)
    assert info["self_check_max_relative"] < 1e-4
    assert info["manifest"]["source"]["name"] == "facts"
    assert "manifest" not in ok("cache", "info", gap / "activations.h5").stdout
    assert "sound" in ok("cache", "verify", gap / "activations.h5").stdout
    broken = tmp_path / "broken.h5"
    broken.write_bytes((gap / "activations.h5").read_bytes())
    with h5py.File(broken, "r+") as file:
        file["done"][3] = 0
    result = invoke("cache", "verify", broken)
    assert result.exit_code == 3
    assert "1 of 80 rows are not written" in result.stdout


def test_sharing_can_be_turned_off_and_gives_the_same_manifest(
    model_folder: Path, tmp_path: Path
) -> None:
    base = ["extract", "--model", model_folder, "--source", "facts", "--n", 24, "--out"]
    said = ok(*base, tmp_path / "on.h5").stderr
    assert re.search(r"\d+ shared prefix(es)? for \d+ items: [\d,]+ of [\d,]+ prompt tokens", said)
    assert "No prefix was shared" in ok(*base, tmp_path / "off.h5", "--no-prefix-sharing").stderr
    on, off = (
        json.loads(ok("cache", "info", tmp_path / name, "--json").stdout)
        for name in ("on.h5", "off.h5")
    )
    assert on["manifest"] == off["manifest"]
    assert on["prefix_sharing"]["tokens_saved"] > 0 == off["prefix_sharing"]["tokens_saved"]
    # So a file made one way is reopened the other way.
    ok(*base, tmp_path / "on.h5", "--no-prefix-sharing")


def test_template_arguments_reach_the_template_and_the_manifest(
    tiny_model: Callable[..., Any], tokenizer: Any, tmp_path: Path
) -> None:
    import copy

    folder = tmp_path / "moody"
    tiny_model("llama").save_pretrained(folder)
    moody = copy.deepcopy(tokenizer)
    moody.chat_template += "{% if mood is defined %}{{ mood }}:{{ mood == 3 }}{% endif %}"
    moody.save_pretrained(folder)
    base = ["--model", folder, "--source", "facts", "--n", 40]
    plain, dry = tmp_path / "plain.h5", tmp_path / "dry.h5"
    ok("extract", *base, "--out", plain)
    ok("extract", *base, "--template-arg", "mood=3", "--out", dry)
    with h5py.File(plain) as a, h5py.File(dry) as b:
        assert json.loads(b.attrs["manifest"])["model"]["template_args"] == {"mood": 3}
        # "3:True" follows every prompt: JSON values keep their type.
        more = b["n_tokens"][:] - a["n_tokens"][:]
        assert set(more.tolist()) == {len(moody("3:True", add_special_tokens=False)["input_ids"])}
    message = refused("extract", *base, "--out", dry)
    assert "model.template_args.mood: the file has 3, this run has None" in message
    # Steering takes them from the cache.
    ok("probe", dry, "--out", tmp_path / "probe")
    ok(
        *("steer", dry, "--probe", tmp_path / "probe", "--model", folder),
        *("--random-directions", 1, "--out", tmp_path / "steer"),
    )
    out = tmp_path / "x.h5"
    for pair in ("mood", "=3", "2x=3"):
        assert "NAME=VALUE" in refused("extract", *base, "--template-arg", pair, "--out", out)
    message = refused("extract", *base, "--template-arg", "moood=3", "--out", out)
    assert "does not read 'moood'" in message


def test_a_direction_without_a_fold(gap: Path, tmp_path: Path) -> None:
    base = ["direction", gap / "activations.h5", "--layer", 1, "--json", "--out"]
    whole = json.loads(ok(*base, tmp_path / "a.npz").stdout)
    part = json.loads(
        ok(*base, tmp_path / "b.npz", "--probe", gap / "probe", "--without-fold", 2).stdout
    )
    assert whole["n_true"] + whole["n_false"] == 80
    assert part["n_true"] + part["n_false"] == 64
    assert "go together" in refused(*base, tmp_path / "c.npz", "--without-fold", 2)
    assert "folds 0 to 4; got 5" in refused(
        *base, tmp_path / "c.npz", "--probe", gap / "probe", "--without-fold", 5
    )


def test_ungrouped_folds_are_said_loudly(gap: Path, tmp_path: Path) -> None:
    result = ok("probe", gap / "activations.h5", "--group", "none", "--out", tmp_path / "p")
    assert "GROUPS ARE IGNORED" in result.stderr
    assert "GROUPS WERE IGNORED" in result.stdout
    assert "IGNORED" not in ok("probe", gap / "activations.h5", "--out", tmp_path / "q").output


def csv_file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    return f"csv:{path}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["items", "fact"], ["'fact'", "Did you mean facts"]),
        (["items", "csv:/no/such.csv"], ["/no/such.csv", "Check the path"]),
        (["items", "facts:capitals", "--n", "400"], ["320 statements", "n = 400"]),
        (["items", "facts", "--n", "0"], ["--n is 0"]),
        (["items", "facts", "--view", "fulll"], ["'fulll'", "Did you mean full"]),
        (["items", "facts", "--map", "label"], ["FIELD=COLUMN"]),
        (["items", "facts", "--map", "label=x"], ["no columns to map"]),
        (["items", "facts", "--n", "4", "--out", "/proc/none/x"], ["/proc/none", "permissions"]),
        (["probe", "/no/such.h5", "--out", "x"], ["/no/such.h5"]),
        (["cache", "info", "/no/such.h5"], ["/no/such.h5"]),
        (
            ["extract", "--source", "facts", "--model", "/no/such", "--out", "x.h5"],
            ["'/no/such'", "Check the path"],
        ),
    ],
)
def test_bad_input_gets_one_paragraph(arguments: list[str], words: list[str]) -> None:
    message = refused(*arguments)
    assert all(word in message for word in words), message


def test_bad_options_name_the_choices() -> None:
    for arguments in (
        ["extract", "--source", "facts", "--out", "x.h5", "--token", "last"],
        ["extract", "--source", "facts", "--out", "x.h5", "--dtype", "float8"],
        ["run", "expression-gaps"],
        ["probe", "x.h5", "--out", "x", "--seed", "-1"],
        ["answer", "--source", "facts", "--out", "x", "--max-new-tokens", "0"],
        ["probe", "x.h5", "--out", "x", "--group", "some"],
    ):
        result = invoke(*arguments)
        assert result.exit_code == 2
        assert "Traceback" not in result.output


def test_bad_tables_are_named_by_row_and_column(tmp_path: Path) -> None:
    no_label = csv_file(tmp_path, "statement,truth\nA.,1\n")
    assert "'label'" in refused("items", no_label)
    odd = csv_file(tmp_path, "statement,label\nA.,1\nB.,perhaps\n")
    message = refused("items", odd)
    assert "row 3" in message
    assert "'label'" in message
    assert "'perhaps'" in message


def test_a_file_in_another_encoding_is_named(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    ok("items", "facts:capitals", "--n", 8, "--out", good)
    bad.write_bytes(good.read_bytes().replace(b"capital", b"c\xe4pital", 1))
    for answers, items in ((bad, good), (good, bad)):
        message = refused("behave", "report", answers, "--items", items)
        assert message.startswith(f"Error: {bad} is not UTF-8 text")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Callable[..., Path]:
    """A cache of the rows of a table."""

    def extract(name: str, rows: str) -> Path:
        folder = tmp_path_factory.mktemp("small")
        (folder / "rows.csv").write_text("statement,label,group_id\n" + rows)
        source = f"csv:{folder / 'rows.csv'}"
        ok("extract", "--model", model_folder, "--source", source, "--out", folder / name)
        return folder / name

    return extract


def test_one_class_and_too_few_groups_are_refused(
    small: Callable[..., Path], tmp_path: Path
) -> None:
    same = small("same.h5", "".join(f"S{i}.,1,g{i}\n" for i in range(20)))
    assert "All 20 labels are True" in refused("probe", same, "--out", tmp_path / "p")
    few = small("few.h5", "".join(f"S{i}.,{i % 2},g{i % 4}\n" for i in range(20)))
    assert "4 groups and 5 folds" in refused("probe", few, "--out", tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_layers_and_files_that_are_not_there(gap: Path, model_folder: Path, tmp_path: Path) -> None:
    cache = gap / "activations.h5"
    base = [
        "steer",
        cache,
        "--probe",
        gap / "probe",
        "--model",
        model_folder,
        "--out",
        tmp_path / "s",
    ]
    assert "Layer 7 is out of range" in refused(*base, "--layers", "1,7")
    for layers in ("x", "1.7", "nan"):
        assert f"--layers is '{layers}'" in refused(*base, "--layers", layers)
    assert "--alphas" in refused(*base, "--alphas", "0")
    assert "layers 0 to 2" in refused("direction", cache, "--layer", 3, "--out", tmp_path / "d.npz")
    cut = tmp_path / "cut.h5"
    cut.write_bytes(cache.read_bytes()[:5000])
    assert "truncated" in refused("probe", cut, "--out", tmp_path / "p")
    foreign = tmp_path / "foreign.h5"
    with h5py.File(foreign, "w") as file:
        file["x"] = [1]
    assert "not an activation cache" in refused("probe", foreign, "--out", tmp_path / "p")
    assert {path.name for path in tmp_path.iterdir()} == {"cut.h5", "foreign.h5"}


def test_a_stale_cache_is_refused_by_name(model_folder: Path, tmp_path: Path) -> None:
    base = ["extract", "--model", model_folder, "--source", "facts", "--n", 12]
    out = tmp_path / "c.h5"
    ok(*base, "--out", out)
    before = out.read_bytes()
    for change, field in (
        (["--seed", 5], "source.seed"),
        (["--view", "statement"], "source.view"),
        (["--dtype", "bfloat16"], "model.dtype"),
        (["--token", "answer_stub"], "token_rule"),
    ):
        message = refused(*base, *change, "--out", out)
        assert f"{field}: the file has" in message
    assert out.read_bytes() == before
    ok(*base, "--out", out)
    assert out.read_bytes() == before
