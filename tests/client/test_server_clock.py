"""What a client makes of a server's clock that leaps: hidden is what may have expired, erased what has."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from conclave.client import Client, PlaintextCodec, TimeCorrected
from conclave.client.history.pages import IncomingMessage
from conclave.client.history.server_clock import ANSWER_INTERVAL_SECONDS, CONFIRMING_ANSWERS, ServerClock
from conclave.client.membership import MembershipManager
from conclave.clock import FakeClock
from tests.client.test_history import ALICE, DAY, HOUR, Kept
from tests.client.test_sync import QUICK, Device
from tests.conftest import Running
from tests.support.client import PASSWORD
from tests.support.dating import DatingLink, dating_link
from tests.support.server import until


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    kept = Kept(tmp_path)
    kept.history.record_server_time(kept.clock.now())
    return kept


def knows_the_time(kept: Kept) -> bool:
    return kept.history.is_time_known


def hear_for_minutes(kept: Kept, shift: int, minutes: int) -> None:
    """A server that is wrong by ``shift`` answers once a minute."""
    for _ in range(minutes):
        kept.history.record_server_time(kept.clock.now() + shift)
        kept.clock.advance(ANSWER_INTERVAL_SECONDS)
        kept.history.enforce()


@pytest.mark.parametrize("shift", [10 * DAY, -10 * DAY])
@pytest.mark.parametrize("restarts", [False, True], ids=["", "restart"])
def test_a_glitch_of_the_servers_clock_erases_nothing_and_shows_nothing_expired(
    kept: Kept, shift: int, restarts: bool
) -> None:
    group = uuid4()
    kept.history.set_expiry(group, HOUR)
    old, new = kept.arrive(group), kept.arrive(group, created_at=kept.clock.now() + 1)
    kept.history.record_server_time(kept.clock.now() + shift)
    for _ in range(2):
        kept.history.enforce()
        assert kept.shown(group) == ([] if shift > 0 else [1, 2])
        if restarts:
            kept.history.close()
            kept.open()
    assert kept.found() == {old, new}
    kept.history.record_server_time(kept.clock.now())
    assert kept.history.take_reappeared()
    assert kept.shown(group) == [1, 2]
    kept.history.record_server_time(kept.clock.now() + shift)
    kept.clock.advance(HOUR + 2)
    assert kept.shown(group) == [], "what has expired is hidden, whichever time is right"
    kept.history.record_server_time(kept.clock.now())
    kept.history.enforce()
    assert kept.found() == set()


def test_a_leap_is_believed_once_it_was_confirmed_for_minutes_and_what_has_expired_by_it_is_erased(kept: Kept) -> None:
    group = uuid4()
    kept.history.set_expiry(group, DAY)
    number = kept.arrive(group)
    for _ in range(1_000):
        kept.history.record_server_time(kept.clock.now() + 10 * DAY)  # many answers of one moment are one
    hear_for_minutes(kept, 10 * DAY, CONFIRMING_ANSWERS - 1)
    assert kept.found() == {number}
    assert kept.history.needs_time
    kept.history.record_server_time(kept.clock.now() + 10 * DAY)
    assert knows_the_time(kept)
    assert kept.history.enforce() == [(group, 1)]
    assert kept.found() == set()


def test_a_machine_that_sleeps_in_a_glitch_has_not_confirmed_it(kept: Kept) -> None:
    group = uuid4()
    kept.history.set_expiry(group, 30 * DAY)
    kept.arrive(group)
    kept.history.record_server_time(kept.clock.now() + 40 * DAY)
    kept.clock.advance(2 * DAY)
    kept.history.record_server_time(kept.clock.now() + 40 * DAY)
    kept.history.enforce()
    kept.history.record_server_time(kept.clock.now())
    assert kept.shown(group) == [1]


def test_two_wrong_times_do_not_confirm_each_other(kept: Kept) -> None:
    group = uuid4()
    kept.history.set_expiry(group, DAY)
    number = kept.arrive(group)
    for turn in range(4 * CONFIRMING_ANSWERS):
        hear_for_minutes(kept, (10 if turn % 2 else 20) * DAY, 1)
    assert kept.found() == {number}


def test_a_right_answer_between_begins_the_doubt_anew(kept: Kept) -> None:
    group = uuid4()
    kept.history.set_expiry(group, DAY)
    number = kept.arrive(group)
    for _ in range(5):
        hear_for_minutes(kept, 10 * DAY, CONFIRMING_ANSWERS - 1)
        hear_for_minutes(kept, 0, 1)
    assert kept.found() == {number}
    assert kept.shown(group) == [1]


@pytest.mark.parametrize("days", [1, 30])
def test_a_laptop_that_was_suspended_for_days_forgets_at_once(kept: Kept, days: int) -> None:
    """Its steady clock goes on while it sleeps."""
    group = uuid4()
    kept.history.set_expiry(group, HOUR)
    kept.arrive(group)
    kept.clock.advance(days * DAY)
    assert kept.shown(group) == []
    kept.history.record_server_time(kept.clock.now() + 5)
    kept.history.enforce()
    assert knows_the_time(kept)
    assert kept.found() == set()


def test_where_the_steady_clock_stands_still_in_sleep_all_is_hidden_at_once_and_erased_within_minutes(
    kept: Kept,
) -> None:
    group = uuid4()
    kept.history.set_expiry(group, HOUR)
    old = kept.arrive(group)
    kept.clock.set_wrong(3 * DAY)  # the wall clock alone has gone on
    assert kept.shown(group) == []
    kept.history.record_server_time(kept.clock.now())
    new = kept.arrive(group, created_at=kept.clock.now())
    assert kept.shown(group) == [2], "what comes now is shown"
    assert kept.found() == {old, new}
    hear_for_minutes(kept, 0, CONFIRMING_ANSWERS + 1)
    assert kept.shown(group) == [2]
    assert kept.found() == {new}


def test_a_server_and_a_client_on_one_machine_whose_clock_leaps_lose_nothing(kept: Kept) -> None:
    group = uuid4()
    kept.history.set_expiry(group, HOUR)
    number = kept.arrive(group)
    kept.clock.set_wrong(10 * DAY)
    kept.history.record_server_time(kept.clock.now())
    kept.history.enforce()
    assert (kept.shown(group), kept.found()) == ([], {number})
    kept.clock.set_wrong(-10 * DAY)
    kept.history.record_server_time(kept.clock.now())
    assert kept.shown(group) == [1]


def test_after_a_reboot_the_wall_clock_is_the_witness(kept: Kept) -> None:
    group = uuid4()
    kept.history.set_expiry(group, HOUR)
    number = kept.arrive(group)
    kept.history.close()
    kept.clock.boot_id = "next"
    kept.clock.advance(60)
    kept.open()
    kept.history.record_server_time(kept.clock.now() + 10 * DAY)
    kept.history.enforce()
    assert (kept.shown(group), kept.found()) == ([], {number})
    kept.history.record_server_time(kept.clock.now())
    assert kept.shown(group) == [1]


def test_a_wall_clock_that_is_right_only_after_a_reboot_hides_nothing(kept: Kept) -> None:
    right = kept.clock.now()
    kept.clock.set_wrong(DAY)
    kept.history.record_server_time(right)
    kept.clock.boot_id = "next"
    kept.clock.set_wrong(-DAY)
    kept.clock.advance(10 * DAY)
    kept.history.record_server_time(right + 10 * DAY)
    assert knows_the_time(kept)


def test_no_time_is_no_leap(kept: Kept) -> None:
    group = uuid4()
    kept.history.set_expiry(group, HOUR)
    kept.arrive(group)
    kept.clock.advance(HOUR - 60)
    kept.history.record_server_time(None)
    assert not knows_the_time(kept)
    assert kept.shown(group) == [1]
    # Its clock is wrong, and so is when it says that it was created.
    kept.arrive(group, created_at=kept.clock.now() + 10 * DAY)
    kept.clock.advance(62)
    assert kept.shown(group) == [2]
    kept.history.record_server_time(kept.clock.now())
    assert knows_the_time(kept)
    kept.clock.advance(HOUR - 60)
    assert kept.shown(group) == [], "it has lived as long as the policy says, from its arrival on"


@pytest.mark.parametrize("seconds", [0, 30])
def test_what_came_with_a_wrong_time_ends_as_if_it_had_been_right(kept: Kept, seconds: int) -> None:
    group = uuid4()
    kept.history.set_expiry(group, HOUR)
    kept.history.record_server_time(kept.clock.now() + 10 * DAY)
    wrong = kept.clock.now() + 10 * DAY
    own = IncomingMessage(1, ALICE, b"own", wrong, seconds, is_own=True)
    other = IncomingMessage(2, ALICE, b"other", wrong, seconds)
    kept.history.store(group, 0, 2, [own, other])
    kept.history.read(group, 2)
    assert kept.shown(group) == [1, 2]
    kept.clock.advance(10)
    kept.history.record_server_time(kept.clock.now())
    assert kept.shown(group) == [1, 2]
    kept.clock.advance(18 if seconds else HOUR - 12)
    assert kept.shown(group) == [1, 2]
    kept.clock.advance(3)
    assert kept.shown(group) == []


def test_what_a_wrong_time_has_left_is_mended_later_if_the_file_could_not_be_written(kept: Kept) -> None:
    group = uuid4()
    kept.history.set_expiry(group, HOUR)
    kept.history.record_server_time(kept.clock.now() + 10 * DAY)
    kept.history.store(group, 0, 1, [IncomingMessage(1, ALICE, b"text", kept.clock.now() + 10 * DAY)])
    kept.clock.advance(10)
    kept.history._connection.execute("PRAGMA busy_timeout = 0")
    with closing(sqlite3.connect(kept.folder / "history.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            kept.history.record_server_time(kept.clock.now())
    kept.history.record_server_time(kept.clock.now())
    assert kept.shown(group) == [1]
    kept.clock.advance(HOUR)
    assert kept.shown(group) == []


def test_a_timer_that_runs_is_hidden_by_a_leap_and_goes_on_after_it(kept: Kept) -> None:
    group = uuid4()
    kept.arrive(group, seconds=600)
    kept.history.read(group, 1)
    kept.history.record_server_time(kept.clock.now() + DAY)
    kept.history.enforce()
    assert kept.shown(group) == []
    kept.clock.advance(60)
    kept.history.record_server_time(kept.clock.now())
    assert kept.shown(group) == [1]
    kept.clock.advance(541)
    assert kept.shown(group) == []


def test_a_server_that_was_ahead_when_it_was_heard_first_keeps_nothing_here_for_longer(tmp_path: Path) -> None:
    kept, group = Kept(tmp_path), uuid4()
    ahead = 10 * DAY
    kept.history.record_server_time(kept.clock.now() + ahead)
    kept.history.set_expiry(group, HOUR)
    kept.arrive(group, created_at=kept.clock.now() + ahead)
    kept.arrive(group, created_at=kept.clock.now() + ahead, seconds=1_800)
    kept.history.read(group, 2)
    assert kept.shown(group) == [1, 2]
    hear_for_minutes(kept, 0, CONFIRMING_ANSWERS + 1)
    assert kept.shown(group) == [1, 2]
    kept.clock.advance(1_800 - 60 * CONFIRMING_ANSWERS)
    kept.history.enforce()
    assert kept.shown(group) == [1], "the timer has ended"
    kept.clock.advance(1_800)
    kept.history.enforce()
    assert kept.found() == set()


def test_what_is_hidden_in_doubt_is_not_told_and_not_passed_over(kept: Kept) -> None:
    group, bob = uuid4(), uuid4()
    kept.history.set_expiry(group, HOUR)
    kept.arrive(group)
    kept.history.record_server_time(kept.clock.now() + DAY)
    kept.arrive(group, created_at=kept.clock.now() + DAY)
    assert kept.history.unhandled(group) == []
    assert len(kept.history.unread(group, bob)) == 1
    kept.history.record_server_time(kept.clock.now())
    assert [each.sequence_num for each in kept.history.unhandled(group)] == [1, 2]
    assert len(kept.history.unread(group, bob)) == 2


@pytest.mark.parametrize("shift", [9, -9])
def test_answers_that_come_late_are_no_doubt(shift: int) -> None:
    wall = FakeClock()
    clock = ServerClock(wall)
    clock.record_time(1_000)
    wall.advance(100)
    clock.record_time(1_100 + shift)
    assert clock.unconfirmed is None
    wall.advance(30 * DAY)
    clock.record_time(1_100 + 30 * DAY + 2_000)  # two clocks that do not go alike
    assert clock.unconfirmed is None


@pytest.fixture
async def link(running: Running) -> AsyncIterator[tuple[str, DatingLink]]:
    async with dating_link(running.url, running.clock.now) as made:
        yield made


class Dated(Device):
    """A device that goes by the dates of the server's answers."""

    async def _listen(self) -> None:
        async with self.sync:
            async for news in self.sync:
                self.told.append(news)
                self._more.set()


async def begun(running: Running, url: str, path: Path, stack: AsyncExitStack) -> tuple[Client, Dated, UUID]:
    """Return Alice, who has a group whose messages live for a day, and a device of Bob's, who is in it."""
    alice = await stack.enter_async_context(Client(running.url))
    await alice.register("alice", PASSWORD)
    await alice.login("alice", PASSWORD)
    group = await MembershipManager(alice, PlaintextCodec()).create("club")
    await alice.update_group(group, expiry=DAY, visibility="public")
    bob = Dated(running, "bob", alice.transport.written_in, running.clock, path)
    bob.client = Client(url, backoff=QUICK)
    stack.push_async_callback(bob.end)
    await bob.begin()
    await bob.client.join(group)
    await bob.client.external_join(group)
    await bob.connect()
    return alice, bob, group


async def test_a_glitch_while_two_talk_hides_and_brings_back(
    running: Running, link: tuple[str, DatingLink], tmp_path: Path
) -> None:
    url, dating = link
    async with AsyncExitStack() as stack:
        alice, bob, group = await begun(running, url, tmp_path / "bob.db", stack)
        await alice.send(group, b"before")
        await alice.send(group, b"burns", self_destruct_seconds=HOUR)
        await bob.hear_text("burns")
        dating.shift = 10 * DAY
        await alice.send(group, b"in the glitch")
        await until(lambda: bob.history.fetched_up_to(group) == 3)
        assert bob.shown(group) == []
        await bob.disconnect()
        await bob.connect()
        await until(lambda: not bob.history.is_time_known)
        assert bob.shown(group) == []
        dating.shift = 0
        bob.sync.request_fetch(group)
        await bob.hear_text("in the glitch")
        await bob.hear_a(TimeCorrected)
        assert bob.shown(group) == ["before", "burns", "in the glitch"]
        running.clock.advance(DAY + 1)
        assert bob.shown(group) == []


@pytest.mark.system
async def test_a_client_asks_by_itself_until_a_leap_is_confirmed(
    running: Running, link: tuple[str, DatingLink], tmp_path: Path
) -> None:
    url, dating = link
    async with AsyncExitStack() as stack:
        alice, bob, group = await begun(running, url, tmp_path / "bob.db", stack)
        await alice.send(group, b"before")
        await bob.hear_text("before")
        dating.shift = 10 * DAY
        bob.sync.request_fetch(group)
        await until(lambda: not bob.history.is_time_known)
        for _ in range(CONFIRMING_ANSWERS - 1):
            assert len(bob.history.senders(group)) == 1, "it is still here"
            running.clock.advance(ANSWER_INTERVAL_SECONDS)
            await until(lambda: not bob.history.needs_time)
        await bob.hear_a(TimeCorrected)
        await until(lambda: not bob.history.senders(group))


async def test_without_a_date_a_client_goes_on_from_the_last_one(
    running: Running, link: tuple[str, DatingLink], tmp_path: Path
) -> None:
    url, dating = link
    async with AsyncExitStack() as stack:
        alice, bob, group = await begun(running, url, tmp_path / "bob.db", stack)
        await alice.send(group, b"before", self_destruct_seconds=HOUR)
        await bob.hear_text("before")
        dating.shift = None
        await alice.send(group, b"after")
        await bob.hear_text("after")
        assert not bob.history.is_time_known
        assert bob.shown(group) == ["before", "after"]
        # What a server in doubt does not show need not be gone.
        numbers = bob.history.self_destructing(group)
        bob.client.fetch = _nothing  # type: ignore[method-assign]  # it hides all by its wrong clock
        [_ async for _ in bob.sync._mirror.refresh(group)]
        assert bob.history.self_destructing(group) == numbers == [1]
        running.clock.advance(DAY + 1)
        assert bob.shown(group) == []


async def _nothing(*_: object, **__: object) -> tuple[()]:
    return ()
