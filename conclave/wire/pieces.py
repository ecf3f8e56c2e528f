"""Writes a list that is in memory as a response, a piece at a time.

So a long one does not hold up the event loop, and its items leave memory as they are written. What need not be in
memory as a whole is answered by ``lists.py``.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from conclave.response_memory import ITEM_BYTES
from conclave.wire.endpoint import ENDPOINT
from conclave.wire.exchange import FORMAT, reply
from conclave.wire.handover import SHARE, Pieces
from conclave.wire.list_writer import ListWriter
from conclave.wire.schemas.responses import schema_of

AT_ONCE_BYTES = 1024 * 1024
"""A list that takes at most 1 MiB is written at once, in a few milliseconds."""

PIECE_BYTES = 256 * 1024
"""About 256 KiB are written as one piece, in a millisecond. A single item may be larger."""


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
    writer = ListWriter(request[FORMAT], endpoint.answer)
    pieces = deque([writer.begin()])
    for chunk in _chunks(items):
        async with share.turn:
            pieces.append(await asyncio.to_thread(writer.items, chunk))
    pieces.append(writer.end())
    return Pieces(request, pieces, endpoint.status, request[FORMAT].value)


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
    return ITEM_BYTES + sum(len(value) for value in vars(item).values() if isinstance(value, bytes))
