"""What new settings hide at once: counted exactly, rehearsed without a trace, and refused if it is much."""

import hashlib
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, seed, settings, strategies as st

from conclave.clock import FakeClock
from conclave.retention import rehearsal
from conclave.retention.policy import FOREVER, KEEP, GroupPolicy
from conclave.retention.rehearsal import SettingsImpact
from conclave.retention.resolve import Lifetimes, PolicySettings
from conclave.store.engine import sqlite
from conclave.store.resources import state
from conclave.store.resources.state import PolicyChangeError, PolicyFrozenError
from tests.support import sample, stores
from tests.support.sample import amount

STOPPED = 1_700_000_000
LATER = 50
USERS = [bytes([number]) * 16 for number in range(1, 5)]
POLICY = PolicySettings(KEEP, 2_592_000, 604_800)


class Sent(NamedTuple):
    """A message."""

    number: int
    age: int
    is_commit: bool
    sender: int

    @property
    def created_at(self) -> int:
        return STOPPED - self.age


@dataclass(frozen=True)
class Group:
    """A group; its messages up to ``archived`` lie in the archive, as far as the index says.

    ``timed``: the numbers of those that destroy themselves. Nobody has read them.
    """

    expiry: int
    gone: int
    floor: int
    mark_age: int
    commits_below: int
    watermarks: list[int]
    archived: int
    sent: list[Sent]
    timed: frozenset[int] = frozenset()

    @property
    def group_id(self) -> bytes:
        return bytes([self.expiry % 250, self.gone, self.floor, self.commits_below]) * 4


numbers = st.integers(0, 10)
lifetimes = st.sampled_from([-1, 0, 5, 20, 40, 80, 1000])
lengths = st.sampled_from([-1, 5, 20, 40, 80, 1000])


@st.composite
def groups(draw: st.DrawFn) -> Group:
    ages = draw(st.lists(st.integers(0, 90), min_size=0, max_size=10))
    sent = [
        Sent(number, age, draw(st.booleans()), draw(st.integers(0, 3)))
        for number, age in enumerate(sorted(ages, reverse=True), 1)
    ]
    archived = draw(st.sampled_from([0, 0, 4, 7]))
    can_be_timed = {each.number for each in sent if each.number > archived and not each.is_commit}
    return Group(
        draw(lifetimes),
        draw(numbers),
        draw(numbers),
        draw(st.integers(20, 120)),
        draw(numbers),
        draw(st.lists(numbers, min_size=1, max_size=3)),
        archived,
        sent,
        frozenset(can_be_timed & draw(st.frozensets(numbers))),
    )


def policies_of(stored: list[Group]) -> st.SearchStrategy[PolicySettings]:
    ids = [str(UUID(bytes=group.group_id)) for group in stored] or [str(UUID(int=5))]
    return st.builds(
        PolicySettings,
        lifetimes,
        st.just(60),
        st.just(60),
        enabled=st.booleans(),
        default_policy=st.builds(Lifetimes, lengths, lengths),
        groups=st.dictionaries(st.sampled_from(ids), st.builds(Lifetimes, lengths, lengths), max_size=2),
        fetch_hold_limit=lengths,
        retain_commits=st.booleans(),
        self_destruct_max_age=st.sampled_from([10, 30, 60, 2_592_000]),
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Group], PolicySettings, PolicySettings, set[int]]:
    stored = draw(st.lists(groups(), max_size=4, unique_by=lambda group: group.group_id))
    settings_ = policies_of(stored)
    return stored, draw(settings_), draw(settings_), draw(st.sets(st.integers(0, 3), max_size=2))


@contextmanager
def store(stored: list[Group], policy: PolicySettings, deleted: set[int] = frozenset()) -> Iterator[Path]:  # type: ignore[assignment]
    """Make a store that has run with ``policy`` until STOPPED."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hot.db"
        stores.prepare(path)
        with closing(sqlite.connect(path)) as connection, sqlite.write_transaction(connection):
            fill(connection, stored, deleted)
            state.begin_serving(connection, policy, FakeClock(STOPPED).read())
            state.note_alive(connection, FakeClock(STOPPED).read(), stopping=True)
        with closing(sqlite.connect(path)) as connection:
            assert sqlite.truncate_wal(connection)
        yield path


def fill(connection: sqlite3.Connection, stored: list[Group], deleted: set[int]) -> None:
    connection.executemany(
        "INSERT INTO users (user_id, username, password_hash, alias, created_at) VALUES (?, hex(?), '', '', 0)",
        [(user_id, user_id) for user_id in USERS],
    )
    connection.executemany("INSERT INTO user_tombstones VALUES (?, 0)", [(USERS[each],) for each in deleted])
    for key, group in enumerate(stored, 1):
        connection.execute(
            "INSERT INTO groups (group_key, group_id, group_name, alias, message_expiry_seconds, created_at, last_seq,"
            " floor_seq, gone_below, expired_before, commits_below, archived_seq)"
            " VALUES (?, ?, ?, '', ?, 0, 10, ?, ?, ?, ?, ?)",
            (
                *(key, group.group_id, f"g{key}", group.expiry, group.floor, group.gone),
                *(STOPPED - group.mark_age, group.commits_below, group.archived),
            ),
        )
        connection.executemany(
            "INSERT INTO members (group_key, user_id, role, joined_at, watermark) VALUES (?, ?, 'member', 0, ?)",
            [(key, USERS[place], mark) for place, mark in enumerate(group.watermarks)],
        )
        for each in group.sent:
            if each.number > group.archived:
                stores.add_message(
                    *(connection, key, each.number, USERS[each.sender], each.created_at),
                    is_commit=each.is_commit,
                    body=b"x" * (each.number + 1),
                )
            elif not each.is_commit:
                connection.execute("INSERT OR IGNORE INTO archive_senders VALUES (?, ?)", (USERS[each.sender], key))
        connection.executemany(
            "INSERT INTO self_destructing (group_key, sequence_num, seconds) VALUES (?, ?, 60)",
            [(key, number) for number in group.timed],
        )
        for span, part in enumerate(parts(group)):
            times = [each.created_at for each in part]
            connection.execute(
                "INSERT INTO archive_parts VALUES (?, -1, ?, ?, ?, ?, ?, ?, ?, 0)",
                (key, span, part[0].number, part[-1].number, min(times), max(times), len(part), 10 * len(part)),
            )


def parts(group: Group) -> list[list[Sent]]:
    """Return what lies in the archive: parts of at most three messages."""
    archived = [each for each in group.sent if each.number <= group.archived]
    return [archived[begin : begin + 3] for begin in range(0, len(archived), 3)]


def seen(group: Group, policy: GroupPolicy, now: int, marks: sqlite3.Row, deleted: set[int]) -> set[int]:
    """Return the numbers that members see, told plainly; what all have fetched counts as gone."""
    reached = max(marks["floor_seq"], min(group.watermarks))
    gone = max(marks["gone_below"], reached) if policy.is_after_fetch else marks["gone_below"]
    cutoff = max(marks["expired_before"], policy.expires_before(now))
    above = max(marks["commits_below"], min(group.watermarks)) if policy.keeps_commits else FOREVER
    return {
        each.number
        for each in group.sent
        if each.number > gone
        and (each.created_at >= cutoff or (each.is_commit and each.number > above))
        and (each.is_commit or each.sender not in deleted)
    }


def too_old(group: Group, old: PolicySettings, new: PolicySettings, now: int) -> set[int]:
    """Return the numbers of those that destroy themselves and are too old from now on for somebody to read them."""
    if old.self_destruct_max_age == new.self_destruct_max_age:
        return set()
    readers = set(range(len(group.watermarks)))
    return {
        each.number
        for each in group.sent
        if each.number in group.timed
        and readers - {each.sender}
        and each.created_at + old.self_destruct_max_age >= STOPPED
        and each.created_at + new.self_destruct_max_age < now
    }


def seen_in(path: Path, stored: list[Group], policy: PolicySettings, now: int, deleted: set[int]) -> list[set[int]]:
    with closing(sqlite.connect(path, readonly=True)) as connection:
        marks = connection.execute("SELECT * FROM groups ORDER BY group_key").fetchall()
    return [
        seen(group, policy.of_group(group.group_id, group.expiry, KEEP), now, row, deleted)
        for group, row in zip(stored, marks, strict=True)
    ]


def of(policy: PolicySettings, group: Group) -> GroupPolicy:
    return policy.of_group(group.group_id, group.expiry, KEEP)


def rehearse(path: Path, old: PolicySettings, new: PolicySettings, now: int) -> SettingsImpact:
    with closing(sqlite.connect(path, readonly=True)) as connection:
        connection.execute("BEGIN")
        return rehearsal.rehearse(connection, old, new, now, is_measured=True)


def begin(path: Path, policy: PolicySettings, now: int, *, accepts_change: bool = False) -> SettingsImpact:
    with closing(sqlite.connect(path)) as connection, sqlite.write_transaction(connection):
        begun = state.begin_serving(connection, policy, FakeClock(now).read(), accepts_change=accepts_change)
        return begun.change


def digest(path: Path) -> dict[str, str]:
    """Return what every file of the store holds, but for SQLite's index of its log."""
    return {
        each.name: hashlib.sha256(each.read_bytes()).hexdigest()
        for each in path.parent.rglob("*")
        if each.is_file() and not each.name.endswith("-shm") and each.stat().st_size
    }


@pytest.mark.system
def test_what_becomes_hidden_is_counted_exactly_and_rehearsed_without_a_trace() -> None:
    @seed(sample.seed())
    @settings(
        max_examples=amount(1500, 200),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        derandomize=sample.is_all(),
        database=None,
    )
    @given(cases())
    def check(case: tuple[list[Group], PolicySettings, PolicySettings, set[int]]) -> None:
        stored, old, new, deleted = case
        with store(stored, old, deleted) as path:
            before = seen_in(path, stored, old, STOPPED, deleted)
            former = digest(path)
            rehearsed = rehearse(path, old, new, STOPPED + LATER)
            assert digest(path) == former
            change = begin(path, new, STOPPED + LATER, accepts_change=True)
            after = seen_in(path, stored, new, STOPPED + LATER, deleted)
            unchanged = {place for place, group in enumerate(stored) if of(old, group) == of(new, group)}
            hides_as = {place for place, group in enumerate(stored) if of(old, group).hides_as(of(new, group))}
            timed = [now & too_old(group, old, new, STOPPED + LATER) for now, group in zip(after, stored, strict=True)]
        assert replace(rehearsed, body_bytes=0) == change
        gone = [
            timed[place] | (set() if place in hides_as else was - now)
            for place, (was, now) in enumerate(zip(before, after, strict=True))
        ]
        assert not [now - was for was, now in zip(before, after, strict=True) if now - was], "something came back"
        hot = [{each for each in found if each > group.archived} for found, group in zip(gone, stored, strict=True)]
        archived = sum(len(found) for found in gone) - sum(map(len, hot))
        assert change.messages == sum(map(len, hot))
        assert rehearsed.body_bytes == sum(number + 1 for found in hot for number in found)
        assert change.archived == archived if change.is_exact else change.archived >= archived
        assert change.groups == len(stored) - len(unchanged)
        hiding = sum(map(bool, gone))
        assert change.hiding == hiding if change.is_exact else change.hiding >= hiding
        if change.hidden:
            assert change.total == sum(len(group.sent) for group in stored)

    check()


def group_of(count: int, expiry: int = KEEP, watermark: int = 0, age: int = 30) -> Group:
    sent = [Sent(number, age, is_commit=False, sender=0) for number in range(1, count + 1)]
    return Group(expiry, 0, 0, STOPPED, 0, [watermark], 0, sent)


@pytest.mark.parametrize(("due", "is_refused"), [(0, False), (1, False), (2, True), (10, True)])
def test_a_change_that_hides_more_than_a_tenth_is_refused(due: int, is_refused: bool) -> None:
    old = [Sent(number, 30, is_commit=False, sender=0) for number in range(1, due + 1)]
    young = [Sent(number, 0, is_commit=False, sender=0) for number in range(due + 1, 11)]
    with store([replace(group_of(0), sent=old + young)], POLICY) as path:
        former = digest(path)
        new = replace(POLICY, message_retention=20)
        if is_refused:
            with pytest.raises(PolicyChangeError) as refused:
                begin(path, new, STOPPED)
            assert digest(path) == former, "nothing is settled"
            told = (
                f"message_retention: this change would hide {due} of 10 messages at once ({due} in the database, 0 in"
            )
            assert str(refused.value).startswith(told)
            assert "--accept-policy-change" in str(refused.value)
            assert begin(path, POLICY, STOPPED) == SettingsImpact(), "the former settings start as ever"
            assert begin(path, new, STOPPED, accepts_change=True).messages == due
        else:
            assert begin(path, new, STOPPED).messages == due


def test_what_lies_in_the_archive_counts_too() -> None:
    group = replace(group_of(10), archived=10)
    with store([group], POLICY) as path, pytest.raises(PolicyChangeError, match=r"10 of 10 .* 10 in the archive"):
        begin(path, replace(POLICY, message_retention=20), STOPPED)


def test_of_a_part_of_the_archive_of_which_some_expires_it_is_known_how_many_at_most() -> None:
    sent = [Sent(number, 30 if number == 1 else 0, is_commit=False, sender=0) for number in (1, 2, 3)]
    group = replace(group_of(0), archived=3, sent=sent)
    with store([group], POLICY) as path, pytest.raises(PolicyChangeError, match="up to 3 in the archive"):
        begin(path, replace(POLICY, message_retention=20), STOPPED)


def test_a_server_that_goes_over_to_delete_after_fetch_hides_what_all_have_fetched() -> None:
    with store([group_of(10, watermark=4)], POLICY) as path:
        assert rehearse(path, POLICY, replace(POLICY, message_retention=0), STOPPED).messages == 4


def test_what_all_had_fetched_in_delete_after_fetch_does_not_count_as_newly_hidden() -> None:
    old = replace(POLICY, message_retention=0)
    with store([group_of(10, watermark=4)], old) as path:
        change = begin(path, POLICY, STOPPED)
        assert (change.groups, change.messages) == (1, 0)


@pytest.mark.parametrize(
    ("old", "new", "hidden", "sooner"),
    [
        ({"enabled": False, "message_retention": 20}, {"message_retention": 20}, 0, 1),
        ({"message_retention": 20}, {"message_retention": 20, "enabled": False}, 0, 0),
        ({"message_retention": 0}, {"message_retention": 0, "fetch_hold_limit": 20}, 10, 0),
        ({"message_retention": 0, "fetch_hold_limit": 20}, {"message_retention": 0}, 0, 0),
        ({"default_policy": Lifetimes(80)}, {"default_policy": Lifetimes(5)}, 0, 1),
        ({"groups": {"GROUP": Lifetimes(KEEP, 80)}, "message_retention": 20}, {"message_retention": 20}, 10, 0),
        ({"message_retention": 20}, {"groups": {"GROUP": Lifetimes(KEEP, 80)}, "message_retention": 20}, 0, 0),
        ({}, {"groups": {"GROUP": Lifetimes(KEEP, 20)}}, 10, 0),
        ({"token_ttl_seconds": 5}, {"token_ttl_seconds": 6}, 0, 0),
        ({"retain_commits": True}, {}, 0, 0),
    ],
)
def test_what_each_setting_hides_at_once(old: dict[str, Any], new: dict[str, Any], hidden: int, sooner: int) -> None:
    group = group_of(10)

    def made(changed: dict[str, Any]) -> PolicySettings:
        groups = {str(UUID(bytes=group.group_id)): set_ for set_ in changed.get("groups", {}).values()}
        return replace(POLICY, **(changed | {"groups": groups}))

    with store([group], made(old)) as path:
        change = begin(path, made(new), STOPPED, accepts_change=True)
        assert (change.messages, change.sooner) == (hidden, sooner)


@pytest.mark.parametrize("changed", [{"enabled": False}, {"default_policy": Lifetimes(80)}, {"token_ttl_seconds": 61}])
def test_what_expired_while_the_server_was_stopped_is_no_consequence_of_another_setting(
    changed: dict[str, Any],
) -> None:
    policy = replace(POLICY, message_retention=40)
    with store([group_of(10)], policy) as path:
        assert begin(path, replace(policy, **changed), STOPPED + LATER).messages == 0


def test_erasing_can_be_stopped_while_the_clock_is_wrong() -> None:
    policy = replace(POLICY, message_retention=40)
    with store([group_of(10)], policy) as path, closing(sqlite.connect(path)) as connection:
        marks = connection.execute("SELECT expired_before FROM groups").fetchall()
        wrong = FakeClock(STOPPED + 10_000, set_by=10_000).read()
        begun = state.begin_serving(connection, replace(policy, enabled=False), wrong)
        assert begun.clock_fault
        assert connection.execute("SELECT expired_before FROM groups").fetchall() == marks, "no mark moves"
        with pytest.raises(PolicyFrozenError, match="message_retention cannot change until the clock is right"):
            state.begin_serving(connection, replace(policy, enabled=False, message_retention=KEEP), wrong)


def test_commits_that_were_kept_and_are_not_any_more_count() -> None:
    sent = [Sent(number, 30, number % 2 == 0, 0) for number in range(1, 11)]
    keeping = replace(POLICY, message_retention=20, retain_commits=True)
    with store([replace(group_of(0), sent=sent, watermarks=[4])], keeping) as path:
        change = rehearse(path, keeping, replace(keeping, retain_commits=False), STOPPED)
        assert change.messages == 3, "6, 8 and 10: the others were hidden already"


def test_overrides_of_groups_that_do_not_exist_are_found() -> None:
    group, unknown = group_of(1), str(UUID(int=99))
    known = str(UUID(bytes=group.group_id))
    policy = replace(POLICY, groups={unknown: Lifetimes(), known: Lifetimes()})
    with store([group], POLICY) as path, closing(sqlite.connect(path, readonly=True)) as connection:
        assert rehearsal.unknown_groups(connection, policy) == [unknown]
