"""Accepting an invite: the invitee becomes a member, with all that the invite carries."""

import sqlite3

from conclave.failpoints import reach
from conclave.store import groups, invites, members, messages, welcomes
from conclave.store.invites import Invite
from conclave.store.news import announce, members_of


def accept(connection: sqlite3.Connection, invite: Invite, now: int) -> None:
    """Make the invitee a member, and use the bodies that the invite carries, without copying them.

    The commit becomes a message of the inviter. The invitee hears of the welcome, the other members of the commit.
    """
    group = groups.by_id(connection, invite.group_id)
    others = members_of(connection, group.group_key)
    invites.take(connection, invite)
    members.add(connection, group.group_key, invite.invitee_id, now)
    reach("accept.member_added")
    welcomes.add(connection, group.group_key, invite.invitee_id, invite.welcome_body)
    messages.append_stored(connection, group.group_key, invite.inviter_id, invite.commit_body, now, is_commit=True)
    groups.adopt_group_info(connection, group.group_key, invite.group_info_body)
    reach("accept.stored")
    announce(connection, [invite.invitee_id], "welcome", group_id=group.group_id, group_alias=group.alias)
    announce(connection, others, "group_update", group_id=group.group_id, update_type="commit")
