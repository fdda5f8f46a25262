"""The conversion log, its accounting and its agreement, against the paper's own numbers."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ok, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from tomas_logs import line, write_log

from interp.conversion import CODES, read_log
from interp.conversion.accounting import read_table
from interp.conversion.agreement import cohen_kappa
from interp.errors import ResultError

# The paper's accounting table: framework, model, run, and traces by code.
PAPER = [
    ("MetaGPT", "GPT-4o", "MetaGPT_ProgramDev2_GPT4o", (28, 2, 23, 0)),
    ("MetaGPT", "Claude", "MetaGPT_ProgramDev2_Claude", (4, 0, 43, 0)),
    ("MetaGPT", "Qwen", "MetaGPT_ProgramDev-v2_Qwen", (4, 2, 25, 0)),
    ("MetaGPT", "CodeLlama", "MetaGPT_ProgramDev-v2_CodeLlama", (0, 2, 48, 36)),
    ("AppWorld", "GPT-4o", "AppWorld_Test-C_GPT-4o", (2, 0, 4, 0)),
    ("HyperAgent", "Claude", "HyperAgent_SWE-Bench-Lite_Claude", (1, 2, 3, 0)),
    ("ChatDev", "GPT-4o", "ChatDev_ProgramDev_GPT4o", (0, 13, 0, 0)),
]


def paper_lines() -> list[dict[str, Any]]:
    found = []
    for framework, model, run, counts in PAPER:
        codes = [code for code, n in zip(CODES, counts, strict=True) for _ in range(n)]
        found += [
            line(run, number, code, framework=framework, model=model)
            for number, code in enumerate(codes)
        ]
    return found


def test_the_papers_accounting_table_comes_out_of_a_log(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", paper_lines())
    found = json.loads(ok("tomas", "accounting", log, "--json").stdout)
    assert found["totals"] == {
        "coded": 242,
        "clean": 39,
        "ambiguous": 21,
        "not_convertible": 146,
        "structural_mismatch": 36,
    }
    rows = {(r["framework"], r["model"]): r for r in found["rows"]}
    assert len(rows) == len(PAPER)
    for framework, model, _, counts in PAPER:
        row = rows[framework, model]
        assert tuple(row[code] for code in CODES) == counts
        assert row["coded"] == sum(counts)
    assert sum(r["coded"] for r in found["rows"] if r["framework"] == "MetaGPT") == 217
    printed = ok("tomas", "accounting", log).stdout
    assert all(number in printed for number in ("242", "39", "21", "146", "36"))


def test_a_log_that_does_not_add_up_is_refused(tmp_path: Path) -> None:
    lines = paper_lines()
    path = tmp_path / "log.jsonl"
    write_log(path, [*lines, lines[5] | {"code": "ambiguous"}])
    assert "line 243: the trace MetaGPT_ProgramDev2_GPT4o/5 has line 6 already" in refused(
        "tomas", "accounting", path
    )
    # The same trace under another model would count in two rows.
    write_log(path, [*lines, lines[5] | {"model": "Claude"}])
    assert "line 243: the trace" in refused("tomas", "accounting", path)
    # Another trace of the run may be a slip, which only the traces can tell.
    write_log(path, [*lines, lines[5] | {"trace_id": 99, "model": "Claude"}])
    found = json.loads(ok("tomas", "accounting", path, "--json").stdout)
    assert found["totals"]["coded"] == 243
    (warning,) = found["warnings"]
    assert "MetaGPT/GPT-4o (line 1) and MetaGPT/Claude (line 243)" in warning
    assert "stands in 2 rows" in ok("tomas", "accounting", path).stdout


def test_a_stated_table_must_be_that_of_the_log(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", paper_lines())
    rows = [
        {"framework": f, "model": m, "coded": sum(c), **dict(zip(CODES, c, strict=True))}
        for f, m, _, c in PAPER
    ]
    total = dict(zip(CODES, (39, 21, 146, 36), strict=True))
    rows.append({"framework": "Total", "model": "", "coded": 242, **total})

    def stated() -> Path:
        with (tmp_path / "table.csv").open("w", newline="") as handle:
            writer = csv.DictWriter(handle, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        return tmp_path / "table.csv"

    ok("tomas", "accounting", log, "--expect", stated())
    (tmp_path / "t.json").write_text(ok("tomas", "accounting", log, "--json").stdout)
    ok("tomas", "accounting", log, "--expect", tmp_path / "t.json")
    rows[0]["clean"] = 27
    message = refused("tomas", "accounting", log, "--expect", stated())
    assert "row 1 (MetaGPT, GPT-4o) does not add up: coded is 53, its codes 52" in message
    rows[0]["coded"] = 52
    assert "the totals do not add up" in refused("tomas", "accounting", log, "--expect", stated())
    rows[-1] |= {"clean": 38, "coded": 241}
    message = refused("tomas", "accounting", log, "--expect", stated())
    assert "MetaGPT/GPT-4o: the log has (28, 2, 23, 0), stated (27, 2, 23, 0)" in message


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("{", "line 2: not JSON"),
        ([], "line 2: got a list"),
        (line("r", 1, "cleen"), "'cleen' is no code. Did you mean clean?"),
        (line("r", 1, "Clean"), "'Clean' is no code"),
        ({"trace_key": "r", "trace_id": 1}, "the key 'framework' is missing"),
        (line("r", True, "clean"), "trace_id is True"),
        (line("", 1, "clean"), "trace_key is empty"),
        (line("r", 1, "clean", model=""), "model is empty"),
        (line("r", 1, "clean", coder=3), "coder is 3"),
    ],
)
def test_faults_of_a_log_are_named_by_line(tmp_path: Path, bad: Any, words: str) -> None:
    log = write_log(tmp_path / "log.jsonl", [line("r", 0, "clean"), bad])
    assert words in refused("tomas", "accounting", log)


def test_what_is_not_counted_may_be_left_out(tmp_path: Path) -> None:
    bare = {k: line("r", 0, "clean")[k] for k in ("trace_key", "framework", "model", "code")}
    log = write_log(
        tmp_path / "log.jsonl",
        [bare | {"trace_id": "7"}, line("r", 8, "clean", supporting_quote=None)],
    )
    assert json.loads(ok("tomas", "accounting", log, "--json").stdout)["totals"]["clean"] == 2
    keys = [{"trace_key": "r", "trace_id": n, "code": "clean", "model": None} for n in (7, 8)]
    other = write_log(tmp_path / "other.jsonl", keys)
    # 7 and "7" are one trace.
    assert json.loads(ok("tomas", "agreement", log, other, "--json").stdout)["n"] == 2


def pilot_logs(tmp_path: Path) -> tuple[Path, Path]:
    """The paper's pilot: final codes 4/4/2/8; one Not Convertible was Ambiguous to the other."""
    final = [code for code, n in zip(CODES, (4, 4, 2, 8), strict=True) for _ in range(n)]
    other = list(final)
    other[final.index("not_convertible")] = "ambiguous"
    # Keys and codes are all that agreement needs.
    return tuple(  # type: ignore[return-value]
        write_log(
            tmp_path / f"{name}.jsonl",
            [{"trace_key": "p", "trace_id": i, "code": code} for i, code in enumerate(codes)],
        )
        for name, codes in (("first", other), ("final", final))
    )


def test_the_papers_pilot_has_its_agreement(tmp_path: Path) -> None:
    first, final = pilot_logs(tmp_path)
    found = json.loads(ok("tomas", "agreement", first, final, "--json").stdout)
    assert round(100 * found["raw_agreement"], 1) == 94.4
    assert round(found["kappa"], 2) == 0.92
    # 17/18 observed, (4·4 + 5·4 + 1·2 + 8·8)/18² by chance.
    assert found["kappa"] == pytest.approx((17 / 18 - 102 / 324) / (1 - 102 / 324))
    low, high = found["kappa_interval"]
    assert 0.6 < low < found["kappa"] < high <= 1
    assert found["disagreements"] == [
        {
            "trace_key": "p",
            "trace_id": 8,
            "a": "ambiguous",
            "b": "not_convertible",
            "rationale_a": "",
            "rationale_b": "",
        }
    ]
    assert found["confusion"]["ambiguous"]["not_convertible"] == 1
    assert {c: sum(found["confusion"][a][c] for a in CODES) for c in CODES} == {
        "clean": 4,
        "ambiguous": 4,
        "not_convertible": 2,
        "structural_mismatch": 8,
    }
    printed = ok("tomas", "agreement", first, final).stdout
    assert "94.4%" in printed
    assert "0.92" in printed
    assert "p/8: ambiguous against not_convertible" in printed


def test_agreement_on_what_both_coded(tmp_path: Path) -> None:
    first, final = pilot_logs(tmp_path)
    lines = final.read_text().splitlines()
    write_log(final, [*lines[::-1][:10], json.dumps(line("q", 0, "clean"))])
    found = json.loads(ok("tomas", "agreement", first, final, "--json").stdout)
    assert (found["n"], found["only_a"], found["only_b"]) == (10, 8, 1)
    write_log(final, [line("q", 0, "clean")])
    assert "no trace in common" in refused("tomas", "agreement", first, final)
    same = write_log(tmp_path / "s.jsonl", [line("q", i, "clean") for i in range(5)])
    found = json.loads(ok("tomas", "agreement", same, same, "--json").stdout)
    assert (found["raw_agreement"], found["kappa"], found["kappa_interval"]) == (1.0, None, None)
    assert "not defined" in ok("tomas", "agreement", same, same).stdout


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=30))
def test_kappa_is_that_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    from sklearn.metrics import cohen_kappa_score

    first, second = zip(*pairs, strict=True)
    confusion = np.zeros((4, 4), dtype=np.int64)
    np.add.at(confusion, (list(first), list(second)), 1)
    kappa = float(cohen_kappa(confusion))
    if len({*first, *second}) == 1:
        assert np.isnan(kappa)
    else:
        assert kappa == pytest.approx(cohen_kappa_score(first, second))


def test_what_utf_8_cannot_hold_is_refused(tmp_path: Path) -> None:
    record = {
        "trace_key": "k",
        "trace_id": 1,
        "framework": "AG2",
        "model": "m",
        "code": "clean",
        "rationale": "\\ud800",
        "supporting_quote": "q",
        "coder": "ann",
    }
    path = tmp_path / "odd.jsonl"
    path.write_text(json.dumps(record).replace("\\\\", "\\") + "\n")
    with pytest.raises(ResultError, match="UTF-8"):
        read_log(path)


def test_a_stated_table_of_another_form_is_refused(tmp_path: Path) -> None:
    for value in ({"rows": 5}, {"rows": [], "totals": "x"}):
        path = tmp_path / "table.json"
        path.write_text(json.dumps(value))
        with pytest.raises(ResultError, match="expected a list and an object"):
            read_table(path)
