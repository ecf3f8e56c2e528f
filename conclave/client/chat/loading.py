"""How much of a group is loaded from the local history: a window without a hole, from its first unread message on."""

from uuid import UUID

from conclave.client.chat.rooms import Room
from conclave.client.events import Message
from conclave.client.history.store import History

PAGE = 200
"""Messages are loaded from the local history 200 at a time."""

MOST_LOADED = 1_000
"""Of a group at most 1,000 messages stay loaded while its newest ones are shown."""

MOST_AHEAD = 2_000
"""While others are shown, and 2,000 are loaded, what comes is loaded only once the user gets there."""


def load(history: History, room: Room, user_id: UUID) -> None:
    """Load the last messages of a group, and with them all that are unread: MOST_LOADED at most.

    If more are unread, the first of them are loaded: those that are not cannot have been on the screen, and would count
    as read with what comes after them.
    """
    group_id = room.group.group_id
    unread_from = next(iter(history.unread(group_id, user_id)), None)
    last = history.last_messages(group_id, MOST_LOADED)
    room.has_later = unread_from is not None and unread_from < min((each.sequence_num for each in last), default=0)
    if unread_from is not None and room.has_later:
        shown = history.earlier_messages(group_id, unread_from, PAGE)
        shown += history.messages(group_id, unread_from - 1, MOST_LOADED - PAGE)
    else:
        read = history.read_up_to(group_id)
        shown = [each for each in last[:-PAGE] if each.sequence_num > read] + last[-PAGE:]
    first = shown[0].sequence_num if shown else 0
    room.has_earlier = bool(history.earlier_messages(group_id, first, 1))
    room.load(shown)


def load_last(history: History, room: Room) -> None:
    """Load the last page of a group, and nothing before it."""
    room.load(history.last_messages(room.group.group_id, PAGE))
    room.has_earlier, room.has_later = len(room.messages) == PAGE, False


def load_around(history: History, room: Room, number: int) -> None:
    """Load a page of messages before one, and a page from it on."""
    group_id = room.group.group_id
    earlier, later = history.earlier_messages(group_id, number, PAGE), history.messages(group_id, number - 1, PAGE)
    room.load([*earlier, *later])
    room.has_earlier, room.has_later = len(earlier) == PAGE, len(later) == PAGE


def load_earlier(history: History, room: Room) -> list[Message]:
    """Load a page of messages before those that are loaded; return it."""
    first = min(room.messages, default=0)
    earlier = history.earlier_messages(room.group.group_id, first, PAGE) if room.has_earlier else []
    room.load([*earlier, *room.messages.values()])
    room.has_earlier = len(earlier) == PAGE
    return earlier


def load_later(history: History, room: Room) -> list[Message]:
    """Load a page of messages after those that are loaded; return it. What comes before MOST_LOADED is dropped."""
    last = max(room.messages, default=0)
    later = history.messages(room.group.group_id, last, PAGE) if room.has_later else []
    found = [*room.messages.values(), *later]
    room.load(found[-MOST_LOADED:])
    room.has_earlier = room.has_earlier or len(found) > MOST_LOADED
    room.has_later = len(later) == PAGE
    return later


def load_again(history: History, room: Room) -> None:
    """Read anew what is loaded, of which something may be gone, or be there again."""
    if not room.messages:
        return
    first, last = min(room.messages), max(room.messages)
    found = history.messages(room.group.group_id, first - 1, len(room.messages) + MOST_LOADED)
    room.load(each for each in found if each.sequence_num <= last or not room.has_later)
    room.has_earlier = room.has_earlier or bool(history.earlier_messages(room.group.group_id, first, 1))


def add(room: Room, message: Message) -> None:
    """Load a message that came, and drop the oldest if too many are loaded."""
    room.add(message)
    if room.has_later:
        return
    if len(room.messages) > MOST_LOADED and room.is_at_end:
        room.load(list(room.messages.values())[-PAGE:])
        room.has_earlier = True
    elif len(room.messages) > MOST_AHEAD:
        room.load(list(room.messages.values())[:MOST_AHEAD])
        room.has_later = True
