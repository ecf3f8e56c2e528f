"""Uploading commits and reading group info."""

import sqlite3

from conclave.actions.context import Context
from conclave.actions.quotas import Sends
from conclave.errors import BadRequestError
from conclave.store import commits, members
from conclave.store.commits import Commit, group_info
from conclave.store.members import Membership
from conclave.store.news import announce, members_of

__all__ = ["Commit", "external_join", "group_info", "upload"]


def upload(connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes, commit: Commit) -> None:
    """Store what is given of a commit, and tell the others of its message.

    Its message counts as one that is sent. Raises NotMemberError, TooManyRequestsError or QuotaError.
    """
    member = members.require_member(connection, group_id, user_id)
    _store(connection, context, member, commit)
    if commit.commit_message:
        others = members_of(connection, member.group.group_key) - {user_id}
        announce(connection, others, "group_update", group_id=group_id, update_type="commit")


def external_join(
    connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes, commit: Commit
) -> None:
    """Store the commit by which a member has joined the MLS group.

    A member who came by /join is new to all. Anybody else was a member before, with keys that are void now. Raises
    NotMemberError, BadRequestError, TooManyRequestsError, or QuotaError for who was a member before.
    """
    member = members.require_member(connection, group_id, user_id)
    if member.group.group_info_body is None:
        raise BadRequestError("this group has no group info yet")
    _store(connection, context, member, commit, must_fit=not member.joining)
    everybody = members_of(connection, member.group.group_key)
    if member.joining:
        members.has_joined(connection, member)
        announce(connection, everybody, "group_update", group_id=group_id, update_type="commit")
    else:
        announce(connection, everybody - {user_id}, "identity_reset", group_id=group_id, user_id=user_id)


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
    commits.store(connection, member, commit, context.now())
    if sends:
        sends.stored()
