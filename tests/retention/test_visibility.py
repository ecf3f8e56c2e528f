"""What readers pass over: messages that are hidden by age, and stay for long."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from conclave.actions.authorisation import require_group
from conclave.clock import FakeClock
from conclave.retention import rules, visibility
from conclave.retention.policy import KEEP
from conclave.retention.resolve import PolicySettings
from conclave.store.engine import sqlite
from conclave.store.resources import groups, members, messages, state, timers, users
from conclave.store.resources.groups import GroupRow
from conclave.store.resources.members import Membership
from conclave.wire import page_writer
from conclave.wire.formats import Format
from tests.support import stores
from tests.support.memberships import member_of

NOW, DAY = 1_700_000_000, 86_400
POLICY = PolicySettings(DAY, 2_592_000, 604_800)
HIDDEN = 40_000
STEPS_AT_ONCE = 100


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    stores.prepare(tmp_path / "hot.db")
    with closing(sqlite.connect(tmp_path / "hot.db")) as opened:
        state.begin_serving(opened, POLICY, FakeClock(NOW).read())
        yield opened


def a_member(connection: sqlite3.Connection, times: list[int]) -> Membership:
    """The only member of a group with messages of these times. They have no bodies: nobody may read one."""
    user_id = users.add(connection, "alice", "", "", 0)
    group_id = groups.add(connection, user_id, "group", "", 0, POLICY)
    key = require_group(connection, group_id).group_key
    for number, second in enumerate(times, 1):
        stores.add_message(connection, key, number, user_id, second)
    connection.execute("UPDATE groups SET last_seq = ?", (len(times),))
    return member_of(connection, group_id, user_id)


@pytest.mark.parametrize("confirms", [0, 1])
def test_nobody_looks_at_each_message_that_is_hidden_and_kept(connection: sqlite3.Connection, confirms: int) -> None:
    with sqlite.write_transaction(connection):
        member = a_member(connection, [NOW - 2 * DAY] * HIDDEN)
    group = member.group
    view = visibility.of_group(connection, group, NOW)
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += STEPS_AT_ONCE

    connection.execute("UPDATE members SET watermark = ?", (HIDDEN,))
    connection.set_progress_handler(count, STEPS_AT_ONCE)
    if confirms:
        assert members.lagging(connection, group, view) == []
    else:
        write = page_writer.message_writer(Format.JSON)
        values = (group.group_id, member.user_id, 0, 100, FakeClock(NOW), write)
        assert messages.read_page(connection, *values).messages == []
    connection.set_progress_handler(None, 0)
    assert steps < 2 * HIDDEN, "SQLite's steps: looking at one message takes more than four"


def shown(connection: sqlite3.Connection, group: GroupRow, view: visibility.Visibility, after: int) -> list[int]:
    admitted, _ = view.hot
    rows = connection.execute(
        f"SELECT sequence_num FROM messages WHERE group_key = :group_key AND {admitted} ORDER BY sequence_num",
        {"group_key": group.group_key, **view.bounds(after)},
    )
    return [row[0] for row in rows]


@pytest.mark.parametrize("seed", range(40))
def test_nothing_that_is_shown_is_passed_over(
    connection: sqlite3.Connection, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times need not rise with numbers: a clock may have been set back."""
    monkeypatch.setattr(visibility, "FIRST_SCAN", 4)
    chance = random.Random(seed)
    share = chance.choice([0.0, 0.02, 0.1, 0.5, 1.0])
    times = [NOW - (chance.randrange(DAY) if chance.random() < share else 2 * DAY) for _ in range(300)]
    if chance.random() < 0.5:
        times.sort(reverse=chance.random() < 0.3)
    member = a_member(connection, times)
    connection.execute("DELETE FROM messages WHERE sequence_num % 7 = ?", (chance.randrange(9),))
    group = replace(member.group, gone_below=chance.choice([0, 0, 50]))
    view = visibility.of_group(connection, group, NOW)
    for after in (0, 1, 60, 150, 299, 300):
        begin = visibility.pass_hidden(connection, group, view, after)
        assert begin >= after
        assert shown(connection, group, view, begin) == shown(connection, group, view, after)


def set_max_age(connection: sqlite3.Connection, seconds: int) -> None:
    connection.execute("UPDATE server_state SET self_destruct_max_age = ?", (seconds,))


def test_one_look_tells_whether_a_timer_of_a_message_runs(connection: sqlite3.Connection) -> None:
    """Runs and health look at each such message again and again, and it may have a thousand timers that have ended."""
    readers = 1_000
    with sqlite.write_transaction(connection):
        member = a_member(connection, [NOW - DAY])
        key = member.group.group_key
        timers.add_messages(connection, [(key, 1, member.user_id, DAY + 1)], NOW - DAY)
        connection.executemany(
            "INSERT INTO timers (group_key, sequence_num, member_id, seconds, redact_at) VALUES (?, 1, ?, 60, ?)",
            [(key, 1_000 + number, NOW - number) for number in range(readers)],
        )
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += STEPS_AT_ONCE

    set_max_age(connection, DAY)
    redacted = f"SELECT count(*) FROM {rules.TIMED} WHERE {rules.REDACTED_FOR_ALL}"
    connection.set_progress_handler(count, STEPS_AT_ONCE)
    found = [connection.execute(redacted, {"now": now}).fetchone()[0] for now in (NOW, NOW + 1)]
    assert found == [0, 1]
    connection.set_progress_handler(None, 0)
    assert steps < readers


def test_nobody_looks_at_each_message_for_the_self_destructing_ones_that_only_the_clock_hides(
    connection: sqlite3.Connection,
) -> None:
    with sqlite.write_transaction(connection):
        member = a_member(connection, [NOW - DAY] * HIDDEN)
        connection.execute("UPDATE groups SET self_destructs = 1")
        connection.execute("INSERT INTO self_destructing VALUES (?, ?, 60, 0)", (member.group.group_key, HIDDEN // 2))
    set_max_age(connection, 2 * DAY)
    later = NOW + 2 * DAY
    view = visibility.of_group(connection, replace(member.group, effective_expiry=KEEP), later)
    timed = visibility.of_reader(member.member_id, 0, include_redacted=False)
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += STEPS_AT_ONCE

    connection.set_progress_handler(count, STEPS_AT_ONCE)
    first = visibility.first_in_doubt(connection, member.group, view, 0, NOW, timed)
    connection.set_progress_handler(None, 0)
    assert first == HIDDEN // 2
    assert steps < HIDDEN // 10
