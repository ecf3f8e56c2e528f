"""Carries out a plan in the hot store, in short transactions; it is safe to stop after each.

What the plan names is checked again when it is deleted, since the store may have changed meanwhile: a message goes only
if the store, as it is now, says so too. No step is repeated without need.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter

from conclave.failpoints import reach
from conclave.retention.resolve import PolicySettings
from conclave.store import bodies, invites, policies, touches
from conclave.store.archive import moves
from conclave.store.sqlite import Step, places
from spark.pacer import Pacer
from spark.plan_types import GroupStep, Plan
from spark.rules import DELETED_ACCOUNT, DELETED_GROUP, EXPIRED, FETCHED, INVITES, SESSIONS

CHUNK = 32
"""A step deletes at most 32 messages."""

CHUNK_BYTES = 128 * 1024
"""A step deletes messages with at most 128 KiB of bodies together, but at least one message."""

BLOCK = 8192
"""Of groups, messages are deleted in blocks of 8,192 whose bodies lie next to each other.

Within a block the order is by group, as in the indexes. So a transaction changes far fewer pages than if it deleted one
group after the other: their bodies and rows lie scattered.
"""

LISTED = 1_000_000
"""At most two million messages are listed at a time: they take 50 bytes of memory each."""

_PLACE = 1 << 62
"""A listed number has the place of the group above the id of the message: it takes less memory than a pair."""

_SENT_BY = "FROM messages WHERE sender_id = (SELECT user_id FROM user_tombstones WHERE user_id = ?) AND NOT is_commit"
"""The messages of a deleted account without its commits.

The conditions are those of the index messages_by_sender, so that SQLite uses it.
"""


def apply_plan(pacer: Pacer, plan: Plan, settings: PolicySettings, counts: Counter[str]) -> None:
    """Delete what ``plan`` names; add to ``counts`` how many rows each of RULES has deleted."""
    connection = pacer.connection
    pacer.run(partial(_raise_marks, connection, group, settings) for group in plan.groups)
    for blocks in _blocks(connection, plan.groups):
        pacer.run(_Deleting(connection, plan.groups, block, plan.now, settings, counts).step for block in blocks)
    pacer.run(_steps(connection, plan, settings, counts))


def count_plan(connection: sqlite3.Connection, plan: Plan) -> Counter[str]:
    """Return how many rows each of RULES would delete; no row counts twice. Changes nothing."""
    counts = Counter({SESSIONS: len(plan.sessions), INVITES: len(plan.invites)})
    counts[EXPIRED] = counts[FETCHED] = counts[DELETED_GROUP] = counts[DELETED_ACCOUNT] = 0
    for step in plan.groups:
        counts[FETCHED] += _count(connection, "group_key = ? AND sequence_num <= ?", step.group_key, step.gone_below)
        counts[EXPIRED] += _count(
            connection,
            "group_key = ? AND created_at < ? AND sequence_num > ?",
            *(step.group_key, step.expired_before, step.gone_below),
        )
    for group_key in plan.tombstones:
        counts[DELETED_GROUP] += _count(connection, "group_key = ?", group_key)
    if plan.deleted_accounts:
        counts[DELETED_ACCOUNT] = _count_by_accounts(connection, plan)
    return counts


def groups_due(connection: sqlite3.Connection, plan: Plan) -> set[int]:
    """Return the keys of the groups in which something is due, even if only a mark rises."""
    keys = {step.group_key for step in plan.groups} | set(plan.tombstones)
    for user_id in plan.deleted_accounts:
        keys.update(row["group_key"] for row in connection.execute(f"SELECT DISTINCT group_key {_SENT_BY}", (user_id,)))
    return keys


def give_space_back(pacer: Pacer) -> None:
    """Return the space of erased bodies to the file system: first dead segments, then free pages."""
    pacer.run(bodies.compact(pacer.connection))
    pacer.run(iter([partial(bodies.free_pages, pacer.connection)]))


def _count(connection: sqlite3.Connection, condition: str, *bounds: int) -> int:
    return int(connection.execute(f"SELECT count(*) FROM messages WHERE {condition}", bounds).fetchone()[0])


def _count_by_accounts(connection: sqlite3.Connection, plan: Plan) -> int:
    """Count the messages of deleted accounts that no other rule deletes."""
    steps = {step.group_key: step for step in plan.groups}
    dropped = set(plan.tombstones)
    count = 0
    for user_id in plan.deleted_accounts:
        for row in connection.execute(f"SELECT group_key, sequence_num, created_at {_SENT_BY}", (user_id,)):
            step = steps.get(row["group_key"])
            due = step and (row["sequence_num"] <= step.gone_below or row["created_at"] < step.expired_before)
            if not due and row["group_key"] not in dropped:
                count += 1
    return count


def _steps(
    connection: sqlite3.Connection, plan: Plan, settings: PolicySettings, counts: Counter[str]
) -> Iterator[Step]:
    for group_key in plan.tombstones:
        yield partial(_delete_group, connection, group_key, counts)
    for user_id in plan.deleted_accounts:
        yield partial(_delete_account, connection, user_id, counts)
    for session_id in plan.sessions:
        yield partial(_delete_session, connection, session_id, settings.sessions_dead_before(plan.now), counts)
    for invite_key in plan.invites:
        yield partial(_delete_invite, connection, invite_key, settings.invites_dead_before(plan.now), counts)


def _raise_marks(connection: sqlite3.Connection, step: GroupStep, settings: PolicySettings) -> bool:
    """Raise the marks before anything is erased: what a mark covers is never served again."""
    found = policies.find(connection, step.group_key, settings)
    if found and found[0].is_after_fetch:
        # A group that has entered this mode after the plan has a new floor, which the old one must not replace.
        floor = min(step.floor_seq, step.gone_below)
        connection.execute(
            "UPDATE groups SET floor_seq = max(floor_seq, ?), gone_below = max(gone_below, ?) WHERE group_key = ?",
            (floor, step.gone_below, step.group_key),
        )
    reach("apply.marks_raised")
    return False


def _blocks(connection: sqlite3.Connection, groups: list[GroupStep]) -> Iterator[list[list[int]]]:
    """Yield the messages that are due in ``groups``: of some groups at a time, in blocks, see BLOCK and LISTED.

    A message is the place of its group in ``groups``, times _PLACE, plus its id.
    """
    listed: list[int] = []
    for place, group in enumerate(groups):
        last = 0
        while rows := connection.execute(
            "SELECT message_id FROM (SELECT message_id FROM messages WHERE group_key = ?1 AND sequence_num <= ?2"
            " UNION SELECT message_id FROM messages WHERE group_key = ?1 AND created_at < ?3)"
            " WHERE message_id > ?4 ORDER BY message_id LIMIT ?5",
            (group.group_key, group.gone_below, group.expired_before, last, LISTED),
        ).fetchall():
            last = rows[-1][0]
            listed += [place * _PLACE + row[0] for row in rows]
            if len(listed) >= LISTED:
                yield _in_blocks(listed)
                listed = []
            if len(rows) < LISTED:
                break
    if listed:
        yield _in_blocks(listed)


def _in_blocks(listed: list[int]) -> list[list[int]]:
    """Part what is listed by the ids of the messages; each block is in the order of groups."""
    listed.sort(key=lambda each: each % _PLACE)
    return [sorted(listed[begin : begin + BLOCK]) for begin in range(0, len(listed), BLOCK)]


class _Deleting:
    """Deletes the messages of a block, as far as they are still due, some in each step."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        groups: list[GroupStep],
        block: list[int],
        now: int,
        settings: PolicySettings,
        counts: Counter[str],
    ) -> None:
        self._connection = connection
        self._groups = groups
        self._block = block
        self._now = now
        self._settings = settings
        self._counts = counts
        self._done = 0

    def step(self) -> bool:
        """Delete at most CHUNK messages with at most CHUNK_BYTES; return whether there are more."""
        listed = [divmod(each, _PLACE) for each in self._block[self._done : self._done + CHUNK]]
        chosen = len(bodies.first_within(self._connection, [message_id for _, message_id in listed], CHUNK_BYTES))
        gone: list[int] = []
        for place, some in groupby(listed[:chosen], key=itemgetter(0)):
            gone += self._delete_rows(self._groups[place], [message_id for _, message_id in some])
        reach("apply.message_rows_deleted")
        bodies.erase(self._connection, gone)
        reach("apply.bodies_erased")
        self._done += chosen
        return self._done < len(self._block)

    def _delete_rows(self, group: GroupStep, message_ids: list[int]) -> list[int]:
        """Delete those messages of a group that are still due; return their ids."""
        found = policies.find(self._connection, group.group_key, self._settings)
        if found is None:
            return []
        policy, expired_before = found
        cutoff = min(group.expired_before, max(policy.expires_before(self._now), expired_before))
        # The plus signs keep SQLite from looking through an index of the whole group.
        delete = f"DELETE FROM messages WHERE message_id IN ({places(message_ids)}) AND +group_key = ?"
        gone: list[int] = []
        if group.gone_below:
            marked = f"{delete} AND +sequence_num <= min(?, (SELECT gone_below FROM groups WHERE group_key = ?))"
            gone += self._count(FETCHED, marked, (*message_ids, group.group_key, group.gone_below, group.group_key))
        expired = self._count(EXPIRED, f"{delete} AND +created_at < ?", (*message_ids, group.group_key, cutoff))
        if expired:
            touches.touch_group(self._connection, group.group_key)
        return gone + expired

    def _count(self, rule: str, delete: str, values: tuple[int, ...]) -> list[int]:
        gone = [row[0] for row in self._connection.execute(f"{delete} RETURNING message_id", values).fetchall()]
        self._counts[rule] += len(gone)
        return gone


def _delete_group(connection: sqlite3.Connection, group_key: int, counts: Counter[str]) -> bool:
    more = _delete_messages(
        connection,
        "SELECT message_id FROM messages WHERE group_key = ? LIMIT ?",
        (group_key,),
        counts,
        DELETED_GROUP,
    )
    if not more and not moves.holds_group(connection, group_key):
        connection.execute("DELETE FROM tombstones WHERE group_key = ?", (group_key,))
    return more


def _delete_account(connection: sqlite3.Connection, user_id: bytes, counts: Counter[str]) -> bool:
    """Delete what a deleted account has sent.

    The tombstone goes with the last of it, here and in the archive: without a tombstone the rest would be served again.
    """
    more = _delete_messages(
        connection, f"SELECT message_id {_SENT_BY} ORDER BY message_id LIMIT ?", (user_id,), counts, DELETED_ACCOUNT
    )
    if not more and not moves.holds_sender(connection, user_id):
        connection.execute("DELETE FROM user_tombstones WHERE user_id = ?", (user_id,))
    return more


def _delete_messages(
    connection: sqlite3.Connection, query: str, bounds: tuple[int | bytes, ...], counts: Counter[str], rule: str
) -> bool:
    found = [row["message_id"] for row in connection.execute(query, (*bounds, CHUNK))]
    chosen = bodies.first_within(connection, found, CHUNK_BYTES)
    connection.execute(f"DELETE FROM messages WHERE message_id IN ({places(chosen)})", chosen)
    reach("apply.message_rows_deleted")
    bodies.erase(connection, chosen)
    reach("apply.bodies_erased")
    counts[rule] += len(chosen)
    return len(chosen) < len(found) or len(found) == CHUNK


def _delete_session(connection: sqlite3.Connection, session_id: int, dead_before: int, counts: Counter[str]) -> bool:
    counts[SESSIONS] += connection.execute(
        "DELETE FROM sessions WHERE session_id = ? AND expires_at < ?", (session_id, dead_before)
    ).rowcount
    return False


def _delete_invite(connection: sqlite3.Connection, invite_key: int, dead_before: int, counts: Counter[str]) -> bool:
    invite = invites.dead(connection, invite_key, dead_before)
    if invite:
        invites.decline(connection, invite)
        counts[INVITES] += 1
    return False
