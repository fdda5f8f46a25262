"""Running commands as a user would."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from experiments.cli import app

__all__ = ["invoke", "ok", "refused", "runner"]

runner = CliRunner()


def invoke(*arguments: object) -> Result:
    """Run a command; errors that it does not turn into an exit code are raised."""
    return runner.invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def ok(*arguments: object) -> Result:
    """Run a command that must succeed."""
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result


def refused(*arguments: object) -> str:
    """Run a command that must fail; returns its one-paragraph message."""
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    message = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(message) == 1, result.stderr
    return message[0]
