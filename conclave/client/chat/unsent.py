"""Keeps what was typed and is not sent, encrypted with the account's keys, so that it is there after a crash."""

import contextlib
import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

from conclave.client.chat.rooms import Draft, Room, Rooms
from conclave.client.chat.send_queue import UNKNOWN
from conclave.client.codec import Codec
from conclave.client.errors import DiskError
from conclave.client.retry import MAX_REPEAT_SECONDS, seconds_since_boot

OLD = "it was typed a day ago or more: see whether it should still be sent, by /retry"


class Unsent:
    """What is not sent of all groups. The codec keeps it; one that cannot encrypt keeps nothing."""

    def __init__(
        self,
        codec: Codec,
        rooms: Rooms,
        now: Callable[[], int],
        clock: Callable[[], float] = seconds_since_boot,
    ) -> None:
        """``now``: the server's time. ``clock``: goes on while the machine sleeps."""
        self._codec, self._rooms, self._now, self._clock = codec, rooms, now, clock
        self._kept: dict[str, Any] = {}
        self._former: dict[str, Any] = {}
        self._age = 0
        with contextlib.suppress(ValueError, TypeError, KeyError):  # of another program, or none
            kept = json.loads(codec.load_unsent() or b"{}")
            self._age, self._former = now() - int(kept["at"]), dict(kept["groups"])
            self._kept = dict(self._former)

    @property
    def is_kept(self) -> bool:
        """Whether all that is not sent is there at the next start."""
        return self._codec.encrypts and self._kept == self._all()

    def keep(self, room: Room | None = None, typed: str = "") -> None:
        """Write it down if it is not. ``room``: the open group. ``typed``: what stands in its field."""
        if room:
            room.typed = typed
        found = self._all()
        if found == self._kept:
            return
        with contextlib.suppress(DiskError):  # it is tried again
            data = json.dumps({"at": self._now(), "groups": found}).encode() if found else b""
            self._codec.save_unsent(data)
            self._kept = found

    def restore(self) -> list[Room]:
        """Give groups back what a program before has left of them; return these. The user is in no others."""
        former, self._former = self._former, {}
        rooms = [room for key in former if (room := self._rooms.all.get(UUID(key)))]
        for room in rooms:
            of = former[str(room.group.group_id)]
            room.typed = room.typed or str(of["typed"])
            room.drafts[:0] = [self._draft(room, each) for each in of["drafts"]]
        return rooms

    def _all(self) -> dict[str, Any]:
        kept = dict(self._former)
        for group_id, room in self._rooms.all.items():
            drafts = [self._written(each) for each in room.drafts if each.number is None and not each.is_stored]
            if drafts or room.typed:
                kept[str(group_id)] = {"typed": room.typed, "drafts": drafts}
        return kept

    def _written(self, draft: Draft) -> list[Any]:
        """``may_be_there``: then its id must stay the same, or it would be stored twice."""
        return [
            *(draft.text, draft.self_destruct_seconds, draft.send_id.hex, draft.refused),
            *(draft.may_be_there, draft.is_unknown, draft.is_called_back),
        ]

    def _draft(self, room: Room, written: list[Any]) -> Draft:
        text, seconds, send_id, refused, may_be_there, is_unknown, is_called_back = written
        draft = Draft(room.group.group_id, text, seconds, UUID(send_id), refused, is_called_back=is_called_back)
        draft.tried_at = self._clock() - max(0, self._age) if may_be_there else None
        draft.is_unknown = is_unknown
        if not refused and self._age >= MAX_REPEAT_SECONDS:
            draft.refuse(UNKNOWN if may_be_there else OLD)
            draft.is_unknown, draft.is_called_back = may_be_there, False
        return draft
