"""Cached ranges: pieces in order, what expires in them, what they say no more, and how long they get."""

import random

import pytest

from conclave.cache import ranges
from conclave.cache.ranges import PIECE_BYTES, CachedRange
from conclave.events import MessageStored
from conclave.retention.policy import FOREVER, KEEP, GroupPolicy
from conclave.retention.visibility import Visibility
from conclave.store.resources.messages import EncodedMessage

POLICY = GroupPolicy(KEEP)


def pieces(*numbers: int, at: int = 100) -> list[EncodedMessage]:
    return [EncodedMessage(number, at + number, b"%d" % number) for number in numbers]


def write(
    sequence_num: int,
    sender_id: bytes,
    body: bytes,
    created_at: int,
    expires_at: int,
    self_destruct_seconds: int = 0,
    *,
    redacted: bool = False,
) -> bytes:
    return body


def seen(cached: CachedRange, after: int, hidden_before: int = 0) -> list[bytes] | None:
    first = cached.first_after(after, Visibility(0, hidden_before, FOREVER, POLICY, 0))
    return None if first is None else cached.pieces[first:]


def expect_sound(cached: CachedRange) -> None:
    assert len(cached.numbers) == len(cached.times) == len(cached.pieces)
    assert cached.numbers == sorted(set(cached.numbers))
    assert all(cached.base < number <= cached.end for number in cached.numbers)
    assert cached.size == sum(len(piece) + PIECE_BYTES for piece in cached.pieces)
    assert cached.oldest <= min(cached.times, default=cached.oldest)


def test_a_run_covers_what_follows_its_base_and_not_what_follows_its_end() -> None:
    cached = CachedRange(3, 3, 0, POLICY, write)
    cached.extend(pieces(4, 6), 7, 0)
    assert [cached.covers(after) for after in range(2, 9)] == [False, True, True, True, True, False, False]
    assert seen(cached, 3) == [b"4", b"6"]
    assert seen(cached, 5) == [b"6"]
    assert seen(cached, 6) == []
    cached.prepend(pieces(2), 1, 0)
    assert (cached.base, cached.end, seen(cached, 1)) == (1, 7, [b"2", b"4", b"6"])
    expect_sound(cached)


def test_what_expires_is_forgotten_and_what_comes_back_is_for_the_store_to_say() -> None:
    cached = CachedRange(0, 0, 0, POLICY, write)
    cached.extend(pieces(1, 2, 3), 3, 0)
    assert seen(cached, 0, 102) == [b"2", b"3"]
    assert cached.pieces == [b"2", b"3"]
    expect_sound(cached)
    assert seen(cached, 0, 101) is None, "time went back"
    assert seen(cached, 0, 104) == []
    assert (cached.size, cached.covers(0)) == (0, True)


def test_a_run_that_was_read_when_less_was_hidden_says_no_more_than_its_latest_part() -> None:
    cached = CachedRange(0, 0, 0, POLICY, write)
    cached.extend(pieces(1, 2), 2, 50)
    cached.extend(pieces(3), 3, 102)
    assert seen(cached, 0, 101) is None
    assert seen(cached, 0, 102) == [b"2", b"3"]


def test_a_run_loses_its_first_messages_once_it_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "RANGE_BYTES", 3 * (PIECE_BYTES + 1))
    cached = CachedRange(0, 0, 0, POLICY, write)
    cached.extend(pieces(1, 2, 3), 3, 0)
    assert cached.base == 0
    cached.extend(pieces(5), 6, 0)
    assert (cached.base, cached.end, seen(cached, 1)) == (1, 6, [b"2", b"3", b"5"])
    assert not cached.covers(0)
    cached.prepend(pieces(1), 0, 0)
    assert (cached.base, cached.pieces) == (1, [b"2", b"3", b"5"]), "what was just read is what is lost"
    cached.extend([EncodedMessage(7, 0, bytes(1000))], 7, 0)
    assert (cached.base, cached.pieces, cached.size) == (7, [], 0), "one that is too long alone"
    assert not cached.covers(6)
    expect_sound(cached)


def test_what_was_sent_is_written_once_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    cached = CachedRange(0, 0, 0, POLICY, write)
    cached.extend(pieces(1), 1, 0)
    assert (
        sum(cached.send(MessageStored(1, number, b"", b"%d" % number, 100 + number)) for number in (2, 3))
        == cached.size - 161
    )
    assert (cached.end, cached.pieces) == (3, [b"1"])
    assert seen(cached, 1) == [b"2", b"3"]
    assert seen(cached, 0, 103) == [b"3"]
    expect_sound(cached)
    monkeypatch.setattr(ranges, "RANGE_BYTES", 3 * (PIECE_BYTES + 1))
    for number in range(4, 9):
        cached.send(MessageStored(1, number, b"", b"%d" % number, 100 + number))
    assert (cached.base, cached.end, seen(cached, 5, 103)) == (5, 8, [b"6", b"7", b"8"])
    expect_sound(cached)


def test_random_runs_are_what_a_list_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "RANGE_BYTES", 2_000)
    chance = random.Random(5)
    for _ in range(300):
        every = [EncodedMessage(n, chance.randint(0, 100), b"%d" % n) for n in range(150) if chance.random() < 0.7]
        cached, hidden = CachedRange(50, 50, 0, POLICY, write), 0

        def between(base: int, end: int, at: int, told: list[EncodedMessage] = every) -> list[EncodedMessage]:
            return [each for each in told if base < each.sequence_num <= end and each.created_at >= at]

        for _ in range(chance.randint(1, 12)):
            count = chance.randint(1, 6)
            if chance.random() < 0.6:
                cached.extend(between(cached.end, cached.end + count, hidden), cached.end + count, hidden)
            elif cached.base >= count:
                cached.prepend(between(cached.base - count, cached.base, hidden), cached.base - count, hidden)
            hidden += chance.choice([0, 0, 0, 5])
            after = chance.randint(cached.base, cached.end)
            assert seen(cached, after, hidden) == [each.piece for each in between(after, cached.end, hidden)]
            expect_sound(cached)
            assert cached.size <= 2_000
