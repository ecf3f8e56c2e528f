"""What may be overwritten later in the archive is unreadable at once, and no Java is started for it."""

import json
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from functools import reduce
from operator import xor
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import click
import pytest
from click.testing import CliRunner
from conclave.store.archive.erasures import Told
from conclave.store.archive.unreadable import Waiting

from conclave.archive.layout import DAY, KEEP_WIDTH
from conclave.archive.status import read_status
from conclave.cli.archive import archive
from conclave.cli.receipts import receipts as receipts_command
from conclave.cli.retention import explain
from conclave.cli.tables import second
from conclave.clock import FakeClock
from conclave.config.archive import ArchiveConfig
from conclave.keys.file import KeyFileError
from conclave.keys.store import KeyStore
from conclave.proof import keys as proof
from conclave.proof.findings import Kind, ProofPart
from conclave.retention import holds
from conclave.retention.policy import KEEP
from conclave.store import message_keys
from conclave.store.archive import erasures, moves, unreadable
from conclave.store.archive.moves import PartRow
from conclave.store.engine import sqlite
from conclave.store.resources import receipts
from conclave.store.resources.receipts import Erased
from conclave.store.views import overdue, storage_usage
from spark import environment, pacer, run
from spark.archive import arrow_eraser, unreadable as archive_unreadable
from spark.environment import RunEnvironment
from tests.support.archive import Mover
from tests.support.archived import USERS
from tests.support.cleaner import Cleaner
from tests.support.keyed import Keyed, Message


class StartedError(Exception):
    """Spark would have been started."""


class Engine(RunEnvironment):
    """An engine whose Spark says that it was asked for."""

    def _session(self) -> Any:
        raise StartedError


class Table(Keyed):
    """A store with an archive that is filled without Java."""

    @property
    def mover(self) -> Mover:
        return Mover(self.config)

    def move(self, *groups: int) -> None:
        """Move all that there is of some groups, as a run does."""
        for group in groups:
            named = str(UUID(bytes=self.group_ids[group]))
            last = self.query("SELECT last_seq FROM groups WHERE group_key = ?", group)[0][0]
            rows = self.mover.append(named, last)
            self.mover.switch(named, 0, [])  # has the database know of the table
            numbers, times = ([row[name] for row in rows] for name in ("sequence_num", "created_at"))
            checksum = reduce(xor, (row["checksum"] for row in rows))
            size = sum(len(row["mls_message"]) for row in rows)
            [span] = {row["span"] for row in rows}
            bounds = (min(numbers), max(numbers), min(times), max(times))
            part = PartRow(group, KEEP, span, *bounds, len(rows), size, checksum)
            with self.opened() as connection:
                moved = moves.Range(group, bounds[0], last, KEEP)
                moves.switch(connection, moved, [part], [USERS[0]], self.mover.version())
            self.mover.drop_copies(named)
        self.mover.execute("UPDATE archive_state SET unerased = 0")

    def purge(self, group: int, before: int) -> None:
        self.mover.execute("UPDATE groups SET expired_before = ? WHERE group_key = ?", before, group)

    def clean(self) -> dict[str, int]:
        """Do a run; return what it has deleted. Raises StartedError where it needs Spark."""
        with closing(Engine(self.config, FakeClock(self.now))) as engine:
            report = run.clean_up(engine)
        if "StartedError" in report.error:
            raise StartedError
        assert report.error == ""
        return dict(+report.counts)

    def read(self, fn: Callable[..., Any], *values: Any, **named: Any) -> Any:
        with closing(sqlite.connect(self.config.database, readonly=True)) as connection:
            return fn(connection, *values, **named)

    def expect_unreadable(self, dead: Iterable[Message]) -> None:
        """These are served to nobody, and no key of them is in any byte; they lie in the table. The others live."""
        gone = set(dead)
        alive = set(self.made) - gone
        self.expect_served(alive)
        assert self.derivable(self.config.keys_path) == alive
        self.expect_lost(gone, self.folder)
        assert len(self.table()) == len(self.made)
        self.expect_sound()
        assert self.read(unreadable.waiting).messages == len(gone)
        assert self.read(overdue.find, self.now) == {}
        assert self.read(message_keys.count) == len(alive)
        assert self.read(receipts.verify).broken_at is None
        assert found(self) == []


def found(store: Table) -> list[Kind]:
    part = ProofPart("key file")
    proof.examine(part, store.config)
    return [each.kind for each in part.findings]


@pytest.fixture(autouse=True)
def _rewriting_needs_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a run which would write a file anew tells so, however little it is."""
    monkeypatch.setattr(arrow_eraser, "MOST_BYTES", 0)


@pytest.fixture
def store(tmp_path: Path, cleaner: Cleaner, monkeypatch: pytest.MonkeyPatch) -> Table:
    monkeypatch.setattr(environment, "find_java", lambda **_: ("java", "17"))
    monkeypatch.setattr(environment, "find_jars", list)
    (tmp_path / "home").mkdir()
    made = Table(tmp_path / "home", cleaner)
    made.begin_keys()
    made.config = replace(made.config, archive=ArchiveConfig(rewrite_after=2 * DAY))
    return made


def told(store: Table) -> list[tuple[Any, ...]]:
    return store.query("SELECT rule, messages, keys_lost, waiting FROM receipts ORDER BY receipt_id")


def two_groups(store: Table) -> tuple[int, int]:
    """Archive six messages of each of two groups, two a day, all in one partition."""
    due, other = store.add_group(), store.add_group()
    store.send_daily(due, other, days=3)
    store.move(due, other)
    store.now += 10 * DAY
    return due, other


def test_a_purge_is_unreadable_without_java(store: Table) -> None:
    due, other = two_groups(store)
    begun = store.now
    store.purge(due, store.now - 12 * DAY)
    assert store.clean() == {"expired": 2}
    store.expect_unreadable({(due, 1), (due, 2)})
    assert told(store) == [("expired", 2, 2, 2)]
    usage = store.read(storage_usage.of_group, store.group_ids[due], USERS[0], bytes_too=True)
    assert usage.messages == 4, "a quota has room again"

    store.now += DAY
    assert store.clean() == {}, "nothing is counted twice"
    store.purge(due, store.now)
    assert store.clean() == {"expired": 4}
    store.expect_unreadable({(due, number) for number in range(1, 7)})
    assert told(store) == [("expired", 2, 2, 2), ("expired", 4, 4, 4)]
    assert read_status(store.config, store.now).unreadable == Waiting(6, begun)
    with store.opened() as connection:
        connection.execute("UPDATE receipts SET keys_lost = 0, waiting = 2 WHERE receipt_id = 1")
        assert receipts.verify(connection).broken_at == 1
        connection.execute("UPDATE receipts SET keys_lost = 2, waiting = 0 WHERE receipt_id = 1")
        assert receipts.verify(connection).broken_at == 1
        connection.execute("UPDATE receipts SET keys_lost = 2, waiting = 2 WHERE receipt_id = 1")
        assert receipts.verify(connection).broken_at is None

    store.purge(other, begun - 12 * DAY)
    store.clean()
    store.now = begun + 2 * DAY - 1
    assert store.clean() == {}
    store.now = begun + 2 * DAY
    with pytest.raises(StartedError):
        store.clean()


def test_commands_tell_what_is_unreadable_from_what_is_overwritten(store: Table) -> None:
    due, _ = two_groups(store)
    store.purge(due, store.now - 12 * DAY)
    store.clean()
    settings = store.folder / "conclave.toml"
    settings.write_text(f'database_path = "{store.config.database}"\n')

    def printed(command: click.Command, *words: str) -> str:
        result = CliRunner(env={"COLUMNS": "300"}).invoke(command, [*words, "--config", str(settings)])
        assert result.exit_code == 0, result.output
        return result.stdout

    assert f"unreadable, and not overwritten yet: 2 messages, the first since {second(store.now)}" in printed(
        archive, "status"
    )
    assert json.loads(printed(archive, "status", "--json"))["unreadable"] == {"messages": 2, "since": store.now}
    [line] = printed(receipts_command, "show", "--json").splitlines()
    assert (json.loads(line)["keys_lost"], json.loads(line)["waiting"]) == (2, 2)
    assert "not overwritten" in printed(receipts_command, "show")
    told = printed(explain, str(UUID(bytes=store.group_ids[due])), "1")
    assert "gone, by one of these receipts" in told
    assert (
        "the keys of 2 are lost, in a copy of the key file once it is renewed, and 2 were not overwritten yet" in told
    )


def test_a_key_that_could_not_be_destroyed_is_destroyed_by_the_next_run(
    store: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    due, _ = two_groups(store)
    store.purge(due, store.now - 12 * DAY)
    with monkeypatch.context() as patch:
        patch.setattr(KeyStore, "erase", _broken)
        with closing(Engine(store.config, FakeClock(store.now))) as engine:
            assert "keys: " in run.clean_up(engine).error
    assert told(store) == [], "not before they are lost"
    assert found(store) == [], "what the next run destroys is no finding"
    assert store.clean() == {}
    store.expect_unreadable({(due, 1), (due, 2)})
    assert told(store) == [("expired", 2, 2, 2)]


def _broken(*_: object) -> int:
    raise KeyFileError("the disk of the keys is away")


def test_a_deleted_group_is_unreadable_and_stays_known(store: Table) -> None:
    doomed, _ = two_groups(store)
    store.delete_group(doomed)
    assert store.clean() == {"deleted_group": 6}
    store.expect_lost({(doomed, number) for number in range(1, 7)}, store.folder)
    assert store.query("SELECT count(*) FROM tombstones") == [(1,)]
    assert store.clean() == {}
    assert told(store) == [("deleted_group", 6, 6, 6)]


def unreadable_group(store: Table) -> int:
    """Let all be purged that a group has in the archive, beside another one that stays; return its key."""
    due, other = store.add_group(), store.add_group()
    store.send_daily(due, other, days=2)
    store.move(due, other)
    store.purge(due, store.now)
    store.clean()
    return due


def test_what_moves_later_to_a_part_that_is_unreadable_lives_and_expires(store: Table) -> None:
    due = unreadable_group(store)
    dead = {(due, number) for number in range(1, 5)}
    store.expect_unreadable(dead)
    store.send(due, 2)
    store.move(due)
    store.now += 1
    store.expect_unreadable(dead)
    store.purge(due, store.now)
    assert store.clean() == {"expired": 2}
    store.expect_unreadable(dead | {(due, 5), (due, 6)})


@pytest.mark.parametrize("case", ["sender", "taken back", "commits", "user held", "order", "unset"])
def test_what_only_rows_can_tell_does_not_wait(store: Table, case: str) -> None:
    due, other = two_groups(store)
    if case == "order":
        store.mover.execute("UPDATE archive_parts SET newest = newest + 1 WHERE group_key = ?", due)
        store.now -= 20 * DAY
        store.send(due, 1)
        store.move(due)
        store.now += 20 * DAY
    store.purge(due, store.now - 12 * DAY)
    if case == "sender":
        store.delete_account(USERS[0])
    elif case == "taken back":
        store.take_back(other, 5)
    elif case == "commits":
        store.mover.execute("UPDATE groups SET keeps_commits = 1")
    elif case == "user held":
        with store.opened() as connection:
            holds.add(connection, None, USERS[3], "name", "evidence", "operator root", store.now)
    elif case == "unset":
        store.config = replace(store.config, archive=ArchiveConfig())
    with pytest.raises(StartedError):
        store.clean()
    assert store.query("SELECT sum(dead_messages) FROM archive_unreadable") in ([(None,)], [(0,)])
    assert found(store) == []


@pytest.mark.parametrize("missing", ["sequence_num = 3", "sequence_num <= 6"])
def test_where_rows_are_missing_no_key_of_the_group_is_lost(store: Table, missing: str) -> None:
    """What the disk brings back of a version that was not durable has to find its keys, and may have to stay."""
    due, _ = two_groups(store)
    store.now += KEEP_WIDTH
    store.send(due, 1)
    store.now += DAY
    store.send(due, 1)
    store.move(due)
    store.mover.table().delete(f"group_key = {due} AND {missing}")
    store.mover.execute("UPDATE archive_state SET unerased = 1")  # as a run leaves it that did not end
    store.purge(due, store.now)
    with pytest.raises(StartedError):
        store.clean()
    assert store.derivable(store.config.keys_path) == set(store.made)
    assert store.query("SELECT sum(dead_messages) FROM archive_unreadable") == [(0,)]
    assert told(store) == []


def test_a_run_that_ends_halfway_reports_what_it_has_made_unreadable(
    store: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    due, other = two_groups(store)
    for group in (due, other):
        store.purge(group, store.now - 12 * DAY)
    passed = 0

    def note(*values: Any) -> None:
        nonlocal passed
        noted(*values)
        passed += store.config.cleanup.max_run_time + 1

    noted = archive_unreadable._note
    with monkeypatch.context() as patch, closing(Engine(store.config, FakeClock(store.now))) as engine:
        patch.setattr(pacer, "time", SimpleNamespace(monotonic=lambda: monotonic() + passed, sleep=lambda _: None))
        patch.setattr(archive_unreadable, "_note", note)
        report = run.clean_up(engine)
    assert "max_run_time is over" in report.error
    assert told(store) == [("expired", 2, 2, 2)]
    assert (dict(+report.counts), report.groups_touched) == ({"expired": 2}, 1)
    assert store.clean() == {"expired": 2}
    store.expect_unreadable({(group, number) for group in (due, other) for number in (1, 2)})


def test_a_held_group_keeps_its_keys(store: Table) -> None:
    due, other = two_groups(store)
    with store.opened() as connection:
        holds.add(connection, due, store.group_ids[due], "name", "evidence", "operator root", store.now)
    store.purge(due, store.now - 12 * DAY)
    store.purge(other, store.now - 11 * DAY)
    assert store.clean() == {"expired": 4}
    assert {(due, 1), (due, 2)} <= store.derivable(store.config.keys_path)
    assert not {(other, number) for number in range(1, 5)} & store.derivable(store.config.keys_path)


def test_what_is_told_once_is_taken_from_what_goes() -> None:
    gone = Erased("expired", 15, 20, 90)
    assert erasures.divided(gone, None) == [gone]
    assert erasures.divided(gone, Told(10, 10)) == [Erased("expired", 5, 20, 90), Erased("overwritten", 10, 10, 90)]
    assert erasures.divided(gone, Told(15, 20))[0].messages == 0
    assert [each.messages for each in erasures.divided(gone, Told(16, 20))] == [0, 15]
