"""Stores whose messages are under keys, and what may be known of erased ones from every file that there is."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from conclave.clock import FakeClock
from conclave.config.vault import VaultConfig
from conclave.keys import tree
from conclave.keys.inspection import Inspection
from conclave.retention.policy import KEEP
from conclave.store import keyring, message_keys
from conclave.store.engine import sqlite
from spark import run
from spark.environment import RunEnvironment
from tests.support.archived import Store
from tests.support.backups import Backed

Message = tuple[int, int]
"""The key of a group, a sequence number."""


class Keyed(Store):
    """A store whose messages are under keys. What is stored is noted as it lies there, to be looked for later."""

    after = KEEP
    """The age at which messages move to the archive: none does, so that runs need no Spark."""

    stored: dict[Message, bytes]
    roots: dict[tuple[bytes, int], bytes]

    def begin_keys(self, *copies: Path) -> None:
        """Make the vault, as the first start of a server does. ``copies``: folders of copies of it."""
        self.stored, self.roots = {}, {}
        archive = replace(self.config.archive, after=self.after)
        vault = VaultConfig(copies=tuple(map(str, copies)))
        self.config = replace(self.config, vault=vault, archive=archive)
        self.start()

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction, with keys once there are any; note what it has stored."""
        database = self.config.database
        with closing(sqlite.connect(database)) as connection, sqlite.write_transaction(connection):
            keys = keyring.open_to_read(database, self.config.keys_path)
            connection.keys = keys
            try:
                yield connection
                if keys:
                    self._note(connection)
            finally:
                if keys:
                    keys.close()

    def _note(self, connection: sqlite3.Connection) -> None:
        query = "SELECT group_key, sequence_num, body FROM messages JOIN message_bodies USING (message_id)"
        for group_key, number, body in connection.execute(query).fetchall():
            self.stored.setdefault((group_key, number), body)
        found = Inspection(self.config.keys_path)
        for block in found.blocks():
            nodes = found.cover(*block)
            if block not in self.roots and nodes[0].position == tree.ROOT:
                self.roots[block] = nodes[0].secret

    def derivable(self, path: Path) -> set[Message]:
        """Return the messages that were ever stored whose keys follow from a key file, or a copy of one."""
        found = Inspection(path)
        return {
            (key, number) for key, number in self.stored if found.have_keys(self.group_ids[key], [number]) == [True]
        }

    def expect_lost(self, erased: Iterable[Message], *folders: Path) -> None:
        """No node on the way to the keys of these is in any byte of any file there, nor what was stored of them."""
        data = b"\n".join(
            each.read_bytes() for folder in folders for each in sorted(folder.rglob("*")) if each.is_file()
        )
        for key, number in erased:
            root = self.roots[self.group_ids[key], number >> tree.HEIGHT]
            leaf = tree.BLOCK + number % tree.BLOCK
            for steps in range(tree.HEIGHT + 1):
                node = tree.descend(root, leaf >> steps, tree.HEIGHT - steps)
                assert node not in data, f"a node {steps} steps above the key of message {number}"

    def bytes_left(self, erased: Iterable[Message], folder: Path) -> set[Message]:
        """Return of which of these, as they were stored, a piece is in a file of the folder."""
        data = b"\n".join(each.read_bytes() for each in sorted(folder.rglob("*")) if each.is_file())
        return {each for each in erased if self.stored[each][:24] in data or self.stored[each][-24:] in data}

    def noted(self) -> int:
        """Return how many ranges of keys are still to be lost."""
        return int(self.query("SELECT count(*) FROM key_erasures")[0][0])


class KeyedBackups(Keyed, Backed):
    """One of which backups are made."""


def clean(store: Store) -> None:
    """Do a whole run, now, in this process."""
    with closing(RunEnvironment(store.config, FakeClock(store.now))) as engine:
        assert run.clean_up(engine).error == ""


def state(database: Path) -> message_keys.KeyState | None:
    """Return what a database knows of its key file."""
    with closing(sqlite.connect(database, readonly=True)) as connection:
        return message_keys.state(connection)
