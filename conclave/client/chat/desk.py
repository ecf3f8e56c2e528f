"""What commands work with: a desk."""

from collections.abc import Awaitable, Callable
from typing import Protocol
from uuid import UUID

from conclave.client.chat.conversation import Conversation
from conclave.client.chat.rooms import Room


class CommandError(Exception):
    """What was typed cannot be done; the text says why, in a line."""


class Desk(Protocol):
    """What commands work with: the conversation, the open group, and ways of asking and telling the user."""

    @property
    def conversation(self) -> Conversation:
        """What goes on with the server."""
        ...

    @property
    def room(self) -> Room | None:
        """The open group."""
        ...

    async def ask(self, title: str, text: str, yes: str) -> bool:
        """Ask for a decision; ``yes``: what the button says that does it."""
        ...

    async def tell(self, title: str, text: str) -> None:
        """Show a text until it is put away."""
        ...

    def say(self, text: str, *, is_bad: bool = False) -> None:
        """Say something in passing."""
        ...

    def go(self, group_id: UUID, *, is_awaited: bool = False) -> None:
        """Open a group. ``is_awaited``: what was typed since the command is for it."""
        ...

    async def help(self) -> None:
        """Show the help."""
        ...

    async def info(self) -> None:
        """Show what there is to know of the open group."""
        ...

    async def change_password(self) -> None:
        """Ask for the passwords, and change them."""
        ...

    async def log_out(self) -> None:
        """End the session, and forget what is here."""
        ...

    async def leave_chat(self) -> None:
        """End the program."""
        ...


Work = Callable[[Desk, str], Awaitable[None]]
