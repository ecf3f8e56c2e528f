"""Stores texts in transit: sent ones that have not come back, and decrypted ones that the history does not have yet.

Own texts that came back are stored until it is confirmed that other members have their keys. Otherwise they are resent.
"""

import hashlib
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass, field
from uuid import UUID

from conclave.client.codec import PendingResend
from conclave.client.encryption.groups import GroupRecord
from conclave.client.encryption.key_database import NOWHERE, KeyDatabase

SENT_SECONDS = 2 * 86_400
"""Age at which a sent text that has not come back is erased: the server accepts repeats for a day."""


IN_TRANSIT_SECONDS = 600
"""How long a request may be in transit after the program that sent it has ended."""

_IN_TRANSIT = "again IS NULL AND kept IS NULL"

_STALE = f"group_key = ? AND text_key <= ? AND made_at < ? AND {_IN_TRANSIT}"

MAX_REPEATS = 256
"""Maximum number of stored records of resent copies of a group."""

READ_NUMBERS_KEPT = 4_096
"""Read texts of a group are recorded if their numbers are less than this below the last."""

UNCONFIRMED_SECONDS = 6 * 3_600
"""Time after which a client with wrong keys has noticed it, even if the first sender that it read also had them."""

_CONFIRMABLE = "group_key = ? AND kept IS NOT NULL AND again IS NULL AND made_at < ?"

NO_EPOCH = -1
"""Marks a text whose keys were dropped."""


@dataclass(frozen=True)
class SentText:
    """A text that the user has sent, encrypted in ``epoch``, or NO_EPOCH if its keys were dropped.

    ``original``: the number of the first message with the text; 0: none arrived. ``is_kept``: the text has come back.
    ``text``: "" if the original was erased. ``is_to_take_back``: the original was taken back.
    """

    text_key: int
    text: str = field(repr=False)
    epoch: int
    original: int
    is_kept: bool
    is_to_take_back: bool


class Texts:
    """The texts in the file. Call methods that change it within a transaction."""

    def __init__(self, database: KeyDatabase) -> None:
        self._database = database
        (last_key,) = self._connection.execute("SELECT ifnull(max(text_key), 0) FROM own_texts").fetchone()
        self._last_earlier = int(last_key)
        """The last text of an earlier run."""

    def keep_sent(
        self,
        record: GroupRecord,
        payload: bytes,
        text: str,
        epoch: int,
        now: int,
        *,
        original: int = 0,
        send_id: bytes = b"",
    ) -> None:
        """Store a sent text, and erase old texts of the group that never came back."""
        self._database.erase_rows(
            "own_texts", f"group_key = ? AND made_at < ? AND {_IN_TRANSIT}", record.group_key, now - SENT_SECONDS
        )
        location = self._database.put(text.encode())
        self._connection.execute(
            "INSERT INTO own_texts (group_key, payload_hash, epoch, made_at, original, send_id, segment, body_id)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (record.group_key, _hash(payload), epoch, now, original, send_id, *location),
        )

    def find_sent(self, record: GroupRecord, payload: bytes) -> SentText | None:
        """Return the sent text of a payload; None if there is none."""
        row = self._connection.execute(
            f"SELECT text_key, segment, body_id, epoch, original, NOT ({_IN_TRANSIT}), is_unwanted FROM own_texts"
            " WHERE group_key = ? AND payload_hash = ?",
            (record.group_key, _hash(payload)),
        ).fetchone()
        if row is None:
            return None
        key, segment, body_id, epoch, original, is_kept, is_to_take_back = row
        text = self._database.get((segment, body_id)).decode()
        return SentText(key, text, epoch, original, bool(is_kept), bool(is_to_take_back))

    def drop_sent(self, text_key: int) -> None:
        """Erase a sent text that is in the history, or was not sent."""
        self._database.erase_rows("own_texts", "text_key = ?", text_key)

    def has_stale(self, record: GroupRecord, now: int) -> bool:
        """Return whether ``drop_stale`` would erase texts."""
        values = record.group_key, self._last_earlier, now - IN_TRANSIT_SECONDS
        return (
            self._connection.execute(f"SELECT 1 FROM own_texts WHERE {_STALE} LIMIT 1", values).fetchone() is not None
        )

    def drop_stale(self, record: GroupRecord, now: int) -> None:
        """Erase the texts of earlier runs in a group that is caught up: they were never sent."""
        self._database.erase_rows("own_texts", _STALE, record.group_key, self._last_earlier, now - IN_TRANSIT_SECONDS)

    def keep_for_resend(self, own: SentText, number: int, self_destruct_seconds: int) -> None:
        """Mark a text for resending: it arrived too late for some members, or its keys were dropped since."""
        self._connection.execute(
            "UPDATE own_texts SET again = ?1, kept = iif(epoch = ?2, ?1, NULL), original = ?3 WHERE text_key = ?4",
            (self_destruct_seconds, NO_EPOCH, own.original or number, own.text_key),
        )

    def keep_until_confirmed(self, own: SentText, number: int, self_destruct_seconds: int) -> None:
        """Keep a text that came back until it is confirmed that the others have its keys."""
        self._connection.execute(
            "UPDATE own_texts SET kept = ?, original = ? WHERE text_key = ?",
            (self_destruct_seconds, own.original or number, own.text_key),
        )

    def has_confirmable(self, record: GroupRecord, now: int) -> bool:
        """Return whether ``drop_confirmable`` would erase texts."""
        values = record.group_key, now - UNCONFIRMED_SECONDS
        return (
            self._connection.execute(f"SELECT 1 FROM own_texts WHERE {_CONFIRMABLE} LIMIT 1", values).fetchone()
            is not None
        )

    def drop_confirmable(self, record: GroupRecord, now: int) -> None:
        """Erase texts that came back UNCONFIRMED_SECONDS ago. Call it only while the keys are confirmed."""
        self._database.erase_rows("own_texts", _CONFIRMABLE, record.group_key, now - UNCONFIRMED_SECONDS)

    def mark_keys_lost(self, record: GroupRecord) -> None:
        """Record that the keys of a group were dropped: mark texts that others may not have read for resending.

        Texts in transit are marked when they come back. ``kept`` is not changed: see ``drop_sent_before``.
        """
        self._connection.execute(
            "UPDATE own_texts SET epoch = ?, again = ifnull(again, kept) WHERE group_key = ?",
            (NO_EPOCH, record.group_key),
        )

    def drop_sent_before(self, record: GroupRecord, number: int) -> None:
        """Erase texts before the message ``number``, by which a new member joined, who must not read them."""
        self._database.erase_rows(
            "own_texts", "group_key = ? AND kept IS NOT NULL AND original < ?", record.group_key, number
        )

    def kept_numbers(self, record: GroupRecord) -> list[int]:
        """Return the numbers of messages whose texts are stored."""
        rows = self._connection.execute(
            f"SELECT original FROM own_texts WHERE group_key = ? AND NOT ({_IN_TRANSIT}) ORDER BY original",
            (record.group_key,),
        )
        return [row[0] for row in rows]

    def drop_erased(self, record: GroupRecord, numbers: Collection[int], *, are_taken_back: bool) -> None:
        """Erase the texts of messages that no longer exist.

        The hashes of copies in transit are kept, to recognize the copies. ``are_taken_back``: also take back
        all resent copies.
        """
        rows = self._connection.execute(
            f"SELECT text_key, original, {_IN_TRANSIT}, segment, body_id FROM own_texts WHERE group_key = ?",
            (record.group_key,),
        ).fetchall()
        erased_numbers = set(numbers)
        for key, _, is_in_transit, *location in (row for row in rows if row[1] in erased_numbers):
            if not is_in_transit:
                self.drop_sent(key)
                continue
            self._database.erase((location[0], location[1]))
            self._connection.execute(
                "UPDATE own_texts SET segment = ?, body_id = ?, is_unwanted = max(is_unwanted, ?) WHERE text_key = ?",
                (*NOWHERE, are_taken_back, key),
            )
        if are_taken_back:
            repeats = self._connection.execute(
                "SELECT sequence_num, original FROM repeats WHERE group_key = ? AND is_own", (record.group_key,)
            ).fetchall()
            for number in (row[0] for row in repeats if row[1] in erased_numbers):
                self.record_unwanted(record, number)

    def record_unwanted(self, record: GroupRecord, number: int) -> None:
        """Record a resent copy to take back, since its original was taken back."""
        self._connection.execute("INSERT OR IGNORE INTO unwanted VALUES (?, ?)", (record.group_key, number))

    def unwanted(self) -> list[tuple[UUID, int]]:
        """Return the groups and numbers of resent copies to take back."""
        rows = self._connection.execute(
            "SELECT group_id, sequence_num FROM unwanted JOIN groups USING (group_key) ORDER BY group_key, sequence_num"
        )
        return [(UUID(bytes=group_id), number) for group_id, number in rows]

    def drop_repeat(self, record: GroupRecord, number: int) -> None:
        """Delete the record of a resent copy that was taken back."""
        for table in ("unwanted", "repeats"):
            self._connection.execute(
                f"DELETE FROM {table} WHERE group_key = ? AND sequence_num = ?", (record.group_key, number)
            )

    def drop_other_attempts(self, record: GroupRecord, own: SentText) -> None:
        """Erase the other attempts to send a text, since one has arrived."""
        self._database.erase_rows(
            "own_texts",
            f"group_key = ? AND text_key != ? AND {_IN_TRANSIT} AND send_id != x'' AND send_id ="
            " (SELECT send_id FROM own_texts WHERE text_key = ?)",
            *(record.group_key, own.text_key, own.text_key),
        )

    def drop_resent(self, record: GroupRecord, own: SentText) -> None:
        """Erase the original of a resent text, and other attempts, since a copy has arrived."""
        self._database.erase_rows(
            *("own_texts", "group_key = ? AND original = ? AND text_key != ?"),
            *(record.group_key, own.original, own.text_key),
        )

    def record_read(self, record: GroupRecord, number: int, sender_id: UUID) -> None:
        """Record that another user's text was read. ``number``: the number of its first message."""
        self._connection.execute(
            "INSERT OR IGNORE INTO heard VALUES (?, ?, ?)", (record.group_key, number, sender_id.bytes)
        )
        self._connection.execute(
            "DELETE FROM heard WHERE group_key = ? AND sequence_num <= ?",
            (record.group_key, number - READ_NUMBERS_KEPT),
        )

    def was_read(self, record: GroupRecord, number: int, sender_id: UUID) -> bool:
        """Return whether another user's text was read."""
        row = self._connection.execute(
            "SELECT 1 FROM heard WHERE group_key = ? AND sequence_num = ? AND sender_id = ?",
            (record.group_key, number, sender_id.bytes),
        ).fetchone()
        return row is not None

    def pending_resends(self) -> list[PendingResend]:
        """Return the texts to resend."""
        rows = self._connection.execute(
            "SELECT text_key, group_id, again, original, own_texts.segment, own_texts.body_id FROM own_texts"
            " JOIN groups USING (group_key) WHERE again IS NOT NULL ORDER BY text_key"
        ).fetchall()
        return [
            PendingResend(
                text_key, UUID(bytes=group_id), self._database.get((segment, body_id)).decode(), seconds, original
            )
            for text_key, group_id, seconds, original, segment, body_id in rows
        ]

    def record_repeat(self, record: GroupRecord, original: int, number: int, *, is_own: bool) -> None:
        """Record a resent copy of the message ``original``. ``is_own``: the user has sent it."""
        self._connection.execute(
            "INSERT OR IGNORE INTO repeats (group_key, sequence_num, original, is_own) VALUES (?, ?, ?, ?)",
            (record.group_key, number, original, is_own),
        )
        self._connection.execute(
            "DELETE FROM repeats WHERE group_key = ?1 AND sequence_num <="
            " (SELECT sequence_num FROM repeats WHERE group_key = ?1 ORDER BY sequence_num DESC LIMIT 1 OFFSET ?2)",
            (record.group_key, MAX_REPEATS),
        )

    def repeats_of(self, record: GroupRecord, original: int) -> list[int]:
        """Return the numbers of the resent copies of a message, ascending."""
        rows = self._connection.execute(
            "SELECT sequence_num FROM repeats WHERE group_key = ? AND original = ? ORDER BY sequence_num",
            (record.group_key, original),
        )
        return [row[0] for row in rows]

    def keep_decrypted(self, record: GroupRecord, number: int, text: str | None) -> None:
        """Store a decrypted text until the history has it. ``text``: None if it cannot be decrypted."""
        self._database.erase_rows("read_texts", "group_key = ? AND sequence_num = ?", record.group_key, number)
        location = self._database.put((text or "").encode())
        self._connection.execute(
            "INSERT INTO read_texts VALUES (?, ?, ?, ?, ?)", (record.group_key, number, text is not None, *location)
        )

    def decrypted(self, record: GroupRecord) -> dict[int, str | None]:
        """Return the decrypted texts that the history may lack, by number."""
        rows = self._connection.execute(
            "SELECT sequence_num, is_readable, segment, body_id FROM read_texts WHERE group_key = ?",
            (record.group_key,),
        ).fetchall()
        return {row[0]: self._database.get((row[2], row[3])).decode() if row[1] else None for row in rows}

    def drop_decrypted(self, record: GroupRecord, up_to: int) -> None:
        """Erase decrypted texts that the history has."""
        self._database.erase_rows("read_texts", "group_key = ? AND sequence_num <= ?", record.group_key, up_to)

    @property
    def _connection(self) -> sqlite3.Connection:
        return self._database.connection


def _hash(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest()
