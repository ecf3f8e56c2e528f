"""Sends messages, in order for each group, once each, as soon as there is a connection."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from conclave.client.chat.rooms import PendingMessage, Room
from conclave.client.encryption.view import EncryptionStatus
from conclave.client.errors import (
    ClientError,
    DiskError,
    EncryptionError,
    RefusedError,
    ReplacedError,
    ResourceError,
    SessionOverError,
    describe_error,
    is_final,
)
from conclave.client.events import Message
from conclave.client.retry import MAX_REPEAT_SECONDS, Backoff, seconds_since_boot
from conclave.client.sync import Sync

KEY_POLL_SECONDS = 1.0
"""While a group's keys are missing, they are checked every second, and after each event."""

UNKNOWN_OUTCOME = "no answer for a day, it may have been sent: check before /retry"


class SendQueue:
    """The pending messages of all groups."""

    def __init__(
        self,
        sync: Sync,
        online: asyncio.Event,
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        changed: Callable[[Room], None],
        review_keys: Callable[[UUID], None],
        save: Callable[[], None],
        clock: Callable[[], float] = seconds_since_boot,
    ) -> None:
        """``online``: set while a connection is shown: without one nothing is tried.

        ``start``: starts a task that others await. ``changed``: called after a group's pending messages have changed.
        ``review_keys``: called when messages wait for a review of changed keys. ``save``: saves what is not sent.
        """
        self._sync = sync
        self._online = online
        self._start = start
        self._changed = changed
        self._review_keys = review_keys
        self._save = save
        self._clock = clock
        self._keys_changed = asyncio.Event()
        self._sending: dict[UUID, asyncio.Task[None]] = {}
        self._backoff = Backoff()

    def send(self, room: Room, text: str, self_destruct_seconds: int = 0) -> None:
        """Queue a message. Sending marks the group as read."""
        with contextlib.suppress(DiskError):
            self._sync.mark_seen(room.group.group_id)
        room.read_before = None
        room.pending.append(PendingMessage(room.group.group_id, text, self_destruct_seconds))
        room.typed = ""
        self._save()
        self._start_sending(room)

    def resume(self, room: Room) -> None:
        """Send messages that an earlier run of the program has left."""
        if room.pending:
            self._start_sending(room)

    def send_again(self, room: Room) -> int:
        """Retry messages that were refused or wait for a key. Return their number."""
        refused = [each for each in room.pending if each.refused or each.is_held]
        for pending in refused:
            pending.retry()
        self._start_sending(room)
        return len(refused)

    def keys_reviewed(self, room: Room) -> None:
        """Send messages that waited for the user's decision about a key, here and in the codec."""
        self.release(room)
        self._sync.request_fetch(room.group.group_id)

    def release(self, room: Room) -> None:
        """Send messages that waited for a decision about keys, if all are made."""
        self._keys_changed.set()
        held = [each for each in room.pending if each.is_held]
        if held and not self._sync.codec.view(room.group.group_id).changed:
            for pending in held:
                pending.is_held = False
            self._start_sending(room)

    def discard(self, room: Room) -> int:
        """Discard messages that were refused or wait for a key, or else those not sent yet. Return their number."""
        left = [each for each in room.pending if not (each.is_stored or each.is_cancelled)]
        chosen = [each for each in left if each.refused or each.is_held] or [each for each in left if each.waits]
        for pending in chosen:
            self._cancel(room, pending)
        self._save()
        self._start_sending(room)
        return len(chosen)

    def cancel_last(self, room: Room) -> PendingMessage | None:
        """Cancel the last message that has not arrived; return it, or None.

        If the server may have it, it is taken back when it arrives: see ``PendingMessage.is_cancelled``.
        """
        left = [each for each in room.pending if not (each.is_stored or each.is_cancelled)]
        if not left:
            return None
        self._cancel(room, left[-1])
        self._save()
        self._start_sending(room)
        return left[-1]

    def _cancel(self, room: Room, pending: PendingMessage) -> None:
        pending.is_cancelled = pending.may_be_stored and not pending.is_unknown
        if pending.is_trying:
            self.drop(pending.group_id)  # the next try could store it
            pending.is_trying, pending.tried_at = False, self._clock()
        if pending.number is not None:
            self._start(self._take_back(room, pending, pending.number))
        elif not pending.is_cancelled:
            room.pending.remove(pending)

    async def _take_back(self, room: Room, pending: PendingMessage, number: int) -> None:
        """Take back a cancelled message that has arrived."""
        with contextlib.suppress(ResourceError):  # already gone
            await self._sync.take_back(pending.group_id, number)
        room.pending = [each for each in room.pending if each is not pending]
        self._save()
        self._changed(room)

    def confirm(self, room: Room, message: Message) -> None:
        """Match a message that arrived with a pending one; the answer to its request may be lost."""
        pending = next((each for each in room.pending if each.waits and not each.is_stored), None)
        if pending and pending.text == message.text:
            pending.is_stored = True
        elif not any(each.number == message.sequence_num for each in room.pending):
            cancelled = next((each for each in room.pending if each.is_cancelled and each.text == message.text), None)
            if cancelled:
                self._start(self._take_back(room, cancelled, message.sequence_num))
                return
            unknown = next((each for each in room.pending if each.is_unknown and each.text == message.text), None)
            room.pending = [each for each in room.pending if each is not unknown]

    def remove_delivered(self, room: Room) -> None:
        """Remove pending messages that have arrived."""
        left = [
            each
            for each in room.pending
            if each.number is None or each.number > room.fetched_up_to or each.is_cancelled
        ]
        if len(left) < len(room.pending):
            room.pending = left
            self._save()

    def drop(self, group_id: UUID) -> None:
        """Stop sending to a group that the user has left."""
        if task := self._sending.pop(group_id, None):
            task.cancel()

    def _start_sending(self, room: Room) -> None:
        group_id = room.group.group_id
        task = self._sending.get(group_id)
        if task is None or task.done():
            self._sending[group_id] = self._start(self._send(room))
        self._changed(room)

    async def _send(self, room: Room) -> None:
        """Send the pending messages of a group. A refused one does not stop the others."""
        failures = 0
        while pending := next((each for each in room.pending if each.waits), None):
            await self._online.wait()
            await self._wait_for_keys(pending.group_id)
            if self._sync.codec.view(pending.group_id).changed:
                self._hold(room)
                return
            if not pending.waits or pending not in room.pending:
                continue  # cancelled meanwhile
            now = self._clock()
            if pending.tried_at is not None and now - pending.tried_at >= MAX_REPEAT_SECONDS:
                self._give_up(room, pending)
                continue
            failures = await self._try(pending, now, failures)
            self._changed(room)
            if failures and pending.waits:
                await asyncio.sleep(self._backoff.delay(failures, 1.0))

    async def _try(self, pending: PendingMessage, now: float, failures: int) -> int:
        """Try to send a message. Return the number of consecutive failures, 0 after an answer."""
        pending.is_trying = True
        self._save()
        try:
            pending.number = await self._sync.send(
                pending.group_id,
                pending.text,
                self_destruct_seconds=pending.self_destruct_seconds,
                send_id=pending.send_id,
            )
        except SessionOverError:
            raise
        except (ClientError, ValueError) as error:
            if not _is_final(error):
                if pending.tried_at is None and not isinstance(error, EncryptionError):
                    pending.tried_at = now
                return failures + 1
            pending.refuse(describe_error(error))
        finally:
            pending.is_trying = False
        return 0

    def _give_up(self, room: Room, pending: PendingMessage) -> None:
        """Stop retrying a message: it has arrived, or the user has to check whether it has."""
        if pending.is_stored:
            room.pending.remove(pending)
        else:
            pending.refuse(UNKNOWN_OUTCOME)
            pending.is_unknown = True
            self._sync.request_fetch(pending.group_id)
        self._changed(room)

    async def _wait_for_keys(self, group_id: UUID) -> None:
        """Wait for the keys of a group: only with them it is known whose keys have changed."""
        while self._sync.codec.view(group_id).status is EncryptionStatus.WAITING:
            self._keys_changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KEY_POLL_SECONDS):
                    await self._keys_changed.wait()

    def _hold(self, room: Room) -> None:
        """Stop sending until the user has reviewed changed keys."""
        for pending in room.pending:
            pending.is_held = pending.waits
        self._changed(room)
        self._review_keys(room.group.group_id)


def _is_final(error: Exception) -> bool:
    """Tell whether retrying is useless; otherwise the connection or the server failed."""
    if isinstance(error, RefusedError):
        return is_final(error)
    return isinstance(error, (ValueError, ReplacedError))
