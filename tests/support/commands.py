"""Commands in this process, on the store of a server or without one, at a time of the test's."""

from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from conclave.clock import FakeClock
from conclave.config.settings import Config

Run = Callable[..., Result]

FAMILIES = {
    "cleanup": "cleanup",
    "evidence": "evidence",
    "export": "export",
    "hold": "holds",
    "invite-token": "registration_tokens",
    "user": "users",
}
"""The modules of the commands, by the first word."""


def runner(config: Config, clock: FakeClock, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs `conclave WORDS`; its standard output and its standard error are apart."""
    for name in ("cleanup", "export", "open_store"):
        module: Any = import_module(f"conclave.cli.{name}")
        monkeypatch.setattr(module, "SystemClock", lambda: clock)
        # Signals are the main thread's, in which the server runs.
        monkeypatch.setattr(module, "exit_on_signals", nullcontext, raising=False)
    monkeypatch.setattr("conclave.cli.common.use_console_log", lambda: None)
    path = folder / "conclave.toml"
    settings = f'database_path = "{config.database}"\n[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n'
    if config.archive.after != -1:
        settings += f'[archive]\nafter = "{config.archive.after}s"\nmargin = "{config.archive.margin}s"\n'
    path.write_text(settings)

    def run(family: str, *words: str, typed: str = "") -> Result:
        command: click.Command = getattr(import_module(f"conclave.cli.{FAMILIES[family]}"), family.replace("-", "_"))
        result = CliRunner().invoke(command, [*words, "--config", str(path)], input=typed)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


def done(result: Result) -> str:
    """Check that a command has succeeded, and return what it printed."""
    assert result.exit_code == 0, result.stderr
    return result.stdout


def refused(result: Result) -> str:
    """Check that a command has ended with one line on standard error; return that."""
    assert result.exit_code == 1, result.stdout
    [line] = result.stderr.splitlines()
    assert line.startswith("conclave: ")
    return line.removeprefix("conclave: ")
