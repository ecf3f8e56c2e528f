"""kill -9 of a backup and of a restore at every point, and a full disk: a whole one is there, or none."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conclave.backup import checking
from conclave.backup.destination import MARK, UNFINISHED, backups_in
from conclave.store.engine import path_check
from tests.support.archived import DAY
from tests.support.backups import Backed
from tests.support.failpoints import BACKUP_POINTS, RETURN_POINTS
from tests.support.sample import some
from tests.support.server import PATIENCE, conclave

HEEDLESS = (
    "from conclave.backup import making; making.KEPT_FREE_BYTES = -10**9; from conclave.__main__ import main; main()"
)
"""The command, without looking first whether there is room."""

MIB = 1024 * 1024


@pytest.fixture
def store(tmp_path: Path) -> Backed:
    """A store with messages in both tiers, and a configuration file."""
    made = Backed(tmp_path)
    group = made.add_group()
    made.send(group, 4, size=20_000)
    made.now += 40 * DAY
    made.send(group, 4, size=20_000)
    made.move(group, 6)
    configure(made)
    return made


def configure(store: Backed) -> None:
    """Write the store's places into a configuration file. No run of a server may need Java."""
    (store.folder / "conclave.toml").write_text(
        f'listen_port = 0\ndatabase_path = "{store.config.database}"\n'
        '[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n[admin]\nlisten_port = 0\n'
    )


def run(store: Backed, *words: str | Path, failpoint: str = "") -> subprocess.CompletedProcess[str]:
    return conclave(*words, "--config", "conclave.toml", cwd=store.folder, env={"CONCLAVE_FAILPOINT": failpoint})


def done(store: Backed, *words: str | Path) -> str:
    result = run(store, *words)
    assert result.returncode == 0, result.stderr
    return result.stdout


def die(store: Backed, point: str, *words: str | Path) -> None:
    assert run(store, *words, failpoint=f"{point}=kill").returncode == -signal.SIGKILL, f"{point} was not reached"


def expect_whole(store: Backed) -> list[Path]:
    """Every backup that has a name is whole; return them."""
    for each in list(backups_in(store.backups)):
        assert each.manifest, each.fault
        assert checking.find_faults(each.path, each.manifest) == []
    return [each.path for each in list(backups_in(store.backups))]


@pytest.mark.parametrize("point", some(BACKUP_POINTS, 2, "points of a backup"))
def test_a_backup_that_is_killed_leaves_no_half_one_and_the_next_goes_on(store: Backed, point: str) -> None:
    done(store, "backup", store.backups)
    [first] = expect_whole(store)
    die(store, point, "backup", "--keep", "1", store.backups)
    left = set(expect_whole(store))
    assert left - {first} if point in ("backup.completed", "backup.renamed_away") else left == {first}
    done(store, "backup", "--keep", "2", store.backups)
    backups = expect_whole(store)
    assert {path.name for path in store.backups.iterdir()} == {MARK, *(path.name for path in backups)}
    there, _ = store.restored(backups[-1])
    assert there.served() == store.served()


@pytest.mark.parametrize("point", some(RETURN_POINTS, 2, "points of a restore of all"))
def test_after_a_restore_that_is_killed_no_server_starts_until_it_is_repeated(store: Backed, point: str) -> None:
    done(store, "backup", store.backups)
    [backup] = expect_whole(store)
    served = store.served()
    (store.folder / "former").mkdir()
    for path in (*store.folder.glob("hot.db*"), store.config.data):
        shutil.move(path, store.folder / "former" / path.name)
    die(store, point, "restore", backup)
    assert path_check.restoring(store.config.database).exists()
    refused = run(store, "serve")
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].endswith("repeat `conclave restore`")
    if point == "return.placed":
        again = run(store, "restore", backup)
        assert (again.returncode, again.stderr.splitlines()[-1].rpartition(": ")[2]) == (1, "start the server")
    else:
        assert "restored to" in done(store, "restore", backup)
    assert store.served() == served
    assert not path_check.restoring(store.config.database).exists()
    assert {path.name for path in store.config.data.iterdir()} == {".conclave", "archive"}
    assert expect_whole(store) == [backup]


def test_a_full_disk_is_told_in_one_line_and_nothing_is_left(store: Backed, tmp_path: Path) -> None:
    """The disk is there for one shell only, so that shell looks what is left."""
    for _ in range(3):
        store.send(next(iter(store.group_ids)), 10, size=300_000)
    disk = tmp_path / "disk"
    disk.mkdir()
    unshare = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--mount", "--map-root-user")
    mount = (*unshare, "sh", "-c", f'mount -t tmpfs -o size=4m tmpfs "{disk}" && "$@"', "sh")
    if not shutil.which("unshare") or subprocess.run([*mount, "true"], capture_output=True).returncode:
        pytest.skip("this system lets no program mount a disk for itself")
    look = ("sh", "-c", f'"$@" 2>&1; ls -A "{disk}/backups"', "sh")
    mounted = (*mount, *look)
    command = ("backup", str(disk / "backups"), "--config", "conclave.toml")
    python = (sys.executable, "-P")
    ways = {"the disk is full": (*python, "-c", HEEDLESS), "not enough space": (*python, "-m", "conclave")}
    for told, program in ways.items():
        result = subprocess.run(
            [*mounted, *program, *command], cwd=store.folder, capture_output=True, text=True, timeout=PATIENCE
        )
        line, *left = result.stdout.splitlines()
        assert line.startswith("conclave: ")
        assert told in line
        assert left == [MARK]


def test_a_disk_that_fails_leaves_what_was_copied_to_the_next_backup(store: Backed) -> None:
    result = run(store, "backup", store.backups, failpoint="backup.caught_up=io")
    where = f"{store.config.database}, or its copy in {store.backups}"
    assert (result.returncode, result.stderr) == (1, f"conclave: {where}: disk I/O error\n")
    assert [path.name for path in store.backups.iterdir() if path.name != MARK] == [UNFINISHED]
    assert "archive: 0 bytes copied, 0 shared" in done(store, "backup", store.backups)
    assert len(expect_whole(store)) == 1


def test_the_commands_list_and_verify_what_is_there(store: Backed) -> None:
    done(store, "backup", store.backups)
    [backup] = expect_whole(store)

    def told(*words: str | Path) -> tuple[int, str, str]:
        result = conclave("backup", *words, cwd=store.folder)
        return result.returncode, result.stdout, result.stderr

    status, line, _ = told("verify", backup)
    assert (status, line.partition(":")[0]) == (0, "the backup is intact")
    assert backup.name in told("list", store.backups)[1]
    assert '"messages": 8' in told("list", store.backups, "--json")[1]
    (backup / "database.db").write_bytes(b"something else")
    status, faults, error = told("verify", backup, "--json")
    assert status == 1
    assert "database.db: has 14 bytes" in faults
    assert "the backup is damaged: 1 fault" in error
    assert run(store, "restore", backup).returncode == 1
