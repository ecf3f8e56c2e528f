"""Sends lists of any length in bounded memory.

A short list is sent at once. A longer one is sent in chunks: each is read in a separate transaction once the system has
accepted the previous one. For each, the caller's session and role are checked again. If a read fails, the connection is
reset.

The message of a list is written in parts: item by item, and long items in parts too. In protobuf concatenated messages
are one message; JSON needs brackets at both ends, and commas between.
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
"""A reserved field number of GroupInfo in `proto/conclave.proto`: readers skip it as an unknown field."""

BASE64_BYTES = 3
"""Base64 encodes three bytes as four characters: parts with a multiple of three bytes can be concatenated."""

RETRY_SECONDS = 1
"""Clients may retry after a second if an item has grown while it was written."""

_PADDING_BLOCK = 128
_MIN_PADDING = 3
"""An empty field with a number above 15 has 3 bytes."""


class ItemWriter:
    """Writes the items of one field of a message."""

    def __init__(self, written_in: Format, kind: type[WireMessage], field: str) -> None:
        """``kind``: the message. ``field``: a list of messages."""
        self.written_in, self.kind, self.field = written_in, kind, field
        self._is_first = True

    def items(self, items: Sequence[Any]) -> bytes:
        """Return ``items`` as bytes."""
        if not items:
            return b""
        text = write(self.written_in, self.kind.wire, schema_of(self.kind).dump({self.field: items}))
        if self.written_in is Format.JSON:
            text = text[len(_json_start(self.field)) : -len(b"]}")]
        return self.separator() + text

    def separator(self) -> bytes:
        """Return the separator before the next item."""
        is_first, self._is_first = self._is_first, False
        return b"" if is_first or self.written_in is Format.PROTOBUF else b","


class ListWriter(ItemWriter):
    """Writes a message whose first field is a list."""

    def __init__(self, written_in: Format, kind: type[WireMessage]) -> None:
        """``kind``: the message."""
        super().__init__(written_in, kind, next(iter(schema_of(kind).fields)))

    def begin(self) -> bytes:
        """Return the bytes before the first item."""
        return _json_start(self.field) if self.written_in is Format.JSON else b""

    def end(self, **others: Any) -> bytes:
        """Return the bytes after the last item. ``others``: the other fields of the message."""
        rest = write(self.written_in, self.kind.wire, schema_of(self.kind).dump(others))
        if self.written_in is Format.PROTOBUF:
            return rest
        return b"]," + rest.removeprefix(b"{") if others else b"]}"


class _LongItem:
    """An item of a list with one field that is written in parts."""

    def __init__(self, outer: ListWriter, kind: type[WireMessage], item: Any, field: str, empty: bytes) -> None:
        """``item``: its ``field`` is empty. ``empty``: the empty value in JSON, two characters."""
        self._outer = outer
        self._is_json = outer.written_in is Format.JSON
        text = write(outer.written_in, kind.wire, schema_of(kind).dump(item))
        self._head, self._tail = text, b""
        if self._is_json:
            # No string contains these bytes: quotation marks in strings are escaped.
            before, _, after = text.partition(b'"%s":%s' % (field.encode(), empty))
            self._head, self._tail = before + b'"%s":%s' % (field.encode(), empty[:1]), empty[1:] + after

    def _opening(self, size: int) -> bytes:
        """Return the bytes before an item of ``size`` bytes."""
        prefix = b"" if self._is_json else field_prefix(self._outer.kind.wire, self._outer.field, size)
        return self._outer.separator() + prefix


class LongList(_LongItem):
    """Writes an item with a field that is a long list, which may change while it is written.

    In protobuf the length precedes an item. So an upper bound of it is written, and the item is padded with a field
    that readers skip.
    """

    def __init__(self, outer: ListWriter, kind: type[WireMessage], item: Any, field: str, size: int) -> None:
        """``item``: its ``field`` is empty. ``size``: an upper bound of the field's bytes in protobuf."""
        super().__init__(outer, kind, item, field, b"[]")
        self._inner = ItemWriter(outer.written_in, kind, field)
        self._left = size + _MIN_PADDING

    def begin(self) -> bytes:
        """Return the bytes before the field's items."""
        return self._opening(len(self._head) + self._left) + self._head

    def items(self, items: Sequence[Any]) -> bytes:
        """Return the next items of the field as bytes. Raises UnavailableError if they exceed the bound."""
        text = self._inner.items(items)
        self._left -= len(text)
        if self._left < _MIN_PADDING and not self._is_json:
            raise UnavailableError("the list has grown while it was read", seconds=RETRY_SECONDS)
        return text

    def end(self) -> bytes:
        """Return the bytes after the field's items."""
        return self._tail if self._is_json else padding(self._left)


class LongBytes(_LongItem):
    """Writes an item with a long field of bytes."""

    def __init__(self, outer: ListWriter, kind: type[WireMessage], item: Any, field: str, size: int) -> None:
        """``item``: its ``field`` is empty. ``size``: the bytes of the field."""
        super().__init__(outer, kind, item, field, b'""')
        if not self._is_json:
            self._head += field_prefix(kind.wire, field, size)
        self._size = size

    def begin(self) -> bytes:
        """Return the bytes before the field's value."""
        return self._opening(len(self._head) + self._size) + self._head

    def part(self, data: bytes) -> bytes:
        """Return the next part of the value. All parts but the last have a multiple of BASE64_BYTES."""
        return base64.b64encode(data) if self._is_json else data

    def end(self) -> bytes:
        """Return the bytes after the field's value."""
        return self._tail


def padding(size: int) -> bytes:
    """Return padding of exactly ``size`` bytes, at least 3, that readers of GroupInfo skip."""
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
"""Lists of at most about 256 KiB are sent at once."""

CHUNK_BYTES = 64 * 1024
"""The size of the chunks of longer lists."""

MAX_INLINE_BYTES = 32 * 1024
"""Larger parts are written in a thread."""

Read = Callable[[Span], Awaitable[ListPart[Any]]]
"""Reads a part of a list after checking the caller's session. Raises as its action does."""

WriteLong = Callable[[ListWriter, Any], AsyncIterator[bytes]]
"""Writes an item that is too long for a part: ``ListPart.long``."""


def first_span(paging: Paging, *, is_complete: bool) -> Span:
    """Return the first part of a list to read. ``is_complete``: without parameters the whole list is requested."""
    rows = None if is_complete and not paging.is_given else paging.limit or MAX_PAGE_ITEMS
    return Span(paging.after, rows, MAX_WHOLE_BYTES)


def next_span(part: ListPart[Any] | None, rows: int | None = None) -> Span:
    """Return the part of a list to read after ``part``, up to ``rows`` rows if given."""
    return Span(part.last if part else None, rows, CHUNK_BYTES)


async def reply(
    request: web.Request, span: Span, first: ListPart[Any], read: Read, write_long: WriteLong | None
) -> web.StreamResponse:
    """Answer with the list that begins with ``first``, the part that ``span`` requested."""
    endpoint = request[ENDPOINT]
    assert endpoint.answer  # noqa: S101 - list endpoints have a message
    list_response = _ListResponse(request, ListWriter(request[FORMAT], endpoint.answer), read, write_long)
    if first.long is None and (first.is_end or len(first.items) == span.rows):
        return await list_response.whole(first)
    return StreamedResponse(request, list_response.chunks(first, span.rows), endpoint.status, request[FORMAT].value)


class _ListResponse:
    """Writes the response with a list."""

    def __init__(self, request: web.Request, writer: ListWriter, read: Read, write_long: WriteLong | None) -> None:
        self._request, self._writer, self._read, self._write_long = request, writer, read, write_long

    async def whole(self, part: ListPart[Any]) -> web.Response:
        """Return a response with the items of ``part`` only."""
        items = await self._items(part)
        return reply_written(self._request, [self._writer.begin(), items, self._writer.end(more=not part.is_end)])

    async def chunks(self, part: ListPart[Any], rows: int | None) -> AsyncGenerator[bytes, None]:
        """Yield the list in chunks, up to ``rows`` rows if given."""
        chunk = self._writer.begin()
        while True:
            if part.long is None:
                chunk += await self._items(part)
            else:
                assert self._write_long  # noqa: S101 - given for lists with long items
                async for each in self._write_long(self._writer, part.long):
                    yield chunk + each
                    chunk = b""
            if rows is not None:
                rows -= len(part.items) + (part.long is not None)
            if part.is_end or rows == 0:
                break
            if chunk:
                yield chunk
                chunk = b""
            part = await self._read(next_span(part, rows))
        yield chunk + self._writer.end(more=not part.is_end)

    async def _items(self, part: ListPart[Any]) -> bytes:
        """Write the items of a part."""
        if part.size <= MAX_INLINE_BYTES:
            return self._writer.items(part.items)
        async with self._request[BUDGET].turn:
            return await asyncio.to_thread(self._writer.items, part.items)
