"""Sending, fetching, reading."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

from conclave.client.calls.caller import ApiCalls
from conclave.client.events import Lagged
from conclave.client.stream import read_events
from conclave.client.transport import MAX_BODIES_BYTES, Call, path
from conclave.wire.events import Event
from conclave.wire.results import FetchedMessage, MessagePage, MessageSent
from conclave.wire.schemas import messages as wire


class MessageCalls(ApiCalls):
    """What a user does about messages."""

    async def send(
        self, group_id: UUID, payload: bytes, *, self_destruct_seconds: int = 0, send_id: UUID | None = None
    ) -> int:
        """Send a message and return its number. It is repeated until there is an answer, and stored once.

        ``self_destruct_seconds``: how long each reader may see it once it was read; 0: for ever. ``send_id``: give one
        if you want to go on after a ClientError, or after a restart: with the same one, within a day.
        """
        body = wire.SendMessage(payload, self_destruct_seconds, (send_id or uuid4()).bytes)
        call = Call("POST", path("groups", group_id, "messages"), wire.SendMessageRequest, body, repeatable=True)
        return (await self.transport.request(call, MessageSent)).sequence_num

    async def fetch(
        self, group_id: UUID, after: int = 0, limit: int = 100, *, include_redacted: bool = False
    ) -> tuple[FetchedMessage, ...]:
        """Fetch up to ``limit`` messages with numbers greater than ``after``. Only an empty answer is the end.

        This says that the user has everything up to ``after``, and nothing of what is returned: that counts as fetched
        once the next call has its last number as ``after``. So store it first, and then call again, also when nothing
        more is expected: in a group with delete-after-fetch a page that is not confirmed so is kept for ever.
        """
        query = {"after": str(after), "limit": str(limit), "confirm": wire.NEXT}
        if include_redacted:
            query["include_redacted"] = "true"
        call = Call(
            "GET", path("groups", group_id, "messages"), query=query, repeatable=True, max_bytes=MAX_BODIES_BYTES
        )
        return (await self.transport.request(call, MessagePage)).messages

    async def take_back(self, group_id: UUID, sequence_num: int, *, dry_run: bool = False) -> None:
        """Take a message back: an own one; as an admin any, if the operator lets admins. Nobody sees it any more.

        Doing so again changes nothing. ResourceError: there is no such message any more. GroupError: it is not yours.
        InputError: it is a commit. ``Sync.take_back`` is for a history. ``dry_run``: nothing changes, and it raises
        what it would raise.
        """
        query = {"dry_run": "true"} if dry_run else None
        call = Call("DELETE", path("groups", group_id, "messages", str(sequence_num)), query=query, repeatable=True)
        await self.transport.send(call)

    async def read(self, group_id: UUID, sequence_num: int) -> None:
        """Say that the user has really seen everything up to a number. It starts the timers of what it covers."""
        body = wire.ReadReceipt(sequence_num)
        call = Call("POST", path("groups", group_id, "read"), wire.ReadReceiptRequest, body, repeatable=True)
        await self.transport.send(call)

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[AsyncIterator[Event | Lagged]]:
        """Open one stream of events, which ends when the connection does. Raises ClientError.

        From here on nothing is missed; what was before has to be fetched. ``Sync`` does all that.
        """
        word = self.transport.written_in.name.lower()
        response = await self.transport.stream("/events", {"format": word})
        try:
            yield read_events(response, self.transport.written_in)
        finally:
            response.close()
