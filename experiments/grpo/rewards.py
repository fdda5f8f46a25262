"""The binary ROUGE-L reward, and the log of every completion that it judged."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from interp.errors import ResultError
from interp.files import atomic_path
from interp.open_grading import grade_answer

__all__ = ["RewardLog", "read_rewards", "reward_summary"]

_WARN_AFTER: Final = 10


class RewardLog:
    """A reward function for trl that writes a JSON line for every completion.

    Fields of a line: `step` (1-based optimiser step that uses it), `group` (the how-manieth item
    of the run, 1-based), `item_id`, `reward`, `f1`, `status` and `answer` (see
    `interp.open_grading`), `completion`.

    Args:
        path: JSONL file; appended to.
        threshold: the reward is 1 if ROUGE-L F1 is strictly above it.
        group_size: completions of one item, which trl hands over in a row.
        prefix: start of the reply that was part of the prompt.
        warn: called once if a row of groups gave no learning signal.
    """

    __name__ = "rouge_l_reward"  # trl calls the log's columns so

    def __init__(
        self,
        path: Path,
        *,
        threshold: float,
        group_size: int,
        prefix: str = "",
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.path = path
        self.threshold = threshold
        self.group_size = group_size
        self.prefix = prefix
        self.warn = warn
        self._n_groups = 0
        self._n_idle = 0
        self._warned = False

    def keep_until(self, step: int) -> None:
        """Drop the lines after a step: those of a run that is resumed from there."""
        kept = [row for row in _rows(self.path) if row["step"] <= step]
        with atomic_path(self.path) as aside:
            aside.write_text("".join(_line(row) for row in kept), encoding="utf-8")
        self._n_groups = max((row["group"] for row in kept), default=0)

    def __call__(
        self,
        prompts: Sequence[str],  # noqa: ARG002
        completions: Sequence[str],
        *,
        gold: Sequence[str],
        item_id: Sequence[str],
        trainer_state: Any,
        **_more: Any,
    ) -> list[float]:
        """Rewards of completions; called by trl, which passes more than is used here."""
        step = int(trainer_state.global_step) + 1
        rows: list[dict[str, Any]] = []
        for place, completion in enumerate(completions):
            graded = grade_answer(self.prefix + completion, gold[place], threshold=self.threshold)
            rows.append(
                {
                    "step": step,
                    "group": self._n_groups + 1 + place // self.group_size,
                    "item_id": item_id[place],
                    "reward": graded.reward,
                    "f1": graded.f1,
                    "status": graded.span.status,
                    "answer": graded.span.text,
                    "completion": completion,
                }
            )
        self._n_groups += len(completions) // self.group_size
        with self.path.open("a", encoding="utf-8") as handle:
            handle.writelines(_line(row) for row in rows)
        rewards = [row["reward"] for row in rows]
        self._watch(rewards)
        return rewards

    def _watch(self, rewards: Sequence[float]) -> None:
        for start in range(0, len(rewards), self.group_size):
            equal = len(set(rewards[start : start + self.group_size])) == 1
            self._n_idle = self._n_idle + 1 if equal else 0
        if self._n_idle >= _WARN_AFTER and not self._warned:
            self._warned = True
            self.warn(
                f"Warning: in the last {self._n_idle} groups all rewards were equal, so there is "
                f"no gradient. Change the threshold ({self.threshold}), the items, the "
                f"temperature or the group size."
            )


def read_rewards(path: Path) -> tuple[dict[str, Any], ...]:
    """Lines of a reward log.

    Raises:
        ResultError: there is none, or a line is not of a reward log.
    """
    if not path.is_file():
        raise ResultError(f"There is no reward log {path}. Check the run's folder.")
    return tuple(_rows(path))


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    rows = []
    # Not splitlines: a completion may hold characters that it takes for line ends.
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    if lines == [""]:
        return []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            rows.append(row | {"step": int(row["step"]), "group": int(row["group"])})
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break  # the run was killed while it wrote
            raise ResultError(f"{path}, line {number} is no line of a reward log.") from error
    return rows


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def reward_summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean reward by step, and the share of groups whose rewards are all equal.

    Returns:
        `n_groups`, `n_completions`, `mean`, `zero_variance_share`, `by_step` (step to mean) and
        `statuses` (how the answers were tagged); means are None without completions.
    """
    groups: dict[int, list[float]] = {}
    steps: dict[int, list[float]] = {}
    statuses: dict[str, int] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row["reward"])
        steps.setdefault(row["step"], []).append(row["reward"])
        statuses[row["status"]] = statuses.get(row["status"], 0) + 1
    idle = sum(len(set(rewards)) == 1 for rewards in groups.values())
    return {
        "n_groups": len(groups),
        "n_completions": len(rows),
        "mean": sum(row["reward"] for row in rows) / len(rows) if rows else None,
        "zero_variance_share": idle / len(groups) if groups else None,
        "by_step": {str(step): sum(found) / len(found) for step, found in sorted(steps.items())},
        "statuses": statuses,
    }
