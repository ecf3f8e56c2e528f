"""`conclave backup`: what it says of the vault, and that no backup has the keys."""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conclave.backup import restoring
from conclave.backup.restoring import RestoreResult
from conclave.cli import backup
from conclave.cli.main import main
from conclave.config.settings import KEYS, LEDGER
from tests.support.archived import DAY
from tests.support.commands import done, refused
from tests.support.keyed import KeyedBackups

Back = Callable[..., Result]


@pytest.fixture
def store(tmp_path: Path) -> KeyedBackups:
    made = KeyedBackups(tmp_path)
    made.begin_keys()
    made.send(made.add_group(), 3)
    made.write_ledger()
    return made


@pytest.fixture
def back_up(store: KeyedBackups, monkeypatch: pytest.MonkeyPatch) -> Back:
    monkeypatch.setattr("conclave.cli.common.use_console_log", lambda: None)
    monkeypatch.setattr(backup, "exit_on_signals", nullcontext)
    monkeypatch.setattr("os.nice", lambda _: 0)
    config = store.folder / "conclave.toml"

    def run(*words: str | Path, settings: str = "") -> Result:
        config.write_text(f'database_path = "{store.config.database}"\n[cleanup]\nengine = "sql"\n{settings}')
        return CliRunner().invoke(backup.backup, ["--config", str(config), *map(str, words)])

    return run


def test_a_copy_of_the_vault_is_made_beside_the_backups_and_in_none_of_them(
    store: KeyedBackups, back_up: Back, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    result = back_up("--vault-copy", copy, store.backups)
    assert f"vault copied to {copy}" in done(result)
    assert result.stderr == ""
    assert store.derivable(copy / KEYS) == set(store.served())
    assert (copy / LEDGER).read_bytes() == store.config.ledger_path.read_bytes()
    data = b"".join(each.read_bytes() for each in store.backups.rglob("*") if each.is_file())
    assert not any(root in data for root in store.roots.values())


@pytest.mark.parametrize("place", ["", "vault", "link/vault"])
def test_a_copy_of_the_vault_within_the_backups_is_refused_before_anything_is_made(
    store: KeyedBackups, back_up: Back, tmp_path: Path, place: str
) -> None:
    """By whatever name it leads there."""
    store.backups.mkdir()
    (tmp_path / "link").symlink_to(store.backups)
    target = tmp_path / place if place.startswith("link") else store.backups / place
    told = refused(back_up("--vault-copy", target, store.backups))
    assert told == f"--vault-copy: {target} is inside {store.backups}: backups must not contain the keys"
    assert list(store.backups.iterdir()) == []


def test_that_there_is_no_copy_of_the_vault_is_told(store: KeyedBackups, back_up: Back, tmp_path: Path) -> None:
    result = back_up(store.backups)
    done(result)
    assert result.stderr == (
        f"note: the backup cannot be read without {store.config.vault_path}, which has no copy: set"
        " vault.copies, or use --vault-copy\n"
    )
    result = back_up(store.backups, settings=f'[vault]\ncopies = ["{tmp_path}/copy"]\n')
    assert "the vault" not in done(result) + result.stderr


def test_a_first_backup_does_not_claim_to_share_files_with_an_earlier_one(store: KeyedBackups, back_up: Back) -> None:
    """On the disk of the server it shares them with the server."""
    group = store.add_group()
    store.send(group, 4)
    store.now += 40 * DAY
    store.move(group, 4)
    assert " shared with the server or a backup\n" in done(back_up(store.backups))


def test_a_restore_tells_what_the_ledger_has_ended_or_changed_again(
    store: KeyedBackups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In words, and without the server's own sign of life."""
    counts = Counter(groups_deleted=2, holds=0, sessions=1, alive=1)
    result = RestoreResult(store.back_up().manifest, replayed=counts)
    monkeypatch.setattr(restoring, "restore", lambda *_, **__: result)
    monkeypatch.chdir(store.folder)
    told = done(CliRunner().invoke(main, ["restore", "backup"]))
    assert "\nended or changed again: 2 groups deleted, 1 sessions\n" in told
