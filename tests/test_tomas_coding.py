"""Coding traces: sessions, sheets, and the log that no kill and no second writer spoils."""

import csv
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from commands import ok, refused
from mast_files import mast_records, write_mast
from tomas_logs import line, session, write_log

from interp.conversion import ConversionEntry, ConversionLog, read_log
from interp.conversion.decision import decision_faults, split_criteria, with_criteria
from interp.conversion.turns import quote_occurs
from interp.errors import ResultError

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mast(tmp_path_factory.mktemp("mast") / "traces.json", mast_records(700_000))


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
