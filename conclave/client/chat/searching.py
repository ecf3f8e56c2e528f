"""Searches the local history. It makes no index: nothing is kept of what was looked for or found, so nothing stays."""

import asyncio
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from conclave.client.chat import loading
from conclave.client.chat.rooms import Room, Rooms
from conclave.client.events import Message
from conclave.client.history.store import History

MOST_FOUND = 200
"""Up to 200 messages are found, the newest."""

LOOKED_THROUGH = 250
"""250 messages are looked through at once, some milliseconds; then whatever else waits has its turn."""

MOST_EXCERPT = 120
"""Of a message that was found 120 characters are shown."""

_BEFORE = 30
"""What was looked for stands after at most 30 characters of what comes before it."""

_WORDS = re.compile(r'"([^"]+)"|(\S+)')


def words_of(typed: str) -> list[str]:
    """Return what to look for: words, or several in quotes as one."""
    return [word for quoted, plain in _WORDS.findall(typed) if (word := _folded(quoted or plain.strip('"')).strip())]


def has_all(words: Sequence[str], text: str) -> bool:
    """Tell whether each word is in a text, whatever its capitals."""
    folded = _folded(text)
    return all(each in folded for each in words)


def excerpt(words: Sequence[str], text: str) -> str:
    """Return the part of a text in which the first of the words is, as one line."""
    line = " ".join(text.split())
    at = max(0, line.lower().find(words[0]) - _BEFORE) if len(line) > MOST_EXCERPT else 0
    part = line[at : at + MOST_EXCERPT]
    return f"{'…' if at else ''}{part}{'…' if at + MOST_EXCERPT < len(line) else ''}"


class Finder:
    """Finds messages of the user's groups again."""

    def __init__(self, history: History, rooms: Rooms, learn_names: Callable[[Iterable[Message]], None]) -> None:
        """``learn_names``: finds out who has sent messages, of whom some are no members any more."""
        self._history = history
        self._rooms = rooms
        self._learn_names = learn_names

    async def search(self, rooms: Iterable[Room], words: Sequence[str]) -> list[Message]:
        """Return the newest messages here of some groups that have all the words, the newest first.

        One that destroys itself and was not read yet is not found: whoever sees it here would have read it.
        """
        found = list[Message]()
        for room in rooms:
            found += await self._in_group(room.group.group_id, words)
        found = sorted(found, key=lambda each: each.created_at, reverse=True)[:MOST_FOUND]
        self._learn_names(found)
        return found

    def still_there(self, found: Iterable[Message]) -> list[Message]:
        """Return what can be shown now of messages that were found."""
        found = [each for each in found if each.group_id in self._rooms.all]
        now_there = (self._history.messages(each.group_id, each.sequence_num - 1, 1) for each in found)
        return [now[0] for now, each in zip(now_there, found, strict=True) if now and _is_same(now[0], each)]

    def go_to(self, room: Room, number: int) -> None:
        """Load what stands around a message, and mark it."""
        loading.load_around(self._history, room, number)
        room.found = number
        self._learn_names(room.messages.values())

    def answerable(self, room: Room, username: str = "") -> Message | None:
        """Return the message that a reply answers; None if there is none.

        It is the one that was gone to, or else the last one of somebody else's, of ``username`` if that is set. It was
        seen, so that nobody answers what has come just before the reply was sent.
        """
        if room.found in room.messages and not username:
            return room.messages[room.found]
        unread, now = {*self._history.unread(room.group.group_id, self._rooms.user_id)}, self._history.now()
        sender = self._rooms.member(room, username) if username else None
        for each in reversed(room.messages.values()):
            is_meant = each.sender_id == sender if username else each.sender_id != self._rooms.user_id
            if is_meant and each.text is not None and each.sequence_num not in unread and not each.is_gone(now):
                return each
        return None

    async def _in_group(self, group_id: UUID, words: Sequence[str]) -> list[Message]:
        history, found = self._history, list[Message]()
        page = history.last_messages(group_id, LOOKED_THROUGH)
        while page and len(found) < MOST_FOUND:
            read_up_to = history.read_up_to(group_id)
            found += [each for each in reversed(page) if self._is_found(each, words, read_up_to)]
            await asyncio.sleep(0)
            page = history.earlier_messages(group_id, page[0].sequence_num, LOOKED_THROUGH)
        return found[:MOST_FOUND]

    def _is_found(self, message: Message, words: Sequence[str], read_up_to: int) -> bool:
        is_read = message.sequence_num <= read_up_to or message.sender_id == self._rooms.user_id
        is_open = is_read or not message.self_destruct_seconds
        return is_open and message.text is not None and has_all(words, message.text)


def _is_same(now: Message, then: Message) -> bool:
    return (now.sequence_num, now.sender_id, now.created_at) == (then.sequence_num, then.sender_id, then.created_at)


def _folded(text: str) -> str:
    """Return a text without what makes no difference to whoever looks for it."""
    return unicodedata.normalize("NFKC", text).casefold()
