"""Sends what was typed: in each group in its order, each text once, as soon as there is a connection."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from conclave.client.chat.rooms import Draft, Room
from conclave.client.encryption.view import Standing
from conclave.client.errors import (
    ClientError,
    DiskError,
    EncryptionError,
    RefusedError,
    ReplacedError,
    SessionOverError,
    in_words,
    is_final,
)
from conclave.client.events import Message
from conclave.client.retry import REPEATED_SECONDS, Backoff, awake_or_asleep
from conclave.client.sync import Sync

KEYS_LOOKED_EVERY = 1.0
"""Where the keys of a group are not there yet, it is looked for them each second, beside whenever there is news."""

UNKNOWN = "it is not known whether it was, since no answer came for a day: see whether it is here, before /retry"


class SendQueue:
    """Texts on their way. They are in memory only, as drafts of their groups."""

    def __init__(
        self,
        sync: Sync,
        online: asyncio.Event,
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        changed: Callable[[Room], None],
        held: Callable[[UUID], None],
        clock: Callable[[], float] = awake_or_asleep,
    ) -> None:
        """``online``: set while there is a connection.

        ``start``: begins a task that is awaited by others. ``changed``: a group's drafts are others now. ``held``: what
        is to be sent to a group waits, since a member's key has changed.
        """
        self._sync = sync
        self._online = online
        self._start = start
        self._changed = changed
        self._held = held
        self._clock = clock
        self._keys_changed = asyncio.Event()
        self._sending: dict[UUID, asyncio.Task[None]] = {}
        self._backoff = Backoff()

    def send(self, room: Room, text: str, self_destruct_seconds: int = 0) -> None:
        """Send a text as soon as there is a connection, after what was typed before it. Whoever writes has read."""
        with contextlib.suppress(DiskError):
            self._sync.seen(room.group.group_id)
        room.read_before = None
        room.drafts.append(Draft(room.group.group_id, text, self_destruct_seconds))
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
        self._sync.look_at(room.group.group_id)

    def release(self, room: Room) -> None:
        """Send what has waited for the user to judge a key, if no key is in doubt any more."""
        self._keys_changed.set()
        held = [each for each in room.drafts if each.is_held]
        if held and not self._sync.codec.view(room.group.group_id).changed:
            for draft in held:
                draft.is_held = False
            self._go_on(room)

    def discard(self, room: Room) -> int:
        """Drop what the server has refused, and what waits for a key. Return how many texts these were."""
        before = len(room.drafts)
        room.drafts = [each for each in room.drafts if not (each.refused or each.is_held)]
        self._changed(room)
        return before - len(room.drafts)

    def has_arrived(self, room: Room, message: Message) -> None:
        """A message of the user's is there, perhaps before the answer to its request, which may be lost."""
        draft = next((each for each in room.drafts if each.waits and not each.is_stored), None)
        if draft and draft.text == message.text:
            draft.is_stored = True
        elif not any(each.number == message.sequence_num for each in room.drafts):
            unknown = next((each for each in room.drafts if each.is_unknown and each.text == message.text), None)
            room.drafts = [each for each in room.drafts if each is not unknown]

    def tidy(self, room: Room) -> None:
        """Drop drafts that came as messages."""
        room.drafts = [each for each in room.drafts if each.number is None or each.number > room.fetched_up_to]

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
            now = self._clock()
            if draft.tried_at is not None and now - draft.tried_at >= REPEATED_SECONDS:
                self._give_up(room, draft)
                continue
            try:
                draft.number = await self._sync.send(
                    draft.group_id,
                    draft.text,
                    self_destruct_seconds=draft.self_destruct_seconds,
                    send_id=draft.send_id,
                )
                failures = 0
            except SessionOverError:
                raise
            except (ClientError, ValueError) as error:
                if _is_final(error):
                    draft.refuse(in_words(error))
                else:
                    failures += 1
                    if draft.tried_at is None and not isinstance(error, EncryptionError):
                        draft.tried_at = now
                    await asyncio.sleep(self._backoff.delay(failures, 1.0))
            self._changed(room)

    def _give_up(self, room: Room, draft: Draft) -> None:
        """Send a text no more by itself: it has come, or the user has to see whether it has."""
        if draft.is_stored:
            room.drafts.remove(draft)
        else:
            draft.refuse(UNKNOWN)
            draft.is_unknown = True
            self._sync.look_at(draft.group_id)
        self._changed(room)

    async def _keys_of(self, group_id: UUID) -> None:
        """Wait for the keys of a group: only with them it is known whose keys have changed."""
        while self._sync.codec.view(group_id).standing is Standing.WAITING:
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
