"""The vault of a server: it is there, and not older than the database, and its copies are up to date."""

import asyncio
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from conclave import app_keys
from conclave.actions.replay import NUMBERS
from conclave.config.settings import KEYS, LEDGER, Config
from conclave.config.vault import VaultConfig
from conclave.health import background
from conclave.health.parts import HealthPart
from conclave.keys.inspection import Inspection
from conclave.keys.store import KeyStore
from conclave.keys.tree import Range
from conclave.server import vault_duty
from conclave.store import keyring, unreadable
from conclave.store.engine.faults import StoreError
from conclave.store.ledger import book
from tests.conftest import Running, StartServer
from tests.support.client import Client, expect
from tests.support.server import PATIENCE, until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look after the vault, and write to the ledger, ten times a second."""
    monkeypatch.setattr(vault_duty, "CHECK_INTERVAL_SECONDS", 0.1)
    monkeypatch.setattr(vault_duty, "LEDGER_INTERVAL_SECONDS", 0.1)
    monkeypatch.setattr(background, "RETRY_SECONDS", 0.1)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return tmp_path / "copy"


@pytest.fixture
def copied(config: Config, copy: Path) -> Config:
    """Settings by which the vault has a copy."""
    return replace(config, vault=VaultConfig(copies=(str(copy),)))


async def fault(server: Running, part: HealthPart) -> str:
    """Wait until this part of health has a fault, and return it."""
    await until(lambda: part in server.app[app_keys.HEALTH].faults)
    return server.app[app_keys.HEALTH].faults[part]


async def healthy(server: Running) -> None:
    await until(lambda: not server.app[app_keys.HEALTH].faults)


async def ready(server: Running) -> int:
    async with server.http.get(f"{server.url}/readyz") as response:
        return response.status


def again(server: Running, client: Client) -> Client:
    """Return a client with the same session on a server that was started again."""
    return Client(server.http, server.url, client.token, client.user_id)


async def bodies(client: Client, group: str) -> list[bytes]:
    return [each.body for each in await client.fetch_all(group)]


def is_current(config: Config, copy: Path) -> bool:
    """Tell whether a copy has all that the vault has."""
    if not (copy / KEYS).exists():
        return False
    own, other = Inspection(config.keys_path), Inspection(copy / KEYS)
    assert not other.flaws
    return own.serial == other.serial and book.tip(config.ledger_path) == book.tip_of_copy(copy / LEDGER)


async def test_while_the_vault_is_away_the_server_is_not_ready(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("g")
    await alice.send(group, b"one")
    path = running.config.keys_path
    away = path.rename(path.with_name("away"))
    assert "No such file or directory" in await fault(running, HealthPart.VAULT)
    assert await ready(running) == 503
    assert not path.exists(), "none is begun in its place"
    away.rename(path)
    await healthy(running)
    assert await ready(running) == 200
    await alice.send(group, b"two")
    assert await bodies(alice, group) == [b"one", b"two"]


@pytest.mark.parametrize("is_replaced", [True, False], ids=["another file", "the same file"])
async def test_while_an_older_vault_is_in_its_place_the_server_is_not_ready(
    running: Running, is_replaced: bool
) -> None:
    alice = await running.user("alice")
    path = running.config.keys_path
    older = path.read_bytes()
    group = await alice.create_group("g")
    await alice.send(group, b"one")
    newer = path.read_bytes()

    def put(data: bytes) -> None:
        if is_replaced:
            path.unlink()
        path.write_bytes(data)

    put(older)
    assert "older" in await fault(running, HealthPart.VAULT)
    assert await ready(running) == 503
    await expect(alice.create_group("h"), 503, 0)
    await expect(alice.fetch(group), 503, 0)
    assert path.read_bytes() == older, "nothing is added to it"
    put(newer)
    await healthy(running)
    assert await bodies(alice, group) == [b"one"]


async def test_a_start_with_an_older_vault_is_refused_until_the_loss_is_accepted(
    start_server: StartServer, config: Config
) -> None:
    async with start_server(config) as server:
        alice = await server.user("alice")
        kept, lost = [await alice.create_group(name) for name in ("kept", "lost")]
        await alice.send(kept, b"kept")
        older = config.keys_path.read_bytes()
        await alice.send(lost, b"lost")
        await alice.send(lost, b"lost too")
    config.keys_path.write_bytes(older)
    with pytest.raises(StoreError, match="is older than the database, which has 2 messages without keys"):
        async with start_server(config):
            pass
    async with start_server(config, accepts_older=True) as server:
        alice = again(server, alice)
        assert await bodies(alice, kept) == [b"kept"]
        assert await bodies(alice, lost) == []
        assert await server.query("SELECT count(*) FROM messages") == [(1,)]
        assert await alice.send(lost, b"new") == 3
        await healthy(server)
    async with start_server(config) as server:
        alice = again(server, alice)
        assert await bodies(alice, lost) == [b"new"], "once is enough"


async def test_an_older_database_whose_start_breaks_off_gives_up_what_has_no_keys_at_the_next_one(
    start_server: StartServer, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_server(config) as server:
        alice = await server.user("alice")
        kept, lost = [await alice.create_group(name) for name in ("kept", "lost")]
        await alice.send(kept, b"kept")
        await alice.send(lost, b"lost")
    older = config.database.read_bytes()
    async with start_server(config) as server:
        alice = again(server, alice)
        await alice.post(f"/groups/{await alice.create_group('other')}/delete")
    with closing(KeyStore(config.keys_path)) as keys:
        keys.erase([(UUID(lost).bytes, [Range(1, 1)])])
    config.database.write_bytes(older)

    def fail(*_: object) -> int:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(unreadable, "remove_all", fail)
        with pytest.raises(sqlite3.OperationalError):
            async with start_server(config):
                pass
    async with start_server(config) as server:
        assert await server.query("SELECT count(*) FROM messages") == [(1,)]
        await healthy(server)


async def test_a_start_without_the_vault_is_refused_whatever_is_accepted(
    start_server: StartServer, config: Config
) -> None:
    async with start_server(config):
        pass
    config.vault_path.rename(config.vault_path.with_name("away"))
    for accepts_older in (False, True):
        with pytest.raises(StoreError, match=r"the vault is missing, and without it no message of .* can be read"):
            async with start_server(config, accepts_older=accepts_older):
                pass
    assert not config.vault_path.exists()


async def test_a_missing_ledger_is_refused_until_that_is_accepted(start_server: StartServer, config: Config) -> None:
    async with start_server(config) as server:
        alice = await server.user("alice")
        group = await alice.create_group("g")
        await alice.send(group, b"one")
    config.ledger_path.unlink()
    with pytest.raises(StoreError, match="the ledger is missing: restore the newest vault"):
        async with start_server(config):
            pass
    async with start_server(config, accepts_older=True) as server:
        alice = again(server, alice)
        await expect(alice.get("/me"), 401, 202)
        await alice.login("alice")
        assert await bodies(alice, group) == [b"one"]
        assert await alice.send(group, b"two") == NUMBERS + 1, "as after a restore"
        await healthy(server)
    assert book.tip(config.ledger_path)


async def test_copies_are_renewed_while_the_server_runs_and_when_it_stops(
    start_server: StartServer, copied: Config, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_server(copied) as server:
        alice = await server.user("alice")
        for name in ("g", "h"):
            await alice.send(await alice.create_group(name), b"body")
            await until(lambda: is_current(copied, copy))
        monkeypatch.setattr(vault_duty, "REST_FACTOR", 10**6)
        for name in ("i", "j"):
            await alice.send(await alice.create_group(name), b"body")
            await asyncio.sleep(0.5)
        assert not is_current(copied, copy), "they rest"
    assert is_current(copied, copy)
    for path in (copy, copy / KEYS, copy / LEDGER):
        assert path.stat().st_mode & 0o077 == 0


async def test_a_stop_waits_for_the_renewal_that_it_broke_off_and_renews_once_more(
    start_server: StartServer, copied: Config, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at once would write the same files."""
    begun, free, under_way, most = threading.Event(), threading.Event(), [0], [0]
    renew_all = keyring.update_copies

    def slow(*values: Any) -> None:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        begun.set()
        free.wait(PATIENCE)
        renew_all(*values)
        under_way[0] -= 1

    async with start_server(copied) as server:
        alice = await server.user("alice")
        await until(lambda: is_current(copied, copy))
        monkeypatch.setattr(keyring, "update_copies", slow)
        monkeypatch.setattr(vault_duty, "REST_FACTOR", 0)
        await alice.create_group("g")
        await until(begun.is_set)
        await alice.create_group("h")
        asyncio.get_running_loop().call_later(1, free.set)
    assert most == [1]
    assert is_current(copied, copy)


async def test_clients_are_served_while_a_copy_cannot_be_written(
    start_server: StartServer, copied: Config, copy: Path
) -> None:
    copy.write_bytes(b"no folder")
    async with start_server(copied) as server:
        assert str(copy) in await fault(server, HealthPart.VAULT_COPIES)
        alice = await server.user("alice")
        group = await alice.create_group("g")
        await alice.send(group, b"one")
        assert await bodies(alice, group) == [b"one"]
        assert await ready(server) == 200
        copy.unlink()
        await healthy(server)
        await until(lambda: is_current(copied, copy))


async def test_a_later_copy_is_never_overwritten_and_keeps_a_server_from_starting(
    start_server: StartServer, copied: Config, copy: Path
) -> None:
    """As where an image of the machine was brought back, and the copy on another disk was not."""
    async with start_server(copied):
        pass
    image = {path: path.read_bytes() for path in (copied.database, copied.keys_path, copied.ledger_path)}
    async with start_server(copied) as server:
        alice = await server.user("alice")
        await alice.send(await alice.create_group("g"))
    later = {path: path.read_bytes() for path in (copy / KEYS, copy / LEDGER)}
    for suffix in ("-wal", "-shm"):
        copied.database.with_name(copied.database.name + suffix).unlink(missing_ok=True)
    for path, data in image.items():
        path.write_bytes(data)
    for accepts_older in (False, True):
        with pytest.raises(
            StoreError, match=r"is older than the copy .*: replace the vault by the copy, or move the copy away"
        ):
            async with start_server(copied, accepts_older=accepts_older):
                pass
    away = copy.rename(copy.with_name("away"))
    async with start_server(copied) as server:
        alice = await server.user("alice")
        await until(lambda: is_current(copied, copy))
        copy.rename(copy.with_name("newer"))
        away.rename(copy)
        await alice.send(await alice.create_group("g"))
        told = await fault(server, HealthPart.VAULT_COPIES)
        assert str(copy) in told
        assert await ready(server) == 200
    assert {path: path.read_bytes() for path in (copy / KEYS, copy / LEDGER)} == later
