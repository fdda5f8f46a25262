"""One HTML file that tells what a run found; it opens offline and is drawn from the run's files.

Nothing is taken from outside the file: figures are embedded, and a content policy forbids scripts
and requests. All text is escaped, because item sources and model names are not ours.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from figures.expression_gap import draw_accuracy_by_layer, draw_four_way, draw_steering
from figures.steering import draw_dose_response, draw_grid, draw_item_shifts, draw_recalls
from figures.steering_tables import read_cells, read_shifts
from figures.style import save, styled
from interp.errors import ResultError
from interp.files import atomic_path, read_json, sha256_file
from interp.records import RunRecord, read_run

__all__ = ["write_report"]

_NO_NUMBERS: Final = frozenset(
    ("verdict", "layers", "transfer", "manifest", "reliability_nested", "accuracy_best_layer_note")
)
"""Entries of a probe's summary that have a place of their own, or none in a table."""

_TEMPLATE: Final = Path(__file__).parent / "templates" / "report.html.jinja"


@dataclass(frozen=True, slots=True)
class _Cell:
    text: str
    number: bool


@dataclass(frozen=True, slots=True)
class _Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[_Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class _Image:
    caption: str
    uri: str


def write_report(run: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a run folder, or of the folder of one steering or probe sweep.

    The same files give the same report, byte for byte. Files that the run's record lists and that
    have changed or gone since are named at the top.

    Args:
        run: folder with `run.json`, or with `steer.json` or `probe.json` alone.
        out: the HTML file; None is `report.html` in the folder.

    Returns:
        the file.

    Raises:
        ResultError: the folder holds no result, or one that is damaged.
    """
    run = Path(run)
    if not run.is_dir():
        raise ResultError(f"{run} is no folder; expected the folder of a run.")
    record = read_run(run) if (run / "run.json").exists() else None
    probe = _summary(run, "probe", "probe.json", "the summary of a probe sweep")
    steering = _summary(run, "steer", "steer.json", "the summary of a steering sweep")
    readouts = _summary(run, "", "readouts.json", "the readouts of a run")
    if record is None and probe is None and steering is None:
        raise ResultError(
            f"{run} holds none of run.json, steer.json and probe.json; expected the folder of a "
            f"finished run, for example of `interp run expression-gap`."
        )
    with styled():
        figures = _figures(run, probe, steering, readouts)
    tables = []
    if probe is not None:
        tables += _probed(probe[1])
    if steering is not None:
        tables.append(_conditions(steering[1]))
    if record is not None:
        tables += [
            _pairs("Metrics", record.metrics),
            _pairs("Configuration", record.config),
            _pairs("Run", _provenance(record)),
            _pairs("Model", record.model),
            _pairs("Items", record.source),
        ]
    else:
        alone = probe or steering
        tables += [] if alone is None else _origin(alone[1])
    text = _rendered(
        title=run.resolve().name if record is None else f"{record.experiment}: {record.run_id}",
        faults=[] if record is None else _faults(run, record),
        verdicts=[
            (name, str(found[1]["verdict"]))
            for name, found in (("Probe", probe), ("Steering", steering), ("Answers", readouts))
            if found is not None and found[1].get("verdict")
        ],
        images=[_embedded(figure, caption) for caption, figure in figures],
        tables=[table for table in tables if table.rows],
    )
    target = run / "report.html" if out is None else Path(out)
    with atomic_path(target) as aside:
        aside.write_text(text, encoding="utf-8")
    return target


def _summary(run: Path, below: str, name: str, what: str) -> tuple[Path, Mapping[str, Any]] | None:
    """Folder and content of a summary in the run's folder or the one that it usually lies in."""
    for folder in dict.fromkeys((run / below, run)):
        if (folder / name).exists():
            return folder, read_json(folder / name, what)
    return None


Found = tuple[Path, Mapping[str, Any]] | None


def _figures(run: Path, probe: Found, steering: Found, readouts: Found) -> list[tuple[str, Figure]]:
    figures: list[tuple[str, Figure]] = []

    def draw(caption: str, function: Callable[..., Figure], *arguments: object) -> None:
        try:
            figures.append((caption, function(*arguments)))
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise ResultError(
                f"{run}: the figure “{caption}” cannot be drawn; a result file lacks something "
                f"({type(error).__name__}: {error}). Run the command that wrote it again."
            ) from error

    if probe is not None:
        said = None if readouts is None else readouts[1]
        draw("Accuracy by layer", draw_accuracy_by_layer, probe[1], said)
    if readouts is not None:
        draw("Represented and expressed", draw_four_way, readouts[1])
    if steering is not None:
        folder, summary = steering
        # The bars of an expression-gap run, which crosses few conditions.
        if {"signed", "negated", "random"} <= set(summary.get("conditions", {})):
            draw("Steering at the quoted cell", draw_steering, summary)
        cells = read_cells(folder / "draws.csv")
        draw("Dose and response", draw_dose_response, cells, summary)
        draw("Recalls before and after", draw_recalls, cells, summary)
        draw("Layer and size", draw_grid, cells, summary)
        if (folder / "items.csv").exists():
            shifts = read_shifts(folder / "items.csv")
            draw("How far each item moves", draw_item_shifts, shifts, summary)
    return figures


def _embedded(figure: Figure, caption: str) -> _Image:
    with tempfile.TemporaryDirectory() as folder:
        png, _ = save(figure, Path(folder) / "figure")
        data = base64.b64encode(png.read_bytes()).decode("ascii")
    return _Image(caption, f"data:image/png;base64,{data}")


def _faults(run: Path, record: RunRecord) -> list[str]:
    """Files of the run that are not what the record says."""
    faults = []
    for artifact in record.artifacts:
        path = run / artifact.path
        if not path.is_file():
            faults.append(f"{artifact.path} is missing; the run had written it.")
        elif sha256_file(path) != artifact.sha256:
            faults.append(f"{artifact.path} has been changed since the run.")
    return faults


def _provenance(record: RunRecord) -> dict[str, Any]:
    dirty = {None: "", True: ", with uncommitted changes", False: ""}[record.git_dirty]
    return {
        "command": record.command,
        "started": record.started_utc,
        "finished": record.finished_utc,
        "CPU seconds": record.cpu_seconds,
        "commit": (record.git_commit or "installed package") + dirty,
        "seeds": dict(record.seeds),
        "versions": dict(record.versions),
    }


def _cell(value: object) -> _Cell:
    if isinstance(value, bool) or value is None:
        return _Cell({None: "–", True: "yes", False: "no"}[value], number=False)
    if isinstance(value, float):
        return _Cell(f"{value:.4g}", number=True)
    if isinstance(value, int):
        return _Cell(str(value), number=True)
    if isinstance(value, Mapping):
        return _Cell(", ".join(f"{key} {_cell(each).text}" for key, each in value.items()), False)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _Cell(", ".join(_cell(each).text for each in value), number=False)
    return _Cell(str(value), number=False)


def _pairs(title: str, values: Mapping[str, Any]) -> _Table:
    rows = tuple((_Cell(str(name), False), _cell(value)) for name, value in values.items())
    return _Table(title, ("", "value"), rows)


def _probed(probe: Mapping[str, Any]) -> list[_Table]:
    """The numbers of a probe's summary, its layers, and what was held out."""
    numbers = {name: value for name, value in probe.items() if name not in _NO_NUMBERS}
    if isinstance(numbers.get("untrained"), Mapping):
        # A number a layer is no row of a table.
        kept = {k: v for k, v in numbers["untrained"].items() if k != "accuracy_by_layer"}
        numbers["untrained"] = kept
    held_out = probe.get("transfer") or {}
    return [
        _pairs("Probe", numbers),
        _rows("Probe, layer by layer", probe.get("layers") or []),
        *(_rows(f"Each {kind} held out", rows) for kind, rows in held_out.items()),
    ]


def _origin(summary: Mapping[str, Any]) -> list[_Table]:
    """Where the numbers of a sweep come from, of which there is no record of a run."""
    manifest = dict(summary.get("manifest") or {})
    return [
        _pairs("Model", manifest.pop("model", {})),
        _pairs("Items", manifest.pop("source", {})),
        _pairs("Activations", manifest),
    ]


def _rows(title: str, rows: Sequence[Mapping[str, Any]]) -> _Table:
    """A row a mapping, with the columns of the first."""
    columns = tuple(rows[0]) if rows else ()
    cells = tuple(tuple(_cell(row.get(column)) for column in columns) for row in rows)
    return _Table(title, columns, cells)


def _conditions(steering: Mapping[str, Any]) -> _Table:
    """One row a condition of a steering summary, with the columns that all have."""
    found = steering.get("conditions")
    if not isinstance(found, Mapping) or not all(isinstance(c, Mapping) for c in found.values()):
        raise ResultError("steer.json holds no table of conditions. Run `interp steer` again.")
    first: Mapping[str, Any] = next(iter(found.values()), {})
    columns = [name for name in first if all(name in each for each in found.values())]
    plain = [
        name
        for name in columns
        if all(isinstance(each[name], int | float | str | None) for each in found.values())
    ]
    rows = tuple(
        (_Cell(name, False), *(_cell(each[column]) for column in plain))
        for name, each in found.items()
    )
    title = (
        f"Steering at layer {steering.get('quoted_layer')}, alpha {steering.get('quoted_alpha')}"
    )
    return _Table(title, ("condition", *plain), rows)


def _rendered(**values: object) -> str:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=False
    )
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(**values) + "\n"
