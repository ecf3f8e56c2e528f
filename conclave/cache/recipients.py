"""Who is in a group, as the writer remembers it: who may send there, and who hears of it.

It is asked only under the write lock, inside the transaction, so nothing else changes meanwhile. What was
touched before the transaction began is forgotten first. So a transaction asks before it touches anything itself.
"""

import sqlite3
from collections import OrderedDict
from dataclasses import dataclass

from conclave.store import invalidation
from conclave.store.engine.connection import of_store
from conclave.store.engine.group_commit import NotCachedError
from conclave.store.engine.news import members_of
from conclave.store.resources import members

MOST_MEMBERS = 200_000
"""At most 200,000 members of groups are remembered, which takes about 30 MB; of larger groups those of one."""


@dataclass(frozen=True)
class GroupMembers:
    """A group's key and the ids of its members.

    ``joining``: those of whom the store has to be asked whether they are members still. Their joins were not completed
    when this was read.
    """

    group_key: int
    members: frozenset[bytes]
    joining: frozenset[bytes]


class Recipients:
    """The members of groups that were sent to lately, by the ids of the groups."""

    def __init__(self) -> None:
        """Begin with none."""
        self._touch = -1
        self._by_id: OrderedDict[bytes, GroupMembers] = OrderedDict()
        self._ids: dict[int, bytes] = {}
        self._count = 0

    def catch_up(self, connection: sqlite3.Connection) -> None:
        """Forget what was touched before this transaction. Call it first."""
        touched = invalidation.after(connection, self._touch) if self._touch >= 0 else None
        if self._touch < 0:
            self._touch = invalidation.last_invalidation(connection)
        if touched is None:
            return
        self._touch = touched.touch
        for group_key in list(self._ids) if touched.everything else touched.groups:
            self._forget(group_key)

    def find(self, connection: sqlite3.Connection, group_id: bytes) -> GroupMembers | None:
        """Return who is in a group; None if there is no such group.

        Raises NotCachedError if that has to be read on the event loop: a group may have very many members.
        """
        found = self._by_id.get(group_id)
        if found:
            self._by_id.move_to_end(group_id)
            return found
        if of_store(connection).is_on_event_loop:
            raise NotCachedError
        row = connection.execute("SELECT group_key FROM groups WHERE group_id = ?", (group_id,)).fetchone()
        if row is None:
            return None
        everyone, joining = members_of(connection, row[0]), members.joining(connection, row[0])
        found = GroupMembers(row[0], frozenset(everyone), frozenset(joining))
        self._by_id[group_id], self._ids[found.group_key] = found, group_id
        self._count += len(found.members)
        while self._count > MOST_MEMBERS and len(self._by_id) > 1:
            self._forget(next(iter(self._by_id.values())).group_key)
        return found

    def _forget(self, group_key: int) -> None:
        group_id = self._ids.pop(group_key, None)
        if group_id:
            self._count -= len(self._by_id.pop(group_id).members)
