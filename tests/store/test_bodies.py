"""Body segments: what is erased is zeroed at once, and its space comes back by compaction."""

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from conclave.store import bodies, compaction
from conclave.store.engine import sqlite
from conclave.store.engine.connection import ERASED_AT_ONCE
from spark.pacer import Pacer
from tests.support import stores
from tests.support.forensics import Search


@pytest.fixture
def connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sqlite3.Connection]:
    monkeypatch.setattr(bodies, "SEGMENT_BYTES", 10_000)
    stores.prepare(tmp_path / "hot.db")
    with closing(sqlite.connect(tmp_path / "hot.db")) as opened:
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
    Pacer(connection).run(compaction.compact(connection))
    assert stored(connection) == {number: bytes([number]) * 1000 for number in range(0, 50, 3)}
    assert len(segments(connection)) == 2
    assert connection.execute("SELECT sum(total_bytes - live_bytes) FROM body_segments").fetchone()[0] == 0
    assert list(compaction.compact(connection)) == [], "nothing is left to do"


@pytest.mark.parametrize("size", [24, 300, 1500, 5000])
def test_a_file_that_shrinks_and_grows_within_a_transaction_keeps_no_copies(
    connection: sqlite3.Connection, tmp_path: Path, size: int
) -> None:
    """SQLite gives pages that come back to the file before the commit what they had: rows that lie elsewhere now."""
    search = Search()
    ids = [add_message(connection, number, search.body(number, size)) for number in range(200_000 // size)]
    connection.execute("DELETE FROM messages WHERE sequence_num <= ?", (len(ids) // 2,))
    bodies.erase(connection, ids[: len(ids) // 2 + 1])
    with sqlite.write_transaction(connection):
        for step in compaction.compact(connection):
            while step():
                pass
        for number in range(60):
            add_message(connection, 10_000 + number, bytes(4060))  # it goes on in a page that it does not fill
    assert connection.execute("PRAGMA freelist_count").fetchone()[0] == 0
    assert stored(connection)[len(ids) - 1] == search.body(len(ids) - 1, size)
    living = connection.execute("SELECT message_id FROM messages WHERE sequence_num < 10000").fetchall()
    bodies.erase(connection, [message_id for (message_id,) in living])
    assert sqlite.truncate_wal(connection)
    assert search.numbers_beside_a_server(tmp_path) == set()


def test_little_that_is_dead_is_not_worth_moving_the_rest(connection: sqlite3.Connection) -> None:
    ids = [add_message(connection, number, bytes(1000)) for number in range(9)]
    connection.execute("DELETE FROM messages WHERE sequence_num < 2")
    bodies.erase(connection, ids[:2])
    assert list(compaction.compact(connection)) == []


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
    Pacer(connection).run(compaction.compact(connection))
    (moved_info,) = connection.execute("SELECT group_info_body FROM groups").fetchone()
    invite = connection.execute("SELECT commit_body, welcome_body, group_info_body FROM invites").fetchone()
    assert moved_info not in (info, message)
    assert bodies.get(connection, moved_info) == b"info"
    assert [bodies.get(connection, body_id) for body_id in invite] == [b"commit", b"welcome", b"invite info"]
    moved = connection.execute("SELECT package_body, welcome_body FROM key_packages, welcomes").fetchone()
    assert [bodies.get(connection, body_id) for body_id in moved] == [b"key package", b"a welcome"]
    assert stored(connection) == {1: b"message"}


def test_what_a_request_lets_go_of_is_erased_at_once_as_far_as_a_transaction_may(
    connection: sqlite3.Connection,
) -> None:
    def living() -> set[int]:
        tables = segments(connection)
        return {
            row[0] for name in tables for row in connection.execute(f"SELECT body_id FROM {name} WHERE body NOT NULL")
        }

    half = ERASED_AT_ONCE // 2
    ids = [bodies.put(connection, bytes(size)) for size in (half, half, 1, half + 1, half)]
    with sqlite.write_transaction(connection):
        bodies.discard(connection, ids[:2])
        assert living() == {*ids[2:]}
        bodies.discard(connection, ids[2:3])
        assert living() == {*ids[2:]}, "the run does"
    with sqlite.write_transaction(connection):
        bodies.discard(connection, ids[3:])
        assert living() == {*ids[2:]}, "together they are too much"
    many = bodies.put_many(connection, [b"x"] * (bodies.DISCARDED_TOGETHER + 1))
    with sqlite.write_transaction(connection):
        bodies.discard(connection, many)
    assert living() == {*ids[2:], *many}
    Pacer(connection).run(compaction.compact(connection))
    assert len(living()) == 3 + len(many), "none is lost, and each is still known"
    assert bodies.are_discarded(connection)
    left = living()
    while True:
        goes_on = bodies.erase_discarded(connection)
        gone = left - living()
        assert len(gone) <= bodies.SWEPT
        left -= gone
        if not goes_on:
            break
    assert not left
    assert not bodies.are_discarded(connection)


def test_compaction_moves_many_bodies_at_a_time_each_with_its_owner(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "SEGMENT_BYTES", 1024 * 1024)
    connection.execute("INSERT INTO users VALUES (x'01', 'u', '', '', '', 0, 0)")
    ids = [add_message(connection, number, bytes([number]) * 100) for number in range(100)]
    package = bodies.put(connection, b"key package")
    connection.execute("INSERT INTO key_packages VALUES (1, x'01', 0, ?)", (package,))
    ids += [add_message(connection, number, bytes([number]) * 100) for number in range(100, 200)]
    erased = set(range(0, 200, 3))
    connection.executemany("DELETE FROM messages WHERE sequence_num = ?", [(number,) for number in erased])
    bodies.erase(connection, [ids[number] for number in erased])
    begun: list[str] = []
    connection.set_trace_callback(begun.append)
    Pacer(connection).run(compaction.compact(connection))
    connection.set_trace_callback(None)
    assert stored(connection) == {number: bytes([number]) * 100 for number in range(200) if number not in erased}
    assert bodies.get(connection, connection.execute("SELECT package_body FROM key_packages").fetchone()[0]) == (
        b"key package"
    )
    assert len([each for each in begun if each.startswith("UPDATE body_segments SET bodies")]) < 20, "not one by one"
    assert segments(connection) == ["body_segment_2"]
    assert connection.execute("SELECT total_bytes - live_bytes, bodies FROM body_segments").fetchone()[:] == (0, 134)


def test_no_step_looks_through_all_that_was_erased_before_what_lives(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "SEGMENT_BYTES", 1024 * 1024)
    ids: list[int] = []
    with sqlite.write_transaction(connection):
        for _ in range(40):
            ids += bodies.put_many(connection, [b"dead"] * 500)
        lives = add_message(connection, 1, b"lives")
        for begin in range(0, len(ids), 500):
            bodies.erase(connection, ids[begin : begin + 500])
    connection.execute("UPDATE body_segments SET sealed = 1")
    lasted, most = 0, 0

    def count() -> int:
        nonlocal lasted
        lasted += 1
        return 0

    connection.set_progress_handler(count, 100)
    listing = compaction._living(connection, lives >> 32)  # the steps that move and drop do more
    found = []
    for each in listing:
        found += each
        most, lasted = max(most, lasted), 0
    connection.set_progress_handler(None, 100)
    assert found == [lives]
    assert most * 100 < 12 * compaction.LOOKED_THROUGH, "a few steps of SQLite for each row that it may look at"


def test_what_is_erased_after_it_was_listed_is_not_moved(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "MOVED_SHARE", 0.25)
    ids = [add_message(connection, number, bytes([number]) * 1000) for number in range(9)]

    def erase(numbers: range) -> None:
        connection.executemany("DELETE FROM messages WHERE sequence_num = ?", [(number,) for number in numbers])
        bodies.erase(connection, [ids[number] for number in numbers])

    erase(range(3))
    steps = compaction.compact(connection)
    next(steps)()
    assert next(steps)(), "two of six are moved, the others are listed"
    erase(range(5, 8))
    Pacer(connection).run(compaction.compact(connection))
    assert stored(connection) == {number: bytes([number]) * 1000 for number in (3, 4, 8)}
    assert connection.execute("SELECT sum(live_bytes) FROM body_segments").fetchone()[0] == 3 * 1024


def test_what_is_dead_in_many_segments_is_at_most_an_eighth_of_what_lives(connection: sqlite3.Connection) -> None:
    """A fifth of each segment is dead: too little to compact one of them for its own sake."""
    ids = [add_message(connection, number, bytes([number]) * 1000) for number in range(200)]
    erased = [number for number in range(200) if number % 5 == 0]
    connection.executemany("DELETE FROM messages WHERE sequence_num = ?", [(number,) for number in erased])
    bodies.erase(connection, [ids[number] for number in erased])
    Pacer(connection).run(compaction.compact(connection))
    dead, live = connection.execute(
        "SELECT sum(total_bytes - live_bytes), sum(live_bytes) FROM body_segments"
    ).fetchone()
    assert 0 < dead <= compaction.MOST_DEAD * live, "and no more is moved than that asks for"
    assert stored(connection) == {number: bytes([number]) * 1000 for number in range(200) if number % 5}
    assert list(compaction.compact(connection)) == []


def test_every_column_that_refers_to_a_body_is_known_to_compaction(connection: sqlite3.Connection) -> None:
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    columns = {
        (table, column["name"])
        for table in tables
        for column in connection.execute(f"PRAGMA table_info({table})").fetchall()
        if column["name"].endswith("_body")
    }
    assert columns | {("messages", "message_id")} == set(bodies.OWNERS)


def test_stopping_between_any_two_steps_leaves_a_consistent_store(connection: sqlite3.Connection) -> None:
    ids = [add_message(connection, number, bytes([number]) * 1000) for number in range(9)]
    connection.execute("DELETE FROM messages WHERE sequence_num < 5")
    bodies.erase(connection, ids[:5])
    expected = {number: bytes([number]) * 1000 for number in range(5, 9)}
    stops = 0
    while True:
        steps = compaction.compact(connection)
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


def add_copies(connection: sqlite3.Connection, count: int = 30) -> set[int]:
    """Add bodies over three sealed segments; return the ids of those that somebody still follows."""
    ids = [add_message(connection, number, bytes([number]) * 1000) for number in range(count)]
    return {ids[3], ids[17]}


def test_a_segment_of_copies_goes_whole_but_for_what_is_no_copy(connection: sqlite3.Connection) -> None:
    followed = add_copies(connection)
    everything = {row[0] for row in connection.execute("SELECT message_id FROM messages")}
    Pacer(connection).run(compaction.drop_copies(connection, everything - followed, 0.25))
    connection.executemany("DELETE FROM messages WHERE message_id = ?", [(each,) for each in everything - followed])
    assert stored(connection) == {number: bytes([number]) * 1000 for number in (3, 17)}
    assert connection.execute("SELECT count(*) FROM body_segments WHERE sealed").fetchone()[0] == 0
    assert connection.execute("SELECT sum(live_bytes) FROM body_segments").fetchone()[0] == 2 * 1024
    assert connection.execute("PRAGMA freelist_count").fetchone()[0] == 0


def test_what_the_server_erases_while_its_segment_is_being_dropped_is_not_moved(connection: sqlite3.Connection) -> None:
    followed = add_copies(connection)
    copies = {row[0] for row in connection.execute("SELECT message_id FROM messages")} - followed
    steps = compaction.drop_copies(connection, copies, 0.25)
    first = next(steps)
    erased = min(followed)
    connection.execute("DELETE FROM messages WHERE message_id = ?", (erased,))
    bodies.erase(connection, [erased])
    first()
    Pacer(connection).run(steps)
    connection.executemany("DELETE FROM messages WHERE message_id = ?", [(each,) for each in copies])
    assert stored(connection) == {17: bytes([17]) * 1000}
    assert connection.execute("SELECT sum(live_bytes) FROM body_segments").fetchone()[0] == 1024


def test_a_segment_with_few_copies_stays_and_so_does_the_one_that_is_filled(connection: sqlite3.Connection) -> None:
    ids = [add_message(connection, number, bytes(1000)) for number in range(15)]
    assert list(compaction.drop_copies(connection, ids[:6], 0.25)) == []
    assert list(compaction.drop_copies(connection, ids[10:], 0.25)) == []
    assert len(list(compaction.drop_copies(connection, ids[:8], 0.25))) > 0


def test_whichever_step_over_copies_is_the_last_the_next_compaction_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "SEGMENT_BYTES", 10_000)
    monkeypatch.setattr(compaction, "DROPPED", 4)
    stores.prepare(tmp_path / "new.db")
    for stops in range(200):
        path = Path(shutil.copy(tmp_path / "new.db", tmp_path / f"{stops}.db"))
        with closing(sqlite.connect(path)) as connection:
            followed = add_copies(connection)
            copies = {row[0] for row in connection.execute("SELECT message_id FROM messages")} - followed
            steps = compaction.drop_copies(connection, copies, 0.25)
            step = next(steps, None)
            for _ in range(stops):
                if step and not step():
                    step = next(steps, None)
            whole = {3: bytes([3]) * 1000, 17: bytes([17]) * 1000}
            connection.executemany("DELETE FROM messages WHERE message_id = ?", [(each,) for each in copies])
            assert stored(connection) == whole
            bodies.erase(connection, copies)
            Pacer(connection).run(compaction.compact(connection))
            assert stored(connection) == whole
            assert len(segments(connection)) == 1
            assert connection.execute("SELECT sum(live_bytes) FROM body_segments").fetchone()[0] == 2 * 1024
        if step is None:
            return
    pytest.fail("compaction has no end")


def test_small_bodies_share_statements_and_large_ones_have_their_own(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiled statement keeps the values that it had last: of large bodies that may be one, not 64."""
    monkeypatch.setattr(bodies, "SEGMENT_BYTES", 10**9)
    asked: list[str] = []
    connection.set_trace_callback(asked.append)
    small, large = bytes(bodies.SMALL_BYTES), bytes(bodies.SMALL_BYTES + 1)
    many = [*[small] * 6, large, large, b"x", *[large] * 3]
    ids = bodies.put_many(connection, many)
    connection.set_trace_callback(None)
    assert [each.count("), (") + 1 for each in asked if each.startswith("INSERT INTO body_segment_")] == [
        *(4, 2, 1, 1, 1, 1, 1, 1)
    ]
    assert [bodies.get(connection, each) for each in ids] == many


def test_bodies_that_are_read_together_are_those_that_are_read_one_by_one(connection: sqlite3.Connection) -> None:
    """Also those that are no text: zeros, and what is not UTF-8. In any order, of several segments."""
    chance = random.Random(6)
    stored = [b"\0", b"\0\0x", b"\xff\xfe", b"\xc3", "\u00e4,".encode(), *(chance.randbytes(n) for n in range(1, 400))]
    ids = [bodies.put(connection, body) for body in stored]
    assert len({body_id >> 32 for body_id in ids}) > 3
    expected = dict(zip(ids, stored, strict=True))
    chance.shuffle(ids)
    assert bodies.get_small(connection, ids, 400) == bodies.get_many(connection, ids) == expected
    for most in (0, 3, 200):
        small = {body_id: body for body_id, body in expected.items() if len(body) <= most}
        assert bodies.get_small(connection, ids, most) == small
    assert bodies.get_small(connection, [], 400) == {}


class _OldConcat:
    """The function group_concat of SQLite 3.37: its result ends at the first zero byte."""

    def __init__(self) -> None:
        self._joined = b""

    def step(self, value: bytes, _: str) -> None:
        self._joined += value

    def finalize(self) -> bytes:
        return self._joined.partition(b"\0")[0]


def test_bodies_are_whole_where_sqlite_ends_texts_at_a_zero_byte(connection: sqlite3.Connection) -> None:
    stored = [b"one", b"t\0o", b"", b"\0", b"three"]
    ids = bodies.put_many(connection, stored)
    connection.create_aggregate("group_concat", 2, _OldConcat)  # type: ignore[arg-type]  # its types know no bytes
    assert bodies.get_small(connection, ids, 400) == dict(zip(ids, stored, strict=True))
