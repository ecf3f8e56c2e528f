"""Fetch gaps: messages that a page omits because the clock is in doubt, and that must not count as fetched.

A page with a gap has numbers beyond the omitted ones, from which the reader's next fetch continues. So the gap is
recorded before the page is sent. Until the reader fetches the omitted messages, or they are erased, the watermark does
not rise beyond the gap, and no read receipt covers it: that would start timers of messages that the reader never got.
"""

import sqlite3
from collections.abc import Collection, Sequence
from typing import NamedTuple

from conclave.clock import Moment
from conclave.retention import stretches, visibility
from conclave.retention.visibility import ReaderMessages, Visibility
from conclave.store.resources.members import Membership


class Gap(NamedTuple):
    """The range of numbers that a member has missed, both inclusive."""

    first: int
    last: int


class GapUpdate(NamedTuple):
    """The change of a gap by a page with missed messages.

    ``former``: the gap's previous first number. ``first``: its first number once the page is delivered; 0: the gap is
    closed.
    """

    former: int
    first: int


class Omissions(NamedTuple):
    """Messages that a page omits, or that earlier pages omitted.

    ``first``: the first number above the reader's watermark that is hidden only because the clock is in doubt, or None.
    ``next``: the first such number above the last one that the reader claims to have. ``missed``: the recorded gap, if
    any of its messages can still be fetched.
    """

    first: int | None = None
    next: int | None = None
    missed: Gap | None = None

    def with_first(self, number: int) -> "Omissions":
        """Return a copy with another number that is hidden only because the clock is in doubt."""
        return self.joined(Omissions(number, number, self.missed))

    def joined(self, other: "Omissions") -> "Omissions":
        """Return the omissions of a page composed of two parts: one with these, and one with ``other``."""
        return Omissions(_least(self.first, other.first), _least(self.next, other.next), self.missed or other.missed)

    def claimed(self, up_to: int) -> int:
        """Return the highest number that a reader's claim of ``up_to`` confirms."""
        return min(self.fetched(0, up_to), self.missed.first - 1) if self.missed else self.fetched(0, up_to)

    def fetched(self, after: int, up_to: int) -> int:
        """Return the highest number that counts as fetched, for a page after ``after``, up to ``up_to``."""
        if self.missed and after >= self.missed.first:
            up_to = min(up_to, self.missed.first - 1)
        return up_to if self.first is None else min(up_to, self.first - 1)

    def gap(self, last: int, page_numbers: Collection[int]) -> Gap | None:
        """Return the gap that a page that ends with the number ``last`` leaves, or None.

        ``page_numbers``: the numbers of the page, without redacted ones.
        """
        if self.next is None or last < self.next:
            return None
        while last in page_numbers:
            last -= 1
        return Gap(self.next, last)

    def resumed(self, former: int, after: int, numbers: Sequence[int]) -> GapUpdate | None:
        """Return the change of the gap by a page with ``numbers``, read after ``after``; None if it is unchanged.

        ``former``: the first number of the recorded gap; 0: there is none.
        """
        if not former or self.first is not None:
            return None
        if self.missed is None:
            return GapUpdate(former, 0)
        first = self.missed.first
        if after >= first or not numbers or numbers[-1] < first:
            return None
        return GapUpdate(former, numbers[-1] + 1 if numbers[-1] < self.missed.last else 0)


NO_OMISSIONS = Omissions()


def find_omissions(
    connection: sqlite3.Connection,
    member: Membership,
    view: Visibility,
    moment: Moment,
    reader_messages: ReaderMessages | None,
    claimed: int,
) -> Omissions:
    """Return the omissions of a page that is read at ``moment``. ``claimed``: the last number the reader claims."""
    # An earlier page to another device may have raised the watermark since: its messages are not missed.
    gap = Gap(max(member.missed_from, member.watermark + 1), member.missed_to) if member.missed_from else None
    if gap and gap.first > gap.last:
        gap = None
    if not moment.in_doubt:
        return NO_OMISSIONS if gap is None or not _shows_any(connection, member, view, gap) else Omissions(missed=gap)

    def first_in_doubt(after: int) -> int | None:
        return visibility.first_in_doubt(connection, member.group, view, after, moment.earliest, reader_messages)

    first = first_in_doubt(member.watermark)
    return Omissions(first, first_in_doubt(claimed) if first is not None and claimed >= first else first, gap)


def confirmed_read(connection: sqlite3.Connection, member: Membership, moment: Moment, up_to: int) -> int:
    """Return the highest number that a read receipt for ``up_to``, received at ``moment``, confirms."""
    if not (moment.in_doubt or member.missed_from):
        return up_to
    view = visibility.of_group(connection, member.group, moment.now)
    reader_messages = visibility.of_reader(member.member_id, member.joined_after, include_redacted=False)
    return find_omissions(connection, member, view, moment, reader_messages, member.watermark).claimed(up_to)


def _shows_any(connection: sqlite3.Connection, member: Membership, view: Visibility, gap: Gap) -> bool:
    """Return whether any message of a gap is visible."""
    group, before = member.group, gap.first - 1
    archived = stretches.stretch(connection, group, before, view)
    if archived and any(part.first_seq <= gap.last for part in archived.parts):
        return True
    return visibility.shows_any(connection, group, view, max(before, group.archived_seq), gap.last)


def note_gap(connection: sqlite3.Connection, member_id: int, gap: Gap) -> None:
    """Record a gap, or extend the recorded one."""
    connection.execute(
        "UPDATE members SET missed_from = iif(missed_from = 0, ?1, min(missed_from, ?1)),"
        " missed_to = max(missed_to, ?2) WHERE member_id = ?3 AND watermark < ?1",
        (*gap, member_id),
    )


def update_gap(connection: sqlite3.Connection, member_id: int, gap_update: GapUpdate) -> None:
    """Shrink or close a recorded gap. Does nothing if the gap was extended in between."""
    connection.execute(
        "UPDATE members SET missed_from = ?2, missed_to = iif(?2 = 0, 0, missed_to)"
        " WHERE member_id = ?3 AND missed_from = ?1",
        (*gap_update, member_id),
    )


def _least(one: int | None, other: int | None) -> int | None:
    return min((number for number in (one, other) if number is not None), default=None)
