"""Body segments: what is erased is zeroed at once, and its space comes back by compaction."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from conclave.store import bodies, database
from spark.apply import Pacer


@pytest.fixture
def connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sqlite3.Connection]:
    monkeypatch.setattr(bodies, "SEGMENT_BYTES", 10_000)
    database.prepare(tmp_path / "hot.db")
    with closing(database.connect(tmp_path / "hot.db")) as opened:
        yield opened


def add_message(connection: sqlite3.Connection, number: int, body: bytes) -> int:
    body_id = bodies.put(connection, body)
    connection.execute("INSERT INTO messages VALUES (?, 1, ?, x'00', 0, 0)", (body_id, number))
    return body_id


def segments(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT name FROM sqlite_schema WHERE name GLOB 'body_segment_[0-9]*'")
    counted = [row[0] for row in connection.execute("SELECT 'body_segment_' || segment FROM body_segments")]
    assert sorted(row[0] for row in rows) == sorted(counted)
    return counted


def stored(connection: sqlite3.Connection) -> dict[int, bytes]:
    rows = connection.execute("SELECT sequence_num, message_id FROM messages").fetchall()
    return {row["sequence_num"]: bodies.get(connection, row["message_id"]) for row in rows}


def test_bodies_are_appended_to_segments_of_a_bounded_size(connection: sqlite3.Connection) -> None:
    for number in range(50):
        add_message(connection, number, bytes([number]) * 1000)
    assert len(segments(connection)) == 5
    assert stored(connection) == {number: bytes([number]) * 1000 for number in range(50)}


def test_a_body_larger_than_a_segment_has_one_of_its_own(connection: sqlite3.Connection) -> None:
    add_message(connection, 1, b"x" * 100_000)
    add_message(connection, 2, b"y")
    assert stored(connection) == {1: b"x" * 100_000, 2: b"y"}


def test_compaction_drops_what_is_dead_and_keeps_the_rest(connection: sqlite3.Connection) -> None:
    ids = [add_message(connection, number, bytes([number]) * 1000) for number in range(50)]
    for number in range(50):
        if number % 3:
            connection.execute("DELETE FROM messages WHERE sequence_num = ?", (number,))
            bodies.erase(connection, [ids[number]])
    Pacer(connection).run(bodies.compact(connection))
    assert stored(connection) == {number: bytes([number]) * 1000 for number in range(0, 50, 3)}
    assert len(segments(connection)) == 2
    assert connection.execute("SELECT sum(total_bytes - live_bytes) FROM body_segments").fetchone()[0] == 0
    assert list(bodies.compact(connection)) == [], "nothing is left to do"


def test_little_that_is_dead_is_not_worth_moving_the_rest(connection: sqlite3.Connection) -> None:
    ids = [add_message(connection, number, bytes(1000)) for number in range(9)]
    connection.execute("DELETE FROM messages WHERE sequence_num < 2")
    bodies.erase(connection, ids[:2])
    assert list(bodies.compact(connection)) == []


def test_every_kind_of_owner_keeps_its_body_through_compaction(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO users VALUES (x'01', 'u', '', '', '', 0, 0)")
    dead = bodies.put(connection, bytes(5000))
    info, *carried = [bodies.put(connection, name) for name in (b"info", b"commit", b"welcome", b"invite info")]
    connection.execute(
        "INSERT INTO groups (group_id, group_name, alias, group_info_body, created_at) VALUES (x'01', 'g', '', ?, 0)",
        (info,),
    )
    connection.execute("INSERT INTO invites VALUES (1, x'01', 1, x'01', x'01', 0, ?, ?, ?)", carried)
    others = [bodies.put(connection, name) for name in (b"key package", b"a welcome")]
    connection.execute("INSERT INTO key_packages VALUES (1, x'01', 0, ?)", others[:1])
    connection.execute("INSERT INTO welcomes VALUES (1, x'01', x'01', 1, ?)", others[1:])
    message = add_message(connection, 1, b"message")
    bodies.erase(connection, [dead])
    Pacer(connection).run(bodies.compact(connection))
    (moved_info,) = connection.execute("SELECT group_info_body FROM groups").fetchone()
    invite = connection.execute("SELECT commit_body, welcome_body, group_info_body FROM invites").fetchone()
    assert moved_info not in (info, message)
    assert bodies.get(connection, moved_info) == b"info"
    assert [bodies.get(connection, body_id) for body_id in invite] == [b"commit", b"welcome", b"invite info"]
    moved = connection.execute("SELECT package_body, welcome_body FROM key_packages, welcomes").fetchone()
    assert [bodies.get(connection, body_id) for body_id in moved] == [b"key package", b"a welcome"]
    assert stored(connection) == {1: b"message"}


def test_every_column_that_refers_to_a_body_is_known_to_compaction(connection: sqlite3.Connection) -> None:
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    columns = {
        (table, column["name"])
        for table in tables
        for column in connection.execute(f"PRAGMA table_info({table})").fetchall()
        if column["name"].endswith("_body")
    }
    assert columns | {("messages", "message_id")} == set(bodies._OWNERS)


def test_stopping_between_any_two_steps_leaves_a_consistent_store(connection: sqlite3.Connection) -> None:
    ids = [add_message(connection, number, bytes([number]) * 1000) for number in range(9)]
    connection.execute("DELETE FROM messages WHERE sequence_num < 5")
    bodies.erase(connection, ids[:5])
    expected = {number: bytes([number]) * 1000 for number in range(5, 9)}
    stops = 0
    while True:
        steps = bodies.compact(connection)
        step = next(steps, None)
        for _ in range(stops):
            if step is None:
                assert stored(connection) == expected
                assert len(segments(connection)) == 1
                return
            if not step():
                step = next(steps, None)
            assert stored(connection) == expected
        stops += 1
