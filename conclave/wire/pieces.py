"""Lists as responses, however long: written a piece at a time, so that neither memory nor the event loop is held."""

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from conclave.budget import ITEM_BYTES
from conclave.wire.endpoint import ENDPOINT
from conclave.wire.exchange import FORMAT, reply, write
from conclave.wire.handover import SHARE, Pieces
from conclave.wire.negotiate import Format
from conclave.wire.schemas.base import ResponseSchema, the

AT_ONCE_BYTES = 1024 * 1024
"""A list that takes no more is written at once: a few milliseconds."""

PIECE_BYTES = 256 * 1024
"""What is written as one piece, about: a millisecond, but for an item that is larger."""

_END = b"]}"


async def reply_list(request: web.Request, items: list[Any]) -> web.StreamResponse:
    """Write ``items`` as the response: the only field of the endpoint's message. The list is empty afterwards.

    Memory for it was taken from the request's share of the budget.
    """
    endpoint = request[ENDPOINT]
    assert endpoint.answer  # noqa: S101 - an endpoint that answers a list has a message for it
    [field] = the(endpoint.answer).fields
    share = request[SHARE]
    if share.held <= AT_ONCE_BYTES or not items:
        response = reply(request, {field: items})
        items.clear()
        return response
    answer, pieces = request[FORMAT], deque[bytes]()
    for batch in _batches(items):
        async with share.turn:
            # Beside the loop: a single item can be a group with all of its members.
            pieces.append(await asyncio.to_thread(_write, answer, endpoint.answer, field, batch, is_first=not pieces))
    if answer is Format.JSON:
        pieces.append(_END)
    return Pieces(pieces, endpoint.status, answer.value)


def _batches(items: list[Any]) -> Iterator[list[Any]]:
    """Take ``items`` away, from the first on, as many at once as make a piece."""
    items.reverse()
    while items:
        batch, weight = [], 0
        while items and weight < PIECE_BYTES:
            batch.append(items.pop())
            weight += _weight(batch[-1])
        yield batch


def _weight(item: Any) -> int:
    values = item.values() if isinstance(item, dict) else vars(item).values()
    bodies = sum(len(value) for value in values if isinstance(value, bytes))
    return ITEM_BYTES * (1 + sum(len(value) for value in values if isinstance(value, list))) + bodies


def _write(answer: Format, schema: type[ResponseSchema], field: str, batch: list[Any], *, is_first: bool) -> bytes:
    """Write a part of the list: messages that have a part each are one message with all, but for JSON's brackets."""
    written = write(answer, schema.__name__, the(schema).dump({field: batch}))
    batch.clear()
    if answer is Format.PROTOBUF:
        return written
    written = written.removesuffix(_END)
    return written if is_first else b"," + written.removeprefix(b'{"%s":[' % field.encode())
