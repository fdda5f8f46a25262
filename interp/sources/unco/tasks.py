"""A task: one decision problem under one setting, and its JSON line.

The form is documented in docs/unco.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from interp.errors import SourceError
from interp.files import numbered_lines, parse_json
from interp.sources.unco.defects import SETTINGS, Defect, Setting, defect_violation
from interp.sources.unco.instantiate import Instance, logical_violation
from interp.sources.unco.spec import (
    Answer,
    Fact,
    Value,
    specification_from_json,
    specification_to_json,
)
from interp.sources.unco.validate import violations

__all__ = ["Task", "read_tasks", "task_from_json", "task_to_json"]


@dataclass(frozen=True, slots=True)
class Task:
    """One decision problem under one setting.

    Attributes:
        group_id: the same for the five settings of one problem.
        setting: how the colleagues behave.
        instance: the problem with all values and its gold answer.
        defects: of the setting.
        prompt: what the main agent reads.
    """

    group_id: str
    setting: Setting
    instance: Instance
    defects: tuple[Defect, ...]
    prompt: str

    @property
    def task_id(self) -> str:
        """Group and setting."""
        return f"{self.group_id}/{self.setting}"

    def defect_of(self, role: str) -> Defect | None:
        """The role's defect under this setting, if it has one."""
        return next((defect for defect in self.defects if defect.role == role), None)


_SPEC_FIELDS = ("title", "noun", "adopt", "purpose")


def task_to_json(task: Task) -> dict[str, Any]:
    """The task as a JSON object."""
    instance = task.instance
    spec = specification_to_json(instance.spec)
    return {
        "group_id": task.group_id,
        "setting": task.setting,
        "domain": spec["domain"],
        "operation": instance.spec.rule.operation,
        **{name: spec[name] for name in _SPEC_FIELDS},
        "candidates": list(instance.spec.candidates),
        "roles": [
            {
                "role": role,
                "records": {
                    name: [
                        _record(fact, context, values[name][fact.key])
                        for fact in instance.spec.facts_of(role)
                        for context, values in (
                            (fact.context, instance.values),
                            (fact.other_context, instance.others),
                        )
                    ]
                    for name in instance.spec.candidates
                },
            }
            for role in instance.spec.roles
        ],
        "facts": spec["facts"],
        "conditions": spec["conditions"],
        "rule": spec["rule"],
        "gold": instance.gold.to_json(),
        "necessary_roles": list(instance.necessary_roles),
        "defects": [defect.to_json() for defect in task.defects],
        "prompt": task.prompt,
    }


def _record(fact: Fact, context: str, value: Value) -> dict[str, Any]:
    return {
        "fact": fact.key,
        "label": fact.label,
        "context": context,
        "value": value,
        "unit": fact.unit,
    }


def task_from_json(record: Mapping[str, Any]) -> Task:
    """The task of a JSON object.

    Raises:
        SourceError: a field is missing or of another type; it is named.
    """
    try:
        spec = specification_from_json(
            {
                **{name: record[name] for name in ("domain", "facts", "conditions", "rule")},
                **{name: record[name] for name in _SPEC_FIELDS},
                "candidates": record["candidates"],
                "roles": [entry["role"] for entry in record["roles"]],
            }
        )
        values: dict[str, dict[str, Value]] = {name: {} for name in spec.candidates}
        others: dict[str, dict[str, Value]] = {name: {} for name in spec.candidates}
        for entry in record["roles"]:
            for name, rows in entry["records"].items():
                for row in rows:
                    asked = row["context"] == spec.fact(row["fact"]).context
                    (values if asked else others)[name][row["fact"]] = row["value"]
        gold = record["gold"]
        number = gold["number"]
        answer = Answer(
            gold["decision"],
            gold["candidate"],
            None if number is None else Fraction(str(number)),
        )
        defects = tuple(Defect(**defect) for defect in record["defects"])
        if record["setting"] not in SETTINGS:
            raise SourceError(
                f"The setting is {record['setting']!r}; expected one of {', '.join(SETTINGS)}."
            )
        instance = Instance(spec, values, others, answer, tuple(record["necessary_roles"]))
        _require_complete(instance)
        _require_sound(instance, defects)
        return Task(record["group_id"], record["setting"], instance, defects, record["prompt"])
    except KeyError as error:
        raise SourceError(f"A task lacks the field {error.args[0]!r}.") from error
    except (TypeError, ValueError, AttributeError, StopIteration) as error:
        raise SourceError(f"A task has a field of the wrong form: {error!r}.") from error


def _require_complete(instance: Instance) -> None:
    for name in instance.spec.candidates:
        for fact in instance.spec.facts:
            for context, values in (
                (fact.context, instance.values),
                (fact.other_context, instance.others),
            ):
                if fact.key not in values[name]:
                    raise SourceError(
                        f"No record gives {fact.label!r} of {name!r} for {context!r}; expected one "
                        f"with the {fact.role}."
                    )


def _require_sound(instance: Instance, defects: tuple[Defect, ...]) -> None:
    """Raise unless the task keeps every rule that a built one keeps."""
    for violation in violations(instance.spec):
        raise SourceError(f"A task breaks a rule. {violation}.")
    for values in (instance.values, instance.others):
        for facts in values.values():
            for key, value in facts.items():
                text = instance.spec.fact(key).kind in ("status", "date")
                if isinstance(value, bool) or not isinstance(value, str if text else int):
                    raise SourceError(f"A record of {key} holds {value!r}, which does not fit it.")
    if (wrong := logical_violation(instance)) is not None:
        raise SourceError(f"A task's gold answer or roles are wrong: {wrong}.")
    for defect in defects:
        if defect.kind not in ("misaligned", "incomplete", "missed"):
            raise SourceError(f"A defect is of the kind {defect.kind!r}, which there is not.")
        if defect.role not in instance.spec.roles:
            raise SourceError(f"A defect is of {defect.role!r}, which is no role.")
        complete = {
            "misaligned": defect.reported is not None,
            "incomplete": defect.reported_low is not None and defect.reported_high is not None,
            "missed": True,
        }[defect.kind]
        if not complete or (defect.kind != "missed" and None in (defect.fact, defect.candidate)):
            raise SourceError(f"A {defect.kind} defect does not say what was reported on what.")
    if (wrong := defect_violation(instance, defects)) is not None:
        raise SourceError(f"A task's defects are not sound: {wrong}.")


def read_tasks(path: Path) -> tuple[Task, ...]:
    """The tasks of a JSONL file.

    Raises:
        SourceError: the file is missing, or a line is no task; the line is named.
    """
    tasks: dict[str, Task] = {}
    what = "a file of unreliable-colleague tasks (interp unco build)"
    for number, line in numbered_lines(path, what, SourceError):
        try:
            task = task_from_json(parse_json(line))
        except (SourceError, ValueError) as error:
            raise SourceError(f"{path}, line {number}: {error}") from error
        if task.task_id in tasks:
            raise SourceError(f"{path}, line {number}: {task.task_id} stands there twice.")
        tasks[task.task_id] = task
    if not tasks:
        raise SourceError(f"{path} holds no task; expected one JSON object a line.")
    return tuple(tasks.values())
