"""The conversion log, its accounting and its agreement, against the paper's own numbers."""

import csv
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ok, refused, runner
from hypothesis import given, settings
from hypothesis import strategies as st
from mast_files import mast_records, write_mast

from experiments.cli import app
from interp.conversion import CODES, ConversionEntry, ConversionLog, read_log
from interp.conversion.accounting import read_table
from interp.conversion.agreement import cohen_kappa
from interp.conversion.decision import decision_faults, split_criteria, with_criteria
from interp.conversion.pilot import allocate
from interp.conversion.turns import excerpt, quote_occurs, relevant_turns, split_turns
from interp.errors import ResultError
from interp.mast import iterate_records

ROOT = Path(__file__).resolve().parents[1]

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


def line(key: str, number: int, code: str, **changes: Any) -> dict[str, Any]:
    return {
        "trace_key": key,
        "trace_id": number,
        "framework": "MetaGPT",
        "model": "GPT-4o",
        "code": code,
        "rationale": "why",
        "supporting_quote": "",
        "coder": "me",
    } | changes


def write_log(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    return path


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


# ---------------------------------------------------------------- coding


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mast(tmp_path_factory.mktemp("mast") / "traces.json", mast_records(700_000))


def session(traces: Path, log: Path, only: Path, text: str) -> Any:
    arguments = ["tomas", "code", traces, "--log", log, "--coder", "ann", "--only", only]
    return runner.invoke(app, [str(each) for each in arguments], input=text, catch_exceptions=False)


@pytest.fixture
def three(tmp_path: Path) -> Path:
    path = tmp_path / "only.csv"
    path.write_text(
        "trace_key,trace_id\n" + "".join(f"AG2_GSM_Plus_Claude,{n}\n" for n in (1, 2, 3))
    )
    return path


CLEAN = "1\nThe tester ignores it.\nTask 1 of\nAG2_GSM_Plus_Claude\n"


def test_a_session_saves_checks_and_goes_on(traces: Path, three: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    # A quote that is not there is not saved; neither is one that is only in another trace.
    bad = "1\nwhy\nno such words\n\nwhy\nTask 2 of\n\n"
    result = session(traces, log, three, bad + "why\nTask 1  of AG2_GSM\nq\n")
    assert "'no such words' does not occur in the trace" in result.output
    assert "'Task 2 of' does not occur" in result.output
    assert "1 traces coded" in result.output
    # The end of input is the end of the session; the first trace is not asked for again.
    result = session(traces, log, three, "s\n4\na, b\nNo peer.\n\n")
    assert "AG2_GSM_Plus_Claude/1," not in result.output
    assert result.exit_code == 0
    entries = read_log(log)
    assert [(e.name, e.code, e.coder) for e in entries] == [
        ("AG2_GSM_Plus_Claude/1", "clean", "ann"),
        ("AG2_GSM_Plus_Claude/3", "structural_mismatch", "ann"),
    ]
    assert entries[0].supporting_quote == "Task 1  of AG2_GSM"
    assert entries[1].rationale == "[fails: a, b] No peer."
    assert list(json.loads(log.read_text().splitlines()[0])) == [
        *("trace_key", "trace_id", "framework", "model"),
        *("code", "rationale", "supporting_quote", "coder"),
    ]
    # What was skipped is offered again.
    assert "AG2_GSM_Plus_Claude/2," in session(traces, log, three, "q\n").output


def test_a_session_shows_more_on_request(traces: Path, three: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    text = "?\n/Task 1\n/nowhere-to-be-found\nm\nt\n3\n\nwhy\n\nb\nq\n"
    output = session(traces, log, three, text).output
    assert "(a) a peer has an identifiable role" in output
    assert "'nowhere-to-be-found' is in no turn" in output
    assert "not_convertible means that (b), (c) or (d) fails" in output
    assert not log.exists()


def test_the_rubric_holds_codes_and_criteria_together() -> None:
    def faults(code: str, fails: str, quote: str = "") -> list[str]:
        return decision_faults(code, fails, "why", quote, "a trace")

    assert faults("clean", "", "a trace") == []
    assert faults("ambiguous", "") == faults("ambiguous", "c") == []
    assert faults("not_convertible", "bd") == []
    assert faults("structural_mismatch", "a") == []
    for code, fails, words in (
        ("clean", "b", "no criterion fails"),
        ("structural_mismatch", "b", "(a) fails; name it"),
        ("ambiguous", "a", "the code is structural_mismatch"),
        ("not_convertible", "", "name it"),
        ("not_convertible", "e", "e is no criterion"),
        ("clear", "", "Did you mean clean?"),
    ):
        assert any(words in fault for fault in faults(code, fails, "a trace"))
    assert faults("clean", "") == ["a clean trace needs a supporting quote"]
    assert decision_faults("ambiguous", "", " ", "", "") == ["the rationale is empty"]
    assert split_criteria(with_criteria("why", "ca")) == ("ac", "why")
    assert split_criteria("why") == ("", "why")
    assert quote_occurs("b  c", "a b\nc d")
    assert not quote_occurs("b c", "a bc d")
    assert not quote_occurs(" ", "a")


def test_a_sheet_goes_out_and_comes_back(traces: Path, three: Path, tmp_path: Path) -> None:
    log, sheet = tmp_path / "log.jsonl", tmp_path / "sheet.csv"
    base = ["tomas", "code", traces, "--log", log, "--coder", "ann"]
    ok(*base, "--only", three, "--export", sheet)
    with sheet.open(encoding="utf-8-sig", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [row["trace_id"] for row in rows] == ["1", "2", "3"]
    assert "Task 1 of AG2" in rows[0]["excerpt"]
    decided = [("Clean", "", "Yes,\nit is.", "Task 1 of"), ("ambiguous", "", "two", ""), ("",) * 4]

    def fill(decisions: list[Any]) -> None:
        for row, values in zip(rows, decisions, strict=True):
            row |= dict(
                zip(("code", "fails", "rationale", "supporting_quote"), values, strict=True)
            )
        with sheet.open("w", encoding="utf-8-sig", newline="") as handle:
            writer = csv.DictWriter(handle, rows[0])
            writer.writeheader()
            writer.writerows(rows)

    fill([decided[0], ("not convertible", "b, c", "", "not there"), ("clean", "", "w", "")])
    message = refused(*base, "--import", sheet)
    for words in (
        "3 faults, nothing was taken",
        "row 3: the rationale is empty",
        "row 3: the quote 'not there' does not occur",
        "row 4: a clean trace needs",
    ):
        assert words in message
    assert not log.exists()
    fill(decided)
    assert "2 entries added" in ok(*base, "--import", sheet).stderr
    first = read_log(log)
    assert [(e.code, e.rationale, e.coder) for e in first] == [
        ("clean", "Yes,\nit is.", "ann"),
        ("ambiguous", "two", "ann"),
    ]
    # The round trip: what the log has comes out, and comes back as no change.
    ok(*base, "--only", three, "--export", sheet)
    assert "0 entries added, 0 replaced" in ok(*base, "--import", sheet).stderr
    assert read_log(log) == first
    with sheet.open(encoding="utf-8-sig", newline="") as handle:
        rows = list(csv.DictReader(handle))
    fill([("not_convertible", "b", "no", ""), decided[1], ("structural_mismatch", "a", "w", "")])
    assert "With --replace" in refused(*base, "--import", sheet)
    assert read_log(log) == first
    assert (
        "1 entries added, 1 replaced; the log has 3"
        in ok(*base, "--import", sheet, "--replace").stderr
    )
    assert Counter(e.code for e in read_log(log)) == {
        "not_convertible": 1,
        "ambiguous": 1,
        "structural_mismatch": 1,
    }
    rows[0]["trace_id"] = "999"
    fill(decided)
    assert "row 2: the trace AG2_GSM_Plus_Claude/999 is not in the file" in refused(
        *base, "--import", sheet
    )


def test_quotes_runs_and_models_are_checked_against_the_traces(
    traces: Path, tmp_path: Path
) -> None:
    run = {"framework": "AG2", "model": "Claude", "supporting_quote": "Task 1 of"}
    log = write_log(tmp_path / "log.jsonl", [line("AG2_GSM_Plus_Claude", 1, "clean", **run)])
    ok("tomas", "accounting", log, "--traces", traces)
    write_log(
        log,
        [
            line("AG2_GSM_Plus_Claude", 2, "clean", **run),
            line("AG2_GSM_Plus_Claude", 3, "clean", **run | {"supporting_quote": " "}),
            line("AG2_GSM_Plus_GPT4o", 1, "ambiguous", **run),
            line("AG2_GSM", 1, "ambiguous", **run),
        ],
    )
    ok("tomas", "accounting", log)
    message = refused("tomas", "accounting", log, "--traces", traces)
    for words in (
        "line 1: the quote 'Task 1 of' does not occur in AG2_GSM_Plus_Claude/2",
        "line 2: AG2_GSM_Plus_Claude/3 is clean and has no quote",
        "line 3: AG2_GSM_Plus_GPT4o/1 is of AG2/GPT-4o, not AG2/Claude",
        "line 4: there is no trace AG2_GSM/1",
    ):
        assert words in message


WRITER = """
import sys
from pathlib import Path
from interp.conversion import ConversionEntry, ConversionLog
with ConversionLog.opened(Path(sys.argv[1])) as log:
    start = len(log.entries)
    for n in range(start, start + 10_000):
        log.append([ConversionEntry("run", n, "f", "m", "ambiguous", "why " * 200)])
        print(n, flush=True)
"""


def test_a_killed_writer_loses_nothing_it_has_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    expected = 0
    for wanted in (3, 17, 40):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert child.stdout is not None
        seen = [int(child.stdout.readline()) for _ in range(wanted)]
        child.send_signal(signal.SIGKILL)
        seen += [int(rest) for rest in child.stdout.read().splitlines()]
        child.wait()
        child.stdout.close()
        entries = read_log(path)  # every line whole, no trace twice
        acknowledged = seen[-1] + 1
        assert acknowledged <= len(entries) <= acknowledged + 1
        assert [entry.trace_id for entry in entries] == list(range(len(entries)))
        assert seen[0] == expected  # it went on where the last one ended
        expected = len(entries)
    with ConversionLog.opened(path):
        assert {left.name for left in tmp_path.iterdir()} == {"log.jsonl", ".log.jsonl.lock"}


def test_two_writers_are_kept_apart_and_lines_of_others_are_kept(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.jsonl", [line("r", 0, "clean", note="mine")])
    path.write_text(path.read_text().rstrip("\n"))  # as an editor may leave it
    with ConversionLog.opened(path) as log:
        with (
            pytest.raises(ResultError, match="Another session writes"),
            ConversionLog.opened(path),
        ):
            pass
        log.append([ConversionEntry("r", 1, "f", "m", "clean")])
        with pytest.raises(ResultError, match="r/1"):
            log.append([ConversionEntry("r", 1, "f", "m", "ambiguous")])
    assert json.loads(path.read_text().splitlines()[0])["note"] == "mine"
    assert [entry.trace_id for entry in read_log(path)] == [0, 1]


def test_a_clean_trace_becomes_a_draft_that_passes_the_checks_once_written(
    traces: Path, tmp_path: Path
) -> None:
    run = {"framework": "AG2", "model": "Claude"}
    texts = {r.key: r.trajectory for r in iterate_records(traces)}
    text = texts["AG2_GSM_Plus_Claude", 5]
    turns = split_turns(text)
    quote = " ".join(text[turns[2].start : turns[2].end].split())
    log = write_log(
        tmp_path / "log.jsonl",
        [
            line("AG2_GSM_Plus_Claude", 5, "clean", supporting_quote=quote, **run),
            line("AG2_GSM_Plus_Claude", 6, "ambiguous", **run),
            line("AG2_GSM_Plus_Claude", 1, "clean", supporting_quote="Task 1 of", **run),
        ],
    )
    drafts, longer = tmp_path / "drafts.jsonl", tmp_path / "longer.jsonl"
    base = ["tomas", "draft", log, traces, "--out"]
    assert "2 drafts" in ok(*base, drafts, "--max-chars", 200).stderr
    rows = [json.loads(each) for each in drafts.read_text().splitlines()]
    assert [row["source"] for row in rows] == ["AG2_GSM_Plus_Claude/5", "AG2_GSM_Plus_Claude/1"]
    ok(*base, longer, "--max-chars", 10**6)
    whole = json.loads(longer.read_text().splitlines()[0])
    # The context ends with the turn of the quote, and nothing of the next one is in it.
    assert whole["cut"] == turns[2].end
    assert whole["prompt"] == text[: turns[2].end].strip()
    assert all(len(row["prompt"]) <= 200 for row in rows)
    # A draft is no item yet; a written file is not overwritten.
    assert "line 1, question: empty" in refused("tomas", "check", drafts)
    assert "may hold questions" in refused(*base, drafts)
    for row in rows:
        row |= {"question": "What does the peer know?", "gold": "The module is done."}
    write_log(drafts, rows)
    ok("tomas", "check", drafts, "--traces", traces)
    write_log(log, [line("AG2_GSM_Plus_Claude", 6, "ambiguous", **run)])
    assert "no clean entry" in refused(*base, tmp_path / "x")
    write_log(log, [line("AG2_GSM_Plus_Claude", 6, "clean", supporting_quote="not it", **run)])
    assert "line 1: the quote 'not it' does not occur" in refused(*base, tmp_path / "x")
    write_log(log, [line("AG2", 6, "clean", supporting_quote="x", **run)])
    assert "not in the file (first: AG2/6)" in refused(*base, tmp_path / "x")


# ---------------------------------------------------------------- pilot


def test_the_pilot_sample_is_stratified_and_seeded(traces: Path, tmp_path: Path) -> None:
    def draw(name: str, *arguments: object) -> list[dict[str, str]]:
        out = tmp_path / f"{name}.csv"
        ok("tomas", "pilot", traces, "--out", out, *arguments)
        with out.open(newline="") as handle:
            return list(csv.DictReader(handle))

    first = draw("a")
    assert draw("b") == first
    assert [r["trace_id"] for r in draw("c", "--seed", 43)] != [r["trace_id"] for r in first]
    assert len(first) == 18
    assert Counter(row["unit"] for row in first) == allocate(
        {
            "AG2/GSM": 127,
            "AG2/Olympiad": 131,
            "ChatDev": 53,
            "MetaGPT": 100,
            "AppWorld": 6,
            "HyperAgent": 6,
        },
        18,
    )
    takes = {"AG2/GSM": 4, "AG2/Olympiad": 4, "ChatDev": 4, "MetaGPT": 4, "AppWorld": 2}
    pairs = [part for unit, n in takes.items() for part in ("--take", f"{unit}={n}")]
    taken = draw("d", *pairs)
    assert Counter(row["unit"] for row in taken) == takes
    # Another allocation draws from the same order within a unit: the smaller one is contained.
    message = refused("tomas", "pilot", traces, "--out", tmp_path / "e", "--take", "AppWorld=7")
    assert "7 traces of the unit 'AppWorld' were asked for; it has 6" in message
    assert "UNIT=N" in refused("tomas", "pilot", traces, "--out", tmp_path / "e", "--take", "x")
    # The sample is what a session takes.
    result = session(traces, tmp_path / "log.jsonl", tmp_path / "a.csv", "q\n")
    assert f"{first[0]['trace_key']}/" in result.output


@settings(max_examples=50)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.data())
def test_shares_are_in_proportion(sizes: list[int], data: Any) -> None:
    named = {f"u{i}": size for i, size in enumerate(sizes)}
    n = data.draw(st.integers(len(sizes), sum(sizes)))
    counts = allocate(named, n)
    assert sum(counts.values()) == n
    assert all(1 <= counts[name] <= named[name] for name in named)
    for name, other in zip(named, list(named)[1:], strict=False):
        if named[name] <= named[other]:
            assert counts[name] <= counts[other] + 1
    with pytest.raises(ResultError, match="not possible"):
        allocate(named, sum(sizes) + 1)


# ---------------------------------------------------------------- turns


# One beginning a framework, as in the human-labelled traces.
CHATDEV = (
    "[2025-17-01 11:36:43 INFO] System: **[chatting]**\n"
    "[2025-17-01 11:36:44 INFO] Programmer: **Programmer<->Chief Technology Officer on : Coding**\n"
    "Language: Python\n[2025-17-01 11:36:46 INFO] HTTP Request: POST\n"
    "[2025-17-01 11:36:47 INFO] Chief Technology Officer: **x**"
)
HYPERAGENT = (
    '"HyperAgent_repo-1 - INFO - Planner\'s Response: Thought: look",\n "Subgoal: find it",\n'
    '"HyperAgent_repo-1 - INFO - Navigator->Planner: found"'
)
METAGPT = (
    "{\n"
    r' "content": "2025-01-17 11:40:27.872 | INFO | roles:_act:391 - Alice(SimpleCoder): to do'
    r"\ncode\n2025-01-17 11:40:30.812 | INFO | __main__:_act:85 - Bob(SimpleTester): to do"
)
AG2 = (
    '[\n{"role": "x",\n"content": [\n"go"\n],\n"name": "proxy"},\n{\n"content": [\n"no"\n],\n'
    '"name": "assistant"}]'
)


@pytest.mark.parametrize(
    ("text", "speakers"),
    [
        ("task\nPlanner: go\nCoder: done\n", ["", "Planner", "Coder"]),
        ("Task: x\nPlanner: go\nTypeError: no\nNote: y", ["", "Planner"]),
        (
            "Response from Spotify Agent\n  x\nMessage to Supervisor Agent\n  y",
            ["Spotify Agent", "Supervisor Agent"],
        ),
        (
            "---------- WebSurfer ----------\na\n---------- Coder ----------\nb",
            ["WebSurfer", "Coder"],
        ),
        ("2025-03-31 20:37:06.020 | INFO | a\n2025-03-31 20:37:07 | INFO | b", ["", ""]),
        (CHATDEV, ["", "Programmer", "Chief Technology Officer"]),
        (HYPERAGENT, ["Planner", "Navigator"]),
        (METAGPT, ["", "SimpleCoder", "SimpleTester"]),
        (AG2, ["", "proxy", "assistant"]),
        ("x" * 4000, ["", "", ""]),
        ("", [""]),
    ],
)
def test_turns_cover_the_text_and_name_who_speaks(text: str, speakers: list[str]) -> None:
    turns = split_turns(text)
    assert "".join(text[turn.start : turn.end] for turn in turns) == text
    assert [turn.speaker for turn in turns] == speakers


def test_a_trace_cannot_steer_the_terminal() -> None:
    text = "Coder: \x1b[2Jgone\x00\tend\n"
    assert excerpt(text, split_turns(text)) == "[turn 1 Coder] Coder: �[2Jgone�\tend"


def test_turns_that_name_a_peer_come_first() -> None:
    lines = ["Task: sort a list."]
    lines += [f"Coder: line {n} is plain." for n in range(50)]
    lines[30] = "Coder: Tester has not seen this."
    text = "\n".join([*lines, "Tester: all good.", "Coder: end."])
    turns = split_turns(text)
    shown = relevant_turns(text, turns, limit=4)
    assert [turn.number for turn in shown] == [1, 31, 52, 53]


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
