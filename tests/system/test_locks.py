"""Locks between processes: by name, by file, and where there are none."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conclave.store.engine import sqlite
from conclave.system import locks
from conclave.system.locks import CLEANUP, SERVER, LockedError
from tests.support import stores

HOLD = "import sys; from pathlib import Path; from conclave.system import locks\n"
HOLD += "with locks.hold(Path(sys.argv[1]), getattr(locks, sys.argv[2])): print('held', flush=True); input()"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    stores.prepare(tmp_path / "chat.db")
    return tmp_path / "chat.db"


def holder(path: Path, role: str) -> subprocess.Popen[str]:
    """Another process that holds a database until it is told to end, or is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, path, role], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


def test_a_lock_is_held_against_every_name_and_ends_with_its_process(path: Path) -> None:
    other = path.with_name("other.db")
    other.hardlink_to(path)
    with holder(path, "SERVER") as process:
        for name in (path, other):
            with pytest.raises(LockedError), locks.hold(name, SERVER):
                pass
            with locks.hold(name, CLEANUP):
                pass
        process.kill()
        process.wait()
        with locks.hold(other, SERVER):
            pass


def test_who_waits_says_so_once_and_gets_the_lock_in_the_end(path: Path) -> None:
    with holder(path, "CLEANUP") as process:
        assert process.stdin
        told: list[Callable[[], Any]] = []

        def wait() -> None:
            told.append(process.kill)
            process.kill()

        with locks.hold(path, CLEANUP, wait):
            assert len(told) == 1


def test_a_lock_does_not_take_those_of_sqlite_away(path: Path) -> None:
    """Closing the file in any way would: so the lock is held for longer than the database is open."""
    with locks.hold(path, SERVER):
        connection = sqlite.connect(path)
        connection.execute("BEGIN IMMEDIATE")
        program = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"
        other = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True)
        assert "database is locked" in other.stderr
        connection.close()


def test_a_file_system_without_locks_is_told_in_a_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    for name in ("flock", "fcntl"):
        with monkeypatch.context() as patch:
            patch.setattr(fcntl, name, no_locks)
            with pytest.raises(OSError, match="does not support locks") as refused, locks.hold(path, SERVER):
                pass
            assert Path(refused.value.filename).name in ("chat.db", "chat.db.server-lock")


def test_locks_are_the_owners_alone_whatever_the_umask_is(path: Path) -> None:
    before = os.umask(0)
    try:
        with locks.hold(path, SERVER):
            assert path.with_name("chat.db.server-lock").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def test_a_lock_file_that_is_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    path.with_name("chat.db.server-lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"), locks.hold(path, SERVER):
        pass
    assert (tmp_path / "precious").read_text() == "precious"
