"""Each redaction reaches every stream of its reader that is open, or else the next one; once."""

from collections.abc import Sequence

import pytest

from conclave.actions.timers import MAX_DELIVERED_AT_ONCE, Redaction, RedactionNotifier
from conclave.events import Event, Events, Stream

ALICE, BOB, GROUP = b"a" * 16, b"b" * 16, b"g" * 16


class Ear(Stream):
    """A listener that keeps what it is handed."""

    def __init__(self, user_id: bytes, session_id: int = 1, *, connected: bool = True) -> None:
        super().__init__(user_id, session_id)
        self.connected = connected

    @property
    def is_connected(self) -> bool:
        return self.connected and super().is_connected

    @property
    def numbers(self) -> list[int]:
        return [event.values["sequence_num"] for event in self._queue]

    def flush(self) -> None:
        """Nothing is taken."""

    def keep_alive(self) -> None:
        """There is nobody."""

    def finish(self) -> None:
        """The test looks at what waits."""

    def break_off(self) -> None:
        """There is no connection."""


def note(missed_id: int, user_id: bytes = ALICE, *, is_member: bool = True) -> Redaction:
    return Redaction(missed_id, user_id, GROUP, missed_id, is_member)


@pytest.fixture
async def events() -> Events:
    return Events()


@pytest.fixture
def notifier(events: Events) -> RedactionNotifier:
    notifier = RedactionNotifier(events)
    notifier.begin(0)
    return notifier


def begin(events: Events, notifier: RedactionNotifier, *missed: Redaction, published: Sequence[Redaction] = ()) -> Ear:
    """Have a stream begin as a request does. ``published``: after it has read ``missed``."""
    ear = Ear(ALICE, connected=False)
    events.add(ear)
    with notifier.opening(ear) as coming:
        notifier.publish(published)
        notifier.catch_up(coming, missed)
        ear.connected = True
        notifier.opened(coming)
    return ear


async def test_whoever_listens_hears_and_the_note_goes(events: Events, notifier: RedactionNotifier) -> None:
    first, second = begin(events, notifier), begin(events, notifier)
    notifier.publish([note(1), note(2, BOB)])
    assert (first.numbers, second.numbers, notifier.delivered) == ([1], [1], (1,))
    notifier.forget((1,))
    assert notifier.delivered == ()


async def test_who_did_not_listen_hears_with_the_next_stream_and_no_other(
    events: Events, notifier: RedactionNotifier
) -> None:
    notifier.publish([note(1)])
    assert begin(events, notifier, note(1)).numbers == [1]
    assert notifier.delivered == (1,)
    assert begin(events, notifier, note(1)).numbers == [], "the store has not learned of it yet"


async def test_notes_of_a_former_process_are_told(events: Events) -> None:
    notifier = RedactionNotifier(events)
    notifier.begin(5)
    assert begin(events, notifier, note(4), note(5)).numbers == [4, 5]


async def test_a_stream_that_begins_between_commit_and_publication_hears_it_once(
    events: Events, notifier: RedactionNotifier
) -> None:
    ear = begin(events, notifier, note(1))
    assert ear.numbers == [], "it is about to come"
    notifier.publish([note(1)])
    assert (ear.numbers, notifier.delivered) == ([1], (1,))


@pytest.mark.parametrize("reads", [True, False])
async def test_a_stream_that_is_told_before_it_begins_hears_it_once(
    events: Events, notifier: RedactionNotifier, *, reads: bool
) -> None:
    """It may have read the notes before or after the one was made; nobody else hears of it later."""
    notifier.publish([note(1)])
    missed = (note(1), note(2))[: 1 + reads]
    ear = begin(events, notifier, *missed, published=[note(2)])
    assert sorted(ear.numbers) == [1, 2]
    assert sorted(notifier.delivered) == [1, 2]


async def test_a_stream_hears_once_what_another_one_has_heard_and_the_store_knows(
    events: Events, notifier: RedactionNotifier
) -> None:
    """What it has read is older than that."""
    ear = Ear(ALICE, connected=False)
    for each in (Ear(ALICE), ear):
        events.add(each)
    with notifier.opening(ear) as coming:
        notifier.publish([note(1)])
        notifier.forget(notifier.delivered)
        notifier.catch_up(coming, [note(1)])
    assert ear.numbers == [1]


async def test_a_stream_is_not_told_what_was_heard_before_though_it_has_read_the_note(
    events: Events, notifier: RedactionNotifier
) -> None:
    """The store learns while it reads that another stream has heard."""
    events.add(Ear(ALICE))
    notifier.publish([note(1), note(2)])
    ear = Ear(ALICE, connected=False)
    events.add(ear)
    with notifier.opening(ear) as coming:
        notifier.forget((1,))
        notifier.catch_up(coming, [note(1), note(2)])
        notifier.opened(coming)
    assert (ear.numbers, notifier.delivered) == ([], (2,))
    assert coming.deleted == {1}


async def test_what_others_have_heard_takes_no_memory_for_a_stream_that_begins(
    events: Events, notifier: RedactionNotifier
) -> None:
    events.add(Ear(BOB))
    notifier.publish([note(1, BOB)])
    ear = Ear(ALICE, connected=False)
    events.add(ear)
    with notifier.opening(ear) as coming:
        notifier.forget(notifier.delivered)
    assert (coming.deleted, notifier.delivered) == (set(), ())


async def test_a_stream_that_fails_to_begin_does_not_count(events: Events, notifier: RedactionNotifier) -> None:
    """Its reader may never get what it was handed, and so hears of it again."""
    over, coming = Ear(ALICE), Ear(ALICE, connected=False)
    for each in (over, coming):
        events.add(each)
    over.end()
    with notifier.opening(coming) as followed:
        notifier.publish([note(1)])
        notifier.catch_up(followed, [note(1)])
    events.remove(coming)
    assert (over.numbers, coming.numbers, notifier.delivered) == ([], [1], ())
    assert begin(events, notifier, note(1)).numbers == [1]


async def test_a_stream_that_ends_before_it_begins_is_told_nothing(events: Events, notifier: RedactionNotifier) -> None:
    """So it is when the server stops, or the session ends, while a client connects."""
    notifier.publish([note(1)])
    ear = Ear(ALICE, connected=False)
    events.add(ear)
    with notifier.opening(ear) as coming:
        ear.end()
        notifier.publish([note(2)])
        notifier.catch_up(coming, [note(1), note(2)])
        notifier.opened(coming)
    assert (ear.numbers, notifier.delivered) == ([], ())


async def test_what_was_heard_is_noted_some_at_a_time(events: Events, notifier: RedactionNotifier) -> None:
    begin(events, notifier)
    notifier.publish([note(number) for number in range(1, MAX_DELIVERED_AT_ONCE + 4)])
    noted: list[int] = []
    while heard := notifier.delivered:
        assert len(heard) <= MAX_DELIVERED_AT_ONCE
        noted += heard
        notifier.forget(heard)
    assert sorted(noted) == list(range(1, MAX_DELIVERED_AT_ONCE + 4))


async def test_who_has_left_is_told_nothing_and_the_note_goes(events: Events, notifier: RedactionNotifier) -> None:
    notifier.publish([note(1)])
    assert begin(events, notifier, note(1, is_member=False)).numbers == []
    assert notifier.delivered == (1,)


async def test_readers_of_one_message_share_the_event(events: Events, notifier: RedactionNotifier) -> None:
    ears = [Ear(user_id) for user_id in (ALICE, BOB)]
    for each in ears:
        events.add(each)
    notifier.publish([Redaction(1, ALICE, GROUP, 7), Redaction(2, BOB, GROUP, 7)])
    handed: list[list[Event]] = [each.take()[1] for each in ears]
    assert handed[0][0] is handed[1][0]
