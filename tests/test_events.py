"""Who hears what."""

from conclave.events import QUEUE_LIMIT, Announcement, Ending, Event, Events

ALICE, BOB = b"a" * 16, b"b" * 16


def said(number: int, *recipients: bytes) -> list[Announcement]:
    return [Announcement(frozenset(recipients), Event("new_message", {"sequence_num": number}))]


def numbers(events: list[Event]) -> list[int]:
    return [event.values["sequence_num"] for event in events]


def test_each_stream_of_a_recipient_hears_an_event_and_nobody_else_does() -> None:
    events = Events()
    with events.listen(ALICE, 1) as phone, events.listen(ALICE, 2) as desktop, events.listen(BOB, 3) as bob:
        events.publish(said(1, ALICE))
        events.publish(said(2, ALICE, BOB))
        assert [numbers(each.take()[1]) for each in (phone, desktop, bob)] == [[1, 2], [1, 2], [2]]
    events.publish(said(3, ALICE))
    assert numbers(phone.take()[1]) == []
    assert not events._streams, "who no longer listens is forgotten"


def test_a_slow_listener_loses_the_oldest_learns_how_many_and_delays_nobody() -> None:
    events = Events()
    with events.listen(ALICE, 1) as slow:
        for number in range(QUEUE_LIMIT + 3):
            events.publish(said(number, ALICE))
        lost, waiting = slow.take()
        assert (lost, numbers(waiting)) == (3, list(range(3, QUEUE_LIMIT + 3)))
        assert slow.take() == (0, [])


def test_the_streams_of_a_session_end_with_it() -> None:
    events = Events()
    with events.listen(ALICE, 1) as ended, events.listen(ALICE, 2) as other:
        events.publish([Ending(ALICE, 1)])
        assert (ended.ended, other.ended) == (True, False)
        events.end_all()
        assert other.ended
