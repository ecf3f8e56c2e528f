"""The stored data of each group: the stage of joining, the MLS state, commits, and the joins of users."""

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from conclave.client.encryption.key_database import NOWHERE, BodyLocation, KeyDatabase
from conclave.client.mls import LimitError, MlsError, MlsGroup, Policy
from conclave.client.mls.codec import MAX_STATE

MAX_COMMITS = 256
"""Maximum number of stored commits of a group."""

MAX_JOIN_COMMITS = 32
"""Maximum number of stored own external commits of a group."""

MAX_JOINERS = 4_096
"""Maximum number of stored users who joined a group."""


class Stage(StrEnum):
    """How far the user has joined a group.

    ``WITHOUT_KEYS``: the client has no keys. ``AWAITING``: it has the state after a commit that has not arrived yet:
    its own external commit or that of an invite. ``ACTIVE``: it has the state of the group. ``REPLACED``: it has no
    keys, since another device of the account has replaced this one; it rejoins only after a reset by the user.
    """

    WITHOUT_KEYS = "out"
    AWAITING = "awaiting"
    ACTIVE = "in"
    REPLACED = "replaced"


class AwaitedCommit(NamedTuple):
    """The awaited commit, which must be the first of its epoch. ``tag``: its confirmation tag."""

    epoch: int
    tag: bytes


@dataclass
class GroupRecord:
    """The record of a group. ``group``: its MLS state, if any.

    ``up_to``: messages up to this number were processed. ``first_epoch``: the first epoch with keys of the user.
    ``entered_epoch``: the epoch in which the last new member joined. ``missed``: messages that arrived without keys.
    ``had_keys``: the user had keys before. ``renewed_at``: creation of the own leaf (Unix seconds). ``welcome``: hash
    of the last accepted Welcome. ``base_tag``: confirmation tag of the epoch before the own external commit; b"":
    there is none. ``joined_number``: the number of the commit by which the user joined; 0: the user created the group.
    ``in_since``: arrival of that commit (Unix seconds); 0: long ago. ``is_doubtful``: the state may be an old copy,
    without messages sent since. Nothing is sent in its epoch: keys and nonces would be used twice. ``confirmed_by``: a
    senior member who has sent a message with the same keys; b"": none yet.
    """

    group_id: UUID
    group_key: int
    stage: Stage = Stage.WITHOUT_KEYS
    group: MlsGroup | None = None
    awaited: AwaitedCommit = field(default_factory=lambda: AwaitedCommit(0, b""))
    first_epoch: int = 0
    entered_epoch: int = 0
    up_to: int = 0
    missed: int = 0
    had_keys: bool = False
    renewed_at: int = 0
    welcome: bytes = b""
    base_tag: bytes = b""
    joined_number: int = 0
    confirmed_by: bytes = b""
    in_since: int = 0
    is_doubtful: bool = False

    @property
    def is_unconfirmed(self) -> bool:
        """Whether no senior member has confirmed these keys by a message."""
        return not self.confirmed_by

    def await_commit(self, awaited: AwaitedCommit, base_tag: bytes) -> None:
        """Wait for the commit that leads to the current state."""
        self.stage, self.awaited, self.base_tag = Stage.AWAITING, awaited, base_tag

    def drop_state(self, stage: Stage = Stage.WITHOUT_KEYS) -> None:
        """Drop the state."""
        self.had_keys = self.had_keys or self.stage is Stage.ACTIVE
        self.stage, self.group, self.awaited = stage, None, AwaitedCommit(0, b"")
        self.base_tag, self.confirmed_by, self.is_doubtful = b"", b"", False


_COLUMNS = (
    "stage, awaited_epoch, awaited_tag, first_epoch, entered_epoch, up_to, missed, had_keys, renewed_at, welcome,"
    " base_tag, entered_at, confirmed_by, in_since, is_doubtful, segment, body_id"
)


class GroupRecords:
    """The groups in the file. Change the record that ``get`` returns, then call ``save``.

    After an error call ``reload``, which discards unsaved changes.
    """

    def __init__(self, database: KeyDatabase, policy: Policy, on_lost: Callable[[UUID], None]) -> None:
        """``on_lost``: called with a group whose state cannot be loaded."""
        self._database, self._policy, self._on_lost = database, policy, on_lost
        self._cache: dict[UUID, GroupRecord] = {}

    def ids(self) -> list[UUID]:
        """Return the ids of all stored groups."""
        return [UUID(bytes=row[0]) for row in self._connection.execute("SELECT group_id FROM groups ORDER BY group_id")]

    def get(self, group_id: UUID) -> GroupRecord | None:
        """Return the record of a group; None if there is none."""
        if group_id not in self._cache:
            row = self._connection.execute(
                f"SELECT group_key, {_COLUMNS} FROM groups WHERE group_id = ?", (group_id.bytes,)
            ).fetchone()
            if row is None:
                return None
            self._cache[group_id] = self._read(group_id, row)
        return self._cache[group_id]

    def get_or_make(self, group_id: UUID) -> GroupRecord:
        """Return the record of a group, created if there is none. Within a transaction."""
        if (record := self.get(group_id)) is None:
            key = self._connection.execute(
                "INSERT INTO groups (group_id, stage) VALUES (?, ?)", (group_id.bytes, Stage.WITHOUT_KEYS)
            ).lastrowid
            record = self._cache[group_id] = GroupRecord(group_id, key or 0)
        return record

    def save(self, record: GroupRecord) -> None:
        """Write a record; the former state is overwritten. Within a transaction.

        Raises LimitError for a state that is too large to be loaded again.
        """
        row = self._connection.execute(
            "SELECT segment, body_id FROM groups WHERE group_key = ?", (record.group_key,)
        ).fetchone()
        state = record.group.to_bytes() if record.group else b""
        if len(state) > MAX_STATE:
            raise LimitError(f"the state of a group has more than {MAX_STATE} bytes")
        location = BodyLocation(*row)
        if state != (self._database.get(location) if location != NOWHERE else b""):
            self._database.erase(location)
            location = self._database.put(state)
        columns = ", ".join(f"{column} = ?" for column in _COLUMNS.split(", "))
        self._connection.execute(
            f"UPDATE groups SET {columns} WHERE group_key = ?",
            (
                *(
                    record.stage,
                    *record.awaited,
                    record.first_epoch,
                    record.entered_epoch,
                    record.up_to,
                    record.missed,
                    record.had_keys,
                ),
                *(record.renewed_at, record.welcome, record.base_tag, record.joined_number, record.confirmed_by),
                *(record.in_since, record.is_doubtful, *location, record.group_key),
            ),
        )

    def reload(self, group_id: UUID) -> None:
        """Discard unsaved changes of a group."""
        self._cache.pop(group_id, None)

    def forget(self, group_id: UUID) -> None:
        """Erase a group. Within a transaction."""
        if (record := self.get(group_id)) is not None:
            for table in ("own_texts", "read_texts", "groups"):
                self._database.erase_rows(table, "group_key = ?", record.group_key)
        self.reload(group_id)

    # Commits: applied ones, and those that arrived without a state

    def record_commit(self, record: GroupRecord, number: int, epoch: int, tag: bytes) -> None:
        """Record a commit. Within a transaction."""
        self._connection.execute(
            "INSERT OR IGNORE INTO commits VALUES (?, ?, ?, ?)", (record.group_key, number, epoch, tag)
        )
        self._connection.execute(
            "DELETE FROM commits WHERE group_key = ?1 AND sequence_num <="
            " (SELECT sequence_num FROM commits WHERE group_key = ?1 ORDER BY sequence_num DESC LIMIT 1 OFFSET ?2)",
            (record.group_key, MAX_COMMITS),
        )

    def first_commit(self, record: GroupRecord, epoch: int) -> tuple[int, bytes] | None:
        """Return number and tag of the first stored commit of an epoch or a later one."""
        row = self._connection.execute(
            "SELECT sequence_num, tag FROM commits WHERE group_key = ? AND epoch >= ? ORDER BY sequence_num LIMIT 1",
            (record.group_key, epoch),
        ).fetchone()
        return row and (int(row[0]), bytes(row[1]))

    def commit_into(self, record: GroupRecord, epoch: int) -> bytes | None:
        """Return the tag of the first commit that leads into an epoch; None if unknown.

        It is unknown for the first stored epoch: another commit may have arrived before the user joined.
        """
        row = self._connection.execute(
            "SELECT tag FROM commits WHERE group_key = ?1 AND epoch = ?2 AND EXISTS"
            " (SELECT 1 FROM commits WHERE group_key = ?1 AND epoch < ?2) ORDER BY sequence_num LIMIT 1",
            (record.group_key, epoch - 1),
        ).fetchone()
        return bytes(row[0]) if row and row[0] else None

    def forget_commits(self, record: GroupRecord) -> None:
        """Delete the stored commits. Within a transaction."""
        self._connection.execute("DELETE FROM commits WHERE group_key = ?", (record.group_key,))

    def has_been_at(self, record: GroupRecord, tag: bytes) -> bool:
        """Return whether the state was in the epoch with this confirmation tag, according to the stored commits."""
        row = self._connection.execute(
            "SELECT 1 FROM commits WHERE group_key = ? AND tag = ?", (record.group_key, tag)
        ).fetchone()
        return row is not None or tag == record.base_tag

    def record_join_commit(self, record: GroupRecord, tag: bytes) -> None:
        """Record the tag of an own external commit. Within a transaction."""
        self._connection.execute("INSERT INTO requests (group_key, tag) VALUES (?, ?)", (record.group_key, tag))
        self._connection.execute(
            "DELETE FROM requests WHERE group_key = ?1 AND request_key <="
            " (SELECT request_key FROM requests WHERE group_key = ?1 ORDER BY request_key DESC LIMIT 1 OFFSET ?2)",
            (record.group_key, MAX_JOIN_COMMITS),
        )

    def is_own_join_commit(self, record: GroupRecord, tag: bytes) -> bool:
        """Return whether a tag belongs to an own external commit."""
        row = self._connection.execute(
            "SELECT 1 FROM requests WHERE group_key = ? AND tag = ?", (record.group_key, tag)
        ).fetchone()
        return row is not None

    # Joins of users

    def record_joiner(self, record: GroupRecord, user_id: UUID, number: int, *, is_claimed: bool = False) -> bool:
        """Record that a user has joined by the message with that number. Within a transaction.

        Return whether the user is new: not a member before, or removed since. ``is_claimed``: the message was not
        accepted, so its sender may not be a member. The user counts as new until seen as a member, and the row is among
        the first to be deleted.
        """
        key = record.group_key, user_id.bytes
        is_new = not self._connection.execute(
            "SELECT 1 FROM comers WHERE group_key = ? AND user_id = ? AND NOT (was_removed OR is_claimed)", key
        ).fetchone()
        self._connection.execute(
            "INSERT OR REPLACE INTO comers (group_key, user_id, sequence_num, is_claimed) VALUES (?, ?, ?, ?)",
            (*key, number, is_claimed and is_new),
        )
        self._connection.execute(
            "DELETE FROM comers WHERE group_key = ?1 AND user_id IN (SELECT user_id FROM comers WHERE group_key = ?1"
            " ORDER BY is_claimed, sequence_num DESC LIMIT -1 OFFSET ?2)",
            (record.group_key, MAX_JOINERS),
        )
        return is_new

    def record_present(self, record: GroupRecord, user_ids: Iterable[UUID], number: int) -> int:
        """Record the members when the user joins by the message with that number. Within a transaction.

        Return the number since which all of them are known to be members. Members without a recorded join may have
        joined just before. Claims of users who are not members are ignored.
        """
        since = 0
        for each in user_ids:
            key = record.group_key, each.bytes
            row = self._connection.execute(
                "SELECT sequence_num, was_removed, is_claimed FROM comers WHERE group_key = ? AND user_id = ?", key
            ).fetchone()
            joined_at, was_removed, is_claimed = row or (0, True, False)
            if was_removed or is_claimed:
                since = max(since, joined_at if is_claimed else number)
                self._connection.execute(
                    "INSERT OR REPLACE INTO comers (group_key, user_id, sequence_num) VALUES (?, ?, ?)",
                    (*key, joined_at),
                )
        return since

    def record_removed(self, record: GroupRecord, user_ids: Iterable[UUID]) -> None:
        """Record that users were removed. Within a transaction."""
        self._connection.executemany(
            "UPDATE comers SET was_removed = 1 WHERE group_key = ? AND user_id = ?",
            [(record.group_key, each.bytes) for each in user_ids],
        )

    def joined_at(self, record: GroupRecord, user_id: UUID) -> int:
        """Return the number of the message by which a user last joined; 0: before this device."""
        row = self._connection.execute(
            "SELECT sequence_num FROM comers WHERE group_key = ? AND user_id = ?", (record.group_key, user_id.bytes)
        ).fetchone()
        return int(row[0]) if row else 0

    @property
    def _connection(self) -> sqlite3.Connection:
        return self._database.connection

    def _read(self, group_id: UUID, row: tuple[object, ...]) -> GroupRecord:
        key, stage, epoch, tag, first, entered, up_to, missed, had_keys, *since, doubtful, segment, body_id = row
        state = self._database.get((segment, body_id))  # type: ignore[arg-type]  # rows have no types
        record = GroupRecord(
            *(group_id, key, Stage(stage), None, AwaitedCommit(epoch, tag), first, entered, up_to, missed),  # type: ignore[arg-type]
            *(bool(had_keys), *since, bool(doubtful)),  # type: ignore[arg-type]
        )
        try:
            record.group = MlsGroup.from_bytes(state, self._policy) if state else None
        except MlsError:
            record.drop_state()
            self._on_lost(group_id)
        return record
