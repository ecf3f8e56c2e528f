"""Answers with documents and files that all responses share. They do not change while the server runs."""

from collections.abc import AsyncGenerator, Sequence
from http import HTTPStatus

from aiohttp import web

from conclave.wire.handover import StreamedResponse

_PIECE_BYTES = 64 * 1024
"""The size of the chunks of large bodies."""


def split_body(body: bytes) -> Sequence[bytes]:
    """Split a body into the pieces that ``reply_shared`` sends."""
    return [body[begin : begin + _PIECE_BYTES] for begin in range(0, len(body), _PIECE_BYTES)]


def reply_shared(request: web.Request, pieces: Sequence[bytes], media_type: str) -> web.StreamResponse:
    """Answer with a body that all responses share.

    A slow client keeps no file open, and uses little of the response memory.
    """
    return StreamedResponse(request, _each(pieces), HTTPStatus.OK, media_type, sum(map(len, pieces)))


def matches_etag(request: web.Request, tag: str) -> bool:
    """Return whether If-None-Match contains this ETag."""
    return any(each.value in (tag, "*") for each in request.if_none_match or ())


async def _each(pieces: Sequence[bytes]) -> AsyncGenerator[bytes, None]:
    for piece in pieces:
        yield piece
