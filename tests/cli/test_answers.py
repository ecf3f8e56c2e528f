"""What commands answer: which configuration they go by, JSON where programs read, and no log beside it."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import click
import pytest
from click.testing import CliRunner

from conclave.cli.main import LazyCommand, main
from spark import readiness
from tests.support import stores
from tests.support.server import ServerProcess, conclave

ROOT = Path(__file__).resolve().parents[2]

SQL = '[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n'

WITHOUT_JSON = {
    "archive fetch-jars": "a sentence",
    "archive restore": "a sentence",
    "archive verify": "a sentence",
    "backup make": "sentences",
    "chat": "a terminal",
    "completion": "is a program for a shell",
    "export": "is JSON",
    "hold add": "a sentence",
    "hold release": "a sentence",
    "invite-token new": "the token alone",
    "invite-token revoke": "a sentence",
    "evidence verify": "sentences",
    "restore": "sentences",
    "serve": "its log",
    "user create": "the password alone",
    "user delete": "a sentence",
    "user disable": "a sentence",
    "user enable": "a sentence",
    "user reset-password": "the password alone",
    "user unblock": "a sentence",
}
"""The commands that print neither a table nor a list, and what they print. All others take --json."""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command that does something, with its whole name."""
    for name, family in main.commands.items():
        assert isinstance(family, LazyCommand)
        command = family.load()
        if isinstance(command, click.Group):
            for inner, each in command.commands.items():
                yield f"{name} {inner}", each
        else:
            yield name, command


def options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


def test_every_command_that_prints_a_table_takes_json() -> None:
    assert {name for name, command in commands() if "--json" not in options(command)} == set(WITHOUT_JSON)


def test_every_command_that_takes_a_group_takes_a_name_or_an_id() -> None:
    taking = {
        name: parameter.type.name
        for name, command in commands()
        for parameter in command.params
        if parameter.name in ("group", "name_or_id")
    }
    of_evidence = {"evidence audit", "evidence receipts"}
    assert set(taking) == {"archive restore", "cleanup purge", "explain", "group show", "hold add"} | of_evidence
    assert set(taking.values()) == {"text"}, "not a UUID alone"


def test_settings_are_read_in_one_place_which_says_where_they_come_from() -> None:
    """But for the commands whose answer says it, and the server, whose log does."""
    modules = (ROOT / "conclave" / "cli").glob("*.py")
    reading = {module.stem for module in modules if "load_config" in module.read_text(encoding="utf-8")}
    assert reading == {"common", "check_config", "doctor", "serve"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a database."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONCLAVE_CONFIG", raising=False)
    stores.prepare(tmp_path / "conclave.db")
    return tmp_path


def test_a_command_says_which_configuration_and_database_it_goes_by_unless_one_is_named(folder: Path) -> None:
    assert CliRunner().invoke(main, ["user", "list"]).stderr == (
        f"conclave: configuration: the built-in defaults (no file found); database: {folder}/conclave.db\n"
    )
    (folder / "conclave.toml").write_text(SQL)
    for words in (["user", "list", "--json"], ["archive", "status"], ["hold", "list"]):
        assert CliRunner().invoke(main, words).stderr == (
            f"conclave: configuration: {folder}/conclave.toml; database: {folder}/conclave.db\n"
        )
    assert not CliRunner().invoke(main, ["user", "list", "--config", "conclave.toml"]).stderr
    assert not CliRunner(env={"CONCLAVE_CONFIG": "conclave.toml"}).invoke(main, ["user", "list"]).stderr


@pytest.mark.system
def test_a_run_prints_its_answer_and_no_lines_of_a_log(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, f'cleanup_interval = "1h"\n{SQL}') as server:
        server.wait_for("cleanup_run")
        shown = _answer("cleanup", "run", folder=tmp_path)
        assert "Cleanup run (sql): ok" in shown
        ran = json.loads(_answer("cleanup", "run", "--json", folder=tmp_path))
        assert (ran["outcome"], ran["engine"], ran["dry_run"]) == ("ok", "sql", False)
        dry = json.loads(_answer("cleanup", "run", "--dry-run", "--json", folder=tmp_path))
        assert (dry["dry_run"], dry["differing"]) == (True, [])
        runs = [json.loads(line) for line in _answer("cleanup", "history", "--json", folder=tmp_path).splitlines()]
        assert runs[0] == {name: ran[name] for name in runs[0]}
        assert len(runs) == 3, "the server's own, and two by hand"
        [advice] = _answer("cleanup", "advise", "--json", folder=tmp_path).splitlines()
        assert json.loads(advice)["job"] == "everything"


def _answer(*words: str, folder: Path) -> str:
    done: subprocess.CompletedProcess[str] = conclave(*words, "--config", "conclave.toml", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_where_nothing_is_yet_a_sentence_says_so(folder: Path) -> None:
    (folder / "backups").mkdir()
    for words, told in (
        (["backup", "list", "backups"], "no backups\n"),
        (["archive", "status"], "nothing has been archived yet\n"),
        (["cleanup", "history"], "no runs yet\n"),
    ):
        done = CliRunner().invoke(main, words)
        assert (done.exit_code, done.stdout) == (0, told)
    assert CliRunner().invoke(main, ["backup", "list", "--json", "backups"]).stdout == ""
    (folder / "backups" / "notes").touch()
    done = CliRunner().invoke(main, ["backup", "list", "backups"])
    assert (done.exit_code, done.stderr) == (1, "conclave: backups: is not a folder for backups: it contains notes\n")


def test_a_group_is_restored_from_the_archive_by_name_or_id(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    restored = []

    def note(group_id: bytes, _: int) -> int:
        restored.append(group_id)
        return 3

    archived = nullcontext(SimpleNamespace(restore=note))
    monkeypatch.setattr(readiness, "archive_at_rest", lambda _: archived)
    (folder / "conclave.toml").write_text(SQL)
    done = CliRunner().invoke(main, ["archive", "restore", "nobody's"])
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.endswith('conclave: no such group: "nobody\'s"; use the id for a deleted group\n')
    group_id = UUID(bytes=bytes(range(16)))
    done = CliRunner().invoke(main, ["archive", "restore", str(group_id)])
    assert done.exit_code == 0, done.stderr
    assert "restored 3 messages to the database" in done.stdout
    assert restored == [group_id.bytes]
