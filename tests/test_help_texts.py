"""Help texts are shown as they are written: nothing in them is markup."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from commands import runner

from experiments.cli import app


def commands(command: Any, name: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield name, command
    for sub, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*name, sub))


def brackets(command: Any) -> set[str]:
    """Words with a bracket in what a command's help is made from."""
    texts = [command.help, command.epilog, *(getattr(p, "help", "") for p in command.params)]
    return {word for text in texts for word in re.findall(r"\S*\[\S*", text or "")}


ALL = dict(commands(typer.main.get_command(app)))
WITH = {name: found for name, command in ALL.items() if (found := brackets(command))}


def test_there_is_something_to_show() -> None:
    assert "interp[train]." in WITH["direction",]
    assert len(WITH) > 5


@pytest.mark.parametrize("name", WITH, ids=" ".join)
def test_brackets_are_shown(name: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERMINAL_WIDTH", "300")
    # Twice: escaping is not done again.
    for _ in range(2):
        shown = runner.invoke(app, [*name, "--help"]).output
        assert {word for word in WITH[name] if word not in shown} == set()
        assert "\\[" not in shown


def test_the_help_of_a_group_shows_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("TERMINAL_WIDTH", "400")
    for group, command in ALL.items():
        if not hasattr(command, "commands"):
            continue
        shown = runner.invoke(app, [*group, "--help"]).output
        assert "\\[" not in shown


def test_a_comparison_is_shown_as_it_is_called() -> None:
    shown = runner.invoke(app, ["probe", "compare", "--help"]).output
    assert "Example: interp probe compare probe probe" in " ".join(shown.split())
    assert "probe-compare" not in shown
