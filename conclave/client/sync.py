"""Keeps a local history in step with the server, and tells an application what is new.

It subscribes first, then fetches everything after what the history has, and from then on takes events as hints to
fetch. What is lost on the way is fetched later; what was fetched is stored in one transaction with how far the
history is. So each message is there exactly once, in order.
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
"""A stream that has lasted for 5 seconds was a connection: after its end it is tried again at once."""

MAX_UNSTABLE_FAILURES = 4
"""After shorter ones it is waited longer each time, up to what follows on 4 failures: all is read again each time."""

ENFORCE_INTERVAL = 0.5
"""What may not be in the history any more goes within half a second."""

CLOCK_TOLERANCE = 60
"""A clock of this machine that differs from the server's by more than a minute is told."""

READY_TIMEOUT, READY_POLL_INTERVAL = 30.0, 0.1
"""A text waits up to 30 seconds for the keys of its group."""


class Sync:
    """One user's conversation. Use it within ``async with``, and iterate over it: it goes on until the session is over.

    The history is kept in order as long as it is iterated; expiry is enforced all the time.
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
        """``client``: logged in. ``backoff``: how long to wait before the connection is tried again.

        ``takes_changed_keys``: nothing is sent to a group in which a member's key has changed, until that is judged by
        ``Codec.verify`` or ``Codec.accept``; for an unattended bot: send all the same, also to an attacker.
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
        self._enforcing: asyncio.Task[None] | None = None
        self._has_reported_clock = False
        self._news: AsyncIterator[n.News] | None = None
        self._fault: DiskError | None = None

    async def __aenter__(self) -> Self:
        session = self.client.session
        self.history.claim(f"{session.url} {session.user_id}")
        self._mirror.forget_erased()
        self.client.transport.on_time = self.history.record_server_time
        self._enforcing = asyncio.create_task(self._enforce())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.client.transport.on_time = lambda _: None
        if self._enforcing:
            self._enforcing.cancel()
            await asyncio.gather(self._enforcing, return_exceptions=True)
        if self._news:
            await self._news.aclose()  # type: ignore[attr-defined]  # it is a generator
        await self._mirror.close()

    def __aiter__(self) -> AsyncIterator[n.News]:
        self._news = self._run()
        return self._news

    async def send(
        self, group_id: UUID, text: str, *, self_destruct_seconds: int = 0, send_id: UUID | None = None
    ) -> int:
        """Send a text; return its number. It comes as a MessageArrived too, in its order. Raises ClientError.

        KeyInDoubtError: a member's key has changed. ReplacedError: another device of the account is in.
        ``send_id``: see ``Client.send``. After a NoAnswerError, send again with the same one.
        """
        payload = await self._encode_when_ready(group_id, text, send_id)
        try:
            number = await self.client.send(
                group_id, payload, self_destruct_seconds=self_destruct_seconds, send_id=send_id
            )
        except RefusedError as error:
            if is_final(error):  # otherwise it may be there all the same, and comes back
                self.codec.discard_payload(group_id, payload)
            if is_not_member(error):
                self.request_fetch(group_id)  # left from another device, which no event tells
            raise
        if not self.history.not_fetched(group_id, [number]):
            self.codec.discard_payload(group_id, payload, other_attempt_stored=True)
        self.request_fetch(group_id)
        return number

    async def take_back(self, group_id: UUID, number: int) -> None:
        """Take a message back: see ``Client.take_back``. It goes from here too: a MessagesGone follows."""
        await take_back(self.client, self.codec, group_id, number)
        self._mirror.forget_taken_back(group_id, [number])
        self._wake.set()

    async def _encode_when_ready(self, group_id: UUID, text: str, send_id: UUID | None) -> bytes:
        """Encode a text as soon as the keys are there. Raises NotReadyError if they are not for long."""
        deadline = asyncio.get_running_loop().time() + READY_TIMEOUT
        while True:
            if self._has_changed_key(group_id):
                raise KeyInDoubtError("a member's key has changed: nothing is sent before you have judged it")
            try:
                return self.codec.encode(group_id, text, send_id=send_id)
            except NotReadyError:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            # While the caller handles news, nothing else goes on: what needs no fetching is done here.
            await self._run_maintenance()
            self._wake.set()
            await asyncio.sleep(READY_POLL_INTERVAL)

    def _has_changed_key(self, group_id: UUID) -> bool:
        return not self._takes_changed_keys and bool(self.codec.view(group_id).changed)

    async def reset(self) -> None:
        """Begin with new keys: for a device or keys that are lost. Raises ClientError.

        Others are told that the user's key has changed, and have to compare it anew. What was sent and not fetched
        before cannot be read.
        """
        await self.client.reset_account()
        self.codec.reset_keys()
        self._key_package_stock.reset()
        self._wake.set()

    async def leave(self, group_id: UUID) -> None:
        """Leave a group, and erase what is here of it: a GroupGone follows. Raises ClientError.

        It follows after a NoAnswerError too, if the server has done it, and if the group was left before.
        """
        try:
            await self.membership.leave(group_id)
        except BaseException:
            self.request_fetch(group_id)  # the answer may be lost, or not waited for any more
            raise
        self._mirror.handle_leave(group_id)
        self._wake.set()

    def request_fetch(self, group_id: UUID) -> None:
        """Have a group fetched without an event: none tells of what the user has sent from another device."""
        self._to_fetch.add(group_id)
        self._wake.set()

    def read(self, group_id: UUID, up_to: int) -> None:
        """Note that the user has really seen everything up to a number: the last that was shown, not that was fetched.

        Timers of self-destructing messages run from now on, here at once, at the server as soon as it hears of it.
        """
        self.history.read(group_id, up_to)
        self._wake.set()

    def mark_seen(self, group_id: UUID, numbers: Iterable[int] | None = None) -> None:
        """Note messages that were on the user's screen, in any order: for a client that shows them one by one.

        Read, as after ``read``, is everything up to the first one of another user's that was not seen. ``numbers``:
        None: the user wants to see nothing more of what is unread; self-destructing messages stay so until they are
        seen.
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
                    if abs(off := self.history.machine_ahead) > CLOCK_TOLERANCE and not self._has_reported_clock:
                        self._has_reported_clock = True
                        yield n.ClockDiffers(off)
                    await self._key_package_stock.refill()
                    async for each in self._mirror.catch_up():
                        yield each
                    caught_up_at = clock()
                    async for each in self._follow(stream):
                        yield each
                why, is_disk = "the server has ended the stream", False
            except ClientError as error:
                if not _is_retryable(error):
                    raise
                why, is_disk = str(error), isinstance(error, DiskError)
            if caught_up_at is not None:
                failures = 0 if clock() - caught_up_at >= STABLE_SECONDS else min(failures, MAX_UNSTABLE_FAILURES - 1)
            failures += 1
            wait = self._backoff.delay(failures, self._chance())
            yield n.Offline(why, wait, is_disk=is_disk)
            async for each in self._wait_for_retry(wait):
                yield each

    async def _follow(self, stream: AsyncIterator[protocol.Event | n.Lagged]) -> AsyncIterator[n.News]:
        """Go by the events of a stream until it ends. Raises ClientError."""
        reading: asyncio.Task[protocol.Event | n.Lagged | None] | None = None
        try:
            while True:
                async for each in self._run_pending_work():
                    yield each
                reading = reading or asyncio.create_task(_next(stream))
                await self._wait_for(reading)
                if reading.done():
                    event, reading = reading.result(), None
                    if event is None:
                        return
                    async for each in self._handle(event):
                        yield each
        finally:
            if reading:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def _wait_for(self, task: "asyncio.Task[protocol.Event | n.Lagged | None]") -> None:
        """Wait until there is an event, or something to do without one."""
        waking = asyncio.create_task(self._wake.wait())
        try:
            await asyncio.wait({task, waking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()
            await asyncio.gather(waking, return_exceptions=True)

    async def _wait_for_retry(self, seconds: float) -> AsyncIterator[n.News]:
        """Wait for the next try; what goes meanwhile is told."""
        deadline = asyncio.get_running_loop().time() + seconds
        while (left := deadline - asyncio.get_running_loop().time()) > 0:
            for gone in self._take_news():
                yield gone
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):  # wait_for loses a cancellation that comes with what it waits for
                    await self._wake.wait()

    async def _run_pending_work(self) -> AsyncIterator[n.News]:
        """Do what does not wait for an event: fetch what was sent, tell what was read and what is gone."""
        self._wake.clear()
        self._raise_fault()
        for gone in self._take_news():
            yield gone
        while self._to_fetch:
            # Taken off first: what is sent while the last page is on its way may not be on it, and is asked for again.
            group_id = self._to_fetch.pop()
            async for each in self._mirror.fetch(group_id):
                yield each
        await self._mirror.report_read()
        await self._key_package_stock.refill()
        await self._maintain_keys()
        for told in self.codec.take_news():
            yield told
        if self.history.needs_time:
            await self.client.me()  # any answer has the time
        if has_reappeared := self.history.take_reappeared():
            yield n.TimeCorrected()
        if has_reappeared or self._mirror.needs_comparison:
            async for each in self._mirror.catch_up():
                yield each

    async def _maintain_keys(self) -> None:
        """Do what goes on by itself for the encryption."""
        await self._run_maintenance()
        await self._resender.send()

    async def _run_maintenance(self) -> None:
        """Have the codec look at the groups that are due, unless it does so already."""
        if self.codec.is_due and not self._maintenance_lock.locked():
            async with self._maintenance_lock:
                for group_id in await self._mirror.run_maintenance():
                    self.request_fetch(group_id)

    def _apply(self, event: protocol.Event | n.Lagged) -> AsyncIterator[n.News]:
        """Return what an event leads to, before it is told."""
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
                return mirror.fetch(event.group_id)  # a commit may have come with it
            case protocol.GroupUpdate():
                self.codec.schedule_check(event.group_id)
                return mirror.refresh(event.group_id)
        return _iterate([])

    async def _handle(self, event: protocol.Event | n.Lagged) -> AsyncIterator[n.News]:
        """Do what an event hints at, then tell it, unless all was told with that, or before it, or it is over."""
        is_told = isinstance(event, protocol.InviteReceived) and self._mirror.has_reported(event)
        async for each in self._apply(event):
            yield each
        if isinstance(event, protocol.MemberRemoved) and self._is_own(event):
            is_told = event.group_id in self.history.groups()  # the user is back
        if not is_told and not isinstance(event, (protocol.NewMessage, protocol.MessageRedacted)):
            yield event

    async def _fetch_new_message(self, event: protocol.NewMessage) -> AsyncIterator[n.News]:
        if event.sequence_num > self.history.fetched_up_to(event.group_id):
            async for each in self._mirror.fetch(event.group_id):
                yield each

    async def _handle_removal(self, event: protocol.MemberRemoved) -> AsyncIterator[n.News]:
        """A member is gone: another one perhaps with the account, and perhaps with a commit.

        A user who was removed may be back by now. What is here then stays, as it does where no event told of it.
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
        """Return what is gone and was not told. Raises what enforcing has raised: then the disk fails."""
        if self._enforcing and self._enforcing.done():
            self._enforcing.result()
        return self._mirror.take_news()

    async def _enforce(self) -> None:
        """Enforce expiry, whether there is a connection or not."""
        try:
            while True:
                erased = list[ErasedMessage]()
                try:
                    erased = self.history.enforce()
                    self._mirror.record_erased(erased)
                    self._fault = None
                except DiskError as error:
                    self._fault = error
                is_due = self.codec.is_due or self._resender.is_due
                if erased or self.history.has_reappeared or self.history.needs_time or is_due or self._fault:
                    self._wake.set()
                await asyncio.sleep(ENFORCE_INTERVAL)
        except sqlite3.Error:
            self._wake.set()
            raise

    def _raise_fault(self) -> None:
        """Raise DiskError if what is due could not be erased."""
        if self._fault:
            raise self._fault


def _is_retryable(error: ClientError) -> bool:
    """Tell whether to try again later. Only what is wrong with the session ends the conversation."""
    return not isinstance(error, AuthError)


async def _next(stream: AsyncIterator[protocol.Event | n.Lagged]) -> protocol.Event | n.Lagged | None:
    return await anext(stream, None)


async def _iterate(some: Iterable[n.News]) -> AsyncIterator[n.News]:
    for each in some:
        yield each
