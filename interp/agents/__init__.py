"""Item sources as tasks of Inspect, so that any provider's model can be asked; extra `agents`.

`interp.agents.tasks` is what the entry point of the group `inspect_ai` names. It stands in this
package because Inspect takes a task's prefix from the package it is defined in: `interp/avalon`.
Nothing here is imported before it is needed.
"""
