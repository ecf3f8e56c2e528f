"""What moves next: slices of time, and which messages a batch takes."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from conclave.config.archive import ArchiveConfig
from conclave.retention.policy import KEEP
from conclave.retention.resolve import PolicySettings
from conclave.store.archive import move_selection, moves
from conclave.store.archive.move_selection import HOUR
from conclave.store.archive.moves import MoveRange
from conclave.store.engine import sqlite
from spark.hot_store import Hot
from tests.support import stores

NOW = 10_000 * HOUR
POLICY = PolicySettings(KEEP, 1, 1)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    stores.prepare(tmp_path / "hot.db")
    with closing(sqlite.connect(tmp_path / "hot.db")) as opened:
        yield opened


def add_group(connection: sqlite3.Connection, key: int, times: Sequence[int], size: int = 10) -> None:
    connection.execute(
        "INSERT INTO groups (group_key, group_id, group_name, alias, created_at) VALUES (?1, ?2, hex(?2), '', 0)",
        (key, key.to_bytes(16)),
    )
    with sqlite.write_transaction(connection):
        for number, second in enumerate(times, 1):
            stores.add_message(connection, key, number, b"\0", second, body=bytes(size))


def slices(connection: sqlite3.Connection, rows: int) -> list[int]:
    """Return how many messages lie in each slice of time; check the bounds."""
    bounds = move_selection.time_slices(connection, 0, NOW, rows)
    assert bounds == sorted(set(bounds))
    assert bounds[-1] == NOW
    assert all(bound % HOUR == 0 for bound in bounds)
    count = "SELECT count(*) FROM messages WHERE created_at >= ? AND created_at < ?"
    return [connection.execute(count, each).fetchone()[0] for each in zip([0, *bounds], bounds, strict=False)]


def test_slices_hold_about_as_many_messages_and_the_first_a_quarter(connection: sqlite3.Connection) -> None:
    times = [NOW - 10_000 * 600 + n * 600 for n in range(10_000)]
    add_group(connection, 1, times[::2])
    add_group(connection, 2, times[1::2])
    found = slices(connection, 2_000)
    assert sum(found) == 10_000
    assert 350 < found[0] < 600
    assert all(1_600 < each < 2_200 for each in found[1:-1])


def test_what_fits_into_one_batch_is_not_divided(connection: sqlite3.Connection) -> None:
    add_group(connection, 1, [NOW - HOUR * n for n in range(1_800, 0, -1)])
    assert slices(connection, 2_000) == [1_800]


def test_few_messages_are_found_although_none_is_in_the_sample(connection: sqlite3.Connection) -> None:
    add_group(connection, 1, [NOW - HOUR, NOW - 2])
    assert slices(connection, 2_000) == [2]


def test_an_hour_of_more_than_a_batch_lies_in_one_slice(connection: sqlite3.Connection) -> None:
    add_group(connection, 1, [NOW - 3 * HOUR] * 100 + [NOW - 2 * HOUR] * 1_000 + [NOW - HOUR] * 100)
    assert 1_000 in slices(connection, 200)


def test_a_batch_begins_where_the_moves_under_way_end(connection: sqlite3.Connection) -> None:
    add_group(connection, 1, [NOW - 9] * 5 + [NOW + 1] + [NOW - 9])
    add_group(connection, 2, [NOW - 9] * 4)
    connection.execute("UPDATE groups SET archived_seq = 1 WHERE group_key = 2")
    for first, last in ((1, 1), (2, 3)):
        moves.fix_batch(connection, [MoveRange(1, first, last, KEEP)], NOW)
    chosen, more = move_selection.choose(connection, 0, NOW, 100, 10_000)
    assert chosen == [MoveRange(1, 4, 5, KEEP), MoveRange(2, 2, 4, KEEP)]
    assert not more
    assert move_selection.count(connection, 0, NOW) == 3 + 5, "with those under way"


def test_a_batch_takes_no_more_than_it_may_but_at_least_one(connection: sqlite3.Connection) -> None:
    add_group(connection, 1, [NOW - 9] * 10, size=100)
    assert move_selection.choose(connection, 0, NOW, 4, 10_000) == ([MoveRange(1, 1, 4, KEEP)], True)
    chosen, _ = move_selection.choose(connection, 0, NOW, 10, 640)
    assert chosen[0].last_seq in (4, 5)
    assert move_selection.choose(connection, 0, NOW, 10, 1)[0] == [MoveRange(1, 1, 1, KEEP)]


def test_what_follows_a_message_that_destroys_itself_does_not_count(connection: sqlite3.Connection) -> None:
    add_group(connection, 1, [NOW - 9] * 5)
    connection.execute("INSERT INTO self_destructing (group_key, sequence_num, seconds) VALUES (1, 3, 60)")
    assert move_selection.count(connection, 0, NOW) == 2


def test_groups_are_movable_whose_messages_outlive_the_least_however_many_lifetimes_there_are(
    connection: sqlite3.Connection,
) -> None:
    with sqlite.write_transaction(connection):
        connection.executemany(
            "INSERT INTO groups (group_key, group_id, group_name, alias, created_at, effective_expiry)"
            " VALUES (?1, ?2, ?1, '', 0, ?1)",
            [(key, key.to_bytes(16)) for key in range(1, 40_001)],
        )
        for key in (1, 100, 101, 40_000):
            stores.add_message(connection, key, 1, b"\0", NOW - 9)
    move_selection._list_movable(connection, 100, NOW)
    found = connection.execute("SELECT group_key, lifetime FROM temp.movable ORDER BY group_key").fetchall()
    assert [tuple(row) for row in found] == [(101, 101), (40_000, 40_000)]


def test_what_waits_for_a_member_to_fetch_a_commit_is_no_work_for_a_run(connection: sqlite3.Connection) -> None:
    """Otherwise each run would change the archive's table, and search its folder, for nothing."""
    add_group(connection, 1, [NOW - 9] * 3)
    connection.execute("UPDATE groups SET keeps_commits = 1, effective_expiry = ?", (HOUR,))
    connection.execute(
        "INSERT INTO users (user_id, username, password_hash, alias, created_at) VALUES (x'01', '', '', '', 0)"
    )
    connection.execute(
        "INSERT INTO members (group_key, user_id, role, joined_at) SELECT 1, user_id, 'admin', 0 FROM users"
    )
    hot = Hot(Path(connection.execute("PRAGMA database_list").fetchone()[2]), POLICY, NOW)
    archive = ArchiveConfig(after=5, margin=5)

    def has_work() -> bool:
        return hot.read(move_selection.has_work, archive.least_lifetime, NOW - archive.after)

    def count() -> int:
        return hot.read(move_selection.count, archive.least_lifetime, NOW - archive.after)

    assert not has_work()
    assert count() == 0
    connection.execute("UPDATE members SET watermark = 1")
    assert has_work()
    assert count() == 1
    connection.execute("UPDATE groups SET archived_seq = 1")
    connection.execute("DELETE FROM messages WHERE sequence_num = 1")
    assert not has_work()
