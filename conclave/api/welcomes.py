"""Welcomes of new members: listing them, and deleting them once received."""

from collections.abc import AsyncIterator
from functools import partial

from aiohttp import web

from conclave.actions import welcomes
from conclave.actions.welcomes import LongWelcome
from conclave.api.action_runner import answer_list, read_action_again, run_action
from conclave.auth import tokens
from conclave.wire import results
from conclave.wire.exchange import path_id, read_query, reply_empty
from conclave.wire.lists import BASE64_BYTES, ListWriter, LongBytes
from conclave.wire.schemas.base import Paging

PIECE_BYTES = 16 * 1024 * BASE64_BYTES
"""A long welcome is read 48 KiB at a time."""


async def list_own(request: web.Request) -> web.StreamResponse:
    """GET /welcomes: Pending welcomes of the caller."""
    paging, user_id, write_long = read_query(request, Paging), request[tokens.CALLER].user_id, partial(_write, request)
    return await answer_list(request, paging, welcomes.list_own, user_id, is_complete=True, write_long=write_long)


async def _write(request: web.Request, writer: ListWriter, long: LongWelcome) -> AsyncIterator[bytes]:
    """Write a welcome with a long body."""
    item = LongBytes(writer, results.WelcomeInfo, long.welcome, "welcome_message", long.size)
    prefix = item.begin()
    for begin in range(0, long.size, PIECE_BYTES):
        user_id, size = request[tokens.CALLER].user_id, min(PIECE_BYTES, long.size - begin)
        prefix += item.part(await read_action_again(request, welcomes.piece, long, user_id, begin, size))
        yield prefix
        prefix = b""
    yield item.end()


async def accept(request: web.Request) -> web.Response:
    """POST /welcomes/{welcome_id}/accept: Delete a welcome that was received."""
    await run_action(request, welcomes.accept, path_id(request, "welcome_id"), request[tokens.CALLER].user_id)
    return reply_empty(request)
