"""A copy of the vault on a disk that does not answer: no process waits for it for longer than a bound."""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conclave.backup import restoring, vault as backup_vault
from conclave.backup.manifest import BackupError
from conclave.clock import FakeClock
from conclave.config.settings import KEYS, Config
from conclave.config.vault import VaultConfig
from conclave.doctor import database as doctor_database
from conclave.doctor.files import permissions
from conclave.keys import copying
from conclave.keys.file import head_of
from conclave.keys.store import KeyStore
from conclave.proof.findings import FindingKind, ProofPart
from conclave.proof.keys import examine
from conclave.store.engine import sqlite
from conclave.system import disk_timeout
from spark import run
from spark.environment import RunEnvironment
from tests.support.archived import DAY
from tests.support.keyed import KeyedBackups, clean

SILENT = "its disk does not answer"


@contextmanager
def hanging(path: Path) -> Iterator[None]:
    """Have whoever opens ``path`` wait until the block ends, as on a disk of the network that is away."""
    path.rename(path.with_name("former"))
    os.mkfifo(path)
    try:
        yield
    finally:
        for waits in list(disk_timeout._hung.values()):
            while waits.is_alive():
                os.close(os.open(path, os.O_RDWR))  # who waits finds an empty file
                waits.join(0.05)
        path.unlink()
        path.with_name("former").rename(path)


@contextmanager
def silent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Have whatever is asked of ``folder`` wait until the block ends. Yields who asked but who is waited for."""
    answers, asked = threading.Event(), list[str]()

    def waiting(name: str) -> Callable[..., Any]:
        ask = getattr(os, name)

        def wait(path: Any, *args: Any, **options: Any) -> Any:
            if not isinstance(path, int) and Path(os.fsdecode(path)).is_relative_to(folder):
                if threading.current_thread().name == "disk":
                    answers.wait(60)
                else:
                    asked.append(f"{name} {path}")
            return ask(path, *args, **options)

        return wait

    with monkeypatch.context() as patch:
        for name in ("stat", "lstat", "open", "readlink"):
            patch.setattr(os, name, waiting(name))
        try:
            yield asked
        finally:
            answers.set()
            for thread in list(disk_timeout._hung.values()):
                thread.join()


@pytest.fixture
def away(tmp_path: Path) -> Path:
    """The key file of a copy of the vault."""
    return tmp_path / "away" / KEYS


@pytest.fixture
def store(tmp_path: Path, away: Path, monkeypatch: pytest.MonkeyPatch) -> KeyedBackups:
    """One with a copy that is about to be away, and another."""
    monkeypatch.setattr(copying, "TIMEOUT_SECONDS", 0.1)
    made = KeyedBackups(tmp_path)
    made.begin_keys(away.parent, tmp_path / "other")
    made.send(made.add_group(DAY), 5)
    clean(made)
    return made


def behind(store: KeyedBackups, *copies: Path) -> list[int]:
    """Return how far these copies are behind the key file, in changes."""
    with closing(KeyStore(store.config.keys_path)) as own:
        return [own.serial - head.serial for each in copies if (head := head_of(each))]


def cleaned(store: KeyedBackups) -> str:
    """Do a run, and return its error."""
    with closing(RunEnvironment(store.config, FakeClock(store.now))) as engine:
        return run.clean_up(engine).error


def test_a_run_erases_loses_the_keys_and_renews_the_other_copies(store: KeyedBackups, away: Path) -> None:
    other = store.config.vault_copies[1] / KEYS
    store.now += 2 * DAY
    with hanging(away):
        assert cleaned(store) == f"keys: vault.copies: {away}: {SILENT}"
        assert store.query("SELECT count(*) FROM messages")[0][0] == 0
        assert store.noted() == 0
        assert behind(store, other, away.with_name("former")) == [0, 1]
        assert cleaned(store) == f"keys: vault.copies: {away}: {SILENT}", "one waits already"
    assert cleaned(store) == ""
    assert behind(store, away) == [0]


def test_a_server_starts_and_a_copy_is_made_elsewhere(store: KeyedBackups, away: Path, tmp_path: Path) -> None:
    with hanging(away):
        store.start()
        store.back_up()
        backup_vault.copy(store.config, tmp_path / "third")
    assert behind(store, tmp_path / "third" / KEYS) == [0]


def test_a_backup_is_restored_and_a_missing_vault_is_told_with_the_copy_that_does_not_answer(
    store: KeyedBackups, away: Path, tmp_path: Path
) -> None:
    store.send(store.add_group(), 5)
    made = store.back_up().path
    there = tmp_path / "there"
    there.mkdir()
    shutil.copytree(store.config.vault_path, there / "vault")
    config = replace(
        store.config,
        database_path=str(there / "hot.db"),
        vault=replace(store.config.vault, path=str(there / "vault"), copies=(str(away.parent),)),
    )
    with hanging(away):
        (there / "vault").rename(there / "aside")
        with pytest.raises(BackupError, match=f"the vault of this server is not at .*; {away}: {SILENT}: copy the new"):
            restoring.restore(config, FakeClock(store.now), made, lambda _: "")
        shutil.rmtree(there / "vault")
        (there / "aside").rename(there / "vault")
        restoring.restore(config, FakeClock(store.now), made, lambda _: "")
    assert config.database.exists()


def test_writing_a_copy_elsewhere_waits_for_no_other_disk(store: KeyedBackups, away: Path, tmp_path: Path) -> None:
    """The lock that keeps two processes from writing the same copy is for its folder."""
    with hanging(away), copying.copy_lock(store.config.keys_path, away):
        backup_vault.copy(store.config, tmp_path / "third")
        assert behind(store, tmp_path / "third" / KEYS) == [0]


def test_the_proof_says_which_copy_it_could_not_look_at(store: KeyedBackups, away: Path) -> None:
    part = ProofPart("key file")
    with hanging(away):
        examine(part, store.config)
    assert [(each.kind, each.told) for each in part.findings] == [(FindingKind.UNREADABLE, f"{away}: {SILENT}")]


def test_a_copy_that_does_not_answer_is_not_counted_as_one(store: KeyedBackups, away: Path) -> None:
    """A disk that is away brings no keys back when the vault is lost."""

    def told() -> list[str]:
        with closing(sqlite.connect(store.config.database, readonly=True)) as connection:
            return [each.says for each in doctor_database.vault(connection, store.config)][1:]

    one, other = store.config.vault_copies
    assert told() == [f"{one}: is an up-to-date copy", f"{other}: is an up-to-date copy"]
    with hanging(away):
        assert told() == [f"{one}: {SILENT}", f"{other}: is an up-to-date copy"]


def test_only_who_can_be_left_waiting_asks_the_disk(
    store: KeyedBackups, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when settings are read, nor when the proof or doctor has found that it does not answer."""
    part, text = ProofPart("key file"), store.config.to_json()
    store.now += 2 * DAY
    with silent(away.parent, monkeypatch) as asked:
        assert str(away.parent) in Config.from_json(text).vault.copies
        assert cleaned(store) == f"keys: vault.copies: {away.parent}: {SILENT}"
        store.start()
        examine(part, store.config)
        assert [each.says for each in permissions(store.config, None) if SILENT in each.says] == [f"{away}: {SILENT}"]
    assert asked == []
    assert [each.told for each in part.findings if each.kind is FindingKind.UNREADABLE] == [f"{away}: {SILENT}"]
    assert part.kept == []


def test_a_copy_behind_a_link_is_renewed_where_it_is(store: KeyedBackups, away: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(away.parent)
    store.config = replace(store.config, vault=VaultConfig(copies=(str(link),)))
    store.now += 2 * DAY
    assert cleaned(store) == ""
    assert link.readlink() == away.parent
    assert behind(store, away) == [0]
