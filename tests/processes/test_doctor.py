"""`conclave doctor` on real servers, databases and files: what it finds, and that it changes nothing."""

import asyncio
import json
import os
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conclave.clock import FakeClock, SystemClock
from conclave.config.admin import AdminConfig
from conclave.config.settings import Config
from conclave.doctor import database, files, machine
from conclave.doctor.findings import Finding, Level
from conclave.store.engine import faults, sqlite
from conclave.store.engine.connection import StoreConnection
from tests.conftest import Running, StartServer
from tests.support import stores
from tests.support.server import ServerProcess, conclave

SQL = '[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n'


def doctor(folder: Path, *, wrong: tuple[str, ...] = (), env: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """Run the command, check what it calls wrong, and that both outputs say the same; return the findings."""
    config = folder / "conclave.toml"
    before = state_of(folder)
    done = conclave("doctor", "--json", "--config", config, cwd=folder, env=env)
    told = json.loads(done.stdout)
    found: list[dict[str, Any]] = told["findings"]
    assert tuple(sorted({each["about"] for each in found if each["level"] == "wrong"})) == wrong, found
    assert done.returncode == (1 if wrong else 0)
    assert told["status"] == ("wrong" if wrong else "ok")
    assert all(bool(each["remedy"]) == (each["level"] != "ok") for each in found), "each has a remedy"
    assert not any("\n" in each["says"] + each["remedy"] for each in found), "in one line"
    shown = conclave("doctor", "--config", config, cwd=folder, env=env)
    assert shown.returncode == done.returncode
    assert sum(not line.startswith("      -> ") for line in shown.stdout.splitlines()) == len(found)
    if not any(path.name.endswith("-wal") for path in before):
        assert state_of(folder) == before, "nothing has changed"
    return found


def state_of(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """Names, sizes, modes and times of all files."""
    return {path: (path.lstat().st_size, path.lstat().st_mode, path.lstat().st_mtime_ns) for path in folder.rglob("*")}


def says(found: list[dict[str, Any]], about: str) -> str:
    return "\n".join(each["says"] for each in found if each["about"] == about)


def test_a_server_that_runs_and_one_that_is_stopped_are_well(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL) as server:
        server.wait_for("cleanup_run")
        found = doctor(tmp_path)
        assert f"a server runs: process {server.process.pid}" in says(found, "locks")
        assert "the last successful run began" in says(found, "cleanup")
        assert "nothing is late" in says(found, "overdue")
        with closing(sqlite.connect(tmp_path / "conclave.db")) as other, sqlite.write_transaction(other):
            (waits,) = [each["says"] for each in doctor(tmp_path) if "write lock" in each["says"]]
            assert f"process {os.getpid()} (" in waits
        assert server.stop()[0] == 0
    found = doctor(tmp_path)
    assert "no process holds the server's lock" in says(found, "locks")
    assert "agrees with the stored time" in says(found, "clock")
    (tmp_path / "conclave.toml").write_text('message_retention = "1d"\n' + SQL)
    assert "message_retention: the file differs" in says(doctor(tmp_path), "configuration")


def test_after_a_server_was_killed_it_reads_what_is_in_the_log(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL) as server:
        server.wait_for("cleanup_run")
        server.process.kill()
        server.process.wait()
    assert (tmp_path / "conclave.db-wal").stat().st_size
    found = doctor(tmp_path)
    assert "no process holds the server's lock" in says(found, "locks")
    assert "the last successful run began" in says(found, "cleanup")


def test_without_a_database_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "conclave.toml").write_text(SQL)
    found = doctor(tmp_path)
    assert "does not exist" in says(found, "database")
    assert "a sync takes" in says(found, "disk")


def test_a_broken_database_does_not_keep_it_from_looking_at_the_rest(tmp_path: Path) -> None:
    (tmp_path / "conclave.toml").write_text(SQL)
    for content in (b"no database at all" * 1000, b"SQLite format 3\0" + bytes(range(256)) * 50):
        (tmp_path / "conclave.db").write_bytes(content)
        (tmp_path / "conclave.db").chmod(0o600)
        assert "cannot be read" in says(doctor(tmp_path, wrong=("database", "start")), "database")
    (tmp_path / "conclave.db").write_bytes(b"")
    assert "is empty" in says(doctor(tmp_path, wrong=("database", "start")), "database")


def test_files_that_others_can_use_are_named_with_the_command_that_helps(tmp_path: Path) -> None:
    (tmp_path / "conclave.toml").write_text('registration_token = "secret"\n' + SQL)
    stores.prepare(tmp_path / "conclave.db")
    (tmp_path / "conclave.db").chmod(0o644)
    (tmp_path / "conclave.data").mkdir(mode=0o755)
    (tmp_path / "conclave.toml").chmod(0o644)
    found = doctor(tmp_path, wrong=("permissions",))
    assert [each["remedy"] for each in found if each["about"] == "permissions"] == [
        f"chmod {mode} {tmp_path}/{name}"
        for mode, name in (("600", "conclave.db"), ("700", "conclave.data"), ("600", "conclave.toml"))
    ]


def test_a_key_that_is_not_there_and_one_that_others_can_read_are_told(tmp_path: Path) -> None:
    (tmp_path / "conclave.toml").write_text(
        f'tls_cert_path = "cert.pem"\ntls_key_path = "key.pem"\nlisten_port = 0\n{SQL}'
    )
    assert "tls_key_path: key.pem: cannot be read" in says(
        doctor(tmp_path, wrong=("permissions", "start")), "permissions"
    )
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o644)
    found = doctor(tmp_path, wrong=("permissions", "start"))
    assert [each["remedy"] for each in found if each["about"] == "permissions"] == ["chmod 600 key.pem"]


def test_nobody_else_can_read_the_token_of_operators(tmp_path: Path) -> None:
    token, config = tmp_path / "admin-token", tmp_path / "conclave.toml"
    token.write_text("0123456789abcdef" * 2)
    token.chmod(0o640)
    config.write_text(f'{SQL}[admin]\nlisten_port = 0\ntoken_file = "{token}"\n')
    config.chmod(0o644)
    doctor(tmp_path)
    token.chmod(0o604)
    found = doctor(tmp_path, wrong=("permissions",))
    assert [each["remedy"] for each in found if each["about"] == "permissions"] == [f"chmod 600 {token}"]
    config.write_text(f'{SQL}[admin]\nlisten_port = 0\ntoken = "{token.read_text()}"\n')
    found = doctor(tmp_path, wrong=("permissions",))
    assert [each["remedy"] for each in found if each["about"] == "permissions"] == [f"chmod 600 {config}"]
    assert token.read_text() not in json.dumps(found)
    config.write_text(f'{SQL}[admin]\nlisten_port = 0\ntoken_file = "{token}-gone"\n')
    found = doctor(tmp_path, wrong=("permissions", "start"))
    assert f"admin.token_file: {token}-gone: cannot be read" in says(found, "permissions")


def test_who_waits_for_a_lock_does_not_hold_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(database_path=str(tmp_path / "hot.db"))
    (tmp_path / "hot.db.server-lock").touch()
    inode = (tmp_path / "hot.db.server-lock").stat().st_ino
    monkeypatch.setattr(faults, "_LOCKS", tmp_path / "locks")
    assert files.holders(config) == {}
    (tmp_path / "locks").write_text(
        f"1: FLOCK  ADVISORY  WRITE 71 fe:00:{inode} 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 72 fe:00:{inode} 0 EOF\n"
        f"2: OFDLCK ADVISORY  WRITE -1 fe:00:{inode} 5 5\n"
    )
    assert files.holders(config) == {"server": 71, "cleanup": None, "data": None}


def test_all_faults_of_a_configuration_are_told(tmp_path: Path) -> None:
    (tmp_path / "conclave.toml").write_text('listen_port = 70000\nmessage_retention = "soon"\n')
    found = doctor(tmp_path, wrong=("configuration",))
    assert len([each for each in found if each["level"] == "wrong"]) == 2


@pytest.mark.parametrize(("engine", "wrong"), [("sql", ()), ("spark", ("java",))])
def test_java_is_missed_only_where_it_is_needed(tmp_path: Path, engine: str, wrong: tuple[str, ...]) -> None:
    (tmp_path / "conclave.toml").write_text(f'[cleanup]\nengine = "{engine}"\n')
    found = doctor(tmp_path, wrong=wrong, env={"JAVA_HOME": str(tmp_path / "nowhere")})
    assert "which is not installed" in says(found, "java")


def found_by(findings: Iterator[Finding], about: str, level: Level) -> str:
    return "\n".join(each.says for each in findings if each.about == about and each.level is level)


async def test_a_wrong_clock_and_runs_that_fail_are_told(running: Running) -> None:
    def look(about: str) -> str:
        return found_by(database.database(running.config, running.clock, is_running=True), about, Level.WRONG)

    def note_run(begun: int, outcome: str, error: str) -> None:
        with closing(sqlite.connect(running.config.database)) as connection, sqlite.write_transaction(connection):
            connection.execute(
                "INSERT INTO cleanup_runs (started_at, finished_at, engine, outcome, error, counts)"
                " VALUES (?1, ?1, 'sql', ?2, ?3, '{}')",
                (begun, outcome, error),
            )

    now = running.clock.now()
    note_run(now, "ok", "")
    assert look("cleanup") == look("clock") == ""
    note_run(now, "failed", "ArchiveError: gone")
    assert "ArchiveError: gone" in look("cleanup")
    note_run(now, "ok", "")
    running.clock.advance(2 * running.config.cleanup_interval + 1)
    assert "and one is due every 1h" in look("cleanup")
    running.clock.set_wrong(-100_000)
    assert "nothing is erased" in look("clock")


async def test_a_database_that_is_opened_while_it_is_looked_at_is_looked_at_again(
    start_server: StartServer, config: Config, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection to a database that no process has open takes no lock, and sees no change."""
    async with start_server(config):
        pass
    connect = sqlite.connect

    def meanwhile(path: Path, *, readonly: bool = False, frozen: bool = False) -> StoreConnection:
        found = connect(path, readonly=readonly, frozen=frozen)
        if frozen:
            found.execute("SELECT count(*) FROM cleanup_runs").fetchone()  # remembers the pages
            with closing(connect(path)) as other, sqlite.write_transaction(other):
                other.execute("DELETE FROM cleanup_runs")
        return found

    with closing(connect(config.database)) as connection, sqlite.write_transaction(connection):
        connection.execute(
            "INSERT INTO cleanup_runs (started_at, finished_at, engine, outcome, error, counts)"
            " VALUES (1, 1, 'sql', 'failed', 'it was so', '{}')"
        )
    assert not config.database.with_name(config.database.name + "-wal").exists()
    monkeypatch.setattr(sqlite, "connect", meanwhile)
    found = list(database.database(config, clock, is_running=False))
    assert [each.says for each in found if each.about == "cleanup"] == ["there was no run yet"]


async def test_a_server_that_starts_or_ends_while_its_port_is_looked_at_is_not_called_wrong(running: Running) -> None:
    port = running.server.port or 0
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        free = taken.getsockname()[1]
    config = replace(running.config, listen_port=free, admin=AdminConfig(listen_port=0))
    answers = iter([True, False])
    [ended, _] = await asyncio.to_thread(lambda: list(machine.ports(config, lambda: next(answers))))
    assert (ended.level, ended.says) == ("ok", "for clients: free")
    config = replace(config, listen_port=port)
    before = machine._bind_errno
    found = iter([0, 0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "_bind_errno", lambda *place: next(found, None) or before(*place))
        [started, _] = await asyncio.to_thread(lambda: list(machine.ports(config, lambda: True)))
    assert (started.level, started.says) == ("ok", "for clients: the server listens")


async def test_a_port_is_free_or_ours_or_somebody_elses(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(port: int, *, is_running: bool) -> tuple[str, str]:
        config = replace(running.config, listen_port=port, admin=AdminConfig(listen_port=0))
        [found, _] = machine.ports(config, lambda: is_running)
        return found.level, found.says

    port = running.server.port or 0
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        taken = other.getsockname()[1]
        assert await running_in_thread(look, port, is_running=True) == ("ok", "for clients: the server listens")
        other.listen()
        other_one = await running_in_thread(look, taken, is_running=False)
        assert other_one == ("wrong", "for clients: another program uses it")
        monkeypatch.setattr(machine, "ANSWER_SECONDS", 0.1)
        hanging = await running_in_thread(look, taken, is_running=True)
        assert hanging == ("wrong", "for clients: the program there has not answered within 0.1 seconds")
    assert look(taken, is_running=False) == ("ok", "for clients: free")
    assert look(taken, is_running=True)[0] == "wrong"


async def running_in_thread(look: Any, port: int, *, is_running: bool) -> Any:
    return await asyncio.to_thread(look, port, is_running=is_running)


def test_another_schema_is_told_apart(config: Config) -> None:
    stores.prepare(config.database)
    with closing(sqlite3.connect(config.database)) as connection:
        for version, level in ((0, "note"), (999, "wrong")):
            connection.execute(f"PRAGMA user_version = {version}")
            found = next(database.database(config, SystemClock(), is_running=False))
            assert (found.level, "schema version" in found.says) == (level, True)
