"""Generated tasks of the unreliable-colleague environment that several test modules play."""

from __future__ import annotations

from interp.sources.unco.build import build_groups
from interp.sources.unco.tasks import Task

GROUPS = list(build_groups(112, 9))
TASKS = [task for group in GROUPS for task in group]


def tasks_of(setting: str) -> list[Task]:
    return [task for task in TASKS if task.setting == setting]
