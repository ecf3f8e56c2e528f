"""What was erased cannot be read from any file, of either tier, after runs of either engine."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from deltalake import DeltaTable

from conclave.config.archive import ArchiveConfig
from conclave.config.cleanup import CleanupConfig
from tests.proof.stores import examined
from tests.support.archived import DAY, USERS, Store
from tests.support.cleaner import Cleaner
from tests.support.forensics import BLOCK
from tests.support.sample import amount

pytestmark = pytest.mark.system

HOUR = 3600
GROUPS = 200
EXPIRIES = (-1, -1, 0, 2 * DAY, 9 * DAY, 20 * DAY)
"""Two days never reach the archive."""

ENGINES = ("sql", "sql", "spark", "spark", "spark")
"""What does the run of each round. From the first of Spark on, messages move to the archive."""

BODIES = amount(100_000, 10_000)
"""A small proof would see nothing: SQLite leaves stale copies only where pages split or merge."""

BATCH, CROWD = BODIES * 8 // 100, 2
"""So many messages move at a time, and so few small files are not compacted: there is more than one batch, and both."""

LARGEST = 65_536
ACCOUNT_SHARE, COMMIT_SHARE = 0.1, 0.2
"""How many messages are those of accounts that come to be deleted, and how many of these are commits."""

Key = tuple[int, int]
"""Group key and sequence number."""


class World:
    """A store with many interleaved groups, and what has become of each message."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.chance = random.Random(7)
        self.expiries = {store.add_group(expiry): expiry for expiry in self.some(EXPIRIES, GROUPS)}
        self.fetched: dict[int, int] = {}
        self.sent_by: dict[bytes, set[Key]] = {}
        self.commits: set[Key] = set()

    def some(self, of: tuple[int, ...], count: int) -> Iterator[int]:
        for position in range(count):
            yield of[position % len(of)]

    def size(self) -> int:
        if len(self.store.made) < 2:
            return (1, LARGEST)[len(self.store.made)]
        return int(2 ** self.chance.uniform(0, 16)) if self.chance.random() < 0.2 else self.chance.randint(1, 400)

    def send_for_a_week(self, count: int) -> None:
        """Send from two accounts, too: one is deleted in this round, the other in the next, when it is archived."""
        passing = [uuid4().bytes, uuid4().bytes]
        self.sent_by |= {user_id: set() for user_id in passing}
        group_keys = list(self.expiries)
        for _ in range(7 * 3):
            with self.store.opened() as connection:
                for _ in range(count // 21 + 1):
                    sender, is_commit = USERS[0], False
                    if self.chance.random() < ACCOUNT_SHARE:
                        sender, is_commit = self.chance.choice(passing), self.chance.random() < COMMIT_SHARE
                    group_key = self.chance.choice(group_keys)
                    key = self.store.append(connection, group_key, self.size(), sender, is_commit=is_commit)
                    if is_commit:
                        self.commits.add(key)
                    elif sender in passing:
                        self.sent_by[sender].add(key)
            self.store.now += 8 * HOUR

    def fetch_some(self) -> None:
        """Move the watermarks of the delete-after-fetch groups to somewhere."""
        last = dict(self.store.query("SELECT group_key, last_seq FROM groups"))
        for group_key, expiry in self.expiries.items():
            if expiry == 0:
                self.fetched[group_key] = max(self.fetched.get(group_key, 0), self.chance.randint(0, last[group_key]))
                self.store.fetch(group_key, self.fetched[group_key])

    def change_some(self, turn: int) -> None:
        """Give some of the groups that keep another policy, and delete some; and two accounts."""
        keeping = [group_key for group_key, expiry in self.expiries.items() if expiry == -1]
        for group_key, expiry in zip(self.chance.sample(keeping, 6), (12 * DAY,) * 4 + (0,) * 2, strict=True):
            self.store.set_expiry(group_key, expiry)
            self.expiries[group_key] = expiry
        for group_key in self.chance.sample(list(self.expiries), 2):
            self.store.delete_group(group_key)
            del self.expiries[group_key]
        deleted = list(self.sent_by)[2 * turn - 1 : 2 * turn + 1] if turn else list(self.sent_by)[:1]
        for user_id in deleted:
            self.store.delete_account(user_id)

    def was_fetched(self, key: Key) -> bool:
        return self.expiries.get(key[0]) == 0 and key[1] <= self.fetched.get(key[0], 0)


def test_erased_bodies_cannot_be_read_and_the_others_are_whole(tmp_path: Path, cleaner: Cleaner) -> None:
    """With copies of all that was ever stored: by today's keys only what lives is read, by the former ones, all."""
    (tmp_path / "store").mkdir()
    store = Store(tmp_path / "store", cleaner)
    world = World(store)
    left: set[Key] = set()
    for turn, engine in enumerate(ENGINES):
        world.send_for_a_week(BODIES // len(ENGINES))
        world.change_some(turn)
        world.fetch_some()
        before = set(store.served())
        former = Path(shutil.copy(store.config.keys_path, tmp_path / "former.keys"))
        if engine == "sql":
            report = store.run(cleanup=CleanupConfig(engine="sql"), archive=ArchiveConfig())
        else:
            report = store.run_in_batches(BATCH, CROWD)
            assert report["archived"] > BATCH
        left = set(store.served())
        assert left == {key for key in before if not world.was_fetched(key)}, "the others were hidden before"
        assert min(report["deleted"][rule] for rule in ("expired", "fetched", "deleted_group", "deleted_account")) > 0
        assert numbers_in(store, store.folder, cleaner.folder) == long(store, left), "nothing erased can be read"
        assert numbers_in(store, former) >= long(store, before), "with the former keys, all"
        assert examined(store.config) == [], "and so says the proof"
        store.expect_sound()
        [(free, pages)] = store.query("SELECT freelist_count, page_count FROM pragma_freelist_count, pragma_page_count")
        assert free * 4 <= pages, "the file shrinks"
    store.expect_served(left)
    check_extent(store, world, left)


def numbers_in(store: Store, *places: Path) -> set[int]:
    return {number for number in store.search.numbers_in(*places) if store.sizes[number] >= BLOCK}


def long(store: Store, keys: set[Key]) -> set[int]:
    """Return the numbers of bodies that the search can tell."""
    return {number for number in map(store.made.__getitem__, keys) if store.sizes[number] >= BLOCK}


def check_extent(store: Store, world: World, left: set[Key]) -> None:
    """All of it was met."""
    assert len(store.made) >= BODIES
    assert {min(store.sizes), max(store.sizes)} == {1, LARGEST}
    assert len(store.made) - len(left) > BODIES / 3
    assert len(left) > BODIES / 4
    archived = store.table().num_rows
    assert archived > BODIES / 10
    assert len(left) - archived > BODIES / 10
    assert store.query("PRAGMA integrity_check") == [("ok",)]
    gone = list(world.sent_by)[: 2 * len(ENGINES) - 1]
    assert not left & set().union(*(world.sent_by[user_id] for user_id in gone)), "whatever else would have kept them"
    assert left & world.commits, "those of a deleted account stay"
    history = DeltaTable(str(store.config.archive_path)).history()
    done = {(each["operation"], each["operationParameters"].get("mode")) for each in history}
    assert {("DELETE", None), ("WRITE", "Append"), ("WRITE", "Overwrite")} <= done, "reclaimed, too"
