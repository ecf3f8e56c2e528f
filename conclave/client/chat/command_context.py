"""The context of commands: what they work with, and how they ask the user."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol
from uuid import UUID

from conclave.client.chat.conversation import Conversation
from conclave.client.chat.rooms import Room
from conclave.client.events import Message


class CommandError(Exception):
    """What was typed cannot be done; the text says why, in a line."""


Told = tuple[Message, str, str]
"""A message to choose, a line about it, and a part of it."""


class CommandContext(Protocol):
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

    async def choose(self, title: str, text: str, answers: Sequence[str], *, is_grave: bool = False) -> str:
        """Ask for one of some answers, of which the last one changes nothing; return it."""
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

    async def pick(self, title: str, look: Callable[[], list[Told]]) -> Message | None:
        """Have one of some messages chosen; None: none was. ``look``: returns those that are there at the moment."""
        ...

    def go_to(self, message: Message) -> None:
        """Open a group at one of its messages."""
        ...

    def go_to_end(self) -> None:
        """Show the newest messages of the open group."""
        ...

    async def help(self, command: str = "") -> None:
        """Show the help, or that of one command. Raises CommandError if there is none of that name."""
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


Work = Callable[[CommandContext, str], Awaitable[None]]
