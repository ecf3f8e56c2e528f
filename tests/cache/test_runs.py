"""Runs: pieces in order, what expires in them, what they say no more, and how long they get."""

import random

import pytest

from conclave.cache import runs
from conclave.cache.runs import PIECE_BYTES, Run
from conclave.events import Stored
from conclave.retention.policy import FOREVER, KEEP, GroupPolicy
from conclave.store.messages import Piece
from conclave.store.visibility import Sight

POLICY = GroupPolicy(KEEP)


def pieces(*numbers: int, at: int = 100) -> list[Piece]:
    return [Piece(number, at + number, b"%d" % number) for number in numbers]


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


def seen(run: Run, after: int, hidden_before: int = 0) -> list[bytes] | None:
    first = run.first_after(after, Sight(0, hidden_before, FOREVER, POLICY, 0))
    return None if first is None else run.pieces[first:]


def expect_sound(run: Run) -> None:
    assert len(run.numbers) == len(run.times) == len(run.pieces)
    assert run.numbers == sorted(set(run.numbers))
    assert all(run.base < number <= run.end for number in run.numbers)
    assert run.size == sum(len(piece) + PIECE_BYTES for piece in run.pieces)
    assert run.oldest <= min(run.times, default=run.oldest)


def test_a_run_covers_what_follows_its_base_and_not_what_follows_its_end() -> None:
    run = Run(3, 3, 0, POLICY, write)
    run.extend(pieces(4, 6), 7, 0)
    assert [run.covers(after) for after in range(2, 9)] == [False, True, True, True, True, False, False]
    assert seen(run, 3) == [b"4", b"6"]
    assert seen(run, 5) == [b"6"]
    assert seen(run, 6) == []
    run.prepend(pieces(2), 1, 0)
    assert (run.base, run.end, seen(run, 1)) == (1, 7, [b"2", b"4", b"6"])
    expect_sound(run)


def test_what_expires_is_forgotten_and_what_comes_back_is_for_the_store_to_say() -> None:
    run = Run(0, 0, 0, POLICY, write)
    run.extend(pieces(1, 2, 3), 3, 0)
    assert seen(run, 0, 102) == [b"2", b"3"]
    assert run.pieces == [b"2", b"3"]
    expect_sound(run)
    assert seen(run, 0, 101) is None, "time went back"
    assert seen(run, 0, 104) == []
    assert (run.size, run.covers(0)) == (0, True)


def test_a_run_that_was_read_when_less_was_hidden_says_no_more_than_its_latest_part() -> None:
    run = Run(0, 0, 0, POLICY, write)
    run.extend(pieces(1, 2), 2, 50)
    run.extend(pieces(3), 3, 102)
    assert seen(run, 0, 101) is None
    assert seen(run, 0, 102) == [b"2", b"3"]


def test_a_run_loses_its_first_messages_once_it_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "RUN_BYTES", 3 * (PIECE_BYTES + 1))
    run = Run(0, 0, 0, POLICY, write)
    run.extend(pieces(1, 2, 3), 3, 0)
    assert run.base == 0
    run.extend(pieces(5), 6, 0)
    assert (run.base, run.end, seen(run, 1)) == (1, 6, [b"2", b"3", b"5"])
    assert not run.covers(0)
    run.prepend(pieces(1), 0, 0)
    assert (run.base, run.pieces) == (1, [b"2", b"3", b"5"]), "what was just read is what is lost"
    run.extend([Piece(7, 0, bytes(1000))], 7, 0)
    assert (run.base, run.pieces, run.size) == (7, [], 0), "one that is too long alone"
    assert not run.covers(6)
    expect_sound(run)


def test_what_was_sent_is_written_once_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(0, 0, 0, POLICY, write)
    run.extend(pieces(1), 1, 0)
    assert sum(run.send(Stored(1, number, b"", b"%d" % number, 100 + number)) for number in (2, 3)) == run.size - 161
    assert (run.end, run.pieces) == (3, [b"1"])
    assert seen(run, 1) == [b"2", b"3"]
    assert seen(run, 0, 103) == [b"3"]
    expect_sound(run)
    monkeypatch.setattr(runs, "RUN_BYTES", 3 * (PIECE_BYTES + 1))
    for number in range(4, 9):
        run.send(Stored(1, number, b"", b"%d" % number, 100 + number))
    assert (run.base, run.end, seen(run, 5, 103)) == (5, 8, [b"6", b"7", b"8"])
    expect_sound(run)


def test_random_runs_are_what_a_list_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "RUN_BYTES", 2_000)
    chance = random.Random(5)
    for _ in range(300):
        every = [Piece(n, chance.randint(0, 100), b"%d" % n) for n in range(150) if chance.random() < 0.7]
        run, hidden = Run(50, 50, 0, POLICY, write), 0

        def between(base: int, end: int, at: int, told: list[Piece] = every) -> list[Piece]:
            return [each for each in told if base < each.sequence_num <= end and each.created_at >= at]

        for _ in range(chance.randint(1, 12)):
            count = chance.randint(1, 6)
            if chance.random() < 0.6:
                run.extend(between(run.end, run.end + count, hidden), run.end + count, hidden)
            elif run.base >= count:
                run.prepend(between(run.base - count, run.base, hidden), run.base - count, hidden)
            hidden += chance.choice([0, 0, 0, 5])
            after = chance.randint(run.base, run.end)
            assert seen(run, after, hidden) == [each.piece for each in between(after, run.end, hidden)]
            expect_sound(run)
            assert run.size <= 2_000
