"""The interface between a conversation and what shows it."""

from typing import Protocol
from uuid import UUID

from conclave.client.chat.rooms import Room
from conclave.client.events import Message


class ConversationObserver(Protocol):
    """Shows a conversation."""

    def rooms_changed(self) -> None:
        """Update groups, invites and the connection."""
        ...

    def room_changed(self, group_id: UUID) -> None:
        """Update a group."""
        ...

    def show_status(self, text: str, *, is_error: bool = False) -> None:
        """Show a short message that belongs to no group."""
        ...

    def notify_user(self, room: Room, message: Message) -> None:
        """Notify the user of a message."""
        ...

    def review_keys(self, group_id: UUID) -> None:
        """Ask the user about changed keys of a group, which hold back messages."""
        ...

    def conversation_ended(self, why: Exception) -> None:
        """Handle the end of the conversation: the session is over, or the disk fails."""
        ...
