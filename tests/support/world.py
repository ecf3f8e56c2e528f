"""A server whose answers are compared with what the store alone says: its users, sessions and groups."""

import asyncio
import base64
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

import orjson
from aiohttp import ClientSession, TCPConnector

from conclave import app_keys
from conclave.actions.command_runner import CommandRunner
from conclave.clock import FakeClock
from conclave.config.settings import Config
from conclave.store import invalidation
from conclave.store.resources import messages
from conclave.wire import conclave_pb2
from conclave.wire.formats import Format
from tests.conftest import Running, StartServer
from tests.support.alone import StoreAlone, Told
from tests.support.cleaner import Cleaner
from tests.support.client import API, Client, RefusedError

T = TypeVar("T")

TTL = 20 * 86_400


class DisagreementError(AssertionError):
    """The server has not said what the store says."""


class World:
    """A server, its users with their sessions, living and ended, and its groups, living and deleted."""

    def __init__(self, start: StartServer, config: Config, clock: FakeClock, cleaner: Cleaner, seed: int) -> None:
        self.chance = random.Random(seed)
        self.config = replace(config, token_ttl_seconds=TTL)
        self.clock = clock
        self.sessions: list[Client] = []
        self.groups: list[str] = []
        self.told: list[str] = []
        self.from_memory = 0
        self.plant: Callable[[Running], None] = lambda _: None
        self._start = start
        self._cleaner = cleaner
        self._names: dict[str, str] = {}
        self._count = 0
        self._server = AsyncExitStack()
        self._meanwhile: Callable[[], Awaitable[None]] | None = None

    # The server.

    async def _open(self) -> None:
        self.running = running = await self._server.enter_async_context(self._start(self.config, accepts_change=True))
        self._asking = await self._server.enter_async_context(ClientSession(connector=TCPConnector(limit=1)))
        for session in self.sessions:
            session.http, session.url = running.http, running.url
        store, remembered = running.app[app_keys.STORE], running.app[app_keys.GROUPS]
        read, page = store.read, remembered.page

        async def read_and_meet(fn: Any, *args: Any, **kwargs: Any) -> Any:
            result = await read(fn, *args, **kwargs)
            if self._meanwhile and fn in (messages.read_page, invalidation.with_invalidation):
                do, self._meanwhile = self._meanwhile, None
                await do()
                await asyncio.sleep(0)
                running.app[app_keys.FRESHNESS].refresh()  # as another request does
            return result

        def counted(*args: Any) -> Any:
            found = page(*args)
            self.from_memory += found is not None
            return found

        setattr(store, "read", read_and_meet)  # noqa: B010 - mypy wants no method replaced
        setattr(remembered, "page", counted)  # noqa: B010
        self.plant(running)

    @property
    def _outside(self) -> CommandRunner:
        return CommandRunner(self.config, self.clock)

    # Comparing.

    async def compare(self) -> None:
        """Ask for some pages as each session, and compare them, and the watermarks that follow."""
        async with StoreAlone(self.running.app) as alone:
            await self._settle()
            marks = alone.watermarks()
            for client in self.chance.sample(self.sessions, min(len(self.sessions), 7)):
                for group in self.groups:
                    for _ in range(2):
                        await self._compare_page(alone, marks, client, group)
            await self._settle()
            stored = alone.watermarks()
            self._expect({key: mark for key, mark in stored.items() if marks[key] != mark}, {}, "watermarks")

    async def _settle(self) -> None:
        """Do what ``Running.settle`` does on the one connection that asks for pages."""
        async with self._asking.get(f"{self.running.url}/healthz") as response:
            await response.read()

    async def _compare_page(
        self, alone: StoreAlone, marks: dict[tuple[str, str], int], client: Client, group: str
    ) -> None:
        last = alone.last(group)
        after = self.chance.choice([0, 0, last, max(0, last - 1), last + 3, self.chance.randint(0, last)])
        limit = self.chance.choice([1, 2, 5, 500])
        redacted = self.chance.random() < 0.3
        told = await alone.page(client.token, group, after, limit, include_redacted=redacted)
        found = await self.ask(client, group, after, limit, self.chance.choice(list(Format)), include_redacted=redacted)
        self._expect(found, told, f"{self._names.get(client.user_id)}: {group} after {after}, at most {limit}")
        if isinstance(found, list):
            key = group, client.user_id
            # Where some messages are redacted, a page counts for those that its reader may not see, too.
            up_to = alone.up_to if alone.doubts or (alone.self_destructs(group) and len(found) < limit) else 0
            claimed = [] if alone.doubts else [min(after, last), *(each[0] for each in found[-1:])]
            marks[key] = max(marks[key], up_to, *claimed)

    def _expect(self, found: Any, told: Any, what: str) -> None:
        if found != told:
            raise DisagreementError(f"{what}: {found!s:.2000} is not {told!s:.2000}; {self.told}")

    async def ask(
        self,
        client: Client,
        group: str,
        after: int,
        limit: int,
        written_in: Format,
        *,
        include_redacted: bool = False,
    ) -> Told:
        """Fetch a page over HTTP."""
        headers = {"Authorization": f"Bearer {client.token}", "Accept": written_in.value}
        url = f"{self.running.url}{API}/groups/{group}/messages"
        query = {"after": str(after), "limit": str(limit)} | ({"include_redacted": "true"} if include_redacted else {})
        async with self._asking.get(url, params=query, headers=headers) as response:
            return _read(response.status, await response.read(), written_in)

    # Users and groups.

    async def register(self, name: str) -> None:
        client = await Client.register(self.running.http, self.running.url, name)
        self._names[client.user_id] = name
        self.sessions.append(client)
        for group in self.groups[-3:]:
            if self.chance.random() < 0.8:
                await self._try(client.join(group))

    async def create_group(self, expiry: int) -> None:
        self._count += 1
        creator, *others = await self._living()
        group = await creator.create_group(f"group_{self._count}")
        self.groups = [*self.groups[-3:], group]
        await self._try(creator.set_expiry(group, expiry))
        for other in others:
            await self._try(other.join(group))

    async def _living(self) -> list[Client]:
        """A session for each living account, the first of them first; some log in again."""
        async with StoreAlone(self.running.app) as alone:
            alive = {client.user_id: client for client in self.sessions if alone.session(client.token)}
            accounts = {str(UUID(bytes=row[0])) for row in alone.query("SELECT user_id FROM users WHERE NOT disabled")}
        for user_id in accounts - alive.keys():
            alive[user_id] = await self._login(user_id)
        return [alive[user_id] for user_id in self._names if user_id in accounts]

    async def _login(self, user_id: str) -> Client:
        client = Client(self.running.http, self.running.url, user_id=user_id)
        await client.login(self._names[user_id])
        self.sessions = [*self.sessions[-9:], client]
        return client

    async def _somebody(self) -> Client:
        return self.chance.choice(await self._living())

    def _group(self) -> str:
        return self.chance.choice(self.groups)

    async def _try(self, doing: Awaitable[Any]) -> None:
        """Do what may be refused: the store decides, and both are compared later."""
        with suppress(RefusedError):
            await doing


def _read(status: int, body: bytes, written_in: Format) -> Told:
    """Return what an answer says."""
    if written_in is Format.JSON:
        values = orjson.loads(body)
        if status != 200:
            return status, values["error_code"]
        return [
            (
                each["sequence_num"],
                each["sender_id"],
                base64.b64decode(each["mls_message"]),
                each["created_at"],
                each["expires_at"],
                each["self_destruct_seconds"],
                each["redacted"],
            )
            for each in values["messages"]
        ]
    if status != 200:
        return status, conclave_pb2.ErrorResponse.FromString(body).error_code
    return [
        (
            *(each.sequence_num, str(UUID(bytes=each.sender_id)), each.mls_message, each.created_at, each.expires_at),
            *(each.self_destruct_seconds, each.redacted),
        )
        for each in conclave_pb2.GetMessagesResponse.FromString(body).messages
    ]


async def outcome(doing: Awaitable[T]) -> T | tuple[int, int]:
    """Return what a request returns, or how it is refused: status and code."""
    try:
        return await doing
    except RefusedError as refused:
        return refused.status, refused.code
