"""Item sources as tasks of Inspect, so that any provider's model can be asked; extra `agents`.

`interp.agents.tasks` is what the entry point of the group `inspect_ai` names. It stands in this
package because Inspect takes a task's prefix from the package it is defined in: `interp/avalon`.
Inspect itself is imported by the tasks, and by the reader of logs when it reads one.
"""

from interp.agents.logs import answers_from_logs, import_logs, require_inspect

__all__ = ["answers_from_logs", "import_logs", "require_inspect"]
