"""The local history: each message once, in order, and no longer than the effective policy of its group allows.

What is here is not encrypted: every process that may read the file reads the texts.
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

ERASED_AT_ONCE = 512
"""A transaction erases at most 512 messages."""

MOST_UNREAD = 1_000
"""Of unread messages the first 1,000 are told: who hears of each that arrives would read all the others each time."""

AFTER_FETCH = 0
"""The effective expiry of a group whose messages the server deletes once all have fetched them."""

_KEY = "SELECT message_key FROM messages JOIN groups USING (group_key) WHERE group_id = ? AND sequence_num = ?"


class History:
    """What one user keeps. Every method raises DiskError where nothing can be written, and sqlite3.Error.

    On a full disk erasing goes on, in space that is kept for it, and ``store`` stores nothing.

    One process uses it at a time; a second one waits for the first one's transactions.
    """

    def __init__(
        self, path: Path | str | None = None, *, keep_after_fetch: int | None = None, clock: Clock | None = None
    ) -> None:
        """``path``: None keeps it in memory only.

        ``keep_after_fetch``: for how many seconds after their arrival messages of delete-after-fetch groups are kept;
        None: the server deletes its copies, and these stay. Raises HistoryError.
        """
        path = None if path is None else Path(path)
        self._keep_after_fetch = keep_after_fetch
        self._connection = open_history(path)
        self._clock = ServerClock(clock or SystemClock(), *load_clock(self._connection))
        self._saved_clock = SavedClock()
        self._has_reappeared = False
        self._unannounced: list[ErasedMessage] = []
        self._reserve = SpaceReserve(path)
        for work in (self._set_fetched_gone_at, self._erase_due):
            with suppress(DiskError):  # what is due is not shown, and erased as soon as that is possible
                work()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def claim(self, owner: str) -> None:
        """Note whose history it is, the server's address and the user's id. Raises HistoryError if another's."""
        with self._transaction() as connection:
            row = connection.execute("SELECT owner FROM about").fetchone()
            if row and row[0] != owner:
                raise HistoryError(f"this history is of {row[0]}, not of {owner}: use one for each account")
            connection.execute("INSERT OR IGNORE INTO about (id, owner) VALUES (1, ?)", (owner,))

    def record_server_time(self, date: int | None) -> None:
        """The server says that it is ``date``, Unix seconds rounded down; None: it does not know.

        A ``date`` that this machine's clocks contradict hides what has expired by it, and erases nothing until it is
        confirmed: see ``ServerClock``.
        """
        if date is None:
            self._clock.record_unknown_time()
            return
        with suppress(DiskError):
            self._erase_due()  # by the time as it was known: hearing revives nothing
        former, anchor, doubt = self.now(), self._clock.anchor, self._clock.doubt
        leap, now = self._clock.hear(date), self.now()
        mends = leap > 0 or former - now > TOLERANCE_SECONDS
        if mends or self._saved_clock.differ_from(self._clock):
            try:
                with self._transaction() as connection:
                    self._saved_clock.write(connection, self._clock)
                    if mends:
                        shift_forward(connection, leap, now - leap) if leap else shift_back(
                            connection, former - now, now
                        )
                        connection.execute(erasing.SET_GONE_AT, {"keep": self._keep_after_fetch})
            except sqlite3.Error as error:
                self._saved_clock = SavedClock()  # the next answer mends it
                if mends:
                    self._clock.anchor, self._clock.doubt = anchor, doubt
                if not isinstance(error, DiskError):
                    raise
        # A doubt that ends, or a clock of this machine that was set forward and is set right.
        self._has_reappeared |= (doubt is not None and self._clock.doubt is None) or now < former - 1

    @property
    def is_time_known(self) -> bool:
        """Whether the server tells a time that is believed. If not, what it does not show need not be gone."""
        return self._clock.doubt is None and not self._clock.is_time_unknown

    @property
    def unknown_time_count(self) -> int:
        """How often the server has not known the time: if that was so for a page, it may leave something out."""
        return self._clock.unknown_time_count

    @property
    def machine_ahead(self) -> int:
        """By how many seconds this machine's clock is ahead of the server's; negative: it is behind."""
        return self._clock.machine_ahead

    @property
    def needs_time(self) -> bool:
        """Whether to ask the server for the time: a doubt ends by several answers, and its silence by one."""
        return self._clock.needs_answer

    @property
    def has_reappeared(self) -> bool:
        """Whether messages that were hidden by a time that was wrong may be shown again."""
        return self._has_reappeared

    def take_reappeared(self) -> bool:
        """Tell that once."""
        has_reappeared, self._has_reappeared = self._has_reappeared, False
        return has_reappeared

    def now(self) -> int:
        """Return the server's time, as far as it is known here: the latest that it may be, by which things are hidden.

        It can go back, when a time that was in doubt turns out to be wrong.
        """
        return self._clock.now()

    def confirmed_now(self) -> int:
        """Return the server's time that has come for sure: what is to end by a clock counts from it, and is over by it.

        It is behind ``now`` while a time is in doubt, or this machine's wall clock was set forward.
        """
        return self._clock.confirmed_now()

    @property
    def keep_after_fetch(self) -> int | None:
        """For how many seconds messages of delete-after-fetch groups are kept; None: they stay."""
        return self._keep_after_fetch

    def groups(self) -> dict[UUID, int]:
        """Return the groups that are known here, and the effective expiry of each."""
        return {UUID(bytes=row[0]): row[1] for row in self._connection.execute("SELECT group_id, expiry FROM groups")}

    def fetched_up_to(self, group_id: UUID) -> int:
        """Return the number up to which was fetched; 0 for a group that is not known."""
        return self._number(group_id, "fetched_up_to")

    def refetch_after(self, group_id: UUID) -> int | None:
        """Return the number after which to fetch once more, as the server knows the time again; None: nothing to."""
        return pages.refetch_after(self._connection, group_id)

    def not_fetched(self, group_id: UUID, numbers: Sequence[int]) -> set[int]:
        """Return those of a page's numbers that have not come yet."""
        return pages.not_fetched(self._connection, group_id, numbers)

    def set_expiry(self, group_id: UUID, expiry: int) -> bool:
        """Note a group's effective expiry, which holds for all its messages at once. Tell whether it is another one.

        What it forbids is gone with the next ``enforce``, and not shown before that. With delete-after-fetch what is
        here keeps the lifetime that it had.
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
        arrived: Sequence[IncomingMessage],
        *,
        numbers: Sequence[int] | None = None,
        in_doubt: bool = False,
    ) -> bool:
        """Store what was fetched with ``after``, whose last number is ``up_to``; what is expired already is not stored.

        ``numbers``: all of the page; None: those that ``arrived``. ``in_doubt``: the server did not know the time.
        Return False, and store nothing, if the history was not at ``after``: another process has fetched meanwhile.
        Raises DiskError while the space that erasing needs is not free.
        """
        if not self._reserve.refill():
            raise DiskError(FULL)
        numbers = [each.sequence_num for each in arrived] if numbers is None else numbers
        with self._transaction() as connection:
            group_key, _ = ensure_group(connection, group_id)
            fetched = pages.record_page(connection, group_key, after, up_to, numbers, in_doubt=in_doubt)
            if fetched is None:
                return False
            times = TimeBounds(self.now(), self._clock.earliest(), self._clock.confirmed_now())
            pages.store(connection, group_key, fetched, arrived, times)
            self._set_gone_at(connection, group_key, after)
        return True

    def messages(self, group_id: UUID, after: int = 0, limit: int = 1_000) -> list[Message]:
        """Return what may be shown of a group: up to ``limit`` messages with numbers greater than ``after``."""
        return self._read("sequence_num > ? ORDER BY sequence_num LIMIT ?", group_id, after, limit)

    def present(self, group_id: UUID, numbers: Iterable[int]) -> set[int]:
        """Return those of ``numbers`` whose messages are not erased, also if a clock that may be wrong hides them."""
        return {each for each in numbers if self._connection.execute(_KEY, (group_id.bytes, each)).fetchone()}

    def last_messages(self, group_id: UUID, limit: int = 100) -> list[Message]:
        """Return the last messages that may be shown of a group, in ascending order."""
        return self._read("TRUE ORDER BY sequence_num DESC LIMIT ?", group_id, limit)[::-1]

    def earlier_messages(self, group_id: UUID, before: int, limit: int = 100) -> list[Message]:
        """Return the last messages that may be shown of those with numbers less than ``before``, in ascending order."""
        return self._read("sequence_num < ? ORDER BY sequence_num DESC LIMIT ?", group_id, before, limit)[::-1]

    def read_up_to(self, group_id: UUID) -> int:
        """Return the number up to which the user has seen a group; 0 for a group that is not known."""
        return self._number(group_id, "read_up_to")

    def unread(self, group_id: UUID, user_id: UUID) -> list[int]:
        """Return the numbers of the first MOST_UNREAD messages of others that the user, ``user_id``, has not seen."""
        return read_position.unread(self._connection, group_id, user_id, self.now(), MOST_UNREAD)

    def unhandled(self, group_id: UUID, limit: int = 100) -> list[Message]:
        """Return the first messages that the application has not had yet; late ones before all others.

        What is hidden only by a time that is in doubt keeps those after it waiting: it may come back before them.
        """
        if late := self._read("is_late = 1 ORDER BY sequence_num LIMIT ?", group_id, limit):
            return late
        handled = self._number(group_id, "handled_up_to")
        row = self._connection.execute(
            "SELECT min(sequence_num) FROM messages JOIN groups USING (group_key) WHERE group_id = ?"
            " AND sequence_num > ? AND gone_at <= ? AND gone_at > ?",
            (group_id.bytes, handled, self.now(), self._clock.confirmed_now()),
        ).fetchone()
        return [each for each in self.messages(group_id, handled, limit) if not row[0] or each.sequence_num < row[0]]

    def mark_handled(self, group_id: UUID, number: int) -> None:
        """Note that the application has had a message, and all before it but what came late.

        If the group was forgotten meanwhile, there is nothing to note.
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
        """Note that the user has seen everything up to a number: timers of what it newly covers run from now on."""
        with self._transaction() as connection:
            self._mark_read(connection, group_id, up_to)

    def mark_seen(self, group_id: UUID, user_id: UUID, numbers: Iterable[int] | None = None) -> None:
        """Note that messages were on the user's screen, in any order.

        ``numbers``: None: all are put aside as read but self-destructing ones, which have to be seen. As read, with
        timers that run, counts everything up to the first message of another user's that was not seen.
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
        """Note that a group does not call the user before the Unix second ``until``."""
        with self._transaction() as connection:
            group_key, _ = ensure_group(connection, group_id)
            connection.execute("UPDATE groups SET muted_until = ? WHERE group_key = ?", (until, group_key))

    def muted_until(self, group_id: UUID) -> int:
        """Return the first Unix second at which a group calls the user again."""
        return self._number(group_id, "muted_until")

    def open(self, group_id: UUID) -> None:
        """Note that the user has opened a group."""
        if self.recently_opened()[:1] == [group_id]:
            return
        with self._transaction() as connection:
            group_key, _ = ensure_group(connection, group_id)
            connection.execute(
                "UPDATE groups SET opened = (SELECT max(opened) + 1 FROM groups) WHERE group_key = ?", (group_key,)
            )

    def recently_opened(self) -> list[UUID]:
        """Return the groups that the user has opened, the last one first."""
        rows = self._connection.execute("SELECT group_id FROM groups WHERE opened > 0 ORDER BY opened DESC")
        return [UUID(bytes=row[0]) for row in rows]

    def unreported_reads(self) -> dict[UUID, int]:
        """Return what the user has seen and the server does not know of: numbers, by group."""
        rows = self._connection.execute("SELECT group_id, read_up_to FROM groups WHERE read_up_to > told_up_to")
        return {UUID(bytes=row[0]): row[1] for row in rows}

    def mark_reported(self, group_id: UUID, up_to: int) -> None:
        """Note that the server knows what the user has seen."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE groups SET told_up_to = max(told_up_to, ?) WHERE group_id = ?", (up_to, group_id.bytes)
            )

    def self_destructing(self, group_id: UUID) -> list[int]:
        """Return the numbers of the messages here that destroy themselves, ascending."""
        rows = self._connection.execute(
            "SELECT sequence_num FROM messages JOIN groups USING (group_key) WHERE group_id = ?"
            " AND self_destruct_seconds > 0 ORDER BY sequence_num",
            (group_id.bytes,),
        )
        return [row[0] for row in rows]

    def forget(self, group_id: UUID, sequence_nums: Sequence[int]) -> list[ErasedMessage]:
        """Erase messages, as far as they are here; return those that were."""
        numbers = "sequence_num IN (SELECT value FROM json_each(?))"
        return self._forget_where(f"group_id = ? AND {numbers}", group_id.bytes, json.dumps(list(sequence_nums)))

    def forget_group(self, group_id: UUID) -> bool:
        """Erase a group with all that is here of it. Tell whether it was here."""
        self._forget_where("group_id = ?", group_id.bytes)
        with self._transaction() as connection:
            return connection.execute("DELETE FROM groups WHERE group_id = ?", (group_id.bytes,)).rowcount > 0

    def forget_before(self, group_id: UUID, before: int) -> list[ErasedMessage]:
        """Erase what was created before the Unix second ``before``; return what that was."""
        return self._forget_where("group_id = ? AND created_at < ?", group_id.bytes, before)

    def forget_sender(self, group_id: UUID, sender_id: UUID) -> list[ErasedMessage]:
        """Erase what a user has sent to a group; return what that was."""
        return self._forget_where("group_id = ? AND sender_id = ?", group_id.bytes, sender_id.bytes)

    def senders(self, group_id: UUID) -> set[UUID]:
        """Return who has sent what is here of a group."""
        rows = self._connection.execute(
            "SELECT DISTINCT sender_id FROM messages JOIN groups USING (group_key) WHERE group_id = ?",
            (group_id.bytes,),
        )
        return {UUID(bytes=row[0]) for row in rows}

    def forget_all(self) -> None:
        """Erase everything, whose history it is included."""
        for group_id in self.groups():
            self.forget_group(group_id)
        with self._transaction() as connection:
            connection.execute("DELETE FROM about")
            connection.execute("DELETE FROM doubt")

    def enforce(self) -> list[ErasedMessage]:
        """Erase what may not be here any more; return what that was. Call it at least once a second, cheap as it is."""
        self._erase_due()
        self._reserve.refill()
        found, self._unannounced = self._unannounced, []
        return found

    def release_reserve(self) -> None:
        """Give up the space that is kept for erasing: something beside the history is to be erased."""
        self._reserve.release()

    def _forget_where(self, condition: str, *values: bytes | int | str) -> list[ErasedMessage]:
        """Erase messages, some at a time; if that fails for lack of space, one at a time, in the reserve."""
        find = f"SELECT message_key FROM messages JOIN groups USING (group_key) WHERE {condition} LIMIT ?"
        erased, most = list[ErasedMessage](), ERASED_AT_ONCE
        while self._connection.execute(find, (*values, 1)).fetchone():
            try:
                with self._transaction() as connection:
                    keys = connection.execute(find, (*values, most)).fetchall()
                    some = erasing.erase(connection, [each[0] for each in keys])
            except DiskError:
                if not self._reserve.release() and most == 1:
                    self._unannounced += erased
                    raise
                most = 1
            else:
                erased += some
        return erased

    def _erase_due(self) -> None:
        """Erase what is due; what that was is announced later."""
        self._unannounced += self._forget_where("gone_at <= ?", self._clock.confirmed_now())
        with suppress(DiskError):  # it makes room later, but takes some first
            while (segment := bodies.sparse(self._connection)) is not None:
                with self._transaction() as connection:
                    erasing.compact(connection, segment)

    def _set_fetched_gone_at(self) -> None:
        """Work out when messages that the server has deleted are gone: the option may be another one than last time."""
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
        """Have everything up to a number count as read, as far as it is here."""
        group_key, _ = ensure_group(connection, group_id)
        up_to = min(up_to, self.fetched_up_to(group_id))  # what is not here was not seen
        former = read_position.mark_read(connection, group_key, up_to, self._clock.earliest())
        if former < up_to:
            self._set_gone_at(connection, group_key, former, up_to)

    def _set_gone_at(
        self, connection: sqlite3.Connection, group_key: int, after: int = 0, up_to: int = erasing.NEVER
    ) -> None:
        """Work out anew when the messages of a group are gone: those that come after a number, up to another one."""
        connection.execute(
            f"{erasing.SET_GONE_AT} WHERE group_key = :group_key AND sequence_num > :after AND sequence_num <= :up_to",
            {"keep": self._keep_after_fetch, "group_key": group_key, "after": after, "up_to": up_to},
        )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with transaction(self._connection):
            yield self._connection
