"""The ledger's file: written, cut short, damaged and relieved of what is old."""

import contextlib
import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from conclave.store.ledger import book
from conclave.store.ledger.book import ALIVE, READ, RESTORE, SETTINGS, LedgerEntry, LedgerError
from tests.support import ledgers, sample
from tests.support.failpoints import DROPPING_POINTS
from tests.support.server import PATIENCE

ID = "0a" * 16
NOW = 1_700_000_000


def entry(change: int, kind: str = "group", subject: int = 1, at: int = NOW) -> LedgerEntry:
    return LedgerEntry(change, at, kind, subject, {"gone_below": change})


def things(*numbers: int) -> list[LedgerEntry]:
    """A change each, of as many things."""
    return [entry(change, subject=change) for change in numbers]


def read(change: int, *ends: int) -> LedgerEntry:
    """What was read, with timers that end at these seconds."""
    return LedgerEntry(
        change, NOW, READ, 1, {"read_up_to": 9, "ends": [[number, end] for number, end in enumerate(ends)]}
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "purges.ledger"


def changes(path: Path) -> list[int]:
    return [each.change for each in book.entries(path, 0)]


def look(path: Path) -> book.LedgerContents:
    found = book.inspect(path)
    assert found
    return found


def test_what_is_appended_is_read_again(path: Path) -> None:
    first, second = entry(1), LedgerEntry(2, NOW, "account", "ab", None)
    book.append(path, ID, 0, [first])
    book.append(path, ID, 1, [second])
    assert list(book.entries(path, 0)) == [first, second]
    assert list(book.entries(path, 1)) == [second]
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == [path.name], "all that was told is in the one file"
    found = look(path)
    assert (found.ledger_id, found.complete_after, found.last_change, found.damage) == (ID, 0, 2, "")


def test_an_entry_takes_the_place_of_the_former_one_of_the_same_thing(path: Path) -> None:
    book.append(path, ID, 0, [entry(1), entry(2, subject=2), entry(3), entry(4, READ), entry(5, READ), entry(6)])
    assert changes(path) == [2, 4, 5, 6], "each entry of a reader tells of other messages"
    book.append(path, ID, 6, [entry(7)])
    assert changes(path) == [2, 4, 5, 7]
    assert look(path).damage == ""


def test_what_a_restore_has_left_behind_is_kept(path: Path) -> None:
    """A database that was given up for the restored one needs what it had come to."""
    book.append(path, ID, 0, [entry(1), LedgerEntry(1, NOW, RESTORE, 1, {"number": 1, "from": 0}), entry(2), entry(3)])
    assert changes(path) == [1, 1, 3]
    book.append(path, ID, 3, [LedgerEntry(3, NOW, RESTORE, 1, {"number": 1, "from": 3})])
    assert [each.kind for each in book.entries(path, 0)] == ["group", "group", RESTORE]
    assert look(path).restored == 1


def test_what_another_process_has_written_already_is_left_out(path: Path) -> None:
    book.append(path, ID, 0, [entry(1), entry(5, subject=2)])
    assert book.append(path, ID, 0, [entry(3), entry(5, subject=2), entry(6, subject=3)]) == 5
    assert changes(path) == [1, 5, 6]


@pytest.mark.parametrize("kind", ["group", "account"])
def test_an_altered_entry_is_told_and_the_others_are_read(path: Path, kind: str) -> None:
    """Those at the end too: a power failure does not alter what it finds."""
    told = [entry(1), entry(2, "member"), entry(3, "account")]
    book.append(path, ID, 0, told)
    ledgers.alter_last(path, kind)
    altered = next(each.change for each in told if each.kind == kind)
    assert look(path).damage == f"is damaged in the entry of change {altered}"
    assert changes(path) == [each for each in (1, 2, 3) if each != altered]
    with pytest.raises(LedgerError, match=f"is damaged in the entry of change {altered}"):
        book.require_sound(path, ID, 3)
    book.append(path, ID, 3, things(4))
    assert changes(path)[-1] == 4, "what is new is more useful than nothing"


def test_whatever_bit_is_altered_it_is_told_in_a_line(path: Path) -> None:
    book.append(path, ID, 0, [entry(1), entry(2, "member"), entry(3, "account")])
    data = path.read_bytes()
    used = [8 * place + bit for place, byte in enumerate(data) if byte for bit in range(8)]
    for bit in sample.some(used, 400, "bits of a ledger"):
        altered = bytearray(data)
        altered[bit // 8] ^= 1 << bit % 8
        path.write_bytes(altered)
        with contextlib.suppress(LedgerError):
            book.inspect(path)


def test_what_is_written_while_it_is_looked_at_is_no_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book.append(path, ID, 0, [entry(1)])
    read, written = book._contents, []

    def write_meanwhile(*arguments: Any) -> Any:
        program = "from pathlib import Path; from conclave.store.ledger import book; "
        program += f"book.append(Path({str(path)!r}), {ID!r}, 1, [book.LedgerEntry(2, 0, 'group', 7, None)])"
        written.append(
            subprocess.Popen([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": str(Path.cwd())})
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            written[0].wait(2)  # it waits, or has written
        return read(*arguments)

    monkeypatch.setattr(book, "_contents", write_meanwhile)
    assert look(path).damage == ""
    assert written[0].wait(PATIENCE) == 0
    monkeypatch.undo()
    assert changes(path) == [1, 2]


def test_an_entry_that_was_taken_out_is_told(path: Path) -> None:
    book.append(path, ID, 0, things(1, 2, 3))
    ledgers.execute(path, "DELETE FROM entries WHERE change = 2")
    assert look(path).damage == "has 2 entries of 3"
    with pytest.raises(LedgerError, match="has 2 entries of 3"):
        book.require_sound(path, ID, 3)


def test_a_head_that_was_altered_is_told(path: Path) -> None:
    book.append(path, ID, 0, things(6))
    ledgers.execute(path, "UPDATE head SET complete_after = 5")
    with pytest.raises(LedgerError, match="its head is damaged"):
        book.inspect(path)


def test_a_file_without_order_is_told(path: Path) -> None:
    book.append(path, ID, 0, things(*range(1, 200)))
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(LedgerError, match=r"is damaged .*"):
        book.require_sound(path, ID, 199)


def test_an_older_file_in_its_place_is_told(path: Path) -> None:
    book.append(path, ID, 0, [entry(1)])
    older = path.read_bytes()
    book.append(path, ID, 1, [entry(2)])
    path.write_bytes(older)
    with pytest.raises(LedgerError, match="was replaced by an older one"):
        book.require_sound(path, ID, 2)
    with pytest.raises(LedgerError, match="was replaced by an older one"):
        book.append(path, ID, 2, [entry(3)])
    assert path.read_bytes() == older


def test_the_ledger_of_another_database_is_left_alone(path: Path) -> None:
    book.append(path, ID, 0, [entry(1)])
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="of another database"):
        book.append(path, "0b" * 16, 0, [entry(1)])
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["a setting that names another file", "some\nother\nfile\n", "{}\n"])
def test_what_is_no_ledger_is_left_alone(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(LedgerError, match="is not a ledger"):
        book.append(path, ID, 0, [entry(1)])
    with pytest.raises(LedgerError, match="is not a ledger"):
        book.inspect(path)
    assert path.read_text() == text


def test_another_database_of_sqlite_is_left_alone(path: Path) -> None:
    ledgers.execute(path, "CREATE TABLE head (ledger_id TEXT)")
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="is not a ledger"):
        book.append(path, ID, 0, [entry(1)])
    assert path.read_bytes() == before


def test_a_ledger_that_is_gone_begins_anew_with_a_restore_alone_and_knows_that_it_is_not_whole(path: Path) -> None:
    with pytest.raises(LedgerError, match="the ledger is missing"):
        book.append(path, ID, 7, [entry(8)])
    book.append(path, ID, 7, [LedgerEntry(7, 0, RESTORE, 1, {"number": 1})])
    assert look(path).complete_after == 7


def test_a_full_disk_leaves_the_file_as_it_was(path: Path) -> None:
    book.append(path, ID, 0, [entry(1)])
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before), limits[1]))
    try:
        with pytest.raises(LedgerError, match=f"{path}: "):
            book.append(path, ID, 1, things(*range(2, 200)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert changes(path) == [1]
    assert path.read_bytes() == before
    book.append(path, ID, 1, things(2))
    assert changes(path) == [1, 2]


LOOKS: list[Callable[[Path], object]] = [
    *(book.tip, book.inspect, book.require_writable),
    lambda path: book.entries(path, 0),
    lambda path: book.drop_old(path, 0, 0, NOW),
]


@pytest.mark.parametrize("look_at", LOOKS)
def test_a_folder_that_may_not_be_searched_is_told_in_one_line(
    path: Path, monkeypatch: pytest.MonkeyPatch, look_at: Callable[[Path], object]
) -> None:
    """Root, who may run the tests, may search any."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", refuse)
        with pytest.raises(LedgerError, match=rf"{path}: Permission denied"):
            look_at(path)


@pytest.mark.parametrize("look_at", [*LOOKS, lambda path: book.append(path, ID, 0, [entry(1)])])
def test_nobody_waits_for_a_pipe_in_the_place_of_the_file(path: Path, look_at: Callable[[Path], object]) -> None:
    os.mkfifo(path)
    with pytest.raises(LedgerError, match=rf"{path}: is not a file"):
        look_at(path)


@pytest.mark.parametrize("place", ["folder", "missing/purges.ledger", "link"])
def test_a_place_that_cannot_be_written_is_told_in_one_line(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LedgerError, match=str(tmp_path)):
        book.append(tmp_path / place, ID, 0, [entry(1)])
    with pytest.raises(LedgerError, match=str(tmp_path)):
        book.require_writable(tmp_path / place)
    assert not (tmp_path / "elsewhere").exists()


def test_what_is_old_goes_and_the_file_says_how_far_it_reaches(path: Path) -> None:
    old = NOW - 100
    restore = LedgerEntry(5, old, RESTORE, 0, {"number": 1})
    book.append(
        path,
        ID,
        0,
        [
            *(entry(1, at=old), entry(2, READ, at=old), entry(3, SETTINGS, 0, old), entry(4, ALIVE, 0, old), restore),
            *(entry(6, subject=2, at=old), entry(7, READ, at=NOW), read(8, NOW, NOW + 1), entry(9, at=NOW)),
        ],
    )
    before = path.stat().st_ino
    book.drop_old(path, NOW - 50, NOW + 1, NOW)
    assert changes(path) == [3, 4, 5, 8, 9], "a timer of 8 runs"
    found = look(path)
    assert (found.complete_after, found.restored, found.damage) == (6, 1, ""), "what was read is hidden by its age"
    assert path.stat().st_ino == before


def test_a_file_without_entries_does_not_look_as_if_it_lacked_its_end(path: Path) -> None:
    book.append(path, ID, 0, things(1, 2))
    book.drop_old(path, NOW + 1, 0, NOW)
    assert changes(path) == []
    book.require_sound(path, ID, 2)
    book.append(path, ID, 2, things(3))
    assert changes(path) == [3]


def test_what_went_is_not_in_the_file_and_its_room_is_given_back(path: Path) -> None:
    many = [LedgerEntry(change, NOW, "account", f"{change:032x}", None) for change in range(1, 2_000)]
    book.append(path, ID, 0, many)
    size = path.stat().st_size
    book.drop_old(path, NOW + 1, 0, NOW)
    assert f"{1:032x}".encode() not in path.read_bytes()
    assert path.stat().st_size < size / 10


@pytest.mark.parametrize("change", [2, 3])
def test_nothing_is_removed_from_a_damaged_file(path: Path, change: int) -> None:
    book.append(path, ID, 0, things(1, 2, 3))
    ledgers.execute(path, f"UPDATE entries SET at = at - 9 WHERE change = {change}")
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="is damaged, and was not changed"):
        book.drop_old(path, NOW + 1, 0, NOW)
    assert path.read_bytes() == before


KILLED = """
import sys
from pathlib import Path
from conclave.store.ledger import book
book.drop_old(Path(sys.argv[1]), 1_700_000_001, 0, 0)
"""


def killed(path: Path, point: str) -> None:
    """Drop what is old in a process that is killed at a failpoint."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", dedent(KILLED), path],
        env=os.environ | {"CONCLAVE_FAILPOINT": f"{point}=kill"},
    )
    assert done.returncode == -9, f"{point} was not reached"


@pytest.mark.parametrize("point", DROPPING_POINTS)
def test_killed_while_old_entries_go_the_file_is_whole(path: Path, point: str) -> None:
    book.append(path, ID, 0, things(*range(1, 200)))
    killed(path, point)
    assert changes(path) == list(range(1, 200))
    assert look(path).damage == ""


def test_a_journal_that_was_left_behind_harms_no_new_ledger(path: Path) -> None:
    """An operator has moved the ledger away after a crash, and not the journal beside it."""
    book.append(path, ID, 0, things(*range(1, 200)))
    killed(path, DROPPING_POINTS[0])
    assert path.with_name(f"{path.name}-journal").exists(), "SQLite applies it at the next access"
    path.unlink()
    book.append(path, ID, 0, things(1))
    assert changes(path) == [1]
    assert look(path).damage == ""
