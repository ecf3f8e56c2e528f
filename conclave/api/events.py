"""The stream of events."""

import random

from aiohttp import web

from conclave import keys
from conclave.actions import sessions
from conclave.api.acting import look
from conclave.auth import tokens
from conclave.errors import TokenExpiredError
from conclave.events import Stream
from conclave.wire import sse
from conclave.wire.exchange import read_query
from conclave.wire.negotiate import Format, answer_format
from conclave.wire.schemas.events import Listen

KEEP_ALIVE_SECONDS = 10.0
"""A silent stream gets a comment after at most 10 seconds. The protocol allows at most 15 s."""


async def stream(request: web.Request) -> web.StreamResponse:
    """GET /events: Listen to what happens in the caller's groups.

    The stream is open until the client goes, the session ends, or the server stops. An open stream is a use of its
    session.
    """
    app, caller = request.app, request[tokens.CALLER]
    written_in = _format(request)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
    async with sse.cut_off_late(request) as on_end:
        with app[keys.EVENTS].listen(caller.user_id, caller.session_id, on_end) as events:
            # The stream learns only from here on that its session ends: it may have ended since it was looked up.
            if not await look(request, sessions.exists, caller.session_id):
                raise TokenExpiredError
            await response.prepare(request)
            await _hand_on(request, response, events, written_in)
        await response.write_eof()
    return response


async def _hand_on(request: web.Request, response: web.StreamResponse, events: Stream, written_in: Format) -> None:
    app, caller = request.app, request[tokens.CALLER]
    longest = min(KEEP_ALIVE_SECONDS, app[keys.CONFIG].token_ttl_seconds / 2)
    await response.write(sse.KEEP_ALIVE)  # sends the headers too, which tell the client that it is connected
    ended = False
    while not ended:
        # Streams that heard the same event would otherwise all be due at the same moment from then on.
        await events.wait(longest * random.uniform(0.75, 1))  # noqa: S311 - nothing to guess here
        ended = events.ended
        lost, news = events.take()
        written = [sse.write_lagged(lost)] * bool(lost) + [sse.write(event, written_in) for event in news]
        app[keys.ACTIVITY].keep(caller.session_id, app[keys.CLOCK].now())
        await response.write(b"".join(written) or sse.KEEP_ALIVE)


def _format(request: web.Request) -> Format:
    """Return the format that the query names, or the format in which the session's token was issued."""
    named = read_query(request, Listen).format
    if named:
        return Format[named.upper()]
    token = tokens.require_token(request.headers, request.app[keys.CONFIG].auth_header)
    return answer_format("", "", token[-1:])
