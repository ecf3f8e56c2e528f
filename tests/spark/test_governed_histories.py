"""Random histories of governance are as the plain model says; twins with other runs; what finds each planted fault."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from conclave.clock import FakeClock
from conclave.config.settings import Config
from tests.conftest import StartServer
from tests.support.cleaner import Cleaner
from tests.support.governance import History, differing
from tests.support.planted import ARCHIVED, HOT, TAKEN, TIMED
from tests.support.sample import chance, is_all, some
from tests.support.world import DisagreementError

STEPS = 70
ARCHIVED_STEPS = 45

MOST_HISTORIES = 12
"""Each planted fault is found in at most 12 histories."""

FAVOURITES = {
    "ignores_overrides_in_marks": "restart",
    "erases_a_second_early": "delete",
    "keeps_the_floor_at_a_join": "newcomer",
    "forgets_commits_below": "newcomer",
    "lets_a_mark_fall": "purge",
    "settles_as_of_the_start": "restart",
    "leaves_the_mode_quietly": "change_policy",
    "enters_the_mode_with_an_old_floor": "newcomer",
    "forgets_the_least_lifetime_of_deleted_groups": "delete",
    "forgets_holds_on_users": "hold",
    "explains_without_holds": "hold",
    "forgets_holds_on_users_in_the_archive": "hold",
    "erases_young_ones_in_the_archive": "delete",
    "waits_for_what_nobody_sees": "clean_up",
    "foretells_what_nobody_sees": "change_policy",
    "forgets_what_was_too_old": "restart",
    "foretells_what_was_taken_back": "change_policy",
    "waits_for_what_was_taken_back": "clean_up",
    "leaves_what_was_taken_back_in_the_archive": "take_back",
}
"""What happens more often in histories that are to find a fault."""


def seeds(everything: int, few: int, what: str) -> Sequence[int]:
    """The histories that are played: those of CONCLAVE_HISTORIES, which is FIRST:COUNT, or some.

    Each sample has others; everything is always the same.
    """
    if wanted := os.environ.get("CONCLAVE_HISTORIES"):
        first, _, count = wanted.partition(":")
        return range(int(first), int(first) + int(count or 1))
    if is_all():
        return range(1, everything + 1)
    return sorted(chance(what).sample(range(10**6), few))


@pytest.mark.parametrize("seed", seeds(100, 6, "histories of governance"), ids="sql-{}".format)
async def test_random_histories_are_as_the_model_says(
    start_server: StartServer, config: Config, clock: FakeClock, cleaner: Cleaner, seed: int
) -> None:
    await History(start_server, config, clock, cleaner, seed).play(STEPS)


@pytest.mark.system
@pytest.mark.parametrize("seed", seeds(100, 6, "histories of governance with timers"), ids="sql-{}".format)
async def test_random_histories_with_timers_are_as_the_model_says(
    start_server: StartServer, config: Config, clock: FakeClock, cleaner: Cleaner, seed: int
) -> None:
    await History(start_server, config, clock, cleaner, seed, timers=True).play(STEPS)


@pytest.mark.system
@pytest.mark.parametrize("seed", seeds(100, 6, "histories of governance with taking back"), ids="sql-{}".format)
async def test_random_histories_with_taking_back_are_as_the_model_says(
    start_server: StartServer, config: Config, clock: FakeClock, cleaner: Cleaner, seed: int
) -> None:
    """In every second one, some messages destroy themselves too."""
    history = History(start_server, config, clock, cleaner, seed, timers=bool(seed % 2), takes_back=True)
    await history.play(STEPS)


@pytest.mark.system
@pytest.mark.parametrize("seed", seeds(40, 3, "twins of governance"), ids="sql-{}".format)
async def test_random_twins_with_other_runs_serve_the_same(
    start_server: StartServer, config: Config, clock: FakeClock, cleaner: Cleaner, seed: int
) -> None:
    twins = []
    for extra in (0.05, 0.5):
        at = replace(config, database_path=str(Path(config.database_path).with_name(f"{extra}.db")))
        twins.append(History(start_server, at, clock, cleaner, seed, extra=extra, runs=False))
        await twins[-1].play(STEPS)
    assert list(differing(*twins)) == []


@pytest.mark.system
@pytest.mark.parametrize("seed", seeds(12, 1, "histories of governance in both tiers"), ids="spark-{}".format)
async def test_random_histories_of_both_tiers_are_as_the_model_says(
    start_server: StartServer, config: Config, clock: FakeClock, cleaner: Cleaner, seed: int
) -> None:
    await History(start_server, config, clock, cleaner, seed, tier="archive").play(ARCHIVED_STEPS)


@pytest.mark.system
@pytest.mark.parametrize("seed", seeds(12, 1, "histories with timers in both tiers"), ids="spark-{}".format)
async def test_random_histories_of_both_tiers_with_timers_are_as_the_model_says(
    start_server: StartServer, config: Config, clock: FakeClock, cleaner: Cleaner, seed: int
) -> None:
    history = History(start_server, config, clock, cleaner, seed, tier="archive", timers=True)
    await history.play(ARCHIVED_STEPS)


@pytest.mark.system
@pytest.mark.parametrize("seed", seeds(12, 1, "histories with taking back in both tiers"), ids="spark-{}".format)
async def test_random_histories_of_both_tiers_with_taking_back_are_as_the_model_says(
    start_server: StartServer, config: Config, clock: FakeClock, cleaner: Cleaner, seed: int
) -> None:
    history = History(start_server, config, clock, cleaner, seed, tier="archive", takes_back=True)
    await history.play(ARCHIVED_STEPS)


PLANTED = [
    *some([*HOT], 2, "planted faults of governance"),
    *some([*TIMED], 1, "planted faults of timers"),
    *some([*TAKEN], 1, "planted faults of taking back"),
]


@pytest.mark.system
@pytest.mark.parametrize("fault", PLANTED, ids="sql-{}".format)
async def test_a_planted_fault_is_found(
    start_server: StartServer,
    config: Config,
    clock: FakeClock,
    cleaner: Cleaner,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    favourite, timers, takes_back = FAVOURITES.get(fault, ""), fault in TIMED, fault in TAKEN
    for seed in range(1, MOST_HISTORIES + 1):
        folder = at(config, seed)
        history = History(start_server, folder, clock, cleaner, seed, favourite=favourite, timers=timers)
        history.takes_back = takes_back
        with monkeypatch.context() as patch:
            (HOT | TIMED | TAKEN)[fault](patch)
            try:
                await history.play(STEPS)
            except DisagreementError:
                return
    pytest.fail(f"{fault} was not found in {MOST_HISTORIES} histories")


@pytest.mark.system
@pytest.mark.skipif(not is_all(), reason="takes Spark two minutes")
@pytest.mark.parametrize("fault", [*ARCHIVED], ids="spark-{}".format)
async def test_a_fault_planted_in_the_archive_is_found(
    start_server: StartServer, config: Config, clock: FakeClock, cleaner: Cleaner, fault: str
) -> None:
    for seed in range(1, MOST_HISTORIES + 1):
        history = History(
            start_server, at(config, seed), clock, cleaner, seed, "archive", favourite=FAVOURITES[fault], plant=fault
        )
        history.takes_back = "taken_back" in fault
        try:
            await history.play(ARCHIVED_STEPS)
        except DisagreementError:
            return
    pytest.fail(f"{fault} was not found in {MOST_HISTORIES} histories")


def at(config: Config, seed: int) -> Config:
    """Return the configuration of a store in a folder of its own."""
    folder = Path(config.database_path).with_name(f"history-{seed}")
    folder.mkdir()
    return replace(config, database_path=str(folder / "hot.db"))
