"""The command line as a whole."""

import subprocess
import sys
from pathlib import Path

import pytest
from click import Context
from click.testing import CliRunner

from conclave import __version__
from conclave.cli.main import LazyCommand, main
from tests.support import stores

ROOT = Path(__file__).resolve().parents[2]


def test_ctrl_c_during_the_imports_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import signal; signal.raise_signal(signal.SIGINT)\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from conclave.__main__ import main; main()"
    command = ["env", "--default-signal=INT", sys.executable, "-P", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "Aborted!\n")


@pytest.mark.parametrize("name", main.commands)
def test_help_lists_each_command_as_it_describes_itself(name: str) -> None:
    listed = main.commands[name]
    assert isinstance(listed, LazyCommand)
    assert listed.load().get_short_help_str(limit=100) == listed.get_short_help_str(limit=100)
    shown = CliRunner().invoke(main, ["--help"], terminal_width=120).stdout
    assert f"  {name.ljust(max(map(len, main.commands)))}  {listed.get_short_help_str(limit=100)}\n" in shown


@pytest.mark.parametrize("name", main.commands)
def test_help_of_a_command_is_its_own(name: str) -> None:
    listed = main.commands[name]
    assert isinstance(listed, LazyCommand)
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
        f"Error: {missing} is not installed: conclave {command} needs the extra {extra}."
        f" Install it from the sources: pip install '.[{extra}]' in their folder,"
        f" or from the wheel: pip install 'conclave_messaging-{__version__}-py3-none-any.whl[{extra}]'\n"
    )


DECEIVING = "a\x9b31m\x1b[31m\u202e\x07"
MAX_SHOWN = r"a\x9b31m\x1b[31m\u202e\x07"


@pytest.mark.parametrize(
    "words",
    [
        (DECEIVING,),
        (f"--{DECEIVING}",),
        ("user", DECEIVING),
        ("user", "list", DECEIVING),
        ("user", "list", f"--{DECEIVING}"),
        ("user", "show", DECEIVING),
        ("user", "disable", DECEIVING),
        ("user", "create", DECEIVING),
        ("user", "list", "--config", DECEIVING),
        ("explain", DECEIVING),
        ("explain", "group", DECEIVING),
        ("group", "show", DECEIVING),
        ("export", DECEIVING),
        ("hold", "release", DECEIVING),
        ("hold", "add", "--user", DECEIVING, "--reason", "why"),
        ("evidence", "audit", "--since", DECEIVING),
        ("evidence", "audit", "--group", DECEIVING),
        ("cleanup", "purge", "--group", DECEIVING, "--before", "1d"),
        ("cleanup", "purge", "--group", "group", "--before", DECEIVING),
        ("evidence", "verify", "--known", DECEIVING),
        ("invite-token", "revoke", DECEIVING),
        ("backup", DECEIVING),
        ("backup", "list", DECEIVING),
        ("backup", "verify", DECEIVING),
        ("archive", "restore", DECEIVING),
        ("restore", DECEIVING),
        ("status", "--url", DECEIVING),
        ("check-config", DECEIVING),
        ("chat", DECEIVING),
    ],
)
def test_no_argument_reaches_the_terminal_as_it_is(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither colours nor cursors can be set by a name that somebody was given to type."""
    stores.prepare(tmp_path / "conclave.db")
    monkeypatch.chdir(tmp_path)
    for name in ("CONCLAVE_CONFIG", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "conclave.toml"))
    (tmp_path / "conclave.toml").write_text('[cleanup]\nengine = "sql"\n', encoding="utf-8")
    asked = CliRunner().invoke(main, words, color=True)
    assert asked.exception is None or isinstance(asked.exception, SystemExit), asked.exception
    assert asked.output.replace("\n", "").isprintable(), ascii(asked.output)


@pytest.mark.parametrize(
    "words", [("user", "show", DECEIVING), ("user", "list", f"--{DECEIVING}"), ("user", "list", "--config", DECEIVING)]
)
def test_what_an_argument_has_is_shown(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores.prepare(tmp_path / "conclave.db")
    monkeypatch.chdir(tmp_path)
    assert MAX_SHOWN in CliRunner().invoke(main, words, color=True).output


@pytest.mark.parametrize("number", [str(2**63), str(2**64), "9" * 5_000, "0", "1" + "_0" * 30])
@pytest.mark.parametrize(
    "words",
    [
        ("explain", "group"),
        ("hold", "release"),
        ("invite-token", "revoke"),
        ("evidence", "audit", "--limit"),
        ("evidence", "receipts", "--limit"),
        ("cleanup", "history", "--limit"),
        ("invite-token", "new", "--uses"),
    ],
)
def test_a_number_that_nothing_can_have_is_refused_in_a_line(
    words: tuple[str, ...], number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores.prepare(tmp_path / "conclave.db")
    monkeypatch.chdir(tmp_path)
    asked = CliRunner().invoke(main, [*words, number])
    assert (asked.exit_code, type(asked.exception)) == (2, SystemExit)
    assert asked.stderr.splitlines()[-1].startswith("Error: ")


def test_a_known_receipt_of_such_a_number_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in ("0", "-1", str(2**63), "9" * 5_000):
        asked = CliRunner().invoke(main, ["evidence", "verify", "--known", f"{number}:{'a' * 64}"])
        assert (asked.exit_code, type(asked.exception)) == (2, SystemExit)
        assert "is not a number, a colon and 64 hexadecimal digits" in asked.stderr


def test_the_pages_of_the_manual_are_what_the_commands_help_says(tmp_path: Path) -> None:
    """`make man` renews them."""
    subprocess.run([sys.executable, ROOT / "scripts" / "man", tmp_path], check=True)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_text() for path in (ROOT / "docs" / "man").iterdir()}


@pytest.mark.parametrize(("shell", "names"), [("bash", "complete"), ("zsh", "#compdef conclave"), ("fish", "complete")])
def test_each_shell_gets_its_completion(shell: str, names: str) -> None:
    made = CliRunner().invoke(main, ["completion", shell])
    assert made.exit_code == 0
    assert names in made.output
    assert "_CONCLAVE_COMPLETE" in made.output
