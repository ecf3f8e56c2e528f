"""What was erased is in no file: every byte of every file is searched, after runs of either engine."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import pytest

from conclave.clock import FakeClock
from conclave.config import CleanupConfig, Config
from conclave.policy import PolicySettings
from conclave.store import bodies, database, groups, members, messages, state
from conclave.store.members import Membership
from tests.cleaner import Cleaner
from tests.forensics import Search

HOUR = 3600
START = 1_700_000_000
GROUPS = 200
ROUNDS = 4
ACCOUNT_SHARE, COMMIT_SHARE = 0.1, 0.2
"""How many messages are those of an account that is deleted in the round, and how many of these are commits."""

BODIES = 100_000
"""A small proof would see nothing: SQLite leaves stale copies only where pages split or merge."""


@dataclass
class World:
    """A store with many interleaved groups, and which bodies should be where."""

    search: Search
    chance: random.Random
    connection: sqlite3.Connection = field(init=False)
    now: int = START
    memberships: list[Membership] = field(default_factory=list)
    alive: dict[int, tuple[int, int]] = field(default_factory=dict)  # body number: group's position, sequence number
    erased: set[int] = field(default_factory=set)
    made: int = 0
    sender: bytes = b""  # who also sends in this round, and whose account is deleted after it
    applications: set[int] = field(default_factory=set)  # bodies of that account that are no commits

    def add_groups(self, policy: PolicySettings) -> None:
        user_id = uuid4().bytes
        self.connection.execute(
            "INSERT INTO users (user_id, username, password_hash, alias, created_at) VALUES (?, 'u', '', '', 0)",
            (user_id,),
        )
        for position in range(GROUPS):
            group_id = groups.add(self.connection, user_id, f"g{position}", "", self.now)
            expiry = {0: -1, 1: HOUR, 2: 0, 3: 3 * HOUR}[position % 4]
            member = members.require_member(self.connection, group_id, user_id)
            groups.change(
                self.connection, member.group, {"message_expiry_seconds": expiry}, policy, FakeClock(self.now).read()
            )
            self.memberships.append(members.require_member(self.connection, group_id, user_id))

    def send(self, count: int) -> None:
        for _ in range(count):
            position = self.chance.randrange(GROUPS)
            size = int(2 ** self.chance.uniform(0, 16)) if self.chance.random() < 0.2 else self.chance.randint(1, 400)
            body = self.search.body(self.made, size)
            member, is_commit = self.memberships[position], False
            if self.chance.random() < ACCOUNT_SHARE:
                member = replace(member, member_id=0, user_id=self.sender)
                is_commit = self.chance.random() < COMMIT_SHARE
                if not is_commit:
                    self.applications.add(self.made)
            number = messages.append(self.connection, member, body, self.now, is_commit=is_commit)
            self.alive[self.made] = (position, number)
            self.made += 1

    def fetch_some(self) -> None:
        """Move the watermarks of the delete-after-fetch groups to somewhere."""
        for position in range(2, GROUPS, 4):
            key = self.memberships[position].group.group_key
            last = self.connection.execute("SELECT last_seq FROM groups WHERE group_key = ?", (key,)).fetchone()[0]
            self.connection.execute(
                "UPDATE members SET watermark = max(watermark, ?) WHERE group_key = ?",
                (self.chance.randint(0, last), key),
            )

    def delete_account(self) -> None:
        self.connection.execute(
            "INSERT INTO user_tombstones (user_id, created_at) VALUES (?, ?)", (self.sender, self.now)
        )

    def settle(self) -> None:
        """Note what the run has to have erased."""
        left = {tuple(row) for row in self.connection.execute("SELECT group_key, sequence_num FROM messages")}
        for made, (position, number) in list(self.alive.items()):
            if (self.memberships[position].group.group_key, number) not in left:
                self.erased.add(made)
                del self.alive[made]


def test_erased_bodies_are_in_no_file_and_the_others_are_whole(tmp_path: Path, cleaner: Cleaner) -> None:
    config = Config(database_path=str(tmp_path / "hot.db"))
    database.prepare(config.database)
    world = World(Search(), random.Random(7))
    with opened(config, world) as connection, database.write_transaction(connection):
        state.begin_serving(connection, config.policy, FakeClock(world.now).read())
        world.add_groups(config.policy)
    for turn in range(ROUNDS):
        world.sender = uuid4().bytes
        with opened(config, world) as connection:
            for _ in range(20):
                with database.write_transaction(connection):
                    world.send(BODIES // ROUNDS // 20)
            with database.write_transaction(connection):
                world.fetch_some()
                world.delete_account()
        world.now += 2 * HOUR
        before = config.database.stat().st_size
        engine = CleanupConfig(engine=("sql", "spark")[turn % 2])
        report = cleaner.run(replace(config, cleanup=engine), world.now)
        with opened(config, world) as connection:
            world.settle()
            assert world.applications <= world.erased, "whatever else would have kept them"
            assert connection.execute("PRAGMA freelist_count").fetchone()[0] == 0
        assert report["deleted"]["expired"] > 0
        assert report["deleted"]["fetched"] > 0
        assert report["deleted"]["deleted_account"] > 0
        assert world.search.left_of(world.erased, tmp_path) == set()
        assert config.database.stat().st_size < before, "the file shrinks"
    assert len(world.erased) > BODIES / 3
    assert len(world.alive) > BODIES / 4
    with opened(config, world) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        check_whole(world)
        commits = connection.execute("SELECT count(*) FROM messages WHERE sender_id = ? AND is_commit", (world.sender,))
        assert commits.fetchone()[0] > 0, "those of a deleted account stay"
    planted = next(number for number in world.erased)
    (tmp_path / "planted").write_bytes(b"something before" + world.search.body(planted, 24))
    assert world.search.left_of(world.erased, tmp_path) == {planted}, "the search finds a planted body"


@contextmanager
def opened(config: Config, world: World) -> Iterator[sqlite3.Connection]:
    """Open the store for the world. Not while files are searched: closing a file lets go of SQLite's locks on it."""
    with closing(database.connect(config.database)) as connection:
        world.connection = connection
        yield connection


def check_whole(world: World) -> None:
    """Every body that should have stayed is there, whole."""
    rows = {
        (row["group_key"], row["sequence_num"]): row["message_id"]
        for row in world.connection.execute("SELECT * FROM messages")
    }
    for made, (position, number) in world.alive.items():
        body = bodies.get(world.connection, rows[world.memberships[position].group.group_key, number])
        assert body == world.search.body(made, len(body))


@pytest.mark.parametrize("size", [1, 24, 4000, 1_000_000])
def test_replaced_group_info_is_in_no_file_after_a_run(tmp_path: Path, cleaner: Cleaner, size: int) -> None:
    config = Config(database_path=str(tmp_path / "hot.db"), cleanup=CleanupConfig(engine="sql"))
    database.prepare(config.database)
    world = World(Search(), random.Random(7))
    with opened(config, world) as connection, database.write_transaction(connection):
        state.begin_serving(connection, config.policy, FakeClock(START).read())
        world.add_groups(config.policy)
        owner = world.memberships[0]
        for number in (1, 2):
            group = members.require_member(connection, owner.group.group_id, owner.user_id).group
            groups.set_group_info(connection, group, world.search.body(number, size))
    cleaner.run(config, START)
    assert world.search.left_of({1}, tmp_path) == set()
    assert world.search.left_of({2}, tmp_path) == ({2} if size >= 12 else set()), "the newest stays"
