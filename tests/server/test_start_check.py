"""What a start refuses for what lies there: the start, `check-config`, a reload, `doctor` and `status` say the same."""

import asyncio
import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from conclave import app_keys
from conclave.cli.main import main
from conclave.clock import FakeClock, SystemClock
from conclave.config.load import load_config
from conclave.config.settings import Config
from conclave.health.parts import HealthPart
from conclave.server import run
from conclave.server.reload import Reloader
from conclave.server.run import ServeError
from conclave.server.start_check import refusals
from conclave.server.supervise import Supervisor
from conclave.store.engine import sqlite
from conclave.store.engine.faults import StoreError
from conclave.system import data_folder, ledger_mark
from conclave.system.notify import ServiceManager
from conclave.system.sighup import Hangups
from tests.conftest import Running, StartServer
from tests.support import ledgers

SQL = '[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n'
SPARK = '[cleanup]\nengine = "spark"\ndisk_reserve = "0"\n'


class Place:
    """A configuration in a file, and the server that was served with it."""

    def __init__(self, folder: Path, start: StartServer) -> None:
        self.path = folder / "conclave.toml"
        self.database = folder / "conclave.db"
        self.start = start

    def write(self, text: str) -> Config:
        self.path.write_text(f'listen_port = 0\ndatabase_path = "{self.database}"\n{text}\n[admin]\nlisten_port = 0\n')
        return load_config(self.path)

    async def serve(self, config: Config, do: Callable[[Running], Any] | None = None) -> None:
        data_folder.prepare(config.data, config.database, config.archive_path)  # as `conclave serve` does
        async with self.start(config) as running:
            alice = await running.user("alice")
            group = await alice.create_group("g")
            for _ in range(3):
                await alice.send(group)
            if do:
                await do(running)

    async def refused_by_all(self, config: Config) -> str:
        """Return the one line that all say, those that start a server and those that only look."""
        [line] = [each.says for each in refusals(config, SystemClock())]
        with pytest.raises((ServeError, StoreError)) as start:
            async with self.start(config):
                pass
        assert str(start.value) == line, "what a start meets by itself is what was foreseen"
        hangups = Hangups()
        with pytest.raises(ServeError) as serving:
            await asyncio.to_thread(run.serve, config, self.path, hangups)
        assert str(serving.value) == line
        checked = CliRunner().invoke(main, ["check-config", str(self.path), "--json"])
        assert (checked.exit_code, json.loads(checked.stdout)["faults"]) == (1, [line])
        doctor = CliRunner().invoke(main, ["doctor", "--config", str(self.path), "--json"])
        told = [each["says"] for each in json.loads(doctor.stdout)["findings"] if each["about"] == "start"]
        assert (doctor.exit_code, told) == (1, [f"would be refused: {line}"])
        return line


@pytest.fixture
def place(tmp_path: Path, start_server: StartServer) -> Place:
    return Place(tmp_path, start_server)


async def test_a_key_file_that_is_missing_or_of_another_database_is_refused(place: Place) -> None:
    config = place.write(SQL)
    await place.serve(config)
    away = config.keys_path.rename(config.keys_path.with_name("away"))
    assert "there is no key file" in await place.refused_by_all(config)
    for suffix in ("", "-wal", "-shm", ".ledger"):
        place.database.with_name(place.database.name + suffix).unlink(missing_ok=True)
    shutil.rmtree(config.data, ignore_errors=True)
    await place.serve(config)
    shutil.copy(away, config.keys_path)
    assert "has the keys of another database than" in await place.refused_by_all(config)
    config.keys_path.write_bytes(b"no keys" * 1000)
    assert "keys.path: " in await place.refused_by_all(config)


async def test_a_copy_whose_ledger_is_away_or_cannot_tell_all_is_refused(place: Place) -> None:
    config = place.write(SQL)
    copy = place.database.with_name("copy.db")
    await place.serve(config)
    shutil.copy(place.database, copy)
    async with place.start(config) as running:
        await running.user("bob")
    shutil.copy(copy, place.database)
    away = config.ledger_path.rename(config.ledger_path.with_name("away"))
    assert "is an older copy of the database that was served here" in await place.refused_by_all(config)
    (config.data / ledger_mark.NAME).unlink()
    shutil.copy(away, config.ledger_path)
    ledgers.alter_last(config.ledger_path, "alive")
    assert "the ledger is damaged" in await place.refused_by_all(config)


async def test_a_schema_of_a_newer_program_is_refused(place: Place) -> None:
    config = place.write(SQL)
    await place.serve(config)
    with closing(sqlite.connect(place.database)) as connection:
        connection.execute("PRAGMA user_version = 9999")
    assert "use a newer Conclave" in await place.refused_by_all(config)


async def test_a_large_change_of_the_policy_is_refused(place: Place, clock: FakeClock) -> None:
    async def pass_time(running: Running) -> None:
        clock.advance(100)
        await running.app[app_keys.CLOCK_WATCH].note()

    await place.serve(place.write(SQL), pass_time)
    config = place.write(f'message_retention = "40s"\n{SQL}')
    [line] = [each.says for each in refusals(config, clock)]
    assert "this change would hide 3 of 3 messages at once" in line
    with pytest.raises(Exception, match="this change would hide 3 of 3") as start:
        async with place.start(config):
            pass
    assert str(start.value) == line


async def test_an_archive_in_use_needs_the_engine_that_erases_there(place: Place) -> None:
    config = place.write(SQL)
    await place.serve(config)
    with closing(sqlite.connect(place.database)) as connection:
        connection.execute("INSERT INTO archive_parts SELECT group_key, 0, 0, 1, 1, 0, 0, 1, 0, 0 FROM groups")
    [refused] = refusals(config, None)
    assert 'has messages in the archive, which only "spark" can erase' in refused.says
    assert refusals(place.write(SPARK), None) == []


async def test_a_reload_refuses_what_the_next_start_would(place: Place) -> None:
    config = place.write(SQL)
    async with place.start(config) as running:
        await running.user("alice")
        health = running.app[app_keys.HEALTH]
        worker = Supervisor(config, health)
        reloader = Reloader(config, health, worker, None, place.path, asyncio.Event(), ServiceManager())
        place.write(f'{SQL}[keys]\npath = "{place.path.with_name("elsewhere.keys")}"\n')
        assert not await reloader.reload()
        assert "there is no key file" in health.faults[HealthPart.CONFIGURATION]
        place.write(SQL)
        assert await reloader.reload()
        assert health.faults == {}


async def test_a_healthy_place_has_nothing_against_a_start_while_a_server_runs_or_not(place: Place) -> None:
    config = place.write(SQL)
    assert refusals(config, SystemClock()) == []

    async def ask(_: Running) -> None:
        assert await asyncio.to_thread(refusals, config, SystemClock()) == []

    await place.serve(config, ask)
    assert refusals(config, SystemClock()) == []
