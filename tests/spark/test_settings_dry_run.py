"""What other settings would erase: told before a start with them, and just what a run then erases."""

import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings, strategies as st

from conclave.clock import FakeClock
from conclave.config.archive import ArchiveConfig
from conclave.config.cleanup import CleanupConfig
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.retention import marks
from conclave.retention.policy import KEEP
from conclave.retention.resolve import Lifetimes
from conclave.store.engine import sqlite
from conclave.store.resources import state as server_state
from spark.archive import due_rows
from spark.environment import CleanupError, RunEnvironment
from spark.hot_store import ArchiveRunError
from spark.rehearsal import Comparison, Erasure, compare, rehearse
from spark.run import clean_up
from tests.retention.test_rehearsal import digest
from tests.spark.test_engines_agree import LIFETIMES, NOW, fill, states
from tests.support import sample, stores
from tests.support.archived import DAY, START, Store
from tests.support.cleaner import Cleaner
from tests.support.model import State
from tests.support.sample import amount

SQL = CleanupConfig(engine="sql")

lengths = st.sampled_from([KEEP, *LIFETIMES])
retentions = st.builds(
    RetentionConfig,
    enabled=st.sampled_from([True, True, False]),
    default_policy=st.builds(Lifetimes, lengths, lengths),
    fetch_hold_limit=lengths,
    retain_commits=st.booleans(),
)
others = st.tuples(st.sampled_from([-1, 0, *LIFETIMES]), retentions)


def compared(config: Config, now: int) -> Comparison:
    found = compare(config.database, config.policy, FakeClock(now))
    assert found
    return found


def messages_in(counts: dict[str, int]) -> dict[str, int]:
    return {rule: count for rule, count in counts.items() if rule not in ("sessions", "invites")}


@pytest.mark.system
def test_a_dry_run_with_other_settings_tells_what_a_run_after_a_start_with_them_erases(cleaner: Cleaner) -> None:
    @seed(sample.seed())
    @settings(
        max_examples=amount(200, 40),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        derandomize=sample.is_all(),
        database=None,
    )
    @given(states, others, others)
    def check(state: State, first: tuple[int, RetentionConfig], second: tuple[int, RetentionConfig]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            old = Config(
                database_path=str(Path(folder) / "hot.db"),
                message_retention=first[0],
                retention=first[1],
                cleanup=SQL,
            )
            new = replace(old, message_retention=second[0], retention=second[1])
            stores.prepare(old.database)
            with closing(sqlite.connect(old.database)) as connection, sqlite.write_transaction(connection):
                server_state.begin_serving(connection, old.policy, FakeClock(NOW - 40).read())
                fill(connection, state)
                marks.write(connection, old.policy)
            with closing(sqlite.connect(old.database)) as connection:
                sqlite.truncate_wal(connection)
            former = digest(old.database)
            dry = rehearse(RunEnvironment(new, FakeClock(NOW)))
            told = compared(new, NOW)
            assert told.now_erased.counts == messages_in(rehearse(RunEnvironment(old, FakeClock(NOW))).counts)
            assert digest(old.database) == former, "nothing was touched"
            with closing(sqlite.connect(old.database)) as connection, sqlite.write_transaction(connection):
                begun = server_state.begin_serving(connection, new.policy, FakeClock(NOW).read(), accepts_change=True)
            assert replace(told.change, body_bytes=0) == begun.change
            assert cleaner.run(new, NOW)["deleted"] == dry.counts
            assert told.then_erased.counts == messages_in(dry.counts)
            assert dry.differing == told.differing == new.policy.differing(old.policy)

    check()


def test_a_real_run_with_other_settings_is_still_refused(tmp_path: Path) -> None:
    old = Config(database_path=str(tmp_path / "hot.db"), cleanup=SQL)
    stores.prepare(old.database)
    with closing(sqlite.connect(old.database)) as connection:
        server_state.begin_serving(connection, old.policy, FakeClock(START).read())
    new = replace(old, message_retention=DAY)
    assert rehearse(RunEnvironment(new, FakeClock(START))).differing == ["message_retention"]
    with pytest.raises(CleanupError, match="message_retention: this configuration differs"):
        clean_up(RunEnvironment(new, FakeClock(START)))


def test_a_dry_run_with_other_settings_leaves_the_policies_of_deleted_groups_alone(tmp_path: Path) -> None:
    old = Config(database_path=str(tmp_path / "hot.db"), cleanup=SQL)
    stores.prepare(old.database)
    query = "SELECT * FROM tombstones"
    with closing(sqlite.connect(old.database)) as connection:
        server_state.begin_serving(connection, old.policy, FakeClock(START).read())
        connection.execute("INSERT INTO tombstones (group_key, created_at) VALUES (7, ?)", (START,))
        marks.write(connection, old.policy)
        former = connection.execute(query).fetchall()
        new = replace(old, message_retention=DAY)
        assert rehearse(RunEnvironment(new, FakeClock(START))).differing == ["message_retention"]
        assert compare(new.database, new.policy, FakeClock(START)) is not None
        assert connection.execute(query).fetchall() == former


def test_a_store_that_was_never_served_has_no_policy_to_compare_with(tmp_path: Path) -> None:
    config = Config(database_path=str(tmp_path / "hot.db"))
    stores.prepare(config.database)
    assert compare(config.database, config.policy, FakeClock(START)) is None


@pytest.mark.system
def test_what_would_go_from_the_archive_is_told_by_its_index_and_by_a_dry_run(
    tmp_path: Path, cleaner: Cleaner, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path, cleaner, ArchiveConfig(after=DAY, margin=DAY))
    kept, after_fetch = store.add_group(), store.add_group(0)
    for _ in range(4):
        store.send(kept, 5, size=100)
        store.send(after_fetch, 2, size=50)
        store.now += 10 * DAY
    store.run()
    store.send(kept, 3, size=100)
    assert len(store.served()) == 31
    now_erased = compared(store.config, store.now).now_erased
    rules = ("expired", "fetched", "redacted", "taken_back", "deleted_group", "deleted_account")
    nothing = dict.fromkeys(rules, 0)
    assert now_erased == Erasure(0, nothing, 0, 0, 0, is_exact=True)
    new = replace(store.config, message_retention=15 * DAY)
    told = compared(new, store.now)
    assert (told.change.messages, told.change.is_large) == (0, True)
    assert told.change.archived >= 15
    assert told.then_erased.archived >= 15
    assert cleaner.dry_run(new, store.now)["deleted"]["expired"] == 15
    expect_tried_again(new, store.now, monkeypatch)
    store.expect_served(set(store.made))
    with store.opened() as connection:
        server_state.begin_serving(connection, new.policy, FakeClock(store.now).read(), accepts_change=True)
    assert cleaner.run(new, store.now)["deleted"]["expired"] == 15
    gone = {(kept, number) for number in range(1, 16)}
    store.expect_served(set(store.made) - gone)
    store.expect_erased(gone)
    assert compared(new, store.now).now_erased == Erasure(0, nothing, 0, 0, 0, is_exact=True)


def expect_tried_again(new: Config, now: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is under way replaces files while a dry run counts in them."""
    look, replaced = due_rows.look, iter([True, True, False, True, True, True])

    def meanwhile(*args: Any) -> Any:
        if next(replaced):
            raise ArchiveRunError("part-1.parquet: No such file or directory")
        return look(*args)

    with monkeypatch.context() as patch, closing(RunEnvironment(new, FakeClock(now))) as engine:
        patch.setattr(due_rows, "look", meanwhile)
        assert rehearse(engine).counts["expired"] == 15
        with pytest.raises(ArchiveRunError, match="No such file"):
            rehearse(engine)
