"""Saves typed and unsent messages, encrypted with the account's keys, to survive a crash."""

import contextlib
import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

from conclave.client.chat.rooms import PendingMessage, Room, Rooms
from conclave.client.chat.send_queue import UNKNOWN_OUTCOME
from conclave.client.codec import Codec
from conclave.client.errors import DiskError
from conclave.client.retry import MAX_REPEAT_SECONDS, seconds_since_boot

TOO_OLD = "typed more than a day ago: use /retry to send it now"


class UnsentStore:
    """What is not sent in all groups. The codec stores it; one that cannot encrypt stores nothing."""

    def __init__(
        self,
        codec: Codec,
        rooms: Rooms,
        now: Callable[[], int],
        clock: Callable[[], float] = seconds_since_boot,
    ) -> None:
        """``now``: the server's time. ``clock``: continues while the machine sleeps."""
        self._codec, self._rooms, self._now, self._clock = codec, rooms, now, clock
        self._saved: dict[str, Any] = {}
        self._earlier: dict[str, Any] = {}
        self._age = 0
        with contextlib.suppress(ValueError, TypeError, KeyError):  # absent, or in another format
            stored = json.loads(codec.load_unsent() or b"{}")
            self._age, self._earlier = now() - int(stored["at"]), dict(stored["groups"])
            self._saved = dict(self._earlier)

    @property
    def is_saved(self) -> bool:
        """Whether everything unsent will be restored at the next start."""
        return self._codec.encrypts and self._saved == self._all()

    def save(self, room: Room | None = None, typed: str = "") -> None:
        """Save changes. ``room``: the open group. ``typed``: the text in its input field."""
        if room:
            room.typed = typed
        found = self._all()
        if found == self._saved:
            return
        with contextlib.suppress(DiskError):  # retried later
            data = json.dumps({"at": self._now(), "groups": found}).encode() if found else b""
            self._codec.save_unsent(data)
            self._saved = found

    def restore(self) -> list[Room]:
        """Restore what an earlier run has saved, in the groups that the user is in; return these."""
        earlier, self._earlier = self._earlier, {}
        rooms = [room for key in earlier if (room := self._rooms.all.get(UUID(key)))]
        for room in rooms:
            of = earlier[str(room.group.group_id)]
            room.typed = room.typed or str(of["typed"])
            room.pending[:0] = [self._deserialize(room, each) for each in of["drafts"]]
        return rooms

    def _all(self) -> dict[str, Any]:
        result = dict(self._earlier)
        for group_id, room in self._rooms.all.items():
            drafts = [self._serialize(each) for each in room.pending if each.number is None and not each.is_stored]
            if drafts or room.typed:
                result[str(group_id)] = {"typed": room.typed, "drafts": drafts}
        return result

    def _serialize(self, pending: PendingMessage) -> list[Any]:
        """``may_be_stored``: its id must stay the same, or it would be stored twice."""
        return [
            *(pending.text, pending.self_destruct_seconds, pending.send_id.hex, pending.refused),
            *(pending.may_be_stored, pending.is_unknown, pending.is_cancelled),
        ]

    def _deserialize(self, room: Room, values: list[Any]) -> PendingMessage:
        text, seconds, send_id, refused, may_be_stored, is_unknown, is_cancelled = values
        pending = PendingMessage(room.group.group_id, text, seconds, UUID(send_id), refused, is_cancelled=is_cancelled)
        pending.tried_at = self._clock() - max(0, self._age) if may_be_stored else None
        pending.is_unknown = is_unknown
        if not refused and self._age >= MAX_REPEAT_SECONDS:
            pending.refuse(UNKNOWN_OUTCOME if may_be_stored else TOO_OLD)
            pending.is_unknown, pending.is_cancelled = may_be_stored, False
        return pending
