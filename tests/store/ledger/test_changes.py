"""What the database notes for the ledger: every change that hides, ends or takes away, and nothing else."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from conclave.store.engine import sqlite
from conclave.store.ledger import changes
from tests.support import stores
from tests.support.stores import MESSAGE

USER = "x'75'"

NOTED: tuple[tuple[str, list[tuple[str, int | str | bytes]]], ...] = (
    ("UPDATE groups SET floor_seq = 9 WHERE group_key = 7", [("group", 7)]),
    ("UPDATE groups SET gone_below = 9 WHERE group_key = 7", [("group", 7)]),
    ("UPDATE groups SET expired_before = 9 WHERE group_key = 7", [("group", 7)]),
    ("UPDATE groups SET commits_below = 9 WHERE group_key = 7", [("group", 7)]),
    ("UPDATE groups SET message_expiry_seconds = 9 WHERE group_key = 7", [("group", 7)]),
    ("UPDATE groups SET min_lifetime_seconds = 9 WHERE group_key = 7", [("group", 7)]),
    ("UPDATE groups SET visibility = 'public' WHERE group_key = 7", [("group", 7)]),
    ("DELETE FROM groups WHERE group_key = 7", [("group", 7)]),
    ("UPDATE members SET role = 'member'", [("member", 3)]),
    ("DELETE FROM members", [("member", 3)]),
    ("UPDATE members SET read_up_to = 5", [("read", 3)]),
    ("UPDATE self_destructing SET ended = 1", [("ended", "7:1")]),
    (
        "INSERT INTO taken_back (group_key, sequence_num, taken_at, taken_by) VALUES (7, 1, 0, x'')",
        [("taken_back", "7:1")],
    ),
    ("DELETE FROM bans", [("ban", 4)]),
    (f"INSERT INTO bans (ban_key, group_key, user_id, banned_at) VALUES (5, 7, {USER}, 0)", [("ban", 5)]),
    ("DELETE FROM invites", [("invite", 6)]),
    ("DELETE FROM welcomes", [("welcome", 8)]),
    ("UPDATE users SET disabled = 1 WHERE username = 'u'", [("account", b"u")]),
    ("UPDATE users SET password_hash = 'x' WHERE username = 'u'", [("password", b"u")]),
    ("DELETE FROM users WHERE username = 'w'", [("account", b"w")]),
    ("DELETE FROM holds", [("hold", 2)]),
    ("UPDATE server_state SET policy_settings = 'new'", [("settings", 0)]),
)

UNNOTED = (
    "UPDATE groups SET last_seq = 9, alias = 'a', archived_seq = 1, self_destructs = 0, taken_back_count = 1",
    "UPDATE groups SET floor_seq = floor_seq, gone_below = gone_below, visibility = visibility",
    "UPDATE members SET watermark = 9, joining = 1, read_up_to = read_up_to, role = role",
    "INSERT INTO members (group_key, user_id, role, joined_at) VALUES (7, x'76', 'member', 0)",
    "UPDATE users SET alias = 'a', disabled = disabled, password_hash = password_hash",
    "UPDATE server_state SET last_alive = 9, policy_settings = policy_settings",
    f"INSERT INTO messages {MESSAGE} VALUES (7, 2, x'75', 0, 5, 0)",
    "DELETE FROM messages",
    "DELETE FROM sessions",
    "DELETE FROM self_destructing",
)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A store with a row in each table that matters, and nothing noted."""
    stores.prepare(tmp_path / "hot.db")
    with closing(sqlite.connect(tmp_path / "hot.db")) as opened:
        opened.executescript("""
            INSERT INTO users (user_id, username, password_hash, alias, created_at)
                VALUES (x'75', 'u', '', '', 0), (x'76', 'v', '', '', 0), (x'77', 'w', '', '', 0);
            INSERT INTO groups (group_key, group_id, group_name, alias, created_at, self_destructs)
                VALUES (7, x'07', 'g', '', 5, 1), (9, x'09', 'h', '', 5, 0);
            INSERT INTO members (member_id, group_key, user_id, role, joined_at) VALUES (3, 7, x'75', 'admin', 5);
            INSERT INTO messages (group_key, sequence_num, sender_id, is_commit, created_at, size)
                VALUES (7, 1, x'75', 0, 5, 0);
            INSERT INTO self_destructing (group_key, sequence_num, seconds) VALUES (7, 1, 60);
            INSERT INTO bans (ban_key, group_key, user_id, banned_at) VALUES (4, 7, x'76', 0);
            INSERT INTO invites VALUES (6, x'06', 7, x'76', x'75', 0, 11, 12, 13);
            INSERT INTO welcomes VALUES (8, x'08', x'75', 9, 14);
            INSERT INTO holds VALUES (2, 7, NULL, x'07', 'g', 'why', 'who', 0);
            INSERT INTO server_state (id, policy_settings, last_alive, stopped_cleanly, clock_wall, clock_since_boot,
                clock_boot_id) VALUES (1, 'old', 0, 0, 0, 0, '');
            INSERT INTO sessions (public_id, token_hash, user_id, created_at, last_used_at, expires_at)
                VALUES (x'aa', x'bb', x'75', 5, 5, 50);
            DELETE FROM ledger_changes;
        """)
        yield opened


def noted(connection: sqlite3.Connection, sql: str) -> list[tuple[str, int | str | bytes]]:
    connection.execute(sql)
    return [tuple(row) for row in connection.execute("SELECT kind, subject FROM ledger_changes ORDER BY change")]


@pytest.mark.parametrize(("sql", "expected"), NOTED)
def test_what_hides_ends_or_takes_away_is_noted(
    connection: sqlite3.Connection, sql: str, expected: list[tuple[str, int | str | bytes]]
) -> None:
    assert noted(connection, sql) == expected


@pytest.mark.parametrize("sql", UNNOTED)
def test_other_changes_are_not(connection: sqlite3.Connection, sql: str) -> None:
    assert noted(connection, sql) == []


def test_a_thing_that_changes_again_is_noted_once_with_a_new_number(connection: sqlite3.Connection) -> None:
    noted(connection, "UPDATE groups SET gone_below = 1 WHERE group_key = 7")
    first = changes.ledger_state(connection).counter
    assert noted(connection, "UPDATE groups SET gone_below = 2 WHERE group_key = 7") == [("group", 7)]
    assert changes.ledger_state(connection).counter == first + 1


def test_of_a_reader_the_lowest_number_is_kept_that_was_not_told(connection: sqlite3.Connection) -> None:
    noted(connection, "UPDATE members SET read_up_to = 2")
    noted(connection, "UPDATE members SET read_up_to = 5")
    assert connection.execute("SELECT since FROM ledger_changes").fetchone()[0] == 0


@pytest.mark.parametrize(("waiting", "after", "then"), [((), 50, 50), ((3, 5), 50, 53), ((3, 60), 50, 108), ((), 0, 9)])
def test_what_waits_gets_numbers_after_those_of_the_file(
    connection: sqlite3.Connection, waiting: tuple[int, ...], after: int, then: int
) -> None:
    connection.executemany(
        "INSERT INTO ledger_changes (change, kind, subject) VALUES (?, 'x', ?)", zip(waiting, waiting, strict=True)
    )
    top = max(waiting, default=0)
    connection.execute(
        "UPDATE sqlite_sequence SET seq = ? WHERE name = 'ledger_changes'", (max(top, 5 if waiting else 9),)
    )
    changes.renumber(connection, after)
    rows = [row[0] for row in connection.execute("SELECT subject FROM ledger_changes ORDER BY change")]
    assert rows == list(waiting), "in their order"
    least = connection.execute("SELECT min(change) FROM ledger_changes").fetchone()[0]
    assert least is None or least > after
    assert changes.ledger_state(connection).counter == then


@pytest.mark.parametrize("sql", [sql for sql, _ in NOTED])
def test_it_costs_the_same_however_much_waits(connection: sqlite3.Connection, sql: str) -> None:
    """A comparison that SQLite cannot find by the index would look at all that waits."""

    def steps() -> int:
        """How much SQLite does for the statement, in the tens of its own steps."""
        counted = 0

        def count() -> int:
            nonlocal counted
            counted += 1
            return 0

        connection.execute("SAVEPOINT before")
        connection.set_progress_handler(count, 10)
        connection.execute(sql)
        connection.set_progress_handler(None, 0)
        connection.execute("ROLLBACK TO before")
        return counted

    few = steps()
    for kind in {kind for _, expected in NOTED for kind, _ in expected}:
        connection.executemany(
            "INSERT INTO ledger_changes (kind, subject) VALUES (?, ?)", [(kind, each) for each in range(100, 1100)]
        )
    assert steps() < few + 20
