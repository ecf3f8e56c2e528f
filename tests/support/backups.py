"""A store in both tiers, its backups, and what is restored from them: in this process, and without Spark."""

import copy
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Self
from uuid import UUID

from conclave.backup import making, restoring
from conclave.backup.making import BackupResult
from conclave.backup.restoring import RestoreResult
from conclave.clock import FakeClock
from conclave.config.cleanup import CleanupConfig
from conclave.config.settings import Config
from conclave.config.vault import VaultConfig
from conclave.retention.policy import KEEP
from conclave.store.ledger import changes
from conclave.store.ledger.changes import drain
from spark import run
from spark.environment import RunEnvironment
from tests.support.archive import Mover
from tests.support.archived import Store
from tests.support.cleaner import Cleaner

_NO_SPARK: Cleaner = Cleaner.__new__(Cleaner)
"""Runs are done in this process."""


class Backed(Store):
    """A store of which backups are made."""

    def __init__(self, folder: Path) -> None:
        (home := folder / "home").mkdir()
        super().__init__(home, _NO_SPARK)
        self.config = replace(self.config, cleanup=CleanupConfig(engine="sql", disk_reserve=0))
        self.backups = folder / "backups"
        self.elsewhere = folder / "elsewhere"
        self.mover = Mover(self.config)
        self.write_ledger()

    def move(self, group_key: int, last: int, lifetime: int = KEEP) -> None:
        """Move a group's messages up to ``last`` into the archive."""
        self.mover.move(str(UUID(bytes=self.group_ids[group_key])), last, lifetime)

    def write_ledger(self) -> None:
        """Write to the ledger what a server would have written by now."""
        with self.opened() as connection:
            changes.claim(connection, is_alive=True)
        drain(self.config.database, self.config.ledger_path, self.now)

    def clean(self) -> None:
        """Do a run of the SQL engine, now, on a store without an archive."""
        config = replace(self.config, archive=replace(self.config.archive, after=KEEP))
        assert erase(config, FakeClock(self.now), is_hot_only=False) == ""

    def back_up(self, keep: int | None = None, wait: Callable[[], None] = lambda: None) -> BackupResult:
        """Make a backup, now."""
        return making.make(self.config, FakeClock(self.now), self.backups, keep, wait)

    def restored(
        self,
        backup: Path,
        *,
        accepts_older: bool = False,
        damaged: bool = False,
        vault: Path | None = None,
        **changed: Any,
    ) -> tuple[Self, RestoreResult]:
        """Restore elsewhere, now; return the store that is there. ``changed``: settings that it has instead.

        ``vault``: that it uses; by default one of its own, for which this store's is the copy.
        """
        self.elsewhere.mkdir(exist_ok=True)
        there = copy.copy(self)
        there.folder = self.elsewhere
        own = VaultConfig(str(vault) if vault else None)
        there.config = replace(self.config, database_path=str(self.elsewhere / "hot.db"), vault=own, **changed)
        there.mover = Mover(there.config)
        clock = FakeClock(self.now)
        from_copy = replace(there.config, vault=replace(own, copies=(str(self.config.vault_path),)))

        def erase_due(made: Config) -> str:
            return erase(made, clock)

        if vault and not os.path.lexists(link := there.config.database.with_suffix(".vault")):
            link.symlink_to(vault)  # where tests look for a connection's keys
        made = there.config if vault else from_copy
        return there, restoring.restore(made, clock, backup, erase_due, accepts_older=accepts_older, damaged=damaged)


def erase(config: Config, clock: FakeClock, *, is_hot_only: bool = True) -> str:
    """Do a run, over the hot store alone as a restore does; return its error."""
    with closing(RunEnvironment(config, clock, is_hot_only=is_hot_only)) as engine:
        return run.clean_up(engine).error


def everything_in(folder: Path) -> dict[str, bytes]:
    """Return all files under a folder with what is in them."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
