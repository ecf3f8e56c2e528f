"""Sending and fetching messages."""

import sqlite3

from aiohttp import web

from conclave import keys
from conclave.archive import pages
from conclave.auth import tokens
from conclave.clock import Clock
from conclave.store import members, messages
from conclave.store.news import announce, members_of
from conclave.wire.exchange import path_id, read_body, read_query, reply
from conclave.wire.handover import SHARE, hand_over
from conclave.wire.pieces import reply_list


async def send(request: web.Request) -> web.Response:
    """POST /groups/{group_id}/messages: Send a message."""
    app = request.app
    group_id = path_id(request, "group_id")
    body = await read_body(request)
    number = await app[keys.STORE].write(
        _send, group_id, request[tokens.CALLER].user_id, body["mls_message"], app[keys.CLOCK]
    )
    return reply(request, {"sequence_num": number})


def _send(connection: sqlite3.Connection, group_id: bytes, user_id: bytes, body: bytes, clock: Clock) -> int:
    member = members.require_member(connection, group_id, user_id)
    number = messages.append(connection, member, body, clock.now(), is_commit=False)
    others = members_of(connection, member.group.group_key) - {user_id}
    announce(connection, others, "new_message", group_id=group_id, sequence_num=number, sender_id=user_id)
    return number


async def fetch(request: web.Request) -> web.StreamResponse:
    """GET /groups/{group_id}/messages: Fetch a page of messages, ascending.

    The watermark moves only once the response was handed over: a message may be deleted after that.
    """
    app = request.app
    group_id = path_id(request, "group_id")
    query = read_query(request)
    page = await request[SHARE].fit(
        lambda: pages.page(
            app[keys.STORE],
            app[keys.ARCHIVE],
            group_id,
            request[tokens.CALLER].user_id,
            query["after"],
            query["limit"],
            app[keys.CONFIG].policy,
            app[keys.CLOCK],
            request[SHARE],
        )
    )
    response = await reply_list(request, page.messages)
    if await hand_over(request, response) and page.fetched_up_to > page.member.watermark:
        await app[keys.STORE].write(members.confirm_fetched, page.member.member_id, page.fetched_up_to)
    return response
