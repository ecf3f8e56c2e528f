"""Lists of any length, read and written within the memory that there is for responses."""

import sqlite3
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from aiohttp import web

from conclave import keys
from conclave.wire.handover import SHARE
from conclave.wire.pieces import reply_list

P = ParamSpec("P")


async def read_list(
    request: web.Request, fn: Callable[Concatenate[sqlite3.Connection, P], list[Any]], *args: P.args, **kwargs: P.kwargs
) -> list[Any]:
    """Read a list from the store by ``fn``, which takes the request's share of memory. Raises UnavailableError."""
    return await request[SHARE].fit(lambda: request.app[keys.STORE].read(fn, *args, **kwargs))


async def answer_list(
    request: web.Request, fn: Callable[Concatenate[sqlite3.Connection, P], list[Any]], *args: P.args, **kwargs: P.kwargs
) -> web.StreamResponse:
    """Answer what ``read_list`` reads. Raises UnavailableError."""
    return await reply_list(request, await read_list(request, fn, *args, **kwargs))
