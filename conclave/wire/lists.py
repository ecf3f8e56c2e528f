"""Answers with lists of any length, in bounded memory.

A list whose first part is all of it is answered whole. A longer one goes in chunks: each is read, by a transaction of
its own, when the system has taken the one before. Before each the caller's session is asked for again, and the action
that reads it asks for the caller's role. If one cannot be read, the connection is broken off.

The message of a list is written in parts: items one after the other, and a long item itself in parts. Put together, the
parts are one message. In protobuf messages that follow each other are one message; JSON needs its brackets at both
ends, and commas between.
"""

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from aiohttp import web

from conclave.errors import UnavailableError
from conclave.store.lists import ListPart, Span
from conclave.wire.exchange import ENDPOINT, FORMAT, reply_written, write
from conclave.wire.fields import MAX_PAGE_ITEMS
from conclave.wire.formats import Format
from conclave.wire.handover import BUDGET, StreamedResponse
from conclave.wire.protobuf import field_prefix, varint
from conclave.wire.results import WireMessage
from conclave.wire.schemas.base import Paging, schema_of

PADDING_FIELD = 100
"""The number in GroupInfo that no field has: readers pass over what is there. `proto/conclave.proto` reserves it."""

BASE64_BYTES = 3
"""Base64 has four characters for three bytes: parts of so many bytes, or a multiple, follow each other."""

RETRY_SECONDS = 1
"""An item that has grown while it was written may be asked for again after a second."""

_PADDING_BLOCK = 128
_MIN_PADDING = 3
"""A field with a number beyond 15 and no content has 3 bytes."""


class ItemWriter:
    """Writes the items of one field of a message."""

    def __init__(self, written_in: Format, kind: type[WireMessage], field: str) -> None:
        """``kind``: the message. ``field``: a list of messages."""
        self.written_in, self.kind, self.field = written_in, kind, field
        self._is_first = True

    def items(self, items: Sequence[Any]) -> bytes:
        """Return the next ``items``."""
        if not items:
            return b""
        written = write(self.written_in, self.kind.wire, schema_of(self.kind).dump({self.field: items}))
        if self.written_in is Format.JSON:
            written = written[len(_json_start(self.field)) : -len(b"]}")]
        return self.separator() + written

    def separator(self) -> bytes:
        """Return what stands before the next item."""
        is_first, self._is_first = self._is_first, False
        return b"" if is_first or self.written_in is Format.PROTOBUF else b","


class ListWriter(ItemWriter):
    """Writes a message whose first field is a list."""

    def __init__(self, written_in: Format, kind: type[WireMessage]) -> None:
        """``kind``: the message."""
        super().__init__(written_in, kind, next(iter(schema_of(kind).fields)))

    def begin(self) -> bytes:
        """Return what stands before the items."""
        return _json_start(self.field) if self.written_in is Format.JSON else b""

    def end(self, **others: Any) -> bytes:
        """Return what stands behind the items. ``others``: the other fields of the message."""
        rest = write(self.written_in, self.kind.wire, schema_of(self.kind).dump(others))
        if self.written_in is Format.PROTOBUF:
            return rest
        return b"]," + rest.removeprefix(b"{") if others else b"]}"


class _LongItem:
    """An item of a list, one of whose fields is written in parts."""

    def __init__(self, outer: ListWriter, kind: type[WireMessage], item: Any, field: str, empty: bytes) -> None:
        """``item``: that ``field`` of it is empty. ``empty``: how JSON writes that, in two characters."""
        self._outer = outer
        self._is_json = outer.written_in is Format.JSON
        text = write(outer.written_in, kind.wire, schema_of(kind).dump(item))
        self._head, self._tail = text, b""
        if self._is_json:
            # No text has these bytes in it: there a backslash stands before each quotation mark.
            before, _, after = text.partition(b'"%s":%s' % (field.encode(), empty))
            self._head, self._tail = before + b'"%s":%s' % (field.encode(), empty[:1]), empty[1:] + after

    def _opening(self, size: int) -> bytes:
        """Return what stands before an item of ``size`` bytes. JSON does not state the size."""
        prefix = b"" if self._is_json else field_prefix(self._outer.kind.wire, self._outer.field, size)
        return self._outer.separator() + prefix


class LongList(_LongItem):
    """Writes an item with a field that is a long list itself, whose items may come and go meanwhile.

    In protobuf the length of an item stands before it. So it is given one that suffices, and the rest is padded by a
    field that readers pass over.
    """

    def __init__(self, outer: ListWriter, kind: type[WireMessage], item: Any, field: str, size: int) -> None:
        """``item``: that ``field`` of it is empty. ``size``: the bytes that suffice for the field in protobuf."""
        super().__init__(outer, kind, item, field, b"[]")
        self._inner = ItemWriter(outer.written_in, kind, field)
        self._left = size + _MIN_PADDING

    def begin(self) -> bytes:
        """Return what stands before the field's items."""
        return self._opening(len(self._head) + self._left) + self._head

    def items(self, items: Sequence[Any]) -> bytes:
        """Return the next items of the field. Raises UnavailableError if they have grown too long meanwhile."""
        text = self._inner.items(items)
        self._left -= len(text)
        if self._left < _MIN_PADDING and not self._is_json:
            raise UnavailableError("the list has grown while it was read", seconds=RETRY_SECONDS)
        return text

    def end(self) -> bytes:
        """Return what stands behind the field's items."""
        return self._tail if self._is_json else padding(self._left)


class LongBytes(_LongItem):
    """Writes an item with a field of very many bytes."""

    def __init__(self, outer: ListWriter, kind: type[WireMessage], item: Any, field: str, size: int) -> None:
        """``item``: that ``field`` of it is empty. ``size``: the bytes of the field."""
        super().__init__(outer, kind, item, field, b'""')
        if not self._is_json:
            self._head += field_prefix(kind.wire, field, size)
        self._size = size

    def begin(self) -> bytes:
        """Return what stands before the bytes."""
        return self._opening(len(self._head) + self._size) + self._head

    def part(self, data: bytes) -> bytes:
        """Return the next bytes. All parts but the last have a multiple of BASE64_BYTES."""
        return base64.b64encode(data) if self._is_json else data

    def end(self) -> bytes:
        """Return what stands behind the bytes."""
        return self._tail


def padding(size: int) -> bytes:
    """Return exactly ``size`` bytes, at least 3, that readers of GroupInfo pass over."""
    count, rest = divmod(size, _PADDING_BLOCK)
    if count and 0 < rest < _MIN_PADDING:
        count, rest = count - 1, rest + _PADDING_BLOCK // 2
        return _block(_PADDING_BLOCK // 2) + _block(_PADDING_BLOCK) * count + _block(rest)
    return _block(_PADDING_BLOCK) * count + (_block(rest) if rest else b"")


def _block(size: int) -> bytes:
    content = size - _MIN_PADDING
    return varint(PADDING_FIELD << 3 | 2) + varint(content) + bytes(content)


def _json_start(field: str) -> bytes:
    return b'{"%s":[' % field.encode()


MAX_WHOLE_BYTES = 256 * 1024
"""A list of at most about 256 KiB is answered whole."""

CHUNK_BYTES = 64 * 1024
"""What follows goes in chunks of about 64 KiB."""

MAX_INLINE_BYTES = 32 * 1024
"""What is larger than about 32 KiB is written in a thread."""

Read = Callable[[Span], Awaitable[ListPart[Any]]]
"""Reads a part of a list for a caller whose session is alive. Raises what its action raises."""

WriteLong = Callable[[ListWriter, Any], AsyncIterator[bytes]]
"""Writes an item that is too long for a part: ``ListPart.long``."""


def first_span(paging: Paging, *, is_complete: bool) -> Span:
    """Return which part of a list to read first. ``is_complete``: without parameters all of it is asked for."""
    rows = None if is_complete and not paging.is_given else paging.limit or MAX_PAGE_ITEMS
    return Span(paging.after, rows, MAX_WHOLE_BYTES)


def next_span(part: ListPart[Any] | None, rows: int | None = None) -> Span:
    """Return which part of a list to read after ``part``, up to ``rows`` rows if that is given."""
    return Span(part.last if part else None, rows, CHUNK_BYTES)


async def reply(
    request: web.Request, span: Span, first: ListPart[Any], read: Read, write_long: WriteLong | None
) -> web.StreamResponse:
    """Answer with the list that begins with ``first``, which is what ``span`` asked for."""
    endpoint = request[ENDPOINT]
    assert endpoint.answer  # noqa: S101 - an endpoint that answers a list has a message for it
    listed = _ListResponse(request, ListWriter(request[FORMAT], endpoint.answer), read, write_long)
    if first.long is None and (first.is_end or len(first.items) == span.rows):
        return await listed.whole(first)
    return StreamedResponse(request, listed.chunks(first, span.rows), endpoint.status, request[FORMAT].value)


class _ListResponse:
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
        if part.size <= MAX_INLINE_BYTES:
            return self._writer.items(part.items)
        async with self._request[BUDGET].turn:
            return await asyncio.to_thread(self._writer.items, part.items)
