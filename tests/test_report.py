"""The HTML report: one safe file, the same each time, true to the run's files."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import refused
from probe_sweeps import sweep, twins
from sweep_tables import write_sweep_tables

from figures import write_report
from interp.errors import ResultError
from interp.records import RunRecord, artifacts_of, write_run
from probes import write_sweep


class Page(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


EVIL = "<script>alert(1)</script> & 'quotes' {{ 7 * 7 }}"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with a steering sweep and a record full of markup."""
    folder = tmp_path_factory.mktemp("runs") / "20260101T000000Z-x"
    (folder / "steer").mkdir(parents=True)
    write_sweep_tables(folder / "steer")
    path = folder / "steer" / "steer.json"
    row = {"accuracy": 0.58125, "low": 0.5, "note": EVIL, "draws": [1, 2]}
    summary = json.loads(path.read_text()) | {
        "verdict": f"Signed steering wins; {EVIL}",
        "conditions": {"baseline": row | {"accuracy": 0.5, "more": 1}, "signed": row},
    }
    path.write_text(json.dumps(summary))
    write_run(
        folder,
        RunRecord(
            run_id=folder.name,
            experiment="steer",
            command=f"interp steer {EVIL}",
            config={"alphas": [0.5, 2.0], "group": None, "exam": True, "nested": {"C": 0.01}},
            seeds={"items": 3},
            started_utc="2026-01-01T00:00:00+00:00",
            finished_utc="2026-01-01T00:01:00+00:00",
            cpu_seconds=12.5,
            git_commit="abc",
            git_dirty=True,
            versions={"numpy": "2"},
            model={"model_id": EVIL},
            source={"name": "facts"},
            metrics={"accuracy": 0.58125, "n": 40},
            artifacts=artifacts_of(folder),
        ),
    )
    write_report(folder)
    return folder


def test_the_file_asks_for_nothing_and_runs_nothing(run: Path) -> None:
    source = (run / "report.html").read_text()
    page = Page(source)
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "iframe", "object", "embed", "form"}
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")]
        if tag == "img":
            assert str(attributes["src"]).startswith("data:image/png;base64,")
    assert "http:" not in source
    assert "https:" not in source
    policy = [a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    # Markup and template code in the data are shown as text.
    assert page.text.count(EVIL) == 5  # verdict, two conditions, command, model


def test_it_tells_what_the_files_tell(run: Path) -> None:
    page = Page((run / "report.html").read_text())
    captions = [a["alt"] for t, a in page.tags if t == "img"]
    assert captions == [
        "Dose and response",
        "Recalls before and after",
        "Layer and size",
        "How far each item moves",
    ]
    text = re.sub(r"\s+", " ", page.text)
    for part in (
        "steer: 20260101T000000Z-x",
        "Signed steering wins",
        "Steering at layer 10, alpha 2.0",
        "0.5813",
        "abc, with uncommitted changes",
        "alphas0.5, 2",
        "group–",
        "examyes",
        "nestedC 0.01",
        "seedsitems 3",
    ):
        assert part in text, part
    heads = [t for t, _ in page.tags].count("th")
    assert heads == len(("condition", "accuracy", "low", "note")) + 2 * 5
    assert "changed since" not in text


def test_the_same_files_give_the_same_report(run: Path, tmp_path: Path) -> None:
    write_report(run, tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == (run / "report.html").read_bytes()


def test_files_that_changed_since_the_run_are_named(run: Path, tmp_path: Path) -> None:
    cells, items = run / "steer" / "draws.csv", run / "steer" / "items.csv"
    kept = cells.read_text(), items.read_text()
    try:
        cells.write_text(kept[0].replace("0.58", "0.99"))
        items.unlink()
        page = Page(write_report(run, tmp_path / "r.html").read_text())
    finally:
        cells.write_text(kept[0])
        items.write_text(kept[1])
    assert "steer/draws.csv has been changed since the run." in page.text
    assert "steer/items.csv is missing; the run had written it." in page.text


def test_a_sweep_alone_has_a_report_and_other_folders_have_none(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"none of run\.json"):
        write_report(tmp_path)
    assert "is no folder" in refused("report", tmp_path / "nothing")
    write_sweep_tables(tmp_path)
    assert "no table of conditions" in refused("report", tmp_path)
    (tmp_path / "run.json").write_text("{}")
    assert "not a run record" in refused("report", tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_probe_folder_alone_has_figures_numbers_and_where_they_come_from(
    tmp_path: Path,
) -> None:
    cache = twins(np.random.default_rng(0))
    cache.category = tuple("ab"[index // 8 % 2] for index in range(cache.n_items))
    cache.manifest["model"] = {"model_id": EVIL, "weights": "abc"}
    found = sweep(cache, n_permutations=20, transfer=["category"])
    summary = write_sweep(tmp_path, found)
    write_report(tmp_path)
    page = Page((tmp_path / "report.html").read_text())
    assert [a["alt"] for t, a in page.tags if t == "img"] == ["Accuracy by layer"]
    text = re.sub(r"\s+", " ", page.text)
    for part in (
        summary["verdict"],
        f"accuracy_nested{summary['accuracy_nested']:.4g}",
        f"p_familywise{summary['p_familywise']:.4g}",
        f"model_id{EVIL}",
        "weightsabc",
        "token_rulelast_prompt",
        "Each category held out",
        *(f"{row['p_adjusted']:.4g}" for row in summary["layers"]),
    ):
        assert part in text, part
    titles = re.findall(r"<h2>(.*?)</h2>", (tmp_path / "report.html").read_text())
    assert titles == [
        *("Verdicts", "Figures", "Probe", "Probe, layer by layer", "Each category held out"),
        *("Model", "Items", "Activations"),
    ]
    # A summary that lacks something is named, not drawn as if it had it.
    path = tmp_path / "probe.json"
    path.write_text(json.dumps({k: v for k, v in summary.items() if k != "layers"}))
    assert "Run the command that wrote it again" in refused("report", tmp_path)


def test_a_steering_folder_alone_says_where_its_numbers_come_from(tmp_path: Path) -> None:
    write_sweep_tables(tmp_path)
    path = tmp_path / "steer.json"
    summary = json.loads(path.read_text()) | {"conditions": {"signed": {"accuracy": 0.5}}}
    summary["manifest"] = {"model": {"model_id": "m7"}, "source": {"name": "s7"}, "store": "f7"}
    path.write_text(json.dumps(summary))
    page = Page(write_report(tmp_path).read_text())
    for part in ("model_idm7", "names7", "storef7"):
        assert part in page.text
