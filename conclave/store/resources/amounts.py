"""How many bytes of bodies the hot store has of a group or a user; of many messages, by a sample."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from conclave.store import bodies
from conclave.store.sender_index import SENT

MEASURED = 10_000
"""The bodies of up to 10,000 messages of a group are measured; of more, as many are taken as a sample."""


@dataclass(frozen=True)
class Amounts:
    """The bytes of a group's or a user's bodies in the hot store."""

    hot_bytes: int
    is_estimate: bool
    """There were more than MEASURED."""


def of_group(connection: sqlite3.Connection, group_key: int, messages: int) -> Amounts:
    """Return how many bytes of bodies the hot store has of a group with so many ``messages`` there."""
    if not messages:
        return Amounts(0, is_estimate=False)
    step = -(-messages // MEASURED)
    chosen = connection.execute(
        "SELECT message_id FROM messages WHERE group_key = ? AND sequence_num % ? = 0", (group_key, step)
    )
    return measured(connection, [row[0] for row in chosen], messages, step)


def of_user(connection: sqlite3.Connection, user_id: bytes) -> tuple[int, Amounts]:
    """Return how many application messages of a user the hot store has, and how many bytes of bodies."""
    sent = f"FROM {SENT} WHERE sender_id = ? AND NOT is_commit"
    messages: int = connection.execute(f"SELECT count(*) {sent}", (user_id,)).fetchone()[0]
    step = max(1, -(-messages // MEASURED))
    chosen = islice(connection.execute(f"SELECT message_id {sent}", (user_id,)), 0, None, step)
    return messages, measured(connection, [row[0] for row in chosen], messages, step)


def measured(connection: sqlite3.Connection, ids: Sequence[int], messages: int, step: int) -> Amounts:
    """Return the bytes of so many ``messages``, of which every ``step``-th has its body in ``ids``."""
    total = bodies.message_bytes(connection, ids)
    return Amounts(total if step == 1 else total * messages // max(1, len(ids)), is_estimate=step > 1)
