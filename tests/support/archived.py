"""A store with an archive, filled directly, and what its clients would be served: told plainly."""

import copy
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow
from deltalake import DeltaTable, QueryBuilder

from conclave.actions.context import Context
from conclave.actions.groups import change as change_group
from conclave.clock import FakeClock
from conclave.config.archive import ArchiveConfig
from conclave.config.settings import Config
from conclave.keys.store import KeyStore
from conclave.retention import stretches, visibility
from conclave.retention.policy import KEEP
from conclave.retention.stretches import Stretch
from conclave.store import bodies, keyring
from conclave.store.engine import sqlite
from conclave.store.resources import groups, members, messages, state, taken_back
from conclave.store.resources.groups import GroupChanges
from conclave.store.resources.taken_back import TakenBack
from tests.support import stores
from tests.support.cleaner import Cleaner
from tests.support.forensics import StoreSearch
from tests.support.memberships import member_of

DAY = 86_400
START = 1_700_000_000 - 1_700_000_000 % DAY
USERS = [bytes([number]) * 16 for number in range(1, 5)]


class Tiers:
    """A store's database and its archive, to look into; whoever filled them."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite.connect(self.config.database, readonly=True)) as connection:
            return [tuple(row) for row in connection.execute(sql, values)]

    def table(self) -> pyarrow.Table:
        """All rows of the archive's table."""
        if not DeltaTable.is_deltatable(str(self.config.archive_path)):
            return pyarrow.table({name: [] for name in ("group_key", "sequence_num", "created_at", "mls_message")})
        found = QueryBuilder().register("archive", DeltaTable(str(self.config.archive_path)))
        return pyarrow.table(found.execute("SELECT * FROM archive").read_all())

    def readable(self) -> list[dict[str, Any]]:
        """The rows of the table that have keys, and that the index names."""
        ids = dict(
            self.query("SELECT group_key, group_id FROM groups UNION SELECT group_key, group_id FROM tombstones")
        )
        parts = {
            row[:3]: range(row[3], row[4] + 1)
            for row in self.query("SELECT group_key, lifetime, span, first_seq, last_seq FROM archive_parts")
        }
        with closing(KeyStore(self.config.keys_path)) as keys:
            return [
                row
                for row in self.table().to_pylist()
                if row["sequence_num"] in parts.get((row["group_key"], row["lifetime"], row["span"]), ())
                and keys.have_keys(ids[row["group_key"]], [row["sequence_num"]])[0]
            ]

    def expect_sound(self) -> None:
        """The index says what can be read of the table, and the hot store has no copies."""
        indexed = {
            tuple(row[:3]): tuple(row[3:])
            for row in self.query(
                "SELECT group_key, lifetime, span, first_seq, last_seq, oldest, newest, message_count, checksum"
                " FROM archive_parts"
            )
        }
        stored: dict[tuple[int, int, int], list[dict[str, Any]]] = {}
        for row in self.readable():
            stored.setdefault((row["group_key"], row["lifetime"], row["span"]), []).append(row)
        assert indexed == {key: _summary(rows) for key, rows in stored.items()}
        copies = "SELECT count(*) FROM messages JOIN groups USING (group_key) WHERE sequence_num <= archived_seq"
        assert self.query(copies) == [(0,)]
        assert self.query("SELECT count(*) FROM archive_moves WHERE finished_at IS NULL") == [(0,)]


class Store(Tiers):
    """Groups of four users; every body is the search's, and known by its number. Each run gives back all space."""

    def __init__(self, folder: Path, cleaner: Cleaner, archive: ArchiveConfig | None = None) -> None:
        archive = archive or ArchiveConfig(after=7 * DAY, margin=DAY, reclaim_interval=0, reclaim_after=0)
        super().__init__(Config(database_path=str(folder / "hot.db"), archive=archive))
        self.folder = folder
        self.cleaner = cleaner
        self.search = StoreSearch()
        self.now = START
        self.group_ids: dict[int, bytes] = {}
        self.made: dict[tuple[int, int], int] = {}
        """Body number by group key and sequence number."""
        self.sizes: list[int] = []
        """Sizes of the bodies, by number."""
        self.at_rest: list[bytes] = []
        """The bodies as they are stored, encrypted, by number."""
        stores.prepare(self.config.database)
        with self.opened() as connection:
            state.begin_serving(connection, self.config.policy, FakeClock(self.now).read())
            connection.executemany(
                "INSERT INTO users (user_id, username, password_hash, alias, created_at) VALUES (?, hex(?), '', '', 0)",
                [(user_id, user_id) for user_id in USERS],
            )

    def start(self) -> None:
        """Do with the keys what the start of a server does."""
        keyring.open_to_serve(self.config.database, self.config.keys_path).close()

    def copied(self, folder: Path) -> "Store":
        """Return one that has gone through the same, in a folder that is yet to be made."""
        shutil.copytree(self.folder, folder)
        twin = copy.copy(self)
        twin.folder, twin.config = folder, replace(self.config, database_path=str(folder / "hot.db"))
        twin.group_ids, twin.made, twin.sizes = dict(self.group_ids), dict(self.made), list(self.sizes)
        twin.at_rest = list(self.at_rest)
        return twin

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite.connect(self.config.database)) as connection, sqlite.write_transaction(connection):
            yield connection

    def add_group(self, expiry: int = -1) -> int:
        with self.opened() as connection:
            group_id = groups.add(connection, USERS[0], uuid4().hex, "", self.now, self.config.policy)
            member = member_of(connection, group_id, USERS[0])
            connection.executemany(
                "INSERT INTO members (group_key, user_id, role, joined_at) VALUES (?, ?, 'member', 0)",
                [(member.group.group_key, user_id) for user_id in USERS[1:]],
            )
            self._set(connection, member, expiry)
            self.group_ids[member.group.group_key] = group_id
            return member.group.group_key

    def set_expiry(self, group_key: int, expiry: int) -> None:
        with self.opened() as connection:
            member = member_of(connection, self.group_ids[group_key], USERS[0])
            self._set(connection, member, expiry)

    def _set(self, connection: sqlite3.Connection, member: members.Membership, expiry: int) -> None:
        changes = GroupChanges(message_expiry_seconds=expiry)
        change_group(connection, Context(self.config.policy, FakeClock(self.now)), member.group, changes)

    def delete_group(self, group_key: int) -> None:
        with self.opened() as connection:
            member = member_of(connection, self.group_ids[group_key], USERS[0])
            groups.remove(connection, member.group, self.now)

    def delete_account(self, user_id: bytes) -> None:
        with self.opened() as connection:
            connection.execute("INSERT INTO user_tombstones (user_id, created_at) VALUES (?, ?)", (user_id, self.now))

    def take_back(self, group_key: int, *numbers: int) -> None:
        """Have messages taken back, and their members told."""
        with self.opened() as connection:
            for number in numbers:
                taken_back.add(connection, group_key, number, TakenBack(self.now, USERS[0]))
            while taken_back.has_unnotified(connection):
                taken_back.take_unnotified(connection)

    def send(
        self, group_key: int, count: int = 1, *, size: int = 300, sender: bytes = USERS[0], is_commit: bool = False
    ) -> None:
        with self.opened() as connection:
            for _ in range(count):
                self.append(connection, group_key, size, sender, is_commit=is_commit)

    def send_daily(self, *group_keys: int, days: int = 4) -> None:
        """Have two messages sent to each group on each of the next days."""
        for _ in range(days):
            for group_key in group_keys:
                self.send(group_key, 2)
            self.now += DAY

    def append(
        self, connection: sqlite3.Connection, group_key: int, size: int, sender: bytes, *, is_commit: bool = False
    ) -> tuple[int, int]:
        """Send in a transaction of the caller's; return the group's key and the sequence number."""
        number = len(self.made)
        body_id = bodies.put(connection, self.search.body(number, size))
        stored = messages.append_stored(connection, group_key, sender, body_id, self.now, is_commit=is_commit)
        seq = stored.sequence_num
        self.made[group_key, seq] = number
        self.sizes.append(size)
        self.at_rest += bodies.of_messages(connection, [bodies.message_id(group_key, seq)])
        return group_key, seq

    def fetch_all(self, group_key: int) -> None:
        """Have every member fetch all there is."""
        self.fetch(group_key, self.query("SELECT last_seq FROM groups WHERE group_key = ?", group_key)[0][0])

    def fetch(self, group_key: int, up_to: int) -> None:
        """Have every member fetch up to a sequence number, unless they have fetched more."""
        with self.opened() as connection:
            connection.execute(
                "UPDATE members SET watermark = max(watermark, ?) WHERE group_key = ?", (up_to, group_key)
            )

    def stretch(self, group_key: int) -> Stretch:
        """Return what a reader is told of a group's messages in the archive."""
        with self.opened() as connection:
            group = groups.find(connection, self.group_ids[group_key])
            assert group
            found = stretches.stretch(connection, group, 0, visibility.of_group(connection, group, self.now))
        assert found
        return found

    def run(self, **changed: Any) -> dict[str, Any]:
        """Do a cleanup run, now."""
        return self.cleaner.run(replace(self.config, **changed), self.now)

    def dry_run(self) -> dict[str, Any]:
        """Do a dry run, now."""
        return self.cleaner.dry_run(self.config, self.now)

    def run_in_batches(self, rows: int, crowd: int) -> dict[str, Any]:
        """Do a cleanup run, now, by smaller measures than usual: see Cleaner.try_run."""
        return self.cleaner.run(self.config, self.now, batch_rows=rows, crowd=crowd)

    def try_run(self, failpoint: str, crowd: int = 0) -> dict[str, Any]:
        """Do a run that may fail; ``crowd``: see Cleaner.try_run."""
        return self.cleaner.try_run(self.config, self.now, failpoint=failpoint, crowd=crowd)

    def verify(self) -> dict[str, Any]:
        """Verify the archive, now."""
        return self.cleaner.verify(self.config, self.now)

    def restore(self, group_key: int, failpoint: str = "", **changed: Any) -> dict[str, Any]:
        """Restore a group, with moving turned off."""
        config = replace(self.config, archive=replace(self.config.archive, after=KEEP), **changed)
        return self.cleaner.restore(config, self.now, self.group_ids[group_key], failpoint)

    def served(self) -> dict[tuple[int, int], bytes]:
        """What clients get, by group and number; an error if any is served twice."""
        rows = self._rows_by_group()
        gone = {row[0] for row in self.query("SELECT user_id FROM user_tombstones")}
        taken = set(self.query("SELECT group_key, sequence_num FROM taken_back"))
        served: dict[tuple[int, int], bytes] = {}
        for key, expiry, archived, gone_below, expired_before in self.query(
            "SELECT group_key, message_expiry_seconds, archived_seq, gone_below, expired_before FROM groups"
        ):
            cutoff = max(expired_before, self.now - expiry if expiry > 0 else 0)
            found = [row for row in rows.get(key, []) if row["sequence_num"] <= archived]
            found = self._opened(key, [*found, *self._hot_rows(key, archived)])
            for row in found:
                kept = row["is_commit"] or row["sender_id"] not in gone
                kept = kept and (key, row["sequence_num"]) not in taken
                if kept and row["sequence_num"] > gone_below and row["created_at"] >= cutoff:
                    assert (key, row["sequence_num"]) not in served, "served twice"
                    served[key, row["sequence_num"]] = row["mls_message"]
        return served

    def _rows_by_group(self) -> dict[int, list[dict[str, Any]]]:
        rows: dict[int, list[dict[str, Any]]] = {}
        for row in self.table().to_pylist():
            rows.setdefault(row["group_key"], []).append(row)
        return rows

    def _hot_rows(self, group_key: int, archived: int) -> list[dict[str, Any]]:
        with closing(sqlite.connect(self.config.database, readonly=True)) as connection:
            rows = connection.execute(
                "SELECT messages.*, body AS mls_message FROM messages JOIN message_bodies USING (message_id)"
                " WHERE group_key = ? AND sequence_num > ?",
                (group_key, archived),
            )
            return [dict(row) for row in rows]

    def _opened(self, group_key: int, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return rows with their bodies decrypted; without those whose keys are destroyed."""
        with closing(sqlite.connect(self.config.database)) as connection:
            numbers, stored = ([row[name] for row in rows] for name in ("sequence_num", "mls_message"))
            found = bodies.decrypt(connection, self.group_ids[group_key], numbers, stored)
        return [{**row, "mls_message": body} for row, body in zip(rows, found, strict=True) if body is not None]

    def expect_served(self, expected: set[tuple[int, int]]) -> None:
        """Exactly these are served, whole."""
        served = self.served()
        assert set(served) == expected
        for key, body in served.items():
            number = self.made[key]
            assert body == self.search.body(number, self.sizes[number])

    def expect_erased(self, erased: set[tuple[int, int]]) -> None:
        """None of these can be read from any file, of the store or of Spark's."""
        left = self.search.left_of({self.made[key] for key in erased}, self.folder, self.cleaner.folder)
        assert left == set()


def _summary(rows: list[dict[str, Any]]) -> tuple[int, ...]:
    numbers, times = [row["sequence_num"] for row in rows], [row["created_at"] for row in rows]
    assert len(set(numbers)) == len(numbers), "twice in the table"
    checksum = 0
    for row in rows:
        checksum ^= row["checksum"]
    return min(numbers), max(numbers), min(times), max(times), len(rows), checksum
