"""The stream of events."""

from aiohttp import web

from conclave import auth, keys
from conclave.errors import TokenExpiredError
from conclave.store import sessions
from conclave.wire import sse
from conclave.wire.exchange import read_query
from conclave.wire.negotiate import Format, answer_format

KEEP_ALIVE_SECONDS = 10.0
"""A silent stream gets a comment so often; the protocol asks for 15 s at least."""


async def stream(request: web.Request) -> web.StreamResponse:
    """GET /events

    Open until the client goes, the session ends, or the server stops. An open stream is a use of its session.
    """
    app, caller = request.app, request[auth.CALLER]
    written_in = _format(request)
    pause = min(KEEP_ALIVE_SECONDS, app[keys.CONFIG].token_ttl_seconds / 2)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
    with app[keys.EVENTS].listen(caller.user_id, caller.session_id) as events:
        if not await app[keys.STORE].read(sessions.exists, caller.session_id):
            raise TokenExpiredError  # it ended before the stream took part, and nothing more would end the stream
        await response.prepare(request)
        await response.write(sse.KEEP_ALIVE)  # sends the headers too: the client counts itself connected by them
        while not events.ended:
            await events.wait(pause)
            lost, news = events.take()
            written = [sse.write_lagged(lost)] * bool(lost) + [sse.write(event, written_in) for event in news]
            app[keys.ACTIVITY].keep(caller.session_id, app[keys.CLOCK].now())
            await response.write(b"".join(written) or sse.KEEP_ALIVE)
    return response


def _format(request: web.Request) -> Format:
    """Return the format that the query names, else that in which the session's token was issued."""
    named = read_query(request)["format"]
    if named:
        return Format[named.upper()]
    token = auth.require_token(request.headers, request.app[keys.CONFIG].auth_header)
    return answer_format("", "", token)
