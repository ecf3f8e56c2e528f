"""The local history forgets what the policy in force forbids, in every file that it has."""

import os
import pickle
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings, strategies as st

from conclave.client import History, HistoryError, private_file
from conclave.client.history import bodies, pages
from conclave.client.history.pages import IncomingMessage, TimeBounds, ensure_group
from conclave.client.history.server_clock import ServerClock
from conclave.clock import FakeClock
from tests.support import sample
from tests.support.forensics import Search

ALICE = uuid4()
HOUR, DAY, YEAR = 3_600, 86_400, 31_536_000


class Kept:
    """A history on a file, whose texts can be found byte by byte."""

    def __init__(self, folder: Path, *, keep_after_fetch: int | None = None) -> None:
        self.folder = folder
        self.search = Search()
        self.clock = FakeClock()
        self.keep = keep_after_fetch
        self.sent = 0
        self.open()

    def open(self) -> None:
        self.history = History(self.folder / "history.db", keep_after_fetch=self.keep, clock=self.clock)
        self.history.claim("somebody")
        self.history._connection.execute("PRAGMA synchronous = OFF")  # no power failure here, and much faster

    def arrive(self, group: UUID, *, seconds: int = 0, created_at: int | None = None, size: int = 200) -> int:
        """Store a message; return the number of its body, which the search knows it by."""
        self.sent += 1
        after = self.history.fetched_up_to(group)
        created = self.clock.now() if created_at is None else created_at
        arrived = IncomingMessage(after + 1, ALICE, self.search.body(self.sent, size), created, seconds)
        assert self.history.store(group, after, after + 1, [arrived])
        return self.sent

    def shown(self, group: UUID) -> list[int]:
        return [each.sequence_num for each in self.history.messages(group)]

    def found(self) -> set[int]:
        return self.search.numbers_in(self.folder)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def test_expired_messages_are_hidden_at_once_and_gone_from_the_files(kept: Kept) -> None:
    group, other = uuid4(), uuid4()
    kept.history.set_expiry(group, HOUR)
    first, second = kept.arrive(group), kept.arrive(other)
    kept.clock.advance(10)
    third = kept.arrive(group)
    kept.clock.advance(HOUR - 10)
    assert kept.shown(group) == [1, 2]
    kept.clock.advance(1)
    assert kept.shown(group) == [2], "hidden before anything is erased"
    assert kept.found() == {first, second, third}
    assert kept.history.enforce() == [(group, 1)]
    assert kept.found() == {second, third}
    assert kept.shown(other) == [1]
    kept.history.close()
    assert kept.found() == {second, third}


def test_a_policy_holds_for_what_arrived_under_an_older_one(kept: Kept) -> None:
    group = uuid4()
    number = kept.arrive(group, created_at=kept.clock.now() - DAY)
    assert kept.history.set_expiry(group, HOUR)
    assert not kept.history.set_expiry(group, HOUR)
    assert kept.shown(group) == []
    assert kept.history.set_expiry(group, -1)
    kept.history.set_expiry(group, HOUR)
    kept.history.enforce()
    kept.history.set_expiry(group, -1)
    assert kept.shown(group) == [], "what was erased does not come back"
    assert number not in kept.found()


def test_with_delete_after_fetch_a_message_keeps_the_lifetime_that_it_had(kept: Kept) -> None:
    group = uuid4()
    kept.history.set_expiry(group, HOUR)
    counting = kept.arrive(group)
    ends = kept.history.messages(group)[0].gone_at
    kept.history.set_expiry(group, 0)
    later = kept.arrive(group)
    kept.history.close()
    kept.open()
    assert [each.gone_at for each in kept.history.messages(group)] == [ends, None]
    kept.clock.advance(HOUR + 1)
    kept.history.enforce()
    assert kept.shown(group) == [2]
    assert kept.found() & {counting, later} == {later}
    kept.history.set_expiry(group, DAY)
    kept.history.set_expiry(group, -1)
    assert [each.gone_at for each in kept.history.messages(group)] == [None], "the server keeps it too"


def test_what_has_expired_when_it_arrives_is_not_stored_but_not_fetched_again(kept: Kept) -> None:
    group = uuid4()
    kept.history.set_expiry(group, HOUR)
    kept.arrive(group, created_at=kept.clock.now() - HOUR - 1)
    assert kept.found() == set()
    assert kept.history.fetched_up_to(group) == 1


@pytest.mark.parametrize("keep", [None, 0, HOUR])
def test_in_a_delete_after_fetch_group_the_users_own_option_decides(tmp_path: Path, keep: int | None) -> None:
    kept = Kept(tmp_path, keep_after_fetch=keep)
    group, normal = uuid4(), uuid4()
    kept.history.set_expiry(group, 0)
    kept.arrive(group, created_at=kept.clock.now() - YEAR)
    kept.arrive(normal)
    assert kept.shown(group) == [1]
    kept.clock.advance(1 if not keep else keep + 1)
    kept.history.enforce()
    assert kept.shown(group) == ([1] if keep is None else [])
    assert kept.shown(normal) == [1]


def test_another_option_holds_from_the_next_start(kept: Kept) -> None:
    group = uuid4()
    kept.history.set_expiry(group, 0)
    kept.arrive(group)
    kept.clock.advance(DAY)
    kept.history.close()
    kept.keep = HOUR
    kept.open()
    assert kept.shown(group) == []
    assert kept.found() == set()


def test_a_timer_runs_from_reading_on_and_nothing_changes_it(kept: Kept) -> None:
    group = uuid4()
    timed, other = kept.arrive(group, seconds=60), kept.arrive(group)
    kept.clock.advance(YEAR)
    assert kept.shown(group) == [1, 2], "nobody has read it"
    kept.history.read(group, 1)
    assert kept.history.unreported_reads() == {group: 1}
    kept.history.mark_reported(group, 1)
    assert kept.history.unreported_reads() == {}
    kept.clock.advance(59)
    kept.history.read(group, 2)
    assert kept.shown(group) == [1, 2]
    kept.clock.advance(1)
    assert kept.shown(group) == [2]
    assert kept.history.enforce() == [(group, 1)]
    assert kept.found() == {other} != {timed}


def test_the_timer_of_ones_own_message_runs_from_sending_on(kept: Kept) -> None:
    group = uuid4()
    own = IncomingMessage(1, ALICE, b"secret", kept.clock.now(), 60, is_own=True)
    late = IncomingMessage(2, ALICE, b"late", kept.clock.now() - 100, 60, is_own=True)
    plain = IncomingMessage(3, ALICE, b"plain", kept.clock.now() - 100, is_own=True)
    kept.history.store(group, 0, 3, [own, late, plain])
    assert kept.shown(group) == [1, 3]
    kept.clock.advance(60)
    assert kept.shown(group) == [3]
    assert kept.history.enforce() == [(group, 2), (group, 1)]


def test_reading_one_message_writes_nothing_about_the_others(kept: Kept) -> None:
    """Or somebody who reads at the end of 100,000 messages has all of them written anew with each."""
    group = uuid4()
    arrived = [IncomingMessage(number, ALICE, b"text", kept.clock.now(), number % 2) for number in range(1, 1_001)]
    kept.history.store(group, 0, 1_000, arrived)

    def written(up_to: int) -> int:
        before = kept.history._connection.total_changes
        kept.history.read(group, up_to)
        return kept.history._connection.total_changes - before

    assert written(500) > 500
    assert written(501) <= 4
    assert written(501) == 0
    assert written(400) == 0
    timers = [each.gone_at is not None for each in kept.history.messages(group)]
    assert timers == [bool(number % 2) and number <= 501 for number in range(1, 1_001)]


def test_what_is_not_here_was_not_read(kept: Kept) -> None:
    group = uuid4()
    kept.arrive(group, seconds=60)
    kept.history.read(group, 100)
    assert kept.history.unreported_reads() == {group: 1}
    kept.history.mark_reported(group, 1)
    kept.arrive(group, seconds=60)
    kept.history.read(group, 2)
    assert kept.history.unreported_reads() == {group: 2}


def test_what_the_server_tells_to_forget_is_gone(kept: Kept) -> None:
    group, other = uuid4(), uuid4()
    first, second, third = kept.arrive(group, seconds=60), kept.arrive(group), kept.arrive(other)
    assert kept.history.self_destructing(group) == [1]
    assert kept.history.forget(group, [1, 7]) == [(group, 1)]
    assert kept.found() == {second, third} - {first}
    assert kept.history.forget_group(group)
    assert not kept.history.forget_group(group)
    assert kept.history.groups() == {other: -1}
    assert kept.found() == {third}
    assert kept.shown(other) == [1]


def test_a_page_is_stored_with_how_far_the_history_is_or_not_at_all(kept: Kept) -> None:
    group = uuid4()
    kept.arrive(group)
    again = IncomingMessage(1, ALICE, b"again", kept.clock.now())
    assert not kept.history.store(group, 0, 1, [again]), "another process was faster"
    with pytest.raises(sqlite3.IntegrityError):
        kept.history.store(group, 1, 2, [again])
    assert kept.history.fetched_up_to(group) == 1
    assert len(kept.history.messages(group)) == 1


def test_pages_go_back_from_any_message(kept: Kept) -> None:
    group, other = uuid4(), uuid4()
    kept.history.set_expiry(group, HOUR)
    for _ in range(2):
        kept.arrive(group, created_at=kept.clock.now() - HOUR)
    for _ in range(8):
        kept.arrive(group)
        kept.arrive(other)
    kept.clock.advance(1)

    def before(number: int, limit: int = 3) -> list[int]:
        return [each.sequence_num for each in kept.history.earlier_messages(group, number, limit)]

    assert before(11) == [8, 9, 10]
    assert before(10) == [7, 8, 9]
    assert before(6) == [3, 4, 5]
    assert before(5) == [3, 4], "what is hidden is on no page, before it is erased"
    assert before(3) == before(1) == before(0) == []
    assert before(100, 100) == [3, 4, 5, 6, 7, 8, 9, 10]
    assert len(kept.history.earlier_messages(other, 9)) == 8
    assert kept.history.earlier_messages(uuid4(), 9) == []


def test_what_others_have_said_is_unread_until_it_is_seen(kept: Kept) -> None:
    group, other, bob = uuid4(), uuid4(), uuid4()
    kept.history.set_expiry(group, HOUR)
    kept.arrive(group, created_at=kept.clock.now() - HOUR)
    for _ in range(4):
        kept.arrive(group)
    kept.arrive(other)
    assert kept.history.unread(group, bob) == [1, 2, 3, 4, 5]
    assert kept.history.unread(group, ALICE) == [], "one's own are read"
    assert kept.history.read_up_to(group) == 0
    kept.clock.advance(1)
    assert len(kept.history.unread(group, bob)) == 4, "what is hidden is not to be read, before it is erased"
    kept.history.read(group, 3)
    assert (len(kept.history.unread(group, bob)), kept.history.read_up_to(group)) == (2, 3)
    kept.history.read(group, 2)
    assert (len(kept.history.unread(group, bob)), kept.history.read_up_to(group)) == (2, 3), "what was seen stays seen"
    kept.history.read(group, 100)
    assert (len(kept.history.unread(group, bob)), kept.history.read_up_to(group)) == (0, 5)
    assert len(kept.history.unread(other, bob)) == 1
    assert (len(kept.history.unread(uuid4(), bob)), kept.history.read_up_to(uuid4())) == (0, 0)
    kept.history.close()
    kept.open()
    assert kept.history.read_up_to(group) == 5


@pytest.mark.parametrize(
    ("burning", "seen", "unread", "read"),
    [
        ([], [], [1, 2, 4, 5], 0),
        ([], [1, 2], [4, 5], 3),
        ([], [5], [1, 2, 4], 0),
        ([], [5, 4, 2, 1], [], 5),
        ([], None, [], 5),
        ([2], None, [2], 1),
        ([2, 5], None, [2, 5], 1),
        ([2], [4, 5], [1, 2], 0),
    ],
    ids=[
        *("nothing", "the first, with one's own after them", "one out of order is unread no more", "in any order"),
        *("put aside", "but what destroys itself", "of several the first holds", "what was not shown does not begin"),
    ],
)
def test_unread_falls_with_what_was_seen_and_as_read_counts_what_nothing_unseen_comes_before(
    kept: Kept, burning: list[int], seen: list[int] | None, unread: list[int], read: int
) -> None:
    """Number 3 is one's own."""
    group, bob = uuid4(), uuid4()
    arrived = [
        IncomingMessage(
            number, bob if number == 3 else ALICE, b"text", kept.clock.now(), 60 if number in burning else 0
        )
        for number in range(1, 6)
    ]
    kept.history.store(group, 0, 5, arrived)
    kept.history.mark_seen(group, bob, seen)
    assert kept.history.unread(group, bob) == unread
    assert kept.history.read_up_to(group) == read
    ends = {each.sequence_num: each.gone_at for each in kept.history.messages(group)}
    assert all((ends[number] is not None) == (number <= read) for number in burning), "timers go by what is read"
    kept.history.close()
    kept.open()
    assert kept.history.unread(group, bob) == unread, "it is so after a start, too"


def test_of_very_many_unread_messages_a_thousand_are_counted(kept: Kept) -> None:
    group = uuid4()
    many = [IncomingMessage(number, ALICE, b"again", kept.clock.now()) for number in range(1, 1_101)]
    kept.history.store(group, 0, 1_100, many)
    assert len(kept.history.unread(group, uuid4())) == 1_000
    kept.history.read(group, 200)
    assert len(kept.history.unread(group, uuid4())) == 900


def test_of_a_history_that_is_forgotten_nothing_is_in_its_files(kept: Kept) -> None:
    for turn, expiry in enumerate((-1, 0, HOUR)):
        group = uuid4()
        kept.history.set_expiry(group, expiry)
        for _ in range(200):
            kept.arrive(group, size=100 + 37 * turn)
    assert len(kept.found()) == 600
    kept.history.forget_all()
    assert kept.found() == set()
    assert kept.history.groups() == {}
    kept.history.close()
    assert kept.found() == set()
    assert b"somebody" not in (kept.folder / "history.db").read_bytes()
    kept.history = History(kept.folder / "history.db", clock=kept.clock)
    kept.history.claim("somebody else")
    kept.history.forget_all()
    kept.history.forget_all()


def test_nobody_else_can_read_the_files(kept: Kept) -> None:
    kept.arrive(uuid4())
    assert {path.name: path.stat().st_mode & 0o777 for path in kept.folder.iterdir()}.items() <= {
        ("history.db", 0o600),
        ("history.db-journal", 0o600),
        ("history.db.reserve", 0o600),
    }


def test_a_history_is_of_one_account(kept: Kept) -> None:
    with pytest.raises(HistoryError, match="this history belongs to somebody, not to"):
        kept.history.claim("somebody else")
    (kept.folder / "other.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(HistoryError, match="not a history"):
        History(kept.folder / "other.db")
    with sqlite3.connect(kept.folder / "third.db") as third:
        third.execute("CREATE TABLE t (x)")
    third.close()
    with pytest.raises(HistoryError, match="not a history"):
        History(kept.folder / "third.db")


def test_the_servers_time_goes_on_by_the_clock_that_says_that_more_has_passed() -> None:
    wall = FakeClock(now=5_000)
    clock = ServerClock(wall)
    assert clock.now() == 5_000, "before the server was heard"
    clock.record_time(1_000)
    wall.advance(10)
    assert clock.now() == 1_011
    wall.set_wrong(-500)
    assert clock.now() == 1_011, "set back: no time is won"
    wall.set_wrong(600)
    assert (clock.now(), clock.earliest()) == (1_111, 1_010), "set forward: it may be right"
    clock.record_time(1_012)
    assert clock.now() == 1_013
    wall.boot_id, wall.set_by = "next", 10**9
    wall.advance(100)
    assert clock.now() == 1_113, "after a reboot the wall clock alone can tell"


def test_the_servers_time_outlives_a_start(kept: Kept) -> None:
    group = uuid4()
    kept.history.record_server_time(kept.clock.now() - YEAR)  # this machine is a year ahead
    kept.history.set_expiry(group, HOUR)
    kept.arrive(group, created_at=kept.clock.now() - YEAR)
    kept.history.close()
    kept.open()
    assert kept.shown(group) == [1]
    kept.clock.advance(HOUR + 1)
    assert kept.shown(group) == []


def test_hearing_an_earlier_time_shows_nothing_that_was_hidden(kept: Kept) -> None:
    group = uuid4()
    kept.history.set_expiry(group, HOUR)
    number = kept.arrive(group)
    start = kept.clock.now()
    kept.clock.set_wrong(DAY)
    assert kept.shown(group) == []
    kept.history.record_server_time(start)
    assert kept.shown(group) == []
    assert number not in kept.found()
    assert kept.history.enforce() == [(group, 1)], "and the application hears of it"


def test_a_segment_of_which_little_is_left_is_given_up(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "SEGMENT_BYTES", 10_000)
    long, short = uuid4(), uuid4()
    kept.history.set_expiry(short, HOUR)
    staying = []
    for turn in range(300):
        number = kept.arrive(long if turn % 10 == 0 else short)
        staying += [number] if turn % 10 == 0 else []
    size = (kept.folder / "history.db").stat().st_size
    kept.clock.advance(HOUR + 1)
    while kept.history.enforce():
        pass
    assert kept.found() == set(staying)
    assert len(kept.shown(long)) == 30
    for _ in range(270):
        kept.arrive(long)
    assert (kept.folder / "history.db").stat().st_size <= size * 1.1, "its pages are used again"


KILLED = """
import pickle, sys, uuid
from pathlib import Path
from tests.client.test_history import HOUR, Kept
kept = Kept(Path(sys.argv[1]))
kept.search = pickle.loads(sys.stdin.buffer.read())
groups = [uuid.uuid4() for _ in range(3)]
kept.history.set_expiry(groups[0], HOUR)
kept.history.set_expiry(groups[1], 5 * HOUR)
while True:
    for group in groups:
        kept.arrive(group, size=3_000)
    kept.clock.advance(HOUR // 4)
    kept.history.enforce()
    print(kept.sent, flush=True)
"""


def test_a_timer_that_began_by_a_fast_clock_does_not_end_late(kept: Kept) -> None:
    group = uuid4()
    server = kept.clock.now()
    kept.history.record_server_time(server)
    kept.arrive(group, seconds=60)
    kept.clock.set_wrong(30)
    kept.history.read(group, 1)
    kept.history.record_server_time(server)
    assert kept.shown(group) == [1]
    kept.clock.advance(59)
    assert kept.shown(group) == []


@pytest.mark.parametrize("lines", sample.some(range(3, 300, 11), 3, "deaths of a client"))
def test_a_client_that_is_killed_keeps_what_may_be_kept_and_nothing_else(tmp_path: Path, lines: int) -> None:
    search = Search()
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", KILLED, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert child.stdin
    assert child.stdout
    with child.stdin, child.stdout:
        child.stdin.write(pickle.dumps(search))
        child.stdin.close()
        told = [child.stdout.readline() for _ in range(lines)]
        child.kill()
        child.wait()
        told += child.stdout.readlines()  # it may have gone on for a while
    sent = int(told[-1])
    kept = Kept(tmp_path)
    kept.clock.advance(len(told) * HOUR // 4)
    kept.history.enforce()
    shown = [kept.history.messages(group) for group in kept.history.groups()]
    assert len(shown[2]) in (sent // 3, sent // 3 + 1), "what was stored is there"
    assert max(map(len, shown[:2])) <= 5 * 4 + 2
    found = search.numbers_in(tmp_path)
    assert len(found) == sum(map(len, shown)), "nothing but what is shown is there"
    kept.history.close()


def cut_short(kept: Kept, folder: Path) -> None:
    """Make a copy of a history as it is when the process is killed while it stores more than SQLite has in memory."""
    group = uuid4()
    arrived = [IncomingMessage(number, ALICE, kept.search.body(number, 6_000), 1) for number in range(1_001, 1_501)]
    with kept.history._transaction() as connection:
        key, _ = ensure_group(connection, group)
        pages.store(connection, key, 0, arrived, TimeBounds(1, 1, 1))
        # Another process copies: closing the file here would end SQLite's locks on it.
        subprocess.run(["cp", "-a", f"{kept.folder}/.", folder], check=True)


def test_nothing_stays_of_what_was_being_stored_when_the_process_was_killed(tmp_path: Path) -> None:
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
    kept, group = Kept(tmp_path / "before"), uuid4()
    for _ in range(300):
        kept.arrive(group, size=4_000)
    assert kept.history.forget_group(group)
    cut_short(kept, tmp_path / "after")
    assert kept.search.numbers_in(tmp_path / "after"), "otherwise nothing is tried here"
    with History(tmp_path / "after" / "history.db", clock=kept.clock) as history:
        assert history.groups() == {}
    assert kept.search.numbers_in(tmp_path / "after") == set()
    kept.history.close()


def test_a_file_of_before_is_rid_of_what_a_crash_has_left(tmp_path: Path) -> None:
    kept, group = Kept(tmp_path), uuid4()
    kept.arrive(group)
    kept.history._connection.executescript("PRAGMA auto_vacuum = NONE; VACUUM")
    kept.history.close()
    with (tmp_path / "history.db").open("r+b") as file:
        free = file.seek(0, os.SEEK_END) // 4096 + 1
        file.write(bytes(8) + kept.search.body(1_001, 4_088))
        file.seek(28)
        file.write(struct.pack(">III", free, free, 1))  # pages, the first that is free, how many are
    assert kept.found() == {1, 1_001}
    kept.open()
    assert kept.shown(group) == [1]
    assert kept.found() == {1}
    assert kept.history._connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    kept.history.close()


COUNT = sample.amount(20_000, 2_000)


def test_of_many_erased_messages_no_byte_is_left(kept: Kept) -> None:
    """Sizes from 24 bytes to 64 KiB, in groups that are interleaved; half expire, at different times."""
    chance = sample.chance("a client's history")
    groups = [uuid4() for _ in range(50)]
    for group in groups[::2]:
        kept.history.set_expiry(group, chance.randrange(1, 30) * HOUR)
    staying, total = set(), 0
    for turn in range(COUNT):
        place = chance.randrange(len(groups))
        size = int(24 * (64 * 1024 / 24) ** (chance.random() ** 3))
        number = kept.arrive(groups[place], size=size)
        if place % 2:
            staying.add(number)
        total += 1
        if turn % 200 == 0:
            kept.clock.advance(HOUR)
            kept.history.enforce()
    kept.clock.advance(31 * HOUR)
    while kept.history.enforce():
        pass
    assert kept.search.left_of(set(range(1, total + 1)) - staying, kept.folder) == set()
    assert kept.found() == staying


ACTIONS = st.one_of(
    st.tuples(st.just("arrive"), st.integers(0, 2), st.integers(0, 10), st.sampled_from([0, 0, 3, 20])),
    st.tuples(st.just("expiry"), st.integers(0, 2), st.sampled_from([-1, 5, 30, 100]), st.just(0)),
    st.tuples(st.just("pass"), st.just(0), st.integers(0, 60), st.just(0)),
    st.tuples(st.just("set"), st.just(0), st.integers(-500, 500).map(lambda half: 2 * half), st.just(0)),
    st.tuples(st.sampled_from(["hear", "restart", "reboot"]), st.just(0), st.just(0), st.just(0)),
    st.tuples(st.just("glitch"), st.just(0), st.sampled_from([-(10**6), -100, 100, 10**6]), st.integers(0, 60)),
    st.tuples(st.just("read"), st.integers(0, 2), st.just(0), st.just(0)),
)


class Lived:
    """A history that something happens to, and what it may have by the contract, told once more."""

    def __init__(self, folder: Path) -> None:
        self.kept = Kept(folder)
        self.server = self.kept.clock.now()
        self.groups = [uuid4() for _ in range(3)]
        self.expiry = [-1, -1, -1]
        self.sent: dict[int, tuple[int, int, int]] = {}
        self.ends: dict[int, int] = {}  # by timers
        self.alive: set[int] = set()
        self.was_set = self.was_set_back = self.has_rebooted = False
        self.hear()

    def hear(self) -> None:
        self.kept.history.record_server_time(self.server)
        while not self.kept.history.is_time_known:  # this machine's clocks contradict it: it is asked again
            self.let_pass(60)
            self.kept.history.record_server_time(self.server)
        self.was_set_back = self.has_rebooted = False

    def glitch(self, seconds: int, lasts: int) -> None:
        """The server is wrong for a moment: that hides, and erases nothing."""
        self.hear()
        self.check()
        before = self.kept.found()
        self.kept.history.record_server_time(self.server + seconds)
        self.kept.history.enforce()
        assert self.kept.found() == before
        self.let_pass(lasts)
        self.kept.history.record_server_time(self.server + seconds)
        self.restart(reboot=False)
        self.hear()

    def arrive(self, place: int, age: int, seconds: int) -> None:
        self.hear()
        number = self.kept.arrive(self.groups[place], seconds=seconds, created_at=self.server - age)
        self.sent[number] = place, self.server - age, seconds
        self.alive.add(number)

    def set_expiry(self, place: int, expiry: int) -> None:
        self.kept.history.set_expiry(self.groups[place], expiry)
        self.expiry[place] = expiry

    def let_pass(self, seconds: int) -> None:
        self.server += seconds
        self.kept.clock.advance(seconds)

    def set_clock(self, seconds: int) -> None:
        self.kept.clock.set_wrong(seconds)
        self.was_set_back, self.was_set = self.was_set_back or seconds < 0, True

    def read(self, place: int) -> None:
        self.kept.history.read(self.groups[place], 10**6)
        timed = [number for number, (where, _, lasts) in self.sent.items() if where == place and lasts]
        self.ends = {number: self.server + self.sent[number][2] for number in timed} | self.ends

    def restart(self, *, reboot: bool) -> None:
        self.kept.history.close()
        if reboot:
            self.kept.clock.boot_id += "x"
            self.has_rebooted = True
        self.kept.open()

    def check(self) -> None:
        if self.was_set_back and self.has_rebooted:
            self.hear()  # nothing of this machine can tell how much time has passed
        self.kept.history.enforce()
        found = self.kept.found()
        assert not [number for number in found if self.server > self.end_of(number)], "one second after its end"
        self.alive = {number for number in self.alive if self.server + 1 < self.end_of(number)}
        assert self.was_set or found == self.alive, "and nothing else goes"

    def end_of(self, number: int) -> int:
        where, at, _ = self.sent[number]
        by_age = at + self.expiry[where] + 1 if self.expiry[where] > 0 else self.server + YEAR
        return min(by_age, self.ends.get(number, by_age))


@settings(max_examples=sample.amount(500, 60))
@given(st.lists(ACTIONS, min_size=10, max_size=60))
def test_over_random_histories_nothing_is_here_that_may_not_be(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int, int, int]]
) -> None:
    """Policies, time offline, clocks that are set, restarts: one second after its end a message is in no file."""
    lived = Lived(tmp_path_factory.mktemp("history"))
    does: dict[str, Callable[[int, int, int], None]] = {
        "arrive": lived.arrive,
        "expiry": lambda place, expiry, _: lived.set_expiry(place, expiry),
        "pass": lambda _, seconds, __: lived.let_pass(seconds),
        "set": lambda _, seconds, __: lived.set_clock(seconds),
        "hear": lambda *_: lived.hear(),
        "glitch": lambda _, seconds, lasts: lived.glitch(seconds, lasts),
        "read": lambda place, *_: lived.read(place),
        "restart": lambda *_: lived.restart(reboot=False),
        "reboot": lambda *_: lived.restart(reboot=True),
    }
    for action, *values in actions:
        does[action](*values)
        lived.check()
    lived.kept.history.close()


def test_a_rotten_page_keeps_nobody_out_of_a_file_of_before(tmp_path: Path) -> None:
    """It cannot be made anew then. What can be read is of use: it may be the keys."""
    with closing(private_file.open_private(tmp_path / "file.db")) as connection:
        connection.executescript(
            "CREATE TABLE kept (text); CREATE TABLE rotten (text); INSERT INTO kept VALUES ('here')"
        )
        connection.execute("INSERT INTO rotten VALUES ('gone')")
        [page] = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'rotten'").fetchone()
    with (tmp_path / "file.db").open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 64)
    with closing(private_file.open_private(tmp_path / "file.db")) as connection:
        private_file.enable_auto_vacuum(connection)
        assert connection.execute("SELECT text FROM kept").fetchall() == [("here",)]
