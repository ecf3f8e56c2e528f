"""Updates a local history from the server: fetches missed messages, and erases those that no longer exist."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from conclave.client import events as n
from conclave.client.api import Client
from conclave.client.codec import Codec
from conclave.client.errors import AnswerError, DiskError, GroupError, NoAnswerError, ResourceError, is_not_member
from conclave.client.history.erasing import ErasedMessage
from conclave.client.history.pages import IncomingMessage
from conclave.client.history.store import History
from conclave.wire import events as protocol
from conclave.wire.results import FetchedMessage

PAGE_SIZE = 200
"""Messages per page; halved after each request without an answer, which is likely on a slow link."""

PAGES_BEFORE_GROWTH = 8
"""Number of pages after which a reduced page size is doubled."""

CONFIRM_SECONDS = 5.0
"""How long ``Mirror.close`` waits for requests that confirm a page."""


class _Page(NamedTuple):
    """Messages, and whether the server's clock was in doubt."""

    messages: tuple[FetchedMessage, ...]
    in_doubt: bool


class Mirror:
    """Keeps a history equal to the server's state. Methods raise ClientError, and may be called again after it."""

    def __init__(self, client: Client, history: History, codec: Codec) -> None:
        self._client = client
        self._history = history
        self._codec = codec
        self._reported_invites: set[UUID] = set()
        self._inviters: dict[UUID, UUID] = {}
        self._caught_up: set[UUID] = set()
        self._last_numbers: dict[UUID, int] = {}
        self._pending_news: list[n.MessagesGone | n.GroupGone] = []
        self._pending_erasures: dict[UUID, set[int]] = {}
        self._has_skipped = False
        self._page_size, self._pages_arrived = PAGE_SIZE, 0
        self._page_requests: set[asyncio.Task[_Page | None]] = set()
        self._forgotten_count = 0

    async def catch_up(self) -> AsyncIterator[n.News]:
        """Read the whole state, and fetch all missed messages."""
        self._has_skipped = False
        # Read before the request: a group that is created during the request is missing in the answer.
        local_groups = self._history.groups().keys() | self._codec.groups()
        server_groups = {each.group_id: each for each in await self._client.groups()}
        for group_id in local_groups - server_groups.keys():
            for news in self.forget_group(group_id):
                yield news
        await self.take_welcomes()
        deleted: dict[UUID, bool] = {}
        for group_id in sorted(server_groups):
            members = {each.user_id for each in server_groups[group_id].members}
            await self.forget_deleted(group_id, self._history.senders(group_id) - members, deleted)
            async for each in self.refresh(group_id):
                yield each
            self._codec.schedule_check(group_id)
        await self.report_read()
        for invite in await self._client.invites():
            if invite.invite_id not in self._reported_invites:
                ids = invite.invite_id, invite.group_id
                yield self.record_invite(
                    protocol.InviteReceived(*ids, invite.group_name, invite.group_alias, invite.inviter_id)
                )

    def has_reported(self, invite: protocol.InviteReceived) -> bool:
        """Return whether an invite was already reported to the application."""
        return invite.invite_id in self._reported_invites

    def record_invite(self, invite: protocol.InviteReceived) -> protocol.InviteReceived:
        """Record that an invite is reported to the application; return it."""
        self._reported_invites.add(invite.invite_id)
        self._inviters[invite.group_id] = invite.inviter_id
        return invite

    async def refresh(self, group_id: UUID) -> AsyncIterator[n.News]:
        """Read a group's policy, and fetch new messages."""
        try:
            async for each in self._read_policy(group_id):
                yield each
            await self._compare_self_destructing(group_id)
        except GroupError as error:
            if not is_not_member(error):
                raise
            for each in self.forget_group(group_id):
                yield each
            return
        async for each in self.fetch(group_id):
            yield each

    async def _read_policy(self, group_id: UUID) -> AsyncIterator[n.News]:
        found = await self._client.retention(group_id)
        self._last_numbers[group_id] = found.last_sequence_num
        if self._history.set_expiry(group_id, found.effective_expiry_seconds):
            yield n.PolicyChanged(group_id, found.effective_expiry_seconds)
        self.record_erased(self._history.forget_before(group_id, found.hidden_before))
        self.forget_taken_back(group_id, found.taken_back)
        if found.more:
            await self._read_all_taken_back(group_id)
        self.record_erased(self._history.enforce())
        for news in self.take_news():
            yield news

    async def _read_all_taken_back(self, group_id: UUID) -> None:
        """Erase local messages that were taken back: the first answer lists only the last ones."""
        numbers = [
            *self._codec.kept_numbers(group_id),
            *(each.sequence_num for each in self._history.messages(group_id, limit=1)),
        ]
        after, more = max(0, min(numbers, default=0) - 1), bool(numbers)
        while more:
            found = await self._client.retention(group_id, taken_back_after=after)
            self.forget_taken_back(group_id, found.taken_back)
            last = max(found.taken_back, default=0)
            more, after = found.more and last > after, last  # stops if the list has no greater numbers

    async def _compare_self_destructing(self, group_id: UUID) -> None:
        """Erase self-destructing messages that the server no longer shows: another device may have read them.

        Skipped while the server's clock is in doubt: messages that it hides may reappear.
        """
        numbers = self._history.self_destructing(group_id)
        if not numbers:
            return
        after, visible_numbers, in_doubt = numbers[0] - 1, set[int](), False
        while after < numbers[-1]:
            page = await self._fetch(group_id, after, include_redacted=True)
            in_doubt |= page.in_doubt
            if not page.messages:
                break
            visible_numbers |= {each.sequence_num for each in page.messages if not each.redacted}
            after = page.messages[-1].sequence_num
        if self._history.is_time_known and not in_doubt:
            self.record_erased(
                self._history.forget(group_id, [each for each in numbers if each not in visible_numbers])
            )
        else:
            self._has_skipped = True

    async def forget_deleted(self, group_id: UUID, user_ids: Iterable[UUID], deleted: dict[UUID, bool]) -> None:
        """Erase the messages of all ``user_ids`` whose accounts are deleted.

        ``deleted``: a cache of whether each account is deleted; new results are added.
        """
        for user_id in user_ids:
            if user_id not in deleted:
                deleted[user_id] = await self._is_deleted(user_id)
            if deleted[user_id]:
                self.record_erased(self._history.forget_sender(group_id, user_id))

    async def _is_deleted(self, user_id: UUID) -> bool:
        try:
            await self._client.user_by_id(user_id)
        except ResourceError:
            return True
        return False

    async def fetch(self, group_id: UUID) -> AsyncIterator[n.News]:
        """Fetch all messages after the end of the history, store them, and report them.

        The last page is empty: it marks the end, and confirms the page before. The first fetch reports nothing before
        it ends, since a codec encrypts only after it has read everything. Pages that may lack messages because the
        server's clock was in doubt are fetched again first.

        A page is confirmed as soon as it is stored, by requesting the next one: the application may take long to handle
        the messages, or may exit.
        """
        async for each in self._prepare(group_id):
            yield each
        self._codec.record_stored(group_id, self._history.fetched_up_to(group_id))
        is_known = self._history.is_time_known
        page = await self._page(group_id, after := self._after(group_id, again=is_known))
        while page is not None:
            is_known = is_known and not page.in_doubt
            async for each in self._prepare_page(group_id, page.messages):
                yield each
            is_last = not page.messages and after >= self._history.fetched_up_to(group_id)
            if not is_last:
                self._store(group_id, after, page)
            self.record_erased(self._history.enforce())
            is_incomplete = page.in_doubt or self._history.refetch_after(group_id) is not None
            after, forgotten = self._after(group_id, again=is_known), self._forgotten_count
            next_page = None if is_last else self._request_page(group_id, after)
            async for each in self._report(group_id, is_last=is_last, has_all=not is_incomplete):
                yield each
            if next_page is None:
                self._has_skipped |= is_incomplete
                return
            page = await asyncio.shield(next_page)
            if self._forgotten_count != forgotten:  # a group was left during the request: the page must not be decoded
                page = await self._page(group_id, after := self._after(group_id, again=is_known))
        for each in self.forget_group(group_id):
            yield each

    def _after(self, group_id: UUID, *, again: bool) -> int:
        """Return the number after which to fetch next. ``again``: repeat incomplete pages first."""
        number = self._history.refetch_after(group_id) if again else None
        return self._history.fetched_up_to(group_id) if number is None else number

    def _store(self, group_id: UUID, after: int, page: _Page) -> None:
        """Store the new messages of a page. An empty page means that nothing follows ``after``."""
        numbers = [each.sequence_num for each in page.messages]
        up_to = numbers[-1] if numbers else self._history.fetched_up_to(group_id)
        new_numbers = self._history.not_fetched(group_id, numbers)
        incoming = self._decode(group_id, [each for each in page.messages if each.sequence_num in new_numbers])
        self._history.store(group_id, after, up_to, incoming, numbers=numbers, in_doubt=page.in_doubt)
        self._codec.record_stored(group_id, up_to)

    def _request_page(self, group_id: UUID, after: int) -> "asyncio.Task[_Page | None]":
        """Start a task that fetches the next page. It continues if the caller is cancelled."""
        task = asyncio.create_task(self._page(group_id, after))
        self._page_requests.add(task)

        def on_done(task: "asyncio.Task[_Page | None]") -> None:
            self._page_requests.discard(task)
            if not task.cancelled():
                task.exception()  # marks the exception as retrieved

        task.add_done_callback(on_done)
        return task

    async def close(self) -> None:
        """Wait up to CONFIRM_SECONDS for requests that confirm the last page."""
        tasks = tuple(self._page_requests)
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=CONFIRM_SECONDS)
        finally:
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _page(self, group_id: UUID, after: int) -> _Page | None:
        """Fetch the next page of a group. Return None if the user is not a member."""
        try:
            page = await self._fetch(group_id, after)
        except GroupError as error:
            if is_not_member(error):
                return None
            raise
        numbers = [after, *(each.sequence_num for each in page.messages)]
        if any(number <= former for former, number in pairwise(numbers)):
            raise AnswerError("the server's messages are out of order")  # prevents an endless loop
        return page

    async def _prepare(self, group_id: UUID) -> AsyncIterator[n.News]:
        """Read the policy and the keys that a group's messages depend on."""
        if group_id not in self._history.groups():
            async for each in self._read_policy_if_member(group_id):
                yield each
        if not self._codec.has_keys(group_id):
            await self.take_welcomes()  # the server stores a Welcome before the first message that needs it

    async def _prepare_page(self, group_id: UUID, page: Sequence[FetchedMessage]) -> AsyncIterator[n.News]:
        """Read the admins and the policy, if storing a page depends on their current state.

        With an outdated policy the history would reject valid messages.
        """
        if self._codec.needs_members(group_id, page):
            self._codec.update_members(await self._client.groups())
        if self._contradicts_policy(group_id, page):
            async for each in self._read_policy_if_member(group_id):
                yield each

    @property
    def needs_comparison(self) -> bool:
        """Whether to repeat comparisons or fetches that were skipped while the server's clock was in doubt."""
        return self._has_skipped and self._history.is_time_known

    async def _fetch(self, group_id: UUID, after: int, *, include_redacted: bool = False) -> _Page:
        """Fetch a page of a group, with a size that the link can carry."""
        unknown_time_count = self._history.unknown_time_count
        try:
            page = await self._client.fetch(group_id, after, self._page_size, include_redacted=include_redacted)
        except NoAnswerError:
            self._page_size, self._pages_arrived = max(1, self._page_size // 2), 0  # a smaller page may arrive
            raise
        self._pages_arrived += 1
        if self._pages_arrived % PAGES_BEFORE_GROWTH == 0:
            self._page_size = min(PAGE_SIZE, self._page_size * 2)
        return _Page(page, self._history.unknown_time_count > unknown_time_count)

    async def _read_policy_if_member(self, group_id: UUID) -> AsyncIterator[n.News]:
        try:
            async for each in self._read_policy(group_id):
                yield each
        except GroupError as error:
            if not is_not_member(error):  # the fetch that follows handles it
                raise

    async def _report(self, group_id: UUID, *, is_last: bool, has_all: bool) -> AsyncIterator[n.News]:
        """Report stored messages once the group is caught up: the application can send only after that."""
        if is_last:
            self._codec.record_caught_up(group_id, has_all=has_all, last=self._last_numbers.get(group_id, 0))
            if has_all and self._history.is_time_known:
                self._forget_kept(group_id)
            self._caught_up.add(group_id)
        if group_id in self._caught_up:
            async for each in self._deliver(group_id):
                yield each

    def forget_erased(self) -> None:
        """Erase the codec's copies of messages that the history has erased, without the server."""
        for group_id in self._codec.groups():
            up_to = self._history.fetched_up_to(group_id)
            with contextlib.suppress(DiskError):  # retried after the next fetch
                self._codec.record_stored(group_id, up_to)
                self._forget_kept(group_id, up_to)

    def _forget_kept(self, group_id: UUID, up_to: int | None = None) -> None:
        """Erase the codec's copies of messages that the history lacks. ``up_to``: the last number; None: all."""
        numbers = [each for each in self._codec.kept_numbers(group_id) if up_to is None or each <= up_to]
        if numbers and (erased := set(numbers) - self._history.present(group_id, numbers)):
            self._codec.erase_messages(group_id, erased)

    async def _deliver(self, group_id: UUID) -> AsyncIterator[n.News]:
        """Yield messages that the application has not handled. A message counts as handled when the next is requested.

        Other tasks run between two messages: each is a write to the disk, and a screen must stay responsive.
        """
        while messages := self._history.unhandled(group_id):
            for message in messages:
                if message.is_gone(self._history.now()):
                    break  # expired, or hidden by an unconfirmed time
                yield n.MessageArrived(message)
                self._history.mark_handled(group_id, message.sequence_num)
                await asyncio.sleep(0)

    def _decode(self, group_id: UUID, page: Sequence[FetchedMessage]) -> list[IncomingMessage]:
        """Decode a page; return the messages to store. The codec's own messages are not stored."""
        incoming = []
        for each, text in ((readable.message, readable.text) for readable in self._codec.decode(group_id, page)):
            content = None if text is None else text.encode()
            is_own = each.sender_id == self._client.session.user_id
            fields = each.sequence_num, each.sender_id, content, each.created_at, each.self_destruct_seconds
            incoming.append(IncomingMessage(*fields, is_own=is_own))
        return incoming

    def _contradicts_policy(self, group_id: UUID, page: Sequence[FetchedMessage]) -> bool:
        """Return whether the expiry of a message contradicts the known policy."""
        expiry = self._history.groups().get(group_id, -1)
        return any(each.expires_at != (each.created_at + expiry + 1 if expiry > 0 else 0) for each in page)

    async def report_read(self) -> None:
        """Send read receipts that the server does not have."""
        for group_id, up_to in self._history.unreported_reads().items():
            try:
                await self._client.read(group_id, up_to)
            except GroupError:
                continue  # no longer a member: the next catch-up erases the group
            self._history.mark_reported(group_id, up_to)

    async def take_welcomes(self) -> None:
        """Hand welcomes to the codec."""
        for welcome in await self._client.welcomes():
            inviter = self._inviters.get(welcome.group_id)
            if not self._codec.join_by_welcome(welcome.group_id, welcome.welcome_message, inviter):
                continue  # it may be for another device of the user
            with contextlib.suppress(ResourceError):  # already accepted, and the answer was lost
                await self._client.accept_welcome(welcome.welcome_id)

    async def run_maintenance(self) -> set[UUID]:
        """Run the codec's maintenance; return the groups to fetch afterwards."""
        return await self._codec.run_maintenance(self._client, await self._client.groups())

    def forget_group(self, group_id: UUID) -> list[n.GroupGone]:
        """Erase all local data of a group that the user has left."""
        self._codec.forget(group_id)
        self._forgotten_count += 1
        return [n.GroupGone(group_id)] if self._history.forget_group(group_id) else []

    def record_erased(self, erased: Sequence[ErasedMessage]) -> None:
        """Queue news of erased messages, and erase the codec's copies: resending them would extend their lifetime.

        Raises DiskError; the next call retries the failed erasures.
        """
        by_group: dict[UUID, list[int]] = {}
        for group_id, number in erased:
            by_group.setdefault(group_id, []).append(number)
            self._pending_erasures.setdefault(group_id, set()).add(number)
        self._pending_news += [
            n.MessagesGone(group_id, tuple(sorted(numbers))) for group_id, numbers in by_group.items()
        ]
        for group_id in list(self._pending_erasures):
            try:
                self._codec.erase_messages(group_id, self._pending_erasures[group_id])
            except DiskError:
                self._history.release_reserve()
                raise
            del self._pending_erasures[group_id]

    def forget_taken_back(self, group_id: UUID, numbers: Collection[int]) -> None:
        """Erase messages that were taken back, by this client or another, and their resent copies."""
        if numbers:
            self._codec.erase_messages(group_id, numbers, are_taken_back=True)
            self.record_erased(self._history.forget(group_id, list(numbers)))

    def handle_leave(self, group_id: UUID) -> None:
        """Erase a group that the user has left, and queue the news."""
        self._pending_news += self.forget_group(group_id)

    def take_news(self) -> list[n.News]:
        """Return the queued news of erased messages, and the codec's news."""
        pending, self._pending_news = self._pending_news, []
        return [*pending, *self._codec.take_news()]
