"""How far somebody has read, by what was on the screen."""

from collections.abc import Iterable
from uuid import UUID

from conclave.client.chat.shown_messages import SHOWN_SECONDS, ShownMessages
from conclave.client.events import Message

ME, BOB = UUID(int=1), UUID(int=2)


def said(*numbers: int, own: Iterable[int] = ()) -> list[Message]:
    return [Message(UUID(int=9), each, ME if each in own else BOB, "text", 0, 0, None) for each in numbers]


def test_what_is_on_the_screen_is_told_once() -> None:
    reading = ShownMessages()
    assert reading.show([3, 4, 4], 0.0) == [3, 4]
    assert reading.show([4, 5], 1.0) == [5]


def test_what_came_and_was_not_shown_for_long_enough_is_unseen() -> None:
    reading, messages = ShownMessages(), said(1, 2, 3, 4, own=[2])
    reading.skip_to_end(messages[:1])

    def unseen(now: float) -> int | None:
        found = reading.first_unseen(messages, ME, now)
        return found.sequence_num if found else None

    assert unseen(0.0) == 3, "neither what was there before, nor one's own"
    reading.show([3], 10.0)
    assert unseen(10.0) == 3
    reading.show([3], 10.0 + SHOWN_SECONDS)
    assert unseen(10.0 + SHOWN_SECONDS) == 4, "it counts from when it was shown first"
    reading.skip_to_end(messages)
    assert unseen(0.0) is None
    reading.skip_to_end([])
    assert unseen(0.0) is None
