"""The resolver's table, row by row, through what is served and what a run erases: each engine, each tier."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from uuid import UUID

import pytest

from conclave.clock import FakeClock
from conclave.config.archive import ArchiveConfig
from conclave.config.cleanup import CleanupConfig
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.retention import marks
from conclave.retention.resolve import PolicySettings
from conclave.store.engine import sqlite
from conclave.store.resources import messages, state
from conclave.wire.formats import Format
from conclave.wire.page_writer import message_writer
from tests.support import stores
from tests.support.archived import Tiers
from tests.support.cleaner import Cleaner
from tests.support.policies import CASES, GROUP, Case, settings
from tests.support.sample import some

NOW = 1_800_000_000
YOUNGEST = 10
"""Seconds: the last message of each group. One member has not fetched it."""

ALICE, BOB = bytes([1]) * 16, bytes([2]) * 16

BATCHES = [
    list(alike) for _, alike in groupby(sorted(CASES, key=lambda case: repr(case.settings)), lambda case: case.settings)
]
"""Rows with the same settings go into one store. An override names one group, so it has a store for each row."""

STORES = [[case] for batch in BATCHES if batch[0].settings.groups for case in batch] + [
    batch for batch in BATCHES if not batch[0].settings.groups
]


@pytest.mark.system
@pytest.mark.parametrize(
    ("engine", "tier", "stores"),
    [
        ("sql", "hot", STORES),
        ("spark", "hot", some(STORES, 3, "policies of Spark")),
        pytest.param("spark", "archive", some(STORES, 1, "policies of the archive"), marks=pytest.mark.system),
    ],
    ids=["sql-hot", "spark-hot", "spark-archive"],
)
def test_what_is_served_and_what_goes_follows_from_the_row(
    engine: str, tier: str, stores: Sequence[list[Case]], cleaner: Cleaner, tmp_path: Path
) -> None:
    for number, cases in enumerate(stores):
        folder = tmp_path / str(number)
        folder.mkdir()
        check(configured(folder, engine, tier), cases, cleaner)


def check(plain: Config, cases: list[Case], cleaner: Cleaner) -> None:
    config = with_policy(plain, cases[0].settings)
    ages = [ages_of(case) for case in cases]
    stores.prepare(plain.database)
    with opened(plain) as connection:
        state.begin_serving(connection, plain.policy, FakeClock(NOW).read())
        for key, of_case in enumerate(ages, 1):
            fill(connection, key, group_id(cases, key), of_case)
    if plain.archive.after > 0:
        assert cleaner.run(plain, NOW)["archived"] == sum(map(len, ages)), "all of it lies in the archive"
    with opened(plain) as connection:
        state.begin_serving(connection, config.policy, FakeClock(NOW).read(), accepts_change=True)
        for key, case in enumerate(cases, 1):
            own = "message_expiry_seconds = ?, min_lifetime_seconds = ?"
            connection.execute(f"UPDATE groups SET {own} WHERE group_key = ?", (case.own_max, case.own_min, key))
            marks.write(connection, config.policy, key)
    for key, case in enumerate(cases, 1):
        assert served(config, key, group_id(cases, key)) == {
            number for number, age in ages[key - 1].items() if not is_old(case, age)
        }, case.sentence
    cleaner.run(config, NOW)
    for key, case in enumerate(cases, 1):
        shown, left = expected(case, ages[key - 1])
        assert served(config, key, group_id(cases, key)) == shown, case.sentence
        assert stored(config, key) == left, case.sentence


def ages_of(case: Case) -> dict[int, int]:
    """Return messages by number, with their ages in seconds: those beside which something changes, and young ones."""
    edges = {max(0, edge) for edge in (case.lifetime, case.min_lifetime, case.hold_limit)}
    found = {edge + step for edge in edges for step in (-1, 0, 1)} | {YOUNGEST, YOUNGEST + 1}
    return dict(enumerate(sorted((age for age in found if YOUNGEST <= age <= NOW), reverse=True), 1))


def is_old(case: Case, age: int) -> bool:
    limit = case.hold_limit if case.lifetime == 0 else case.lifetime
    return 0 < limit < age


def expected(case: Case, ages: dict[int, int]) -> tuple[set[int], set[int]]:
    """Return which messages are served after a run, and which are stored."""
    fetched = max(ages) - 1 if case.lifetime == 0 else 0
    shown = {number for number, age in ages.items() if number > fetched and not is_old(case, age)}
    young = {number for number, age in ages.items() if age < case.min_lifetime}
    return shown, shown | young if case.settings.enabled else set(ages)


def configured(folder: Path, engine: str, tier: str) -> Config:
    """Return a configuration under which nothing expires."""
    archive = ArchiveConfig(after=1, margin=0) if tier == "archive" else ArchiveConfig()
    cleanup = CleanupConfig(engine=engine, disk_reserve=0)
    plain = Config(database_path=str(folder / "hot.db"), cleanup=cleanup, archive=archive)
    assert plain.policy == settings()
    return plain


def with_policy(config: Config, policy: PolicySettings) -> Config:
    names = ("enabled", "default_policy", "limits", "groups", "fetch_hold_limit", "retain_commits")
    retention = RetentionConfig(**{name: getattr(policy, name) for name in names})
    changed = replace(config, message_retention=policy.message_retention, retention=retention)
    assert changed.policy == policy
    return changed


def group_id(cases: list[Case], key: int) -> bytes:
    """Return the id of a group: the one that overrides name, if there are any."""
    return GROUP.bytes if cases[0].settings.groups else UUID(int=key).bytes


@contextmanager
def opened(config: Config) -> Iterator[sqlite3.Connection]:
    with closing(sqlite.connect(config.database)) as connection, sqlite.write_transaction(connection):
        yield connection


def fill(connection: sqlite3.Connection, key: int, group: bytes, ages: dict[int, int]) -> None:
    """Store a group. One member has fetched everything, the other all but the last message."""
    connection.executemany(
        "INSERT OR IGNORE INTO users (user_id, username, password_hash, alias, created_at)"
        " VALUES (?, hex(?), '', '', 0)",
        [(user, user) for user in (ALICE, BOB)],
    )
    connection.execute(
        "INSERT INTO groups (group_key, group_id, group_name, alias, created_at, last_seq) VALUES (?, ?, ?, '', 0, ?)",
        (key, group, f"g{key}", max(ages)),
    )
    marks.write(connection, settings(), key)
    connection.executemany(
        "INSERT INTO members (group_key, user_id, role, joined_at, watermark) VALUES (?, ?, 'member', 0, ?)",
        [(key, ALICE, max(ages)), (key, BOB, max(ages) - 1)],
    )
    for number, age in ages.items():
        stores.add_message(connection, key, number, ALICE, NOW - age)


def served(config: Config, key: int, group: bytes) -> set[int]:
    """Return what a member gets, by what the store says of each tier."""
    with closing(sqlite.connect(config.database)) as connection:
        page = messages.read_page(
            *(connection, group, ALICE, 0, 500, FakeClock(NOW)),
            message_writer(Format.JSON),
        )
    if not page.archived:
        return {each.sequence_num for each in page.messages}
    rows = [row for row in Tiers(config).table().to_pylist() if row["group_key"] == key]
    view = page.archived.visibility
    return {
        row["sequence_num"]
        for row in rows
        if row["sequence_num"] > view.gone_below and row["created_at"] >= view.hidden_before
    }


def stored(config: Config, key: int) -> set[int]:
    tiers = Tiers(config)
    hot = {row[0] for row in tiers.query("SELECT sequence_num FROM messages WHERE group_key = ?", key)}
    return hot | {row["sequence_num"] for row in tiers.readable() if row["group_key"] == key}
