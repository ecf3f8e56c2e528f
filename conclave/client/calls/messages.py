"""Sending, fetching, reading."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

from conclave.client.calls.caller import ApiCalls
from conclave.client.events import Lagged
from conclave.client.stream import read_events
from conclave.client.transport import MAX_BODIES_BYTES, Call, path
from conclave.wire.events import Event
from conclave.wire.results import FetchedMessage, FetchedMessages, MessageSent
from conclave.wire.schemas import messages as wire


class MessageCalls(ApiCalls):
    """Calls for messages and events."""

    async def send(
        self, group_id: UUID, payload: bytes, *, self_destruct_seconds: int = 0, send_id: UUID | None = None
    ) -> int:
        """Send a message and return its number. The request is repeated until an answer arrives, and stored once.

        ``self_destruct_seconds``: lifetime after each reader has read it; 0: unlimited. ``send_id``: to repeat the call
        after a ClientError or a restart, pass the same id, within a day.
        """
        body = wire.SendMessage(payload, self_destruct_seconds, (send_id or uuid4()).bytes)
        call = Call("POST", path("groups", group_id, "messages"), wire.SendMessageRequest, body, repeatable=True)
        return (await self.transport.request(call, MessageSent)).sequence_num

    async def fetch(
        self, group_id: UUID, after: int = 0, limit: int = 100, *, include_redacted: bool = False
    ) -> tuple[FetchedMessage, ...]:
        """Fetch up to ``limit`` messages with numbers greater than ``after``.

        Only an empty result means that there are no more messages. The call confirms everything up to ``after``. The
        returned page counts as fetched once the next call passes its last number as ``after``: store it first, then
        call again, even if you expect no more. With delete-after-fetch the server never erases an unconfirmed page.
        """
        query = {"after": str(after), "limit": str(limit), "confirm": wire.NEXT}
        if include_redacted:
            query["include_redacted"] = "true"
        call = Call(
            "GET", path("groups", group_id, "messages"), query=query, repeatable=True, max_bytes=MAX_BODIES_BYTES
        )
        return (await self.transport.request(call, FetchedMessages)).messages

    async def take_back(self, group_id: UUID, sequence_num: int, *, dry_run: bool = False) -> None:
        """Take a message back for all members: an own one, or as an admin any, if the operator allows it.

        Taking it back again changes nothing. Raises ResourceError if the message does not exist, GroupError if it is
        another user's, and InputError if it is a commit. ``Sync.take_back`` also updates the history. ``dry_run``:
        only check.
        """
        query = {"dry_run": "true"} if dry_run else None
        call = Call("DELETE", path("groups", group_id, "messages", str(sequence_num)), query=query, repeatable=True)
        await self.transport.send(call)

    async def read(self, group_id: UUID, sequence_num: int) -> None:
        """Send a read receipt for everything up to a number. It starts the timers of self-destructing messages."""
        body = wire.ReadReceipt(sequence_num)
        call = Call("POST", path("groups", group_id, "read"), wire.ReadReceiptRequest, body, repeatable=True)
        await self.transport.send(call)

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[AsyncIterator[Event | Lagged]]:
        """Open a stream of events, which ends with the connection. Raises ClientError.

        It delivers events from this moment on; earlier messages have to be fetched. ``Sync`` does both.
        """
        format_name = self.transport.written_in.name.lower()
        response = await self.transport.stream("/events", {"format": format_name})
        try:
            yield read_events(response, self.transport.written_in)
        finally:
            response.close()
