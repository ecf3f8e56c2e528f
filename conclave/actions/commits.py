"""Stores commits, with their message, group info and MLS group id, and reads group info."""

import sqlite3
from dataclasses import dataclass

from conclave.actions.authorisation import require_member
from conclave.actions.context import Context
from conclave.actions.messages import append
from conclave.actions.quotas import Sends, count_commit
from conclave.errors import BadRequestError, ConflictError, NotFoundError, NotMemberError
from conclave.failpoints import reach
from conclave.store import bodies
from conclave.store.engine.news import announce, members_of
from conclave.store.resources import groups, members
from conclave.store.resources.members import Membership


@dataclass(frozen=True)
class Commit:
    """The parts of a commit that a client sends. Omitted parts are empty."""

    commit_message: bytes = b""
    group_info: bytes = b""
    mls_group_id: str = ""


def upload(connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes, commit: Commit) -> None:
    """Store the parts of a commit, and notify the other members of its message.

    The message counts towards quotas. Raises NotMemberError, TooManyRequestsError or QuotaError.
    """
    member = require_member(connection, context, group_id, user_id)
    _store(connection, context, member, commit)
    if commit.commit_message:
        others = members_of(connection, member.group.group_key) - {user_id}
        announce(connection, others, "group_update", group_id=group_id, update_type="commit")


def external_join(
    connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes, commit: Commit
) -> None:
    """Store the commit by which a member has joined the MLS group.

    After /join the member is new to the group; otherwise it was a member before and replaces its keys. If the commit
    comes with a group info whose epoch another commit has already reached, nothing is stored, since the other members
    would reject the commit. Raises NotMemberError, BadRequestError, ConflictError, TooManyRequestsError, or QuotaError
    when a member replaces its keys.
    """
    # An overdue join is valid until it is undone: the commit may have arrived in time and waited in the queue.
    member = members.membership(connection, group_id, user_id)
    if member is None:
        raise NotMemberError
    if member.group.group_info_body is None:
        raise BadRequestError("this group has no group info yet")
    if commit.group_info and groups.is_superseded(connection, member.group, commit.group_info):
        raise ConflictError("another commit came first: recreate this one from the current group info")
    _store(connection, context, member, commit, must_fit=not member.joining)
    recipients = members_of(connection, member.group.group_key)
    if member.joining:
        members.complete_join(connection, member)
        announce(connection, recipients, "group_update", group_id=group_id, update_type="commit")
    else:
        announce(connection, recipients - {user_id}, "identity_reset", group_id=group_id, user_id=user_id)


def store_final(connection: sqlite3.Connection, context: Context, member: Membership, commit: Commit, now: int) -> None:
    """Store the commit that ends a membership. It counts towards quotas, but is never rejected."""
    with bodies.extra_room(connection):
        store(connection, member, commit, now)
    count_commit(context.quotas, member.group.group_id, member.user_id, len(commit.commit_message))


def group_info(connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes) -> bytes:
    """Return the stored group info. Raises NotMemberError or NotFoundError."""
    body_id = require_member(connection, context, group_id, user_id).group.group_info_body
    if body_id is None:
        raise NotFoundError("this group has no group info yet")
    return bodies.get(connection, body_id)


def _store(
    connection: sqlite3.Connection, context: Context, member: Membership, commit: Commit, *, must_fit: bool = True
) -> None:
    """Store a commit, whose message counts towards quotas. ``must_fit``: check the storage quotas."""
    sends = Sends(context.quotas) if context.quotas and commit.commit_message else None
    if sends:
        size = len(commit.commit_message)
        error = sends.refusal(member.group.group_id, member.user_id, size, is_commit=True, must_fit=must_fit)
        if error:
            raise error
    store(connection, member, commit, context.now())
    if sends:
        sends.stored()


def store(connection: sqlite3.Connection, member: Membership, commit: Commit, now: int) -> None:
    """Store the parts of ``commit`` that are not empty."""
    if commit.commit_message:
        append(connection, member, commit.commit_message, now, is_commit=True)
        reach("commit.message_stored")
    if commit.group_info:
        with_commit = bool(commit.commit_message)
        groups.set_group_info(connection, member.group.group_key, commit.group_info, with_commit=with_commit)
        reach("commit.info_replaced")
    if commit.mls_group_id:
        groups.set_mls_group_id(connection, member.group, commit.mls_group_id)
