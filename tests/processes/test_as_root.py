"""Commands that root runs on the database of somebody else, as an operator does who is in a hurry."""

import os
import shutil
from pathlib import Path

import pytest

from tests.support import stores
from tests.support.server import ServerProcess, capless, conclave

SQL = '[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n'

NOBODY = 65_534

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """A folder of nobody's, with a database in which no run has taken place, as after a restore."""
    with ServerProcess(tmp_path, SQL) as server:
        server.wait_for("cleanup_run")
        assert server.stop()[0] == 0
    for lock in (
        "conclave.db.cleanup-lock",
        "conclave.db.server-lock",
        "conclave.vault/lock",
        "conclave.vault/keys-lock",
    ):
        (tmp_path / lock).unlink()
    for path in (tmp_path, *tmp_path.rglob("*")):
        shutil.chown(path, NOBODY, NOBODY)
    return tmp_path


def of_root(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.lstat().st_uid == 0}


@pytest.mark.parametrize(
    "command",
    [
        "cleanup run",
        "cleanup run --dry-run",
        "archive verify",
        "archive restore 0b6c0b6c-0b6c-4b6c-8b6c-0b6c0b6c0b6c",
        "cleanup purge --group friends --before 1d --yes",
        "verify-erasure",
    ],
)
def test_root_makes_no_files_of_runs_for_somebody_else(served: Path, command: str) -> None:
    """The server could not read what root archives, nor write to a ledger that root has compacted."""
    done = conclave(*command.split(), cwd=served)
    assert done.returncode == 1
    configuration, refusal = done.stderr.splitlines()
    assert configuration.startswith("conclave: configuration: ")
    assert "run this as that user, with sudo -u 'nobody'" in refusal
    assert of_root(served) == set()


def test_root_makes_no_backup_among_those_of_somebody_else(served: Path) -> None:
    """The nightly backup could neither link files to it, nor ever remove it."""
    folder = served.parent / "backups"
    folder.mkdir()
    try:
        shutil.chown(folder, NOBODY, NOBODY)
        done = conclave("backup", str(folder), cwd=served)
        assert done.returncode == 1
        assert "run this as that user, with sudo -u 'nobody'" in done.stderr
        assert list(folder.iterdir()) == []
    finally:
        shutil.rmtree(folder)


def test_locks_that_root_makes_are_the_owners_of_the_folder(served: Path) -> None:
    commands = "user create carol", "backup ../backups", "verify-erasure --read-only", "user delete carol --yes"
    for command in commands:
        done = conclave(*command.split(), cwd=served)
        assert done.returncode == 0, done.stderr
    assert (served / "conclave.db.cleanup-lock").stat().st_uid == NOBODY
    assert of_root(served) == set()
    shutil.rmtree(served.parent / "backups")


def test_a_copy_of_the_vault_that_root_updates_is_the_owners_of_its_folder(served: Path) -> None:
    """Otherwise the server could not update it any more."""
    copy = served / "copy"
    copy.mkdir()
    shutil.chown(copy, NOBODY, NOBODY)
    for name in ("carol", "dave"):
        done = conclave("backup", "--vault-copy", str(copy), "../backups", cwd=served)
        assert done.returncode == 0, done.stderr
        assert {path.name for path in copy.iterdir()} == {"keys", "ledger"}
        assert of_root(served) == set()
        done = conclave("user", "create", name, cwd=served)
        assert done.returncode == 0, done.stderr
    shutil.rmtree(served.parent / "backups")


def test_a_server_that_is_roots_locks_as_before(served: Path) -> None:
    with ServerProcess(served, SQL) as server:
        server.wait_for("cleanup_run")
        assert server.stop()[0] == 0


@pytest.mark.parametrize(
    ("mode", "told"),
    [(0o755, "belongs to another user: chown it to the user who makes the"), (0o700, "Permission denied")],
)
def test_a_folder_for_backups_that_somebody_else_has_made_is_told_in_one_line(
    tmp_path: Path, mode: int, told: str
) -> None:
    """As root does for the server's user. Here it is nobody's, and whoever comes has lost the powers of root."""
    stores.prepare(tmp_path / "conclave.db")
    folder = tmp_path / "backups"
    folder.mkdir()
    folder.chmod(mode)
    shutil.chown(folder, NOBODY, NOBODY)
    (tmp_path / "conclave.toml").touch()
    done = capless("-P", "-m", "conclave", "backup", "--config", "conclave.toml", "backups", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"conclave: {folder}")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
