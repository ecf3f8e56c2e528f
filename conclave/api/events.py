"""The stream of events."""

from contextlib import ExitStack

from aiohttp import HttpVersion11, web

from conclave import app_keys
from conclave.actions import timers
from conclave.api.action_runner import read_action
from conclave.auth import tokens
from conclave.errors import TokenExpiredError
from conclave.wire.exchange import read_query
from conclave.wire.formats import Format, response_format
from conclave.wire.schemas.events import Listen
from conclave.wire.stream_connection import StreamConnection, StreamHead, event_encoder


async def stream(request: web.Request) -> web.StreamResponse:
    """GET /events: Stream the events of the caller's groups.

    First come the events of messages that were redacted for the caller while no stream was open. The stream stays
    open until the client disconnects, the session ends, or the server stops. An open stream keeps its session in use.
    """
    events, notifier, caller = (
        request.app[app_keys.EVENTS],
        request.app[app_keys.REDACTION_NOTIFIER],
        request[tokens.CALLER],
    )
    encoder = event_encoder(_format(request), chunked=request.version >= HttpVersion11)
    listener, response = StreamConnection(events, caller.user_id, caller.session_id, encoder), StreamHead()
    with ExitStack() as on_exit, ExitStack() as undo:
        events.add(listener)
        undo.callback(events.remove, listener)
        pending_stream = on_exit.enter_context(notifier.opening(listener))
        # The stream is notified of the session's end only from here on: it may have ended since authentication.
        missed_redactions = await read_action(request, timers.begin_stream, caller.session_id, caller.user_id)
        if missed_redactions is None:
            raise TokenExpiredError
        await response.prepare(request)
        notifier.catch_up(pending_stream, missed_redactions)
        listener.begin(request)
        notifier.opened(pending_stream)
        undo.pop_all()
    return response


def _format(request: web.Request) -> Format:
    """Return the format that the query names, or else the format of the session's token."""
    name = read_query(request, Listen).format
    if name:
        return Format[name.upper()]
    return response_format("", "", tokens.require_token(request)[-1:])
