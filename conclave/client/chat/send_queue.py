"""Sends what was typed: in each group in its order, each text once, as soon as there is a connection."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from conclave.client.chat.rooms import Draft, Room
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

KEYS_LOOKED_EVERY = 1.0
"""Where the keys of a group are not there yet, it is looked for them each second, beside whenever there is news."""

UNKNOWN = "it is not known whether it was, since no answer came for a day: see whether it is here, before /retry"


class SendQueue:
    """Texts on their way, as drafts of their groups."""

    def __init__(
        self,
        sync: Sync,
        online: asyncio.Event,
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        changed: Callable[[Room], None],
        held: Callable[[UUID], None],
        keep: Callable[[], None],
        clock: Callable[[], float] = seconds_since_boot,
    ) -> None:
        """``online``: set while there is a connection.

        ``start``: begins a task that is awaited by others. ``changed``: a group's drafts are others now. ``held``: what
        is to be sent to a group waits, since a member's key has changed. ``keep``: writes down what is not sent.
        """
        self._sync = sync
        self._online = online
        self._start = start
        self._changed = changed
        self._held = held
        self._keep = keep
        self._clock = clock
        self._keys_changed = asyncio.Event()
        self._sending: dict[UUID, asyncio.Task[None]] = {}
        self._backoff = Backoff()

    def send(self, room: Room, text: str, self_destruct_seconds: int = 0) -> None:
        """Send a text as soon as there is a connection, after what was typed before it. Whoever writes has read."""
        with contextlib.suppress(DiskError):
            self._sync.mark_seen(room.group.group_id)
        room.read_before = None
        room.drafts.append(Draft(room.group.group_id, text, self_destruct_seconds))
        room.typed = ""
        self._keep()
        self._go_on(room)

    def go_on(self, room: Room) -> None:
        """Send what was left by a program before."""
        if room.drafts:
            self._go_on(room)

    def send_again(self, room: Room) -> int:
        """Try again to send what the server has refused, or what waits for a key. Return how many texts these are."""
        refused = [each for each in room.drafts if each.refused or each.is_held]
        for draft in refused:
            draft.send_anew()
        self._go_on(room)
        return len(refused)

    def judged(self, room: Room) -> None:
        """The user has judged a key: send what has waited for that, here and in the codec."""
        self.release(room)
        self._sync.request_fetch(room.group.group_id)

    def release(self, room: Room) -> None:
        """Send what has waited for the user to judge a key, if no key is in doubt any more."""
        self._keys_changed.set()
        held = [each for each in room.drafts if each.is_held]
        if held and not self._sync.codec.view(room.group.group_id).changed:
            for draft in held:
                draft.is_held = False
            self._go_on(room)

    def discard(self, room: Room) -> int:
        """Drop what the server has refused, and what waits for a key; if there is nothing of that, what was not sent.

        Return how many texts these were.
        """
        left = [each for each in room.drafts if not (each.is_stored or each.is_called_back)]
        chosen = [each for each in left if each.refused or each.is_held] or [each for each in left if each.waits]
        for draft in chosen:
            self._call_back(room, draft)
        self._keep()
        self._go_on(room)
        return len(chosen)

    def call_back(self, room: Room) -> Draft | None:
        """Call back the last text that has not come yet. Return it; None: there is none.

        What the server may have is not sent again, and taken back if it comes: ``Draft.is_called_back``.
        """
        left = [each for each in room.drafts if not (each.is_stored or each.is_called_back)]
        if not left:
            return None
        self._call_back(room, left[-1])
        self._keep()
        self._go_on(room)
        return left[-1]

    def _call_back(self, room: Room, draft: Draft) -> None:
        draft.is_called_back = draft.may_be_there and not draft.is_unknown
        if draft.is_trying:
            self.drop(draft.group_id)  # its next try could bring it there
            draft.is_trying, draft.tried_at = False, self._clock()
        if draft.number is not None:
            self._start(self._take_back(room, draft, draft.number))
        elif not draft.is_called_back:
            room.drafts.remove(draft)

    async def _take_back(self, room: Room, draft: Draft, number: int) -> None:
        """Take back what was called back, and has come."""
        with contextlib.suppress(ResourceError):  # it is gone already
            await self._sync.take_back(draft.group_id, number)
        room.drafts = [each for each in room.drafts if each is not draft]
        self._keep()
        self._changed(room)

    def has_arrived(self, room: Room, message: Message) -> None:
        """A message of the user's is there, perhaps before the answer to its request, which may be lost."""
        draft = next((each for each in room.drafts if each.waits and not each.is_stored), None)
        if draft and draft.text == message.text:
            draft.is_stored = True
        elif not any(each.number == message.sequence_num for each in room.drafts):
            called = next((each for each in room.drafts if each.is_called_back and each.text == message.text), None)
            if called:
                self._start(self._take_back(room, called, message.sequence_num))
                return
            unknown = next((each for each in room.drafts if each.is_unknown and each.text == message.text), None)
            room.drafts = [each for each in room.drafts if each is not unknown]

    def tidy(self, room: Room) -> None:
        """Drop drafts that came as messages."""
        left = [
            each
            for each in room.drafts
            if each.number is None or each.number > room.fetched_up_to or each.is_called_back
        ]
        if len(left) < len(room.drafts):
            room.drafts = left
            self._keep()

    def drop(self, group_id: UUID) -> None:
        """Send nothing more to a group: the user is not in it any more."""
        if task := self._sending.pop(group_id, None):
            task.cancel()

    def _go_on(self, room: Room) -> None:
        group_id = room.group.group_id
        task = self._sending.get(group_id)
        if task is None or task.done():
            self._sending[group_id] = self._start(self._send(room))
        self._changed(room)

    async def _send(self, room: Room) -> None:
        """Send the drafts of a group. One that the server refuses does not stop the others."""
        failures = 0
        while draft := next((each for each in room.drafts if each.waits), None):
            await self._online.wait()
            await self._keys_of(draft.group_id)
            if self._sync.codec.view(draft.group_id).changed:
                self._hold(room)
                return
            if not draft.waits or draft not in room.drafts:
                continue  # called back meanwhile
            now = self._clock()
            if draft.tried_at is not None and now - draft.tried_at >= MAX_REPEAT_SECONDS:
                self._give_up(room, draft)
                continue
            failures = await self._try(draft, now, failures)
            self._changed(room)
            if failures and draft.waits:
                await asyncio.sleep(self._backoff.delay(failures, 1.0))

    async def _try(self, draft: Draft, now: float, failures: int) -> int:
        """Try once to send a text; return how many tries have failed in a row, 0 once the server has answered."""
        draft.is_trying = True
        self._keep()
        try:
            draft.number = await self._sync.send(
                draft.group_id, draft.text, self_destruct_seconds=draft.self_destruct_seconds, send_id=draft.send_id
            )
        except SessionOverError:
            raise
        except (ClientError, ValueError) as error:
            if not _is_final(error):
                if draft.tried_at is None and not isinstance(error, EncryptionError):
                    draft.tried_at = now
                return failures + 1
            draft.refuse(describe_error(error))
        finally:
            draft.is_trying = False
        return 0

    def _give_up(self, room: Room, draft: Draft) -> None:
        """Send a text no more by itself: it has come, or the user has to see whether it has."""
        if draft.is_stored:
            room.drafts.remove(draft)
        else:
            draft.refuse(UNKNOWN)
            draft.is_unknown = True
            self._sync.request_fetch(draft.group_id)
        self._changed(room)

    async def _keys_of(self, group_id: UUID) -> None:
        """Wait for the keys of a group: only with them it is known whose keys have changed."""
        while self._sync.codec.view(group_id).status is EncryptionStatus.WAITING:
            self._keys_changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KEYS_LOOKED_EVERY):
                    await self._keys_changed.wait()

    def _hold(self, room: Room) -> None:
        """Send nothing until the user has judged a key that has changed."""
        for draft in room.drafts:
            draft.is_held = draft.waits
        self._changed(room)
        self._held(room.group.group_id)


def _is_final(error: Exception) -> bool:
    """Tell whether the same text would be refused again; if not, only the connection or the server is to blame."""
    if isinstance(error, RefusedError):
        return is_final(error)
    return isinstance(error, (ValueError, ReplacedError))
