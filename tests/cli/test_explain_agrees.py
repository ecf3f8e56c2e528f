"""What explain says of a message is what the next run does, whatever the store holds; and overdue agrees with both."""

import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings, strategies as st

from conclave.clock import FakeClock
from conclave.config.cleanup import CleanupConfig
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.retention.jobs import ALL, PurgeJob, Scope, schedule
from conclave.retention.resolve import LifetimeLimits, LifetimeRange, Lifetimes
from conclave.retention.rules import find_policy
from conclave.store.engine import sqlite
from conclave.store.resources import state as server_state
from conclave.store.views import overdue
from conclave.store.views.explain import Explanation, explain
from spark.environment import RunEnvironment
from spark.run import clean_up
from tests.support import sample, stores
from tests.support.sample import amount

pytestmark = pytest.mark.system


NOW = 5_000_000_000
LIFETIMES = [-1, -1, 1, 10, 60, 3600]
SENDERS = [bytes([first]) * 16 for first in range(1, 5)]
JOBS = (PurgeJob(60, -1, 30), PurgeJob(600, 60, -1))

times = st.integers(-2, 75).map(lambda ago: NOW - ago)
numbers = st.integers(0, 8)
lifetimes = st.sampled_from(LIFETIMES)


@dataclass
class Stored:
    """A group, of one to four members; ``messages``: when sent, by whom, whether a commit, by number."""

    expiry: int
    least: int
    watermarks: list[int]
    messages: dict[int, tuple[int, int, bool]]
    floor: int
    gone: int
    expired_before: int
    commits_below: int
    deleted: bool
    held: bool


@dataclass
class Whole:
    """A store and the settings of its server."""

    config: Config
    groups: list[Stored]
    deleted_senders: set[int]
    held_senders: set[int]
    overrides: dict[int, Lifetimes] = field(default_factory=dict)


stored_groups = st.builds(
    Stored,
    expiry=st.sampled_from([-1, 0, 0, 1, 10, 60]),
    least=st.sampled_from([-1, -1, 0, 5, 30]),
    watermarks=st.lists(numbers, min_size=1, max_size=4),
    messages=st.dictionaries(st.integers(1, 8), st.tuples(times, st.integers(0, 3), st.booleans()), max_size=6),
    floor=numbers,
    gone=st.sampled_from([0, 0, 1, 4]),
    expired_before=st.one_of(st.just(0), times),
    commits_below=numbers,
    deleted=st.sampled_from([False, False, False, True]),
    held=st.sampled_from([False, False, False, True]),
)
limits = st.builds(LifetimeRange, min=st.sampled_from([-1, -1, 20]), max=st.sampled_from([-1, 40]))
retentions = st.builds(
    RetentionConfig,
    enabled=st.sampled_from([True, True, True, False]),
    default_policy=st.builds(
        Lifetimes, min_lifetime=st.sampled_from([-1, 5]), max_lifetime=st.sampled_from([-1, 10, 60])
    ),
    limits=st.builds(LifetimeLimits, min_lifetime=limits, max_lifetime=limits),
    fetch_hold_limit=st.sampled_from([-1, -1, 30]),
    retain_commits=st.booleans(),
    purge_jobs=st.sampled_from([(), JOBS]),
)
configs = st.builds(
    Config,
    message_retention=st.sampled_from([-1, -1, 0, 10, 60]),
    retention=retentions,
    cleanup=st.just(CleanupConfig(engine="sql", disk_reserve=0)),
)
wholes = st.builds(
    Whole,
    configs,
    st.lists(stored_groups, min_size=1, max_size=4),
    st.sets(st.integers(0, 3), max_size=2),
    st.one_of(st.just(set()), st.sets(st.integers(0, 3), max_size=2)),
    st.dictionaries(st.integers(0, 3), st.builds(Lifetimes, st.sampled_from([-1, 5]), st.sampled_from([-1, 20]))),
)


@seed(sample.seed())
@settings(
    max_examples=amount(400, 80),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=sample.is_all(),
    database=None,
)
@given(wholes, st.integers(0, 9))
def test_explain_says_what_the_next_run_does(whole: Whole, which: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config, scopes = configured(whole, folder), schedule(whole.config.retention.purge_jobs, 3600)
        scope = [ALL, *(scope for scope, _ in scopes)][which % (len(scopes) + 1)]
        with closing(sqlite.connect(config.database)) as connection:
            before = stored(connection)
            told = {key: told_of(connection, config, *key) for key in before}
            late = overdue.find(connection, NOW)
            agree(connection, config, whole, told, late)
        report = clean_up(RunEnvironment(config, FakeClock(NOW)), scope=scope)
        assert not report.error
        with closing(sqlite.connect(config.database)) as connection:
            gone = before.keys() - stored(connection).keys()
            going = {key for key, of in told.items() if of.message and of.message.fate and of.message.fate.is_next}
            named = {key for key in going if is_named(connection, config, told[key], scope, key[0])}
            assert named <= gone <= going
            if scope == ALL:
                assert gone == going
                assert overdue.find(connection, NOW) == {}


def is_named(connection: sqlite3.Connection, config: Config, told: Explanation, scope: Scope, key: int) -> bool:
    """Whether explain has said that this run erases the message."""
    assert told.message
    assert told.message.fate
    return told.message.fate.by_mark or scope == ALL or scope.name in [job.name for job in told.jobs]


def agree(
    connection: sqlite3.Connection,
    config: Config,
    whole: Whole,
    told: dict[tuple[int, int], Explanation],
    late: dict[int, overdue.GroupBacklog],
) -> None:
    """Overdue names no group in which nothing goes; and all, where one look at each group is enough."""
    going = {key[0] for key, of in told.items() if of.message and of.message.fate and of.message.fate.is_next}
    assert late.keys() <= going
    in_order = all(
        sorted(group.messages.items()) == sorted(group.messages.items(), key=lambda each: (each[1][0], each[0]))
        for group in whole.groups
    )
    if in_order and not whole.deleted_senders:
        assert late.keys() == going
    for key, due in late.items():
        policy = find_policy(connection, key)
        assert policy is not None
        assert due.since <= NOW
        oldest = min(sent[0] for number, sent in whole.groups[key - 1].messages.items())
        assert due.since >= min(NOW, oldest + policy.min_lifetime)


def told_of(connection: sqlite3.Connection, config: Config, key: int, number: int) -> Explanation:
    scopes = schedule(config.retention.purge_jobs, config.cleanup_interval)
    found = explain(connection, config.policy, scopes, NOW, group_id(key), number)
    assert found
    return found


def group_id(key: int) -> bytes:
    return bytes([key]) * 16


def stored(connection: sqlite3.Connection) -> dict[tuple[int, int], int]:
    rows = connection.execute("SELECT group_key, sequence_num, created_at FROM messages")
    return {(row[0], row[1]): row[2] for row in rows}


def configured(whole: Whole, folder: str) -> Config:
    """Write the store, and return its configuration."""
    from dataclasses import replace
    from uuid import UUID

    overrides = {str(UUID(bytes=group_id(place + 1))): set_ for place, set_ in whole.overrides.items()}
    retention = replace(whole.config.retention, groups=overrides)
    config = replace(whole.config, database_path=str(Path(folder) / "hot.db"), retention=retention)
    stores.prepare(config.database)
    with closing(sqlite.connect(config.database)) as connection, sqlite.write_transaction(connection):
        server_state.begin_serving(connection, config.policy, FakeClock(NOW).read())
        connection.executemany(
            "INSERT INTO users (user_id, username, password_hash, alias, created_at) VALUES (?, hex(?), '', '', 0)",
            [(sender, sender) for sender in SENDERS],
        )
        connection.executemany(
            "INSERT INTO user_tombstones (user_id, created_at) VALUES (?, ?)",
            [(SENDERS[sender], NOW - 7) for sender in whole.deleted_senders],
        )
        for sender in whole.held_senders:
            hold(connection, None, SENDERS[sender])
        for place, group in enumerate(whole.groups):
            fill(connection, place + 1, group)
    return config


def hold(connection: sqlite3.Connection, group_key: int | None, subject: bytes) -> None:
    connection.execute(
        "INSERT INTO holds (group_key, user_id, subject_id, name, reason, added_by, added_at)"
        " VALUES (?, ?, ?, '', 'r', 'operator o', 0)",
        (group_key, subject if group_key is None else None, subject),
    )


def fill(connection: sqlite3.Connection, key: int, group: Stored) -> None:
    if group.deleted:
        connection.execute(
            "INSERT INTO tombstones (group_key, created_at, group_id, message_expiry_seconds, min_lifetime_seconds)"
            " VALUES (?, ?, ?, ?, ?)",
            (key, NOW - 5, group_id(key), group.expiry, group.least),
        )
    else:
        connection.execute(
            "INSERT INTO groups (group_key, group_id, group_name, alias, message_expiry_seconds, min_lifetime_seconds,"
            " created_at, last_seq, floor_seq, gone_below, expired_before, commits_below)"
            " VALUES (?, ?, ?, '', ?, ?, 0, 8, ?, ?, ?, ?)",
            (
                *(key, group_id(key), f"g{key}", group.expiry, group.least),
                *(max(group.floor, group.gone), group.gone, group.expired_before, group.commits_below),
            ),
        )
        connection.executemany(
            "INSERT INTO members (group_key, user_id, role, joined_at, watermark) VALUES (?, ?, 'member', 0, ?)",
            [(key, user_id, mark) for user_id, mark in zip(SENDERS, group.watermarks, strict=False)],
        )
    if group.held:
        hold(connection, key, group_id(key))
    for number, (created_at, sender, is_commit) in group.messages.items():
        stores.add_message(connection, key, number, SENDERS[sender], created_at, is_commit=is_commit)
