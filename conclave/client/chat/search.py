"""Searches the local history. It creates no index, which could outlive expired messages."""

import asyncio
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from conclave.client.chat import loading
from conclave.client.chat.rooms import Room, Rooms
from conclave.client.events import Message
from conclave.client.history.store import History

MAX_RESULTS = 200
"""A search returns the newest 200 messages."""

BATCH = 250
"""Messages that are searched before other tasks run, which takes some milliseconds."""

MAX_EXCERPT = 120
"""An excerpt has up to 120 characters."""

_BEFORE = 30
"""An excerpt has at most 30 characters before the match."""

_WORDS = re.compile(r'"([^"]+)"|(\S+)')


def parse_terms(typed: str) -> list[str]:
    """Return the search terms: words, and phrases in quotes."""
    return [word for quoted, plain in _WORDS.findall(typed) if (word := _folded(quoted or plain.strip('"')).strip())]


def has_all(words: Sequence[str], text: str) -> bool:
    """Tell whether a text contains all words, ignoring case."""
    folded = _folded(text)
    return all(each in folded for each in words)


def excerpt(words: Sequence[str], text: str) -> str:
    """Return the part of a text around the first word, on one line."""
    line = " ".join(text.split())
    at = max(0, line.lower().find(words[0]) - _BEFORE) if len(line) > MAX_EXCERPT else 0
    part = line[at : at + MAX_EXCERPT]
    return f"{'…' if at else ''}{part}{'…' if at + MAX_EXCERPT < len(line) else ''}"


class MessageFinder:
    """Finds messages in the user's groups."""

    def __init__(self, history: History, rooms: Rooms, learn_names: Callable[[Iterable[Message]], None]) -> None:
        """``learn_names``: requests the names of senders who are no longer members."""
        self._history = history
        self._rooms = rooms
        self._learn_names = learn_names

    async def search(self, rooms: Iterable[Room], words: Sequence[str]) -> list[Message]:
        """Return the newest local messages in some groups that contain all words, the newest first.

        Unread self-destructing messages are excluded, since showing them would mean reading them.
        """
        found = list[Message]()
        for room in rooms:
            found += await self._in_group(room.group.group_id, words)
        found = sorted(found, key=lambda each: each.created_at, reverse=True)[:MAX_RESULTS]
        self._learn_names(found)
        return found

    def existing(self, found: Iterable[Message]) -> list[Message]:
        """Return those of the found messages that still exist."""
        found = [each for each in found if each.group_id in self._rooms.all]
        now_there = (self._history.messages(each.group_id, each.sequence_num - 1, 1) for each in found)
        return [now[0] for now, each in zip(now_there, found, strict=True) if now and _is_same(now[0], each)]

    def go_to(self, room: Room, number: int) -> None:
        """Load the messages around one, and mark it."""
        loading.load_around(self._history, room, number)
        room.found = number
        self._learn_names(room.messages.values())

    def answerable(self, room: Room, username: str = "") -> Message | None:
        """Return the message that a reply answers, or None.

        It is the search result that was opened, or the last seen message of another user, or of ``username``. Unseen
        ones are excluded, since a message may arrive just before the reply is sent.
        """
        if room.found in room.messages and not username:
            return room.messages[room.found]
        unread, now = {*self._history.unread(room.group.group_id, self._rooms.user_id)}, self._history.now()
        sender = self._rooms.member(room, username) if username else None
        for each in reversed(room.messages.values()):
            mentions_user = each.sender_id == sender if username else each.sender_id != self._rooms.user_id
            if mentions_user and each.text is not None and each.sequence_num not in unread and not each.is_gone(now):
                return each
        return None

    async def _in_group(self, group_id: UUID, words: Sequence[str]) -> list[Message]:
        history, found = self._history, list[Message]()
        page = history.last_messages(group_id, BATCH)
        while page and len(found) < MAX_RESULTS:
            read_up_to = history.read_up_to(group_id)
            found += [each for each in reversed(page) if self._is_found(each, words, read_up_to)]
            await asyncio.sleep(0)
            page = history.earlier_messages(group_id, page[0].sequence_num, BATCH)
        return found[:MAX_RESULTS]

    def _is_found(self, message: Message, words: Sequence[str], read_up_to: int) -> bool:
        is_read = message.sequence_num <= read_up_to or message.sender_id == self._rooms.user_id
        is_open = is_read or not message.self_destruct_seconds
        return is_open and message.text is not None and has_all(words, message.text)


def _is_same(now: Message, then: Message) -> bool:
    return (now.sequence_num, now.sender_id, now.created_at) == (then.sequence_num, then.sender_id, then.created_at)


def _folded(text: str) -> str:
    """Return a text with case and compatibility variants normalised."""
    return unicodedata.normalize("NFKC", text).casefold()
