"""Several runs at once: every adapter of each, and their results side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from interp.adapters.audit import audit_path
from interp.adapters.locate import find_runs
from interp.adapters.pairs import compared
from interp.adapters.results import AdapterAudit, RunComparison
from interp.direction import Direction
from interp.errors import AdapterError

__all__ = ["RunAudit", "audit_runs"]


@dataclass(frozen=True, slots=True)
class RunAudit:
    """The audits of one run.

    Attributes:
        path: the run's folder, or the adapter's.
        audits: in the order of steps, the final adapter last; the last one has the comparisons.
    """

    path: Path
    audits: tuple[AdapterAudit, ...]

    @property
    def final(self) -> tuple[AdapterAudit, ...]:
        """The adapters that the run ended with: one, or several named ones of one step."""
        return tuple(found for found in self.audits if found.step == self.audits[-1].step)


def audit_runs(
    paths: Sequence[Path | str],
    *,
    base: Path | str | None = None,
    initial: Path | str | None = None,
    direction: Direction | None = None,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda _: None,
    started: Callable[[Path], None] = lambda _: None,
) -> tuple[RunAudit, ...]:
    """Audit all runs at some paths, and compare the last adapters of different runs.

    Args:
        paths: as for `audit_path`; a folder of runs stands for all of them.
        base: as for `audit_path`, as are all others.
        initial: see there.
        direction: see there.
        device: see there.
        progress: see there.
        started: called with each run before it is audited.

    Returns:
        one entry a run; comparisons that may not be made are listed with the reason.

    Raises:
        AdapterError: as for `audit_path`.
    """
    found = []
    for run in [run for path in paths for run in find_runs(Path(path))]:
        started(run)
        audits = audit_path(
            run, base=base, initial=initial, direction=direction, device=device, progress=progress
        )
        found.append(RunAudit(run, audits))
    return tuple(_beside(run, [other for other in found if other is not run]) for run in found)


def _beside(run: RunAudit, others: Sequence[RunAudit]) -> RunAudit:
    last = replace(
        run.audits[-1], compared=tuple(_compared(run.path, other.path) for other in others)
    )
    return replace(run, audits=(*run.audits[:-1], last))


def _compared(path: Path, other: Path) -> RunComparison:
    try:
        return compared(path, other)
    except AdapterError as error:
        return RunComparison(other=other, refused=str(error))
