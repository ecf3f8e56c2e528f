"""Groups that are remembered: their marks, the members who asked lately, and pages as they were written.

What a member may see is decided at each request, by ``retention/visibility.py`` and the time: only what was read from
the store is remembered. A group is forgotten as a whole when it is touched. Sends touch nothing: they are news, and the
messages are added here before their senders are answered.

The writer has its own cache of members (``Recipients``): who may send to a group, and who is notified. It is asked only
under the write lock, inside the transaction, so nothing else changes meanwhile. What was touched before the transaction
began is forgotten first. So a transaction asks before it touches anything itself.
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
"""What is remembered of groups takes at most 64 MiB. The group that was used longest ago is forgotten first."""

GROUP_BYTES = 1024
"""A group counts as 1 KiB besides its messages, and each of its members as 0.25 KiB."""

MEMBER_BYTES = 256

JOINED, JOINED_BYTES, JOINED_PAGES = 16, 256 * 1024, 4
"""A page of at least 16 messages and at most 256 KiB is remembered as a whole, too: the last 4 of a group."""

RANGES = 4
"""At most 4 ranges of a group are remembered: readers catch up at different places.

The one that was used longest ago goes first.
"""


@dataclass
class CachedMember:
    """A member who has asked."""

    member_id: int
    watermark: int
    """Never higher than the stored one."""

    @classmethod
    def of(cls, member: Membership) -> Self:
        """Return the reader that a member is."""
        return cls(member.member_id, member.watermark)


_PageKey = tuple[Format, int, int, int]
"""A page that was cut out of a cached range: its first and last number, and how many messages it has.

These tell all of it, since messages neither change nor come back: what is hidden later is missing from the count.
"""


@dataclass
class _CachedGroup:
    """A group. ``group`` is as it was read, but for the counter, which is ``last_seq``."""

    group: GroupRow
    last_seq: int
    readers: dict[bytes, CachedMember] = field(default_factory=dict)
    ranges: list[tuple[Format, CachedRange]] = field(default_factory=list)
    joined: dict[_PageKey, bytes] = field(default_factory=dict)
    size: int = GROUP_BYTES

    def used(self, written_in: Format, cached: CachedRange) -> None:
        """Keep a range for longer than those that are not used."""
        if self.ranges[-1][1] is not cached:
            self.ranges.remove((written_in, cached))
            self.ranges.append((written_in, cached))

    def measure(self) -> int:
        """Return how many bytes it takes now."""
        pages = sum(cached.size for _, cached in self.ranges) + sum(map(len, self.joined.values()))
        return GROUP_BYTES + MEMBER_BYTES * len(self.readers) + pages


class FetchedPage(NamedTuple):
    """A page for a reader: its messages as they are written, and the watermark of the reader once it has arrived."""

    pieces: list[bytes]
    reader: CachedMember
    up_to: int
    claimed: int
    """The reader has everything up to this number, whether or not the page arrives: it said so with the request."""
    resumed: GapUpdate | None = None
    """What becomes of what the reader had missed; None: nothing."""

    @property
    def is_news(self) -> bool:
        """Whether anything has to be noted of the reader: the watermark rises by it, or less is missed."""
        return self.up_to > self.reader.watermark or self.resumed is not None

    @property
    def counts_on_arrival(self) -> bool:
        """Whether anything of that depends on whether the page arrives."""
        return self.up_to > max(self.claimed, self.reader.watermark) or self.resumed is not None


class GroupCache:
    """The groups that were read lately. Only for the event loop's thread."""

    def __init__(self, freshness: Freshness, former_policies: FormerPolicies) -> None:
        """Begin with none. ``freshness`` tells which of them were touched."""
        self._freshness = freshness
        self._former_policies = former_policies
        self._by_id: OrderedDict[bytes, _CachedGroup] = OrderedDict()
        self._ids: dict[int, bytes] = {}
        self._bytes = 0
        freshness.on_invalidation(self._invalidate)

    def page(self, group_id: bytes, user_id: bytes, after: int, limit: int, written_in: Format) -> FetchedPage | None:
        """Return what ``messages.read_page`` would; None if the store must be asked. Raises StoreError.

        What only a clock in doubt hides is known to the store alone: it decides how far a watermark may rise then.
        """
        moment = self._freshness.look()
        found = self._find(group_id, user_id, after, limit, written_in, moment.now)
        return None if found and found.is_news and moment.in_doubt else found

    def _find(
        self, group_id: bytes, user_id: bytes, after: int, limit: int, written_in: Format, now: int
    ) -> FetchedPage | None:
        known = self._by_id.get(group_id)
        reader = known.readers.get(user_id) if known else None
        if known is None or reader is None:
            return None
        self._by_id.move_to_end(group_id)
        confirmed = min(after, known.last_seq)
        if confirmed == known.last_seq:
            return FetchedPage([], reader, confirmed, confirmed)
        sight = visibility.of_known_group(known.group, now, self._former_policies)
        for each, cached in tuple(known.ranges):
            if each is written_in and cached.covers(confirmed):
                before = cached.size
                begin = cached.first_after(confirmed, sight)
                if cached.size != before:  # something was written, or hidden
                    self._grow(known, cached.size - before)
                if begin is None:  # it would stand in the way of what is read now
                    known.ranges.remove((each, cached))
                    self._measure(known)
                    continue
                end = min(begin + limit, len(cached.numbers))
                if end - begin == limit or cached.end == known.last_seq:
                    known.used(written_in, cached)
                    up_to = cached.numbers[end - 1] if end > begin else confirmed
                    pieces = self._cut(known, written_in, cached, begin, end)
                    return FetchedPage(pieces, reader, up_to, confirmed)
        return None

    def _cut(self, known: _CachedGroup, written_in: Format, cached: CachedRange, begin: int, end: int) -> list[bytes]:
        """Return a page of a range. One of many small messages is joined, for the next readers."""
        if end - begin < JOINED:
            return cached.pieces[begin:end]
        cut = written_in, cached.numbers[begin], cached.numbers[end - 1], end - begin
        if cut not in known.joined:
            pieces = cached.pieces[begin:end]
            if sum(map(len, pieces)) > JOINED_BYTES:
                return pieces
            former = known.joined.pop(next(iter(known.joined))) if len(known.joined) == JOINED_PAGES else b""
            known.joined[cut] = text = page_writer.join_messages(written_in, pieces)
            self._grow(known, len(text) - len(former))
        return [known.joined[cut]]

    def remember(self, page: MessagePage, after: int, written_in: Format) -> CachedMember:
        """Return the reader of a page that was read after the number ``after``, and remember both.

        Nothing is remembered that may have changed since it was read.
        """
        member, group = page.member, page.member.group
        reader = CachedMember.of(member)
        if self._freshness.since(page.touch).covers_group(group.group_key):
            return reader
        known = self._by_id.get(group.group_id)
        if known and max(group.last_seq, page.fetched_up_to) > known.last_seq:
            # A send is committed, and its news is on its way. This page's reader has seen it; no reader may miss it.
            self._forget(group.group_key)
            known = None
        if known is None:
            # Sends touch nothing, and those were not added that came since the page was read.
            if self._freshness.last_seq(group.group_key) != group.last_seq:
                return reader
            known = self._by_id[group.group_id] = _CachedGroup(group, group.last_seq)
            self._ids[group.group_key] = group.group_id
            self._bytes += known.size
        # Only the store knows what of a gap may still be seen, and a membership that is joining may end by itself.
        if not member.missed_from and not member.joining:
            reader = known.readers.setdefault(member.user_id, reader)
        # Which commits a policy keeps, changes with each fetch: such a group's pages are read each time.
        if page.end is not None and not page.sight.policy.keeps_commits:
            begin, hidden_before, policy = min(after, group.last_seq), page.sight.hidden_before, page.sight.policy
            cached = CachedRange(begin, page.end, hidden_before, policy, page_writer.message_writer(written_in))
            _add(known, cached, page.messages, written_in)
        self._measure(known)
        return reader

    def hear(self, news: Iterable[News]) -> None:
        """Add the messages that were stored, before their senders are answered."""
        self._freshness.expire()
        for each in news:
            if isinstance(each, MessageStored) and (group_id := self._ids.get(each.group_key)):
                known = self._by_id[group_id]
                if each.sequence_num > known.last_seq + 1:
                    self._forget(each.group_key)
                elif each.sequence_num == known.last_seq + 1:
                    self._grow(known, _append(known, each))

    def _measure(self, known: _CachedGroup) -> None:
        self._grow(known, known.measure() - known.size)

    def _grow(self, known: _CachedGroup, added: int) -> None:
        known.size += added
        self._bytes += added
        while self._bytes > MAX_BYTES and len(self._by_id) > 1:
            self._forget(next(iter(self._by_id.values())).group.group_key)

    def _invalidate(self, touched: Invalidated) -> None:
        for group_key in list(self._ids) if touched.everything else touched.groups:
            self._forget(group_key)

    def _forget(self, group_key: int) -> None:
        group_id = self._ids.pop(group_key, None)
        if group_id:
            self._bytes -= self._by_id.pop(group_id).size


def _append(known: _CachedGroup, stored: MessageStored) -> int:
    """Add a new message to the ranges that reach up to it. Return by how many bytes the group has grown."""
    known.last_seq = stored.sequence_num
    if stored.is_timed:
        return 0  # what one reader sees of it, others may not: no range has it, nor what follows
    return sum(cached.send(stored) for _, cached in known.ranges if cached.end == stored.sequence_num - 1)


def _add(known: _CachedGroup, read: CachedRange, messages: list[EncodedMessage], written_in: Format) -> None:
    """Add what was read after ``read.base``, up to ``read.end``: to a range that it continues, or as one of its own."""
    if read.base >= read.end:
        return
    ranges = [cached for each, cached in known.ranges if each is written_in]
    for cached in ranges:  # first: readers go forward
        if cached.base <= read.base <= cached.end:
            if read.end > cached.end:
                cached.extend(
                    [each for each in messages if each.sequence_num > cached.end], read.end, read.hidden_before
                )
                _absorb_reached(known, written_in, cached)
            return
    for cached in ranges:
        if read.base < cached.base <= read.end:
            cached.prepend(
                [each for each in messages if each.sequence_num <= cached.base], read.base, read.hidden_before
            )
            return
    read.extend(messages, read.end, read.hidden_before)
    known.ranges.append((written_in, read))
    del known.ranges[:-RANGES]


def _absorb_reached(known: _CachedGroup, written_in: Format, grown: CachedRange) -> None:
    """Make the ranges that ``grown`` has reached part of it."""
    for each, cached in tuple(known.ranges):
        if cached is not grown and each is written_in and grown.base <= cached.base <= grown.end:
            known.ranges.remove((each, cached))
            if cached.end > grown.end:
                grown.absorb(cached)


MAX_MEMBERS = 200_000
"""At most 200,000 members of groups are remembered, which takes about 30 MB; of larger groups those of one."""


@dataclass(frozen=True)
class RecipientSet:
    """A group's key and the ids of its members.

    ``joining``: those of whom the store has to be asked whether they are members still. Their joins were not completed
    when this was read.
    """

    group_key: int
    members: frozenset[bytes]
    joining: frozenset[bytes]


class Recipients:
    """The members of groups that were sent to lately, by the ids of the groups."""

    def __init__(self) -> None:
        """Begin with none."""
        self._touch = -1
        self._by_id: OrderedDict[bytes, RecipientSet] = OrderedDict()
        self._ids: dict[int, bytes] = {}
        self._count = 0

    def catch_up(self, connection: sqlite3.Connection) -> None:
        """Forget what was touched before this transaction. Call it first."""
        touched = invalidation.after(connection, self._touch) if self._touch >= 0 else None
        if self._touch < 0:
            self._touch = invalidation.last_invalidation(connection)
        if touched is None:
            return
        self._touch = touched.touch
        for group_key in list(self._ids) if touched.everything else touched.groups:
            self._forget(group_key)

    def find(self, connection: sqlite3.Connection, group_id: bytes) -> RecipientSet | None:
        """Return who is in a group; None if there is no such group.

        Raises NotCachedError if that has to be read on the event loop: a group may have very many members.
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
        everyone, joining = members_of(connection, row[0]), members.joining(connection, row[0])
        found = RecipientSet(row[0], frozenset(everyone), frozenset(joining))
        self._by_id[group_id], self._ids[found.group_key] = found, group_id
        self._count += len(found.members)
        while self._count > MAX_MEMBERS and len(self._by_id) > 1:
            self._forget(next(iter(self._by_id.values())).group_key)
        return found

    def _forget(self, group_key: int) -> None:
        group_id = self._ids.pop(group_key, None)
        if group_id:
            self._count -= len(self._by_id.pop(group_id).members)
