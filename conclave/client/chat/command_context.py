"""What commands work with: the conversation, and ways to ask and inform the user."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol
from uuid import UUID

from conclave.client.chat.conversation import Conversation
from conclave.client.chat.rooms import Room
from conclave.client.events import Message


class CommandError(Exception):
    """A command cannot be executed. The message says why in one line."""


MessageChoice = tuple[Message, str, str]
"""A message to choose from, its description, and an excerpt."""


class CommandContext(Protocol):
    """What commands work with: the conversation, the open group, and dialogs."""

    @property
    def conversation(self) -> Conversation:
        """The conversation with the server."""
        ...

    @property
    def room(self) -> Room | None:
        """The open group."""
        ...

    async def confirm(self, title: str, text: str, yes: str) -> bool:
        """Ask for confirmation. ``yes``: the label of the confirming button."""
        ...

    async def choose(self, title: str, text: str, answers: Sequence[str], *, is_destructive: bool = False) -> str:
        """Ask the user to choose an answer, and return it. The last one changes nothing."""
        ...

    async def show_text(self, title: str, text: str) -> None:
        """Show a text until it is closed."""
        ...

    def show_status(self, text: str, *, is_error: bool = False) -> None:
        """Show a short message for some seconds."""
        ...

    def open_group(self, group_id: UUID, *, is_requested: bool = False) -> None:
        """Open a group. ``is_requested``: lines typed after the command belong to it."""
        ...

    async def pick_message(self, title: str, look: Callable[[], list[MessageChoice]]) -> Message | None:
        """Let the user choose a message; return None if they cancel. ``look``: returns the existing messages."""
        ...

    def go_to(self, message: Message) -> None:
        """Open a group at one of its messages."""
        ...

    def go_to_end(self) -> None:
        """Show the newest messages of the open group."""
        ...

    async def help(self, command: str = "") -> None:
        """Show the help, or that of one command. Raises CommandError for an unknown command."""
        ...

    async def info(self) -> None:
        """Show details of the open group."""
        ...

    async def change_password(self) -> None:
        """Ask for the passwords, and change them."""
        ...

    async def log_out(self) -> None:
        """End the session, and erase local data."""
        ...

    async def leave_chat(self) -> None:
        """Quit the program."""
        ...


Handler = Callable[[CommandContext, str], Awaitable[None]]
