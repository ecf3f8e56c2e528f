"""Commits: storing the message, the group info and the MLS group id that one brings; reading group info."""

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
    """What a client sends with a commit. An empty field was not given."""

    commit_message: bytes = b""
    group_info: bytes = b""
    mls_group_id: str = ""


def upload(connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes, commit: Commit) -> None:
    """Store what is given of a commit, and tell the others of its message.

    Its message counts as one that is sent. Raises NotMemberError, TooManyRequestsError or QuotaError.
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

    A member who came by /join is new to all. Any other was a member before, with keys that are void now. If the group
    info of the epoch is given, and another commit has led there first, nothing is stored: the others would not take the
    commit. Raises NotMemberError, BadRequestError, ConflictError, TooManyRequestsError, or QuotaError for who was a
    member before.
    """
    # Until a join is undone its commit is welcome: it may have arrived in time and waited for its turn.
    member = members.membership(connection, group_id, user_id)
    if member is None:
        raise NotMemberError
    if member.group.group_info_body is None:
        raise BadRequestError("this group has no group info yet")
    if commit.group_info and groups.is_superseded(connection, member.group, commit.group_info):
        raise ConflictError("another commit came first: make this one anew from the group info that is stored now")
    _store(connection, context, member, commit, must_fit=not member.joining)
    recipients = members_of(connection, member.group.group_key)
    if member.joining:
        members.complete_join(connection, member)
        announce(connection, recipients, "group_update", group_id=group_id, update_type="commit")
    else:
        announce(connection, recipients - {user_id}, "identity_reset", group_id=group_id, user_id=user_id)


def store_at_end(
    connection: sqlite3.Connection, context: Context, member: Membership, commit: Commit, now: int
) -> None:
    """Store the commit of a ``member`` by which a membership ends: it counts as sent, and always has room."""
    with bodies.extra_room(connection):
        store(connection, member, commit, now)
    count_commit(context.quotas, member.group.group_id, member.user_id, len(commit.commit_message))


def group_info(connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes) -> bytes:
    """Return the stored group info. Raises NotMemberError, or NotFoundError if there is none."""
    body_id = require_member(connection, context, group_id, user_id).group.group_info_body
    if body_id is None:
        raise NotFoundError("this group has no group info yet")
    return bodies.get(connection, body_id)


def _store(
    connection: sqlite3.Connection, context: Context, member: Membership, commit: Commit, *, must_fit: bool = True
) -> None:
    """Store a commit whose message counts as one that is sent. ``must_fit``: it may be refused for what is stored."""
    sends = Sends(context.quotas) if context.quotas and commit.commit_message else None
    if sends:
        size = len(commit.commit_message)
        refused = sends.refusal(member.group.group_id, member.user_id, size, is_commit=True, must_fit=must_fit)
        if refused:
            raise refused
    store(connection, member, commit, context.now())
    if sends:
        sends.stored()


def store(connection: sqlite3.Connection, member: Membership, commit: Commit, now: int) -> None:
    """Store the fields of ``commit`` that ``member`` has given."""
    if commit.commit_message:
        append(connection, member, commit.commit_message, now, is_commit=True)
        reach("commit.message_stored")
    if commit.group_info:
        with_commit = bool(commit.commit_message)
        groups.set_group_info(connection, member.group.group_key, commit.group_info, with_commit=with_commit)
        reach("commit.info_replaced")
    if commit.mls_group_id:
        groups.set_mls_group_id(connection, member.group, commit.mls_group_id)
