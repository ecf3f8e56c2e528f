"""Archived messages whose keys are lost, and that wait in the table until their files are written anew.

The index counts them as before, so that table and index agree. Here is what of each part cannot be read: all that the
archive has of the group up to a number. Nothing serves it: it is hidden, and has no key.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from conclave.store.archive.erasures import Key
from conclave.store.resources import receipts
from conclave.store.resources.receipts import Erased


@dataclass(frozen=True)
class Left:
    """What is left of a part that can be read. ``dead``: how many messages of the part cannot.

    ``first`` and ``oldest``: the least number and the least time of what can; None: nothing can.
    """

    dead: int
    first: int | None
    oldest: int | None


def note(
    connection: sqlite3.Connection, key: Key, now: int, up_to: int, left: Left, lost: Sequence[Erased] = ()
) -> None:
    """Note that the keys of a part's messages up to a number are lost with this transaction.

    ``left``: what is left of the part then. ``lost``: what of it could be read until now.
    """
    connection.execute(
        "INSERT INTO archive_unreadable (group_key, lifetime, span, since, dead_up_to, dead_messages, first_left,"
        " oldest_left) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
        " since = iif(dead_messages, since, excluded.since), dead_up_to = excluded.dead_up_to,"
        " dead_messages = excluded.dead_messages, first_left = excluded.first_left, oldest_left = excluded.oldest_left",
        (*key, now, up_to, left.dead, left.first, left.oldest),
    )
    for each in lost:
        receipts.note(connection, key[0], each, each.messages, each.messages)


def refuse(connection: sqlite3.Connection, key: Key) -> None:
    """Note that a part cannot wait: the next look at it writes it anew."""
    connection.execute(
        "INSERT INTO archive_unreadable (group_key, lifetime, span, since, dead_up_to, dead_messages, first_left,"
        " oldest_left) VALUES (?, ?, ?, 0, 0, 0, 0, 0) ON CONFLICT DO UPDATE SET since = 0",
        key,
    )


@dataclass(frozen=True)
class Waiting:
    """How many messages wait to be overwritten, and since when the first does, Unix seconds; None: none waits."""

    messages: int
    since: int | None


def waiting(connection: sqlite3.Connection) -> Waiting:
    """Return what waits to be overwritten."""
    row = connection.execute(
        "SELECT ifnull(sum(dead_messages), 0), min(nullif(since, 0)) FROM archive_unreadable WHERE dead_messages > 0"
    ).fetchone()
    return Waiting(*row)
