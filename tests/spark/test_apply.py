"""Applying a plan: the store has the last word, and nobody waits long for the lock."""

import gc
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from uuid import uuid4

import pytest

from conclave.actions.context import Context
from conclave.actions.groups import change as change_group
from conclave.actions.messages import append
from conclave.clock import FakeClock
from conclave.retention import due, rules
from conclave.retention.plan import Plan, make_plan
from conclave.retention.resolve import PolicySettings
from conclave.store import bodies
from conclave.store.engine import sqlite
from conclave.store.engine.connection import of_store
from conclave.store.resources import groups, members, state, users
from conclave.store.resources.groups import GroupChanges
from conclave.store.resources.members import Membership
from spark import apply, hot_store
from spark.environment import CleanupError
from spark.hot_store import ALONE_REST, Pacer, garbage
from spark.readiness import requirement
from tests.support import stores
from tests.support.memberships import member_of

START, HOUR = 1_700_000_000, 3600
POLICY = PolicySettings(-1, 2_592_000, 604_800)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    stores.prepare(tmp_path / "hot.db")
    with closing(sqlite.connect(tmp_path / "hot.db")) as opened:
        state.begin_serving(opened, POLICY, FakeClock(START).read())
        yield opened


def add_group(connection: sqlite3.Connection, expiry: int, count: int) -> Membership:
    """A group of one, who has sent some messages."""
    name = uuid4().hex
    user_id = users.add(connection, name, "", "", START)
    group_id = groups.add(connection, user_id, name, "", START, POLICY)
    change(connection, member_of(connection, group_id, user_id), expiry, START)
    member = member_of(connection, group_id, user_id)
    for _ in range(count):
        append(connection, member, b"body", START, is_commit=False)
    return member_of(connection, group_id, user_id)


def change(connection: sqlite3.Connection, member: Membership, expiry: int, now: int) -> None:
    changes = GroupChanges(message_expiry_seconds=expiry)
    change_group(connection, Context(POLICY, FakeClock(now)), member.group, changes)


def apply_plan(connection: sqlite3.Connection, plan: Plan) -> Counter[str]:
    """Apply, and return what went."""
    counts: Counter[str] = Counter()
    apply.apply_plan(Pacer(connection), plan, POLICY, counts)
    return counts


def left(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM messages").fetchone()[0])


def test_a_policy_lengthened_before_expiry_saves_what_a_plan_of_a_wrong_clock_names(
    connection: sqlite3.Connection,
) -> None:
    member = add_group(connection, HOUR, 3)
    plan = make_plan(connection, POLICY, START + 2 * HOUR)
    assert plan.groups
    change(connection, member, -1, START + 1)
    assert apply_plan(connection, plan) == Counter({rules.FETCHED: 0, rules.EXPIRED: 0})
    assert left(connection) == 3


def test_a_policy_lengthened_after_expiry_saves_nothing(connection: sqlite3.Connection) -> None:
    member = add_group(connection, HOUR, 3)
    plan = make_plan(connection, POLICY, START + 2 * HOUR)
    change(connection, member, -1, START + 2 * HOUR)
    assert apply_plan(connection, plan)[rules.EXPIRED] == 3


def test_leaving_delete_after_fetch_between_plan_and_apply_still_deletes_what_all_had_fetched(
    connection: sqlite3.Connection,
) -> None:
    member = add_group(connection, 0, 3)
    plan = make_plan(connection, POLICY, START)
    append(connection, member, b"sent after the plan", START, is_commit=False)
    change(connection, member_of(connection, member.group.group_id, member.user_id), -1, START)
    assert apply_plan(connection, plan)[rules.FETCHED] == 3
    assert left(connection) == 1


def test_entering_delete_after_fetch_between_plan_and_apply_keeps_the_new_floor(connection: sqlite3.Connection) -> None:
    member = add_group(connection, HOUR, 10)
    newcomer = users.add(connection, "newcomer", "", "", START)
    groups.set_group_info(connection, member.group.group_key, b"info", with_commit=True)
    connection.execute("UPDATE groups SET visibility = 'public'")
    members.add(connection, member.group.group_key, newcomer, START)
    connection.execute("UPDATE messages SET created_at = created_at - ? WHERE sequence_num <= 5", (2 * HOUR,))
    plan = make_plan(connection, POLICY, START)
    change(connection, member, 0, START)
    assert apply_plan(connection, plan)[rules.EXPIRED] == 5
    again = make_plan(connection, POLICY, START)
    assert apply_plan(connection, again).total() == 0, "the newcomer has fetched none of the other five"
    assert left(connection) == 5


def test_what_is_due_goes_whatever_the_sizes_of_lists_and_steps(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due, "LIST_SIZE", 20)
    monkeypatch.setattr(apply, "CHUNK", 3)
    members_of = [add_group(connection, expiry, 0) for expiry in (HOUR, -1, 0) * 3]
    for turn in range(10):
        for member in members_of:
            append(connection, member, b"body", START - (turn < 6) * 2 * HOUR, is_commit=False)
    counts = apply_plan(connection, make_plan(connection, POLICY, START))
    assert counts == Counter({rules.EXPIRED: 3 * 6, rules.FETCHED: 3 * 10})
    rows = connection.execute("SELECT group_key, count(*), min(sequence_num) FROM messages GROUP BY 1 ORDER BY 1")
    keys = [member.group.group_key for member in members_of]
    kept = dict.fromkeys(keys[0::3], (4, 7)) | dict.fromkeys(keys[1::3], (10, 1))
    assert {row[0]: (row[1], row[2]) for row in rows} == kept
    assert connection.execute("SELECT count(*) FROM message_bodies").fetchone()[0] == 12 + 30


def test_settings_replaced_between_plan_and_apply_stop_the_run(connection: sqlite3.Connection) -> None:
    add_group(connection, HOUR, 3)
    plan = make_plan(connection, POLICY, START + 2 * HOUR)
    state.begin_serving(connection, PolicySettings(0, 1, 1), FakeClock(START).read(), accepts_change=True)
    require = requirement(POLICY)
    with pytest.raises(CleanupError, match="settings changed"):
        apply.apply_plan(Pacer(connection, require=lambda: require(connection)), plan, POLICY, Counter())
    assert left(connection) == 3


def test_the_settings_are_read_once_in_a_run_and_again_if_they_change(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With thousands of overrides, reading them would take longer than the transaction that it is for."""
    read: list[PolicySettings | None] = []
    stored_policy = state.stored_policy

    def counted(of: sqlite3.Connection) -> PolicySettings | None:
        read.append(stored_policy(of))
        return read[-1]

    monkeypatch.setattr(state, "stored_policy", counted)
    require = requirement(POLICY)
    for _ in range(5):
        require(connection)
    assert read == [POLICY]
    changed = PolicySettings(0, 1, 1)
    state.begin_serving(connection, changed, FakeClock(START).read(), accepts_change=True)
    read.clear()
    for _ in range(2):
        with pytest.raises(CleanupError, match="settings changed"):
            require(connection)
    assert read == [changed, changed]


def test_a_group_deleted_between_plan_and_apply_is_left_to_its_tombstone(connection: sqlite3.Connection) -> None:
    member = add_group(connection, HOUR, 3)
    plan = make_plan(connection, POLICY, START + 2 * HOUR)
    groups.remove(connection, member.group, START)
    assert sum(apply_plan(connection, plan).values()) == 0
    again = make_plan(connection, POLICY, START)
    assert apply_plan(connection, again)[rules.DELETED_GROUP] == 3


def test_a_session_used_between_plan_and_apply_stays(connection: sqlite3.Connection) -> None:
    user_id = add_group(connection, -1, 0).user_id
    connection.execute(
        "INSERT INTO sessions (session_id, token_hash, user_id, created_at, last_used_at, expires_at)"
        " VALUES (1, x'00', ?, 0, 0, ?)",
        (user_id, START - 100),
    )
    plan = make_plan(connection, POLICY, START)
    assert plan.sessions == [1]
    connection.execute("UPDATE sessions SET expires_at = ?", (START + 100,))
    assert apply_plan(connection, plan)[rules.SESSIONS] == 0


@pytest.mark.parametrize(("is_shared", "part"), [(False, ALONE_REST), (True, 1.0)])
def test_the_lock_is_let_go_of_after_each_budget(connection: sqlite3.Connection, is_shared: bool, part: float) -> None:
    """For as long as it was held if others write, otherwise for a part of that."""
    told: list[tuple[str, float]] = []
    done: list[int] = []
    connection.set_trace_callback(lambda statement: told.append((statement, time.monotonic())))

    def step() -> bool:
        assert connection.in_transaction
        threading.Event().wait(0.004)
        done.append(1)
        return len(done) < 9

    tested = Pacer(connection)
    if is_shared:
        write_elsewhere(connection)
    told.clear()
    tested.run(iter([step]))
    assert len(done) == 9
    begun = [at for statement, at in told if statement.startswith("BEGIN")]
    ended = [at for statement, at in told if statement == "COMMIT"]
    assert len(begun) == len(ended) >= 3, "9 steps of 4 ms do not fit into 2 budgets of 10 ms"
    held = [end - begin for begin, end in zip(begun, ended, strict=True)]
    rests = [begin - end for end, begin in zip(ended, begun[1:], strict=False)]
    assert all(rest >= part * time_held for rest, time_held in zip(rests, held, strict=False))


def transactions(connection: sqlite3.Connection, steps: int) -> int:
    """Run steps of 1.2 ms, and return in how many transactions."""
    begun: list[str] = []
    connection.set_trace_callback(begun.append)
    done: list[int] = []

    def step() -> bool:
        threading.Event().wait(0.0012)
        done.append(1)
        return len(done) < steps

    tested = Pacer(connection)
    write_elsewhere(connection)
    tested.run(iter([step]))
    connection.set_trace_callback(None)
    return begun.count("BEGIN IMMEDIATE")


def write_elsewhere(connection: sqlite3.Connection) -> None:
    """Commit something on another connection."""
    path = Path(connection.execute("PRAGMA database_list").fetchone()[2])
    with closing(sqlite.connect(path)) as another, sqlite.write_transaction(another):
        another.execute("UPDATE server_state SET last_alive = last_alive + 1")


def test_while_others_write_the_lock_is_held_for_one_short_step_at_a_time(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot_store, "ALONE_AFTER_SECONDS", 3600.0)
    assert transactions(connection, 20) == 20
    monkeypatch.setattr(hot_store, "ALONE_AFTER_SECONDS", 0.0)
    assert transactions(connection, 20) < 20, "nobody else has written lately"


def test_while_others_write_few_pages_are_returned_at_a_time(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go at the end of the transaction: asking for it takes no time, and no budget ends that."""
    monkeypatch.setattr(hot_store, "ALONE_AFTER_SECONDS", 3600.0)
    monkeypatch.setattr(hot_store, "SHARED_BUDGET_SECONDS", 3600.0)
    with sqlite.write_transaction(connection):
        connection.execute("CREATE TABLE filler (bytes BLOB)")
        connection.execute("INSERT INTO filler VALUES (zeroblob(1048576))")
        connection.execute("DROP TABLE filler")
    returned: list[int] = []

    def step() -> bool:
        is_left = bodies.return_free_pages(connection)
        returned.append(of_store(connection).pages_to_return)
        return is_left

    tested = Pacer(connection)
    write_elsewhere(connection)
    tested.run(iter([step]))
    assert len(returned) > 3
    assert max(returned) == hot_store.SHARED_RETURNED_PAGES


def test_other_pacers_of_the_process_do_not_count_as_others_who_write(
    connection: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot_store, "ALONE_AFTER_SECONDS", 3600.0)
    with closing(sqlite.connect(tmp_path / "hot.db")) as another:

        def write() -> bool:
            another.execute("UPDATE server_state SET last_alive = last_alive + 1")
            return False

        beside = Pacer(another)
        monkeypatch.setitem(globals(), "write_elsewhere", lambda _: beside.run(iter([write])))
        assert transactions(connection, 20) < 20


def test_no_garbage_is_looked_for_while_the_lock_is_held(connection: sqlite3.Connection) -> None:
    seen: list[tuple[bool, bool]] = []

    def step() -> bool:
        seen.append((connection.in_transaction, gc.isenabled()))
        return False

    def fail() -> bool:
        raise ZeroDivisionError

    Pacer(connection, after_pause=lambda: seen.append((connection.in_transaction, gc.isenabled()))).run(iter([step]))
    assert seen == [(True, False), (False, True)]
    with pytest.raises(ZeroDivisionError):
        Pacer(connection).run(iter([fail]))
    assert gc.isenabled()


def test_garbage_is_looked_for_again_once_the_last_of_several_pacers_lets_it() -> None:
    """The archive's batches are moved by several threads. If each went by what it found, it might stay off."""
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(garbage.disabled())
        second.enter_context(garbage.disabled())
        first.close()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_log_is_copied_into_the_database_while_no_lock_is_held(
    connection: sqlite3.Connection, tmp_path: Path
) -> None:
    connection.execute("CREATE TABLE filled (bytes BLOB)")
    done: list[int] = []

    def step() -> bool:
        connection.execute("INSERT INTO filled VALUES (zeroblob(1000000))")
        threading.Event().wait(0.02)
        done.append(1)
        return len(done) < 20

    Pacer(connection).run(iter([step]))
    assert (tmp_path / "hot.db-wal").stat().st_size < 3_000_000, "20 MB were written"
