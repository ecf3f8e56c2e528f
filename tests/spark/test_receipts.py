"""Receipts of what is erased from the hot store: each message is in one, whatever the archive has of it."""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from conclave.actions.messages import append
from conclave.clock import FakeClock
from conclave.retention import marks
from conclave.retention.plan import make_plan
from conclave.retention.policy import KEEP
from conclave.retention.resolve import PolicySettings
from conclave.store.archive import moves
from conclave.store.archive.moves import MoveRange, PartRow
from conclave.store.engine import sqlite
from conclave.store.resources import groups, receipts, state, users
from conclave.store.resources.members import Membership
from spark import apply
from spark.hot_store import Pacer
from tests.support import stores
from tests.support.memberships import member_of

START = 1_700_000_000
POLICY = PolicySettings(-1, 2_592_000, 604_800)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    stores.prepare(tmp_path / "hot.db")
    with closing(sqlite.connect(tmp_path / "hot.db")) as opened, sqlite.write_transaction(opened):
        state.begin_serving(opened, POLICY, FakeClock(START).read())
    with closing(sqlite.connect(tmp_path / "hot.db")) as opened:
        yield opened


def a_group(connection: sqlite3.Connection) -> Membership:
    """A group of one, who has sent 4 messages."""
    user_id = users.add(connection, "alice", "", "", START)
    group_id = groups.add(connection, user_id, "group", "", START, POLICY)
    member = member_of(connection, group_id, user_id)
    for _ in range(4):
        append(connection, member, b"body", START, is_commit=False)
    return member_of(connection, group_id, user_id)


def move(connection: sqlite3.Connection, member: Membership, *steps: str) -> None:
    """Move the first 3 messages up to one of ``steps``. The copies stay."""
    key = member.group.group_key
    moved = MoveRange(key, 1, 3, KEEP)
    moves.begin(connection)
    batch = moves.fix_batch(connection, [moved], START)
    if "verified" in steps:
        moves.note_verified(connection, batch, 3, 0)
    if "switched" in steps:
        moves.switch(connection, moved, [PartRow(key, KEEP, 0, 1, 3, START, START, 3, 12, 0)], [member.user_id], 1)


def erase(connection: sqlite3.Connection) -> dict[str, int]:
    """Apply what is due a second later; return by rule how many messages are noted."""
    plan = make_plan(connection, POLICY, START + 1)
    apply.apply_plan(Pacer(connection), plan, POLICY, Counter())
    assert connection.execute("SELECT count(*) FROM messages").fetchone()[0] == 0
    return {row["rule"]: row["messages"] for row in connection.execute("SELECT * FROM erasures")}


@pytest.mark.parametrize(
    ("steps", "noted"), [((), 4), (("verified",), 1), (("verified", "switched"), 1)], ids=["fixed", "verified", "moved"]
)
@pytest.mark.parametrize("rule", ["expired", "deleted_group", "deleted_account"])
def test_a_copy_of_what_the_archive_has_is_not_noted(
    connection: sqlite3.Connection, steps: tuple[str, ...], noted: int, rule: str
) -> None:
    member = a_group(connection)
    with sqlite.write_transaction(connection):
        move(connection, member, *steps)
        if rule == "expired":
            marks.hide_before(connection, member.group.group_key, START + 1)
        elif rule == "deleted_group":
            groups.remove(connection, member.group, START)
        else:
            connection.execute("INSERT INTO user_tombstones VALUES (?, ?)", (member.user_id, START))
    assert erase(connection) == {rule: noted}


def test_what_was_restored_is_noted_where_it_is_erased_last(connection: sqlite3.Connection) -> None:
    member = a_group(connection)
    with sqlite.write_transaction(connection):
        move(connection, member, "verified", "switched")
        connection.execute("UPDATE archive_moves SET finished_at = ?", (START,))
        connection.execute("UPDATE groups SET archived_seq = 0")
        marks.hide_before(connection, member.group.group_key, START + 1)
    assert erase(connection) == {"expired": 4}
    with sqlite.write_transaction(connection):
        receipts.seal(connection, START, "everything")
    assert [each.messages for each in receipts.last(connection, 9)] == [4]
