"""The command line as a whole."""

import subprocess
import sys

import pytest
from click import Context
from click.testing import CliRunner

from conclave.cli.main import Family, main


@pytest.mark.parametrize("name", main.commands)
def test_help_lists_each_command_as_it_describes_itself(name: str) -> None:
    listed = main.commands[name]
    assert isinstance(listed, Family)
    assert listed.load().get_short_help_str(limit=100) == listed.get_short_help_str(limit=100)
    shown = CliRunner().invoke(main, ["--help"], terminal_width=120).stdout
    assert f"  {name.ljust(max(map(len, main.commands)))}  {listed.get_short_help_str(limit=100)}\n" in shown


@pytest.mark.parametrize("name", main.commands)
def test_help_of_a_command_is_its_own(name: str) -> None:
    listed = main.commands[name]
    assert isinstance(listed, Family)
    shown = CliRunner().invoke(main, [name, "--help"])
    assert shown.exit_code == 0
    assert shown.stdout.startswith(f"Usage: main {name} [OPTIONS]")
    for parameter in listed.load().get_params(Context(listed.load())):
        assert parameter.opts[-1] in shown.stdout


def test_what_no_command_was_asked_for_is_not_imported() -> None:
    program = (
        "import sys; from conclave.cli.main import main; main(['--help'], standalone_mode=False)\n"
        "sys.exit([name for name in ('rich', 'spark', 'aiohttp', 'marshmallow') if name in sys.modules] or 0)"
    )
    helped = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (helped.returncode, helped.stderr) == (0, "")
    assert "archive" in helped.stdout


@pytest.mark.parametrize(
    ("command", "missing", "extra"), [("serve", "structlog", "server"), ("chat", "textual", "client")]
)
def test_what_is_not_installed_is_named_with_the_extra_that_brings_it(command: str, missing: str, extra: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from conclave.cli.main import main; main([{command!r}])"
    asked = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True)
    assert (asked.returncode, asked.stdout) == (1, "")
    assert asked.stderr == (
        f"Error: {missing} is not installed: conclave {command} needs the extra {extra}: pip install '.[{extra}]'\n"
    )
