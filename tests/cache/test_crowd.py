"""Many who send and read at the same time, while another process touches the group again and again."""

import asyncio
import threading
from contextlib import closing
from uuid import UUID

from conclave.store import invalidation
from conclave.store.engine import sqlite
from tests.conftest import Running
from tests.support.client import Client
from tests.support.sample import amount

SENDS = amount(400, 60)
SENDERS, READERS = 4, 5


class Crowd:
    """What all have seen of a group so far: its last number, and how far each reader is."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.last = 0
        self.left = SENDERS

    async def send(self, client: Client) -> None:
        """Send, and note the number once it is acknowledged."""
        for n in range(SENDS):
            self.last = max(self.last, await client.send(self.group, b"%d" % n))
        self.left -= 1

    async def follow(self, client: Client) -> None:
        """Read on and on: every number once, in order, and nothing is missing that anybody has seen."""
        at = 0
        while at < SENDERS * SENDS:
            known, left = self.last, self.left
            page = await client.fetch(self.group, at, 500)
            assert [each.sequence_num for each in page] == list(range(at + 1, at + 1 + len(page)))
            at += len(page)
            assert at >= known, "somebody had seen it before this was asked"
            self.last = max(self.last, at)
            assert left or page, "all was sent before this was asked"


async def test_readers_miss_nothing_that_anybody_has_seen(running: Running) -> None:
    users = await running.users(*(f"user_{n}" for n in range(SENDERS + READERS)))
    crowd = Crowd(await users[0].create_group("crowd"))
    for user in users[1:]:
        await user.join(crowd.group)
    found = await running.query("SELECT group_key FROM groups WHERE group_id = ?", UUID(crowd.group).bytes)
    over = threading.Event()

    def touch_on() -> None:
        with closing(sqlite.connect(running.config.database)) as connection:
            while not over.wait(0.003):
                with sqlite.write_transaction(connection):
                    invalidation.invalidate_group(connection, found[0][0])

    touching = asyncio.create_task(asyncio.to_thread(touch_on))
    try:
        await asyncio.gather(*map(crowd.send, users[:SENDERS]), *map(crowd.follow, users[SENDERS:]))
    finally:
        over.set()
        await touching
