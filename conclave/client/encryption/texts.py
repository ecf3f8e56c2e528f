"""Texts for the moments in which nothing else has them: sent, but not come back; decrypted, but not in the history.

Also own ones that came back while it was not sure that others have their keys: they are sent again if these have not.
"""

import hashlib
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass, field
from uuid import UUID

from conclave.client.codec import PendingResend
from conclave.client.encryption.groups import Held
from conclave.client.encryption.vault import NOWHERE, Vault

OWN_SECONDS = 2 * 86_400
"""What was sent and has not come back for two days never will: a send that is repeated counts for a day."""


UNDER_WAY_SECONDS = 600
"""What a program had handed to the network when it ended arrives within ten minutes, or never."""

_UNDER_WAY = "again IS NULL AND kept IS NULL"

_FORMER = f"group_key = ? AND text_key <= ? AND made_at < ? AND {_UNDER_WAY}"

MOST_REPEATS = 256
"""So many messages that were sent anew are remembered of a group."""

HEARD_WITHIN = 4_096
"""Of a group's last 4,096 numbers it is remembered whose texts were read."""

UNSURE_SECONDS = 6 * 3_600
"""Who has come in by keys that are not those of the others knows it within six hours, also where the first whom it
heard has come in so too.
"""

_KEPT = "group_key = ? AND kept IS NOT NULL AND again IS NULL AND made_at < ?"

NO_EPOCH = -1
"""The keys that a text was encrypted with were given up."""


@dataclass(frozen=True)
class OwnText:
    """What the user has sent, encrypted for ``epoch``, or with keys that were given up: ``NO_EPOCH``.

    ``original``: the number under which the text came first; 0: it has not come. ``is_kept``: it has come back.
    ``text``: "" if that first one is gone. ``is_unwanted``: it was taken back.
    """

    text_key: int
    text: str = field(repr=False)
    epoch: int
    original: int
    is_kept: bool
    is_unwanted: bool


class Texts:
    """The texts in the file. What changes it is called within a transaction."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        (last,) = self._connection.execute("SELECT ifnull(max(text_key), 0) FROM own_texts").fetchone()
        self._last_former = int(last)
        """The last text that an earlier program has left."""

    def keep_own(
        self, held: Held, payload: bytes, text: str, epoch: int, now: int, *, original: int = 0, send_id: bytes = b""
    ) -> None:
        """Keep what is sent. What was never sent after all goes in time; in other groups it may only be unread."""
        self._vault.erase_rows(
            "own_texts", f"group_key = ? AND made_at < ? AND {_UNDER_WAY}", held.group_key, now - OWN_SECONDS
        )
        place = self._vault.put(text.encode())
        self._connection.execute(
            "INSERT INTO own_texts (group_key, payload_hash, epoch, made_at, original, send_id, segment, body_id)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (held.group_key, _hash(payload), epoch, now, original, send_id, *place),
        )

    def own(self, held: Held, payload: bytes) -> OwnText | None:
        """Return what the user has sent; None if it is not the user's, or not known here."""
        row = self._connection.execute(
            f"SELECT text_key, segment, body_id, epoch, original, NOT ({_UNDER_WAY}), is_unwanted FROM own_texts"
            " WHERE group_key = ? AND payload_hash = ?",
            (held.group_key, _hash(payload)),
        ).fetchone()
        if row is None:
            return None
        key, segment, body_id, epoch, original, is_kept, is_unwanted = row
        text = self._vault.get((segment, body_id)).decode()
        return OwnText(key, text, epoch, original, bool(is_kept), bool(is_unwanted))

    def drop_own(self, text_key: int) -> None:
        """Erase what was sent: it is here as a message, or was not sent after all."""
        self._vault.erase_rows("own_texts", "text_key = ?", text_key)

    def has_former(self, held: Held, now: int) -> bool:
        """Tell whether there is something that ``drop_former`` drops."""
        values = held.group_key, self._last_former, now - UNDER_WAY_SECONDS
        return (
            self._connection.execute(f"SELECT 1 FROM own_texts WHERE {_FORMER} LIMIT 1", values).fetchone() is not None
        )

    def drop_former(self, held: Held, now: int) -> None:
        """Erase what an earlier program has encrypted for a group of which everything was read by now."""
        self._vault.erase_rows("own_texts", _FORMER, held.group_key, self._last_former, now - UNDER_WAY_SECONDS)

    def keep_to_send_again(self, own: OwnText, number: int, self_destruct_seconds: int) -> None:
        """Keep what came too late to be read by everybody; or with keys given up since, as ``give_up_keys`` does."""
        self._connection.execute(
            "UPDATE own_texts SET again = ?1, kept = iif(epoch = ?2, ?1, NULL), original = ?3 WHERE text_key = ?4",
            (self_destruct_seconds, NO_EPOCH, own.original or number, own.text_key),
        )

    def keep_until_sure(self, own: OwnText, number: int, self_destruct_seconds: int) -> None:
        """Keep what came back as long as it is not known whether the others have its keys."""
        self._connection.execute(
            "UPDATE own_texts SET kept = ?, original = ? WHERE text_key = ?",
            (self_destruct_seconds, own.original or number, own.text_key),
        )

    def has_kept(self, held: Held, now: int) -> bool:
        """Tell whether there is something that ``drop_kept`` drops."""
        values = held.group_key, now - UNSURE_SECONDS
        return self._connection.execute(f"SELECT 1 FROM own_texts WHERE {_KEPT} LIMIT 1", values).fetchone() is not None

    def drop_kept(self, held: Held, now: int) -> None:
        """Erase what came back some hours ago to a device that is sure by now that it has the keys of the others."""
        self._vault.erase_rows("own_texts", _KEPT, held.group_key, now - UNSURE_SECONDS)

    def give_up_keys(self, held: Held) -> None:
        """The keys of a group are given up: what others may not have read is to be sent again with those that follow.

        What is under way is so once it comes back. All that stays ``kept`` too: see ``drop_said_before``.
        """
        self._connection.execute(
            "UPDATE own_texts SET epoch = ?, again = ifnull(again, kept) WHERE group_key = ?",
            (NO_EPOCH, held.group_key),
        )

    def drop_said_before(self, held: Held, number: int) -> None:
        """Erase what came in time for those who were there, and is sent again to nobody: somebody new came after it."""
        self._vault.erase_rows(
            "own_texts", "group_key = ? AND kept IS NOT NULL AND original < ?", held.group_key, number
        )

    def kept_numbers(self, held: Held) -> list[int]:
        """Return the numbers of the messages of which a text is kept."""
        rows = self._connection.execute(
            f"SELECT original FROM own_texts WHERE group_key = ? AND NOT ({_UNDER_WAY}) ORDER BY original",
            (held.group_key,),
        )
        return [row[0] for row in rows]

    def drop_gone(self, held: Held, numbers: Collection[int], *, are_taken_back: bool) -> None:
        """Erase what is kept of messages that are gone.

        Of what repeats one, and is under way, the hash stays: it is known by it once it comes. ``are_taken_back``: what
        repeats them is to be taken back too, there or still under way.
        """
        rows = self._connection.execute(
            f"SELECT text_key, original, {_UNDER_WAY}, segment, body_id FROM own_texts WHERE group_key = ?",
            (held.group_key,),
        ).fetchall()
        gone = set(numbers)
        for key, _, is_under_way, *place in (row for row in rows if row[1] in gone):
            if not is_under_way:
                self.drop_own(key)
                continue
            self._vault.erase((place[0], place[1]))
            self._connection.execute(
                "UPDATE own_texts SET segment = ?, body_id = ?, is_unwanted = max(is_unwanted, ?) WHERE text_key = ?",
                (*NOWHERE, are_taken_back, key),
            )
        if are_taken_back:
            repeats = self._connection.execute(
                "SELECT sequence_num, original FROM repeats WHERE group_key = ? AND is_own", (held.group_key,)
            ).fetchall()
            for number in (row[0] for row in repeats if row[1] in gone):
                self.note_unwanted(held, number)

    def note_unwanted(self, held: Held, number: int) -> None:
        """Note that a message is to be taken back, which repeats one that was."""
        self._connection.execute("INSERT OR IGNORE INTO unwanted VALUES (?, ?)", (held.group_key, number))

    def unwanted(self) -> list[tuple[UUID, int]]:
        """Return such messages."""
        rows = self._connection.execute(
            "SELECT group_id, sequence_num FROM unwanted JOIN groups USING (group_key) ORDER BY group_key, sequence_num"
        )
        return [(UUID(bytes=group_id), number) for group_id, number in rows]

    def drop_repeat(self, held: Held, number: int) -> None:
        """Forget a message that was sent anew: it is taken back."""
        for table in ("unwanted", "repeats"):
            self._connection.execute(
                f"DELETE FROM {table} WHERE group_key = ? AND sequence_num = ?", (held.group_key, number)
            )

    def drop_other_tries(self, held: Held, own: OwnText) -> None:
        """Erase the text as it was encrypted for other tries to send it that are under way: one is stored, and came."""
        self._vault.erase_rows(
            "own_texts",
            f"group_key = ? AND text_key != ? AND {_UNDER_WAY} AND send_id != x'' AND send_id ="
            " (SELECT send_id FROM own_texts WHERE text_key = ?)",
            *(held.group_key, own.text_key, own.text_key),
        )

    def has_come_again(self, held: Held, own: OwnText) -> None:
        """Erase the text that ``own`` repeats, and other tries: it is there, though the answer to it may be lost."""
        self._vault.erase_rows(
            *("own_texts", "group_key = ? AND original = ? AND text_key != ?"),
            *(held.group_key, own.original, own.text_key),
        )

    def hear(self, held: Held, number: int, sender_id: UUID) -> None:
        """Note that a text of somebody else's was read, which came first under that number."""
        self._connection.execute(
            "INSERT OR IGNORE INTO heard VALUES (?, ?, ?)", (held.group_key, number, sender_id.bytes)
        )
        self._connection.execute(
            "DELETE FROM heard WHERE group_key = ? AND sequence_num <= ?", (held.group_key, number - HEARD_WITHIN)
        )

    def has_heard(self, held: Held, number: int, sender_id: UUID) -> bool:
        """Tell whether that was so."""
        row = self._connection.execute(
            "SELECT 1 FROM heard WHERE group_key = ? AND sequence_num = ? AND sender_id = ?",
            (held.group_key, number, sender_id.bytes),
        ).fetchone()
        return row is not None

    def pending_resends(self) -> list[PendingResend]:
        """Return what is to be sent again."""
        rows = self._connection.execute(
            "SELECT text_key, group_id, again, original, own_texts.segment, own_texts.body_id FROM own_texts"
            " JOIN groups USING (group_key) WHERE again IS NOT NULL ORDER BY text_key"
        ).fetchall()
        return [
            PendingResend(
                text_key, UUID(bytes=group_id), self._vault.get((segment, body_id)).decode(), seconds, original
            )
            for text_key, group_id, seconds, original, segment, body_id in rows
        ]

    def note_repeated(self, held: Held, original: int, number: int, *, is_own: bool) -> None:
        """Note that a text which came first as ``original`` has come once more. ``is_own``: the user has sent it."""
        self._connection.execute(
            "INSERT OR IGNORE INTO repeats (group_key, sequence_num, original, is_own) VALUES (?, ?, ?, ?)",
            (held.group_key, number, original, is_own),
        )
        self._connection.execute(
            "DELETE FROM repeats WHERE group_key = ?1 AND sequence_num <="
            " (SELECT sequence_num FROM repeats WHERE group_key = ?1 ORDER BY sequence_num DESC LIMIT 1 OFFSET ?2)",
            (held.group_key, MOST_REPEATS),
        )

    def repeats_of(self, held: Held, original: int) -> list[int]:
        """Return under which numbers a text has come once more, ascending."""
        rows = self._connection.execute(
            "SELECT sequence_num FROM repeats WHERE group_key = ? AND original = ? ORDER BY sequence_num",
            (held.group_key, original),
        )
        return [row[0] for row in rows]

    def keep_read(self, held: Held, number: int, text: str | None) -> None:
        """Keep what was decrypted until the history has it. ``text``: None if it cannot be read."""
        self._vault.erase_rows("read_texts", "group_key = ? AND sequence_num = ?", held.group_key, number)
        place = self._vault.put((text or "").encode())
        self._connection.execute(
            "INSERT INTO read_texts VALUES (?, ?, ?, ?, ?)", (held.group_key, number, text is not None, *place)
        )

    def read(self, held: Held) -> dict[int, str | None]:
        """Return what was decrypted, and may be asked for again."""
        rows = self._connection.execute(
            "SELECT sequence_num, is_readable, segment, body_id FROM read_texts WHERE group_key = ?", (held.group_key,)
        ).fetchall()
        return {row[0]: self._vault.get((row[2], row[3])).decode() if row[1] else None for row in rows}

    def drop_read(self, held: Held, up_to: int) -> None:
        """Erase what the history has."""
        self._vault.erase_rows("read_texts", "group_key = ? AND sequence_num <= ?", held.group_key, up_to)

    @property
    def _connection(self) -> sqlite3.Connection:
        return self._vault.connection


def _hash(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest()
