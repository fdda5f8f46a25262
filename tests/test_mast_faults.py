"""Trace files that are damaged, cut off, of another schema, or large."""

import copy
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from commands import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from mast_files import mast_records, write_mast

from interp.errors import SourceError
from interp.mast import iterate_records, read_split, take_inventory


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    return list(mast_records(800_000))


def broken(path: Path) -> str:
    with pytest.raises(SourceError) as caught:
        take_inventory(path, read_split("step1"))
    return str(caught.value)


@pytest.fixture(scope="module")
def few_path(tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]]) -> Path:
    """Three chunks' worth of records, so that faults lie in the first, a middle, the last one."""
    some = copy.deepcopy(records[:40])
    for record in some:
        record["trace"]["trajectory"] += "naïve – ü" * 1700
    path = write_mast(tmp_path_factory.mktemp("few") / "few.json", iter(some))
    assert path.stat().st_size > 3 << 18
    return path


@settings(max_examples=40)
@given(st.integers(0, 10**9))
def test_a_fault_is_given_with_its_byte(
    tmp_path_factory: pytest.TempPathFactory, few_path: Path, at: int
) -> None:
    few = few_path.read_bytes()
    # A backslash-q is wrong inside a string, and the backslash alone outside of one.
    path = tmp_path_factory.mktemp("x") / "broken.json"
    at = 1 + at % (len(few) - 3)
    while few[at] & 0xC0 == 0x80 or few[at - 1 : at] == b"\\":
        at -= 1  # not inside a character or an escape
    path.write_bytes(few[:at] + b"\\q" + few[at:])
    message = broken(path)
    assert any(f"at byte {place} " in message for place in (at, at + 1)), (at, message)


def test_a_missing_comma_is_given_with_its_byte(tmp_path: Path, few_path: Path) -> None:
    few = few_path.read_bytes()
    path = tmp_path / "comma.json"
    at = few.rindex(b',\n{"mas_name"')
    path.write_bytes(few[:at] + b" " + few[at + 1 :])
    message = broken(path)
    assert f"at byte {at + 2} " in message
    assert "after 39 whole records" in message


@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_a_file_that_is_cut_off(tmp_path: Path, few_path: Path, share: float) -> None:
    few = few_path.read_bytes()
    path = tmp_path / "cut.json"
    cut = int(len(few) * share)
    path.write_bytes(few[:cut])
    message = broken(path)
    assert f"ends at byte {cut}" in message
    whole = few[:cut].count(b'{"mas_name"') - 1
    assert f"after {whole} whole records" in message or f"after {whole + 1} whole" in message
    assert "cut off" in refused("mast", "inventory", path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b' {"a": 1}', "starts with b'{' at byte 1"),
        (b"\xef\xbb\xbf[]", "starts with b'\\xef' at byte 0"),
        (b"[]", "holds no traces"),
        (b"[1]", "record 1: got a int"),
        (b'[{"a": "\xff"}]', "at byte 8 "),
        (b'[{"a": NaN}]', "at byte 7 "),
        (b"[] x", "at byte 3 "),
        (b"[{}]", "record 1: there is no 'mas_name'"),
    ],
)
def test_files_that_are_something_else(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert words in broken(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r["mast_annotation"].update({"2.7": 1}), "the unknown code 2.7"),
        (lambda r: r["mast_annotation"].pop("2.4"), "lacks 2.4"),
        (lambda r: r["mast_annotation"].update({"2.1": 2}), "the label of 2.1 is 2;"),
        (lambda r: r["mast_annotation"].update({"2.1": True}), "the label of 2.1 is True;"),
        (lambda r: r["mast_annotation"].update({"2.1": "1"}), "the label of 2.1 is '1';"),
        (lambda r: r.update(mast_annotation=[]), "mast_annotation is a list"),
        (lambda r: r.update(trace="text"), "`trace` must hold"),
        (lambda r: r.update(trace_id="1"), "trace_id is '1'"),
        (lambda r: r.update(llm_name=""), "llm_name is ''"),
        (lambda r: r.pop("llm_name"), "there is no 'llm_name'"),
        (lambda r: r.update(trace_id=0), "number 0 is that of record 1"),
    ],
)
def test_a_record_that_breaks_the_schema_is_named(
    tmp_path: Path, records: list[dict[str, Any]], change: Any, words: str
) -> None:
    some = copy.deepcopy(records[:3])
    change(some[1])
    message = broken(write_mast(tmp_path / "x.json", iter(some)))
    assert "record 2" in message
    assert words in message


def test_partly_null_annotations_leave_fc2_open_only_without_a_mark(
    tmp_path: Path, records: list[dict[str, Any]]
) -> None:
    some = copy.deepcopy(records[:3])
    zeros = dict.fromkeys(some[0]["mast_annotation"], 0)
    some[0]["mast_annotation"] = zeros | {"2.1": None, "2.2": 1}
    some[1]["mast_annotation"] = zeros | {"2.1": None}
    some[2]["mast_annotation"] = zeros | {"1.1": None}
    path = write_mast(tmp_path / "x.json", iter(some))
    assert [record.fc2 for record in iterate_records(path)] == [True, None, False]


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = write_mast(tmp_path / "big.json", mast_records(15_000_000))
    tracemalloc.start()
    take_inventory(path, read_split("step1"))
    streamed = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The longest trajectory here has 2 million characters; the file has 16 MB.
    assert path.stat().st_size > 15_000_000
    assert streamed < 10_000_000
