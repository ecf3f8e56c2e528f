"""Who hears what."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from conclave import events as events_module
from conclave.events import QUEUE_LIMIT, SLICE, Announcement, Event, Events, SessionEnded, Stream
from tests.support.server import until

ALICE, BOB = b"a" * 16, b"b" * 16


class Ear(Stream):
    """A listener that only notes: what it was handed, how often, and how the stream went."""

    def __init__(self, user_id: bytes, session_id: int, *, takes: bool = True) -> None:
        super().__init__(user_id, session_id)
        self.takes = takes
        self.heard: list[list[Event]] = []
        self.told: list[str] = []

    def flush(self) -> None:
        if self.takes and self._queue:
            self.heard.append(self.take()[1])

    def keep_alive(self) -> None:
        self.told.append("keep-alive")

    def finish(self) -> None:
        self.flush()
        self.told.append("end")

    def break_off(self) -> None:
        self.told.append("broken off")


@contextmanager
def listen(events: Events, user_id: bytes, session_id: int, *, takes: bool = False) -> Iterator[Ear]:
    ear = Ear(user_id, session_id, takes=takes)
    events.add(ear)
    try:
        yield ear
    finally:
        events.remove(ear)


def said(number: int, *recipients: bytes) -> list[Announcement]:
    return [Announcement(frozenset(recipients), Event("new_message", {"sequence_num": number}))]


def numbers(events: list[Event]) -> list[int]:
    return [event.values["sequence_num"] for event in events]


async def passes(count: int) -> None:
    """Let the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_each_stream_of_a_recipient_hears_an_event_and_nobody_else_does() -> None:
    events = Events()
    with listen(events, ALICE, 1) as phone, listen(events, ALICE, 2) as desktop, listen(events, BOB, 3) as bob:
        events.publish(said(1, ALICE))
        events.publish(said(2, ALICE, BOB))
        assert [numbers(each.take()[1]) for each in (phone, desktop, bob)] == [[1, 2], [1, 2], [2]]
    events.publish(said(3, ALICE))
    assert numbers(phone.take()[1]) == []
    assert not events._streams, "who no longer listens is forgotten"


async def test_a_slow_listener_loses_the_oldest_learns_how_many_and_delays_nobody() -> None:
    events = Events()
    with listen(events, ALICE, 1) as slow, listen(events, ALICE, 2, takes=True) as quick:
        for number in range(QUEUE_LIMIT + 3):
            events.publish(said(number, ALICE))
            await passes(1)
        lost, waiting = slow.take()
        assert (lost, numbers(waiting)) == (3, list(range(3, QUEUE_LIMIT + 3)))
        assert slow.take() == (0, [])
        assert [number for each in quick.heard for number in numbers(each)] == list(range(QUEUE_LIMIT + 3))


async def test_the_streams_of_a_session_end_with_it() -> None:
    events = Events()
    with listen(events, ALICE, 1) as ended, listen(events, ALICE, 2) as other:
        events.publish([SessionEnded(ALICE, 1)])
        assert (ended.ended, other.ended) == (True, False)
        events.end_all()
        assert other.ended


async def test_a_stream_is_told_once_that_it_ends() -> None:
    events = Events()
    with listen(events, ALICE, 1) as ear:
        events.publish([SessionEnded(BOB, 1), SessionEnded(ALICE, 2)])
        assert not ear.told
        events.publish([SessionEnded(ALICE, 1), SessionEnded(ALICE, 1)])
        assert ear.told == ["end"]


async def test_a_stream_that_begins_while_the_server_stops_ends_at_once() -> None:
    events = Events()
    events.end_all()
    with listen(events, ALICE, 1) as late:
        assert late.ended


def crowd(events: Events, count: int) -> tuple[list[bytes], list[Ear]]:
    """Have users listen, a stream each; return their ids and streams."""
    everybody = [n.to_bytes(16) for n in range(count)]
    ears = [Ear(user, n, takes=True) for n, user in enumerate(everybody)]
    for ear in ears:
        events.add(ear)
    return everybody, ears


async def test_news_for_many_go_in_slices_and_each_stream_keeps_its_order() -> None:
    events = Events()
    everybody, ears = crowd(events, 3 * SLICE)
    events.publish(said(1, *everybody))
    assert not any(ear.heard for ear in ears), "publishing itself writes nothing"
    await passes(1)
    assert sum(bool(ear.heard) for ear in ears) == SLICE
    quiet = next(ear for ear in ears if not ear.heard)
    first = next(ear for ear in ears if ear.heard)
    events.publish(said(2, quiet.user_id, first.user_id))
    await passes(1)
    assert [numbers(each) for each in first.heard] == [[1], [2]], "what few hear does not wait for all slices"
    await passes(3)
    assert [number for each in quiet.heard for number in numbers(each)] == [1, 2]
    assert all(numbers(ear.heard[0])[0] == 1 for ear in ears)


async def test_the_end_of_a_session_between_two_slices_comes_after_its_events() -> None:
    events = Events()
    everybody, ears = crowd(events, 3 * SLICE)
    events.publish(said(1, *everybody))
    await passes(1)
    waiting = next(ear for ear in ears if not ear.heard)
    events.publish([SessionEnded(waiting.user_id, waiting.session_id), *said(2, *everybody)])
    assert [numbers(each) for each in waiting.heard] == [[1]], "the last events come first, none after the end"
    assert waiting.told == ["end"]
    events.remove(waiting)
    await passes(8)
    assert [numbers(each) for each in waiting.heard] == [[1]]
    assert all([n for each in ear.heard for n in numbers(each)] == [1, 2] for ear in ears if ear is not waiting)


async def test_who_cannot_be_written_to_is_broken_off_and_keeps_nothing_from_others() -> None:
    class Faulty(Ear):
        def flush(self) -> None:
            raise ValueError("cannot be written")

    events = Events()
    faulty = Faulty(ALICE, 1)
    events.add(faulty)
    with listen(events, BOB, 2, takes=True) as bob:
        events.publish(said(1, ALICE, BOB))
        await passes(1)
        assert faulty.told == ["broken off"]
        assert numbers(bob.heard[0]) == [1]


async def test_all_streams_are_kept_alive_in_turn_and_their_sessions_kept() -> None:
    kept: list[int] = []
    events = Events(kept.append, keep_alive_seconds=0.2)
    with listen(events, ALICE, 1) as alice, listen(events, BOB, 2) as bob:
        assert alice.slot != bob.slot
        await until(lambda: len(alice.told) >= 3 and len(bob.told) >= 3)
        assert {*alice.told, *bob.told} == {"keep-alive"}
        assert {*kept} == {1, 2}
        assert abs(kept.count(1) - kept.count(2)) <= 1
    count = len(kept)
    assert events.wheel._timer is None, "nobody is waited for"
    await asyncio.sleep(0.05)
    assert len(kept) == count


async def test_the_last_stream_that_goes_lets_a_stop_go_on() -> None:
    events = Events()
    await events.wait_ended()
    events = Events()
    ear = Ear(ALICE, 1)
    events.add(ear)
    waiting = asyncio.ensure_future(events.wait_ended())
    await passes(3)
    assert ear.ended
    assert not waiting.done()
    events.remove(ear)
    events.remove(ear)
    await waiting


def test_the_limits_are_those_of_the_protocol() -> None:
    assert events_module.KEEP_ALIVE_SECONDS <= 10
    assert QUEUE_LIMIT == 1024
