"""What wants the user's attention: what is unread, by what the user is meant, and which groups may call."""

from conclave.client.chat import formatting
from conclave.client.chat.observer import Listener
from conclave.client.chat.rooms import Room
from conclave.client.events import Message
from conclave.client.history.erasing import NEVER
from conclave.client.history.store import MOST_UNREAD, History
from conclave.client.session import LoginSession

DIRECT = 2
"""In a group of two each message is for the user."""


class Attention:
    """Counts in the rooms what is unread, and calls the user."""

    def __init__(self, history: History, session: LoginSession, listener: Listener) -> None:
        """``listener``: does the calling."""
        self._history = history
        self._session = session
        self._listener = listener

    def count(self, room: Room) -> None:
        """Note what is unread in a group, and by how much of that the user is meant."""
        group_id = room.group.group_id
        unread = self._history.unread(group_id, self._session.user_id)
        room.unread, room.unread_from = len(unread), next(iter(unread), None)
        if room.mentions is None:
            room.mentions = self._mentions(room, unread[0] - 1) if unread else set()
            room.muted_until = self._history.muted_until(group_id)
        last = unread[-1] if len(unread) == MOST_UNREAD else NEVER  # what comes after it is unread too
        after = {each for each in room.mentions if each > last}
        room.mentions &= {*unread} | self._history.present(group_id, after)

    def _mentions(self, room: Room, after: int) -> set[int]:
        """Return the numbers of all messages after one that mean the user."""
        numbers = set[int]()
        while found := self._history.messages(room.group.group_id, after, MOST_UNREAD):
            numbers |= {each.sequence_num for each in found if self._means_user(room, each)}
            after = found[-1].sequence_num
        return numbers

    def arrived(self, room: Room, message: Message) -> None:
        """Call the user if a message is for them and the group is not muted."""
        if message.sender_id == self._session.user_id:
            return
        is_meant = self._means_user(room, message)
        if is_meant and room.mentions is not None:
            room.mentions.add(message.sequence_num)
        there = {
            message.sender_id,
            *(each.user_id for each in room.group.members),
        }  # who just came in may write at once
        is_for_user = is_meant or len(there) == DIRECT
        if is_for_user and not room.is_muted(self._history.confirmed_now()):
            self._listener.call(room, message)

    def mute(self, room: Room, seconds: int | None) -> None:
        """Let a group not call for so many seconds, 0 for not at all any more, or until that; None: for good."""
        if seconds is None:
            room.muted_until = formatting.LATEST
        else:  # not by a clock that is ahead perhaps: it would be for much longer once that is set right
            room.muted_until = self._history.confirmed_now() + seconds if seconds else 0
        self._history.mute(room.group.group_id, room.muted_until)

    def _means_user(self, room: Room, message: Message) -> bool:
        return message.sender_id != self._session.user_id and room.means(self._session.username, message.text)
