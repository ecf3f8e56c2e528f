"""Sending and fetching messages."""

import sqlite3

from conclave.actions.context import Context
from conclave.archive import pages
from conclave.archive.reader import Archive
from conclave.budget import Share
from conclave.store import members, messages
from conclave.store.database import Database
from conclave.store.members import confirm_fetched
from conclave.store.messages import Page
from conclave.store.news import announce, members_of

__all__ = ["confirm_fetched", "fetch_page", "send"]


def send(connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes, body: bytes) -> int:
    """Store a message, which the others hear of; return its number. Raises NotMemberError or StoreFullError."""
    member = members.require_member(connection, group_id, user_id)
    number = messages.append(connection, member, body, context.now(), is_commit=False)
    others = members_of(connection, member.group.group_key) - {user_id}
    announce(connection, others, "new_message", group_id=group_id, sequence_num=number, sender_id=user_id)
    return number


async def fetch_page(
    store: Database,
    archive: Archive,
    context: Context,
    group_id: bytes,
    user_id: bytes,
    after: int,
    limit: int,
    share: Share,
) -> Page:
    """Read up to ``limit`` messages with numbers greater than ``after``, from the store and the archive.

    No transaction: see ``pages.page``, and for what it raises. Once the reader has the page, ``confirm_fetched``.
    """
    return await pages.page(store, archive, group_id, user_id, after, limit, context.policy, context.clock, share)
