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
    message = Send(group_id, user_id, body.mls_message, body.self_destruct_seconds, body.send_id)
    number = await request.app[app_keys.SENDING].send(message)
    return reply_written(request, [write_number(request[FORMAT], number)])


async def fetch(request: web.Request) -> web.StreamResponse:
    """GET /groups/{group_id}/messages: Fetch a page of messages, ascending.

    The caller's watermark moves to `after` at once, and to the end of the page once the client's system has
    acknowledged the whole response. From then on delete-after-fetch may delete the messages. With `confirm=next`, or if
    the operator has configured it, the watermark moves only with the next fetch, to its `after`.
    """
    group_id, user_id = path_id(request, _GROUP), request[tokens.CALLER].user_id
    query, fetching = read_query(request, GetMessages), request.app[app_keys.FETCHING]
    page = await fetching.page(
        *(group_id, user_id, query.after, query.limit, request[FORMAT]),
        include_redacted=query.include_redacted,
        next_confirms=query.next_confirms,
    )
    response = reply_page(request, page.pieces)
    if page.needs_confirmation:
        # Reading must not depend on the store's writes: the response is sent first.
        has_arrived = await hand_over(request, response, counts=page.counts_on_arrival)
        await fetching.confirm(page, has_arrived=has_arrived)
    return response


async def read(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/read: Mark all messages up to a number as read, and start their timers.

    Each self-destructing message that is read for the first time is redacted for the caller when its timer ends.
    """
    group_id, user_id = path_id(request, _GROUP), request[tokens.CALLER].user_id
    body = await read_body(request, ReadReceipt)
    await request.app[app_keys.READING].read(ReadUpdate(group_id, user_id, body.sequence_num))
    return reply_empty(request)


async def take_back(request: web.Request) -> web.Response:
    """DELETE /groups/{group_id}/messages/{sequence_num}: Take back a message of the caller, or as an admin any message.

    It is hidden from all members at once, and erased by the next cleanup run that may erase it. Admins may take back
    messages of others if the operator permits that. Commits cannot be taken back. Repeating the request has no effect.
    With `dry_run` nothing changes: the response is that of the same request without it, except for 429.
    """
    group_id, number = path_id(request, _GROUP), path_number(request, "sequence_num")
    admins_may = request.app[app_keys.CONFIG].retention.admins_may_redact
    dry_run = read_query(request, TakeBack).dry_run
    take_back_request = TakeBackRequest(group_id, request[tokens.CALLER].user_id, number, admins_may, dry_run)
    await request.app[app_keys.TAKING_BACK].take_back(take_back_request)
    return reply_empty(request)
