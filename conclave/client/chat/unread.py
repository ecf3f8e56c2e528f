"""Counts unread messages and mentions, and decides which messages notify the user."""

from conclave.client.chat import formatting
from conclave.client.chat.observer import ConversationObserver
from conclave.client.chat.rooms import Room
from conclave.client.events import Message
from conclave.client.history.erasing import NEVER
from conclave.client.history.store import MAX_UNREAD, History
from conclave.client.session import LoginSession

DIRECT = 2
"""In a group of two, every message notifies."""


class UnreadCounter:
    """Counts unread messages and mentions in the rooms, and notifies the user."""

    def __init__(self, history: History, session: LoginSession, observer: ConversationObserver) -> None:
        """``observer``: shows the notifications."""
        self._history = history
        self._session = session
        self._observer = observer

    def count(self, room: Room) -> None:
        """Update the numbers of unread messages and of mentions of a room."""
        group_id = room.group.group_id
        unread = self._history.unread(group_id, self._session.user_id)
        room.unread, room.unread_from = len(unread), next(iter(unread), None)
        if room.mentions is None:
            room.mentions = self._mentions(room, unread[0] - 1) if unread else set()
            room.muted_until = self._history.muted_until(group_id)
        last = unread[-1] if len(unread) == MAX_UNREAD else NEVER  # later ones are unread too
        after = {each for each in room.mentions if each > last}
        room.mentions &= {*unread} | self._history.present(group_id, after)

    def _mentions(self, room: Room, after: int) -> set[int]:
        """Return the numbers of all messages after one that mention the user."""
        numbers = set[int]()
        while found := self._history.messages(room.group.group_id, after, MAX_UNREAD):
            numbers |= {each.sequence_num for each in found if self._mentions_user(room, each)}
            after = found[-1].sequence_num
        return numbers

    def handle_message(self, room: Room, message: Message) -> None:
        """Record a mention, and notify the user of a message that concerns them in a group that is not muted."""
        if message.sender_id == self._session.user_id:
            return
        has_mention = self._mentions_user(room, message)
        if has_mention and room.mentions is not None:
            room.mentions.add(message.sequence_num)
        # The sender may have joined since the members were read.
        people = {message.sender_id, *(each.user_id for each in room.group.members)}
        is_for_user = has_mention or len(people) == DIRECT
        if is_for_user and not room.is_muted(self._history.confirmed_now()):
            self._observer.notify_user(room, message)

    def mute(self, room: Room, seconds: int | None) -> None:
        """Mute a room for some seconds; 0: unmute; None: until unmuted."""
        if seconds is None:
            room.muted_until = formatting.MAX_TIME
        else:  # a clock that is ahead would mute for longer once it is corrected
            room.muted_until = self._history.confirmed_now() + seconds if seconds else 0
        self._history.mute(room.group.group_id, room.muted_until)

    def _mentions_user(self, room: Room, message: Message) -> bool:
        return message.sender_id != self._session.user_id and room.mentions_user(self._session.username, message.text)
