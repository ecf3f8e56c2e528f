"""Unpacks compressed bodies, since aiohttp would go on unpacking what is never read."""

import zlib

from conclave.errors import BadRequestError, BodyTooLargeError, UnsupportedMediaTypeError

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


def unpack(body: bytes, encoding: str, most: int) -> bytes:
    """Return what ``body`` was before it was compressed.

    ``encoding``: a Content-Encoding: gzip, deflate, identity or "". ``most``: the most bytes that the result may have.
    Raises UnsupportedMediaTypeError, BadRequestError or BodyTooLargeError.
    """
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise UnsupportedMediaTypeError("send the body without Content-Encoding, or as gzip or deflate")
    unpacking = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        unpacked = unpacking.decompress(body, most + 1)
    except zlib.error as error:
        raise BadRequestError(f"the body is not {encoding}") from error
    if len(unpacked) > most:
        raise BodyTooLargeError
    if not unpacking.eof or unpacking.unused_data:
        raise BadRequestError(f"the body is not {encoding}")
    return unpacked
