"""Spark, SQL and a plain model agree to the row on what is served and what a run deletes, whatever the store holds."""

import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, seed, settings, strategies as st

from conclave.clock import FakeClock
from conclave.config.cleanup import CleanupConfig
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.retention import marks
from conclave.retention.jobs import ALL, PurgeJob, Scope
from conclave.retention.resolve import Lifetimes
from conclave.store import bodies
from conclave.store.engine import sqlite
from conclave.store.resources import messages, receipts, state as server_state, taken_back
from conclave.store.resources.taken_back import TakenBack
from conclave.wire.formats import Format
from conclave.wire.page_writer import message_writer
from spark.environment import RunEnvironment
from spark.rehearsal import rehearse
from tests.support import model, sample, stores
from tests.support.cleaner import Cleaner
from tests.support.model import GroupState, Outcome, Sent, State
from tests.support.sample import amount

pytestmark = pytest.mark.system

NOW = 5_000_000_000  # does not fit 32 bits
LIFETIMES = [1, 2, 10, 60, 3600, 2**53 - 1]
SENDERS = [bytes([first]) + bytes(15) for first in (0xFF, 0x7F, 0x80, 0x01)]
"""Ids by a sender's number, in no order; half of them would be negative numbers."""

seconds_ago = st.one_of(st.integers(-5, 75), st.sampled_from([3599, 3600, 3601, 86_400, NOW]))
times = seconds_ago.map(lambda ago: NOW - ago)
numbers = st.integers(0, 12)
senders = st.integers(0, len(SENDERS) - 1)
sent = st.builds(Sent, created_at=times, sender=senders, is_commit=st.booleans())


@st.composite
def groups(draw: st.DrawFn) -> GroupState:
    gone = draw(numbers)
    watermarks = draw(st.lists(numbers, min_size=1, max_size=4))
    messages = draw(st.dictionaries(st.integers(1, 12), sent, max_size=6))
    joined = [0 for _ in watermarks]
    if draw(st.booleans()):
        joined = [draw(st.sampled_from([0, 0, 3, 7])) for _ in watermarks]
        read = [max(after, draw(st.sampled_from([0, 5, 12, 12]))) for after in joined]
        for number in draw(st.sets(st.sampled_from(sorted(messages)))) if messages else ():
            readers = [at for at, after in enumerate(joined) if after < number <= read[at]]
            ends = {at: draw(st.sampled_from([NOW - 60, NOW, NOW, NOW + 1])) for at in readers}
            messages[number] = replace(
                messages[number], is_commit=False, ends=ends, ended=draw(st.sampled_from([False, False, True]))
            )
    for number in draw(st.sets(st.sampled_from(sorted(messages)), max_size=2)) if messages else ():
        messages[number] = replace(messages[number], is_commit=False, taken=True)
    return GroupState(
        joined=joined,
        expiry=draw(st.sampled_from([-1, 0, *LIFETIMES])),
        watermarks=watermarks,
        messages=messages,
        floor_seq=max(gone, draw(numbers)) if draw(st.booleans()) else gone,
        gone_below=gone if draw(st.booleans()) else 0,
        expired_before=draw(st.one_of(st.just(0), times)),
        deleted=draw(st.sampled_from([False, False, False, True])),
        commits_below=draw(st.sampled_from([0, 0, 3])),
        min_lifetime=draw(st.sampled_from([-1, -1, -1, 0, 10, 3600])),
        override=draw(st.sampled_from([None, None, None, (-1, -1), (-1, 10), (60, 60), (3600, -1)])),
        held=draw(st.sampled_from([False, False, False, True])),
    )


states = st.builds(
    State,
    now=st.just(NOW),
    server=st.sampled_from([-1, -1, 0, *LIFETIMES]),
    token_ttl=st.sampled_from([1, 30, 2_592_000]),
    invite_ttl=st.sampled_from([1, 60, 604_800]),
    groups=st.lists(groups(), max_size=6),
    deleted_senders=st.sets(senders, max_size=3),
    session_expiries=st.lists(times, max_size=5),
    invite_times=st.lists(times, max_size=5),
    held_senders=st.one_of(st.just(set()), st.sets(senders, max_size=2)),
    enabled=st.sampled_from([True, True, True, True, False]),
    hold_limit=st.sampled_from([-1, -1, 60, 3600]),
    retain_commits=st.sampled_from([False, False, True]),
    job=st.sampled_from([None, None, None, (-1, 10), (10, 3600), (3600, -1)]),
    max_age=st.sampled_from([60, 3600, 2_592_000]),
)


@pytest.mark.parametrize("engine", ["sql", "spark"])
def test_an_engine_deletes_what_the_model_says(engine: str, cleaner: Cleaner) -> None:
    @seed(sample.seed())
    @settings(
        max_examples=amount(150, 40) if engine == "sql" else amount(30, 3),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        derandomize=sample.is_all(),
        database=None,
    )
    @given(states)
    def check(state: State) -> None:
        assert run(state, engine, cleaner) == model.run(state)

    check()


def run(state: State, engine: str, cleaner: Cleaner) -> Outcome:
    """Do a run on a real store in that state, and read what is left."""
    with tempfile.TemporaryDirectory() as folder:
        config = Config(
            database_path=str(Path(folder) / "hot.db"),
            message_retention=state.server,
            token_ttl_seconds=state.token_ttl,
            invite_ttl_seconds=state.invite_ttl,
            cleanup=CleanupConfig(engine=engine),
            retention=RetentionConfig(
                enabled=state.enabled,
                fetch_hold_limit=state.hold_limit,
                retain_commits=state.retain_commits,
                self_destruct_max_age=state.max_age,
                groups={
                    str(group_id(position + 1)): Lifetimes(*group.override)
                    for position, group in enumerate(state.groups)
                    if group.override
                },
            ),
        )
        stores.prepare(config.database)
        with closing(sqlite.connect(config.database)) as connection, sqlite.write_transaction(connection):
            server_state.begin_serving(connection, config.policy, FakeClock(state.now).read())
            fill(connection, state)
            marks.write(connection, config.policy)
        sql = replace(config, cleanup=CleanupConfig(engine="sql"))
        if engine == "spark":
            # Applying re-checks what a plan names, and so would hide one that names too much.
            assert cleaner.plan(config, state.now, scope(state)) == cleaner.plan(sql, state.now, scope(state))
        with closing(sqlite.connect(config.database)) as connection:
            assert served(connection, config, state.now) == model.served(state)
        counted = rehearse(RunEnvironment(sql, FakeClock(state.now)), scope(state)).counts
        assert cleaner.run(config, state.now, scope=scope(state))["deleted"] == counted
        with closing(sqlite.connect(config.database)) as connection:
            outcome = left(connection, state)
            assert served(connection, config, state.now) == model.served(state) - fetched_now(state, outcome)
            require_receipts(connection, counted)
            return outcome


def fetched_now(state: State, outcome: Outcome) -> set[tuple[int, int]]:
    """What the run has hidden: what everybody had fetched is served until then."""
    return {
        (position, number)
        for position, group in enumerate(state.groups)
        for number in group.messages
        if number <= outcome.marks.get(position, (0, 0, 0))[1]
    }


def require_receipts(connection: sqlite3.Connection, counted: Counter[str]) -> None:
    """The receipts say how many messages went by which rule."""
    rows = connection.execute("SELECT rule, sum(messages) FROM receipts GROUP BY rule").fetchall()
    assert dict(rows) == {
        rule: count for rule, count in counted.items() if count and rule not in ("sessions", "invites")
    }
    assert receipts.verify(connection).broken_at is None


def scope(state: State) -> Scope:
    if state.job is None:
        return ALL
    return Scope("job", PurgeJob(1, *state.job), is_housekeeping=False)


def group_id(key: int) -> UUID:
    return UUID(int=key)


def fill(connection: sqlite3.Connection, state: State) -> None:
    """Write the state; a group's key is its position + 1, and so with users, sessions and invites."""
    user_ids = [bytes([number]) * 16 for number in range(max(4, len(state.invite_times)))]
    connection.executemany(
        "INSERT INTO users (user_id, username, password_hash, alias, created_at) VALUES (?, hex(?), '', '', 0)",
        [(user_id, user_id) for user_id in user_ids],
    )
    connection.executemany(
        "INSERT INTO user_tombstones (user_id, created_at) VALUES (?, 0)",
        [(SENDERS[sender],) for sender in state.deleted_senders],
    )
    connection.executemany(
        "INSERT INTO holds (user_id, subject_id, name, reason, added_by, added_at) VALUES (?1, ?1, '', '', '', 0)",
        [(SENDERS[sender],) for sender in state.held_senders],
    )
    for position, group in enumerate(state.groups):
        fill_group(connection, position + 1, group, user_ids)
    for expires_at in state.session_expiries:
        connection.execute(
            "INSERT INTO sessions (token_hash, public_id, user_id, created_at, last_used_at, expires_at)"
            " VALUES (?, ?, ?, 0, 0, ?)",
            (uuid4().bytes, uuid4().bytes, user_ids[0], expires_at),
        )
    if state.invite_times:
        connection.execute(
            "INSERT INTO groups (group_key, group_id, group_name, alias, created_at) VALUES (1000, ?, 'i', '', 0)",
            (uuid4().bytes,),
        )
        connection.execute(
            "INSERT INTO members (group_key, user_id, role, joined_at) VALUES (1000, ?, 'admin', 0)", (user_ids[0],)
        )
    for created_at, invitee in zip(state.invite_times, user_ids, strict=False):
        carried = [bodies.put(connection, text) for text in (b"commit", b"welcome", b"info")]
        connection.execute(
            "INSERT INTO invites (invite_id, group_key, invitee_id, inviter_id, created_at, commit_body, welcome_body,"
            " group_info_body) VALUES (?, 1000, ?, ?, ?, ?, ?, ?)",
            (uuid4().bytes, invitee, user_ids[0], created_at, *carried),
        )


def served(connection: sqlite3.Connection, config: Config, now: int) -> set[tuple[int, int]]:
    """What members get, by group's position and sequence number."""
    found = connection.execute(
        "SELECT group_key, group_id, min(user_id) FROM members JOIN groups USING (group_key)"
        " WHERE group_key < 1000 GROUP BY group_key"
    ).fetchall()
    return {
        (key - 1, message.sequence_num)
        for key, group_id, user_id in found
        for message in messages.read_page(
            connection,
            group_id,
            user_id,
            0,
            500,
            FakeClock(now),
            message_writer(Format.JSON),
        ).messages
    }


def fill_group(connection: sqlite3.Connection, key: int, group: GroupState, user_ids: list[bytes]) -> None:
    if group.held:
        connection.execute(
            "INSERT INTO holds (group_key, subject_id, name, reason, added_by, added_at)"
            " VALUES (?, x'', '', '', '', 0)",
            (key,),
        )
    own = (key, group_id(key).bytes, group.expiry, group.min_lifetime)
    if group.deleted:
        connection.execute(
            "INSERT INTO tombstones (group_key, group_id, message_expiry_seconds, min_lifetime_seconds, created_at)"
            " VALUES (?, ?, ?, ?, 0)",
            own,
        )
    else:
        connection.execute(
            "INSERT INTO groups (group_key, group_id, message_expiry_seconds, min_lifetime_seconds, group_name, alias,"
            " created_at, last_seq, floor_seq, gone_below, expired_before, commits_below)"
            " VALUES (?, ?, ?, ?, ?, '', 0, 12, ?, ?, ?, ?)",
            (*own, f"g{key}", group.floor_seq, group.gone_below, group.expired_before, group.commits_below),
        )
        connection.executemany(
            "INSERT INTO members (member_id, group_key, user_id, role, joined_at, watermark, joined_after, read_up_to)"
            " VALUES (?, ?, ?, 'member', 0, ?, ?, ?)",
            [
                (member_id(key, at), key, user_ids[at], mark, joined_after(group, at), read_up_to(group, at))
                for at, mark in enumerate(group.watermarks)
            ],
        )
    for number, each in group.messages.items():
        stores.add_message(connection, key, number, SENDERS[each.sender], each.created_at, is_commit=each.is_commit)
        fill_timers(connection, key, number, each)
        if each.taken:
            taken_back.add(connection, key, number, TakenBack(0, SENDERS[each.sender]))
    while taken_back.has_unnotified(connection):
        taken_back.take_unnotified(connection)


def member_id(key: int, position: int) -> int:
    return key * 10 + position


def joined_after(group: GroupState, position: int) -> int:
    return group.joined[position] if group.joined else 0


def read_up_to(group: GroupState, position: int) -> int:
    """What a member has read: up to the last message with a timer of the member's."""
    read = [number for number, each in group.messages.items() if each.ends is not None and position in each.ends]
    return max(joined_after(group, position), *read, 0)


def fill_timers(connection: sqlite3.Connection, key: int, number: int, sent: Sent) -> None:
    if sent.ends is None:
        return
    connection.execute("UPDATE groups SET self_destructs = self_destructs + 1 WHERE group_key = ?", (key,))
    connection.execute(
        "INSERT INTO self_destructing (group_key, sequence_num, seconds, ended) VALUES (?, ?, 60, ?)",
        (key, number, sent.ended),
    )
    connection.executemany(
        "INSERT INTO timers (group_key, sequence_num, member_id, seconds, redact_at) VALUES (?, ?, ?, 60, ?)",
        [(key, number, member_id(key, at), ends) for at, ends in sent.ends.items()],
    )


def left(connection: sqlite3.Connection, state: State) -> Outcome:
    """Read what a run left, and check that every body still has its owner and every owner its body.

    A tombstone stays as long as something under it does.
    """
    stored = connection.execute("SELECT group_key, sequence_num, message_id FROM messages").fetchall()
    assert set(bodies.get_many(connection, [row["message_id"] for row in stored]).values()) <= {b"body"}
    deleted = {row["group_key"] for row in stored} & {at + 1 for at, each in enumerate(state.groups) if each.deleted}
    assert {row[0] for row in connection.execute("SELECT group_key FROM tombstones")} == deleted
    senders = connection.execute("SELECT DISTINCT sender_id FROM messages WHERE NOT is_commit").fetchall()
    left_behind = {row[0] for row in senders} & {SENDERS[sender] for sender in state.deleted_senders}
    assert {row[0] for row in connection.execute("SELECT user_id FROM user_tombstones")} == left_behind
    timed = connection.execute("SELECT group_key, sequence_num FROM self_destructing").fetchall()
    here = {(row["group_key"], row["sequence_num"]) for row in stored}
    assert {tuple(row) for row in timed} <= here
    # Who was not told yet of a timer's end learns of it although the message is gone.
    ended = connection.execute("SELECT group_key, sequence_num FROM timers WHERE told OR redact_at > ?", (state.now,))
    assert {tuple(row) for row in ended} <= here
    counted = connection.execute("SELECT group_key, self_destructs FROM groups WHERE self_destructs").fetchall()
    of_living = Counter(row["group_key"] for row in timed if row["group_key"] not in deleted)
    assert {row["group_key"]: row["self_destructs"] for row in counted} == of_living
    taken = connection.execute("SELECT group_key, sequence_num FROM taken_back WHERE NOT erased").fetchall()
    assert {tuple(row) for row in taken} <= here
    counted = connection.execute("SELECT group_key, taken_back_count FROM groups WHERE taken_back_count").fetchall()
    of_living = Counter(row["group_key"] for row in taken if row["group_key"] not in deleted)
    assert {row["group_key"]: row["taken_back_count"] for row in counted} == of_living
    marked = connection.execute(
        "SELECT group_key, floor_seq, gone_below, expired_before FROM groups WHERE group_key < 1000"
    )
    return Outcome(
        {(row["group_key"] - 1, row["sequence_num"]) for row in stored},
        {row[0] - 1: tuple(row)[1:] for row in marked},
        {row[0] - 1 for row in connection.execute("SELECT session_id FROM sessions")},
        {row[0] - 1 for row in connection.execute("SELECT invite_key FROM invites")},
    )
