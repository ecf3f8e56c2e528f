"""Sending and fetching messages."""

from aiohttp import web

from conclave import app_keys
from conclave.actions.messages import ReadUpdate, Send
from conclave.actions.taking_back import TakeBackRequest
from conclave.auth import tokens
from conclave.wire.exchange import (
    FORMAT,
    path_id,
    path_number,
    read_body,
    read_query,
    reply_empty,
    reply_page,
    reply_written,
)
from conclave.wire.handover import hand_over
from conclave.wire.schemas.messages import GetMessages, ReadReceipt, SendMessage, TakeBack, write_number

_GROUP = "group_id"


async def send(request: web.Request) -> web.StreamResponse:
    """POST /groups/{group_id}/messages: Send a message."""
    group_id, user_id = path_id(request, _GROUP), request[tokens.CALLER].user_id
    body = await read_body(request, SendMessage)
    sent = Send(group_id, user_id, body.mls_message, body.self_destruct_seconds, body.send_id)
    number = await request.app[app_keys.SENDING].send(sent)
    return reply_written(request, [write_number(request[FORMAT], number)])


async def fetch(request: web.Request) -> web.StreamResponse:
    """GET /groups/{group_id}/messages: Fetch a page of messages, ascending.

    The watermark moves to `after` at once, and to the end of the page once the client's system has acknowledged the
    whole response: from then on a message may be deleted. With `confirm=next`, or if the operator has set that only
    the next fetch confirms, it moves no further than to the next fetch's `after`.
    """
    group_id, user_id = path_id(request, _GROUP), request[tokens.CALLER].user_id
    query, fetching = read_query(request, GetMessages), request.app[app_keys.FETCHING]
    found = await fetching.page(
        *(group_id, user_id, query.after, query.limit, request[FORMAT]),
        include_redacted=query.include_redacted,
        next_confirms=query.next_confirms,
    )
    response = reply_page(request, found.pieces)
    if found.is_news:
        # Reading must not depend on what the store can write: in either way the response leaves first.
        has_arrived = await hand_over(request, response, counts=found.counts_on_arrival)
        await fetching.confirm(found, has_arrived=has_arrived)
    return response


async def read(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/read: Say that everything up to a message was read, which starts the timers of it.

    Each self-destructing message that this covers for the first time is redacted for the caller once its time is over.
    """
    group_id, user_id = path_id(request, _GROUP), request[tokens.CALLER].user_id
    body = await read_body(request, ReadReceipt)
    await request.app[app_keys.READING].read(ReadUpdate(group_id, user_id, body.sequence_num))
    return reply_empty(request)


async def take_back(request: web.Request) -> web.Response:
    """DELETE /groups/{group_id}/messages/{sequence_num}: Take a message back: an own one, or as an admin any.

    It is hidden from everybody at once, and erased by the next cleanup run that may. Admins may do so with what others
    have sent if the operator lets them. Commits cannot be taken back. Doing it again changes nothing. With `dry_run`
    nothing changes either: the answer is what the same request without it would get now, but for 429.
    """
    group_id, number = path_id(request, _GROUP), path_number(request, "sequence_num")
    admins_may = request.app[app_keys.CONFIG].retention.admins_may_redact
    dry_run = read_query(request, TakeBack).dry_run
    wish = TakeBackRequest(group_id, request[tokens.CALLER].user_id, number, admins_may, dry_run)
    await request.app[app_keys.TAKING_BACK].take_back(wish)
    return reply_empty(request)
