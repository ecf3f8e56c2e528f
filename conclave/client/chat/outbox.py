"""Sends what was typed: in each group in its order, each text once, as soon as there is a connection."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from conclave.client.chat.rooms import Draft, Room
from conclave.client.errors import BusyError, ClientError, RefusedError, SessionOverError, in_words
from conclave.client.retry import Backoff
from conclave.client.sync import Sync

SERVER_FAULTS = 500
"""From this status on it is the server that fails: it is worth trying again."""


class Outbox:
    """Texts on their way. They are in memory only, as drafts of their groups."""

    def __init__(
        self,
        sync: Sync,
        online: asyncio.Event,
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        changed: Callable[[Room], None],
    ) -> None:
        """``online``: set while there is a connection.

        ``start``: begins a task that is awaited by others. ``changed``: a group's drafts are others now.
        """
        self._sync = sync
        self._online = online
        self._start = start
        self._changed = changed
        self._sending: dict[UUID, asyncio.Task[None]] = {}
        self._backoff = Backoff()

    def send(self, room: Room, text: str, self_destruct_seconds: int = 0) -> None:
        """Send a text as soon as there is a connection, after what was typed before it."""
        room.read_before = None
        room.drafts.append(Draft(room.group.group_id, text, self_destruct_seconds))
        self._go_on(room)

    def send_again(self, room: Room) -> int:
        """Try again to send what the server has refused. Return how many texts these are."""
        refused = [each for each in room.drafts if each.refused]
        for draft in refused:
            draft.refused = ""
        self._go_on(room)
        return len(refused)

    def discard(self, room: Room) -> int:
        """Drop what the server has refused. Return how many texts these were."""
        before = len(room.drafts)
        room.drafts = [each for each in room.drafts if not each.refused]
        self._changed(room)
        return before - len(room.drafts)

    def has_arrived(self, room: Room, text: str | None) -> None:
        """A message of the user's is there, perhaps before the answer to its request, which may be lost."""
        draft = next((each for each in room.drafts if each.waits and not each.is_stored), None)
        if draft and draft.text == text:
            draft.is_stored = True

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
                    await asyncio.sleep(self._backoff.delay(failures, 1.0))
            self._changed(room)


def _is_final(error: Exception) -> bool:
    """Tell whether the same text would be refused again; if not, only the connection or the server is to blame."""
    if isinstance(error, RefusedError):
        return error.status < SERVER_FAULTS and not isinstance(error, BusyError)
    return isinstance(error, ValueError)
