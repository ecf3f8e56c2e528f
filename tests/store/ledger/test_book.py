"""The ledger's file: appended, torn, damaged, compacted."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from conclave.store.ledger import book
from conclave.store.ledger.book import ALIVE, READ, RESTORE, SETTINGS, Entry, LedgerError

ID = "0a" * 16
NOW = 1_700_000_000


def entry(change: int, kind: str = "group", subject: int = 1, at: int = NOW) -> Entry:
    return Entry(change, at, kind, subject, {"gone_below": change})


def read(change: int, *ends: int) -> Entry:
    """What was read, with timers that end at these seconds."""
    return Entry(change, NOW, READ, 1, {"read_up_to": 9, "ends": [[number, end] for number, end in enumerate(ends)]})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "purges.ledger"


def changes(path: Path) -> list[int]:
    return [each.change for each in book.entries(path, 0)]


def test_what_is_appended_is_read_again(path: Path) -> None:
    first, second = entry(1), Entry(2, NOW, "account", "ab", None)
    book.append(path, ID, 0, [first])
    book.append(path, ID, 1, [second])
    assert list(book.entries(path, 0)) == [first, second]
    assert list(book.entries(path, 1)) == [second]
    assert path.stat().st_mode & 0o777 == 0o600
    found = book.look(path)
    assert found
    assert (found.ledger_id, found.complete_after, found.last_change, found.damaged) == (ID, 0, 2, ())


def test_what_another_process_has_written_already_is_left_out(path: Path) -> None:
    book.append(path, ID, 0, [entry(1), entry(5)])
    assert book.append(path, ID, 0, [entry(3), entry(5), entry(6)]) == 5
    assert changes(path) == [1, 5, 5, 6], "the last change may have been cut in two"


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_torn_last_line_is_cut_off_and_written_again(path: Path, cut: int) -> None:
    book.append(path, ID, 0, [entry(1)])
    whole = path.stat().st_size
    book.append(path, ID, 1, [entry(2)])
    os.truncate(path, path.stat().st_size - cut)
    found = book.look(path)
    assert found
    assert (found.last_change, found.damaged, found.altered_end) == (1, (), 0), "it was not acknowledged"
    book.append(path, ID, 1, [entry(2)])
    assert changes(path) == [1, 2]
    assert b"\n" in path.read_bytes()[whole - 1 : whole]


def test_a_file_that_grew_but_has_nothing_in_its_end_is_torn(path: Path) -> None:
    book.append(path, ID, 0, [entry(1)])
    with path.open("ab") as file:
        file.write(bytes(100_000))
    found = book.look(path)
    assert found
    assert found.altered_end == 0
    book.append(path, ID, 1, [entry(2)])
    assert changes(path) == [1, 2]


def test_a_file_torn_in_its_first_line_begins_anew(path: Path) -> None:
    path.write_bytes(b'{"ledger":"0a')
    assert book.look(path) is None
    book.append(path, ID, 0, [entry(1)])
    assert changes(path) == [1]


@pytest.mark.parametrize("altered", [1, 2])
def test_whole_lines_at_the_end_that_were_altered_are_not_torn(path: Path, altered: int) -> None:
    """A power failure leaves whole lines as they were, and then at most a part of one."""
    book.append(path, ID, 0, [entry(change) for change in (1, 2, 3)])
    lines = path.read_bytes().splitlines(keepends=True)
    for place in range(-altered, 0):
        lines[place] = lines[place].replace(b'"gone_below":', b'"gone_belov":')
    path.write_bytes(b"".join(lines))
    found = book.look(path)
    assert found
    assert (found.last_change, found.damaged, found.altered_end) == (3 - altered, (), 5 - altered)
    with pytest.raises(LedgerError, match=f"line {5 - altered} is damaged: move it away"):
        book.require_sound(path, ID, 3 - altered)
    book.append(path, ID, 3 - altered, [entry(change) for change in (1, 2, 3)])
    assert changes(path)[-1] == 3, "the database knows that they were not acknowledged, and writes them again"
    found = book.look(path)
    assert found
    assert found.altered_end == 0


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_damaged_line_is_told_and_the_others_are_read(path: Path, number: int) -> None:
    book.append(path, ID, 0, [entry(change) for change in (1, 2, 3, 4)])
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number] = lines[number].replace(b'"gone_below":', b'"gone_belov":')
    path.write_bytes(b"".join(lines))
    found = book.look(path)
    assert found
    assert found.damaged == (number + 1,)
    assert changes(path) == [each for each in (1, 2, 3, 4) if each != number]
    with pytest.raises(LedgerError, match=f"line {number + 1} is damaged: move it away"):
        book.require_sound(path, ID, 4)
    book.append(path, ID, 4, [entry(5)])
    assert changes(path)[-1] == 5, "what is new is more useful than nothing"


def test_a_line_that_was_taken_out_is_told(path: Path) -> None:
    book.append(path, ID, 0, [entry(change) for change in (1, 2, 3)])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], lines[3]]))
    found = book.look(path)
    assert found
    assert found.last_change == 1
    with pytest.raises(LedgerError, match="lacks its end"):
        book.require_sound(path, ID, 3)


def test_an_older_file_in_its_place_is_told(path: Path) -> None:
    book.append(path, ID, 0, [entry(1)])
    older = path.read_bytes()
    book.append(path, ID, 1, [entry(2)])
    path.write_bytes(older)
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
        book.look(path)
    assert path.read_text() == text


def test_a_ledger_that_is_gone_begins_anew_and_knows_that_it_is_not_whole(path: Path) -> None:
    book.append(path, ID, 7, [entry(8)])
    found = book.look(path)
    assert found
    assert found.complete_after == 7


def test_a_full_disk_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book.append(path, ID, 0, [entry(1)])
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(LedgerError, match=rf"{path}: No space left on device"):
            book.append(path, ID, 1, [entry(2)])
    assert path.read_bytes() == before
    book.append(path, ID, 1, [entry(2)])
    assert changes(path) == [1, 2]


LOOKS: list[Callable[[Path], object]] = [
    *(book.tip, book.look, book.require_writable),
    lambda path: list(book.entries(path, 0)),
    lambda path: book.compact(path, 0, 0, NOW),
]


@pytest.mark.parametrize("look", LOOKS)
def test_a_folder_that_may_not_be_searched_is_told_in_one_line(
    path: Path, monkeypatch: pytest.MonkeyPatch, look: Callable[[Path], object]
) -> None:
    """Whoever runs the tests may be root, who may."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", refuse)
        with pytest.raises(LedgerError, match=rf"{path}: Permission denied"):
            look(path)


@pytest.mark.parametrize("place", ["folder", "missing/purges.ledger", "link"])
def test_a_place_that_cannot_be_written_is_told_in_one_line(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LedgerError, match=str(tmp_path)):
        book.append(tmp_path / place, ID, 0, [entry(1)])
    with pytest.raises(LedgerError, match=str(tmp_path)):
        book.require_writable(tmp_path / place)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compact files of any size."""
    monkeypatch.setattr(book, "COMPACTED_BYTES", 0)


@pytest.mark.usefixtures("small")
def test_compaction_keeps_the_last_line_of_each_thing(path: Path) -> None:
    book.append(path, ID, 0, [entry(1), entry(2, subject=2), entry(3), entry(4, READ), entry(5, READ), entry(6)])
    book.compact(path, 0, 0, NOW)
    assert changes(path) == [2, 4, 5, 6], "each line of a reader tells of other messages"
    found = book.look(path)
    assert found
    assert (found.complete_after, found.damaged) == (0, ())
    book.append(path, ID, 6, [entry(7)])
    assert changes(path)[-1] == 7


@pytest.mark.usefixtures("small")
def test_compaction_lets_go_of_what_is_old_and_says_how_far_the_file_reaches(path: Path) -> None:
    old = NOW - 100
    restore = Entry(5, old, RESTORE, 0, {"number": 1})
    book.append(
        path,
        ID,
        0,
        [
            *(entry(1, at=old), entry(2, READ, at=old), entry(3, SETTINGS, 0, old), entry(4, ALIVE, 0, old), restore),
            *(entry(6, subject=2, at=old), entry(7, READ, at=NOW), read(8, NOW, NOW + 1), entry(9, at=NOW)),
        ],
    )
    book.compact(path, NOW - 50, NOW + 1, NOW)
    assert changes(path) == [3, 4, 5, 8, 9], "a timer of 8 runs"
    found = book.look(path)
    assert found
    assert (found.complete_after, found.restored) == (6, 1), "what was read is hidden by its age"


@pytest.mark.usefixtures("small")
def test_the_last_line_stays_however_old_it_is(path: Path) -> None:
    """Else the file would look as if it lacked its end."""
    book.append(path, ID, 0, [entry(1), entry(2)])
    book.compact(path, NOW + 1, 0, NOW)
    assert changes(path) == [2]
    book.append(path, ID, 2, [entry(3)])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("change", [2, 3])
def test_a_damaged_file_is_not_compacted(path: Path, change: int) -> None:
    book.append(path, ID, 0, [entry(1), entry(2), entry(3)])
    path.write_bytes(path.read_bytes().replace(b'"change":%d' % change, b'"change":9'))
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="is damaged, and was left as it is"):
        book.compact(path, 0, 0, NOW)
    assert path.read_bytes() == before


def test_a_small_file_is_not_compacted(path: Path) -> None:
    book.append(path, ID, 0, [entry(1), entry(2)])
    book.compact(path, NOW + 1, NOW + 1, NOW)
    assert changes(path) == [1, 2]


def test_many_lines_are_found_from_the_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "TAIL_BYTES", 50)
    for change in range(1, 30):
        book.append(path, ID, change - 1, [entry(change)])
    assert changes(path) == list(range(1, 30))
