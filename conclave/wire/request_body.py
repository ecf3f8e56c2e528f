"""Receives the body of a request: at most 1 MiB within two minutes, unpacked. A larger one is answered 413."""

import asyncio
import zlib

from aiohttp import web

from conclave.errors import BadRequestError, BodyTooLargeError, UnsupportedMediaTypeError

MAX_BODY_BYTES = 1_048_576
"""At most 1 MiB in the body of a request, also once it is unpacked."""

BODY_SECONDS = 120.0
"""A body may take 2 minutes, the largest one at 9 KiB/s. It is in memory meanwhile."""

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
    return unpack(body, _encoding(request))


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


def _encoding(request: web.Request) -> str:
    return request.headers.get("Content-Encoding", "").strip().lower()


def unpack(body: bytes, encoding: str) -> bytes:
    """Return what ``body`` was before it was compressed. aiohttp would go on unpacking what is never read.

    ``encoding``: a Content-Encoding: gzip, deflate, identity or "".
    Raises UnsupportedMediaTypeError, BadRequestError or BodyTooLargeError.
    """
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise UnsupportedMediaTypeError("send the body without Content-Encoding, or as gzip or deflate")
    unpacking = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        unpacked = unpacking.decompress(body, MAX_BODY_BYTES + 1)
    except zlib.error as error:
        raise BadRequestError(f"the body is not {encoding}") from error
    if len(unpacked) > MAX_BODY_BYTES:
        raise BodyTooLargeError
    if not unpacking.eof or unpacking.unused_data:
        raise BadRequestError(f"the body is not {encoding}")
    return unpacked
