"""Applies a plan to the hot store, in short transactions. The run can stop after each transaction.

The store may have changed since the plan was made, so each message is checked again when it is deleted.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from operator import attrgetter, itemgetter

from conclave.actions import invites
from conclave.failpoints import reach
from conclave.retention import due, rules
from conclave.retention.due import DeletedMessage, DueMessages
from conclave.retention.plan import GroupStep, Plan
from conclave.retention.resolve import PolicySettings
from conclave.retention.rules import ANY_RUN_RULES, EXPIRED, INVITES, SESSIONS
from conclave.store import bodies, invalidation, message_keys
from conclave.store.archive import moves
from conclave.store.engine.sqlite import Step, once
from conclave.store.resources import receipts, taken_back, timers
from conclave.store.resources.receipts import ErasedMessages
from spark.hot_store import Pacer

CHUNK = 64
"""The most messages to delete in one step, which is a transaction while others write: see ``Pacer``."""


def apply_plan(
    pacer: Pacer,
    plan: Plan,
    settings: PolicySettings,
    counts: Counter[str],
    after_marks: Callable[[], None] = lambda: None,
) -> None:
    """Apply ``plan``; add the number of deleted rows by rule to ``counts``.

    ``after_marks``: called after all marks were raised, before anything is deleted.
    """
    connection = pacer.connection
    pacer.run(partial(_raise_marks, connection, group) for group in plan.groups)
    after_marks()
    due_messages = due.of_plan(connection, plan)
    for elements in due.list_due(connection, due_messages):
        pacer.run(_deletions(connection, due_messages, elements, counts))
    pacer.run(_steps(connection, plan, settings, counts))


def count_plan(connection: sqlite3.Connection, plan: Plan) -> Counter[str]:
    """Return how many rows each rule would delete. Each row counts once. Changes nothing."""
    counts = due.count(connection, plan)
    counts.update({SESSIONS: len(plan.sessions), INVITES: len(plan.invites)})
    return counts


def return_free_pages(pacer: Pacer) -> None:
    """Return free pages to the file system, unless there are only a few."""
    pacer.run(iter([partial(bodies.return_free_pages, pacer.connection)]))


def _steps(
    connection: sqlite3.Connection, plan: Plan, settings: PolicySettings, counts: Counter[str]
) -> Iterator[Step]:
    for group_key in plan.tombstones:
        yield partial(once, moves.remove_tombstone, connection, group_key)
    for user_id in plan.deleted_accounts:
        yield partial(once, moves.remove_user_tombstone, connection, user_id)
    if timers.has_leftovers(connection):
        yield partial(timers.sweep, connection, plan.now)
    yield taken_back.sweep_step(connection)
    for session_id in plan.sessions:
        yield partial(_delete_session, connection, session_id, settings.sessions_dead_before(plan.now), counts)
    for invite_key in plan.invites:
        yield partial(_delete_invite, connection, invite_key, settings.invites_dead_before(plan.now), counts)


def _raise_marks(connection: sqlite3.Connection, step: GroupStep) -> bool:
    """Raise the marks of a group. Messages below a mark are never served again."""
    policy = rules.find_policy(connection, step.group_key)
    if policy and policy.is_after_fetch:
        # If the group entered this mode after the plan was made, it has a new floor, which must not be replaced.
        floor = min(step.floor_seq, step.gone_below)
        connection.execute(
            "UPDATE groups SET floor_seq = max(floor_seq, ?), gone_below = max(gone_below, ?) WHERE group_key = ?",
            (floor, step.gone_below, step.group_key),
        )
    if policy and policy.keeps_commits:
        connection.execute(
            "UPDATE groups SET commits_below = max(commits_below, ?) WHERE group_key = ?",
            (step.commits_above, step.group_key),
        )
    reach("apply.marks_raised")
    return False


def _deletions(
    connection: sqlite3.Connection, due_messages: list[DueMessages], elements: list[int], counts: Counter[str]
) -> Iterator[Step]:
    """Yield the steps that delete listed messages that are still due, at most CHUNK each."""
    for start in range(0, len(elements), CHUNK):
        yield partial(_delete_messages, connection, due_messages, elements[start : start + CHUNK], counts)


def _delete_messages(
    connection: sqlite3.Connection, due_messages: list[DueMessages], elements: list[int], counts: Counter[str]
) -> bool:
    deleted: list[DeletedMessage] = []
    for index, pairs in groupby(map(due.split_element, elements), key=itemgetter(0)):
        message_ids = [message_id for _, message_id in pairs]
        deleted += due_messages[index].delete(connection, message_ids)
    _record(connection, deleted, counts)
    timers.forget(connection, _numbers(deleted))
    reach("apply.messages_deleted")
    return False


def _record(connection: sqlite3.Connection, deleted: list[DeletedMessage], counts: Counter[str]) -> None:
    """Count deleted messages, and record them for the receipts."""
    kind = attrgetter("group_key", "rule")
    for (group_key, rule), same_kind in groupby(sorted(deleted, key=kind), key=kind):
        messages = list(same_kind)
        counts[rule] += len(messages)
        if rule in (EXPIRED, *ANY_RUN_RULES):
            invalidation.invalidate_group(connection, group_key)
        ranges = moves.duplicated_ranges(connection, group_key)  # the archive erases and records these later
        erased = [each for each in messages if not any(low <= each.sequence_num <= high for low, high in ranges)]
        if erased:
            last_seq, newest = max(each.sequence_num for each in erased), max(each.created_at for each in erased)
            receipts.note(connection, group_key, ErasedMessages(rule, len(erased), last_seq, newest))
            message_keys.note_erased(connection, group_key, [each.sequence_num for each in erased])


def _numbers(deleted: list[DeletedMessage]) -> dict[int, list[int]]:
    """Return the numbers of messages by group key."""
    numbers: dict[int, list[int]] = {}
    for each in deleted:
        numbers.setdefault(each.group_key, []).append(each.sequence_num)
    return numbers


def _delete_session(connection: sqlite3.Connection, session_id: int, dead_before: int, counts: Counter[str]) -> bool:
    counts[SESSIONS] += connection.execute(
        "DELETE FROM sessions WHERE session_id = ? AND expires_at < ?", (session_id, dead_before)
    ).rowcount
    return False


def _delete_invite(connection: sqlite3.Connection, invite_key: int, dead_before: int, counts: Counter[str]) -> bool:
    counts[INVITES] += invites.remove_dead(connection, invite_key, dead_before)
    return False
