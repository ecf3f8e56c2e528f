"""A database that was replaced by an older copy, while the disk of its vault is away; and an older vault."""

import shutil
from pathlib import Path

import pytest
from aiohttp import ClientSession

from tests.support.client import Client
from tests.support.server import PATIENCE, ServerProcess

SETTINGS = '[vault]\npath = "disk/vault"\n[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n'


def refusal(folder: Path, *options: str) -> str:
    """Have a server refuse to start, and return why."""
    server = ServerProcess(folder, SETTINGS, options=options)
    try:
        assert server.process.wait(PATIENCE) == 1
        told = (folder / "server.log").read_text()
        assert told.count("\n") == 1, "in one line"
        return told
    finally:
        server.__exit__()


@pytest.mark.parametrize("away", ["keys", "folder", "disk", "another"])
async def test_nothing_is_served_while_the_vault_is_away(tmp_path: Path, away: str) -> None:
    """Its disk is not mounted, or another one is, with the vault of another database."""
    disk, database = tmp_path / "disk", tmp_path / "conclave.db"
    disk.mkdir()
    async with ClientSession() as http:
        with ServerProcess(tmp_path, SETTINGS) as server:
            alice, bob = [await Client.register(http, server.url, name) for name in ("alice", "bob")]
            group = await alice.create_group("friends")
            await bob.join(group)
            assert server.stop()[0] == 0
        shutil.copy(database, tmp_path / "older.db")
        with ServerProcess(tmp_path, SETTINGS) as server:
            bob.url = server.url
            await bob.leave(group)
            assert server.stop()[0] == 0
        moved = {"keys": disk / "vault" / "keys", "folder": disk / "vault"}.get(away, disk)
        moved.rename(tmp_path / "unmounted")
        if away == "another":
            disk.mkdir()
            database.rename(tmp_path / "newest.db")
            with ServerProcess(tmp_path, SETTINGS) as server:
                assert server.stop()[0] == 0
        shutil.copy(tmp_path / "older.db", database)
        told = "belongs to another database" if away == "another" else "the vault is missing"
        for options in ((), ("--accept-older-vault",)):
            assert told in refusal(tmp_path, *options)
        if away == "another":
            shutil.rmtree(disk)
        (tmp_path / "unmounted").rename(moved)
        with ServerProcess(tmp_path, SETTINGS) as server:
            alice.url = server.url
            await alice.login("alice")
            assert list(await alice.roles(group)) == ["alice"], "what the ledger tells is taken back"
            assert server.stop()[0] == 0


async def test_an_older_vault_is_served_if_that_is_meant(tmp_path: Path) -> None:
    vault, older = tmp_path / "disk" / "vault", tmp_path / "older"
    vault.parent.mkdir()
    async with ClientSession() as http:
        with ServerProcess(tmp_path, SETTINGS) as server:
            alice = await Client.register(http, server.url, "alice")
            await alice.send(await alice.create_group("kept"), b"kept")
            assert server.stop()[0] == 0
        shutil.copytree(vault, older)
        with ServerProcess(tmp_path, SETTINGS) as server:
            alice.url = server.url
            group = await alice.create_group("lost")
            await alice.send(group, b"lost")
            assert server.stop()[0] == 0
        shutil.rmtree(vault)
        older.rename(vault)
        told = refusal(tmp_path)
        assert "is older than the database, which has 1 messages without keys" in told
        assert "with --accept-older-vault these messages are lost" in told
        with ServerProcess(tmp_path, SETTINGS, options=("--accept-older-vault",)) as server:
            alice.url = server.url
            await alice.login("alice")
            assert await alice.fetch(group) == []
            assert server.stop()[0] == 0
        with ServerProcess(tmp_path, SETTINGS) as server:
            assert server.stop()[0] == 0, "once is enough"
