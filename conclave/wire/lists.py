"""Answers with lists of any length, in bounded memory.

A list whose first part is all of it is answered whole. A longer one goes in chunks: each is read, by a transaction of
its own, when the system has taken the one before. Before each the caller's session is asked for again, and the action
that reads it asks for the caller's role. If one cannot be read, the connection is broken off.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from conclave.store.lists import ListPart, Span
from conclave.wire.endpoint import ENDPOINT
from conclave.wire.exchange import FORMAT, reply_written
from conclave.wire.fields import LONGEST_PAGE
from conclave.wire.handover import BUDGET, Streamed
from conclave.wire.list_writer import ListWriter
from conclave.wire.schemas.lists import Paging

FIRST_BYTES = 256 * 1024
"""A list of at most about 256 KiB is answered whole."""

CHUNK_BYTES = 64 * 1024
"""What follows goes in chunks of about 64 KiB."""

AT_ONCE_BYTES = 32 * 1024
"""What is larger than about 32 KiB is written in a thread."""

Read = Callable[[Span], Awaitable[ListPart[Any]]]
"""Reads a part of a list for a caller whose session is alive. Raises what its action raises."""

WriteLong = Callable[[ListWriter, Any], AsyncIterator[bytes]]
"""Writes an item that is too long for a part: ``ListPart.long``."""


def first_span(paging: Paging, *, is_complete: bool) -> Span:
    """Return which part of a list to read first. ``is_complete``: without parameters all of it is asked for."""
    rows = None if is_complete and not paging.is_given else paging.limit or LONGEST_PAGE
    return Span(paging.after, rows, FIRST_BYTES)


def next_span(part: ListPart[Any] | None, rows: int | None = None) -> Span:
    """Return which part of a list to read after ``part``, up to ``rows`` rows if that is given."""
    return Span(part.last if part else None, rows, CHUNK_BYTES)


async def reply(
    request: web.Request, span: Span, first: ListPart[Any], read: Read, write_long: WriteLong | None
) -> web.StreamResponse:
    """Answer with the list that begins with ``first``, which is what ``span`` asked for."""
    endpoint = request[ENDPOINT]
    assert endpoint.answer  # noqa: S101 - an endpoint that answers a list has a message for it
    listed = _Listed(request, ListWriter(request[FORMAT], endpoint.answer), read, write_long)
    if first.long is None and (first.is_end or len(first.items) == span.rows):
        return await listed.whole(first)
    return Streamed(request, listed.chunks(first, span.rows), endpoint.status, request[FORMAT].value)


class _Listed:
    """A list that is being answered."""

    def __init__(self, request: web.Request, writer: ListWriter, read: Read, write_long: WriteLong | None) -> None:
        self._request, self._writer, self._read, self._write_long = request, writer, read, write_long

    async def whole(self, part: ListPart[Any]) -> web.Response:
        """Return the response with a list that ``part`` has all of."""
        items = await self._items(part)
        return reply_written(self._request, [self._writer.begin(), items, self._writer.end(more=not part.is_end)])

    async def chunks(self, part: ListPart[Any], rows: int | None) -> AsyncGenerator[bytes, None]:
        """Yield the list a chunk at a time, up to ``rows`` rows if that is given."""
        written = self._writer.begin()
        while True:
            if part.long is None:
                written += await self._items(part)
            else:
                assert self._write_long  # noqa: S101 - a list with long items is answered with what writes them
                async for each in self._write_long(self._writer, part.long):
                    yield written + each
                    written = b""
            if rows is not None:
                rows -= len(part.items) + (part.long is not None)
            if part.is_end or rows == 0:
                break
            if written:
                yield written
                written = b""
            part = await self._read(next_span(part, rows))
        yield written + self._writer.end(more=not part.is_end)

    async def _items(self, part: ListPart[Any]) -> bytes:
        """Write the items of a part."""
        if part.size <= AT_ONCE_BYTES:
            return self._writer.items(part.items)
        async with self._request[BUDGET].turn:
            return await asyncio.to_thread(self._writer.items, part.items)
