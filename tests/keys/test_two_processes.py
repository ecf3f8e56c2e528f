"""What a server has in memory of keys that its cleanup loses, and of a key file that is replaced."""

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from conclave import failpoints
from conclave.keys import file, store
from conclave.keys.file import KeyFileError
from conclave.keys.store import LAST_NUMBER, GroupRanges, KeyStore
from conclave.keys.tree import Cover, Range
from conclave.system.locks import Wait, hold_file

A, B = b"a" * 16, b"b" * 16
ALL = [Range(0, LAST_NUMBER)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file.create(tmp_path / "keys")
    return tmp_path / "keys"


@pytest.fixture
def server(path: Path) -> Iterator[KeyStore]:
    with closing(KeyStore(path)) as keys:
        yield keys


def erased_by_another(path: Path, *dead: GroupRanges) -> None:
    with closing(KeyStore(path)) as cleanup:
        cleanup.erase(dead)


def require_lost(server: KeyStore, *groups: bytes) -> None:
    for group_id in groups:
        assert server.keys(group_id, [1]) == [None]
        assert server.cached_keys([(group_id, 1)]) is None


def test_what_is_lost_when_the_file_is_written_anew_is_forgotten(
    path: Path, server: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block of which nothing is left is in no record of the new file."""
    monkeypatch.setattr(file, "MIN_DEAD_BYTES", 0)
    groups = [bytes([each]) * 16 for each in range(1, 31)]
    server.new_keys([(each, 1) for each in groups])
    inode = path.stat().st_ino
    erased_by_another(path, *((each, ALL) for each in groups[:20]))
    assert path.stat().st_ino != inode
    require_lost(server, *groups[:20])
    assert None not in [server.keys(each, [1])[0] for each in groups[20:]]


def test_what_is_lost_while_a_send_waits_for_the_file_is_forgotten(
    path: Path, server: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.new_keys([(A, 1)])
    waited: list[Path] = []

    def waiting(lock: Path, wait: Wait) -> AbstractContextManager[object]:
        if not waited:
            waited.append(lock)
            erased_by_another(path, (A, ALL))
        return hold_file(lock, wait)

    monkeypatch.setattr("conclave.keys.file.hold_file", waiting)
    server.prepare([(B, 1)])
    assert waited
    require_lost(server, A)
    assert server.keys(B, [1]) != [None]


def test_what_was_taken_up_before_a_change_failed_is_forgotten(path: Path, server: KeyStore) -> None:
    server.new_keys([(A, 1)])
    erased_by_another(path, (A, ALL))
    failpoints.arm("keys.appended=io")
    try:
        with pytest.raises(Exception, match="disk I/O error"):
            server.prepare([(B, 1)])
    finally:
        failpoints.arm("")
    require_lost(server, A)


def test_an_older_key_file_is_not_taken_up(path: Path, server: KeyStore) -> None:
    """By some changes of its own it would come to the number of the former's last one, with keys that this had lost."""
    server.new_keys([(A, 1)])
    older, newer = path.with_name("older"), path.with_name("newer")
    shutil.copy(path, older)
    server.new_keys([(B, 1)])
    erased_by_another(path, (A, ALL))
    server.refresh()
    shutil.copy(path, newer)
    older.replace(path)
    data = path.read_bytes()
    for _ in range(2):  # it does not forget what it had
        with pytest.raises(KeyFileError, match="an older key file"):
            server.refresh()
        assert server.cached_keys([(B, 2)]) is None, "its root is in no file"
        with pytest.raises(KeyFileError, match="an older key file"):
            server.prepare([(b"c" * 16, 1)])
    assert path.read_bytes() == data
    newer.replace(path)
    require_lost(server, A)
    assert None not in server.new_keys([(B, 2), (b"c" * 16, 1)])


def test_a_change_of_one_s_own_counts_where_an_older_key_file_is_put_back(path: Path, server: KeyStore) -> None:
    older = path.with_name("older")
    shutil.copy(path, older)
    server.prepare([(A, 1)])
    older.replace(path)
    with pytest.raises(KeyFileError, match="an older key file"):
        server.prepare([(B, 1)])


def test_what_the_server_itself_writes_anew_stays_in_memory(
    path: Path, server: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.new_keys([(A, 1), (B, 1)])
    for number in range(1, 20):
        erased_by_another(path, (B, [Range(number, number)]))
    server.new_keys([(A, 1)])
    monkeypatch.setattr(file, "MIN_DEAD_BYTES", 0)
    inode = path.stat().st_ino
    server.prepare([(b"c" * 16, 1)])
    assert path.stat().st_ino != inode
    server.refresh()
    assert server.cached_keys([(A, 2)]) is not None


def test_what_is_lost_while_a_send_derives_its_neighbours_is_not_remembered(
    path: Path, server: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread has the changed cover in memory by then."""
    server.new_keys([(A, 1)])
    derive = store._run_keys

    def overtaken(nodes: Cover, index: int) -> list[bytes | None]:
        monkeypatch.setattr(store, "_run_keys", derive)
        erased_by_another(path, (A, [Range(17, 17)]))
        server.new_keys([(A, 18)])
        return derive(nodes, index)

    monkeypatch.setattr(store, "_run_keys", overtaken)
    assert server.cached_keys([(A, 19)]) is not None
    assert server.keys(A, [17]) == [None]
