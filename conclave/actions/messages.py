"""Sending and fetching messages."""

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
from conclave.store.engine.writer import NEEDS_THREAD
from conclave.store.resources import fetch_gaps, members, messages, send_ids, state, timers
from conclave.store.resources.members import Membership, NoMembershipError
from conclave.store.resources.messages import MessageDraft
from conclave.store.resources.send_ids import SendKey
from conclave.wire import page_writer
from conclave.wire.formats import Format

READ_IN_DOUBT = 8
"""While the clock is in doubt, at most 8 pages are read at the same time, or wait until it is noted what they lack."""


class Send(NamedTuple):
    """A message that a user sends to a group. ``self_destruct_seconds``: see ``store.messages.Draft``.

    ``send_id``: see ``store.send_ids``; b"": it has none.
    """

    group_id: bytes
    user_id: bytes
    body: bytes
    self_destruct_seconds: int = 0
    send_id: bytes = b""


def append(connection: sqlite3.Connection, member: Membership, body: bytes, now: int, *, is_commit: bool) -> int:
    """Store a message of ``member`` as ``append_all`` does, and return its number."""
    return append_all(
        connection, [MessageDraft(member.group.group_key, member.user_id, body, is_commit=is_commit)], now
    )[0]


def append_all(connection: sqlite3.Connection, drafts: Sequence[MessageDraft], now: int) -> list[int]:
    """Store messages as ``messages.append_all`` does, have caches hear of them, and return their numbers."""
    stored = messages.append_all(connection, drafts, now)
    announce_stored(connection, stored)
    return [each.sequence_num for each in stored]


class JointSend:
    """Stores the messages that wait at the same time: a joint write, see ``group_commit.Joint``."""

    def __init__(self, context: Context) -> None:
        """Store them as of the clock of ``context``."""
        self._context = context
        self._recipients = Recipients()

    def __call__(self, connection: sqlite3.Connection, sends: Sequence[Send]) -> list[int | Exception]:
        """Store each message and tell the others of it. Return its number, or a NotMemberError, or why it is too much.

        One that was sent before, by its ``send_id``, keeps its former number: nothing is stored or announced. Raises
        StoreFullError.
        """
        self._recipients.catch_up(connection)
        limited = Sends(self._context.quotas) if self._context.quotas else None
        outcomes: list[int | Exception] = [0] * len(sends)
        accepted: list[tuple[int, RecipientSet]] = []
        timed: Counter[int] = Counter()
        ids = _SendIds(sends)
        for place, each in enumerate(sends):
            group = self._recipients.find(connection, each.group_id)
            if not group or not self._is_member(connection, group, each):
                outcomes[place] = NotMemberError()
                continue
            if each.send_id and ids.is_known(connection, place, group.group_key, outcomes):
                continue
            if (limited or each.self_destruct_seconds) and (
                refused := _refusal(connection, group, each, timed, limited)
            ):
                outcomes[place] = refused
                continue
            accepted.append((place, group))
            if each.send_id:
                ids.add(place, group.group_key)
        if not accepted:
            return outcomes
        now = self._context.now()
        drafts = [_draft(sends[place], group.group_key) for place, group in accepted]
        numbers = append_all(connection, drafts, now)
        for (place, group), number in zip(accepted, numbers, strict=True):
            sent = sends[place]
            outcomes[place] = number
            values = {"group_id": sent.group_id, "sequence_num": number, "sender_id": sent.user_id}
            announce(connection, group.members, "new_message", excluded=sent.user_id, **values)
        ids.settle(connection, outcomes, now)
        if limited:  # last: what fails before is asked again
            limited.stored()
        return outcomes

    def _is_member(self, connection: sqlite3.Connection, group: RecipientSet, sent: Send) -> bool:
        """Return whether the sender is a member now: a join may be overdue."""
        if sent.user_id in group.joining:
            return members.current(connection, sent.group_id, sent.user_id, self._context.clock) is not None
        return sent.user_id in group.members


def _refusal(
    connection: sqlite3.Connection, group: RecipientSet, send: Send, timed: Counter[int], limited: Sends | None
) -> ApiError | None:
    """Return why a member's message is refused; None if it is not.

    ``timed``: how many messages of this transaction destroy themselves, by the key of the group.
    """
    key = group.group_key
    if send.self_destruct_seconds and not timers.has_room(connection, key, len(group.members), timed[key] + 1):
        return BadRequestError("the group has too many self-destructing messages: some have to come to their end first")
    refused = limited.refusal(send.group_id, send.user_id, len(send.body)) if limited else None
    if not refused:
        timed[group.group_key] += send.self_destruct_seconds > 0
    return refused


def _draft(sent: Send, group_key: int) -> MessageDraft:
    return MessageDraft(group_key, sent.user_id, sent.body, self_destruct_seconds=sent.self_destruct_seconds)


class _SendIds:
    """The ids that the sends of one transaction have: an id may have been used before, or by two of them."""

    def __init__(self, sends: Sequence[Send]) -> None:
        self._sends = sends
        self._first: dict[SendKey, int] = {}
        self._again: list[tuple[int, SendKey]] = []

    def is_known(
        self, connection: sqlite3.Connection, place: int, group_key: int, outcomes: list[int | Exception]
    ) -> bool:
        """Return whether the send at ``place`` was sent before. Its outcome is the former number, or follows later."""
        sent = self._sent(place, group_key)
        if sent in self._first:
            self._again.append((place, sent))
            return True
        former = send_ids.find(connection, sent)
        if former is not None:
            outcomes[place] = former
        return former is not None

    def add(self, place: int, group_key: int) -> None:
        """Note that the send at ``place`` is stored in this transaction."""
        self._first[self._sent(place, group_key)] = place

    def settle(self, connection: sqlite3.Connection, outcomes: list[int | Exception], now: int) -> None:
        """Remember the ids once their messages have numbers. Raises StoreFullError."""
        if not self._first:
            return
        numbers = {sent: outcomes[place] for sent, place in self._first.items()}
        send_ids.add_page(connection, {sent: each for sent, each in numbers.items() if isinstance(each, int)}, now)
        for place, sent in self._again:
            outcomes[place] = numbers[sent]

    def _sent(self, place: int, group_key: int) -> SendKey:
        each = self._sends[place]
        return SendKey(group_key, each.user_id, each.send_id)


class Sending:
    """Sends messages."""

    def __init__(self, store: Database, context: Context) -> None:
        """Send by the clock of ``context``."""
        self._store = store
        self._write = JointSend(context)
        self._context = context

    async def prepare(self, group_id: bytes, user_id: bytes, size: int) -> None:
        """Have the quotas know what they need before a user sends ``size`` bytes to a group. Raises StoreError."""
        if self._context.quotas:
            await self._context.quotas.prepare(self._store, group_id, user_id, size)

    def begin(self, sent: Send) -> "asyncio.Future[int] | None":
        """Begin what ``send`` does, if nothing has to be read for it before; otherwise return None.

        Raises StoreError if the store is closed; all else is the future's.
        """
        if self._context.quotas:
            return None
        return self._store.begin_joint(self._write, sent, len(sent.body))

    async def send(self, sent: Send) -> int:
        """Store a message and tell the others of it; return its number once it is durable.

        Raises NotMemberError, BadRequestError if the group has too many that destroy themselves, TooManyRequestsError,
        QuotaError or StoreError.
        """
        if self._context.quotas:
            await self._context.quotas.prepare(self._store, sent.group_id, sent.user_id, len(sent.body))
        return await self._store.write_joint(self._write, sent, len(sent.body))


class ReadUpTo(NamedTuple):
    """A member has read everything up to the number ``up_to``."""

    group_id: bytes
    user_id: bytes
    up_to: int


class JointRead:
    """Notes the receipts that wait at the same time, and starts their timers: a joint write."""

    def __init__(self, context: Context) -> None:
        """Start timers as of the clock of ``context``."""
        self._context = context

    def __call__(self, connection: sqlite3.Connection, receipts: Sequence[ReadUpTo]) -> list[bool | Exception]:
        """Note each receipt. Return whether some of it is left for another transaction, or a NotMemberError."""
        outcomes: list[bool | Exception] = []
        room = timers.STARTED_AT_ONCE
        now = self._context.now()
        acted_until = state.latest_acted_on(connection, self._context.clock.read())
        for each in receipts:
            is_left = room <= 0
            if not is_left:
                member = members.current(connection, each.group_id, each.user_id, self._context.clock)
                if member is None:
                    outcomes.append(NotMemberError())
                    continue
                started, is_left = timers.read(connection, member, each.up_to, now, room, acted_until=acted_until)
                room -= started
            outcomes.append(is_left)
        return outcomes


class Reading:
    """Notes what members have read."""

    def __init__(self, store: Database, context: Context) -> None:
        """Start timers by the clock of ``context``."""
        self._store = store
        self._context = context
        self._write = JointRead(context)

    async def read(self, receipt: ReadUpTo) -> None:
        """Note a receipt, once it is durable, as far as it counts. Raises NotMemberError or StoreError.

        Most say nothing that has to be noted. Very much takes several transactions, so that others get their turn.
        """
        counted = await self._store.read(_counted, self._context, receipt)
        is_left = True
        while counted and is_left:
            is_left = await self._store.write_joint(self._write, counted, NEEDS_THREAD)


def _counted(connection: sqlite3.Connection, context: Context, receipt: ReadUpTo) -> ReadUpTo | None:
    """Return a receipt as far as it counts; None if that changes nothing. Raises NotMemberError."""
    member = require_member(connection, context, receipt.group_id, receipt.user_id)
    if not timers.needs_confirmation(member, receipt.up_to):
        return None
    up_to = fetch_gaps.read(connection, member, context.clock.moment(), receipt.up_to)
    return receipt._replace(up_to=up_to) if timers.needs_confirmation(member, up_to) else None


class Fetching:
    """Fetches pages: from memory, or else from the store and the archive."""

    def __init__(
        self, groups: GroupCache, store: Database, archive: Archive, context: Context, *, next_confirms: bool
    ) -> None:
        """``groups``: what is remembered.

        ``next_confirms``: a page counts as fetched only once its reader's next fetch says so, not when it has arrived.
        """
        self._groups = groups
        self._store = store
        self._archive = archive
        self._context = context
        self._next_confirms = next_confirms
        self._in_doubt = asyncio.Semaphore(READ_IN_DOUBT)

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
        """Return up to ``limit`` messages with numbers greater than ``after``: see ``at_hand`` and ``read``."""
        asked = group_id, user_id, after, limit, written_in
        return self.at_hand(*asked, next_confirms=next_confirms) or await self.read(
            *asked, include_redacted=include_redacted, next_confirms=next_confirms
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

        ``include_redacted``: see ``store.messages.page``; what is remembered has nothing that is redacted for anybody.
        It is no transaction. Raises NotMemberError, StoreError or ArchiveError. Once a page with news has left,
        and has arrived if it counts on arrival, call ``confirm``; also if it never arrives. ``next_confirms``: the
        reader asks that the page counts only once its next fetch says so, as the operator may have set for all.
        """
        clock, write = self._context.clock, page_writer.message_writer(written_in)
        # Only a clock in doubt makes a page wait for a write before it leaves.
        async with self._in_doubt if clock.moment().in_doubt else contextlib.nullcontext():
            try:
                found = await both_tiers.page(
                    *(self._store, self._archive, group_id, user_id, after, limit, clock, write),
                    include_redacted=include_redacted,
                )
            except NoMembershipError:
                raise NotMemberError from None
            reader = self._groups.add_page(found, after, written_in)
            member, doubt, numbers = found.member, found.doubt, list[int]()
            if doubt.next is not None or member.missed_from:  # otherwise no page pays for it
                numbers = [each.sequence_num for each in found.messages]
                shown = {each.sequence_num for each in found.messages if not each.is_redacted}
                if gap := doubt.gap(numbers[-1] if numbers else 0, shown):
                    # Before the page leaves: the reader's next fetch goes on beyond the gap.
                    await self._store.write(fetch_gaps.note, member.member_id, gap)
        claimed = doubt.claimed(min(after, member.group.last_seq))
        up_to = max(claimed, doubt.fetched(after, found.fetched_up_to))
        resumed = doubt.resumed(member.missed_from, after, numbers)
        page = FetchedPage([each.piece for each in found.messages], reader, up_to, claimed, resumed)
        return self._counted(page, next_confirms=next_confirms)

    def at_hand(
        self,
        group_id: bytes,
        user_id: bytes,
        after: int,
        limit: int,
        written_in: Format,
        *,
        next_confirms: bool = False,
    ) -> FetchedPage | None:
        """Return what ``read`` would, if it is remembered. Raises StoreError."""
        known = self._groups.page(group_id, user_id, after, limit, written_in)
        return self._counted(known, next_confirms=next_confirms) if known else None

    def _counted(self, fetched: FetchedPage, *, next_confirms: bool) -> FetchedPage:
        if fetched.up_to == fetched.claimed:
            return fetched
        if not fetched.pieces:
            # What its reader may not see is not waited for, and nothing is lost with an empty page.
            return fetched._replace(claimed=fetched.up_to)
        return fetched._replace(up_to=fetched.claimed) if next_confirms or self._next_confirms else fetched

    async def confirm(self, fetched: FetchedPage, *, has_arrived: bool) -> None:
        """Note what the reader of a page has. Raises StoreError.

        ``has_arrived``: whether the page has arrived, if it counts on arrival. What the reader has said to have counts
        in any case.
        """
        reader = fetched.reader
        if fetched.resumed and has_arrived:
            await self._store.write(fetch_gaps.resume, reader.member_id, fetched.resumed)
        up_to = fetched.up_to if has_arrived else fetched.claimed
        if up_to > reader.watermark:
            await self._store.write_joint(members.confirm_fetched, (reader.member_id, up_to))
            reader.watermark = max(reader.watermark, up_to)
