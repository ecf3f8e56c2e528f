"""Notes what was really on the screen, and says how far a group was read by that. It is pure."""

from collections.abc import Iterable, Sequence
from uuid import UUID

from conclave.client.news import Message

SHOWN_SECONDS = 0.5
"""What was on the screen for less than half a second is not scrolled away by what comes after it."""


class Reading:
    """How far somebody has come in one group, since it was opened."""

    def __init__(self, passed: int = 0) -> None:
        """``passed``: what comes after this number is not scrolled past before it was shown."""
        self._passed = passed
        self._shown: dict[int, float] = {}

    def show(self, numbers: Iterable[int], at: float) -> None:
        """Note that messages are on the screen. ``at``: seconds of a clock that goes on evenly."""
        for number in numbers:
            self._shown.setdefault(number, at)

    def pass_by(self, messages: Sequence[Message]) -> None:
        """Somebody has gone to the end: whatever was left out on the way, it is not gone back to."""
        self._passed = max([self._passed, *(each.sequence_num for each in messages[-1:])])

    def read_up_to(self, messages: Iterable[Message], unread_from: int | None, user_id: UUID) -> int | None:
        """Return up to which number everything was shown; None if nothing new was.

        ``messages``: those that are loaded, ascending. ``unread_from``: the number of the first unread one. If that is
        not loaded, what is counts for nothing: whatever is read, all before it is too.
        """
        up_to = None
        for index, each in enumerate(messages):
            if index == 0 and unread_from is not None and each.sequence_num > unread_from:
                return None
            is_read = unread_from is None or each.sequence_num < unread_from
            if not (is_read or each.sender_id == user_id or each.sequence_num in self._shown):
                break
            up_to = each.sequence_num
        return up_to

    def first_unseen(self, messages: Sequence[Message], user_id: UUID, now: float) -> Message | None:
        """Return the first message of somebody else's that came, and was not shown for SHOWN_SECONDS yet."""
        for each in messages:
            if each.sequence_num > self._passed and each.sender_id != user_id:
                since = self._shown.get(each.sequence_num)
                if since is None or now < since + SHOWN_SECONDS:
                    return each
        return None
