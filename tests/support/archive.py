"""Plays cleanup's part towards the archive, a step at a time: what a reader may meet between any two of them."""

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from conclave.actions.messages import append
from conclave.archive.layout import ID_PROPERTY, checksum, span_width
from conclave.archive.snapshot import turn_app
from conclave.config.settings import Config
from conclave.keys.cipher import OVERHEAD_BYTES
from conclave.retention.policy import KEEP
from conclave.store import bodies
from conclave.store.archive import moves, restore
from conclave.store.archive.restore import ArchivedMessage
from conclave.store.engine import sqlite
from tests.support.memberships import member_of

SCHEMA = pyarrow.schema(
    [
        ("lifetime", pyarrow.int64()),
        ("span", pyarrow.int64()),
        ("group_key", pyarrow.int64()),
        ("sequence_num", pyarrow.int64()),
        ("sender_id", pyarrow.binary()),
        ("is_commit", pyarrow.bool_()),
        ("created_at", pyarrow.int64()),
        ("checksum", pyarrow.int64()),
        ("size", pyarrow.int64()),
        ("mls_message", pyarrow.binary()),
    ]
)


def span_of(lifetime: int, created_at: int) -> int:
    """Return the first Unix second of the span for a message created at the second ``created_at``."""
    return created_at - created_at % span_width(lifetime)


class Mover:
    """Moves messages of a store into its archive, and rewrites that, while a server may run on both."""

    def __init__(self, config: Config) -> None:
        self.folder = config.archive_path
        self._path = config.database
        self.at_rest: list[bytes] = []
        """The bodies in the table as they are stored, encrypted, in the order in which they were appended."""

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run ``sql`` in a transaction of its own and return its rows."""
        with closing(sqlite.connect(self._path)) as connection, sqlite.write_transaction(connection):
            return [tuple(row) for row in connection.execute(sql, values).fetchall()]

    def key(self, group: str) -> int:
        return int(self.execute("SELECT group_key FROM groups WHERE group_id = ?", UUID(group).bytes)[0][0])

    def send(self, group: str, user_id: str, body: bytes, at: int, *, is_commit: bool = False) -> int:
        """Store a message as of the second ``at``."""
        with closing(sqlite.connect(self._path)) as connection, sqlite.write_transaction(connection):
            member = member_of(connection, UUID(group).bytes, UUID(user_id).bytes)
            return append(connection, member, body, at, is_commit=is_commit)

    def append(self, group: str, last: int, lifetime: int = KEEP) -> list[dict[str, Any]]:
        """Write the group's messages beyond its border, up to ``last``, to the table; return them as rows."""
        key = self.key(group)
        with closing(sqlite.connect(self._path)) as connection:
            stored = connection.execute(
                "SELECT sequence_num, sender_id, is_commit, messages.created_at, body FROM messages JOIN groups"
                " USING (group_key) JOIN message_bodies USING (message_id)"
                " WHERE group_key = ? AND sequence_num > archived_seq AND sequence_num <= ?",
                (key, last),
            ).fetchall()
        rows = [
            {
                "lifetime": lifetime,
                "span": span_of(lifetime, row["created_at"]),
                "group_key": key,
                "sequence_num": row["sequence_num"],
                "sender_id": row["sender_id"],
                "is_commit": bool(row["is_commit"]),
                "created_at": row["created_at"],
                "checksum": checksum(
                    *(key, row["sequence_num"], row["sender_id"], row["created_at"], row["body"]),
                    is_commit=bool(row["is_commit"]),
                ),
                "size": len(row["body"]) - OVERHEAD_BYTES,
                "mls_message": row["body"],
            }
            for row in stored
        ]
        self.at_rest += (row["mls_message"] for row in rows)
        if rows:
            table = pyarrow.Table.from_pylist(rows, SCHEMA)
            write_deltalake(str(self.folder), table, partition_by=["lifetime", "span"], mode="append")
            self._name()
        return rows

    def _name(self) -> None:
        """Have the table be the store's; delta-rs knows no such property when it makes one."""
        first = self.folder / "_delta_log" / f"{0:020d}.json"
        if not first.exists() or ID_PROPERTY in (text := first.read_text()):
            return
        actions = [json.loads(line) for line in text.splitlines()]
        for action in actions:
            if "metaData" in action:
                action["metaData"]["configuration"][ID_PROPERTY] = "test"
        first.write_text("\n".join(map(json.dumps, actions)))

    def switch(self, group: str, last: int, rows: list[dict[str, Any]]) -> None:
        """Have the store know that ``rows`` are in the table, and that no other number up to ``last`` is left."""
        key, version = self.key(group), self.version()
        with closing(sqlite.connect(self._path)) as connection, sqlite.write_transaction(connection):
            connection.execute(
                "INSERT INTO archive_state (id, archive_id, version, unerased) VALUES (1, 'test', ?1, 1)"
                " ON CONFLICT DO UPDATE SET version = ?1",
                (version,),
            )
            connection.execute("UPDATE groups SET archived_seq = max(archived_seq, ?) WHERE group_key = ?", (last, key))
            for row in rows:
                connection.execute(
                    "INSERT INTO archive_parts VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?5, 1, ?6, ?7) ON CONFLICT DO UPDATE SET"
                    " first_seq = min(first_seq, ?4), last_seq = max(last_seq, ?4), oldest = min(oldest, ?5),"
                    " newest = max(newest, ?5), message_count = message_count + 1, body_bytes = body_bytes + ?6,"
                    " checksum = (checksum | ?7) & ~(checksum & ?7)",
                    (
                        key,
                        row["lifetime"],
                        row["span"],
                        row["sequence_num"],
                        row["created_at"],
                        len(row["mls_message"]),
                        row["checksum"],
                    ),
                )
                if not row["is_commit"]:
                    connection.execute("INSERT OR IGNORE INTO archive_senders VALUES (?, ?)", (row["sender_id"], key))

    def begin_turn(self, turn: int) -> None:
        """Have the store and the table know of a run that changes the table."""
        self.execute("UPDATE archive_state SET former_turn = turn, turn = ?", turn)
        table, known = self.table(), CommitProperties(app_transactions=[Transaction(turn_app("test"), turn)])
        table.create_write_transaction([], "append", table.schema(), ["lifetime", "span"], commit_properties=known)

    def drop_copies(self, group: str) -> None:
        """Delete what the hot store has up to the border."""
        key = self.key(group)
        with closing(sqlite.connect(self._path)) as connection, sqlite.write_transaction(connection):
            where = "group_key = ?1 AND sequence_num <= (SELECT archived_seq FROM groups WHERE group_key = ?1)"
            ids = connection.execute(f"SELECT message_id FROM messages WHERE {where}", (key,)).fetchall()
            bodies.delete_of_messages(connection, [row[0] for row in ids])
            connection.execute(f"DELETE FROM messages WHERE {where}", (key,))

    def move(self, group: str, last: int, lifetime: int = KEEP) -> None:
        """Do all the steps."""
        self.switch(group, last, self.append(group, last, lifetime))
        self.drop_copies(group)

    def table(self) -> DeltaTable:
        return DeltaTable(str(self.folder))

    def version(self) -> int:
        return self.table().version() if DeltaTable.is_deltatable(str(self.folder)) else 0

    def rewrite(self) -> None:
        """Replace every file by another with the same rows, and take the replaced ones away."""
        rows = self.table().to_pyarrow_table().select(SCHEMA.names).cast(SCHEMA)
        write_deltalake(str(self.folder), rows, partition_by=["lifetime", "span"], mode="overwrite")
        self.vacuum()

    def restore(self, group: str) -> None:
        """Take the group's rows back into the hot store, and delete them from the table as the next run does."""
        key = self.key(group)
        rows = [row for row in self.table().to_pyarrow_table().to_pylist() if row["group_key"] == key]
        names = ("sequence_num", "sender_id", "is_commit", "created_at", "mls_message")
        copies = [ArchivedMessage(*(row[name] for name in names)) for row in rows]
        with closing(sqlite.connect(self._path)) as connection, sqlite.write_transaction(connection):
            restore.store_copies(connection, key, copies)
        with closing(sqlite.connect(self._path)) as connection, sqlite.write_transaction(connection):
            restore.switch_back(connection, key, len(copies))
        self.delete(f"group_key = {key}")
        with closing(sqlite.connect(self._path)) as connection, sqlite.write_transaction(connection):
            moves.note_version(connection, self.version())
            gone = {(key, part.lifetime, part.span): None for part in moves.parts(connection, key)}
            moves.replace_parts(connection, key, gone)

    def delete(self, predicate: str) -> None:
        """Delete rows, and take away the files that they were in."""
        self.table().delete(predicate)
        self.vacuum()

    def vacuum(self) -> None:
        self.table().vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)

    def forget_log(self) -> None:
        """Leave nothing of the log but what the latest version needs."""
        self.table().create_checkpoint()
        last = max(self.folder.glob("_delta_log/*.checkpoint.parquet")).name.split(".")[0]
        for each in self.folder.glob("_delta_log/*.json"):
            if each.stem < last:
                each.unlink()

    def files(self) -> dict[int, list[Path]]:
        """The files by the span that they are of."""
        found: dict[int, list[Path]] = {}
        for each in self.folder.glob("lifetime=*/span=*/*.parquet"):
            found.setdefault(int(each.parent.name.removeprefix("span=")), []).append(each)
        return found

    def hide(self) -> Path:
        """Take the table away; ``unhide`` brings it back."""
        return Path(shutil.move(self.folder, self.folder.with_name("elsewhere")))

    def unhide(self) -> None:
        shutil.move(self.folder.with_name("elsewhere"), self.folder)
