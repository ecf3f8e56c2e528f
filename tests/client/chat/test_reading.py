"""How far somebody has read, by what was on the screen."""

from collections.abc import Iterable
from uuid import UUID

import pytest

from conclave.client.chat.reading import SHOWN_SECONDS, Reading
from conclave.client.news import Message

ME, BOB = UUID(int=1), UUID(int=2)


def said(*numbers: int, own: Iterable[int] = ()) -> list[Message]:
    return [Message(UUID(int=9), each, ME if each in own else BOB, "text", 0, 0, None) for each in numbers]


@pytest.mark.parametrize(
    ("loaded", "own", "unread_from", "shown", "read"),
    [
        ([1, 2, 3], [], 1, [], None),
        ([1, 2, 3], [], 1, [1, 2], 2),
        ([1, 2, 3], [], 1, [3], None),
        ([1, 2, 3], [], 2, [2], 2),
        ([1, 2, 3], [], 2, [3], 1),
        ([1, 2, 3], [2], 1, [1, 3], 3),
        ([1, 5, 9], [], 5, [5, 9], 9),
        ([1, 2, 3], [], None, [], 3),
        ([5, 6], [], 3, [5, 6], None),
        ([], [], 3, [], None),
        ([], [], None, [], None),
    ],
    ids=[
        *("nothing shown", "the first", "not those before", "on from there", "what was read stays so"),
        *("own need not be seen", "numbers may be missing", "all is read", "some are not loaded", "none is", "none"),
    ],
)
def test_what_counts_as_read(
    loaded: list[int], own: list[int], unread_from: int | None, shown: list[int], read: int | None
) -> None:
    reading = Reading()
    reading.show(shown, 0.0)
    assert reading.read_up_to(said(*loaded, own=own), unread_from, ME) == read


def test_what_came_and_was_not_shown_for_long_enough_is_unseen() -> None:
    reading, messages = Reading(), said(1, 2, 3, 4, own=[2])
    reading.pass_by(messages[:1])

    def unseen(now: float) -> int | None:
        found = reading.first_unseen(messages, ME, now)
        return found.sequence_num if found else None

    assert unseen(0.0) == 3, "neither what was there before, nor one's own"
    reading.show([3], 10.0)
    assert unseen(10.0) == 3
    reading.show([3], 10.0 + SHOWN_SECONDS)
    assert unseen(10.0 + SHOWN_SECONDS) == 4, "it counts from when it was shown first"
    reading.pass_by(messages)
    assert unseen(0.0) is None
    reading.pass_by([])
    assert unseen(0.0) is None
