"""Sending and fetching messages."""

from aiohttp import web

from conclave import keys
from conclave.actions.messages import Send
from conclave.auth import tokens
from conclave.wire import pages
from conclave.wire.exchange import FORMAT, path_id, read_body, read_query, reply
from conclave.wire.handover import SHARE, hand_over
from conclave.wire.schemas.messages import GetMessages, SendMessage


async def send(request: web.Request) -> web.StreamResponse:
    """POST /groups/{group_id}/messages: Send a message."""
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    body = await read_body(request, SendMessage)
    sent = Send(group_id, user_id, body.mls_message)
    number = await request.app[keys.STORE].write_joint(request.app[keys.SENDING], sent, len(sent.body))
    return reply(request, {"sequence_num": number})


async def fetch(request: web.Request) -> web.StreamResponse:
    """GET /groups/{group_id}/messages: Fetch a page of messages, ascending.

    The watermark moves only after the response was handed over: from then on a message may be deleted.
    """
    group_id, user_id = path_id(request, "group_id"), request[tokens.CALLER].user_id
    query = read_query(request, GetMessages)
    fetching, share = request.app[keys.FETCHING], request[SHARE]
    found = await fetching.page(group_id, user_id, query.after, query.limit, request[FORMAT], share)
    response = pages.reply_page(request, found.pieces)
    if await hand_over(request, response):
        await fetching.confirm(found)
    return response
