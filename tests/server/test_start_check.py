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
from conclave.server.start_check import find_refusals
from conclave.server.supervise import Supervisor
from conclave.store.engine import sqlite
from conclave.store.engine.faults import StoreError
from conclave.system import data_folder
from conclave.system.notify import ServiceManager
from conclave.system.signals import Hangups
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
        [line] = [each.says for each in find_refusals(config, SystemClock())]
        with pytest.raises((ServeError, StoreError)) as start:
            async with self.start(config):
                pass
        assert str(start.value) == line, "what a start meets by itself is what was foreseen"
        assert await asyncio.to_thread(self.refused_when_asked, config, Hangups()) == line
        return line

    def refused_when_asked(self, config: Config, hangups: Hangups) -> str:
        """Return the one line that `serve`, `check-config` and `doctor` say before anything is opened."""
        with pytest.raises(ServeError) as serving:
            run.serve(config, self.path, hangups)
        line = str(serving.value)
        checked = CliRunner().invoke(main, ["check-config", str(self.path), "--json"])
        assert (checked.exit_code, json.loads(checked.stdout)["faults"]) == (1, [line])
        doctor = CliRunner().invoke(main, ["doctor", "--config", str(self.path), "--json"])
        told = [each["says"] for each in json.loads(doctor.stdout)["findings"] if each["about"] == "start"]
        assert (doctor.exit_code, told) == (1, [f"would be refused: {line}"])
        return line


@pytest.fixture
def place(tmp_path: Path, start_server: StartServer) -> Place:
    return Place(tmp_path, start_server)


async def test_a_vault_that_is_missing_or_of_another_database_is_refused(place: Place) -> None:
    config = place.write(SQL)
    await place.serve(config)
    away = config.keys_path.rename(config.keys_path.with_name("away"))
    assert "the vault is missing" in await place.refused_by_all(config)
    for suffix in ("", "-wal", "-shm"):
        place.database.with_name(place.database.name + suffix).unlink(missing_ok=True)
    config.ledger_path.unlink()
    shutil.rmtree(config.data, ignore_errors=True)
    await place.serve(config)
    shutil.copy(away, config.keys_path)
    assert "belongs to another database than" in await place.refused_by_all(config)
    config.keys_path.write_bytes(b"no keys" * 1000)
    assert "vault.path: " in await place.refused_by_all(config)


@pytest.mark.parametrize(
    ("vault", "told"),
    [
        ("away/vault", "vault.path: {0}/away/vault: there is no folder {0}/away; is its disk mounted?"),
        ("link", "vault.path: {0}/away/vault: there is no folder {0}/away; is its disk mounted?"),
        ("file", "vault.path: {0}/file: is not a folder"),
        ("file/vault", "vault.path: {0}/file/vault: there is no folder {0}/file; is its disk mounted?"),
        ("other.vault", "{0}/other.vault/keys: belongs to another database, and there is no {0}/new.db: correct"),
    ],
)
async def test_a_first_start_without_room_for_its_vault_is_refused(
    place: Place, tmp_path: Path, vault: str, told: str
) -> None:
    """As with a disk that is not mounted yet, or a mistyped database_path beside the vault of the real one."""
    (tmp_path / "link").symlink_to(tmp_path / "away" / "vault")
    (tmp_path / "file").touch()
    await Place(tmp_path, place.start).serve(place.write(f'{SQL}[vault]\npath = "{tmp_path}/other.vault"\n'))
    place.database = tmp_path / "new.db"
    config = place.write(f'{SQL}[vault]\npath = "{tmp_path / vault}"\n')
    line = await asyncio.to_thread(place.refused_when_asked, config, Hangups())
    assert line.startswith(told.format(tmp_path))
    assert not [*tmp_path.glob("new.*")], "nothing was created"


async def test_an_older_vault_is_refused(place: Place, tmp_path: Path) -> None:
    """Than the database, which relies on later keys; or than a copy, which has later keys."""
    config = place.write(SQL)
    async with place.start(config) as running:
        alice = await running.user("alice")
    older = config.keys_path.read_bytes()
    async with place.start(config) as running:
        alice.url, alice.http = running.url, running.http
        await alice.send(await alice.create_group("g"))
    newer = config.keys_path.read_bytes()
    config.keys_path.write_bytes(older)
    assert "is older than the database, which has 1 messages without keys" in await place.refused_by_all(config)
    config.keys_path.write_bytes(newer)
    copied = place.write(f'{SQL}[vault]\ncopies = ["{tmp_path}/copy"]\n')
    async with place.start(copied) as running:
        alice.url, alice.http = running.url, running.http
        image = tmp_path / "image.db"
        with closing(sqlite.connect(place.database)) as connection:
            connection.execute("VACUUM INTO ?", (str(image),))
        await alice.send(await alice.create_group("h"))
    shutil.copy(image, place.database)
    config.keys_path.write_bytes(newer)
    assert f"is older than the copy {tmp_path}/copy" in await place.refused_by_all(copied)


async def test_a_copy_whose_ledger_is_away_or_cannot_tell_all_is_refused(place: Place) -> None:
    config = place.write(SQL)
    copy = place.database.with_name("copy.db")
    await place.serve(config)
    shutil.copy(place.database, copy)
    async with place.start(config) as running:
        await running.user("bob")
    shutil.copy(copy, place.database)
    away = config.ledger_path.rename(config.ledger_path.with_name("away"))
    assert "the ledger is missing" in await place.refused_by_all(config)
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
        await running.app[app_keys.CLOCK_WATCH].record()

    await place.serve(place.write(SQL), pass_time)
    config = place.write(f'message_retention = "40s"\n{SQL}')
    [line] = [each.says for each in find_refusals(config, clock)]
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
    [refused] = find_refusals(config, None)
    assert 'has messages in the archive, which only "spark" can erase' in refused.says
    assert find_refusals(place.write(SPARK), None) == []


async def test_a_reload_refuses_what_the_next_start_would(place: Place) -> None:
    config = place.write(SQL)
    async with place.start(config) as running:
        await running.user("alice")
        health = running.app[app_keys.HEALTH]
        worker = Supervisor(config, health)
        reloader = Reloader(config, health, worker, None, place.path, asyncio.Event(), ServiceManager())
        place.write(f'{SQL}[vault]\npath = "{place.path.with_name("elsewhere")}"\n')
        assert not await reloader.reload()
        assert "the vault is missing" in health.faults[HealthPart.CONFIGURATION]
        place.write(SQL)
        assert await reloader.reload()
        assert health.faults == {}


async def test_a_healthy_place_has_nothing_against_a_start_while_a_server_runs_or_not(place: Place) -> None:
    config = place.write(SQL)
    assert find_refusals(config, SystemClock()) == []

    async def ask(_: Running) -> None:
        assert await asyncio.to_thread(find_refusals, config, SystemClock()) == []

    await place.serve(config, ask)
    assert find_refusals(config, SystemClock()) == []
