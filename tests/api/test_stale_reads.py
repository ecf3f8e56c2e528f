"""Every read of a request may fail at any row: no later request is answered from the past."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import hdrs

from conclave import app_keys
from conclave.server.routes import ROUTES
from conclave.store.engine.database import READERS
from tests.conftest import Running
from tests.support.client import PACKAGE, Client

FAR = 10_000


class BrokenError(Exception):
    """Raised where a row is read."""


class Breaking:
    """Makes rows, and raises at one of them; keeps what it raised, with all that its traceback holds."""

    def __init__(self) -> None:
        self.at = FAR
        self.kept: list[BrokenError] = []
        self._lock = threading.Lock()

    def row(self, cursor: sqlite3.Cursor, values: tuple[Any, ...]) -> sqlite3.Row:
        with self._lock:
            self.at -= 1
            breaks = not self.at
        if breaks:
            error = BrokenError()
            self.kept.append(error)
            raise error
        return sqlite3.Row(cursor, values)


async def populate(alice: Client, bob: Client) -> dict[str, str]:
    """Have something in every list, and return what the paths name."""
    group = await alice.create_group("book_club")
    await alice.post(f"/groups/{group}/commit", commit_message="YQ==", group_info="YQ==")
    await bob.join(group)
    for _ in range(3):
        await alice.send(group)
    await bob.upload(PACKAGE, last_resort=PACKAGE)
    other = await alice.create_group("other", public=False)
    await alice.invite(other, bob)
    third = await alice.create_group("third", public=False)
    await alice.bring(bob, third)
    return {"group_id": group, "user_id": bob.user_id, "username": "bob"}


@pytest.mark.parametrize("path", sorted(each.path for each in ROUTES if each.method == hdrs.METH_GET))
async def test_a_read_that_breaks_at_any_row_leaves_no_connection_in_the_past(
    running: Running, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    alice, bob = await running.users("alice", "bob")
    names = await populate(alice, bob)
    store, breaking = running.app[app_keys.STORE], Breaking()
    read = store.read

    async def read_and_break(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def broken(connection: sqlite3.Connection) -> Any:
            connection.row_factory = breaking.row
            try:
                return fn(connection, *args, **kwargs)
            finally:
                connection.row_factory = sqlite3.Row

        return await read(broken)

    monkeypatch.setattr(store, "read", read_and_break)
    for at in range(1, FAR):
        caller = await alice.another("alice")  # whose session is not in memory
        seen, breaking.at = len(breaking.kept), at
        await ask(running, caller, path.format(**names))
        breaking.at = FAR
        if len(breaking.kept) == seen:
            break
        number = await caller.send(names["group_id"])
        await caller.post("/logout")
        assert await last_numbers(read) == [number] * READERS, f"{path}: broken at row {at}"


async def ask(running: Running, caller: Client, path: str) -> None:
    headers = {"Authorization": f"Bearer {caller.token}"}
    async with running.http.get(f"{running.url}{path}", headers=headers) as response:
        if response.content_type != "text/event-stream":
            await response.read()


async def last_numbers(read: Callable[..., Any]) -> list[int]:
    """Return the last number of a message as each pooled connection sees it, all of them at the same time."""
    together = threading.Barrier(READERS)

    def last(connection: sqlite3.Connection) -> int:
        together.wait()
        return int(connection.execute("SELECT max(last_seq) FROM groups").fetchone()[0])

    return list(await asyncio.gather(*(read(last) for _ in range(READERS))))
