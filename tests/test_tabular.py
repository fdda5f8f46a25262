import json
from pathlib import Path

import pytest

from interp import load_items, open_source, write_items
from interp.errors import InterpError, SourceError

GOOD = "statement,label\nSnow is white.,1\nSnow is black.,0\n"


def write(tmp_path: Path, content: str, name: str = "items.csv") -> Path:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    return path


def load(spec: str, field_map=None, **options):
    return load_items(open_source(spec, field_map), **options)


@pytest.mark.parametrize("kind", ["csv", "truth"])
def test_a_statement_file_gives_its_rows(tmp_path: Path, kind: str) -> None:
    items = load(f"{kind}:{write(tmp_path, GOOD)}")
    assert [(item.statement, item.label) for item in items] == [
        ("Snow is white.", True),
        ("Snow is black.", False),
    ]
    assert "STATEMENT: Snow is white." in items[0].messages[-1].content


@pytest.mark.parametrize(("text", "label"), [("true", True), ("FALSE", False), (" 1 ", True)])
def test_labels_may_be_words(tmp_path: Path, text: str, label: bool) -> None:
    path = write(tmp_path, f"statement,label\nA.,{text}\n")
    (item,) = load(f"csv:{path}")
    assert item.label is label


def test_fields_are_mapped_and_the_rest_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path, '\ufefftext,is_true,city,note\n"Paris, I hear, is big.",1,Paris,x\n')
    (item,) = load(f"csv:{path}", {"statement": "text", "label": "is_true", "group_id": "city"})
    assert item.statement == "Paris, I hear, is big."
    assert item.group_id == "Paris"
    assert item.metadata["note"] == "x"


def test_a_column_of_that_name_does_not_pass_for_the_statement(tmp_path: Path) -> None:
    path = write(tmp_path, "statement,claim,label,row\nraw.,Paris is in France.,1,x\n")
    (item,) = load(f"csv:{path}", {"statement": "claim"})
    assert item.statement == "Paris is in France."
    assert item.statement in item.messages[-1].content
    assert item.metadata["row"] == "row 2"


def test_blank_lines_are_passed_over(tmp_path: Path) -> None:
    assert len(load(f"csv:{write(tmp_path, GOOD + chr(10))}")) == 2


def test_views_show_more_or_less_of_an_item(tmp_path: Path) -> None:
    path = write(tmp_path, "statement,label,setup\nA.,1,The state.\n")
    prompts = {
        view: load(f"csv:{path}", view=view)[0].messages[-1].content
        for view in ("full", "no-facts", "statement")
    }
    assert "SETUP: The state." in prompts["full"]
    assert "The state." not in prompts["no-facts"]
    assert "STATEMENT: A." in prompts["no-facts"]
    assert prompts["statement"] == "A."


def test_equal_statements_share_a_group(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + "Snow is white.,1\n")
    items = load(f"csv:{path}")
    assert items[0].group_id == items[2].group_id != items[1].group_id


def test_a_sample_keeps_groups_whole_and_file_order(tmp_path: Path) -> None:
    rows = "".join(f"S{i}.,{i % 2},g{i // 4}\n" for i in range(40))
    path = write(tmp_path, "statement,label,group_id\n" + rows)
    spec = f"csv:{path}"
    sample = load(spec, n=12, seed=5)
    groups = [item.group_id for item in sample]
    assert len(set(groups)) == 3
    assert all(groups.count(group) == 4 for group in groups)
    everything = load(spec)
    assert [i.item_id for i in everything if i in sample] == [i.item_id for i in sample]
    assert sample == load(spec, n=12, seed=5)
    assert any(load(spec, n=12, seed=seed) != sample for seed in range(6, 10))


def test_jsonl_reads_what_interp_items_writes(tmp_path: Path, facts) -> None:
    path = tmp_path / "items.jsonl"
    write_items(path, facts)
    assert load(f"jsonl:{path}") == facts
    with pytest.raises(SourceError, match="'full' only"):
        load(f"jsonl:{path}", view="statement")


def test_jsonl_maps_fields_too(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps({"s": "A.", "y": True}) + "\n", "rows.jsonl")
    (item,) = load(f"jsonl:{path}", {"statement": "s", "label": "y"})
    assert (item.statement, item.label) == ("A.", True)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("statement,truth\nA.,1\n", ["row 1", "'label'", "statement, truth", "--map label="]),
        ("", ["empty", "header"]),
        (GOOD + "Grass is green.,yes\n", ["row 4", "'label'", "'yes'", "0, 1, true or false"]),
        (GOOD + "Grass is green.,\n", ["row 4", "'label'", "''"]),
        (GOOD + ",1\n", ["row 4", "'statement'", "empty"]),
        (GOOD + "Grass, being green.,1\n", ["row 4", "3 values", "2 columns", "Quote"]),
        ("statement,label,label\nA.,1,1\n", ["row 1", "twice"]),
        ('statement,label\n"A.,1\n', ["cannot be read"]),
        ("statement,label\n", ["no items"]),
    ],
)
def test_a_fault_in_a_csv_names_row_and_column(tmp_path: Path, content: str, words) -> None:
    with pytest.raises(SourceError) as caught:
        load(f"csv:{write(tmp_path, content)}")
    message = str(caught.value)
    assert all(word in message for word in words), message


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes("statement,label\nCafé.,1\n".encode("latin-1"))
    with pytest.raises(SourceError, match="UTF-8"):
        load(f"csv:{path}")


def test_faults_in_jsonl_name_the_line(tmp_path: Path) -> None:
    path = write(tmp_path, '{"statement": "A.", "label": 1}\n{"statement": \n', "a.jsonl")
    with pytest.raises(SourceError, match="line 2: not JSON"):
        load(f"jsonl:{path}")
    for odd in ("NaN", "Infinity", '"\\ud800"'):
        path = write(tmp_path, f'{{"statement": "A.", "label": 1, "x": {odd}}}\n', "c.jsonl")
        with pytest.raises(SourceError, match="line 1: not JSON"):
            load(f"jsonl:{path}")
    path = write(tmp_path, "[1]\n", "b.jsonl")
    with pytest.raises(SourceError, match="line 1: got a list"):
        load(f"jsonl:{path}")


def test_missing_things_are_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no file .*none\.csv"):
        open_source(f"csv:{tmp_path}/none.csv")
    with pytest.raises(SourceError, match="needs a path"):
        open_source("csv")
    with pytest.raises(SourceError, match="is a folder"):
        open_source(f"csv:{tmp_path}")
    path = write(tmp_path, GOOD)
    with pytest.raises(SourceError, match=r"no column 'labl'.*Did you mean label"):
        load(f"csv:{path}", {"label": "labl"})
    with pytest.raises(SourceError, match=r"'lable' is no field. Did you mean label"):
        load(f"csv:{path}", {"lable": "label"})
    with pytest.raises(SourceError, match="holds 2 items; got n = 3"):
        load(f"csv:{path}", n=3)
    with pytest.raises(SourceError, match=r"no view 'ful'. Did you mean full"):
        load(f"csv:{path}", view="ful")
    with pytest.raises(InterpError, match="--n is 0"):
        load(f"csv:{path}", n=0)


def test_the_fingerprint_follows_the_bytes_and_the_map(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    first = open_source(f"csv:{path}").fingerprint()
    assert open_source(f"csv:{path}").fingerprint() == first
    assert open_source(f"csv:{path}", {"category": "label"}).fingerprint() != first
    write(tmp_path, GOOD + "A.,1\n")
    assert open_source(f"csv:{path}").fingerprint() != first
