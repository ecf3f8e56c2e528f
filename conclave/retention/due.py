"""Selects, counts and deletes the messages in the hot store that are due, by rule.

Selected messages are checked again when they are deleted, by the policy, marks and legal holds of that moment.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from conclave.retention import rules
from conclave.retention.holds import HELD_GROUPS, HELD_SENDERS
from conclave.retention.plan import GroupStep, Plan
from conclave.retention.policy import FOREVER
from conclave.retention.rules import (
    ANY_RUN_RULES,
    DELETED_ACCOUNT,
    DELETED_GROUP,
    GOVERNED,
    LIVING_RULES,
    POLICY_RULES,
    RULES,
    Bounds,
    limits_of,
)
from conclave.store import bodies
from conclave.store.sender_index import SENT

LIST_SIZE = 1_000_000
"""The target length of a list of messages. A list has at most twice as many, at 50 bytes of memory each."""

_INDEX_FACTOR = 1 << 64
"""A list element is the index of its DueMessages times this factor, plus the message id: smaller than a pair."""

Values = dict[str, Any]
"""The values of a statement's parameters, by name."""


class DeletedMessage(NamedTuple):
    """A message that was deleted, and the rule that it was deleted by."""

    rule: str
    group_key: int
    message_id: int
    sequence_num: int
    created_at: int


_PARAMETERS = Bounds(":gone", ":cutoff", ":commits_above", ":erasable_before")

_EVERYTHING: Values = dict.fromkeys(("gone", "cutoff", "commits_above", "erasable_before"), FOREVER)

_ROW_BOUNDS = Bounds(
    erasable_before="(SELECT erasable_before FROM governed_groups AS governed"
    " WHERE governed.group_key = messages.group_key UNION ALL SELECT erasable_before"
    " FROM governed_tombstones AS governed WHERE governed.group_key = messages.group_key)"
)
"""Bounds for the messages of a deleted account: those of each message's group, living or deleted."""

_COLUMNS = "message_id, group_key, sequence_num, messages.created_at, is_commit, sender_id"
"""The columns that the conditions of the rules need."""


@dataclass(frozen=True)
class DueMessages:
    """The due messages of one group, or of one deleted account.

    ``rules``: the rules that apply, in the order of RULES. ``owned``: the SQL condition for the group or the account.
    ``bounds``: the bounds of the conditions. ``values``: the parameters, including bounds beyond which nothing is
    deleted, even if the stored rows now allow it. ``ctes``: the common table expressions, or "".
    """

    rules: Sequence[str]
    owned: str
    bounds: Bounds
    values: Values
    ctes: str = ""

    def select(self, columns: str) -> tuple[str, Values]:
        """Return the query and its values. It selects each message once, in any order."""
        by_rule = (
            f"SELECT {columns} FROM {RULES[each].tables} WHERE {self.owned} AND {RULES[each].due(self.bounds)}"
            for each in self.rules
        )
        return self.ctes + " UNION ".join(by_rule), self.values

    def count(self, connection: sqlite3.Connection) -> Counter[str]:
        """Return how many messages are due by each rule. Each message counts once."""
        query, values = self.select(_COLUMNS)
        rule = rules.rule_name(self.rules, self.bounds)
        rows = connection.execute(f"SELECT {rule}, count(*) FROM ({query}) AS messages GROUP BY 1", values)
        return Counter(dict(rows.fetchall()))

    def delete(self, connection: sqlite3.Connection, message_ids: Sequence[int]) -> Iterator[DeletedMessage]:
        """Delete the messages that are still due. ``message_ids``: selected earlier, in ascending order."""
        for group_key, group_ids in groupby(message_ids, key=lambda each: each >> bodies.NUMBER_BITS):
            numbers = [each & bodies.LAST_NUMBER for each in group_ids]
            limits = limits_of(connection, group_key, self.values["now"])
            if limits and (limits.is_deleted or DELETED_GROUP not in self.rules):
                allowed = {name: min(self.values[name], getattr(limits, name)) for name in _EVERYTHING}
                group_values = {"group_key": group_key, "numbers": json.dumps(numbers)}
                yield from self._delete(connection, {**self.values, **allowed, **group_values})

    def _delete(self, connection: sqlite3.Connection, values: Values) -> list[DeletedMessage]:
        rule, may_erase = rules.rule_name(self.rules, _PARAMETERS), rules.may_erase(_PARAMETERS)
        query = _STILL_DUE.format(rule=rule, may_erase=may_erase)
        deleted = [DeletedMessage(*row) for row in connection.execute(query, values).fetchall()]
        numbers = json.dumps([each.sequence_num for each in deleted])
        connection.execute(
            "DELETE FROM messages WHERE group_key = ? AND sequence_num IN (SELECT value FROM json_each(?))",
            (values["group_key"], numbers),
        )
        bodies.delete_of_messages(connection, [each.message_id for each in deleted])
        return deleted


_STILL_DUE = """
SELECT * FROM (
    SELECT {rule} AS rule, group_key, message_id, sequence_num, created_at
    FROM json_each(:numbers) CROSS JOIN messages ON group_key = :group_key AND sequence_num = json_each.value
    WHERE {may_erase}
) WHERE rule IS NOT NULL
"""


def of_plan(connection: sqlite3.Connection, plan: Plan) -> list[DueMessages]:
    """Return the due messages of ``plan``: first for groups, then for deleted groups and deleted accounts."""
    unheld = Bounds().as_needed(connection).unheld
    at = {"now": plan.now}
    due_messages = [_of_group(step, at, unheld) for step in plan.groups]
    if plan.tombstones:
        query = f"WITH {GOVERNED} SELECT group_key, erasable_before FROM governed_tombstones"
        erasable = dict(connection.execute(query, at).fetchall())
        due_messages += [_of_deleted_group(key, erasable.get(key, 0), at, unheld) for key in plan.tombstones]
    held = {row[0] for row in connection.execute(HELD_SENDERS)} if plan.deleted_accounts else ()
    return due_messages + [_of_account(each, at) for each in plan.deleted_accounts if each not in held]


def _of_group(step: GroupStep, at: Values, unheld: str) -> DueMessages:
    values = {
        "group_key": step.group_key,
        "gone": step.gone_below,
        "cutoff": step.expired_before,
        "commits_above": step.commits_above,
        "erasable_before": step.erasable_before,
    }
    applied = (*POLICY_RULES, *ANY_RUN_RULES) if step.redacts else POLICY_RULES
    return DueMessages(applied, "group_key = :group_key", _parameter_bounds(values, unheld), {**values, **at})


def _of_deleted_group(group_key: int, erasable_before: int, at: Values, unheld: str) -> DueMessages:
    values = {**_EVERYTHING, "group_key": group_key, "erasable_before": erasable_before}
    bounds = _parameter_bounds(values, unheld)
    return DueMessages((DELETED_GROUP,), "group_key = :group_key", bounds, {**values, **at})


def _of_account(user_id: bytes, at: Values) -> DueMessages:
    values = {**_EVERYTHING, "user_id": user_id, **at}
    return DueMessages((DELETED_ACCOUNT,), "user_id = :user_id", _ROW_BOUNDS, values, f"WITH {GOVERNED} ")


def _parameter_bounds(values: Values, unheld: str) -> Bounds:
    """Return bounds that refer to the parameters, without those that exclude no message."""
    unused = {name: "" for name in ("commits_above", "erasable_before") if values[name] == FOREVER}
    return _PARAMETERS._replace(unheld=unheld, **unused)


def list_due(connection: sqlite3.Connection, due: Sequence[DueMessages]) -> Iterator[list[int]]:
    """Yield the messages of ``due`` in lists of about LIST_SIZE elements, in the order in which they are stored.

    ``split_element`` decodes an element.
    """
    elements: list[int] = []
    for index, each in enumerate(due):
        query, values = each.select("message_id")
        last = 0
        while rows := connection.execute(
            f"SELECT message_id FROM ({query}) WHERE message_id > {last:d} ORDER BY message_id LIMIT {LIST_SIZE:d}",
            values,
        ).fetchall():
            last = rows[-1][0]
            elements += [index * _INDEX_FACTOR + row[0] for row in rows]
            if len(elements) >= LIST_SIZE:
                yield elements
                elements = []
            if len(rows) < LIST_SIZE:
                break
    if elements:
        yield elements


def split_element(element: int) -> tuple[int, int]:
    """Return the index of the DueMessages, and the message id, of an element of ``list_due``."""
    return divmod(element, _INDEX_FACTOR)


def count(connection: sqlite3.Connection, plan: Plan) -> Counter[str]:
    """Return how many messages each rule would delete. Each message counts once. Changes nothing."""
    counts: Counter[str] = Counter(dict.fromkeys(RULES, 0))
    steps = [(step.group_key, step.gone_below, step.expired_before, step.commits_above) for step in plan.groups]
    steps += [(key, FOREVER, FOREVER, FOREVER) for key in plan.tombstones]
    for each in of_plan(connection, plan):
        if DELETED_ACCOUNT in each.rules:
            query, values = each.select(_COLUMNS)
            counted = connection.execute(_NOT_IN_STEPS.format(query), {**values, "steps": json.dumps(steps)})
            counts[DELETED_ACCOUNT] += counted.fetchone()[0]
        else:
            counts.update(each.count(connection))
    return counts


_NOT_IN_STEPS = f"""
WITH steps AS MATERIALIZED (
    SELECT value ->> 0 AS group_key, value ->> 1 AS gone, value ->> 2 AS cutoff, value ->> 3 AS commits_above
    FROM json_each(:steps)
)
SELECT count(*) FROM ({{}}) AS messages LEFT JOIN steps USING (group_key)
WHERE steps.group_key IS NULL OR {rules.rule_name((*POLICY_RULES, *ANY_RUN_RULES), Bounds())} IS NULL
"""
"""Counts the messages that are deleted with an account, and not by a step of their group."""


def is_any(connection: sqlite3.Connection, plan: Plan) -> bool:
    """Return whether ``plan`` deletes any row, or raises a mark. Withheld messages of deleted groups do not count."""
    if plan.groups or plan.sessions or plan.invites:
        return True
    queries = (each.select("message_id") for each in of_plan(connection, plan))
    return any(connection.execute(f"SELECT 1 FROM ({query}) LIMIT 1", values).fetchone() for query, values in queries)


def groups(connection: sqlite3.Connection, plan: Plan) -> set[int]:
    """Return the keys of the groups that ``plan`` changes, even if only a mark rises."""
    keys = {step.group_key for step in plan.groups}
    for each in of_plan(connection, plan)[len(plan.groups) :]:
        query, values = each.select("group_key")
        keys.update(row[0] for row in connection.execute(f"SELECT DISTINCT group_key FROM ({query})", values))
    return keys


def list_due_ids(connection: sqlite3.Connection, plan: Plan) -> None:
    """Create temp.due_ids with the ids of the messages that ``plan`` deletes, each once."""
    connection.execute("CREATE TEMP TABLE due_ids (message_id INTEGER PRIMARY KEY)")
    for each in of_plan(connection, plan):
        query, values = each.select("message_id")
        connection.execute(f"INSERT OR IGNORE INTO temp.due_ids {query}", values)


def hide_planned(connection: sqlite3.Connection, plan: Plan) -> None:
    """Make the connection see the tables without the messages that ``plan`` deletes.

    Shadows ``messages`` and ``self_destructing`` by temporary tables and views. Nothing is written to the database.
    """
    list_due_ids(connection, plan)
    connection.execute(
        "CREATE TEMP TABLE due_timed AS SELECT group_key, sequence_num FROM self_destructing"
        " JOIN messages USING (group_key, sequence_num) WHERE message_id IN (SELECT message_id FROM temp.due_ids)"
    )
    if connection.execute("SELECT 1 FROM temp.sqlite_schema WHERE name = 'self_destructing'").fetchone():
        connection.execute(f"DELETE FROM temp.self_destructing WHERE {_IS_DUE_TIMED}")  # shadow rows, see ``rehearsal``
    else:
        connection.execute(
            f"CREATE TEMP VIEW self_destructing AS SELECT * FROM main.self_destructing WHERE NOT {_IS_DUE_TIMED}"
        )
    connection.execute(
        "CREATE TEMP VIEW messages AS SELECT * FROM main.messages"
        " WHERE message_id NOT IN (SELECT message_id FROM temp.due_ids)"
    )


_IS_DUE_TIMED = "(group_key, sequence_num) IN (SELECT group_key, sequence_num FROM temp.due_timed)"


def count_held(connection: sqlite3.Connection, now: int, risen: Iterable[tuple[int, int]] = ()) -> int:
    """Return how many messages of the hot store would be erased at ``now`` without legal holds.

    Each counts once. ``spark/archive/expiry.py`` counts those of the archive. ``risen``: pairs of a mark ``gone_below``
    and a group key, for the marks that a dry run would have raised.
    """
    group_keys = [row[0] for row in connection.execute(f"SELECT DISTINCT group_key FROM ({HELD_GROUPS})")]
    user_ids = [row[0] for row in connection.execute(f"SELECT DISTINCT user_id FROM ({HELD_SENDERS})")]
    if not (group_keys or user_ids):
        return 0
    at = {"now": now, "risen": json.dumps(list(risen))}
    user_counts = (int(connection.execute(_HELD_OF, {**at, "user_id": each}).fetchone()[0]) for each in user_ids)
    return sum(user_counts) + sum(_held_in(connection, {**at, "group_key": key}) for key in group_keys)


_RISEN = f"""
WITH {GOVERNED}, risen AS MATERIALIZED (SELECT value ->> 0 AS mark, value ->> 1 AS group_key FROM json_each(:risen))
"""

_GONE = "max(gone_below, ifnull(mark, 0))"

_LIMITS = f"""{_RISEN}
SELECT FALSE AS is_deleted, {_GONE} AS gone, cutoff, commits_above, old_enough_before AS erasable_before
    FROM governed_groups LEFT JOIN risen USING (group_key) WHERE group_key = :group_key
UNION ALL SELECT TRUE, {FOREVER}, {FOREVER}, {FOREVER}, old_enough_before
    FROM governed_tombstones WHERE group_key = :group_key
"""

_HELD_OF = f"""{_RISEN}
SELECT count(*) FROM {SENT} LEFT JOIN governed_groups AS governed USING (group_key)
    LEFT JOIN governed_tombstones AS deleted USING (group_key) LEFT JOIN risen USING (group_key)
WHERE sender_id = :user_id AND messages.created_at < ifnull(governed.old_enough_before, deleted.old_enough_before)
    AND group_key NOT IN ({HELD_GROUPS})
    AND (governed.group_key IS NULL OR {rules.rule_name(LIVING_RULES, Bounds(gone=_GONE))} IS NOT NULL)
"""


def _held_in(connection: sqlite3.Connection, values: Values) -> int:
    row = connection.execute(_LIMITS, values).fetchone()
    if row is None:
        return 0
    applied = (DELETED_GROUP,) if row["is_deleted"] else LIVING_RULES
    bounds = _PARAMETERS._replace(unheld="")
    query, values = DueMessages(applied, "group_key = :group_key", bounds, {**values, **dict(row)}).select("message_id")
    return int(connection.execute(f"SELECT count(*) FROM ({query})", values).fetchone()[0])
