"""Caches groups: their marks, members who fetched recently, and encoded pages.

Visibility is decided at each request by ``retention/visibility.py``: only values read from the store are cached. An
invalidation drops a whole group. Sends are no invalidations: their messages are added here before their senders are
answered.
"""

import sqlite3
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from conclave.cache.freshness import Freshness
from conclave.cache.ranges import CachedRange
from conclave.events import MessageStored, News
from conclave.retention import visibility
from conclave.retention.policy import FormerPolicies
from conclave.store import invalidation
from conclave.store.engine.connection import of_store
from conclave.store.engine.group_commit import NotCachedError
from conclave.store.engine.news import members_of
from conclave.store.invalidation import Invalidated
from conclave.store.resources import members
from conclave.store.resources.fetch_gaps import GapUpdate
from conclave.store.resources.groups import GroupRow
from conclave.store.resources.members import Membership
from conclave.store.resources.messages import EncodedMessage, MessagePage
from conclave.wire import page_writer
from conclave.wire.formats import Format

MAX_BYTES = 64 * 1024 * 1024
"""The memory of cached groups. The least recently used group is dropped first."""

GROUP_BYTES = 1024
"""The size of a group without its messages and members, approximately."""

MEMBER_BYTES = 256

MIN_JOINED, MAX_JOINED_BYTES, MAX_JOINED_PAGES = 16, 256 * 1024, 4
"""Pages of at least 16 messages and at most 256 KiB are also cached as a whole, the last 4 of a group."""

MAX_RANGES = 4
"""The most cached ranges of a group, since readers catch up at different numbers.

The least recently used is dropped first.
"""


@dataclass
class CachedMember:
    """A member who has fetched."""

    member_id: int
    watermark: int
    """Never higher than the stored one."""

    @classmethod
    def of(cls, member: Membership) -> Self:
        """Return the entry of a member."""
        return cls(member.member_id, member.watermark)


_PageKey = tuple[Format, int, int, int]
"""A page of a cached range: its format, first and last number, and number of messages.

They identify it, since messages do not change: hidden ones reduce the number.
"""


@dataclass
class _CachedGroup:
    """A cached group. ``group``: as it was read, except the counter, which is ``last_seq``."""

    group: GroupRow
    last_seq: int
    readers: dict[bytes, CachedMember] = field(default_factory=dict)
    ranges: list[tuple[Format, CachedRange]] = field(default_factory=list)
    joined_pages: dict[_PageKey, bytes] = field(default_factory=dict)
    size: int = GROUP_BYTES

    def mark_used(self, written_in: Format, cached_range: CachedRange) -> None:
        """Mark a range as most recently used."""
        if self.ranges[-1][1] is not cached_range:
            self.ranges.remove((written_in, cached_range))
            self.ranges.append((written_in, cached_range))

    def measure(self) -> int:
        """Return its current size in bytes."""
        pages = sum(cached_range.size for _, cached_range in self.ranges) + sum(map(len, self.joined_pages.values()))
        return GROUP_BYTES + MEMBER_BYTES * len(self.readers) + pages


class FetchedPage(NamedTuple):
    """A page for a reader: its encoded messages, and the reader's watermark after its arrival."""

    pieces: list[bytes]
    reader: CachedMember
    up_to: int
    claimed: int
    """According to the request's ``after``, the reader has fetched everything up to this number."""
    resumed: GapUpdate | None = None
    """The change of the reader's fetch gap; None: no change."""

    @property
    def needs_confirmation(self) -> bool:
        """Whether the store has to be updated: the watermark rises, or the fetch gap shrinks."""
        return self.up_to > self.reader.watermark or self.resumed is not None

    @property
    def counts_on_arrival(self) -> bool:
        """Whether this update depends on the page's arrival."""
        return self.up_to > max(self.claimed, self.reader.watermark) or self.resumed is not None


class GroupCache:
    """A cache of groups. Only for the event loop's thread."""

    def __init__(self, freshness: Freshness, former_policies: FormerPolicies) -> None:
        """``freshness``: reports invalid groups."""
        self._freshness = freshness
        self._former_policies = former_policies
        self._by_id: OrderedDict[bytes, _CachedGroup] = OrderedDict()
        self._ids: dict[int, bytes] = {}
        self._bytes = 0
        freshness.on_invalidation(self._invalidate)

    def page(self, group_id: bytes, user_id: bytes, after: int, limit: int, written_in: Format) -> FetchedPage | None:
        """Return the page that ``messages.read_page`` would; None if the store must be read. Raises StoreError.

        While the clock is in doubt, only the store decides how far a watermark may rise.
        """
        moment = self._freshness.refresh()
        found = self._find(group_id, user_id, after, limit, written_in, moment.now)
        return None if found and found.needs_confirmation and moment.in_doubt else found

    def _find(
        self, group_id: bytes, user_id: bytes, after: int, limit: int, written_in: Format, now: int
    ) -> FetchedPage | None:
        entry = self._by_id.get(group_id)
        reader = entry.readers.get(user_id) if entry else None
        if entry is None or reader is None:
            return None
        self._by_id.move_to_end(group_id)
        confirmed_up_to = min(after, entry.last_seq)
        if confirmed_up_to == entry.last_seq:
            return FetchedPage([], reader, confirmed_up_to, confirmed_up_to)
        view = visibility.of_cached_group(entry.group, now, self._former_policies)
        for each, cached_range in tuple(entry.ranges):
            if each is written_in and cached_range.covers(confirmed_up_to):
                before = cached_range.size
                begin = cached_range.first_after(confirmed_up_to, view)
                if cached_range.size != before:  # messages were written or hidden
                    self._grow(entry, cached_range.size - before)
                if begin is None:  # drop it: it would conflict with the next read
                    entry.ranges.remove((each, cached_range))
                    self._measure(entry)
                    continue
                end = min(begin + limit, len(cached_range.numbers))
                if end - begin == limit or cached_range.end == entry.last_seq:
                    entry.mark_used(written_in, cached_range)
                    up_to = cached_range.numbers[end - 1] if end > begin else confirmed_up_to
                    pieces = self._page(entry, written_in, cached_range, begin, end)
                    return FetchedPage(pieces, reader, up_to, confirmed_up_to)
        return None

    def _page(
        self, entry: _CachedGroup, written_in: Format, cached_range: CachedRange, begin: int, end: int
    ) -> list[bytes]:
        """Return a page of a range. Pages of many small messages are joined and cached."""
        if end - begin < MIN_JOINED:
            return cached_range.pieces[begin:end]
        key = written_in, cached_range.numbers[begin], cached_range.numbers[end - 1], end - begin
        if key not in entry.joined_pages:
            pieces = cached_range.pieces[begin:end]
            if sum(map(len, pieces)) > MAX_JOINED_BYTES:
                return pieces
            oldest_page = (
                entry.joined_pages.pop(next(iter(entry.joined_pages)))
                if len(entry.joined_pages) == MAX_JOINED_PAGES
                else b""
            )
            entry.joined_pages[key] = text = page_writer.join_messages(written_in, pieces)
            self._grow(entry, len(text) - len(oldest_page))
        return [entry.joined_pages[key]]

    def add_page(self, page: MessagePage, after: int, written_in: Format) -> CachedMember:
        """Cache a page that was read after the number ``after``, and return its reader.

        A page that may have changed since it was read is not cached.
        """
        member, group = page.member, page.member.group
        reader = CachedMember.of(member)
        if self._freshness.since(page.touch).covers_group(group.group_key):
            return reader
        entry = self._by_id.get(group.group_id)
        if entry and max(group.last_seq, page.fetched_up_to) > entry.last_seq:
            # A send is committed, but not published yet. This page has the message, so no other reader may miss it.
            self._drop(group.group_key)
            entry = None
        if entry is None:
            # Sends are no invalidations, and those since the read were not added.
            if self._freshness.last_seq(group.group_key) != group.last_seq:
                return reader
            entry = self._by_id[group.group_id] = _CachedGroup(group, group.last_seq)
            self._ids[group.group_key] = group.group_id
            self._bytes += entry.size
        # Fetch gaps need the store, and a joining membership may end by itself.
        if not member.missed_from and not member.joining:
            reader = entry.readers.setdefault(member.user_id, reader)
        # If the policy keeps commits, which ones changes with each fetch: such pages are not cached.
        if page.end is not None and not page.visibility.policy.keeps_commits:
            begin, view = min(after, group.last_seq), page.visibility
            write = page_writer.message_writer(written_in)
            cached_range = CachedRange(begin, page.end, view.hidden_before, view.policy, write)
            _add(entry, cached_range, page.messages, written_in)
        self._measure(entry)
        return reader

    def add_news(self, news: Iterable[News]) -> None:
        """Add stored messages, before their senders are answered."""
        self._freshness.expire()
        for each in news:
            if isinstance(each, MessageStored) and (group_id := self._ids.get(each.group_key)):
                entry = self._by_id[group_id]
                if each.sequence_num > entry.last_seq + 1:
                    self._drop(each.group_key)
                elif each.sequence_num == entry.last_seq + 1:
                    self._grow(entry, _append(entry, each))

    def _measure(self, entry: _CachedGroup) -> None:
        self._grow(entry, entry.measure() - entry.size)

    def _grow(self, entry: _CachedGroup, growth: int) -> None:
        entry.size += growth
        self._bytes += growth
        while self._bytes > MAX_BYTES and len(self._by_id) > 1:
            self._drop(next(iter(self._by_id.values())).group.group_key)

    def _invalidate(self, changes: Invalidated) -> None:
        for group_key in list(self._ids) if changes.everything else changes.groups:
            self._drop(group_key)

    def _drop(self, group_key: int) -> None:
        group_id = self._ids.pop(group_key, None)
        if group_id:
            self._bytes -= self._by_id.pop(group_id).size


def _append(entry: _CachedGroup, message: MessageStored) -> int:
    """Add a new message to the ranges that end before it. Return the growth in bytes."""
    entry.last_seq = message.sequence_num
    if message.is_timed:
        return 0  # readers see it differently, so ranges end before it
    return sum(
        cached_range.send(message) for _, cached_range in entry.ranges if cached_range.end == message.sequence_num - 1
    )


def _add(entry: _CachedGroup, new_range: CachedRange, messages: list[EncodedMessage], written_in: Format) -> None:
    """Merge a range that was read into one that it continues, or add it as a new one."""
    if new_range.base >= new_range.end:
        return
    ranges = [cached_range for each, cached_range in entry.ranges if each is written_in]
    for cached_range in ranges:  # first: readers go forward
        if cached_range.base <= new_range.base <= cached_range.end:
            if new_range.end > cached_range.end:
                cached_range.extend(
                    [each for each in messages if each.sequence_num > cached_range.end],
                    new_range.end,
                    new_range.hidden_before,
                )
                _absorb_reached(entry, written_in, cached_range)
            return
    for cached_range in ranges:
        if new_range.base < cached_range.base <= new_range.end:
            cached_range.prepend(
                [each for each in messages if each.sequence_num <= cached_range.base],
                new_range.base,
                new_range.hidden_before,
            )
            return
    new_range.extend(messages, new_range.end, new_range.hidden_before)
    entry.ranges.append((written_in, new_range))
    del entry.ranges[:-MAX_RANGES]


def _absorb_reached(entry: _CachedGroup, written_in: Format, target: CachedRange) -> None:
    """Merge ranges that ``target`` has reached into it."""
    for each, cached_range in tuple(entry.ranges):
        if cached_range is not target and each is written_in and target.base <= cached_range.base <= target.end:
            entry.ranges.remove((each, cached_range))
            if cached_range.end > target.end:
                target.absorb(cached_range)


MAX_MEMBERS = 200_000
"""The most cached members, in about 30 MB. A single larger group is cached too."""


@dataclass(frozen=True)
class RecipientSet:
    """A group's key and the ids of its members.

    ``joining``: members whose joins were incomplete when this was read. The store knows whether they still are members.
    """

    group_key: int
    members: frozenset[bytes]
    joining: frozenset[bytes]


class Recipients:
    """A cache of the members of groups, by group id, for the writer: who may send, and who is notified.

    It is used only under the write lock. ``catch_up`` applies invalidations at the start of each transaction, before
    the transaction itself invalidates anything.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._touch = -1
        self._by_id: OrderedDict[bytes, RecipientSet] = OrderedDict()
        self._ids: dict[int, bytes] = {}
        self._count = 0

    def catch_up(self, connection: sqlite3.Connection) -> None:
        """Apply the invalidations from before this transaction. Call it first."""
        changes = invalidation.after(connection, self._touch) if self._touch >= 0 else None
        if self._touch < 0:
            self._touch = invalidation.last_invalidation(connection)
        if changes is None:
            return
        self._touch = changes.touch
        for group_key in list(self._ids) if changes.everything else changes.groups:
            self._drop(group_key)

    def find(self, connection: sqlite3.Connection, group_id: bytes) -> RecipientSet | None:
        """Return the members of a group; None if it does not exist.

        Raises NotCachedError on the event loop if they have to be read, since a group may have many members.
        """
        found = self._by_id.get(group_id)
        if found:
            self._by_id.move_to_end(group_id)
            return found
        if of_store(connection).is_on_event_loop:
            raise NotCachedError
        row = connection.execute("SELECT group_key FROM groups WHERE group_id = ?", (group_id,)).fetchone()
        if row is None:
            return None
        member_ids, joining_ids = members_of(connection, row[0]), members.joining(connection, row[0])
        found = RecipientSet(row[0], frozenset(member_ids), frozenset(joining_ids))
        self._by_id[group_id], self._ids[found.group_key] = found, group_id
        self._count += len(found.members)
        while self._count > MAX_MEMBERS and len(self._by_id) > 1:
            self._drop(next(iter(self._by_id.values())).group_key)
        return found

    def _drop(self, group_key: int) -> None:
        group_id = self._ids.pop(group_key, None)
        if group_id:
            self._count -= len(self._by_id.pop(group_id).members)
