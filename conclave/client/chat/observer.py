"""The observer of a conversation: it shows what has changed."""

from typing import Protocol
from uuid import UUID

from conclave.client.chat.rooms import Room
from conclave.client.events import Message


class Listener(Protocol):
    """Shows a conversation."""

    def rooms_changed(self) -> None:
        """Show groups, invites and the connection anew."""
        ...

    def room_changed(self, group_id: UUID) -> None:
        """Show what is in a group anew."""
        ...

    def say(self, text: str, *, is_bad: bool = False) -> None:
        """Tell something that belongs to no group, or to one that is gone."""
        ...

    def call(self, room: Room, message: Message) -> None:
        """Call the user: a message that came is for them."""
        ...

    def held(self, group_id: UUID) -> None:
        """What was typed for a group waits until the user has judged a key that has changed."""
        ...

    def ended(self, why: Exception) -> None:
        """It cannot go on: the session is over, or the disk fails."""
        ...
