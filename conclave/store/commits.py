"""Commits: stores the message, the group info and the MLS group id that an MLS commit brings."""

import sqlite3
from dataclasses import dataclass

from conclave.errors import NotFoundError
from conclave.failpoints import reach
from conclave.store import bodies, groups, members, messages
from conclave.store.members import Membership


@dataclass(frozen=True)
class Commit:
    """What a client sends with a commit. An empty field was not given."""

    commit_message: bytes = b""
    group_info: bytes = b""
    mls_group_id: str = ""


def store(connection: sqlite3.Connection, member: Membership, commit: Commit, now: int) -> None:
    """Store the fields of ``commit`` that ``member`` has given."""
    if commit.commit_message:
        messages.append(connection, member, commit.commit_message, now, is_commit=True)
        reach("commit.message_stored")
    if commit.group_info:
        groups.set_group_info(connection, member.group, commit.group_info)
        reach("commit.info_replaced")
    if commit.mls_group_id:
        groups.set_mls_group_id(connection, member.group, commit.mls_group_id)


def group_info(connection: sqlite3.Connection, group_id: bytes, user_id: bytes) -> bytes:
    """Return the stored group info. Raises NotMemberError, or NotFoundError if there is none."""
    body_id = members.require_member(connection, group_id, user_id).group.group_info_body
    if body_id is None:
        raise NotFoundError("this group has no group info yet")
    return bodies.get(connection, body_id)
