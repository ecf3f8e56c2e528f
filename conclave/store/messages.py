"""Messages: appended under the group's counter, and served while they may be."""

import sqlite3
from dataclasses import dataclass

from conclave.budget import Share
from conclave.clock import Clock
from conclave.failpoints import reach
from conclave.retention.policy import PolicySettings
from conclave.store import bodies, members, visibility
from conclave.store.archive import stretches
from conclave.store.archive.stretches import Stretch
from conclave.store.members import Membership

PAGE_BYTES = 32 * 1024 * 1024
"""Bodies in one page, at most: hundreds of the largest would fill the memory of a small machine."""


@dataclass(frozen=True)
class StoredMessage:
    """A message as it is served."""

    sequence_num: int
    sender_id: bytes
    mls_message: bytes
    created_at: int


@dataclass(frozen=True)
class Page:
    """Messages of one GET, ascending, and how far the reader has fetched once it has the response.

    ``archived``: what comes first and is in the archive; where there is that, ``messages`` is empty.
    """

    messages: list[StoredMessage]
    member: Membership
    fetched_up_to: int
    archived: Stretch | None = None


def append(connection: sqlite3.Connection, member: Membership, body: bytes, now: int, *, is_commit: bool) -> int:
    """Store a message and return its sequence number.

    The sender's watermark follows only from the group's last number: sending counts as having seen one's
    own message, not what others sent meanwhile.
    """
    group_key = member.group.group_key
    number = append_stored(
        connection, group_key, member.user_id, bodies.put(connection, body), now, is_commit=is_commit
    )
    connection.execute(
        "UPDATE members SET watermark = ? WHERE group_key = ? AND user_id = ? AND watermark = ?",
        (number, group_key, member.user_id, number - 1),
    )
    return number


def append_stored(
    connection: sqlite3.Connection, group_key: int, sender_id: bytes, body_id: int, now: int, *, is_commit: bool
) -> int:
    """Make the stored body ``body_id`` a message, whose sender need not be a member; return its sequence number.

    No watermark moves: whoever made it some time ago does not know that it is a message now, and has to fetch it.
    A mark that a wrong clock left ahead of ``now`` does not hide it.
    """
    number, expired_before = connection.execute(
        "UPDATE groups SET last_seq = last_seq + 1 WHERE group_key = ? RETURNING last_seq, expired_before", (group_key,)
    ).fetchone()
    reach("send.numbered")
    connection.execute(
        "INSERT INTO messages (message_id, group_key, sequence_num, sender_id, is_commit, created_at)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (body_id, group_key, number, sender_id, is_commit, max(now, expired_before)),
    )
    reach("send.stored")
    return int(number)


def page(
    connection: sqlite3.Connection,
    group_id: bytes,
    user_id: bytes,
    after: int,
    limit: int,
    policy: PolicySettings,
    clock: Clock,
    share: Share,
    taken: int = 0,
) -> Page:
    """Read up to ``limit`` messages with numbers greater than ``after``, none that is past its time.

    Fewer if their bodies, and the ``taken`` bytes that the page has already, are more than PAGE_BYTES, or if memory is
    short; but at least one if it has none. No messages, but where to find them, if the next ones are in the archive.
    Raises NotMemberError or NoRoomError.
    """
    member = members.require_member(connection, group_id, user_id)
    group = member.group
    sight = visibility.of_group(group, policy, clock.now())
    confirmed = min(after, group.last_seq)
    archived = stretches.stretch(connection, group, confirmed, sight)
    if archived:
        return Page([], member, confirmed, archived)
    rows = connection.execute(
        "SELECT message_id, sequence_num, sender_id, created_at FROM messages"
        f" WHERE group_key = :group_key AND {visibility.HOT} ORDER BY sequence_num LIMIT :limit",
        {"group_key": group.group_key, "limit": limit, **sight.bounds(max(confirmed, group.archived_seq))},
    ).fetchall()
    ids = [row["message_id"] for row in rows]
    count = share.take_bodies(bodies.sizes(connection, ids), PAGE_BYTES - taken, least=0 if taken else 1)
    found = bodies.get_many(connection, ids[:count])
    served = [
        StoredMessage(row["sequence_num"], row["sender_id"], found[row["message_id"]], row["created_at"])
        for row in rows[:count]
    ]
    last = served[-1].sequence_num if served else 0
    return Page(served, member, max(last, confirmed))
