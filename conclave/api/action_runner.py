"""Runs actions for handlers: actions that write, that only read, and that read a list."""

from typing import Any, ParamSpec, TypeVar

from aiohttp import web

from conclave import app_keys
from conclave.actions import groups
from conclave.actions.context import Action
from conclave.actions.groups import GroupChanges
from conclave.auth import tokens
from conclave.retention.hidden import Amount
from conclave.wire.exchange import STILL_CALLING
from conclave.wire.handover import SHARE
from conclave.wire.pieces import reply_list

P = ParamSpec("P")
T = TypeVar("T")


async def act(request: web.Request, action: Action[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run an action in a transaction. Return its result once it is durable, as ``ClockWatch.write`` does."""
    return await request.app[app_keys.CLOCK_WATCH].write(action, *args, **kwargs)


async def change_group(request: web.Request, group_id: bytes, changes: GroupChanges) -> None:
    """Change a group as ``groups.update`` does. What its former policy has hidden until then stays hidden."""
    context, user_id = request.app[app_keys.CONTEXT], request[tokens.CALLER].user_id
    of_policy = request.app[app_keys.STORE].policy_change()
    try:
        await act(request, groups.update, context, group_id, user_id, changes, of_policy)
    finally:
        is_marked = of_policy.end(context.clock.moment().earliest)
    if not is_marked:
        await request.app[app_keys.CLOCK_WATCH].try_to_note()  # the change itself is there


async def rehearse(request: web.Request, group_id: bytes, changes: GroupChanges) -> Amount:
    """Return what expires at once if the caller makes ``changes`` to a group, as ``Rehearsals.of_change`` does.

    Raises TokenExpiredError if the session has ended while this waited for its turn: who asks for very many waits as
    long as they take, and must not act for an ended session.
    """
    app = request.app
    async with app[app_keys.CLOCK_WATCH].noting():
        found = await app[app_keys.REHEARSALS].of_change(group_id, request[tokens.CALLER].user_id, changes)
    await request[STILL_CALLING]()
    return found


async def look(request: web.Request, action: Action[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run an action that only reads, and return its result, as ``Database.read`` does."""
    return await request.app[app_keys.STORE].read(action, *args, **kwargs)


async def read_list(request: web.Request, action: Action[P, list[Any]], *args: P.args, **kwargs: P.kwargs) -> list[Any]:
    """Read a list by an action that takes memory from the request's share. Raises UnavailableError."""
    return await request[SHARE].fit(lambda: look(request, action, *args, **kwargs))


async def answer_list(
    request: web.Request, action: Action[P, list[Any]], *args: P.args, **kwargs: P.kwargs
) -> web.StreamResponse:
    """Answer with the list that ``read_list`` reads. Raises UnavailableError."""
    return await reply_list(request, await read_list(request, action, *args, **kwargs))
