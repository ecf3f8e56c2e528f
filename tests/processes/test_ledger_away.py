"""A database that was replaced by an older copy, while the disk of its purge ledger is away."""

import shutil
from pathlib import Path

import pytest
from aiohttp import ClientSession

from conclave.store.ledger import book
from conclave.store.ledger.book import Entry
from tests.support.client import Client
from tests.support.server import PATIENCE, ServerProcess

SETTINGS = '[ledger]\npath = "elsewhere/purges.ledger"\n[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n'


def put(folder: Path, copy: str) -> None:
    """Put a copy in the place of the database."""
    for suffix in ("-wal", "-shm"):
        (folder / f"conclave.db{suffix}").unlink(missing_ok=True)
    shutil.copy(folder / copy, folder / "conclave.db")


def refusal(folder: Path) -> str:
    """Have a server refuse to start, and return why."""
    server = ServerProcess(folder, SETTINGS)
    try:
        assert server.process.wait(PATIENCE) == 1
        return (folder / "server.log").read_text()
    finally:
        server.__exit__()


@pytest.mark.parametrize("away", ["file", "folder", "another"])
async def test_an_older_copy_is_not_served_while_the_ledger_is_away(tmp_path: Path, away: str) -> None:
    """Its disk is not mounted, or another one is, with the ledger of another database."""
    ledger = tmp_path / "elsewhere" / "purges.ledger"
    ledger.parent.mkdir()
    async with ClientSession() as http:
        with ServerProcess(tmp_path, SETTINGS) as server:
            alice, bob = [await Client.register(http, server.url, name) for name in ("alice", "bob")]
            group = await alice.create_group("friends")
            await bob.join(group)
            assert server.stop()[0] == 0
        shutil.copy(tmp_path / "conclave.db", tmp_path / "older.db")
        with ServerProcess(tmp_path, SETTINGS) as server:
            bob.url = server.url
            await bob.leave(group)
            assert server.stop()[0] == 0
        shutil.copy(tmp_path / "conclave.db", tmp_path / "newest.db")
        moved = ledger if away == "file" else ledger.parent
        moved.rename(tmp_path / "unmounted")
        if away == "another":
            ledger.parent.mkdir()
            book.append(ledger, "00" * 16, 0, [Entry(10**6, 0, "alive", 0, None)])
        put(tmp_path, "older.db")
        for _ in range(2):
            told = refusal(tmp_path)
            assert "is an older copy of the database that was served here" in told
            assert f"remove {tmp_path}/conclave.data/.ledger-mark" in told, "if an operator wants that"
            assert told.count("\n") == 1, "in one line"
        if away == "folder":
            put(tmp_path, "newest.db")
            with ServerProcess(tmp_path, SETTINGS) as server:
                assert server.stop()[0] == 0, "what is no copy is served"
            put(tmp_path, "older.db")
        if away == "another":
            shutil.rmtree(ledger.parent)
        (tmp_path / "unmounted").rename(moved)
        with ServerProcess(tmp_path, SETTINGS) as server:
            alice.url = server.url
            await alice.login("alice")
            assert list(await alice.roles(group)) == ["alice"], "what the ledger tells is taken back"
            assert server.stop()[0] == 0
