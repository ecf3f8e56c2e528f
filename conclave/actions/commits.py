"""Uploading commits and reading group info."""

import sqlite3

from conclave.actions.context import Context
from conclave.errors import BadRequestError
from conclave.store import commits, members
from conclave.store.commits import Commit, group_info
from conclave.store.news import announce, members_of

__all__ = ["Commit", "external_join", "group_info", "upload"]


def upload(connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes, commit: Commit) -> None:
    """Store what is given of a commit; the others hear of the message. Raises NotMemberError."""
    member = members.require_member(connection, group_id, user_id)
    commits.store(connection, member, commit, context.now())
    if commit.commit_message:
        others = members_of(connection, member.group.group_key) - {user_id}
        announce(connection, others, "group_update", group_id=group_id, update_type="commit")


def external_join(
    connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes, commit: Commit
) -> None:
    """Store the commit by which a member has joined the MLS group. Raises NotMemberError or BadRequestError.

    Who came by /join is new to all; anybody else was a member before, with keys that are void now.
    """
    member = members.require_member(connection, group_id, user_id)
    if member.group.group_info_body is None:
        raise BadRequestError("this group has no group info yet")
    commits.store(connection, member, commit, context.now())
    everybody = members_of(connection, member.group.group_key)
    if member.joining:
        members.has_joined(connection, member)
        announce(connection, everybody, "group_update", group_id=group_id, update_type="commit")
    else:
        announce(connection, everybody - {user_id}, "identity_reset", group_id=group_id, user_id=user_id)
