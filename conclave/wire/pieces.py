"""Writes lists of any length as responses, a piece at a time.

So a long list does not hold up the event loop, and does not take too much memory.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from conclave.response_memory import ITEM_BYTES
from conclave.wire.endpoint import ENDPOINT
from conclave.wire.exchange import FORMAT, reply, write
from conclave.wire.handover import SHARE, Pieces
from conclave.wire.negotiate import Format
from conclave.wire.results import WireMessage
from conclave.wire.schemas.responses import schema_of

AT_ONCE_BYTES = 1024 * 1024
"""A list that takes at most 1 MiB is written at once, in a few milliseconds."""

PIECE_BYTES = 256 * 1024
"""About 256 KiB are written as one piece, in a millisecond. A single item may be larger."""

_END = b"]}"


async def reply_list(request: web.Request, items: list[Any]) -> web.StreamResponse:
    """Write ``items`` as the response, in the only field of its message. The list is empty afterwards.

    Memory for it was taken from the request's share of the budget.
    """
    endpoint = request[ENDPOINT]
    assert endpoint.answer  # noqa: S101 - an endpoint that answers a list has a message for it
    [field] = schema_of(endpoint.answer).fields
    share = request[SHARE]
    if share.held <= AT_ONCE_BYTES or not items:
        response = reply(request, {field: items})
        items.clear()
        return response
    answer, pieces = request[FORMAT], deque[bytes]()
    for chunk in _chunks(items):
        async with share.turn:
            # In a thread: a single item can be a group with all of its members.
            pieces.append(await asyncio.to_thread(_write, answer, endpoint.answer, field, chunk, is_first=not pieces))
    if answer is Format.JSON:
        pieces.append(_END)
    return Pieces(request, pieces, endpoint.status, answer.value)


def _chunks(items: list[Any]) -> Iterator[list[Any]]:
    """Yield ``items`` from the first on, as many at a time as make a piece, and remove them from the list."""
    items.reverse()
    while items:
        chunk, weight = [], 0
        while items and weight < PIECE_BYTES:
            chunk.append(items.pop())
            weight += _weight(chunk[-1])
        yield chunk


def _weight(item: Any) -> int:
    values = item.values() if isinstance(item, dict) else vars(item).values()
    bodies = sum(len(value) for value in values if isinstance(value, bytes))
    return ITEM_BYTES * (1 + sum(len(value) for value in values if isinstance(value, list))) + bodies


def _write(answer: Format, kind: type[WireMessage], field: str, chunk: list[Any], *, is_first: bool) -> bytes:
    """Write some items of the list, so that all pieces together are one message with all items.

    Protobuf messages that follow each other are one message. JSON needs its brackets only at both ends.
    """
    written = write(answer, kind.wire, schema_of(kind).dump({field: chunk}))
    chunk.clear()
    if answer is Format.PROTOBUF:
        return written
    written = written.removesuffix(_END)
    return written if is_first else b"," + written.removeprefix(b'{"%s":[' % field.encode())
