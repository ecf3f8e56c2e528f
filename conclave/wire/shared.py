"""Answers with what is in memory once for all clients: documents and files that never change while the server runs."""

from collections.abc import AsyncGenerator, Sequence
from http import HTTPStatus

from aiohttp import web

from conclave.wire.handover import StreamedResponse

_PIECE_BYTES = 64 * 1024
"""At most 64 KiB of what is large wait for a client at a time."""


def split_body(body: bytes) -> Sequence[bytes]:
    """Return a body as the pieces that ``reply_shared`` sends."""
    return [body[begin : begin + _PIECE_BYTES] for begin in range(0, len(body), _PIECE_BYTES)]


def reply_shared(request: web.Request, pieces: Sequence[bytes], media_type: str) -> web.StreamResponse:
    """Answer with what is in memory once for all.

    Every client may ask for it. One that takes it slowly holds no open file, of which the server needs the last ones
    itself, and little of the memory for responses.
    """
    return StreamedResponse(request, _each(pieces), HTTPStatus.OK, media_type, sum(map(len, pieces)))


def matches_etag(request: web.Request, tag: str) -> bool:
    """Tell whether the client says that it has the version with this ETag."""
    return any(each.value in (tag, "*") for each in request.if_none_match or ())


async def _each(pieces: Sequence[bytes]) -> AsyncGenerator[bytes, None]:
    for piece in pieces:
        yield piece
