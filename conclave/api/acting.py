"""How handlers run actions: what writes, what only reads, and what lists within the memory there is for responses."""

from typing import Any, ParamSpec, TypeVar

from aiohttp import web

from conclave import keys
from conclave.actions.context import Action
from conclave.wire.handover import SHARE
from conclave.wire.pieces import reply_list

P = ParamSpec("P")
T = TypeVar("T")


async def act(request: web.Request, action: Action[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run an action in a transaction; return its result once that is durable, as ``ClockWatch.write`` does."""
    return await request.app[keys.CLOCK_WATCH].write(action, *args, **kwargs)


async def look(request: web.Request, action: Action[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run an action that only reads, and return its result, as ``Database.read`` does."""
    return await request.app[keys.STORE].read(action, *args, **kwargs)


async def read_list(request: web.Request, action: Action[P, list[Any]], *args: P.args, **kwargs: P.kwargs) -> list[Any]:
    """Read a list by an action that takes the request's share of memory. Raises UnavailableError."""
    return await request[SHARE].fit(lambda: look(request, action, *args, **kwargs))


async def answer_list(
    request: web.Request, action: Action[P, list[Any]], *args: P.args, **kwargs: P.kwargs
) -> web.StreamResponse:
    """Answer what ``read_list`` reads. Raises UnavailableError."""
    return await reply_list(request, await read_list(request, action, *args, **kwargs))
