"""Who is told what of a conversation has changed: whatever shows it."""

from typing import Protocol
from uuid import UUID


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

    def ended(self, why: Exception) -> None:
        """It cannot go on: the session is over, or the disk fails."""
        ...
