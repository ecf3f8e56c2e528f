"""Sending and fetching messages."""

from aiohttp import web

from conclave import keys
from conclave.actions import messages
from conclave.api.acting import act
from conclave.auth import tokens
from conclave.wire.exchange import path_id, read_body, read_query, reply
from conclave.wire.handover import SHARE, hand_over
from conclave.wire.pieces import reply_list
from conclave.wire.schemas.messages import GetMessages, SendMessage


async def send(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/messages: Send a message."""
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    body = await read_body(request, SendMessage)
    number = await act(request, messages.send, request.app[keys.CONTEXT], group_id, user_id, body.mls_message)
    return reply(request, {"sequence_num": number})


async def fetch(request: web.Request) -> web.StreamResponse:
    """GET /groups/{group_id}/messages: Fetch a page of messages, ascending.

    The watermark moves only once the response was handed over: a message may be deleted after that.
    """
    app, share = request.app, request[SHARE]
    store, archive, context = app[keys.STORE], app[keys.ARCHIVE], app[keys.CONTEXT]
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    query = read_query(request, GetMessages)
    page = await share.fit(
        lambda: messages.fetch_page(store, archive, context, group_id, user_id, query.after, query.limit, share)
    )
    response = await reply_list(request, page.messages)
    if await hand_over(request, response) and page.fetched_up_to > page.member.watermark:
        await act(request, messages.confirm_fetched, page.member.member_id, page.fetched_up_to)
    return response
