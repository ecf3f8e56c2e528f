"""Times to come in the archive: a clock that was ahead moved messages there, and was set right since.

Their groups are taken back into the hot store, and move again when they are old enough.
"""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from conclave import app_keys
from conclave.clock import FakeClock
from conclave.config.archive import ArchiveConfig
from conclave.config.cleanup import CleanupConfig
from conclave.config.settings import Config
from tests.conftest import StartServer
from tests.support.archive import span_of
from tests.support.archived import DAY, START, USERS, Store
from tests.support.cleaner import Cleaner
from tests.support.failpoints import CLOCK_POINTS, RESTORE_POINTS
from tests.support.sample import some

pytestmark = pytest.mark.system

HOUR, YEAR = 3600, 365 * DAY
FIRST = START + 9 * DAY
"""When the clock was right, before and after."""


@dataclass
class Ahead:
    """A store whose clock was a year ahead for three weeks, and was set right.

    ``timed`` is kept for two years, ``marked`` was for 20 days, ``dropped`` is deleted.
    """

    store: Store
    timed: int
    marked: int
    dropped: int

    def accept(self, failpoint: str = "") -> dict[str, Any]:
        """Accept the clock, and do a run."""
        return self.store.cleaner.try_run(
            self.store.config, FIRST, set_by=-YEAR - 21 * DAY, accept_clock=True, failpoint=failpoint
        )

    def expect_right(self) -> None:
        """What was shown is served and of now, what was hidden is gone, and the archive is whole."""
        store = self.store
        store.expect_served(shown(self))
        store.expect_erased({(self.marked, 1), (self.marked, 2), (self.dropped, 1)})
        store.expect_sound()
        assert store.verify()["differences"] == []
        for row in store.table().to_pylist():
            assert row["created_at"] <= FIRST
            assert row["span"] == span_of(row["lifetime"], row["created_at"])
        assert store.query("SELECT max(created_at) FROM messages") == [(FIRST,)]


def shown(ahead: Ahead) -> set[tuple[int, int]]:
    return {(ahead.timed, number) for number in range(1, 8)} | {(ahead.marked, number) for number in (3, 4)}


@pytest.fixture
def ahead(ahead_once: Ahead, tmp_path: Path) -> Ahead:
    return replace(ahead_once, store=ahead_once.store.copied(tmp_path / "store"))


@pytest.fixture(scope="module")
def ahead_once(tmp_path_factory: pytest.TempPathFactory, cleaner: Cleaner) -> Ahead:
    store = Store(tmp_path_factory.mktemp("ahead"), cleaner)
    timed, marked, dropped = store.add_group(2 * YEAR), store.add_group(20 * DAY), store.add_group()
    store.send(timed, 3)
    store.now = FIRST
    store.run()
    store.now += YEAR
    store.send(timed, 2, sender=USERS[1])
    store.send(marked, 2)
    store.send(dropped, 1)
    store.now += 5 * DAY
    store.send(timed, 2, is_commit=True)
    store.send(marked, 2)
    store.now += 8 * DAY
    assert store.run()["archived"] == 9
    store.now += 8 * DAY
    store.set_expiry(marked, -1)
    store.delete_group(dropped)
    store.now = FIRST
    return Ahead(store, timed, marked, dropped)


def test_accepting_the_clock_takes_groups_with_times_to_come_back(ahead: Ahead) -> None:
    report = ahead.accept()
    assert report["error"] == ""
    ahead.expect_right()
    assert ahead.accept()["error"] == ""
    ahead.expect_right()


@pytest.mark.parametrize("point", some((*RESTORE_POINTS, *CLOCK_POINTS), 2, "points of an acceptance"))
def test_wherever_it_fails_repeating_does_the_rest(ahead: Ahead, point: str) -> None:
    assert "disk I/O error" in ahead.accept(f"{point}=io")["error"]
    ahead.store.expect_served(shown(ahead))
    assert ahead.accept()["error"] == ""
    ahead.expect_right()


def test_a_move_under_way_is_finished_before_times_are_brought_back(ahead: Ahead) -> None:
    store = ahead.store
    store.now = FIRST + YEAR + 21 * DAY
    store.send(ahead.timed, 3)
    store.now += 8 * DAY
    assert "disk I/O error" in store.try_run("archive.appended=io")["error"]
    store.now = FIRST
    report = store.cleaner.try_run(store.config, FIRST, set_by=-YEAR - 29 * DAY, accept_clock=True)
    assert report["error"] == ""
    store.expect_served(shown(ahead) | {(ahead.timed, number) for number in (8, 9, 10)})
    store.expect_sound()
    assert store.verify()["differences"] == []


def test_what_is_damaged_in_the_archive_keeps_no_clock_from_being_accepted(ahead: Ahead) -> None:
    table = DeltaTable(str(ahead.store.config.archive_path))
    table.update({"checksum": "1"}, predicate=f"group_key = {ahead.timed} AND sequence_num = 4")
    assert ahead.accept()["error"] == ""
    ahead.expect_right()


async def test_what_only_a_wrong_clock_hid_in_the_archive_is_kept_and_served_once_it_is_accepted(
    config: Config, start_server: StartServer, clock: FakeClock, cleaner: Cleaner
) -> None:
    """The clock is ten days ahead in a group of a week, whose expiry is set to 0 after it."""
    config = replace(
        config,
        cleanup=CleanupConfig(engine="spark", disk_reserve=0),
        archive=ArchiveConfig(after=HOUR, margin=HOUR),
    )

    async def run(*, accept: bool = False) -> dict[str, Any]:
        await server.settle()
        report = await asyncio.to_thread(cleaner.try_run, config, clock.now(), clock.set_by, accept_clock=accept)
        assert report["error"] == ""
        return report

    async with start_server(config) as server:
        alice, bob = await server.users("alice", "bob")
        group = await alice.create_group("friends", expiry=7 * DAY)
        await bob.join(group)
        for _ in range(5):
            await alice.send(group)
        clock.advance(DAY)
        assert (await run())["archived"] == 5
        clock.set_wrong(10 * DAY)
        assert await alice.send(group) == 6
        for after, seen in ((0, [6]), (6, [])):
            assert await bob.numbers(group, after) == seen
        clock.set_wrong(-10 * DAY)
        await run(accept=True)
        await server.app[app_keys.CLOCK_WATCH].check()
        await alice.set_expiry(group, 0)
        assert await bob.numbers(group, 6) == []
        assert (await run())["deleted"].get("fetched", 0) == 0
        assert await bob.numbers(group) == [1, 2, 3, 4, 5, 6]
        assert (await run())["deleted"]["fetched"] == 6
        assert await bob.numbers(group) == []
