"""Loads a contiguous window of a group's messages from the local history."""

from uuid import UUID

from conclave.client.chat.rooms import Room
from conclave.client.events import Message
from conclave.client.history.store import History

PAGE = 200
"""Messages are loaded in pages of 200."""

MAX_LOADED = 1_000
"""At most 1,000 messages of a group stay loaded while the newest ones are shown."""

MAX_BEHIND = 2_000
"""While older messages are shown, new ones are loaded up to 2,000 in all, and further ones when the user scrolls there.
"""


def load(history: History, room: Room, user_id: UUID) -> None:
    """Load a group's last messages and all unread ones, at most MAX_LOADED.

    If more are unread, the first of them are loaded: skipped ones would count as read with those after them.
    """
    group_id = room.group.group_id
    unread_from = next(iter(history.unread(group_id, user_id)), None)
    last = history.last_messages(group_id, MAX_LOADED)
    room.has_later = unread_from is not None and unread_from < min((each.sequence_num for each in last), default=0)
    if unread_from is not None and room.has_later:
        shown = history.earlier_messages(group_id, unread_from, PAGE)
        shown += history.messages(group_id, unread_from - 1, MAX_LOADED - PAGE)
    else:
        read = history.read_up_to(group_id)
        shown = [each for each in last[:-PAGE] if each.sequence_num > read] + last[-PAGE:]
    first = shown[0].sequence_num if shown else 0
    room.has_earlier = bool(history.earlier_messages(group_id, first, 1))
    room.load(shown)


def load_last(history: History, room: Room) -> None:
    """Load the last page of a group only."""
    room.load(history.last_messages(room.group.group_id, PAGE))
    room.has_earlier, room.has_later = len(room.messages) == PAGE, False


def load_around(history: History, room: Room, number: int) -> None:
    """Load the page before a message, and the page from it on."""
    group_id = room.group.group_id
    earlier, later = history.earlier_messages(group_id, number, PAGE), history.messages(group_id, number - 1, PAGE)
    room.load([*earlier, *later])
    room.has_earlier, room.has_later = len(earlier) == PAGE, len(later) == PAGE


def load_earlier(history: History, room: Room) -> list[Message]:
    """Load and return the page before the loaded messages."""
    first = min(room.messages, default=0)
    earlier = history.earlier_messages(room.group.group_id, first, PAGE) if room.has_earlier else []
    room.load([*earlier, *room.messages.values()])
    room.has_earlier = len(earlier) == PAGE
    return earlier


def load_later(history: History, room: Room) -> list[Message]:
    """Load and return the page after the loaded messages; drop the oldest beyond MAX_LOADED."""
    last = max(room.messages, default=0)
    later = history.messages(room.group.group_id, last, PAGE) if room.has_later else []
    found = [*room.messages.values(), *later]
    room.load(found[-MAX_LOADED:])
    room.has_earlier = room.has_earlier or len(found) > MAX_LOADED
    room.has_later = len(later) == PAGE
    return later


def reload(history: History, room: Room) -> None:
    """Reload the window, in which messages may be gone or back."""
    if not room.messages:
        return
    first, last = min(room.messages), max(room.messages)
    found = history.messages(room.group.group_id, first - 1, len(room.messages) + MAX_LOADED)
    room.load(each for each in found if each.sequence_num <= last or not room.has_later)
    room.has_earlier = room.has_earlier or bool(history.earlier_messages(room.group.group_id, first, 1))


def add(room: Room, message: Message) -> None:
    """Add a new message, and drop the oldest if too many are loaded."""
    room.add(message)
    if room.has_later:
        return
    if len(room.messages) > MAX_LOADED and room.is_at_end:
        room.load(list(room.messages.values())[-PAGE:])
        room.has_earlier = True
    elif len(room.messages) > MAX_BEHIND:
        room.load(list(room.messages.values())[:MAX_BEHIND])
        room.has_later = True
