"""What the server remembers is what the store says: random histories, and what each planted fault does to them."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conclave import app_keys
from conclave.actions.messages import MessageFetcher
from conclave.cache import freshness, groups, ranges
from conclave.cache.groups import FetchedPage
from conclave.clock import FakeClock
from conclave.config.archive import ArchiveConfig
from conclave.config.cleanup import CleanupConfig
from conclave.config.settings import Config
from conclave.events import MessageStored, News
from conclave.retention.policy import FOREVER, GroupPolicy
from conclave.retention.visibility import Visibility
from conclave.store import invalidation
from conclave.store.invalidation import Invalidated
from conclave.store.resources.groups import GroupRow
from conclave.store.resources.messages import MessagePage
from tests.conftest import Running, StartServer
from tests.support.alone import once
from tests.support.cleaner import Cleaner
from tests.support.histories import History
from tests.support.sample import amount, is_all, some
from tests.support.world import DisagreementError

HOUR, DAY = 3600, 86_400
STEPS = amount(60, 25)

MOST_HISTORIES = 10
"""Each planted fault is found in at most 10 histories."""


@pytest.fixture
def config(config: Config) -> Config:
    return replace(config, cleanup=CleanupConfig(engine="sql", disk_reserve=0))


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have so little room that everything is forgotten again and again."""
    monkeypatch.setattr(groups, "MAX_BYTES", 9_000)
    monkeypatch.setattr(groups, "MAX_RANGES", 2)
    monkeypatch.setattr(ranges, "RANGE_BYTES", 1_500)
    monkeypatch.setattr(freshness, "MAX_SESSIONS", 2)
    monkeypatch.setattr(groups, "MAX_MEMBERS", 4)


async def play(start_server: StartServer, config: Config, clock: FakeClock, cleaner: Cleaner, seed: int) -> History:
    world = History(start_server, config, clock, cleaner, seed)
    await world.play(STEPS)
    return world


@pytest.mark.system
@pytest.mark.parametrize("seed", some(range(1, 41), 2, "histories of memory"), ids="sql-{}".format)
async def test_answers_are_the_stores(
    start_server: StartServer, config: Config, clock: FakeClock, cleaner: Cleaner, seed: int
) -> None:
    world = await play(start_server, config, clock, cleaner, seed)
    assert world.from_memory > 4 * STEPS, "or nothing was proved"


@pytest.mark.system
@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize("seed", some(range(41, 61), 2, "histories of little memory"), ids="sql-{}".format)
async def test_answers_are_the_stores_with_little_memory(
    start_server: StartServer, config: Config, clock: FakeClock, cleaner: Cleaner, seed: int
) -> None:
    await play(start_server, config, clock, cleaner, seed)


@pytest.mark.skipif(not is_all(), reason="takes Spark half a minute")
@pytest.mark.parametrize("seed", [102, 103])
async def test_answers_are_the_stores_beside_real_moves(
    start_server: StartServer, config: Config, clock: FakeClock, cleaner: Cleaner, seed: int
) -> None:
    """Runs of Spark move messages to the archive; nothing else does here."""
    archive = ArchiveConfig(after=DAY, margin=HOUR)
    config = replace(config, cleanup=CleanupConfig(engine="spark", disk_reserve=0), archive=archive)
    history = History(start_server, config, clock, cleaner, seed)
    history.favourite = "clean_up"
    await history.play(30)
    assert history.archived > 0


Plant = Callable[[pytest.MonkeyPatch, Running], None]


def dropped(*triggers: str) -> Plant:
    def plant(_: pytest.MonkeyPatch, running: Running) -> None:
        for trigger in triggers:
            once(running.config.database, f"DROP TRIGGER IF EXISTS {trigger}")

    return plant


def no_look(patch: pytest.MonkeyPatch, running: Running) -> None:
    patch.setattr(running.app[app_keys.FRESHNESS], "refresh", running.app[app_keys.CLOCK].moment)


def no_since(patch: pytest.MonkeyPatch, running: Running) -> None:
    patch.setattr(running.app[app_keys.FRESHNESS], "since", Invalidated)


def deaf(patch: pytest.MonkeyPatch, running: Running) -> None:
    patch.setattr(running.app[app_keys.GROUPS], "add_news", lambda _: None)


def hears_one_less(patch: pytest.MonkeyPatch, running: Running) -> None:
    def hear_all_but_the_last(news: list[News]) -> None:
        stored = [each for each in news if isinstance(each, MessageStored)]
        hear(stored[:-1] if len(stored) > 1 else stored)

    hear = running.app[app_keys.GROUPS].add_news
    patch.setattr(running.app[app_keys.GROUPS], "add_news", hear_all_but_the_last)


def any_last_number(patch: pytest.MonkeyPatch, running: Running) -> None:
    def remember(page: MessagePage, *rest: Any) -> Any:
        patch.setattr(running.app[app_keys.FRESHNESS], "last_seq", lambda _: page.member.group.last_seq)
        return told(page, *rest)

    told = running.app[app_keys.GROUPS].add_page
    patch.setattr(running.app[app_keys.GROUPS], "add_page", remember)


def sees_everything(patch: pytest.MonkeyPatch, _: Running) -> None:
    def view(group: GroupRow, policy: GroupPolicy, _: int) -> Visibility:
        return Visibility(group.gone_below, 0, FOREVER, policy, 0)

    patch.setattr(groups, "visibility", SimpleNamespace(of_cached_group=view))
    patch.setattr(ranges.CachedRange, "first_after", lambda run, after, _: bisect_right(run.numbers, after))


def forgets_what_it_hid(patch: pytest.MonkeyPatch, _: Running) -> None:
    first_after = ranges.CachedRange.first_after

    def late(run: ranges.CachedRange, after: int, view: Visibility) -> int | None:
        return first_after(run, after, view._replace(hidden_before=max(run.hidden_before, view.hidden_before)))

    patch.setattr(ranges.CachedRange, "first_after", late)


def keeps_old_ends(patch: pytest.MonkeyPatch, running: Running) -> None:
    patch.setattr(running.app[app_keys.SESSIONS], "drop_extended", lambda _: None)


def knows_old_members(patch: pytest.MonkeyPatch, _: Running) -> None:
    patch.setattr(groups.Recipients, "catch_up", lambda *_: None)


def knows_no_burst(patch: pytest.MonkeyPatch, _: Running) -> None:
    collect = invalidation.collect

    def partly(touch: int, rows: Any) -> Invalidated | None:
        found = collect(touch, rows)
        is_said = any(row[1] is None and row[2] is None for row in rows)
        return replace(found, everything=is_said) if found else None

    patch.setattr(invalidation, "collect", partly)


def confirms_only_here(patch: pytest.MonkeyPatch, _: Running) -> None:
    async def confirm(_: MessageFetcher, fetched: FetchedPage, **_more: Any) -> None:
        fetched.reader.watermark = fetched.up_to

    patch.setattr(MessageFetcher, "confirm", confirm)


def shortens_the_wrong_end(patch: pytest.MonkeyPatch, _: Running) -> None:
    shorten = ranges.CachedRange._trim

    def keep_base(run: ranges.CachedRange) -> None:
        base = run.base
        shorten(run)
        run.base = base

    patch.setattr(ranges.CachedRange, "_trim", keep_base)


def joins_what_does_not_follow(patch: pytest.MonkeyPatch, _: Running) -> None:
    add = groups._add

    def careless(known: Any, read: ranges.CachedRange, *rest: Any) -> None:
        for _, run in known.ranges:
            run.base = min(run.base, read.base)
        add(known, read, *rest)

    patch.setattr(groups, "_add", careless)


def at_hand_one_early(patch: pytest.MonkeyPatch, _: Running) -> None:
    read_cached = MessageFetcher.read_cached

    def later(
        self: MessageFetcher, group_id: bytes, user_id: bytes, after: int, *rest: Any, **more: Any
    ) -> FetchedPage | None:
        return read_cached(self, group_id, user_id, after + 1, *rest, **more)

    patch.setattr(MessageFetcher, "read_cached", later)


def at_hand_unnoted(patch: pytest.MonkeyPatch, _: Running) -> None:
    def read_cached(self: MessageFetcher, *args: Any, **_: Any) -> FetchedPage | None:
        known = self._groups.page(*args[:5])
        return known._replace(up_to=0, resumed=None) if known else None

    patch.setattr(MessageFetcher, "read_cached", read_cached)


def at_hand_for_a_while(patch: pytest.MonkeyPatch, _: Running) -> None:
    """What was at hand once is so until there is something else."""
    given: dict[Any, FetchedPage] = {}
    read_cached = MessageFetcher.read_cached

    def again(self: MessageFetcher, *args: Any, **more: Any) -> FetchedPage | None:
        found = read_cached(self, *args, **more)
        if found is not None:
            given[args[:5]] = found
        return given.get(args[:5])

    patch.setattr(MessageFetcher, "read_cached", again)


FAULTS: dict[str, Plant] = {
    "group_changed": dropped("group_changed"),
    "member_added": dropped("member_added"),
    "member_removed": dropped("member_removed"),
    "group_removed": dropped("group_removed", "member_removed"),  # one of both is enough for a group that is deleted
    "session_removed": dropped("session_removed"),
    "account_removed": dropped("account_removed"),
    **{
        plant.__name__: plant
        for plant in (
            *(no_look, no_since, deaf, hears_one_less, any_last_number, sees_everything, forgets_what_it_hid),
            *(keeps_old_ends, knows_old_members, knows_no_burst, confirms_only_here, joins_what_does_not_follow),
            *(at_hand_one_early, at_hand_unnoted, at_hand_for_a_while),
        )
    },
}
FAVOURITES = {
    "member_added": "come_or_go",
    "account_removed": "delete",
    "no_since": "meet_midway",
    "any_last_number": "meet_midway",
    "forgets_what_it_hid": "wrong_clock",
    "keeps_old_ends": "to_a_sessions_end",
    "knows_no_burst": "burst",
}
"""What happens more often in histories that are to find a fault."""

TIGHT_FAULTS: dict[str, Plant] = {shortens_the_wrong_end.__name__: shortens_the_wrong_end}


@pytest.mark.parametrize("fault", some([*FAULTS, *TIGHT_FAULTS], 2, "planted faults"), ids="sql-{}".format)
async def test_a_planted_fault_is_found(
    start_server: StartServer,
    config: Config,
    clock: FakeClock,
    cleaner: Cleaner,
    fault: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if fault in TIGHT_FAULTS:
        request.getfixturevalue("tight")
    for seed in range(1, MOST_HISTORIES + 1):
        with monkeypatch.context() as patch:
            world = History(start_server, at(config, seed), clock, cleaner, seed)
            world.favourite = FAVOURITES.get(fault, "")
            world.plant = partial((FAULTS | TIGHT_FAULTS)[fault], patch)
            try:
                await world.play(60)
            except DisagreementError:
                return
    pytest.fail(f"{fault} was not found in {MOST_HISTORIES} histories")


def at(config: Config, seed: int) -> Config:
    """Return the configuration of a store in a folder of its own."""
    folder = Path(config.database_path).with_name(f"history-{seed}")
    folder.mkdir()
    return replace(config, database_path=str(folder / "hot.db"))
