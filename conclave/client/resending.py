"""Sends anew what was sent, and could not be read by everybody: by keys that had passed, or that others do not have."""

import contextlib
import hashlib
import time
from collections.abc import Callable
from uuid import UUID

from conclave.client.api import Client
from conclave.client.codec import Codec, PendingResend
from conclave.client.errors import (
    GroupError,
    NotReadyError,
    RefusedError,
    ReplacedError,
    ResourceError,
    SessionOverError,
    is_final,
)
from conclave.client.events import Message
from conclave.client.history.store import History
from conclave.client.retry import Backoff

REFUSAL_RETRY_SECONDS = 600.0
"""What the server has refused for good is tried again after ten minutes: it may have been told otherwise by then."""


class Resender:
    """Sends what the codec has to be sent anew, while the first message is there and has half its time left."""

    def __init__(
        self,
        client: Client,
        history: History,
        codec: Codec,
        has_changed_key: Callable[[UUID], bool],
        request_fetch: Callable[[UUID], None],
        backoff: Backoff,
        chance: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``is_in_doubt``: tells of a group whether a member's key is to be judged first. ``look_at``: fetches one.

        ``backoff``: how long to wait after a server that cannot now.
        """
        self._client, self._history, self._codec = client, history, codec
        self._has_changed_key, self._look_at = has_changed_key, request_fetch
        self._backoff, self._chance, self._clock = backoff, chance, clock
        self._failures, self._not_before = 0, 0.0
        self._refused: dict[int, float] = {}
        self._encoded: dict[int, tuple[int, bytes]] = {}

    @property
    def is_due(self) -> bool:
        """Whether it is time to try again what the server could not do before."""
        return bool(self._failures) and self._clock() >= self._not_before

    async def send(self) -> None:
        """Send what can be sent now, take back what is unwanted. Raises SessionOverError, and NoAnswerError."""
        if self._failures and not self.is_due:
            return
        for group_id, number in self._codec.pending_take_backs():
            if not await self._take_back(group_id, number):
                self._record_failure()
                return
        waiting = self._codec.pending_resends()
        keys = {each.key for each in waiting}
        self._refused = {key: until for key, until in self._refused.items() if key in keys}
        self._encoded = {key: encoded for key, encoded in self._encoded.items() if key in keys}
        for again in waiting:
            if self._is_too_old(again):
                if self._history.is_time_known:  # otherwise it may come back
                    self._codec.drop_resend(again.key)
            elif self._clock() >= self._refused.get(again.key, 0.0) and not await self._send(again):
                self._record_failure()
                return
        self._failures = 0

    def _record_failure(self) -> None:
        self._failures += 1
        self._not_before = self._clock() + self._backoff.delay(self._failures, self._chance())

    async def _take_back(self, group_id: UUID, number: int) -> bool:
        """Take a message back whose first one was, while it was under way. False: the server cannot now."""
        try:
            await self._client.take_back(group_id, number)
        except SessionOverError:
            raise
        except RefusedError as error:
            if not is_final(error):
                return False
        self._codec.record_taken_back(group_id, number)  # or the user is no member any more, or it has gone
        return True

    async def _send(self, again: PendingResend) -> bool:
        """Send a text if it can be sent. False: the server cannot take any now."""
        if self._has_changed_key(again.group_id):
            return True  # it was meant for those who had the former key
        try:
            payload = self._payload(again)
        except (NotReadyError, ReplacedError):
            return True
        seconds, send_id = again.self_destruct_seconds, _send_id(again)
        try:
            number = await self._client.send(again.group_id, payload, self_destruct_seconds=seconds, send_id=send_id)
        except SessionOverError:
            raise
        except RefusedError as error:
            if not is_final(error):
                return False  # it may be there all the same, and comes back
            self._codec.discard_payload(again.group_id, payload)
            del self._encoded[again.key]
            self._refused[again.key] = self._clock() + REFUSAL_RETRY_SECONDS
            self._look_at(again.group_id)  # the user may not be in it any more
            return True
        del self._encoded[again.key]
        is_wanted = any(each.key == again.key for each in self._codec.pending_resends())  # or it is being taken back
        self._codec.drop_resend(again.key)
        if not is_wanted or not self._is_here(again):  # it went, and whoever took it back did not know of this one
            with contextlib.suppress(GroupError, ResourceError):
                await self._client.take_back(again.group_id, number)
        self._look_at(again.group_id)
        return True

    def _payload(self, again: PendingResend) -> bytes:
        """Return the same payload for each try in an epoch: each is kept until it comes back, and uses up a key."""
        epoch = self._codec.view(again.group_id).epoch
        former, payload = self._encoded.get(again.key, (-1, b""))
        if former != epoch:
            payload = self._codec.encode_resend(again)
            self._encoded[again.key] = epoch, payload
        return payload

    def _is_here(self, again: PendingResend) -> bool:
        """Tell whether a message that is to be sent anew is still there: expired, read or taken back it is not."""
        return self._original(again) is not None

    def _is_too_old(self, again: PendingResend) -> bool:
        """Tell whether it is gone, or has half its time behind it: sent anew, it has the whole of it once more."""
        first, expiry = self._original(again), self._history.groups().get(again.group_id, -1)
        return first is None or (expiry > 0 and first.created_at + expiry // 2 < self._history.now())

    def _original(self, again: PendingResend) -> Message | None:
        found = self._history.messages(again.group_id, again.original - 1, 1)
        return found[0] if found and found[0].sequence_num == again.original else None


async def take_back(client: Client, codec: Codec, group_id: UUID, number: int) -> None:
    """Take a message back, together with its resent copies, and stop resending it. Raises ClientError.

    Copies that are in transit are taken back by ``Resender`` when they arrive.
    """
    codec.erase_messages(group_id, [number], are_taken_back=True)
    for each in codec.repeats_of(group_id, number):
        with contextlib.suppress(ResourceError):  # already gone
            await client.take_back(group_id, each)
        codec.record_taken_back(group_id, each)
    await client.take_back(group_id, number)


def _send_id(again: PendingResend) -> UUID:
    """Return the same id for each try. Keys alone begin anew with a new file."""
    told = f"{again.group_id} {again.original} {again.key}"
    return UUID(bytes=hashlib.sha256(told.encode()).digest()[:16])
