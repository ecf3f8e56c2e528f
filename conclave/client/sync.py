"""Keeps a local history up to date with the server, and reports news to the application.

It subscribes to events first, then fetches everything after the end of the history; later events trigger fetches. A
page and the history's position are stored in one transaction, so each message is stored exactly once, in order.
"""

import asyncio
import contextlib
import random
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Self
from uuid import UUID

from conclave.client import events as n
from conclave.client.api import Client
from conclave.client.codec import Codec
from conclave.client.errors import (
    AuthError,
    ClientError,
    DiskError,
    KeyInDoubtError,
    NotReadyError,
    RefusedError,
    is_final,
    is_not_member,
)
from conclave.client.history.erasing import ErasedMessage
from conclave.client.history.store import History
from conclave.client.key_package_stock import KeyPackageStock
from conclave.client.membership import MembershipManager
from conclave.client.mirror import Mirror
from conclave.client.resending import Resender, take_back
from conclave.client.retry import Backoff
from conclave.wire import events as protocol

DEFAULT_BACKOFF = Backoff()

STABLE_SECONDS = 5.0
"""Minimum duration of a stream after whose end the client reconnects at once."""

MAX_UNSTABLE_FAILURES = 4
"""After shorter streams the delay grows up to that of 4 failures, since each connection reads the whole state."""

ENFORCE_INTERVAL = 0.5
"""Seconds between two checks for expired messages."""

CLOCK_TOLERANCE = 60
"""A greater difference, in seconds, between this machine's clock and the server's is reported."""

READY_TIMEOUT, READY_POLL_INTERVAL = 30.0, 0.1
"""How long ``Sync.send`` waits for the keys of a group, and how often it checks, in seconds."""


class Sync:
    """Synchronizes one user. Use it within ``async with``, and iterate over it until the session is over.

    The history is updated only while it is iterated; expiry is always enforced.
    """

    def __init__(
        self,
        client: Client,
        history: History,
        codec: Codec,
        *,
        backoff: Backoff = DEFAULT_BACKOFF,
        chance: Callable[[], float] = random.random,
        accept_changed_keys: bool = False,
    ) -> None:
        """``client``: a logged-in client. ``backoff``: the delays before reconnecting.

        ``accept_changed_keys``: send to groups with a member whose key has changed, possibly to an attacker. Otherwise
        ``Codec.verify`` or ``Codec.accept`` has to be called first.
        """
        self.client = client
        self.history = history
        self.codec = codec
        codec.use_time(history.confirmed_now)
        self.membership = MembershipManager(client, codec, self.request_fetch)
        self._backoff = backoff
        self._chance = chance
        self._takes_changed_keys = accept_changed_keys
        self._key_package_stock = KeyPackageStock(client, codec)
        self._mirror = Mirror(client, history, codec)
        self._resender = Resender(client, history, codec, self._has_changed_key, self.request_fetch, backoff, chance)
        self._to_fetch: set[UUID] = set()
        self._wake = asyncio.Event()
        self._maintenance_lock = asyncio.Lock()
        self._enforce_task: asyncio.Task[None] | None = None
        self._has_reported_clock = False
        self._news: AsyncIterator[n.News] | None = None
        self._disk_error: DiskError | None = None

    async def __aenter__(self) -> Self:
        session = self.client.session
        self.history.claim(f"{session.url} {session.user_id}")
        self._mirror.forget_erased()
        self.client.transport.on_time = self.history.record_server_time
        self._enforce_task = asyncio.create_task(self._enforce())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.client.transport.on_time = lambda _: None
        if self._enforce_task:
            self._enforce_task.cancel()
            await asyncio.gather(self._enforce_task, return_exceptions=True)
        if self._news:
            await self._news.aclose()  # type: ignore[attr-defined]  # it is a generator
        await self._mirror.close()

    def __aiter__(self) -> AsyncIterator[n.News]:
        self._news = self._run()
        return self._news

    async def send(
        self, group_id: UUID, text: str, *, self_destruct_seconds: int = 0, send_id: UUID | None = None
    ) -> int:
        """Send a text; return its number. It also arrives as a MessageArrived, in order. Raises ClientError.

        Raises KeyInDoubtError if a member's key has changed, ReplacedError if another device has replaced this one.
        ``send_id``: see ``Client.send``. After a NoAnswerError, send again with the same id.
        """
        payload = await self._encode_when_ready(group_id, text, send_id)
        try:
            number = await self.client.send(
                group_id, payload, self_destruct_seconds=self_destruct_seconds, send_id=send_id
            )
        except RefusedError as error:
            if is_final(error):  # otherwise the server may have stored it
                self.codec.discard_payload(group_id, payload)
            if is_not_member(error):
                self.request_fetch(group_id)  # left from another device, for which the server sends no event
            raise
        if not self.history.not_fetched(group_id, [number]):
            self.codec.discard_payload(group_id, payload, other_attempt_stored=True)
        self.request_fetch(group_id)
        return number

    async def take_back(self, group_id: UUID, number: int) -> None:
        """Take a message back: see ``Client.take_back``. It is also erased from the history: a MessagesGone follows."""
        await take_back(self.client, self.codec, group_id, number)
        self._mirror.forget_taken_back(group_id, [number])
        self._wake.set()

    async def _encode_when_ready(self, group_id: UUID, text: str, send_id: UUID | None) -> bytes:
        """Encode a text once the group has keys. Raises NotReadyError after READY_TIMEOUT."""
        deadline = asyncio.get_running_loop().time() + READY_TIMEOUT
        while True:
            if self._has_changed_key(group_id):
                raise KeyInDoubtError("a member's key has changed: verify or accept it before you send")
            try:
                return self.codec.encode(group_id, text, send_id=send_id)
            except NotReadyError:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            # If the caller is handling news, the main loop is suspended: run the maintenance from here.
            await self._run_maintenance()
            self._wake.set()
            await asyncio.sleep(READY_POLL_INTERVAL)

    def _has_changed_key(self, group_id: UUID) -> bool:
        return not self._takes_changed_keys and bool(self.codec.view(group_id).changed)

    async def reset(self) -> None:
        """Replace all keys, after a device or keys were lost. Raises ClientError.

        Other members see that the user's key has changed, and should verify it. Messages that were not fetched before
        cannot be decrypted.
        """
        await self.client.reset_account()
        self.codec.reset_keys()
        self._key_package_stock.reset()
        self._wake.set()

    async def leave(self, group_id: UUID) -> None:
        """Leave a group, and erase its local messages: a GroupGone follows. Raises ClientError.

        GroupGone also follows after a NoAnswerError if the server has executed the request.
        """
        try:
            await self.membership.leave(group_id)
        except BaseException:
            self.request_fetch(group_id)  # the answer may be lost, or the call cancelled
            raise
        self._mirror.handle_leave(group_id)
        self._wake.set()

    def request_fetch(self, group_id: UUID) -> None:
        """Fetch a group without an event. The server sends none for messages from the user's other devices."""
        self._to_fetch.add(group_id)
        self._wake.set()

    def read(self, group_id: UUID, up_to: int) -> None:
        """Record that the user has seen everything up to a number: the number of the last message shown, not fetched.

        This starts the timers of self-destructing messages: locally at once, on the server with the next read receipt.
        """
        self.history.read(group_id, up_to)
        self._wake.set()

    def mark_seen(self, group_id: UUID, numbers: Iterable[int] | None = None) -> None:
        """Record messages that were shown on the user's screen, in any order.

        Everything before the first unseen message of another user counts as read, as after ``read``. ``numbers``: None
        marks all messages as seen except self-destructing ones.
        """
        self.history.mark_seen(group_id, self.client.session.user_id, numbers)
        self._wake.set()

    async def _run(self) -> AsyncIterator[n.News]:
        failures, clock = 0, asyncio.get_running_loop().time
        while True:
            caught_up_at = None
            try:
                self._raise_fault()
                async with self.client.listen() as stream:
                    yield n.Online()
                    if abs(ahead := self.history.machine_ahead) > CLOCK_TOLERANCE and not self._has_reported_clock:
                        self._has_reported_clock = True
                        yield n.ClockDiffers(ahead)
                    await self._key_package_stock.refill()
                    async for each in self._mirror.catch_up():
                        yield each
                    caught_up_at = clock()
                    async for each in self._follow(stream):
                        yield each
                reason, is_disk = "the server has ended the stream", False
            except ClientError as error:
                if not _is_retryable(error):
                    raise
                reason, is_disk = str(error), isinstance(error, DiskError)
            if caught_up_at is not None:
                failures = 0 if clock() - caught_up_at >= STABLE_SECONDS else min(failures, MAX_UNSTABLE_FAILURES - 1)
            failures += 1
            wait = self._backoff.delay(failures, self._chance())
            yield n.Offline(reason, wait, is_disk=is_disk)
            async for each in self._wait_for_retry(wait):
                yield each

    async def _follow(self, stream: AsyncIterator[protocol.Event | n.Lagged]) -> AsyncIterator[n.News]:
        """Handle the events of a stream until it ends. Raises ClientError."""
        event_task: asyncio.Task[protocol.Event | n.Lagged | None] | None = None
        try:
            while True:
                async for each in self._run_pending_work():
                    yield each
                event_task = event_task or asyncio.create_task(_next(stream))
                await self._wait_for(event_task)
                if event_task.done():
                    event, event_task = event_task.result(), None
                    if event is None:
                        return
                    async for each in self._handle(event):
                        yield each
        finally:
            if event_task:
                event_task.cancel()
                await asyncio.gather(event_task, return_exceptions=True)

    async def _wait_for(self, task: "asyncio.Task[protocol.Event | n.Lagged | None]") -> None:
        """Wait for an event or for ``_wake``."""
        wake_task = asyncio.create_task(self._wake.wait())
        try:
            await asyncio.wait({task, wake_task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            wake_task.cancel()
            await asyncio.gather(wake_task, return_exceptions=True)

    async def _wait_for_retry(self, seconds: float) -> AsyncIterator[n.News]:
        """Wait before reconnecting, and report messages erased during the wait."""
        deadline = asyncio.get_running_loop().time() + seconds
        while (remaining := deadline - asyncio.get_running_loop().time()) > 0:
            for news in self._take_news():
                yield news
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(remaining):  # wait_for may lose a cancellation
                    await self._wake.wait()

    async def _run_pending_work(self) -> AsyncIterator[n.News]:
        """Do the work that needs no event: fetches, read receipts, keys. Report erased messages."""
        self._wake.clear()
        self._raise_fault()
        for news in self._take_news():
            yield news
        while self._to_fetch:
            # Removed first: a message sent during the fetch may be missing in it, and requests another fetch.
            group_id = self._to_fetch.pop()
            async for each in self._mirror.fetch(group_id):
                yield each
        await self._mirror.report_read()
        await self._key_package_stock.refill()
        await self._maintain_keys()
        for news in self.codec.take_news():
            yield news
        if self.history.needs_time:
            await self.client.me()  # any answer has the time
        if has_reappeared := self.history.take_reappeared():
            yield n.TimeCorrected()
        if has_reappeared or self._mirror.needs_comparison:
            async for each in self._mirror.catch_up():
                yield each

    async def _maintain_keys(self) -> None:
        """Run the codec's maintenance, and resend texts."""
        await self._run_maintenance()
        await self._resender.send()

    async def _run_maintenance(self) -> None:
        """Run the codec's maintenance if it is due and not running already."""
        if self.codec.is_due and not self._maintenance_lock.locked():
            async with self._maintenance_lock:
                for group_id in await self._mirror.run_maintenance():
                    self.request_fetch(group_id)

    def _apply(self, event: protocol.Event | n.Lagged) -> AsyncIterator[n.News]:
        """Apply an event, before it is reported; return the news that result."""
        mirror = self._mirror
        match event:
            case n.Lagged():
                return mirror.catch_up()
            case protocol.NewMessage():
                return self._fetch_new_message(event)
            case protocol.GroupDeleted():
                return _iterate(mirror.forget_group(event.group_id))
            case protocol.MessageRedacted():
                mirror.forget_taken_back(event.group_id, [event.sequence_num])
            case protocol.WelcomeWaits():
                return self._handle_welcome(event.group_id)
            case protocol.InviteReceived():
                self._key_package_stock.record_taken()
                mirror.record_invite(event)
            case protocol.MemberRemoved():
                return self._handle_removal(event)
            case protocol.GroupUpdate(update_type="commit") | protocol.IdentityReset():
                self.codec.schedule_check(event.group_id)
                return mirror.fetch(event.group_id)  # it may include a commit
            case protocol.GroupUpdate():
                self.codec.schedule_check(event.group_id)
                return mirror.refresh(event.group_id)
        return _iterate([])

    async def _handle(self, event: protocol.Event | n.Lagged) -> AsyncIterator[n.News]:
        """Apply an event, then report it unless the news of its effects is equivalent, or it is outdated."""
        is_redundant = isinstance(event, protocol.InviteReceived) and self._mirror.has_reported(event)
        async for each in self._apply(event):
            yield each
        if isinstance(event, protocol.MemberRemoved) and self._is_own(event):
            is_redundant = event.group_id in self.history.groups()  # the user has joined again
        if not is_redundant and not isinstance(event, (protocol.NewMessage, protocol.MessageRedacted)):
            yield event

    async def _fetch_new_message(self, event: protocol.NewMessage) -> AsyncIterator[n.News]:
        if event.sequence_num > self.history.fetched_up_to(event.group_id):
            async for each in self._mirror.fetch(event.group_id):
                yield each

    async def _handle_removal(self, event: protocol.MemberRemoved) -> AsyncIterator[n.News]:
        """Handle a removed member: the account may be deleted, and a commit may follow.

        The removed user may have joined again since; then the local messages are kept.
        """
        self.codec.schedule_check(event.group_id)
        if self._is_own(event):
            async for each in self._mirror.refresh(event.group_id):
                yield each
            return
        await self._mirror.forget_deleted(event.group_id, [event.removed_user_id], {})
        async for each in self._mirror.fetch(event.group_id):
            yield each

    def _is_own(self, event: protocol.MemberRemoved) -> bool:
        return event.removed_user_id == self.client.session.user_id

    async def _handle_welcome(self, group_id: UUID) -> AsyncIterator[n.News]:
        self._key_package_stock.record_taken()
        await self._mirror.take_welcomes()
        async for each in self._mirror.refresh(group_id):
            yield each

    def _take_news(self) -> list[n.News]:
        """Return news of erased messages. Raises the error of the enforcing task if it has failed."""
        if self._enforce_task and self._enforce_task.done():
            self._enforce_task.result()
        return self._mirror.take_news()

    async def _enforce(self) -> None:
        """Enforce expiry, with or without a connection."""
        try:
            while True:
                erased = list[ErasedMessage]()
                try:
                    erased = self.history.enforce()
                    self._mirror.record_erased(erased)
                    self._disk_error = None
                except DiskError as error:
                    self._disk_error = error
                is_due = self.codec.is_due or self._resender.is_due
                if erased or self.history.has_reappeared or self.history.needs_time or is_due or self._disk_error:
                    self._wake.set()
                await asyncio.sleep(ENFORCE_INTERVAL)
        except sqlite3.Error:
            self._wake.set()
            raise

    def _raise_fault(self) -> None:
        """Raise DiskError if expired messages could not be erased."""
        if self._disk_error:
            raise self._disk_error


def _is_retryable(error: ClientError) -> bool:
    """Return whether to reconnect after an error. Only errors of the session end the synchronization."""
    return not isinstance(error, AuthError)


async def _next(stream: AsyncIterator[protocol.Event | n.Lagged]) -> protocol.Event | n.Lagged | None:
    return await anext(stream, None)


async def _iterate(news: Iterable[n.News]) -> AsyncIterator[n.News]:
    for each in news:
        yield each
