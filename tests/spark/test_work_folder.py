"""Folders of temporary files: whose process has ended is known by a lock, and by nothing else."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spark.work_folder import WorkFolder, remove_dead

HOLD = """
import sys, time
from pathlib import Path
from spark.work_folder import WorkFolder
held = WorkFolder(Path(sys.argv[1]))
print(held.path, flush=True)
time.sleep(600)
"""


def leave(work: Path, name: str) -> Path:
    """Make a folder as a process that has ended has left it, with a file."""
    folder = work / name
    (folder / "blockmgr").mkdir(parents=True)
    (folder / "blockmgr" / "shuffle").write_bytes(b"a body")
    return folder


def test_a_folder_is_dead_when_its_process_is_even_if_another_has_its_number_today(tmp_path: Path) -> None:
    dead = leave(tmp_path, str(os.getpid()))
    assert remove_dead(tmp_path) == []
    assert not dead.exists()


def test_a_folder_in_use_stays_until_its_process_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-P", "-c", HOLD, tmp_path], stdout=subprocess.PIPE) as process:
        assert process.stdout
        held = Path(process.stdout.readline().decode().strip())
        (held / "file").write_bytes(b"a body")
        assert remove_dead(tmp_path) == []
        assert (held / "file").exists()
        process.kill()
    assert remove_dead(tmp_path) == []
    assert not held.exists()


def test_a_folder_stays_as_long_as_a_child_has_its_lock(tmp_path: Path) -> None:
    folder = WorkFolder(tmp_path)
    child = subprocess.Popen(["sleep", "600"], pass_fds=[folder.descriptor])
    os.close(folder.descriptor)  # as the end of this process would
    assert remove_dead(tmp_path) == []
    assert folder.path.exists()
    child.kill()
    child.wait()
    assert remove_dead(tmp_path) == []
    assert not folder.path.exists()


def test_links_are_not_followed_and_only_folders_are_touched(tmp_path: Path) -> None:
    outside = leave(tmp_path / "outside", "kept")
    work = tmp_path / "work"
    dead = leave(work, "dead")
    (dead / "link").symlink_to(outside)
    (work / "link").symlink_to(outside)
    (work / "note").write_text("of an operator")
    mine = WorkFolder(work)
    (mine.path / "link").symlink_to(outside)
    (mine.path / "file").write_bytes(b"a body")
    assert remove_dead(work) == []
    mine.empty()
    assert sorted(path.name for path in work.iterdir()) == sorted([mine.path.name, "link", "note"])
    assert not (mine.path / "file").exists()
    assert (outside / "blockmgr" / "shuffle").exists()


def test_what_cannot_be_removed_is_told_and_the_rest_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault is made up: there are none for root."""
    stuck, other = leave(tmp_path, "stuck"), leave(tmp_path, "other")
    really = os.unlink

    def unlink(path: str, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None and "stuck" in Path(f"/proc/self/fd/{dir_fd}").readlink().parts:
            raise PermissionError(1, "Operation not permitted", path)
        really(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", unlink)
    [told] = remove_dead(tmp_path)
    assert told.startswith(f"{stuck}: ")
    assert told.endswith("cannot be removed: Operation not permitted")
    assert not other.exists()


def test_a_folder_that_is_just_made_is_never_taken_for_a_dead_one(tmp_path: Path) -> None:
    """Many are made while others look for dead ones all the time."""
    stop = threading.Event()
    faults: list[str] = []

    def look() -> None:
        while not stop.is_set():
            faults.extend(remove_dead(tmp_path))

    looking = [threading.Thread(target=look) for _ in range(3)]
    for thread in looking:
        thread.start()
    made = []
    for _ in range(300):
        made.append(WorkFolder(tmp_path))
        (made[-1].path / "file").touch()
    stop.set()
    for thread in looking:
        thread.join()
    assert faults == []
    assert all((folder.path / "file").exists() for folder in made)
    assert len(list(tmp_path.iterdir())) == len(made), "those that were found before they were locked are gone"
    for folder in made:
        os.close(folder.descriptor)
