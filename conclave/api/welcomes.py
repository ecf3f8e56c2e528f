"""Welcomes: new members fetch them, and then delete them."""

from aiohttp import web

from conclave.actions import welcomes
from conclave.api.action_runner import act, answer_list
from conclave.auth import tokens
from conclave.wire.exchange import path_id, reply_empty
from conclave.wire.handover import SHARE


async def list_own(request: web.Request) -> web.StreamResponse:
    """GET /welcomes: Welcomes that wait for the caller."""
    return await answer_list(request, welcomes.list_own, request[tokens.CALLER].user_id, request[SHARE])


async def accept(request: web.Request) -> web.Response:
    """POST /welcomes/{welcome_id}/accept: Delete a welcome that was received."""
    await act(request, welcomes.accept, path_id(request, "welcome_id"), request[tokens.CALLER].user_id)
    return reply_empty(request)
