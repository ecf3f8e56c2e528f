"""A bit of a file of the archive is another one, as on a disk that forgets: nothing takes it for right."""

from pathlib import Path

import pytest

from conclave.archive.files import log_fault
from conclave.doctor.files import archive_log
from conclave.doctor.findings import Level
from tests.support.archived import DAY, USERS, Store
from tests.support.cleaner import Cleaner
from tests.support.damage import flip, flip_at, misstate

pytestmark = pytest.mark.system


@pytest.fixture
def store(tmp_path: Path, cleaner: Cleaner) -> Store:
    return Store(tmp_path, cleaner)


def archive_two_groups(store: Store) -> tuple[int, int]:
    """Have messages of two groups in one partition; return the groups."""
    damaged, other = store.add_group(), store.add_group()
    store.send(damaged, 6)
    store.send(damaged, 1, sender=USERS[1], is_commit=True)
    store.send(other, 6)
    store.now += 8 * DAY
    store.run()
    assert len(list(store.config.archive_path.glob("lifetime=*/span=*/*"))) == 1
    return damaged, other


def test_the_checksum_of_writer_and_readers_is_the_one_of_spark(store: Store) -> None:
    archive_two_groups(store)
    assert len(store.table()) == 13
    assert store.verify()["differences"] == []


def test_a_run_does_not_rewrite_a_damaged_file_and_loses_nothing(store: Store) -> None:
    """What it wrote would have right checksums, and would be in no backup that has the file as it was."""
    damaged, other = archive_two_groups(store)
    body = store.at_rest[2]
    path = flip(store.config.archive_path, body)
    found = path.read_bytes()
    store.delete_group(other)
    report = store.try_run("")
    assert path.name in report["error"], "it says which file"
    assert "CRC checksum verification failed" in report["error"]
    assert report["error"].endswith(": see docs/operations/archive.md#a-damaged-file")
    assert path.read_bytes() == found
    assert len(store.table()) == 13
    flip_at(path, found.index(body[:100]) + len(body) // 2)
    store.run()
    assert not path.exists()
    store.expect_served({(damaged, number) for number in range(1, 8)})
    store.expect_sound()


def test_nothing_stays_by_what_a_footer_says_of_groups(store: Store) -> None:
    """Statistics have no checksum. What they had passed over would be in no index, and never erased."""
    kept, deleted = archive_two_groups(store)
    [path] = store.config.archive_path.glob("lifetime=*/span=*/*")
    misstate(path, deleted, kept)
    store.delete_group(deleted)
    assert store.run()["deleted"]["deleted_group"] == 6
    store.expect_sound()
    store.expect_served({(kept, number) for number in range(1, 8)})
    store.expect_erased({(deleted, number) for number in range(1, 7)})


def overwrite_log(store: Store, told: str, instead: str) -> None:
    """Have the table's log say something else of a file."""
    [entry] = [path for path in store.config.archive_path.glob("_delta_log/*.json") if told in path.read_text()]
    entry.write_text(entry.read_text().replace(told, instead))


def test_how_many_rows_the_log_counts_decides_nothing(store: Store) -> None:
    """All that the index counts was read, so that nothing of it is lost where the file is written anew."""
    kept, deleted = archive_two_groups(store)
    overwrite_log(store, r"\"numRecords\":13", r"\"numRecords\":14")
    store.delete_group(deleted)
    path = next(store.config.archive_path.glob("lifetime=*/span=*/*"))
    assert store.try_run("")["error"] == ""
    assert not path.exists()
    store.expect_served({(kept, number) for number in range(1, 8)})
    assert len(store.table()) == 7


def test_verify_tells_whose_messages_are_damaged_and_restore_takes_none_of_them_back(store: Store) -> None:
    damaged, other = archive_two_groups(store)
    flip(store.config.archive_path, store.at_rest[2])
    [line] = store.verify()["differences"]
    assert "1 messages are damaged: their checksums differ" in line
    assert "1 messages are damaged: their checksums differ; nothing was restored" in store.restore(damaged)["error"]
    report = store.restore(other)
    assert "CRC checksum verification failed" in report["error"], "its messages lie in the same page"
    assert store.query("SELECT count(*) FROM messages WHERE group_key = ?", other) == [(0,)]


def test_compaction_does_not_rewrite_a_damaged_file(store: Store) -> None:
    group = store.add_group()
    for _ in range(3):
        store.send(group, 4)
        store.now += DAY
    store.now += 8 * DAY
    store.run_in_batches(2, 99)
    before = sorted(store.config.archive_path.glob("lifetime=*/span=*/*"))
    assert len(before) > 1
    path = flip(store.config.archive_path, store.at_rest[3])
    store.send(group, 2)
    store.now += 8 * DAY
    report = store.try_run("", crowd=1)
    assert path.name in report["error"]
    assert path.exists()


@pytest.mark.parametrize(
    "content", [b'{"add": {"path": "life', b'\x00\xff{"', b"[]"], ids=["cut", "noise", "no action"]
)
def test_a_damaged_entry_of_the_log_is_named_by_all_who_read_it(store: Store, content: bytes) -> None:
    group, _ = archive_two_groups(store)
    entry = max(store.config.archive_path.glob("_delta_log/*.json"))
    whole = entry.read_bytes()
    entry.write_bytes(whole.rstrip() + b"\n" + content)
    said = f"{entry}: an entry of the archive's log is damaged, in line {1 + len(whole.splitlines())}"
    advice = "see docs/operations/archive.md#a-damaged-file"
    store.delete_group(group)
    for told in (store.try_run("")["error"], store.verify()["error"], log_fault(entry.parent)):
        assert said in told
        assert advice in told
        assert "JSON" not in told
    [found] = archive_log(store.config)
    assert (found.level, found.about, found.says) == (Level.WRONG, "archive", said)
    assert advice in found.remedy
    entry.write_bytes(whole)
    assert [each.level for each in archive_log(store.config)] == [Level.OK]
    store.run()
    store.expect_sound()
