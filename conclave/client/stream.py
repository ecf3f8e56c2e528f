"""Reads a stream of server-sent events."""

from collections.abc import AsyncIterator

import orjson
from aiohttp import ClientError as HttpError, ClientResponse
from aiohttp.http import HttpProcessingError
from aiohttp.http_exceptions import LineTooLong

from conclave.client import marshal
from conclave.client.errors import AnswerError, AnswerTooLongError, NoAnswerError
from conclave.client.events import Lagged
from conclave.wire import conclave_pb2
from conclave.wire.events import EVENTS, Event
from conclave.wire.formats import Format

_LAGGED = "lagged"


async def read_events(response: ClientResponse, written_in: Format) -> AsyncIterator[Event | Lagged]:
    """Yield the events of a stream until it ends. Unknown ones are skipped.

    Raises NoAnswerError if the connection breaks or times out, and AnswerError.
    """
    name, data = "", ""
    try:
        async for line in response.content:
            field, _, value = line.decode().rstrip("\r\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                data = value
            elif not field and data:
                event = _event(name, data, written_in)
                name, data = "", ""
                if event:
                    yield event
    except (HttpError, TimeoutError, OSError) as error:
        raise NoAnswerError(f"the stream of events broke: {error or type(error).__name__}") from error
    except LineTooLong as error:  # aiohttp's limit is 128 KiB
        raise AnswerTooLongError("the stream has a line that is too long") from error
    except (ValueError, HttpProcessingError) as error:  # invalid UTF-8 or HTTP
        raise AnswerError(f"the stream has a malformed event: {error}") from error


def _event(name: str, data: str, written_in: Format) -> Event | Lagged | None:
    try:
        if name == _LAGGED:
            return Lagged(int(data))
        if written_in is Format.JSON:
            return marshal.from_json(EVENTS[name], orjson.loads(data)) if name in EVENTS else None
        message = conclave_pb2.ServerEvent.FromString(bytes.fromhex(data))
        kind = next((field.name for field, _ in message.ListFields()), "")
        return marshal.from_protobuf(EVENTS[kind], getattr(message, kind)) if kind in EVENTS else None
    except marshal.DECODE_ERRORS as error:
        raise AnswerError(f"the stream has a malformed event: {error}") from error
