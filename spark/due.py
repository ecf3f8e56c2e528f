"""Which messages in the hot store a plan lets go, and why: listed without the write lock, and deleted with it.

What is listed is checked again when it is deleted: the policy, the marks and the legal holds of that moment decide.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, Protocol

from conclave.retention.policy import FOREVER
from conclave.retention.resolve import PolicySettings
from conclave.store import policies, touches, visibility
from conclave.store.policies import UNHELD
from conclave.store.senders import SENT
from conclave.store.sqlite import places
from spark.plan_types import GroupStep, Plan
from spark.rules import DELETED_ACCOUNT, DELETED_GROUP, EXPIRED, FETCHED, REDACTED

BLOCK = 8192
"""Messages are deleted in blocks of 8,192 whose bodies lie next to each other.

Within a block the order is by group, as in the indexes. So a transaction changes far fewer pages than if it deleted one
group after the other: their bodies and rows lie scattered.
"""

LISTED = 1_000_000
"""At most two million messages are listed at a time: they take 50 bytes of memory each."""

_PLACE = 1 << 62
"""A listed number has the place of its Due above the id of the message: it takes less memory than a pair."""


class Gone(NamedTuple):
    """A message that was deleted, and by which rule."""

    rule: str
    group_key: int
    message_id: int
    sequence_num: int
    created_at: int


class Due(Protocol):
    """Messages that are due for one reason."""

    def select(self, columns: str) -> tuple[str, tuple[int | bytes, ...]]:
        """Return the query for them, and its values: each message once, in no order."""

    def delete(self, connection: sqlite3.Connection, message_ids: Sequence[int]) -> Iterator[Gone]:
        """Delete those of ``message_ids`` that are still due."""


def of_plan(connection: sqlite3.Connection, plan: Plan, settings: PolicySettings) -> list[Due]:
    """Return what is due by ``plan``: groups, then deleted groups, then deleted accounts."""
    unheld = f" AND {UNHELD}" if policies.has_held_senders(connection) else ""
    due: list[Due] = [_InGroup(step, settings, plan.now, unheld) for step in plan.groups]
    if plan.tombstones or plan.deleted_accounts:
        policies.list_all(connection, settings, plan.now)
        deleted = dict(connection.execute("SELECT group_key, erasable_before FROM temp.tombstone_policies").fetchall())
        due += [_InDeletedGroup(key, settings, plan.now, deleted.get(key, 0), unheld) for key in plan.tombstones]
        withholds = bool(connection.execute(_WITHHOLDS, {"forever": FOREVER}).fetchone()[0])
        due += [_OfDeletedAccount(user_id, settings, plan.now, withholds) for user_id in plan.deleted_accounts]
    return due


def blocks(connection: sqlite3.Connection, due: Sequence[Due]) -> Iterator[list[list[int]]]:
    """Yield the messages of ``due`` in blocks, see BLOCK and LISTED. ``placed`` tells what an element is."""
    found: list[int] = []
    for place, each in enumerate(due):
        query, values = each.select("message_id")
        last = 0
        while rows := connection.execute(
            f"SELECT message_id FROM ({query}) WHERE message_id > {last:d} ORDER BY message_id LIMIT {LISTED:d}", values
        ).fetchall():
            last = rows[-1][0]
            found += [place * _PLACE + row[0] for row in rows]
            if len(found) >= LISTED:
                yield _in_blocks(found)
                found = []
            if len(rows) < LISTED:
                break
    if found:
        yield _in_blocks(found)


def placed(element: int) -> tuple[int, int]:
    """Return the place of its Due, and the id of the message, of an element of a block."""
    return divmod(element, _PLACE)


def _in_blocks(found: list[int]) -> list[list[int]]:
    """Part what is listed by the ids of the messages; each block is in the order of places."""
    found.sort(key=lambda each: each % _PLACE)
    return [sorted(found[begin : begin + BLOCK]) for begin in range(0, len(found), BLOCK)]


def count(connection: sqlite3.Connection, plan: Plan, settings: PolicySettings) -> Counter[str]:
    """Return how many messages each rule would delete; none counts twice. Changes nothing."""
    counts: Counter[str] = Counter(dict.fromkeys((EXPIRED, FETCHED, REDACTED, DELETED_GROUP, DELETED_ACCOUNT), 0))
    steps = {step.group_key: step for step in plan.groups}
    dropped = set(plan.tombstones)
    for each in of_plan(connection, plan, settings):
        query, values = each.select("group_key, sequence_num, created_at, message_id, is_commit")
        if isinstance(each, _InGroup):
            rows = connection.execute(f"SELECT {each.rule}, count(*) FROM ({query}) GROUP BY 1", values)
            counts.update(dict(rows.fetchall()))
        elif isinstance(each, _InDeletedGroup):
            counts[DELETED_GROUP] += connection.execute(f"SELECT count(*) FROM ({query})", values).fetchone()[0]
        else:
            counts[DELETED_ACCOUNT] += sum(
                group_key not in dropped
                and not _is_named(connection, steps.get(group_key), sequence_num, created_at, plan.now, settings)
                for group_key, sequence_num, created_at, *_ in connection.execute(query, values)
            )
    return counts


def _is_named(
    connection: sqlite3.Connection,
    step: GroupStep | None,
    sequence_num: int,
    created_at: int,
    now: int,
    settings: PolicySettings,
) -> bool:
    """Tell whether a message that is no commit goes with its group's step."""
    if step is None:
        return False
    if sequence_num <= step.gone_below or created_at < step.expired_before:
        return True
    redacted = visibility.redacted_for_all(now, settings.self_destruct_max_age)
    found = (
        step.redacts
        and connection.execute(
            f"SELECT 1 FROM {visibility.TIMED} WHERE self_destructing.group_key = ? AND sequence_num = ?"
            f" AND {redacted}",
            (step.group_key, sequence_num),
        ).fetchone()
    )
    return bool(found)


def groups(connection: sqlite3.Connection, plan: Plan, settings: PolicySettings) -> set[int]:
    """Return the keys of the groups in which something is due, even if only a mark rises."""
    keys = {step.group_key for step in plan.groups}
    for each in of_plan(connection, plan, settings)[len(plan.groups) :]:
        query, values = each.select("group_key")
        keys.update(row[0] for row in connection.execute(f"SELECT DISTINCT group_key FROM ({query})", values))
    return keys


_ERASABLE_BEFORE = (
    "(SELECT erasable_before FROM (SELECT group_key, erasable_before FROM temp.group_policies"
    " UNION ALL SELECT group_key, erasable_before FROM temp.tombstone_policies) AS policy"
    " WHERE policy.group_key = messages.group_key)"
)

_WITHHOLDS = (
    "SELECT EXISTS (SELECT 1 FROM temp.setting_policies WHERE erasable_before < :forever)"
    " OR EXISTS (SELECT 1 FROM temp.override_policies WHERE erasable_before < :forever)"
    " OR EXISTS (SELECT 1 FROM holds)"
)


@dataclass(frozen=True)
class _InGroup:
    """What has expired in a group, was fetched by everybody, or is redacted for everybody."""

    step: GroupStep
    settings: PolicySettings
    now: int
    unheld: str

    def select(self, columns: str) -> tuple[str, tuple[int, ...]]:
        step = self.step
        old_enough = " AND created_at < ?4" if step.erasable_before < FOREVER else ""
        by_age = " AND NOT (is_commit AND sequence_num > ?5)" if step.commits_above < FOREVER else ""
        query = (
            f"SELECT {columns} FROM messages WHERE group_key = ?1 AND sequence_num <= ?2{old_enough}{self.unheld} UNION"
            f" SELECT {columns} FROM messages WHERE group_key = ?1 AND created_at < min(?3, ?4){by_age}{self.unheld}"
        )
        if step.redacts:
            query += (
                f" UNION SELECT {columns} FROM {visibility.TIMED} WHERE self_destructing.group_key = ?1"
                f" AND created_at < ?4{self.unheld}"
                f" AND {visibility.redacted_for_all(self.now, self.settings.self_destruct_max_age)}"
            )
        values = step.group_key, step.gone_below, step.expired_before, step.erasable_before, step.commits_above
        return query, values if by_age else values[:-1]

    @property
    def rule(self) -> str:
        """The SQL expression, over the columns of messages, for the rule by which one of them goes."""
        step = self.step
        return (
            f"CASE WHEN sequence_num <= {step.gone_below:d} THEN '{FETCHED}'"
            f" WHEN created_at < {step.expired_before:d} AND NOT (is_commit AND sequence_num > {step.commits_above:d})"
            f" THEN '{EXPIRED}' ELSE '{REDACTED}' END"
        )

    def delete(self, connection: sqlite3.Connection, message_ids: Sequence[int]) -> Iterator[Gone]:
        step = self.step
        found = policies.erasable(connection, step.group_key, self.settings, self.now)
        if found is None or found.is_deleted:
            return
        delete = _Delete(connection, step.group_key, message_ids, min(step.erasable_before, found.before))
        if step.gone_below:
            mark = "+sequence_num <= min(?, (SELECT gone_below FROM groups WHERE group_key = ?))"
            yield from delete.where(FETCHED, mark, step.gone_below, step.group_key)
        expired = list(
            delete.where(
                EXPIRED,
                "+created_at < ? AND NOT (is_commit AND +sequence_num > ?)",
                min(step.expired_before, found.expired_before),
                min(step.commits_above, found.commits_above),
            )
        )
        if step.redacts:
            redacted = visibility.is_redacted(self.now, self.settings.self_destruct_max_age)
            expired += delete.where(REDACTED, redacted)
        if expired:
            touches.touch_group(connection, step.group_key)
        yield from expired


@dataclass(frozen=True)
class _InDeletedGroup:
    """What a deleted group has left."""

    group_key: int
    settings: PolicySettings
    now: int
    erasable_before: int
    unheld: str

    def select(self, columns: str) -> tuple[str, tuple[int, ...]]:
        old_enough = " AND created_at < ?2" if self.erasable_before < FOREVER else ""
        query = f"SELECT {columns} FROM messages WHERE group_key = ?1{old_enough}{self.unheld}"
        return query, (self.group_key, self.erasable_before)[: 2 if old_enough else 1]

    def delete(self, connection: sqlite3.Connection, message_ids: Sequence[int]) -> Iterator[Gone]:
        found = policies.erasable(connection, self.group_key, self.settings, self.now)
        if found:
            yield from _Delete(connection, self.group_key, message_ids, found.before).where(DELETED_GROUP, "TRUE")


@dataclass(frozen=True)
class _OfDeletedAccount:
    """What a deleted account has sent, except commits."""

    user_id: bytes
    settings: PolicySettings
    now: int
    withholds: bool

    def select(self, columns: str) -> tuple[str, tuple[bytes, ...]]:
        sent = (
            f"FROM {SENT} WHERE sender_id = (SELECT user_id FROM user_tombstones WHERE user_id = ?1"
            " AND user_id NOT IN (SELECT user_id FROM holds WHERE user_id IS NOT NULL)) AND NOT is_commit"
        )
        if not self.withholds:
            return f"SELECT {columns} {sent}", (self.user_id,)
        return f"SELECT {columns} {sent} AND created_at < {_ERASABLE_BEFORE}", (self.user_id,)

    def delete(self, connection: sqlite3.Connection, message_ids: Sequence[int]) -> Iterator[Gone]:
        rows = connection.execute(
            f"SELECT group_key, message_id FROM messages WHERE message_id IN ({places(message_ids)}) ORDER BY 1",
            message_ids,
        ).fetchall()
        for group_key, some in groupby(rows, key=itemgetter(0)):
            found = policies.erasable(connection, group_key, self.settings, self.now)
            if found:
                delete = _Delete(connection, group_key, [row[1] for row in some], found.before)
                sent = "+sender_id = (SELECT user_id FROM user_tombstones WHERE user_id = ?) AND NOT is_commit"
                yield from delete.where(DELETED_ACCOUNT, sent, self.user_id)


@dataclass(frozen=True)
class _Delete:
    """Deletes some messages of a group, if they are old enough and under no legal hold."""

    connection: sqlite3.Connection
    group_key: int
    message_ids: Sequence[int]
    before: int

    def where(self, rule: str, condition: str, *values: int | bytes) -> Iterator[Gone]:
        """Delete those for which ``condition`` holds."""
        # The plus signs keep SQLite from looking through an index of the whole group.
        rows = self.connection.execute(
            f"DELETE FROM messages WHERE message_id IN ({places(self.message_ids)}) AND +group_key = ?"
            f" AND +created_at < ? AND {UNHELD} AND {condition} RETURNING message_id, sequence_num, created_at",
            (*self.message_ids, self.group_key, self.before, *values),
        ).fetchall()
        for row in rows:
            yield Gone(rule, self.group_key, *row)


def held_back(
    connection: sqlite3.Connection, settings: PolicySettings, now: int, risen: Iterable[tuple[int, int]] = ()
) -> int:
    """Return how many messages would have been erased by now, if no legal hold covered them.

    Of the archive, parts that would have gone as a whole count. Of what held users have sent, commits do not count, nor
    what is archived. ``risen``: pairs of a mark ``gone_below`` and a group key. A dry run gives those that it would
    have raised.
    """
    held = [row[0] for row in connection.execute("SELECT DISTINCT group_key FROM holds WHERE group_key IS NOT NULL")]
    users = [row[0] for row in connection.execute("SELECT DISTINCT user_id FROM holds WHERE user_id IS NOT NULL")]
    if not settings.enabled or not (held or users):
        return 0
    policies.list_all(connection, settings, now)
    connection.execute("DROP TABLE IF EXISTS temp.risen")
    connection.execute("CREATE TEMP TABLE risen (gone_below, group_key INTEGER PRIMARY KEY)")
    connection.executemany("INSERT INTO temp.risen VALUES (?, ?)", risen)
    in_groups = sum(_held_in(connection, settings, now, key) for key in held)
    return in_groups + sum(_held_of(connection, user_id, settings, now) for user_id in users)


_GONE_BELOW = (
    "max(gone_below, ifnull((SELECT gone_below FROM temp.risen WHERE temp.risen.group_key = groups.group_key), 0))"
)

_HELD_IN = """
SELECT count(*) FROM (
    SELECT message_id FROM messages WHERE group_key = :key AND sequence_num <= :gone AND created_at < :old
    UNION SELECT message_id FROM messages WHERE group_key = :key AND created_at < min(:cutoff, :old)
        AND NOT (is_commit AND sequence_num > :commits_above)
    UNION SELECT message_id FROM user_tombstones CROSS JOIN {sent} AND sender_id = user_id
        WHERE NOT is_commit AND group_key = :key AND messages.created_at < :old
    UNION SELECT message_id FROM {timed} WHERE self_destructing.group_key = :key AND created_at < :old AND {redacted}
)
"""

_HELD_IN_ARCHIVE = """
SELECT ifnull(sum(message_count), 0) FROM archive_parts WHERE group_key = :key AND newest < :old
    AND (last_seq <= :gone OR (newest < :cutoff AND last_seq <= :commits_above))
"""


def _held_in(connection: sqlite3.Connection, settings: PolicySettings, now: int, group_key: int) -> int:
    policy = policies.find(connection, group_key, settings)
    if policy is None:
        return 0
    marks = connection.execute(f"SELECT {_GONE_BELOW}, expired_before FROM groups WHERE group_key = ?", (group_key,))
    gone_below, expired_before = marks.fetchone() or (FOREVER, FOREVER)
    values = {
        "key": group_key,
        "gone": gone_below,
        "cutoff": policies.hidden_before(expired_before, policy, now),
        "old": policy.erasable_before(now),
        "commits_above": policies.commits_above(connection, group_key, policy),
    }
    redacted = visibility.redacted_for_all(now, settings.self_destruct_max_age)
    queries = _HELD_IN.format(sent=SENT, timed=visibility.TIMED, redacted=redacted), _HELD_IN_ARCHIVE
    counted = [connection.execute(query, values).fetchone()[0] for query in queries]
    return sum(counted)


def _held_of(connection: sqlite3.Connection, user_id: bytes, settings: PolicySettings, now: int) -> int:
    redacted = visibility.is_redacted(now, settings.self_destruct_max_age)
    return int(
        connection.execute(
            f"SELECT count(*) FROM {SENT} LEFT JOIN groups USING (group_key)"
            " LEFT JOIN temp.group_policies USING (group_key) WHERE sender_id = ?1 AND NOT is_commit"
            f" AND messages.created_at < {_ERASABLE_BEFORE}"
            " AND messages.group_key NOT IN (SELECT group_key FROM holds WHERE group_key IS NOT NULL)"
            " AND (groups.group_key IS NULL OR EXISTS (SELECT 1 FROM user_tombstones WHERE user_id = ?1)"
            f" OR sequence_num <= {_GONE_BELOW} OR messages.created_at < max(expired_before, expires_before)"
            f" OR (self_destructs AND {redacted}))",
            (user_id,),
        ).fetchone()[0]
    )
