"""Receives the body of a request: at most 1 MiB within two minutes, unpacked. A larger one is answered 413."""

import asyncio
import zlib
from collections.abc import Sequence

from aiohttp import web

from conclave.errors import BadRequestError, BodyTooLargeError, UnknownEncodingError, UnsupportedMediaTypeError

MAX_BODY_BYTES = 1_048_576
"""At most 1 MiB in the body of a request, also once it is unpacked."""

BODY_SECONDS = 120.0
"""A body may take 2 minutes, the largest one at 9 KiB/s. It is in memory meanwhile."""

MOST_MEMBERS = 64
"""A gzip body may have at most 64 members (RFC 1952 section 2.2), each of which costs a look at all that follows it."""

_GZIP = b"\x1f\x8b"
"""How a gzip member begins."""

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


async def receive(request: web.Request, *, needs_type: bool) -> bytes:
    """Return the whole body, unpacked. Raises UnsupportedMediaTypeError, BadRequestError or BodyTooLargeError.

    ``needs_type``: the request does not say in which format a body is, so it may have none.
    """
    try:
        if request.content.is_eof():  # all of it is there, as most often: without a wait no watch is needed
            return await _whole(request, needs_type=needs_type)
        async with asyncio.timeout(BODY_SECONDS):
            return await _whole(request, needs_type=needs_type)
    except TimeoutError as error:
        raise BadRequestError(f"the body has not arrived within {BODY_SECONDS:g} seconds") from error
    except web.RequestPayloadError as error:
        raise BadRequestError("the body cannot be read") from error


async def _whole(request: web.Request, *, needs_type: bool) -> bytes:
    if needs_type and await _has_body(request):
        raise UnsupportedMediaTypeError
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise BodyTooLargeError
    body = request.content.read_nowait() if request.content.is_eof() else await _read(request)
    if len(body) > MAX_BODY_BYTES:
        raise BodyTooLargeError
    return unpack(body, _encodings(request))


async def _read(request: web.Request) -> bytes:
    """Read the whole body as it was sent. Raises BodyTooLargeError.

    It reads in smaller pieces than aiohttp does, which takes four times as many tiny chunks at once. And it leaves
    nothing behind when the connection breaks: aiohttp's error and what was read so far refer to each other. A hundred
    such bodies would be in memory until Python's garbage collection.
    """
    body = bytearray()
    try:
        while chunk := await request.content.readany():
            body += chunk
            del chunk
            if len(body) > MAX_BODY_BYTES:
                raise BodyTooLargeError
        return bytes(body)
    finally:
        body.clear()


async def _has_body(request: web.Request) -> bool:
    """Tell whether there is a body. If it is sent in chunks, wait until it begins."""
    return bool(request.content_length) or bool(await request.content.read(1))


def _encodings(request: web.Request) -> list[str]:
    """Return the content codings of all headers, in the order in which they were applied."""
    named = ",".join(request.headers.getall("Content-Encoding", ())).lower().split(",")
    return [each for part in named if (each := part.strip()) not in ("", "identity")]


def unpack(body: bytes, encodings: Sequence[str]) -> bytes:
    """Return what ``body`` was before it was compressed. aiohttp would go on unpacking what is never read.

    ``encodings``: content codings; gzip and deflate are known, and at most one may be there. An empty body stays empty.
    Raises UnknownEncodingError, BadRequestError or BodyTooLargeError.
    """
    if not encodings:
        return body
    # One alone: each more would take as much time again, and a head has room for thousands.
    if len(encodings) > 1 or encodings[0] not in ("gzip", "x-gzip", "deflate"):
        raise UnknownEncodingError
    try:
        unpacked, members = bytearray(), 0
        while body:
            members += 1
            if members > MOST_MEMBERS or (members > 1 and not body.startswith(_GZIP)):
                raise BadRequestError(f"the body is not {encodings[0]}, or in more than {MOST_MEMBERS} pieces")
            unpacking = zlib.decompressobj(_GZIP_OR_ZLIB)
            unpacked += unpacking.decompress(body, MAX_BODY_BYTES + 1 - len(unpacked))
            if len(unpacked) > MAX_BODY_BYTES:
                raise BodyTooLargeError
            if not unpacking.eof:
                raise BadRequestError(f"the body is not {encodings[0]}, or not all of it")
            body = unpacking.unused_data
    except zlib.error as error:
        raise BadRequestError(f"the body is not {encodings[0]}") from error
    return bytes(unpacked)
