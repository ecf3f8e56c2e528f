"""Who hears what."""

from conclave.events import QUEUE_LIMIT, Event, Events

ALICE, BOB = b"a" * 16, b"b" * 16


def event(number: int) -> Event:
    return Event("invite_declined", number.to_bytes(16), BOB)


def test_each_listener_of_a_user_hears_what_is_addressed_to_that_user() -> None:
    events = Events()
    with events.listen(ALICE) as phone, events.listen(ALICE) as desktop, events.listen(BOB) as bob:
        events.publish(ALICE, event(1))
        assert [phone.get_nowait(), desktop.get_nowait()] == [event(1), event(1)]
        assert bob.empty()
    events.publish(ALICE, event(2))
    assert phone.empty()
    assert not events._listeners, "who no longer listens is forgotten"


def test_a_slow_listener_loses_the_oldest_and_delays_nobody() -> None:
    events = Events()
    with events.listen(ALICE) as slow:
        for number in range(QUEUE_LIMIT + 3):
            events.publish(ALICE, event(number))
        assert slow.qsize() == QUEUE_LIMIT
        assert slow.get_nowait() == event(3)
