"""Resends texts that not all members could decrypt: their keys were outdated, or other members lack them."""

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
"""Seconds before a refused text is sent again: an admin may have changed the group since."""


class Resender:
    """Resends the codec's pending texts while the original exists and has at least half its lifetime left."""

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
        """``has_changed_key``: returns whether a member's key must be confirmed first.

        ``request_fetch``: fetches a group. ``backoff``: the delays while the server is busy or failing.
        """
        self._client, self._history, self._codec = client, history, codec
        self._has_changed_key, self._request_fetch = has_changed_key, request_fetch
        self._backoff, self._chance, self._clock = backoff, chance, clock
        self._failures, self._not_before = 0, 0.0
        self._refused: dict[int, float] = {}
        self._encoded: dict[int, tuple[int, bytes]] = {}

    @property
    def is_due(self) -> bool:
        """Whether to retry a failed request now."""
        return bool(self._failures) and self._clock() >= self._not_before

    async def send(self) -> None:
        """Send pending texts, and take back unwanted copies. Raises SessionOverError and NoAnswerError."""
        if self._failures and not self.is_due:
            return
        for group_id, number in self._codec.pending_take_backs():
            if not await self._take_back(group_id, number):
                self._record_failure()
                return
        pending = self._codec.pending_resends()
        keys = {each.key for each in pending}
        self._refused = {key: until for key, until in self._refused.items() if key in keys}
        self._encoded = {key: encoded for key, encoded in self._encoded.items() if key in keys}
        for resend in pending:
            if self._is_too_old(resend):
                if self._history.is_time_known:  # otherwise the message may reappear
                    self._codec.drop_resend(resend.key)
            elif self._clock() >= self._refused.get(resend.key, 0.0) and not await self._send(resend):
                self._record_failure()
                return
        self._failures = 0

    def _record_failure(self) -> None:
        self._failures += 1
        self._not_before = self._clock() + self._backoff.delay(self._failures, self._chance())

    async def _take_back(self, group_id: UUID, number: int) -> bool:
        """Take back a resent copy whose original was taken back. Return False if the server cannot do it now."""
        try:
            await self._client.take_back(group_id, number)
        except SessionOverError:
            raise
        except RefusedError as error:
            if not is_final(error):
                return False
        self._codec.record_taken_back(group_id, number)  # even if it no longer exists, or the user has left
        return True

    async def _send(self, resend: PendingResend) -> bool:
        """Send a text if it can be sent. Return False if the server cannot accept texts now."""
        if self._has_changed_key(resend.group_id):
            return True  # the text was intended for the owner of the former key
        try:
            payload = self._payload(resend)
        except (NotReadyError, ReplacedError):
            return True
        seconds, send_id = resend.self_destruct_seconds, _send_id(resend)
        try:
            number = await self._client.send(resend.group_id, payload, self_destruct_seconds=seconds, send_id=send_id)
        except SessionOverError:
            raise
        except RefusedError as error:
            if not is_final(error):
                return False  # the server may have stored it
            self._codec.discard_payload(resend.group_id, payload)
            del self._encoded[resend.key]
            self._refused[resend.key] = self._clock() + REFUSAL_RETRY_SECONDS
            self._request_fetch(resend.group_id)  # the user may no longer be a member
            return True
        del self._encoded[resend.key]
        # The text is no longer pending if the original was taken back during the request.
        is_pending = any(each.key == resend.key for each in self._codec.pending_resends())
        self._codec.drop_resend(resend.key)
        if not is_pending or not self._original_exists(resend):
            with contextlib.suppress(GroupError, ResourceError):
                await self._client.take_back(resend.group_id, number)
        self._request_fetch(resend.group_id)
        return True

    def _payload(self, resend: PendingResend) -> bytes:
        """Return the payload of a text, the same for all attempts in an epoch: a new one would use up another key."""
        epoch = self._codec.view(resend.group_id).epoch
        former, payload = self._encoded.get(resend.key, (-1, b""))
        if former != epoch:
            payload = self._codec.encode_resend(resend)
            self._encoded[resend.key] = epoch, payload
        return payload

    def _original_exists(self, resend: PendingResend) -> bool:
        """Return whether the original still exists: it has not expired, self-destructed or been taken back."""
        return self._original(resend) is not None

    def _is_too_old(self, resend: PendingResend) -> bool:
        """Return whether the original is erased, or past half its lifetime: a copy gets the full lifetime again."""
        first, expiry = self._original(resend), self._history.groups().get(resend.group_id, -1)
        return first is None or (expiry > 0 and first.created_at + expiry // 2 < self._history.now())

    def _original(self, resend: PendingResend) -> Message | None:
        found = self._history.messages(resend.group_id, resend.original - 1, 1)
        return found[0] if found and found[0].sequence_num == resend.original else None


async def take_back(client: Client, codec: Codec, group_id: UUID, number: int) -> None:
    """Take a message back, together with its resent copies, and stop resending it. Raises ClientError.

    Copies that are in transit are taken back by ``Resender`` when they arrive.
    """
    codec.erase_messages(group_id, [number], are_taken_back=True)
    for each in codec.repeats_of(group_id, number):
        with contextlib.suppress(ResourceError):  # already erased
            await client.take_back(group_id, each)
        codec.record_taken_back(group_id, each)
    await client.take_back(group_id, number)


def _send_id(resend: PendingResend) -> UUID:
    """Return the same id for all attempts. It depends on the group and the number, since a new file reuses keys."""
    text = f"{resend.group_id} {resend.original} {resend.key}"
    return UUID(bytes=hashlib.sha256(text.encode()).digest()[:16])
