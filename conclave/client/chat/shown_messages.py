"""Notes what was really on the screen, and when. It is pure."""

from collections.abc import Iterable, Sequence
from uuid import UUID

from conclave.client.events import Message

SHOWN_SECONDS = 0.5
"""What was on the screen for less than half a second is not scrolled away by what comes after it."""


class ShownMessages:
    """What somebody has seen of one group, since it was opened."""

    def __init__(self, passed: int = 0) -> None:
        """``passed``: what comes after this number is not scrolled past before it was shown."""
        self._passed = passed
        self._shown: dict[int, float] = {}

    def show(self, numbers: Iterable[int], at: float) -> list[int]:
        """Note that messages are on the screen; return those that were not before.

        ``at``: seconds of a clock that goes on evenly.
        """
        new = [each for each in dict.fromkeys(numbers) if each not in self._shown]
        self._shown |= dict.fromkeys(new, at)
        return new

    def pass_by(self, messages: Sequence[Message]) -> None:
        """Somebody has gone to the end: whatever was left out on the way, it is not gone back to."""
        self._passed = max([self._passed, *(each.sequence_num for each in messages[-1:])])

    def first_unseen(self, messages: Sequence[Message], user_id: UUID, now: float) -> Message | None:
        """Return the first message of somebody else's that came, and was not shown for SHOWN_SECONDS yet."""
        for each in messages:
            if each.sequence_num > self._passed and each.sender_id != user_id:
                since = self._shown.get(each.sequence_num)
                if since is None or now < since + SHOWN_SECONDS:
                    return each
        return None
