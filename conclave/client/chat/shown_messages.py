"""Tracks which messages were visible on the screen, and since when. Pure."""

from collections.abc import Iterable, Sequence
from uuid import UUID

from conclave.client.events import Message

SHOWN_SECONDS = 0.5
"""New messages do not scroll away one that was visible for less than half a second."""


class ShownMessages:
    """The messages of a group that were visible since it was opened."""

    def __init__(self, passed: int = 0) -> None:
        """``passed``: messages up to this number may be scrolled past unseen."""
        self._passed = passed
        self._shown: dict[int, float] = {}

    def show(self, numbers: Iterable[int], at: float) -> list[int]:
        """Record visible messages; return the new ones.

        ``at``: seconds of a monotonic clock.
        """
        new = [each for each in dict.fromkeys(numbers) if each not in self._shown]
        self._shown |= dict.fromkeys(new, at)
        return new

    def skip_to_end(self, messages: Sequence[Message]) -> None:
        """Allow scrolling past all current messages: the user went to the end."""
        self._passed = max([self._passed, *(each.sequence_num for each in messages[-1:])])

    def first_unseen(self, messages: Sequence[Message], user_id: UUID, now: float) -> Message | None:
        """Return the first message of another user that was not visible for SHOWN_SECONDS yet."""
        for each in messages:
            if each.sequence_num > self._passed and each.sender_id != user_id:
                since = self._shown.get(each.sequence_num)
                if since is None or now < since + SHOWN_SECONDS:
                    return each
        return None
