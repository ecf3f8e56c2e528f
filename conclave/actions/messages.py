"""Sends and fetches messages, and stores read receipts."""

import asyncio
import contextlib
import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from conclave.actions.authorisation import require_member
from conclave.actions.context import Context
from conclave.actions.quotas import Sends
from conclave.archive import pages as both_tiers
from conclave.archive.reader import Archive
from conclave.cache.groups import FetchedPage, GroupCache, Recipients, RecipientSet
from conclave.errors import ApiError, BadRequestError, NotMemberError
from conclave.store.engine.database import Database
from conclave.store.engine.news import announce, announce_stored
from conclave.store.engine.writer import NEEDS_THREAD_WEIGHT
from conclave.store.resources import fetch_gaps, members, messages, send_ids, state, timers
from conclave.store.resources.members import Membership, NoMembershipError
from conclave.store.resources.messages import MessageDraft
from conclave.store.resources.send_ids import SendKey
from conclave.wire import page_writer
from conclave.wire.formats import Format

MAX_READS_IN_DOUBT = 8
"""While the clock is in doubt, at most 8 pages are read, or wait for their fetch gap to be stored, at the same time."""


class Send(NamedTuple):
    """A message that a user sends to a group.

    ``self_destruct_seconds``: see ``store.messages.MessageDraft``. ``send_id``: see ``store.send_ids``; b"": no id.
    """

    group_id: bytes
    user_id: bytes
    body: bytes
    self_destruct_seconds: int = 0
    send_id: bytes = b""


def append(connection: sqlite3.Connection, member: Membership, body: bytes, now: int, *, is_commit: bool) -> int:
    """Store a message of ``member``, update caches, and return its number."""
    return append_all(
        connection, [MessageDraft(member.group.group_key, member.user_id, body, is_commit=is_commit)], now
    )[0]


def append_all(connection: sqlite3.Connection, drafts: Sequence[MessageDraft], now: int) -> list[int]:
    """Store messages by ``messages.append_all``, update caches, and return their numbers."""
    stored = messages.append_all(connection, drafts, now)
    announce_stored(connection, stored)
    return [each.sequence_num for each in stored]


class JointSend:
    """A joint write that stores all waiting messages, see ``group_commit.JointWrite``."""

    def __init__(self, context: Context) -> None:
        """Use the clock and the quotas of ``context``."""
        self._context = context
        self._recipients = Recipients()

    def __call__(self, connection: sqlite3.Connection, sends: Sequence[Send]) -> list[int | Exception]:
        """Store each message and notify the other members. Return for each its number, or the error.

        A message whose ``send_id`` was used before gets its former number: nothing is stored or announced. Raises
        StoreFullError.
        """
        self._recipients.catch_up(connection)
        quota_sends = Sends(self._context.quotas) if self._context.quotas else None
        outcomes: list[int | Exception] = [0] * len(sends)
        accepted: list[tuple[int, RecipientSet]] = []
        timed: Counter[int] = Counter()
        ids = _SendIds(sends)
        for index, each in enumerate(sends):
            group = self._recipients.find(connection, each.group_id)
            if not group or not self._is_member(connection, group, each):
                outcomes[index] = NotMemberError()
                continue
            if each.send_id and ids.is_known(connection, index, group.group_key, outcomes):
                continue
            if (quota_sends or each.self_destruct_seconds) and (
                error := _refusal(connection, group, each, timed, quota_sends)
            ):
                outcomes[index] = error
                continue
            accepted.append((index, group))
            if each.send_id:
                ids.add(index, group.group_key)
        if not accepted:
            return outcomes
        now = self._context.now()
        drafts = [_draft(sends[index], group.group_key) for index, group in accepted]
        numbers = append_all(connection, drafts, now)
        for (index, group), number in zip(accepted, numbers, strict=True):
            send = sends[index]
            outcomes[index] = number
            values = {"group_id": send.group_id, "sequence_num": number, "sender_id": send.user_id}
            announce(connection, group.members, "new_message", excluded=send.user_id, **values)
        ids.settle(connection, outcomes, now)
        if quota_sends:  # last, since a failed transaction is repeated
            quota_sends.stored()
        return outcomes

    def _is_member(self, connection: sqlite3.Connection, group: RecipientSet, send: Send) -> bool:
        """Return whether the sender is a member now. Overdue joins do not count."""
        if send.user_id in group.joining:
            return members.current(connection, send.group_id, send.user_id, self._context.clock) is not None
        return send.user_id in group.members


def _refusal(
    connection: sqlite3.Connection, group: RecipientSet, send: Send, timed: Counter[int], quota_sends: Sends | None
) -> ApiError | None:
    """Return the error if a member's message is rejected; None if it is accepted.

    ``timed``: how many self-destructing messages this transaction has, by group key.
    """
    key = group.group_key
    if send.self_destruct_seconds and not timers.has_room(connection, key, len(group.members), timed[key] + 1):
        return BadRequestError("the group has too many self-destructing messages: wait until some have ended")
    error = quota_sends.refusal(send.group_id, send.user_id, len(send.body)) if quota_sends else None
    if not error:
        timed[group.group_key] += send.self_destruct_seconds > 0
    return error


def _draft(send: Send, group_key: int) -> MessageDraft:
    return MessageDraft(group_key, send.user_id, send.body, self_destruct_seconds=send.self_destruct_seconds)


class _SendIds:
    """Finds repeated send ids, within one transaction or from earlier ones."""

    def __init__(self, sends: Sequence[Send]) -> None:
        self._sends = sends
        self._indexes: dict[SendKey, int] = {}
        self._repeated: list[tuple[int, SendKey]] = []

    def is_known(
        self, connection: sqlite3.Connection, index: int, group_key: int, outcomes: list[int | Exception]
    ) -> bool:
        """Return whether the send is a repetition. Sets its outcome to the former number, now or in ``settle``."""
        key = self._key(index, group_key)
        if key in self._indexes:
            self._repeated.append((index, key))
            return True
        former = send_ids.find(connection, key)
        if former is not None:
            outcomes[index] = former
        return former is not None

    def add(self, index: int, group_key: int) -> None:
        """Record that the send is stored in this transaction."""
        self._indexes[self._key(index, group_key)] = index

    def settle(self, connection: sqlite3.Connection, outcomes: list[int | Exception], now: int) -> None:
        """Store the ids, after the messages have numbers. Raises StoreFullError."""
        if not self._indexes:
            return
        numbers = {key: outcomes[index] for key, index in self._indexes.items()}
        send_ids.remember(connection, {key: each for key, each in numbers.items() if isinstance(each, int)}, now)
        for index, key in self._repeated:
            outcomes[index] = numbers[key]

    def _key(self, index: int, group_key: int) -> SendKey:
        send = self._sends[index]
        return SendKey(group_key, send.user_id, send.send_id)


class MessageSender:
    """Sends messages."""

    def __init__(self, store: Database, context: Context) -> None:
        """Use the clock and the quotas of ``context``."""
        self._store = store
        self._write = JointSend(context)
        self._context = context

    async def prepare(self, group_id: bytes, user_id: bytes, size: int) -> None:
        """Load the quota counts before a user sends ``size`` bytes to a group. Raises StoreError."""
        if self._context.quotas:
            await self._context.quotas.prepare(self._store, group_id, user_id, size)

    def begin(self, message: Send) -> "asyncio.Future[int] | None":
        """Start to send a message, if no read is necessary before; otherwise return None.

        Raises StoreError if the store is closed. The future has all other errors of ``send``.
        """
        if self._context.quotas:
            return None
        return self._store.begin_joint(self._write, message, len(message.body))

    async def send(self, message: Send) -> int:
        """Store a message and notify the other members; return its number once it is durable.

        Raises NotMemberError, BadRequestError (too many self-destructing messages in the group), TooManyRequestsError,
        QuotaError or StoreError.
        """
        if self._context.quotas:
            await self._context.quotas.prepare(self._store, message.group_id, message.user_id, len(message.body))
        return await self._store.write_joint(self._write, message, len(message.body))


class ReadUpdate(NamedTuple):
    """A member has read everything up to the number ``up_to``."""

    group_id: bytes
    user_id: bytes
    up_to: int


class JointRead:
    """A joint write that stores all waiting read receipts, and starts their timers."""

    def __init__(self, context: Context) -> None:
        """Use the clock of ``context``."""
        self._context = context

    def __call__(self, connection: sqlite3.Connection, receipts: Sequence[ReadUpdate]) -> list[bool | Exception]:
        """Store each receipt. Return for each whether another transaction is needed, or a NotMemberError."""
        outcomes: list[bool | Exception] = []
        remaining_timers = timers.STARTED_PER_STEP
        now = self._context.now()
        acted_until = state.latest_acted_on(connection, self._context.clock.read())
        for each in receipts:
            is_incomplete = remaining_timers <= 0
            if not is_incomplete:
                member = members.current(connection, each.group_id, each.user_id, self._context.clock)
                if member is None:
                    outcomes.append(NotMemberError())
                    continue
                started, is_incomplete = timers.note_read(
                    connection, member, each.up_to, now, remaining_timers, acted_until=acted_until
                )
                remaining_timers -= started
            outcomes.append(is_incomplete)
        return outcomes


class ReadReceiptWriter:
    """Stores read receipts."""

    def __init__(self, store: Database, context: Context) -> None:
        """Use the clock of ``context``."""
        self._store = store
        self._context = context
        self._write = JointRead(context)

    async def read(self, receipt: ReadUpdate) -> None:
        """Store a receipt, and return once it is durable. Raises NotMemberError or StoreError.

        Most receipts change nothing. A large one takes several transactions, so that other writes are not delayed.
        """
        effective = await self._store.read(_without_gaps, self._context, receipt)
        is_incomplete = True
        while effective and is_incomplete:
            is_incomplete = await self._store.write_joint(self._write, effective, NEEDS_THREAD_WEIGHT)


def _without_gaps(connection: sqlite3.Connection, context: Context, receipt: ReadUpdate) -> ReadUpdate | None:
    """Return a receipt without messages in fetch gaps; None if it changes nothing. Raises NotMemberError."""
    member = require_member(connection, context, receipt.group_id, receipt.user_id)
    if not timers.needs_noting(member, receipt.up_to):
        return None
    up_to = fetch_gaps.confirmed_read(connection, member, context.clock.moment(), receipt.up_to)
    return receipt._replace(up_to=up_to) if timers.needs_noting(member, up_to) else None


class MessageFetcher:
    """Fetches pages from the cache, or from the store and the archive."""

    def __init__(
        self, groups: GroupCache, store: Database, archive: Archive, context: Context, *, next_confirms: bool
    ) -> None:
        """``groups``: the cache. ``next_confirms``: only the reader's next fetch confirms a page, not its arrival."""
        self._groups = groups
        self._store = store
        self._archive = archive
        self._context = context
        self._next_confirms = next_confirms
        self._in_doubt = asyncio.Semaphore(MAX_READS_IN_DOUBT)

    async def page(
        self,
        group_id: bytes,
        user_id: bytes,
        after: int,
        limit: int,
        written_in: Format,
        *,
        include_redacted: bool = False,
        next_confirms: bool = False,
    ) -> FetchedPage:
        """Return up to ``limit`` messages with numbers greater than ``after``: see ``read_cached`` and ``read``."""
        request = group_id, user_id, after, limit, written_in
        return self.read_cached(*request, next_confirms=next_confirms) or await self.read(
            *request, include_redacted=include_redacted, next_confirms=next_confirms
        )

    async def read(
        self,
        group_id: bytes,
        user_id: bytes,
        after: int,
        limit: int,
        written_in: Format,
        *,
        include_redacted: bool = False,
        next_confirms: bool = False,
    ) -> FetchedPage:
        """Read up to ``limit`` messages with numbers greater than ``after``.

        ``include_redacted``: see ``store.messages.read_page``; cached pages have no redacted messages.
        ``next_confirms``: only the reader's next fetch confirms the page, even if the operator has not set that for
        all readers. Raises NotMemberError, StoreError or ArchiveError. After sending a page with new messages, call
        ``confirm``; if the page's arrival confirms it, first wait until it has arrived or is lost.
        """
        clock, write = self._context.clock, page_writer.message_writer(written_in)
        # While the clock is in doubt, a page may wait for a write before it is sent.
        async with self._in_doubt if clock.moment().in_doubt else contextlib.nullcontext():
            try:
                found = await both_tiers.page(
                    *(self._store, self._archive, group_id, user_id, after, limit, clock, write),
                    include_redacted=include_redacted,
                )
            except NoMembershipError:
                raise NotMemberError from None
            reader = self._groups.add_page(found, after, written_in)
            member, omissions, numbers = found.member, found.omissions, list[int]()
            if omissions.next is not None or member.missed_from:  # skip on the common path
                numbers = [each.sequence_num for each in found.messages]
                visible = {each.sequence_num for each in found.messages if not each.is_redacted}
                if gap := omissions.gap(numbers[-1] if numbers else 0, visible):
                    # Before the page is sent, since the reader's next fetch continues after the gap.
                    await self._store.write(fetch_gaps.note_gap, member.member_id, gap)
        confirmed = omissions.claimed(min(after, member.group.last_seq))
        up_to = max(confirmed, omissions.fetched(after, found.fetched_up_to))
        resumed = omissions.resumed(member.missed_from, after, numbers)
        page = FetchedPage([each.piece for each in found.messages], reader, up_to, confirmed, resumed)
        return self._with_confirmation(page, next_confirms=next_confirms)

    def read_cached(
        self,
        group_id: bytes,
        user_id: bytes,
        after: int,
        limit: int,
        written_in: Format,
        *,
        next_confirms: bool = False,
    ) -> FetchedPage | None:
        """Return the page from the cache, or None. Raises StoreError."""
        page = self._groups.page(group_id, user_id, after, limit, written_in)
        return self._with_confirmation(page, next_confirms=next_confirms) if page else None

    def _with_confirmation(self, fetched: FetchedPage, *, next_confirms: bool) -> FetchedPage:
        if fetched.up_to == fetched.claimed:
            return fetched
        if not fetched.pieces:
            # Losing an empty page does no harm, so it needs no confirmation.
            return fetched._replace(claimed=fetched.up_to)
        return fetched._replace(up_to=fetched.claimed) if next_confirms or self._next_confirms else fetched

    async def confirm(self, fetched: FetchedPage, *, has_arrived: bool) -> None:
        """Store up to which number the reader of a page has fetched. Raises StoreError.

        ``has_arrived``: True only if the page has arrived, and its arrival confirms it. If False, only the numbers that
        the request itself confirmed are stored.
        """
        reader = fetched.reader
        if fetched.resumed and has_arrived:
            await self._store.write(fetch_gaps.update_gap, reader.member_id, fetched.resumed)
        up_to = fetched.up_to if has_arrived else fetched.claimed
        if up_to > reader.watermark:
            await self._store.write_joint(members.confirm_fetched, (reader.member_id, up_to))
            reader.watermark = max(reader.watermark, up_to)
