"""Runs actions for handlers: writes, reads, and reads of lists."""

from functools import partial
from typing import Any, ParamSpec, TypeVar

from aiohttp import web

from conclave import app_keys
from conclave.actions import groups, lookup
from conclave.actions.context import Action
from conclave.actions.groups import GroupChanges
from conclave.auth import tokens
from conclave.retention.hidden import MessageTotals
from conclave.wire import lists
from conclave.wire.exchange import RECHECK_SESSION
from conclave.wire.lists import WriteLong, first_span
from conclave.wire.schemas.base import Paging

P = ParamSpec("P")
T = TypeVar("T")


async def run_action(request: web.Request, action: Action[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run an action in a write transaction. Return its result once it is durable, see ``ClockWatch.write``."""
    return await request.app[app_keys.CLOCK_WATCH].write(action, *args, **kwargs)


async def change_group(request: web.Request, group_id: bytes, changes: GroupChanges) -> None:
    """Change a group, see ``groups.update``. Messages that the former policy has hidden stay hidden."""
    context, user_id = request.app[app_keys.CONTEXT], request[tokens.CALLER].user_id
    policy_change = request.app[app_keys.STORE].policy_change()
    try:
        await run_action(request, groups.update, context, group_id, user_id, changes, policy_change)
    finally:
        is_marked = policy_change.end(context.clock.moment().earliest)
    if not is_marked:
        await request.app[app_keys.CLOCK_WATCH].try_record()  # the change itself is committed


async def rehearse(request: web.Request, group_id: bytes, changes: GroupChanges) -> MessageTotals:
    """Return how many messages ``changes`` to a group would expire at once, see ``Rehearsals.of_change``.

    Raises TokenExpiredError if the session has ended while this waited for its turn.
    """
    app = request.app
    async with app[app_keys.CLOCK_WATCH].recording_faults():
        totals = await app[app_keys.REHEARSALS].of_change(group_id, request[tokens.CALLER].user_id, changes)
    await request[RECHECK_SESSION]()
    return totals


async def read_action(request: web.Request, action: Action[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run an action that only reads, and return its result, see ``Database.read``."""
    return await request.app[app_keys.STORE].read(action, *args, **kwargs)


async def read_action_again(request: web.Request, action: Action[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``read_action`` while a response is being written. Raises TokenExpiredError if the session has ended."""
    await request[RECHECK_SESSION]()
    return await read_action(request, action, *args, **kwargs)


async def answer_list(
    request: web.Request,
    paging: Paging,
    action: Action[..., Any],
    *args: Any,
    is_complete: bool = False,
    write_long: WriteLong | None = None,
) -> web.StreamResponse:
    """Answer with a list, or a page of it. Raises as ``read_part`` does.

    ``action``: returns a ListPart; its last argument is a Span. ``is_complete``: without paging parameters the response
    has the whole list. ``write_long``: writes ``ListPart.long``.
    """
    span = first_span(paging, is_complete=is_complete)
    first = await read_action(request, lookup.read_part, action, *args, span)
    read = partial(read_action_again, request, lookup.read_part, action, *args)
    return await lists.reply(request, span, first, read, write_long)
