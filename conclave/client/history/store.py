"""The local history: each message once, in order, no longer than its group's effective policy allows.

Texts are stored in plaintext: every process that can read the file can read them.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self
from uuid import UUID

from conclave.client.errors import DiskError
from conclave.client.events import Message
from conclave.client.history import bodies, erasing, pages, read_position
from conclave.client.history.erasing import ErasedMessage
from conclave.client.history.pages import IncomingMessage, TimeBounds, ensure_group
from conclave.client.history.reserve import SpaceReserve
from conclave.client.history.schema import HistoryError, open_history
from conclave.client.history.server_clock import TOLERANCE_SECONDS, ServerClock
from conclave.client.history.times import SavedClock, load_clock, shift_back, shift_forward
from conclave.client.private_file import FULL, transaction
from conclave.clock import Clock, SystemClock

MAX_BATCH = 512
"""Maximum number of messages that a transaction erases."""

MAX_UNREAD = 1_000
"""Maximum number of unread messages returned, since callers read them again for each new one."""

AFTER_FETCH = 0
"""The effective expiry of groups with delete-after-fetch."""

_KEY = "SELECT message_key FROM messages JOIN groups USING (group_key) WHERE group_id = ? AND sequence_num = ?"


class History:
    """One user's local history. Methods raise DiskError if the disk cannot be written, and sqlite3.Error.

    On a full disk erasing continues in reserved space, and ``store`` fails. Processes that share the file wait for each
    other's transactions; only one should use it.
    """

    def __init__(
        self, path: Path | str | None = None, *, keep_after_fetch: int | None = None, clock: Clock | None = None
    ) -> None:
        """``path``: None: in memory.

        ``keep_after_fetch``: lifetime, in seconds after arrival, of messages in delete-after-fetch groups; None:
        unlimited. Raises HistoryError.
        """
        path = None if path is None else Path(path)
        self._keep_after_fetch = keep_after_fetch
        self._connection = open_history(path)
        self._clock = ServerClock(clock or SystemClock(), *load_clock(self._connection))
        self._saved_clock = SavedClock()
        self._has_reappeared = False
        self._unreported: list[ErasedMessage] = []
        self._reserve = SpaceReserve(path)
        for step in (self._set_fetched_gone_at, self._erase_due):
            with suppress(DiskError):  # expired messages stay hidden, and are erased later
                step()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def claim(self, owner: str) -> None:
        """Record the owner, the server's address and the user's id. Raises HistoryError if it is another one."""
        with self._transaction() as connection:
            row = connection.execute("SELECT owner FROM about").fetchone()
            if row and row[0] != owner:
                raise HistoryError(f"this history belongs to {row[0]}, not to {owner}: use one for each account")
            connection.execute("INSERT OR IGNORE INTO about (id, owner) VALUES (1, ?)", (owner,))

    def record_server_time(self, date: int | None) -> None:
        """Record the server's time ``date``, in Unix seconds, rounded down; None: its clock is in doubt.

        A ``date`` that contradicts the local clocks hides expired messages, but erases nothing until it is confirmed:
        see ``ServerClock``.
        """
        if date is None:
            self._clock.record_unknown_time()
            return
        with suppress(DiskError):
            self._erase_due()  # according to the former time: a correction must not show expired messages again
        former, anchor, unconfirmed = self.now(), self._clock.anchor, self._clock.unconfirmed
        jump, now = self._clock.record_time(date), self.now()
        is_corrected = jump > 0 or former - now > TOLERANCE_SECONDS
        if is_corrected or self._saved_clock.differs_from(self._clock):
            try:
                with self._transaction() as connection:
                    self._saved_clock.write(connection, self._clock)
                    if is_corrected:
                        if jump:
                            shift_forward(connection, jump, now - jump)
                        else:
                            shift_back(connection, former - now, now)
                        connection.execute(erasing.SET_GONE_AT, {"keep": self._keep_after_fetch})
            except sqlite3.Error as error:
                self._saved_clock = SavedClock()  # the next answer writes it again
                if is_corrected:
                    self._clock.anchor, self._clock.unconfirmed = anchor, unconfirmed
                if not isinstance(error, DiskError):
                    raise
        # An unconfirmed time was dropped or confirmed, or a local clock that was set forward is right again.
        self._has_reappeared |= (unconfirmed is not None and self._clock.unconfirmed is None) or now < former - 1

    @property
    def is_time_known(self) -> bool:
        """Whether the server's time is accepted. If not, messages missing in its answers may reappear."""
        return self._clock.unconfirmed is None and not self._clock.is_time_unknown

    @property
    def unknown_time_count(self) -> int:
        """Number of answers with the clock in doubt. If it rises during a fetch, the page may lack messages."""
        return self._clock.unknown_time_count

    @property
    def machine_ahead(self) -> int:
        """How many seconds this machine's clock is ahead of the server's; negative: behind."""
        return self._clock.machine_ahead

    @property
    def needs_time(self) -> bool:
        """Whether to ask the server for the time, to confirm a jump or to replace an unknown time."""
        return self._clock.needs_answer

    @property
    def has_reappeared(self) -> bool:
        """Whether messages hidden by a wrong time may have reappeared."""
        return self._has_reappeared

    def take_reappeared(self) -> bool:
        """Return ``has_reappeared``, and reset it."""
        has_reappeared, self._has_reappeared = self._has_reappeared, False
        return has_reappeared

    def now(self) -> int:
        """Return the latest possible time of the server, by which messages are hidden.

        It goes back when an unconfirmed time turns out to be wrong.
        """
        return self._clock.now()

    def confirmed_now(self) -> int:
        """Return the confirmed time of the server: use it for durations.

        It is behind ``now`` while a time is unconfirmed, or this machine's wall clock was set forward.
        """
        return self._clock.confirmed_now()

    @property
    def keep_after_fetch(self) -> int | None:
        """Lifetime of messages in delete-after-fetch groups, in seconds after arrival; None: unlimited."""
        return self._keep_after_fetch

    def groups(self) -> dict[UUID, int]:
        """Return the effective expiry of each known group."""
        return {UUID(bytes=row[0]): row[1] for row in self._connection.execute("SELECT group_id, expiry FROM groups")}

    def fetched_up_to(self, group_id: UUID) -> int:
        """Return the number up to which a group was fetched; 0 for an unknown group."""
        return self._number(group_id, "fetched_up_to")

    def refetch_after(self, group_id: UUID) -> int | None:
        """Return the number after which to fetch again once the server's clock is right; None: complete."""
        return pages.refetch_after(self._connection, group_id)

    def not_fetched(self, group_id: UUID, numbers: Sequence[int]) -> set[int]:
        """Return the numbers of a page that were not received before."""
        return pages.not_fetched(self._connection, group_id, numbers)

    def set_expiry(self, group_id: UUID, expiry: int) -> bool:
        """Set a group's effective expiry, for all its messages. Return whether it has changed.

        Messages that have expired under the new value are hidden at once, and erased by the next ``enforce``. With
        delete-after-fetch, messages keep their former lifetime.
        """
        with self._transaction() as connection:
            group_key, former = ensure_group(connection, group_id)
            if former == expiry:
                return False
            connection.execute("UPDATE groups SET expiry = ? WHERE group_key = ?", (expiry, group_key))
            lifetime = former if expiry == AFTER_FETCH and former > 0 else None
            connection.execute("UPDATE messages SET lifetime = ? WHERE group_key = ?", (lifetime, group_key))
            self._set_gone_at(connection, group_key)
        return True

    def store(
        self,
        group_id: UUID,
        after: int,
        up_to: int,
        incoming: Sequence[IncomingMessage],
        *,
        numbers: Sequence[int] | None = None,
        in_doubt: bool = False,
    ) -> bool:
        """Store a page fetched with ``after``, whose last number is ``up_to``, without expired messages.

        ``numbers``: all numbers of the page; None: those of ``incoming``. ``in_doubt``: whether the server's clock was
        in doubt. Returns False and stores nothing if the history does not end at ``after``, because another process
        has fetched since. Raises DiskError while the reserve cannot be filled.
        """
        if not self._reserve.refill():
            raise DiskError(FULL)
        numbers = [each.sequence_num for each in incoming] if numbers is None else numbers
        with self._transaction() as connection:
            group_key, _ = ensure_group(connection, group_id)
            fetched = pages.record_page(connection, group_key, after, up_to, numbers, in_doubt=in_doubt)
            if fetched is None:
                return False
            times = TimeBounds(self.now(), self._clock.earliest(), self._clock.confirmed_now())
            pages.store(connection, group_key, fetched, incoming, times)
            self._set_gone_at(connection, group_key, after)
        return True

    def messages(self, group_id: UUID, after: int = 0, limit: int = 1_000) -> list[Message]:
        """Return up to ``limit`` visible messages of a group with numbers greater than ``after``."""
        return self._read("sequence_num > ? ORDER BY sequence_num LIMIT ?", group_id, after, limit)

    def present(self, group_id: UUID, numbers: Iterable[int]) -> set[int]:
        """Return the ``numbers`` whose messages are stored, even if they are hidden."""
        return {each for each in numbers if self._connection.execute(_KEY, (group_id.bytes, each)).fetchone()}

    def last_messages(self, group_id: UUID, limit: int = 100) -> list[Message]:
        """Return the last visible messages of a group, in ascending order."""
        return self._read("TRUE ORDER BY sequence_num DESC LIMIT ?", group_id, limit)[::-1]

    def earlier_messages(self, group_id: UUID, before: int, limit: int = 100) -> list[Message]:
        """Return the last visible messages with numbers less than ``before``, in ascending order."""
        return self._read("sequence_num < ? ORDER BY sequence_num DESC LIMIT ?", group_id, before, limit)[::-1]

    def read_up_to(self, group_id: UUID) -> int:
        """Return the number up to which the user has read a group; 0 for an unknown group."""
        return self._number(group_id, "read_up_to")

    def unread(self, group_id: UUID, user_id: UUID) -> list[int]:
        """Return the numbers of the first MAX_UNREAD messages of others that the user ``user_id`` has not seen."""
        return read_position.unread(self._connection, group_id, user_id, self.now(), MAX_UNREAD)

    def unhandled(self, group_id: UUID, limit: int = 100) -> list[Message]:
        """Return the first messages that the application has not handled, late ones first.

        If an unconfirmed time hides a message, later ones are not returned: the hidden one may reappear before them.
        """
        if late_messages := self._read("is_late = 1 ORDER BY sequence_num LIMIT ?", group_id, limit):
            return late_messages
        handled = self._number(group_id, "handled_up_to")
        row = self._connection.execute(
            "SELECT min(sequence_num) FROM messages JOIN groups USING (group_key) WHERE group_id = ?"
            " AND sequence_num > ? AND gone_at <= ? AND gone_at > ?",
            (group_id.bytes, handled, self.now(), self._clock.confirmed_now()),
        ).fetchone()
        return [each for each in self.messages(group_id, handled, limit) if not row[0] or each.sequence_num < row[0]]

    def mark_handled(self, group_id: UUID, number: int) -> None:
        """Record that the application has handled a message, and all before it except late ones.

        Does nothing if the group was erased since.
        """
        with self._transaction() as connection:
            connection.execute(
                "UPDATE groups SET handled_up_to = max(handled_up_to, ?) WHERE group_id = ?", (number, group_id.bytes)
            )
            connection.execute(
                "UPDATE messages SET is_late = 0 WHERE sequence_num = ? AND is_late = 1"
                " AND group_key = (SELECT group_key FROM groups WHERE group_id = ?)",
                (number, group_id.bytes),
            )

    def read(self, group_id: UUID, up_to: int) -> None:
        """Mark everything up to a number as read, which starts the timers of newly read messages."""
        with self._transaction() as connection:
            self._mark_read(connection, group_id, up_to)

    def mark_seen(self, group_id: UUID, user_id: UUID, numbers: Iterable[int] | None = None) -> None:
        """Record messages that were shown on the user's screen, in any order.

        ``numbers``: None marks all as seen except self-destructing ones. Everything before the first unseen message of
        another user counts as read, and its timers start.
        """
        with self._transaction() as connection:
            group_key, _ = ensure_group(connection, group_id)
            if numbers is None:
                read_position.mark_rest_seen(connection, group_key)
            else:
                read_position.mark_seen(connection, group_key, numbers)
            self._mark_read(
                connection,
                group_id,
                read_position.read_up_to(connection, group_id, user_id, self._clock.confirmed_now()),
            )

    def mute(self, group_id: UUID, until: int) -> None:
        """Mute the notifications of a group until the Unix second ``until``."""
        with self._transaction() as connection:
            group_key, _ = ensure_group(connection, group_id)
            connection.execute("UPDATE groups SET muted_until = ? WHERE group_key = ?", (until, group_key))

    def muted_until(self, group_id: UUID) -> int:
        """Return the Unix second until which a group is muted."""
        return self._number(group_id, "muted_until")

    def open(self, group_id: UUID) -> None:
        """Record that the user has opened a group."""
        if self.recently_opened()[:1] == [group_id]:
            return
        with self._transaction() as connection:
            group_key, _ = ensure_group(connection, group_id)
            connection.execute(
                "UPDATE groups SET opened = (SELECT max(opened) + 1 FROM groups) WHERE group_key = ?", (group_key,)
            )

    def recently_opened(self) -> list[UUID]:
        """Return the groups that the user has opened, most recent first."""
        rows = self._connection.execute("SELECT group_id FROM groups WHERE opened > 0 ORDER BY opened DESC")
        return [UUID(bytes=row[0]) for row in rows]

    def unreported_reads(self) -> dict[UUID, int]:
        """Return the groups with unsent read receipts, and the number up to which each was read."""
        rows = self._connection.execute("SELECT group_id, read_up_to FROM groups WHERE read_up_to > told_up_to")
        return {UUID(bytes=row[0]): row[1] for row in rows}

    def mark_reported(self, group_id: UUID, up_to: int) -> None:
        """Record that the server has a read receipt."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE groups SET told_up_to = max(told_up_to, ?) WHERE group_id = ?", (up_to, group_id.bytes)
            )

    def self_destructing(self, group_id: UUID) -> list[int]:
        """Return the numbers of stored self-destructing messages, ascending."""
        rows = self._connection.execute(
            "SELECT sequence_num FROM messages JOIN groups USING (group_key) WHERE group_id = ?"
            " AND self_destruct_seconds > 0 ORDER BY sequence_num",
            (group_id.bytes,),
        )
        return [row[0] for row in rows]

    def forget(self, group_id: UUID, sequence_nums: Sequence[int]) -> list[ErasedMessage]:
        """Erase messages; return those that were stored."""
        numbers = "sequence_num IN (SELECT value FROM json_each(?))"
        return self._forget_where(f"group_id = ? AND {numbers}", group_id.bytes, json.dumps(list(sequence_nums)))

    def forget_group(self, group_id: UUID) -> bool:
        """Erase a group with its messages. Return whether the history had the group."""
        self._forget_where("group_id = ?", group_id.bytes)
        with self._transaction() as connection:
            return connection.execute("DELETE FROM groups WHERE group_id = ?", (group_id.bytes,)).rowcount > 0

    def forget_before(self, group_id: UUID, before: int) -> list[ErasedMessage]:
        """Erase and return messages created before the Unix second ``before``."""
        return self._forget_where("group_id = ? AND created_at < ?", group_id.bytes, before)

    def forget_sender(self, group_id: UUID, sender_id: UUID) -> list[ErasedMessage]:
        """Erase and return a user's messages in a group."""
        return self._forget_where("group_id = ? AND sender_id = ?", group_id.bytes, sender_id.bytes)

    def senders(self, group_id: UUID) -> set[UUID]:
        """Return the senders of a group's stored messages."""
        rows = self._connection.execute(
            "SELECT DISTINCT sender_id FROM messages JOIN groups USING (group_key) WHERE group_id = ?",
            (group_id.bytes,),
        )
        return {UUID(bytes=row[0]) for row in rows}

    def forget_all(self) -> None:
        """Erase everything, including the owner."""
        for group_id in self.groups():
            self.forget_group(group_id)
        with self._transaction() as connection:
            connection.execute("DELETE FROM about")
            connection.execute("DELETE FROM doubt")

    def enforce(self) -> list[ErasedMessage]:
        """Erase and return expired messages. Call it at least once a second: it is cheap."""
        self._erase_due()
        self._reserve.refill()
        found, self._unreported = self._unreported, []
        return found

    def release_reserve(self) -> None:
        """Free the reserved space, to erase data outside the history."""
        self._reserve.release()

    def _forget_where(self, condition: str, *values: bytes | int | str) -> list[ErasedMessage]:
        """Erase matching messages in batches; on a full disk one at a time, in the reserved space."""
        query = f"SELECT message_key FROM messages JOIN groups USING (group_key) WHERE {condition} LIMIT ?"
        erased, batch_size = list[ErasedMessage](), MAX_BATCH
        while self._connection.execute(query, (*values, 1)).fetchone():
            try:
                with self._transaction() as connection:
                    keys = connection.execute(query, (*values, batch_size)).fetchall()
                    batch = erasing.erase(connection, [each[0] for each in keys])
            except DiskError:
                if not self._reserve.release() and batch_size == 1:
                    self._unreported += erased
                    raise
                batch_size = 1
            else:
                erased += batch
        return erased

    def _erase_due(self) -> None:
        """Erase expired messages, which the next ``enforce`` returns."""
        self._unreported += self._forget_where("gone_at <= ?", self._clock.confirmed_now())
        with suppress(DiskError):  # compacting needs space before it frees any
            while (segment := bodies.sparse(self._connection)) is not None:
                with self._transaction() as connection:
                    erasing.compact(connection, segment)

    def _set_fetched_gone_at(self) -> None:
        """Update ``gone_at`` in delete-after-fetch groups: ``keep_after_fetch`` may have changed."""
        with self._transaction() as connection:
            connection.execute(
                f"{erasing.SET_GONE_AT} WHERE group_key IN (SELECT group_key FROM groups WHERE expiry = 0)",
                {"keep": self._keep_after_fetch},
            )

    def _read(self, condition: str, group_id: UUID, *values: int) -> list[Message]:
        return pages.read(
            self._connection, f"(gone_at IS NULL OR gone_at > ?) AND {condition}", group_id, self.now(), *values
        )

    def _number(self, group_id: UUID, column: str) -> int:
        row = self._connection.execute(f"SELECT {column} FROM groups WHERE group_id = ?", (group_id.bytes,)).fetchone()
        return row[0] if row else 0

    def _mark_read(self, connection: sqlite3.Connection, group_id: UUID, up_to: int) -> None:
        """Mark everything up to a number as read, at most up to the last fetched message."""
        group_key, _ = ensure_group(connection, group_id)
        up_to = min(up_to, self.fetched_up_to(group_id))  # later messages cannot have been seen
        former = read_position.mark_read(connection, group_key, up_to, self._clock.earliest())
        if former < up_to:
            self._set_gone_at(connection, group_key, former, up_to)

    def _set_gone_at(
        self, connection: sqlite3.Connection, group_key: int, after: int = 0, up_to: int = erasing.NEVER
    ) -> None:
        """Update ``gone_at`` of a group's messages with numbers in (after, up_to]."""
        connection.execute(
            f"{erasing.SET_GONE_AT} WHERE group_key = :group_key AND sequence_num > :after AND sequence_num <= :up_to",
            {"keep": self._keep_after_fetch, "group_key": group_key, "after": after, "up_to": up_to},
        )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with transaction(self._connection):
            yield self._connection
