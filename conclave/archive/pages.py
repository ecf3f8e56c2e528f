"""Reads a page of a group's messages from the archive and the hot store, as one sequence."""

import asyncio
import contextlib
from dataclasses import replace

from conclave.archive.reader import Archive
from conclave.clock import Clock
from conclave.retention import stretches as index
from conclave.retention.stretches import Stretch
from conclave.retention.visibility import Visibility
from conclave.store.engine.database import Database
from conclave.store.resources import messages
from conclave.store.resources.messages import EncodedMessage, EncodeMessage, MessagePage, MessageRow


async def page(
    store: Database,
    archive: Archive,
    group_id: bytes,
    user_id: bytes,
    after: int,
    limit: int,
    clock: Clock,
    write: EncodeMessage,
    *,
    include_redacted: bool = False,
) -> MessagePage:
    """Read a page from both tiers. For the parameters see ``messages.read_page``.

    The store is read first. It returns the page, or the border up to which the page is in the archive. After the
    archive is read, the rest of the page is read like a separate page, with the border as ``after``. So no snapshot of
    the store is held while the archive is read, and messages may move at the same time: if the border rises, another
    stretch is read from the archive. If messages move to other partitions or back into the hot store before they are
    read, the search is repeated.

    Pages from the archive wait for ``archive.turns``. Messages that have expired in the meantime are removed before
    the page is returned. Raises NoMembershipError or ArchiveError.
    """
    encoded: list[EncodedMessage] = []
    body_bytes, position = 0, after

    async def read_store() -> MessagePage:
        room = limit - len(encoded)
        arguments = group_id, user_id, position, room, clock, write, body_bytes
        return await store.read(messages.read_page, *arguments, include_redacted=include_redacted)

    async def fill(stretch: Stretch, view: Visibility) -> bool:
        """Read a stretch of the archive unless it has moved. Return whether the page is full."""
        nonlocal body_bytes, position
        cold = await archive.read(stretch, limit - len(encoded), body_bytes)
        if await store.read(index.relaid) != stretch.relaid:
            return False
        body_bytes += sum(len(message.mls_message) for message in cold.messages)
        encoded.extend(await asyncio.to_thread(_encode_all, cold.messages, view, write))
        position = stretch.border
        return cold.full

    async def restart(position: int) -> MessagePage:
        encoded.clear()  # free memory before waiting
        result.messages.clear()
        return await page(
            *(store, archive, group_id, user_id, position, limit, clock, write), include_redacted=include_redacted
        )

    first = result = await read_store()
    omissions = first.omissions
    encoded += first.messages
    async with archive.turns if first.archived else contextlib.nullcontext():
        while result.archived and not await fill(result.archived, result.visibility):
            result = await read_store()
            encoded += result.messages
            omissions = omissions.joined(result.omissions)
    moment = clock.moment()
    now = moment.now
    view = result.visibility.at(now)
    if not first.archived and (now == first.visibility.now or view.admits_all(encoded)):
        return first
    if view.redacts_any(encoded):
        # A timer has ended in between: read the page again, with the message redacted.
        return await restart(after)
    current = [message for message in encoded if view.admits(message)]
    if moment.in_doubt and len(current) < len(encoded):
        dropped = next(message for message in encoded if not view.admits(message))
        omissions = omissions.with_first(dropped.sequence_num)
    if encoded and not current:
        # An empty page would mean that no messages follow.
        rest = await restart(encoded[-1].sequence_num)
        rest = replace(rest, omissions=omissions.joined(rest.omissions))
        return rest if rest.messages else replace(rest, fetched_up_to=first.fetched_up_to)
    last = current[-1].sequence_num if current else 0
    up_to = max(last, first.fetched_up_to)
    return MessagePage(current, first.member, up_to, view, touch=first.touch, omissions=omissions)


def _encode_all(rows: list[MessageRow], view: Visibility, write: EncodeMessage) -> list[EncodedMessage]:
    """Encode messages. Call it in a thread, since they may have 2 MiB in total."""
    return [messages.encode(each, each.mls_message, view, write) for each in rows]
