"""A server, real runs and a plain model agree on what is served, stored and archived, through random histories.

The model knows no SQL, no tables and none of the project's functions: lists, marks and the table of policies.
`make test` plays one of the same few, `make test-all` all of them; `make histories` plays more, others each time.
"""

import asyncio
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

import pytest

from conclave.config.archive import ArchiveConfig
from conclave.config.settings import Config
from conclave.retention.policy import KEEP
from tests.conftest import Running
from tests.support.beside import archived
from tests.support.cleaner import Cleaner
from tests.support.client import Client, encode
from tests.support.failpoints import ARCHIVE_POINTS
from tests.support.model import Sent
from tests.support.sample import amount, some

pytestmark = pytest.mark.system

DAY = 86_400
AFTER, MARGIN = 7 * DAY, DAY
NAMES = ("alice", "bob", "carol", "dave")
EXPIRIES = (-1, -1, 0, 5 * DAY, 8 * DAY, 9 * DAY, 20 * DAY, 40 * DAY)
TURNS = amount(4, 2)


def seeds() -> Sequence[int]:
    """The histories that are played: those of CONCLAVE_HISTORIES, which is FIRST:COUNT, or some of a few."""
    if not (wanted := os.environ.get("CONCLAVE_HISTORIES")):
        return some(range(1, 9), 1, "histories of an archive")
    first, _, count = wanted.partition(":")
    return range(int(first), int(first) + int(count or 1))


@dataclass
class Group:
    """A group as the model sees it: watermarks by member, messages by number; ``cold`` are archived.

    ``moving`` may have been on their way there when a run failed; the next one decides.
    """

    expiry: int = -1
    watermarks: dict[int, int] = field(default_factory=dict)
    messages: dict[int, Sent] = field(default_factory=dict)
    cold: set[int] = field(default_factory=set)
    moving: set[int] = field(default_factory=set)
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
        self.moving &= kept

    def movable(self, now: int) -> set[int]:
        """What is not archived and old enough, if the group uses the archive."""
        if self.expiry == 0 or 0 < self.expiry <= AFTER + MARGIN:
            return set()
        return {number for number, sent in self.messages.items() if sent.created_at < now - AFTER} - self.cold

    def settle(self, found: set[int]) -> None:
        """Take what was found in the archive for what is there, if it can be."""
        assert self.cold <= found <= self.cold | self.moving
        self.cold, self.moving = found, set()


class World:
    """A server with its clients beside the model; what happens, happens to both."""

    def __init__(self, running: Running, cleaner: Cleaner, seed: int) -> None:
        self.running = running
        self.cleaner = cleaner
        self.chance = random.Random(seed)
        self.users: dict[int, Client] = {}
        self.groups: dict[str, Group] = {}
        self.has_settled = True  # no move is under way, or may be
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

    async def end(self) -> None:
        """Delete a group or an account, or neither."""
        await self.chance.choice([self.delete_group, self.delete_account, self.nothing])()

    async def nothing(self) -> None:
        """Some turns delete nothing."""

    async def delete_group(self) -> None:
        key, group = self.pick()
        await self.users[0].post(f"/groups/{key}/delete")
        group.deleted = True

    async def delete_account(self) -> None:
        if len(self.users) <= 2:
            return
        user = self.chance.choice([user for user in self.users if user])
        await self.users.pop(user).post("/delete-account", password="correct horse")
        self.gone.add(user)
        for group in self.living.values():
            if group.watermarks.pop(user, None) is not None:
                group.raise_floor()

    async def clean_up(self, *, to_the_end: bool = False) -> None:
        """Do a run that may fail on its way, and then perhaps another; compare what it says and what it leaves."""
        failure = self.chance.choice(["", *(f"{point}=io" for point in ARCHIVE_POINTS)])
        if failure and self.chance.random() < 0.3:
            failure += "@2"
        if not await self.run(failure) and (to_the_end or self.chance.random() < 0.5):
            assert await self.run("")

    async def run(self, failure: str) -> bool:
        """Do a run; tell whether it came to its end."""
        await self.running.settle()
        waiting = await self.restored()
        run = partial(self.cleaner.try_run, failpoint=failure, batch_rows=self.chance.choice([0, 0, 10, 30]))
        report = await asyncio.to_thread(run, self.running.config, self.now)
        for group in self.groups.values():
            if group.deleted:
                group.messages, group.cold, group.moving = {}, set(), set()
            group.apply_rules(self.now, self.gone)
        movable = [(group, group.movable(self.now)) for key, group in self.groups.items() if key not in waiting]
        if report["error"]:
            assert report["error"] == "OperationalError: disk I/O error", failure
            for group, numbers in movable:
                group.moving |= numbers
        else:
            if self.has_settled:  # else it may have finished moves of what is gone since
                assert report["archived"] == sum(len(numbers) for _, numbers in movable)
            for group, numbers in movable:
                group.cold |= numbers
            await self.compare_stored()
        self.has_settled = not report["error"]
        await self.compare_served()
        return self.has_settled

    async def restore(self) -> None:
        """Take a group back from the archive. The next run reclaims its space there, and the one after it moves it."""
        if not (choice := [(key, group) for key, group in self.living.items() if group.cold]):
            return
        key, group = self.chance.choice(choice)
        config = replace(self.running.config, archive=ArchiveConfig(after=KEEP, margin=MARGIN))
        told = await asyncio.to_thread(self.cleaner.restore, config, self.now, UUID(key).bytes, "")
        assert told == {"restored": len(group.cold)}
        group.cold = set()
        await self.compare_served()

    async def restored(self) -> set[str]:
        """Return the groups that the archive still has space of."""
        rows = await self.running.query("SELECT group_id FROM archive_returned JOIN groups USING (group_key)")
        return {str(UUID(bytes=row[0])) for row in rows}

    async def compare_served(self) -> None:
        for key, group in self.living.items():
            await self.page_through(key, self.chance.choice(list(group.watermarks)))

    async def compare_stored(self) -> None:
        keys = {
            row[1]: str(UUID(bytes=row[0]))
            for row in await self.running.query("SELECT group_id, group_key FROM groups")
        }
        assert set(keys.values()) == set(self.living)
        hot = sorted(
            (keys[row[0]], row[1]) for row in await self.running.query("SELECT group_key, sequence_num FROM messages")
        )
        cold = sorted((keys[key], number) for key, number in archived(self.running.config))
        stored = [(key, number) for key, group in self.groups.items() for number in group.messages]
        assert sorted([*hot, *cold]) == sorted(stored), "each message is in one of the two"
        for key, group in self.groups.items():
            group.settle({number for each, number in cold if each == key})
        counted = await self.running.query("SELECT sum(message_count) FROM archive_parts")
        assert (counted[0][0] or 0) == len(cold)
        assert (await self.running.query("SELECT count(*) FROM user_tombstones"))[0][0] == 0


@pytest.fixture
def config(config: Config) -> Config:
    return replace(
        config, token_ttl_seconds=365 * DAY, archive=ArchiveConfig(after=AFTER, margin=MARGIN, reclaim_interval=0)
    )


@pytest.mark.parametrize("seed", seeds())
async def test_random_histories_are_served_and_stored_as_the_model_says(
    running: Running, cleaner: Cleaner, seed: int
) -> None:
    world = World(running, cleaner, seed)
    await world.begin()
    for turn in range(TURNS):
        for _ in range(25):
            await world.happen()
        if turn:
            await world.end()
        running.clock.advance(5 * DAY)
        await world.clean_up(to_the_end=turn == TURNS - 1)
        if world.has_settled and world.chance.random() < 0.3:
            await world.restore()


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
