"""A server, real runs and a plain model agree on what is served, stored and archived, through random histories.

The model knows no SQL, no tables and none of the project's functions: lists, marks and the table of policies.
"""

import asyncio
import random
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import pyarrow
import pytest
from deltalake import DeltaTable

from conclave.config import ArchiveConfig, Config
from tests.cleaner import Cleaner
from tests.client import Client, encode
from tests.conftest import Running
from tests.spark.model import Sent

DAY = 86_400
AFTER, MARGIN = 7 * DAY, DAY
NAMES = ("alice", "bob", "carol", "dave")
EXPIRIES = (-1, -1, 0, 5 * DAY, 8 * DAY, 9 * DAY, 20 * DAY, 40 * DAY)
TURNS = 3

FAILURES = (
    "archive.fixed=io",
    "archive.appended=io",
    "archive.group_switched=io@2",
    "archive.copies_erased=io",
    "archive.copies_deleted=io",
    "archive.rows_deleted=io",
    "archive.index_settled=io",
)


@dataclass
class Group:
    """A group as the model sees it: watermarks by member, messages by number; ``cold`` are archived."""

    expiry: int = -1
    watermarks: dict[int, int] = field(default_factory=dict)
    messages: dict[int, Sent] = field(default_factory=dict)
    cold: set[int] = field(default_factory=set)
    last: int = 0
    floor: int = 0
    gone_below: int = 0
    expired_before: int = 0
    deleted: bool = False

    def raise_floor(self) -> None:
        self.floor = max(self.floor, min(self.watermarks.values()))

    def send(self, sender: int, at: int, *, is_commit: bool) -> None:
        self.last += 1
        self.messages[self.last] = Sent(at, sender, is_commit)
        if self.watermarks[sender] == self.last - 1:
            self.watermarks[sender] = self.last

    def set_expiry(self, expiry: int, now: int) -> None:
        self.raise_floor()
        if self.expiry > 0 and expiry != self.expiry:
            self.expired_before = max(self.expired_before, now - self.expiry)
        if self.expiry == 0 and expiry != 0:
            self.gone_below = max(self.gone_below, self.floor)
        elif expiry == 0 and self.expiry != 0:
            self.floor = max(self.gone_below, min(self.watermarks.values()))
        self.expiry = expiry

    def fetched(self, user: int, after: int, page: list[int]) -> None:
        self.watermarks[user] = max(self.watermarks[user], min(after, self.last), *page[-1:])

    def visible(self, now: int, gone: set[int]) -> list[int]:
        """What a member is served."""
        over = max(self.expired_before, now - self.expiry if self.expiry > 0 else 0)
        return [
            number
            for number, sent in sorted(self.messages.items())
            if number > self.gone_below and sent.created_at >= over and (sent.is_commit or sent.sender not in gone)
        ]

    def apply_rules(self, now: int, gone: set[int]) -> None:
        if self.expiry == 0:
            self.floor = max(self.floor, min(self.watermarks.values()))
            self.gone_below = max(self.gone_below, self.floor)
        kept = set(self.visible(now, gone))
        self.messages = {number: sent for number, sent in self.messages.items() if number in kept}
        self.cold &= kept

    def move(self, now: int) -> int:
        """Archive what is old enough, if the group uses the archive; return how many that are."""
        if self.expiry == 0 or 0 < self.expiry <= AFTER + MARGIN:
            return 0
        old = {number for number, sent in self.messages.items() if sent.created_at < now - AFTER}
        moved = len(old - self.cold)
        self.cold |= old
        return moved


class World:
    """A server with its clients beside the model; what happens, happens to both."""

    def __init__(self, running: Running, cleaner: Cleaner, seed: int) -> None:
        self.running = running
        self.cleaner = cleaner
        self.chance = random.Random(seed)
        self.users: dict[int, Client] = {}
        self.groups: dict[str, Group] = {}
        self.gone: set[int] = set()

    @property
    def now(self) -> int:
        return self.running.clock.now()

    @property
    def living(self) -> dict[str, Group]:
        return {key: group for key, group in self.groups.items() if not group.deleted}

    def pick(self) -> tuple[str, Group]:
        return self.chance.choice(list(self.living.items()))

    async def begin(self) -> None:
        self.users = dict(enumerate(await self.running.users(*NAMES)))
        for number in range(6):
            key = await self.users[0].create_group(f"group_{number}")
            self.groups[key] = Group(watermarks={0: 0})
            for user in range(1, len(NAMES)):
                await self.join(key, user)

    async def join(self, key: str, user: int) -> None:
        group = self.groups[key]
        await self.users[user].join(key)
        group.raise_floor()
        group.watermarks[user] = 0

    async def send(self) -> None:
        key, group = self.pick()
        for _ in range(self.chance.randint(1, 5)):
            sender = self.chance.choice(list(group.watermarks))
            is_commit = self.chance.random() < 0.25
            body = encode(b"%d of %s" % (group.last + 1, key.encode()))
            if is_commit:
                await self.users[sender].post(f"/groups/{key}/commit", commit_message=body)
            else:
                await self.users[sender].post(f"/groups/{key}/messages", mls_message=body)
            group.send(sender, self.now, is_commit=is_commit)

    async def come_or_go(self) -> None:
        key, group = self.pick()
        user = self.chance.choice([user for user in self.users if user])
        if user not in group.watermarks:
            await self.join(key, user)
        else:
            await self.users[user].leave(key)
            del group.watermarks[user]
            group.raise_floor()

    async def change_policy(self) -> None:
        key, group = self.pick()
        expiry = self.chance.choice(EXPIRIES)
        await self.users[0].set_expiry(key, expiry)
        group.set_expiry(expiry, self.now)

    async def pass_time(self) -> None:
        self.running.clock.advance(self.chance.choice([1, 3600, DAY, 2 * DAY]))

    async def read(self) -> None:
        key, group = self.pick()
        for user in self.chance.sample(list(group.watermarks), self.chance.randint(1, len(group.watermarks))):
            await self.page_through(key, user)

    async def page_through(self, key: str, user: int, limits: tuple[int, ...] = (1, 3, 7, 500)) -> None:
        """Read page by page, from somewhere to the end, and compare."""
        group = self.groups[key]
        after = self.chance.choice([0, 0, self.chance.randint(0, group.last + 1)])
        while True:
            limit = self.chance.choice(limits)
            page = await self.users[user].fetch(key, after, limit)
            await self.running.settle()
            expected = [number for number in group.visible(self.now, self.gone) if number > after][:limit]
            assert [message.sequence_num for message in page] == expected, (key, after, limit)
            assert all(message.body == b"%d of %s" % (message.sequence_num, key.encode()) for message in page)
            group.fetched(user, after, expected)
            if not page:
                return
            after = expected[-1]

    async def happen(self) -> None:
        common = [self.send, self.send, self.send, self.pass_time, self.pass_time, self.read]
        await self.chance.choice([*common, self.come_or_go, self.change_policy])()

    async def delete_group(self) -> None:
        key, group = self.pick()
        await self.users[0].post(f"/groups/{key}/delete")
        group.deleted = True

    async def delete_account(self) -> None:
        user = self.chance.choice([user for user in self.users if user])
        await self.users.pop(user).post("/delete-account", password="correct horse")
        self.gone.add(user)
        for group in self.living.values():
            if group.watermarks.pop(user, None) is not None:
                group.raise_floor()

    async def clean_up(self) -> None:
        """Do a run, sometimes after one that fails on its way; compare what it says and what it leaves."""
        await self.running.settle()
        if failure := self.chance.choice(["", *FAILURES]):
            await asyncio.to_thread(self.cleaner.try_run, self.running.config, self.now, failpoint=failure)
            for group in self.living.values():
                group.apply_rules(self.now, self.gone)
            await self.compare_served()
        report = await asyncio.to_thread(self.cleaner.run, self.running.config, self.now)
        moved = 0
        for group in self.groups.values():
            if group.deleted:
                group.messages, group.cold = {}, set()
            else:
                group.apply_rules(self.now, self.gone)
                moved += group.move(self.now)
        if not failure:
            assert report["archived"] == moved
        await self.compare_stored()
        await self.compare_served()

    async def compare_served(self) -> None:
        for key, group in self.living.items():
            await self.page_through(key, self.chance.choice(list(group.watermarks)))

    async def compare_stored(self) -> None:
        keys = {
            row[1]: str(UUID(bytes=row[0]))
            for row in await self.running.query("SELECT group_id, group_key FROM groups")
        }
        assert set(keys.values()) == set(self.living)
        hot = await self.running.query("SELECT group_key, sequence_num FROM messages")
        cold = archived(self.running.config)
        for found, expected in (
            (hot, {key: set(group.messages) - group.cold for key, group in self.groups.items()}),
            (cold, {key: group.cold for key, group in self.groups.items()}),
        ):
            named = sorted((keys[row[0]], row[1]) for row in found)
            assert named == sorted((key, number) for key, numbers in expected.items() for number in numbers)
        counted = await self.running.query("SELECT sum(message_count) FROM archive_parts")
        assert (counted[0][0] or 0) == len(cold)
        assert (await self.running.query("SELECT count(*) FROM user_tombstones"))[0][0] == 0


def archived(config: Config) -> list[tuple[int, int]]:
    """Group key and number of all rows of the table; none may be there twice."""
    if not DeltaTable.is_deltatable(str(config.archive_path)):
        return []
    table: pyarrow.Table = DeltaTable(str(config.archive_path)).to_pyarrow_table(columns=["group_key", "sequence_num"])
    return list(zip(table["group_key"].to_pylist(), table["sequence_num"].to_pylist(), strict=True))


@pytest.fixture
def config(config: Config) -> Config:
    return replace(config, archive=ArchiveConfig(after=AFTER, margin=MARGIN))


@pytest.mark.parametrize("seed", [1, 2])
async def test_random_histories_are_served_and_stored_as_the_model_says(
    running: Running, cleaner: Cleaner, seed: int
) -> None:
    world = World(running, cleaner, seed)
    await world.begin()
    ends: list[Any] = [world.delete_group, world.delete_account]
    for turn in range(TURNS):
        for _ in range(25):
            await world.happen()
        if turn:
            await ends[turn - 1]()
        running.clock.advance(5 * DAY)
        await world.clean_up()


async def test_a_reader_sees_each_message_once_and_in_order_while_runs_move_them(
    running: Running, cleaner: Cleaner
) -> None:
    count, batches = 240, 3
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    for number in range(1, count + 1):
        assert await alice.send(group, b"%d" % number) == number
    running.clock.advance(AFTER + 1)
    run = asyncio.create_task(
        asyncio.to_thread(cleaner.try_run, running.config, running.clock.now(), batch_rows=count // batches)
    )
    chance, passes, borders = random.Random(1), 0, set()
    while not run.done() or not passes:
        seen: list[tuple[int, bytes]] = []
        while page := await alice.fetch(group, len(seen), chance.choice([1, 10, 50])):
            seen += [(message.sequence_num, message.body) for message in page]
            borders.add((await running.query("SELECT archived_seq FROM groups"))[0][0])
        assert seen == [(number, b"%d" % number) for number in range(1, count + 1)]
        passes += 1
    report = await run
    assert not report["error"], report["error"]
    assert report["archived"] == count
    assert len(borders) > 1, "it read while the border rose"
    assert len(archived(running.config)) == count
