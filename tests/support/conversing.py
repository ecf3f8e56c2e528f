"""Conversations of the chat at a real server, without a screen: a observer that only records."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from conclave import app_keys
from conclave.client import Backoff, Client, Codec, History, LoginSession, PlaintextCodec
from conclave.client.chat import commands
from conclave.client.chat.command_context import MessageChoice
from conclave.client.chat.conversation import Conversation
from conclave.client.chat.rooms import Notice, PendingMessage, Room
from conclave.client.events import Message
from conclave.clock import Clock
from conclave.wire.stream_connection import StreamConnection as Connection
from tests.conftest import Running
from tests.support.client import PASSWORD
from tests.support.server import PATIENCE

QUICK = Backoff(first=0.01, most=0.05)


class Recorder:
    """A observer that keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.bad: list[str] = []
        self.calls: list[str] = []
        self.holds: list[UUID] = []
        self.ends: list[Exception] = []
        self.shown: set[UUID | None] = set()
        """The groups that were to be shown anew; None: the list of them."""

    def rooms_changed(self) -> None:
        self.shown.add(None)

    def room_changed(self, group_id: UUID) -> None:
        self.shown.add(group_id)

    def show_status(self, text: str, *, is_error: bool = False) -> None:
        (self.bad if is_error else self.said).append(text)

    def notify_user(self, room: Room, message: Message) -> None:
        self.calls.append(f"{room.name}: {message.text}")

    def review_keys(self, group_id: UUID) -> None:
        self.holds.append(group_id)

    def conversation_ended(self, why: Exception) -> None:
        self.ends.append(why)


class Chat:
    """A user's conversation, and what it tells. It can be stopped and begun again."""

    def __init__(
        self,
        url: str,
        name: str,
        clock: Clock | None = None,
        path: Path | None = None,
        backoff: Backoff = QUICK,
        session: LoginSession | None = None,
        codec: Codec | None = None,
    ) -> None:
        """``clock``: the server's, if it stands still. ``session``: one that has begun; None: ``begin`` logs in.

        ``codec``: None: nothing is encrypted.
        """
        self.name = name
        self.client = Client(url, backoff=backoff)
        self.told = Recorder()
        self._clock, self._path, self._backoff, self._session = clock, path, backoff, session
        self._codec = codec or PlaintextCodec()
        self.is_open = False

    async def begin(self, *, register: bool = True) -> None:
        """Log in."""
        await self.client.__aenter__()
        if self._session:
            self.client.resume(self._session)
            return
        if register:
            await self.client.register(self.name, PASSWORD)
        await self.client.login(self.name, PASSWORD)

    async def connect(self, *, waits: bool = True) -> None:
        """Begin the conversation; ``waits``: until the groups are there, and others can invite this user."""
        self.history = History(self._path, clock=self._clock)
        self.conversation = Conversation(self.client, self.history, self._codec, self.told)
        self.conversation.sync._backoff = self._backoff
        self.conversation.send_queue._backoff = self._backoff
        self.conversation._backoff = self._backoff
        await self.conversation.__aenter__()
        self.is_open = True
        if self._clock:  # it stands still in these tests, and the server's answers have the real date
            self.client.transport.on_time = lambda _: None
        if waits:
            await self.until(lambda: self.conversation.offline is None and None in self.told.shown)
            await self.until(lambda: self.conversation.sync._key_package_stock._has_begun)
            await self.refresh()

    async def disconnect(self) -> None:
        """Stop, as at the end of a program."""
        if self.is_open:
            self.is_open = False
            await self.conversation.__aexit__(None, None, None)
            self.history.close()

    async def end(self) -> None:
        await self.disconnect()
        await self.client.__aexit__(None, None, None)

    @property
    def user_id(self) -> UUID:
        return self.client.session.user_id

    async def refresh(self) -> None:
        await self.conversation.refresh()

    async def new(self, name: str = "club", *others: "Chat", public: bool = True) -> UUID:
        """Make a group which others join."""
        group_id = await self.conversation.sync.membership.create(name, public=public)
        for each in others:
            await each.client.join(group_id)
            await each.client.external_join(group_id)
        for each in (self, *others):
            if each.is_open:
                await each.refresh()
        return group_id

    def room(self, group_id: UUID) -> Room:
        return self.conversation.rooms.all[group_id]

    def items(self, group_id: UUID) -> list[Message | Notice | PendingMessage]:
        return list(self.room(group_id).items(self.conversation.now()))

    def texts(self, group_id: UUID) -> list[str | None]:
        """What is shown of a group but for notices."""
        return [each.text for each in self.items(group_id) if not isinstance(each, Notice)]

    def notices(self, group_id: UUID) -> list[str]:
        return [each.text for each in self.items(group_id) if isinstance(each, Notice)]

    def send(self, group_id: UUID, *texts: str, **others: Any) -> None:
        for text in texts:
            self.conversation.send_queue.send(self.room(group_id), text, **others)

    async def shows(self, group_id: UUID, *texts: str | None) -> None:
        """Wait until a group shows these texts and nothing else, all of them as messages."""

        def is_so() -> bool:
            items = [each for each in self.items(group_id) if not isinstance(each, Notice)]
            return [each.text for each in items] == [*texts] and all(isinstance(each, Message) for each in items)

        try:
            await self.until(is_so)
        except TimeoutError:
            raise AssertionError(f"{self.texts(group_id)}, {self.room(group_id).pending}") from None

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for something, as long as the conversation goes on."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                if self.told.ends:
                    raise self.told.ends[0]
                await asyncio.sleep(0.01)


NewChat = Callable[..., Awaitable[Chat]]


class RecordingDesk:
    """What commands work with, without a screen: questions are answered as a test says, and all is kept."""

    def __init__(self, chat: Chat) -> None:
        self.chat = chat
        self.agrees = True
        self.picks = 0
        self.look: Callable[[], list[MessageChoice]] = list
        self.answers: list[str] = []
        self.asked: list[tuple[str, str, str]] = []
        self.told: list[tuple[str, str]] = []
        self.said: list[str] = []
        self.opened: list[UUID] = []
        self.done: list[str] = []

    @property
    def conversation(self) -> Conversation:
        return self.chat.conversation

    @property
    def room(self) -> Room | None:
        open_group_id = self.conversation.open_group_id
        return self.conversation.rooms.all.get(open_group_id) if open_group_id else None

    async def confirm(self, title: str, text: str, yes: str) -> bool:
        self.asked.append((title, text, yes))
        return self.agrees

    async def choose(self, title: str, text: str, answers: Sequence[str], *, is_destructive: bool = False) -> str:
        self.asked.append((title, text, answers[0]))
        return self.answers.pop(0) if self.answers else answers[-1]

    async def show_text(self, title: str, text: str) -> None:
        self.told.append((title, text))

    def show_status(self, text: str, *, is_error: bool = False) -> None:
        self.said.append(text)

    def open_group(self, group_id: UUID, *, is_requested: bool = False) -> None:
        self.opened.append(group_id)
        self.conversation.open_group(group_id)

    async def pick_message(self, title: str, look: Callable[[], list[MessageChoice]]) -> Message | None:
        found = look()
        self.told.append((title, "\n".join(f"{about}\n{part}" for _, about, part in found)))
        self.look = look
        return found[self.picks][0] if self.picks < len(found) else None

    def go_to(self, message: Message) -> None:
        self.open_group(message.group_id)
        if self.room:
            self.conversation.finder.go_to(self.room, message.sequence_num)

    def go_to_end(self) -> None:
        self.done.append("end")

    async def help(self, command: str = "") -> None:
        self.done.append("help")

    async def info(self) -> None:
        self.done.append("info")

    async def change_password(self) -> None:
        self.done.append("change_password")

    async def log_out(self) -> None:
        self.done.append("log_out")

    async def leave_chat(self) -> None:
        self.done.append("leave_chat")

    async def does(self, line: str) -> list[str]:
        """Do what a line says; return what is said in passing."""
        self.said.clear()
        await commands.run(self, line, self.room)
        return list(self.said)


Pair = tuple[Chat, Chat, UUID]


async def say(chat: Chat, group: UUID, count: int, seconds: int = 0) -> None:
    """Send many messages."""
    for _ in range(0, count, 50):
        await asyncio.gather(*(chat.client.send(group, b"text", self_destruct_seconds=seconds) for _ in range(50)))


def break_streams(running: Running, chat: Chat) -> None:
    for stream in list(running.app[app_keys.EVENTS]._streams[chat.user_id.bytes]):
        assert isinstance(stream, Connection)
        if stream._transport:
            stream._transport.abort()


async def go_offline(running: Running, chat: Chat) -> Callable[[], None]:
    """Cut a chat off from the server; return what brings it back."""
    transport, port = chat.client.transport, chat.client.transport.url.port
    transport.url = transport.url.with_port(1)
    break_streams(running, chat)
    await chat.until(lambda: chat.conversation.offline)

    def come_back() -> None:
        transport.url = transport.url.with_port(port)

    return come_back


class Held:
    """Stands before a call, and holds its answers back: they are there, and nobody has them yet."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.may_answer = asyncio.Event()
        self.answered = 0
        self.fails_with: Exception | None = None

    async def __call__(self, *values: Any, **named: Any) -> Any:
        answer = await self._call(*values, **named)
        self.answered += 1
        await self.may_answer.wait()
        if error := self.fails_with:
            self.fails_with = None
            raise error
        return answer
