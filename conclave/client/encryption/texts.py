"""Texts for the moments in which nothing else has them: sent, but not come back; decrypted, but not in the history."""

import hashlib
import sqlite3
from dataclasses import dataclass, field
from uuid import UUID

from conclave.client.codec import SendAgain
from conclave.client.encryption.groups import Held
from conclave.client.encryption.vault import Vault

OWN_SECONDS = 2 * 86_400
"""What was sent and has not come back for two days never will: a send that is repeated counts for a day."""


UNDER_WAY_SECONDS = 600
"""What a program had handed to the network when it ended arrives within ten minutes, or never."""

_FORMER = "group_key = ? AND text_key <= ? AND made_at < ? AND again IS NULL"

MOST_LATE = 256
"""So many late messages are remembered of a group, and so many that were sent anew."""


@dataclass(frozen=True)
class OwnText:
    """What the user has sent, encrypted for ``epoch``.

    ``original``: it was sent again, and came first under that number; 0: it was not.
    """

    text_key: int
    text: str = field(repr=False)
    epoch: int
    original: int


class Texts:
    """The texts in the file. What changes it is called within a transaction."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        (last,) = self._connection.execute("SELECT ifnull(max(text_key), 0) FROM own_texts").fetchone()
        self._last_former = int(last)
        """The last text that an earlier program has left."""

    def keep_own(self, held: Held, payload: bytes, text: str, epoch: int, now: int, *, original: int = 0) -> None:
        """Keep what is sent. What was never sent after all goes in time."""
        self._vault.erase_rows("own_texts", "made_at < ? AND again IS NULL", now - OWN_SECONDS)
        place = self._vault.put(text.encode())
        self._connection.execute(
            "INSERT INTO own_texts (group_key, payload_hash, epoch, made_at, original, segment, body_id)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (held.group_key, _hash(payload), epoch, now, original, *place),
        )

    def own(self, held: Held, payload: bytes) -> OwnText | None:
        """Return what the user has sent; None if it is not the user's, or not known here."""
        row = self._connection.execute(
            "SELECT text_key, epoch, original, segment, body_id FROM own_texts"
            " WHERE group_key = ? AND payload_hash = ?",
            (held.group_key, _hash(payload)),
        ).fetchone()
        return row and OwnText(row[0], self._vault.get((row[3], row[4])).decode(), row[1], row[2])

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
        """Keep what came too late to be read by everybody."""
        self._connection.execute(
            "UPDATE own_texts SET again = ?, original = ? WHERE text_key = ?",
            (self_destruct_seconds, own.original or number, own.text_key),
        )

    def read_late(self, held: Held, number: int) -> None:
        """Note that a message could be read although its epoch had passed."""
        self._connection.execute("INSERT OR IGNORE INTO late VALUES (?, ?)", (held.group_key, number))
        self._connection.execute(
            "DELETE FROM late WHERE group_key = ?1 AND sequence_num <="
            " (SELECT sequence_num FROM late WHERE group_key = ?1 ORDER BY sequence_num DESC LIMIT 1 OFFSET ?2)",
            (held.group_key, MOST_LATE),
        )

    def was_read_late(self, held: Held, number: int) -> bool:
        """Tell whether that was so."""
        row = self._connection.execute(
            "SELECT 1 FROM late WHERE group_key = ? AND sequence_num = ?", (held.group_key, number)
        ).fetchone()
        return row is not None

    def to_send_again(self) -> list[SendAgain]:
        """Return what is to be sent again."""
        rows = self._connection.execute(
            "SELECT text_key, group_id, again, original, own_texts.segment, own_texts.body_id FROM own_texts"
            " JOIN groups USING (group_key) WHERE again IS NOT NULL ORDER BY text_key"
        ).fetchall()
        return [
            SendAgain(text_key, UUID(bytes=group_id), self._vault.get((segment, body_id)).decode(), seconds, original)
            for text_key, group_id, seconds, original, segment, body_id in rows
        ]

    def note_repeated(self, held: Held, original: int, number: int) -> None:
        """Note that a text which came first as ``original`` has come once more."""
        self._connection.execute("INSERT OR IGNORE INTO repeats VALUES (?, ?, ?)", (held.group_key, number, original))
        self._connection.execute(
            "DELETE FROM repeats WHERE group_key = ?1 AND sequence_num <="
            " (SELECT sequence_num FROM repeats WHERE group_key = ?1 ORDER BY sequence_num DESC LIMIT 1 OFFSET ?2)",
            (held.group_key, MOST_LATE),
        )

    def repeated(self, held: Held, original: int) -> list[int]:
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
