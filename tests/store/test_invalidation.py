"""Touches: each change that makes something remembered wrong is noted; what a server follows by itself is not."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

import conclave
from conclave.retention.rules import POLICY_COLUMNS
from conclave.store import clock_repair, invalidation
from conclave.store.engine import schema, sqlite
from conclave.store.invalidation import Invalidated
from tests.support import stores
from tests.support.stores import MESSAGE

PROGRAM = Path(conclave.__file__).parent
CLIENT = PROGRAM / "client"  # has a database of its own
SOURCES = [
    *(each for each in PROGRAM.rglob("*.py") if CLIENT not in each.parents),
    *PROGRAM.with_name("spark").rglob("*.py"),
]

WATCHED = {
    "groups": {
        *("effective_expiry", "hold_limit", "keeps_commits"),
        *("gone_below", "expired_before", "archived_seq"),
    },
    "members": {"missed_from"},
    "sessions": set[str](),
    "user_tombstones": set[str](),
}
"""Columns whose change is a touch."""

UNWATCHED = {
    "groups": {
        *("group_name", "alias", "visibility", "mls_group_id", "group_info_body", "created_at"),
        *("last_seq", "floor_seq", "commits_below", "min_lifetime_seconds", "self_destructs", "taken_back_count"),
        "expiry_set_by",
        *("message_expiry_seconds", "least_lifetime", "erases", "policy_source"),
    },
    "members": {"role", "joined_at", "joining", "watermark", "read_up_to", "missed_to"},
    "sessions": {"created_at", "expires_at", "last_used_at"},
    "user_tombstones": {"created_at"},
}
"""Columns that change, and that nothing remembered depends on, or that a server follows by itself.

A clock that is accepted changes some of them too, and touches everything.
"""

FIXED = {
    "groups": {"group_key", "group_id"},
    "members": {"member_id", "group_key", "user_id", "joined_after"},
    "messages": {"group_key", "sequence_num", "sender_id", "is_commit"},
    "sessions": {"session_id", "public_id", "token_hash", "user_id"},
    "user_tombstones": {"user_id"},
}
"""Columns that no statement changes."""

USER, OTHER = b"u" * 16, b"o" * 16


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A store with a row in each table that matters; nothing is touched yet."""
    stores.prepare(tmp_path / "hot.db")
    with closing(sqlite.connect(tmp_path / "hot.db")) as opened:
        for user in (USER, OTHER):
            opened.execute(
                "INSERT INTO users (user_id, username, password_hash, alias, created_at) VALUES (?, hex(?), '', '', 0)",
                (user, user),
            )
        opened.execute(
            "INSERT INTO groups (group_key, group_id, group_name, alias, created_at) VALUES (7, x'07', 'g', '', 5)"
        )
        opened.execute("INSERT INTO members (group_key, user_id, role, joined_at) VALUES (7, ?, 'admin', 5)", (USER,))
        opened.execute(f"INSERT INTO messages {MESSAGE} VALUES (7, 1, ?, 0, 5, 0)", (USER,))
        opened.execute(
            "INSERT INTO sessions (session_id, public_id, token_hash, user_id, created_at, last_used_at, expires_at)"
            " VALUES (3, x'aa', x'bb', ?, 5, 5, 50)",
            (USER,),
        )
        opened.execute("DELETE FROM touches")
        yield opened


def touched(connection: sqlite3.Connection, sql: str) -> list[tuple[int | None, int | None]]:
    """Return what a statement touches."""
    before = invalidation.last_invalidation(connection)
    connection.execute(sql)
    rows = connection.execute("SELECT group_key, session_id FROM touches WHERE touch > ?", (before,))
    return [tuple(row) for row in rows]


def columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {row["name"] for row in connection.execute(f"PRAGMA table_info({table})")}


@pytest.mark.parametrize("table", WATCHED)
def test_every_column_is_watched_or_need_not_be(connection: sqlite3.Connection, table: str) -> None:
    assert columns(connection, table) == WATCHED[table] | UNWATCHED[table] | FIXED[table]


def test_no_statement_of_the_program_changes_what_is_fixed() -> None:
    """Nor replaces a row, which SQLite does without the trigger for its removal."""
    changed: dict[str, set[str]] = {table: set() for table in WATCHED}
    for path in SOURCES:
        text = re.sub(r'"\s*\n\s*f?"', "", path.read_text())
        for table, changes in re.findall(r"UPDATE (\w+) SET (.*?)(?: WHERE|\"|$)", text, re.MULTILINE):
            changed.get(table, set()).update(re.findall(r"(?:^|, )(\w+) = ", changes))
        assert not re.findall(rf"(?:REPLACE|OR REPLACE) INTO (?:{'|'.join(WATCHED)})\b", text), path
    for times in (clock_repair.PLAIN, clock_repair.SPECIAL):
        for table, names in times.items():
            changed.get(table, set()).update(names)
    changed["groups"] |= set(POLICY_COLUMNS.split(", "))  # written as a whole
    assert changed["groups"] >= WATCHED["groups"], "the search finds them"
    for table, found in changed.items():
        assert found <= WATCHED[table] | UNWATCHED[table], table


@pytest.mark.parametrize(("table", "column"), [(table, each) for table in WATCHED for each in sorted(WATCHED[table])])
def test_a_change_of_a_watched_column_is_a_touch(connection: sqlite3.Connection, table: str, column: str) -> None:
    assert touched(connection, f"UPDATE {table} SET {column} = {column} - 1") == [(7, None)]
    assert touched(connection, f"UPDATE {table} SET {column} = {column}") == [], "nothing has changed"
    assert touched(connection, f"UPDATE {table} SET {column} = {column} + 1") == [(7, None)]


@pytest.mark.parametrize(
    ("table", "column"),
    [(table, each) for table in ("groups", "members", "sessions") for each in sorted(UNWATCHED[table])],
)
def test_other_changes_touch_nothing(connection: sqlite3.Connection, table: str, column: str) -> None:
    value = {"visibility": "'public'", "role": "'member'", "alias": "'x'", "group_name": "'x'", "mls_group_id": "'x'"}
    value["expiry_set_by"] = "(SELECT user_id FROM users)"
    assert touched(connection, f"UPDATE {table} SET {column} = {value.get(column, 9)}") == []


def test_what_comes_and_goes_is_a_touch(connection: sqlite3.Connection) -> None:
    other = f"x'{OTHER.hex()}'"
    came = f"INSERT INTO members (group_key, user_id, role, joined_at) VALUES (7, {other}, 'member', 0)"
    assert touched(connection, came) == [(7, None)]
    assert touched(connection, f"DELETE FROM members WHERE user_id = {other}") == [(7, None)]
    assert touched(connection, "DELETE FROM sessions") == [(None, 3)]
    assert touched(connection, "INSERT INTO user_tombstones VALUES (x'01', 0)") == [(None, None)]
    assert set(touched(connection, "DELETE FROM groups")) == {(7, None)}
    assert connection.execute("SELECT count(*) FROM members").fetchone()[0] == 0
    assert touched(connection, "DELETE FROM messages") == [], "cleanup says it once for many"


ROWS = st.tuples(st.integers(1, 3), st.none()) | st.tuples(st.none(), st.none() | st.integers(1, 3))


@given(st.lists(ROWS, max_size=30), st.integers(0, 31))
@settings(max_examples=60, derandomize=True, database=None)
def test_after_tells_what_was_touched_since(rows: list[tuple[int | None, int | None]], touch: int) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(schema.migrations()[0][1])
        connection.executemany("INSERT INTO touches (group_key, session_id) VALUES (?, ?)", rows)
        assert invalidation.last_invalidation(connection) == len(rows)
        later = rows[touch:]
        found = invalidation.after(connection, touch)
    if not later:
        assert found is None
        return
    assert found == Invalidated(
        len(rows),
        {group for group, _ in later if group is not None},
        {session for _, session in later if session is not None},
        everything=(None, None) in later,
    )


@pytest.mark.parametrize(("behind", "everything"), [(4096, False), (4097, True), (9000, True)])
def test_whoever_is_too_far_behind_forgets_everything(
    connection: sqlite3.Connection, behind: int, *, everything: bool
) -> None:
    with sqlite.write_transaction(connection):
        for group_key in range(10_000):
            invalidation.invalidate_group(connection, group_key)
    last = invalidation.last_invalidation(connection)
    found = invalidation.after(connection, last - behind)
    assert found
    assert (found.touch, found.everything) == (last, everything)
    assert found.covers_group(10_000 - behind) is True
    assert found.covers_group(10**6) is everything
    assert connection.execute("SELECT count(*) FROM touches").fetchone()[0] == 4096
