"""Where the files lie: by whatever name, one server on a database; what cannot be used is told in a line."""

import contextlib
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiohttp import ClientSession

from conclave.system import locks
from tests.support.certificate import make_certificate
from tests.support.client import Client
from tests.support.sample import some
from tests.support.server import PATIENCE, ServerProcess, capless, conclave, waiting

SQL = '[cleanup]\nengine = "sql"\n'
NO_FIXED_PORT = "listen_port = 0\nadmin = { listen_port = 0 }\n"


def configure(folder: Path, text: str, name: str = "other.toml") -> Path:
    path = folder / name
    path.write_text(f'{NO_FIXED_PORT}{text}\n[cleanup]\nengine = "sql"\n')
    return path


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that a command was refused with."""
    assert done.returncode == 1, done.stdout + done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("conclave: ")
    return line


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path, SQL) as server:
        server.wait_for("cleanup_run")
        yield server


VAULT = '[vault]\npath = "{}/conclave.vault"\n'
"""By another name a database has to lead to the same vault."""

NAMES = ("link", "link to the folder", "hard link", "hard link with other data")


@pytest.mark.parametrize("way", some(NAMES, 2, "names of a database"))
def test_a_second_server_on_the_same_database_is_refused_by_whatever_name(
    served: ServerProcess, tmp_path: Path, way: str
) -> None:
    other = tmp_path / "other"
    if way == "link to the folder":
        other.symlink_to(tmp_path)
    else:
        other.mkdir()
        (other / "conclave.db").symlink_to("../conclave.db") if way == "link" else (other / "conclave.db").hardlink_to(
            tmp_path / "conclave.db"
        )
    data = f'data_path = "{tmp_path}/elsewhere"\n' if "data" in way else ""
    config = configure(tmp_path, f'database_path = "{other}/conclave.db"\n{data}{VAULT.format(tmp_path)}')
    assert "another server is running on this database" in refused(conclave("serve", "--config", config, cwd=tmp_path))


def test_a_second_database_in_the_same_data_directory_is_refused(served: ServerProcess, tmp_path: Path) -> None:
    config = configure(tmp_path, 'database_path = "second.db"\ndata_path = "conclave.data"\n')
    line = refused(conclave("serve", "--config", config, cwd=tmp_path))
    assert "a server on another database uses this folder" in line
    assert not (tmp_path / "second.db").exists()


def test_a_second_database_on_the_same_vault_is_refused(served: ServerProcess, tmp_path: Path) -> None:
    config = configure(tmp_path, f'database_path = "second.db"\n{VAULT.format(tmp_path)}')
    line = refused(conclave("serve", "--config", config, cwd=tmp_path))
    assert f"vault.path: {tmp_path}/conclave.vault: another server, or a restore, uses it" in line
    assert {path.name for path in tmp_path.glob("second.*")} == {"second.db.server-lock"}, "nothing was begun"


@pytest.mark.parametrize("options", [(), ("--accept-older-vault",)], ids=["plain", "accepting"])
def test_a_new_database_does_not_take_the_vault_of_another_one_that_has_no_keys_yet(
    served: ServerProcess, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """By their defaults conclave.db and conclave.db2 have the same vault."""
    ledger = tmp_path / "conclave.vault" / "ledger"
    served.stop()
    before = ledger.read_bytes()
    config = configure(tmp_path, 'database_path = "conclave.db2"\n')
    told = conclave("serve", *options, "--config", config, cwd=tmp_path).stderr
    assert "conclave.vault/keys: belongs to another database: set another vault.path" in told
    assert ledger.read_bytes() == before
    assert "belongs to another database" in refused(conclave("serve", *options, "--config", config, cwd=tmp_path))
    with ServerProcess(tmp_path, SQL) as again:
        assert again.stop()[0] == 0


@pytest.mark.parametrize("way", ["link", "hard link"])
def test_a_run_waits_for_a_run_on_the_same_database_by_another_name(
    served: ServerProcess, tmp_path: Path, way: str
) -> None:
    (tmp_path / "other").mkdir()
    path = tmp_path / "other" / "conclave.db"
    path.symlink_to("../conclave.db") if way == "link" else path.hardlink_to(tmp_path / "conclave.db")
    config = configure(tmp_path, f'database_path = "{path}"\n{VAULT.format(tmp_path)}')
    served.stop()
    with locks.hold(tmp_path / "conclave.db", locks.CLEANUP):
        command = [sys.executable, "-m", "conclave", "cleanup", "run", "--config"]
        run = subprocess.Popen([*command, config], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert run.stderr
        assert "waiting for another run" in run.stderr.readline()
    run.communicate(timeout=PATIENCE)
    assert run.returncode == 0


def test_a_folder_that_is_not_conclaves_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "work" / "thesis").mkdir(parents=True)
    home.chmod(0o755)
    config = configure(tmp_path, f'data_path = "{home}"\n')
    assert refused(conclave("serve", "--config", config, cwd=tmp_path)).startswith(f"conclave: data_path: {home}: ")
    assert stat.S_IMODE(home.stat().st_mode) == 0o755
    assert (home / "work" / "thesis").is_dir()
    assert not (tmp_path / "conclave.db").exists(), "nothing was begun"


def test_a_run_by_hand_leaves_a_folder_that_is_not_conclaves_as_it_is(served: ServerProcess, tmp_path: Path) -> None:
    served.stop()
    home = tmp_path / "home"
    (home / "work" / "thesis").mkdir(parents=True)
    config = tmp_path / "spark.toml"
    config.write_text(f'data_path = "{home}"\n')
    line = refused(conclave("cleanup", "run", "--config", config, cwd=tmp_path))
    assert line.startswith(f"conclave: data_path: {home}: contains work, which is not")
    assert (home / "work" / "thesis").is_dir()


def test_a_database_is_not_made_where_its_folder_is_missing(tmp_path: Path) -> None:
    config = configure(tmp_path, 'database_path = "mnt/conclave.db"\n')
    for command in (["serve"], ["cleanup", "run"], ["user", "list"]):
        line = refused(conclave(*command, "--config", config, cwd=tmp_path))
        assert f"there is no folder {tmp_path}/mnt; is its disk mounted?" in line
    assert not (tmp_path / "mnt").exists()


def test_a_new_database_is_told_in_the_log_and_an_older_one_is_not(tmp_path: Path) -> None:
    for created in (True, False):
        with ServerProcess(tmp_path, SQL) as server:
            server.stop()
            events = [event["event"] for event in server.events()]
            assert ("database_created" in events) is created


def make_folder(path: Path) -> None:
    path.mkdir()


def make_circle(path: Path) -> None:
    path.symlink_to(path.name)


def make_garbage(path: Path) -> None:
    path.write_bytes(b"not a database, but long enough to look like one" * 200)


NO_DATABASES: list[tuple[Callable[[Path], None], str]] = [
    (make_folder, "is a folder, not a database"),
    (os.mkfifo, "is not a file that can hold a database"),
    (Path.touch, "is empty, not a database"),
    (make_garbage, "file is not a database"),
    (make_circle, "Too many levels of symbolic links"),
]


@pytest.mark.parametrize(("make", "reason"), some(NO_DATABASES, 2, "what is no database"))
def test_what_is_no_database_is_told_in_a_line_by_every_command(
    tmp_path: Path, make: Callable[[Path], None], reason: str
) -> None:
    make(tmp_path / "conclave.db")
    config = configure(tmp_path, "")
    for command in (["serve"], ["cleanup", "run"], ["cleanup", "history"], ["user", "list"]):
        line = refused(conclave(*command, "--config", config, cwd=tmp_path))
        assert str(tmp_path / "conclave.db") in line
        assert reason in line, command


@pytest.mark.parametrize("what", some(["file", "folder", "log"], 2, "what cannot be written"))
async def test_what_cannot_be_written_is_told_in_a_line(served: ServerProcess, tmp_path: Path, what: str) -> None:
    place = tmp_path / "place"
    place.mkdir()
    async with ClientSession() as http:
        await Client.register(http, served.url, "alice")
    served.stop()
    shutil.copy(tmp_path / "conclave.db", place)
    locked = {"file": place / "conclave.db", "folder": place, "log": place / "conclave.db-wal"}[what]
    if what == "log":
        locked.touch()
    locked.chmod(0o500 if what == "folder" else 0o400)
    config = configure(tmp_path, 'database_path = "place/conclave.db"\ndata_path = "conclave.data"\n')
    commands = [["serve"], ["cleanup", "run"], ["user", "disable", "alice"]]
    for command in commands[: 2 if what == "log" else 3]:  # a look into the database removes an empty log
        line = refused(capless("-m", "conclave", *command, "--config", config, cwd=tmp_path))
        assert ("readonly database" if what == "folder" and "user" in command else f"{locked}: cannot be writ") in line
    locked.chmod(0o700)


def test_odd_names_are_names(tmp_path: Path) -> None:
    folder = tmp_path / "a?b=c&d#e%41 ü'\""
    folder.mkdir()
    name = "ch?at#.db"
    text = f"database_path = '''{folder}/{name}'''\n{SQL}"
    with ServerProcess(tmp_path, text) as server:
        server.wait_for("cleanup_run")
        assert not server.stop()[0]
    assert sorted(path.name for path in folder.iterdir() if not path.name.endswith("-lock")) == [
        "ch?at#.data",
        name,
        "ch?at#.vault",
    ]
    assert conclave("user", "list", "--config", server.config, cwd=tmp_path).returncode == 0


def test_a_server_that_died_while_it_made_its_database_begins_anew(tmp_path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        (tmp_path / f"conclave.db.new{suffix}").write_bytes(b"half of it")
    with ServerProcess(tmp_path, SQL) as server:
        server.stop()
    assert not list(tmp_path.glob("conclave.db.new*"))
    with contextlib.closing(sqlite3.connect(tmp_path / "conclave.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_tls_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_certificate(tmp_path, f"{name}.pem", f"{name}.key")
    (tmp_path / "text").write_text("nothing")
    for certificate, key, reason in (
        ("none.pem", "one.key", "tls_cert_path: none.pem: No such file or directory"),
        ("one.pem", "none.key", "tls_key_path: none.key: No such file or directory"),
        ("text", "one.key", "tls_cert_path: text: contains no certificate"),
        ("one.pem", "text", "tls_key_path: text: cannot be used: "),
        ("one.pem", "two.key", "tls_key_path: two.key: does not match one.pem"),
    ):
        config = configure(tmp_path, f'tls_cert_path = "{certificate}"\ntls_key_path = "{key}"\n')
        done = conclave("serve", "--config", config, cwd=tmp_path)
        assert refused(done).startswith(f"conclave: {reason}")
        assert not (tmp_path / "conclave.db").exists(), "nothing was begun"


def test_a_bare_m_is_warned_of_at_the_start(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, f'message_retention = "1m"\n{SQL}max_run_time = "5min"\n') as server:
        [warning] = [event for event in server.events() if event["event"] == "ambiguous_setting"]
        assert (warning["setting"], warning["level"]) == ("message_retention", "warning")
        assert '"1mo"' in warning["means"]
        for _ in waiting("the worker, which takes the settings too"):
            if any(event["event"] == "cleanup_ready" for event in server.events()):
                break
