"""Lists are read by their indexes, a part at a time, and leave nothing open."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from conclave.store.engine.sqlite import connect
from conclave.store.lists import Listing, ListPart, NotListedError, Span
from conclave.store.resources import bans, groups, invites, members, own_groups, sessions, users, welcomes
from tests.support import stores

LISTINGS: dict[str, tuple[Listing[Any], dict[str, Any]]] = {
    "bans": (bans._OF_GROUP, {"group_key": 1}),
    "sessions": (sessions._OF_USER, {"user_id": b"x"}),
    "public groups": (groups._PUBLIC, {"pattern": "%%"}),
    "admins": (members._ADMINS, {"group_key": 1}),
    "own invites": (invites._OF_USER, {"user_id": b"x", "dead_before": 0}),
    "invites of a group": (invites._OF_GROUP, {"group_key": 1, "dead_before": 0}),
    "welcomes": (welcomes._OF_USER, {"user_id": b"x"}),
    "own groups": (own_groups._OWN_GROUPS, {"user_id": b"x"}),
    "members": (own_groups._MEMBERS, {"group_key": 1, "last": 9}),
}


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    path = tmp_path / "hot.db"
    stores.prepare(path)
    with closing(connect(path)) as opened:
        yield opened


@pytest.mark.parametrize("name", LISTINGS)
@pytest.mark.parametrize("after", [None, b"id", 7], ids=["the beginning", "an id", "a key"])
def test_a_part_costs_no_more_than_its_rows(connection: sqlite3.Connection, name: str, after: Any) -> None:
    """Nothing is sorted, and no table is read from end to end: what is scanned is an index in the list's order."""
    listing, values = LISTINGS[name]
    asked: list[str] = []
    connection.set_trace_callback(asked.append)
    try:
        listing.read(connection, Span(after), values)
    except NotListedError:
        assert after == b"id"
    connection.set_trace_callback(None)
    for statement in asked:
        plan = [str(row["detail"]) for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
        assert plan
        assert not [step for step in plan if "TEMP B-TREE" in step], plan
        scanned = [step for step in plan if step.startswith("SCAN")]
        assert scanned in ([], ["SCAN groups USING INDEX groups_public"]), plan


def test_a_part_that_fails_leaves_no_statement_open(connection: sqlite3.Connection, tmp_path: Path) -> None:
    """An open one keeps its snapshot: what is read next on the connection is the past."""
    user = users.add(connection, "alice", "hash", "", 0)
    for number in range(3):
        sessions.add(connection, user, "hash", bytes([number]) * 32, 0, 10)

    def fail(_: sessions.SessionRow) -> None:
        raise RuntimeError

    connection.execute("BEGIN")
    with pytest.raises(RuntimeError) as failed:
        sessions.of_user(connection, user, fail, Span())
    assert failed.tb, "it keeps the frames, and with them the cursor"
    connection.execute("ROLLBACK")
    with closing(connect(tmp_path / "hot.db")) as other:
        other.execute("UPDATE users SET alias = 'new'")
        busy, _, _ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert not busy


def test_a_part_has_at_least_one_row_and_stops_at_its_size(connection: sqlite3.Connection) -> None:
    key = _group_with_bans(connection, 9)
    after, sizes = None, []
    while True:
        part = bans.of_group(connection, key, Span(after, size=1))
        after = part.last
        sizes.append(len(part.items))
        if part.is_end:
            break
    assert sizes == [1] * 9


def test_what_is_not_shown_counts_as_read(connection: sqlite3.Connection) -> None:
    """Or a list of nothing but expired sessions would be read from end to end at once."""
    user = users.add(connection, "alice", "hash", "", 0)
    for number in range(30):
        sessions.add(connection, user, "hash", bytes([number]) * 32, 0, 10)
    part: ListPart[Any] = sessions.of_user(connection, user, lambda _: None, Span(size=2_000))
    assert (part.items, part.is_end) == ([], False)
    assert part.last is not None


def _group_with_bans(connection: sqlite3.Connection, count: int) -> int:
    key = connection.execute(
        "INSERT INTO groups (group_id, group_name, alias, created_at) VALUES (x'00', 'club', '', 0)"
    ).lastrowid
    assert key
    for number in range(count):
        user = users.add(connection, f"user{number}", "", "", 0)
        bans.add(connection, key, user, user, number)
    return key
