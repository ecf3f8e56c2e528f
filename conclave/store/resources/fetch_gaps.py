"""What a page may not count for: messages that it leaves out because of a clock that is in doubt, now or formerly.

Such a page tells its reader of numbers beyond them, and the reader's next fetch goes on from there, for good. That must
not count as if the reader had what was left out. So it is noted, before the page leaves, which numbers these are: until
the reader fetches from before them, or they are gone, no watermark rises beyond them, and no read receipt counts for
them: it would start timers of messages that its reader never had.
"""

import sqlite3
from collections.abc import Collection, Sequence
from typing import NamedTuple

from conclave.clock import Moment
from conclave.retention import stretches, visibility
from conclave.retention.visibility import ReaderMessages, Visibility
from conclave.store.resources.members import Membership


class Gap(NamedTuple):
    """Numbers that a member has missed, both inclusive."""

    first: int
    last: int


class GapUpdate(NamedTuple):
    """A page has what its reader had missed, or a part of it.

    ``former``: the first number that was missed before. ``first``: what is missed once the reader has the page; 0:
    nothing more.
    """

    former: int
    first: int


class Omissions(NamedTuple):
    """What a page leaves out, or left out formerly.

    ``first``: the first number above the reader's watermark that only a clock in doubt hides; None for none. ``next``:
    the first of those that the reader does not claim to have. ``missed``: what the reader has missed before and may
    still get.
    """

    first: int | None = None
    next: int | None = None
    missed: Gap | None = None

    def with_first(self, number: int) -> "Omissions":
        """Return the same with one more number that only a clock in doubt hides."""
        return self.joined(Omissions(number, number, self.missed))

    def joined(self, other: "Omissions") -> "Omissions":
        """Return what stands against a page of which one part was read as of this, and another as of ``other``."""
        return Omissions(_least(self.first, other.first), _least(self.next, other.next), self.missed or other.missed)

    def claimed(self, up_to: int) -> int:
        """Return for how much it counts that the reader says to have everything up to a number."""
        return min(self.fetched(0, up_to), self.missed.first - 1) if self.missed else self.fetched(0, up_to)

    def fetched(self, after: int, up_to: int) -> int:
        """Return for how much it counts that the reader has a page after one number, up to another."""
        if self.missed and after >= self.missed.first:
            up_to = min(up_to, self.missed.first - 1)
        return up_to if self.first is None else min(up_to, self.first - 1)

    def gap(self, last: int, shown: Collection[int]) -> Gap | None:
        """Return what a page leaves out although its reader goes on beyond its ``last`` number; None for nothing.

        ``shown``: the numbers of the page, without those of which the reader sees only that they are there.
        """
        if self.next is None or last < self.next:
            return None
        while last in shown:
            last -= 1
        return Gap(self.next, last)

    def resumed(self, former: int, after: int, numbers: Sequence[int]) -> GapUpdate | None:
        """Return what is missed once the reader has a page of ``numbers``, read after a number; None: no less.

        ``former``: what is noted as the first number that the reader has missed; 0: nothing.
        """
        if not former or self.first is not None:
            return None
        if self.missed is None:
            return GapUpdate(former, 0)
        first = self.missed.first
        if after >= first or not numbers or numbers[-1] < first:
            return None
        return GapUpdate(former, numbers[-1] + 1 if numbers[-1] < self.missed.last else 0)


NONE = Omissions()


def look(
    connection: sqlite3.Connection,
    member: Membership,
    view: Visibility,
    moment: Moment,
    timed: ReaderMessages | None,
    claimed: int,
) -> Omissions:
    """Return what stands against counting a page that is read at a moment. ``claimed``: the reader's own word."""
    # A page that had left before, to another device, may be noted late: what was on it is not missed.
    missed = Gap(max(member.missed_from, member.watermark + 1), member.missed_to) if member.missed_from else None
    if missed and missed.first > missed.last:
        missed = None
    if not moment.in_doubt:
        return NONE if missed is None or not _shows_any(connection, member, view, missed) else Omissions(missed=missed)

    def first(after: int) -> int | None:
        return visibility.first_in_doubt(connection, member.group, view, after, moment.earliest, timed)

    above = first(member.watermark)
    return Omissions(above, first(claimed) if above is not None and claimed >= above else above, missed)


def read(connection: sqlite3.Connection, member: Membership, moment: Moment, up_to: int) -> int:
    """Return for how much it counts that a member says, at a moment, to have read everything up to a number."""
    if not (moment.in_doubt or member.missed_from):
        return up_to
    view = visibility.of_group(connection, member.group, moment.now)
    timed = visibility.of_reader(member.member_id, member.joined_after, include_redacted=False)
    return look(connection, member, view, moment, timed, member.watermark).claimed(up_to)


def _shows_any(connection: sqlite3.Connection, member: Membership, view: Visibility, gap: Gap) -> bool:
    """Tell whether anything of what a member missed may be seen."""
    group, before = member.group, gap.first - 1
    archived = stretches.stretch(connection, group, before, view)
    if archived and any(part.first_seq <= gap.last for part in archived.parts):
        return True
    return visibility.shows_any(connection, group, view, max(before, group.archived_seq), gap.last)


def note(connection: sqlite3.Connection, member_id: int, gap: Gap) -> None:
    """Note what a member is about to miss."""
    connection.execute(
        "UPDATE members SET missed_from = iif(missed_from = 0, ?1, min(missed_from, ?1)),"
        " missed_to = max(missed_to, ?2) WHERE member_id = ?3 AND watermark < ?1",
        (*gap, member_id),
    )


def resume(connection: sqlite3.Connection, member_id: int, resumed: GapUpdate) -> None:
    """Note that a member has what was missed, or a part of it. Nothing is noted if more was missed meanwhile."""
    connection.execute(
        "UPDATE members SET missed_from = ?2, missed_to = iif(?2 = 0, 0, missed_to)"
        " WHERE member_id = ?3 AND missed_from = ?1",
        (*resumed, member_id),
    )


def _least(one: int | None, other: int | None) -> int | None:
    return min((number for number in (one, other) if number is not None), default=None)
