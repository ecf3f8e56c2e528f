"""Accounts for every byte of the key file: from no node of it follows the key of a message that was erased.

And shows of backups, with every copy of the key file that is known, that none of their messages can be read that is
erased today.
"""

import os
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from conclave.actions.replay import NUMBERS
from conclave.archive import numbers
from conclave.archive.files import LOG
from conclave.config.settings import Config
from conclave.keys import copying, ranges
from conclave.keys.cover import Range
from conclave.keys.file import KeyFileError
from conclave.keys.inspection import Inspection
from conclave.keys.replacing import FORMER, LOCK, NEW, beside
from conclave.keys.tree import HEIGHT
from conclave.proof.findings import Finding, Kind, ProofPart
from conclave.store.archive import unreadable
from conclave.store.engine import sqlite
from conclave.store.engine.faults import StoreError
from conclave.store.resources import message_keys
from conclave.store.resources.message_keys import KeyCopy
from conclave.system import locks

Numbers = Mapping[bytes, Sequence[Range]]
"""Numbers of messages, by ids of groups."""


def examine(part: ProofPart, config: Config) -> None:
    """Look at the key file. The run lock is held. Raises StoreError, sqlite3.Error or OSError."""
    with closing(sqlite.connect(config.database, readonly=True)) as connection:
        state = message_keys.state(connection)
    if state is None:
        part.notes.append("no message is under a key: copies tell what was erased since they were made")
        return
    path = config.keys_path
    try:
        with locks.hold_file(beside(path, LOCK), _wait):  # no other process changes it meanwhile
            found = _looked_at(part, path)
    except KeyFileError as error:
        part.add(Finding(Kind.UNREADABLE, str(path), str(error)))
        return
    part.count("bytes", found.size)
    if not state.is_settled:
        part.notes.append("the keys of what a restore took back are lost with the next start of the server")
        return
    # The database after the keys: what came meanwhile has numbers that count as not given yet.
    with closing(sqlite.connect(config.database, readonly=True)) as connection:
        connection.execute("BEGIN")
        alive, unused = _today(connection, config.archive_path), defaultdict[bytes, list[Range]](list)
        _count_waiting(part, connection)
        for group_id, some in message_keys.unused(connection):
            unused[group_id].append(some)
    for group_id, block in found.blocks():
        part.count("covers")
        first = block << HEIGHT
        # Numbers begin one above a multiple of this, in a new group and after each restore.
        never = [Range(first, first)] if first % NUMBERS == 0 else []
        allowed = ranges.joined([*alive.get(group_id, ()), *unused.get(group_id, ()), *never])
        if dead := ranges.without(found.ranges(group_id, block), allowed):
            told = f"the keys of {ranges.count(dead):,} numbers of group {group_id.hex()} that no message has"
            part.add(Finding(Kind.KEYS, str(path), told, None, found.offset(group_id, block)))


def _looked_at(part: ProofPart, path: Path) -> Inspection:
    """Look at a key file that no other process writes meanwhile, and at what lies beside it. Raises KeyFileError."""
    for suffix in (NEW, FORMER):
        if (left := beside(path, suffix)).exists():
            part.add(Finding(Kind.KEYS, str(left), "was left by a process that died: who writes the file removes it"))
    found = Inspection(path)
    for flaw in found.flaws:
        part.add(Finding(Kind.KEYS, str(path), flaw.told, None, flaw.offset))
    return found


def _count_waiting(part: ProofPart, connection: sqlite3.Connection) -> None:
    """Tell of messages of the archive that wait to be overwritten: their keys are looked for as those of others."""
    if waits := unreadable.waiting(connection).messages:
        part.count("archived messages that are unreadable and not overwritten yet", waits)


def _wait() -> None:
    """Another process changes the file, which takes less than a second, or writes a copy of it."""


def _today(connection: sqlite3.Connection, folder: Path) -> dict[bytes, Sequence[Range]]:
    """Return the numbers of the messages that there are. ``folder``: of the archive."""
    return {group_id: some for (group_id, some), _ in message_keys.living(connection, _archived(connection, folder))}


def _archived(connection: sqlite3.Connection, folder: Path) -> dict[int, list[Range]]:
    has_any = connection.execute("SELECT EXISTS (SELECT 1 FROM archive_parts)").fetchone()[0]
    return numbers.in_table(folder) if has_any and (folder / LOG).is_dir() else {}


class Copies(NamedTuple):
    """The backups that are kept in a folder. ``backups``: lists them, and raises if there are none."""

    folder: Path
    backups: Callable[[], Sequence[Path]]


def examine_copies(part: ProofPart, config: Config, copies: Copies) -> None:
    """Look at the backups that are kept, with every copy of the key file. The run lock is held.

    One that is removed meanwhile, as ``backup --keep`` does, is left out. Raises StoreError, sqlite3.Error or OSError.
    """
    with closing(sqlite.connect(config.database, readonly=True)) as connection:
        connection.execute("BEGIN")
        noted = message_keys.copies(connection)
        alive = _today(connection, config.archive_path)
    opened = _opened(part, config, copies.folder, noted)
    part.count("key files", len(opened))
    for backup in copies.backups():
        try:
            keyed = _of_backup(backup)
        except (StoreError, sqlite3.Error, numbers.UnreadableError) as error:
            if backup in copies.backups():
                part.count("backups")
                part.add(Finding(Kind.UNREADABLE, str(backup), f"cannot be looked at: {error}"))
            continue
        part.count("backups")
        _compare(part, backup, keyed, alive, opened)


def _opened(part: ProofPart, config: Config, folder: Path, noted: Sequence[KeyCopy]) -> list[Inspection]:
    """Look at every key file that is known. One that cannot be read proves nothing.

    ``noted``: where copies were written. One that is away may have keys that were lost since.
    """
    found, unreadable = [], set[Path]()
    own, places = config.keys_path, [folder / "keys", *map(Path, [*config.keys.copies, *(each.path for each in noted)])]
    for path in dict.fromkeys([own, *places]):
        try:
            with _undisturbed(own, path) as real:
                left_over = [left for suffix in (NEW, FORMER) if (left := beside(real, suffix)).exists()]
                for left in left_over:
                    with suppress(KeyFileError):  # found as what it is, whatever it has
                        found.append(Inspection(left))
                if left_over or real.exists():
                    found.append(_looked_at(part, real))
        except KeyFileError as error:
            unreadable.add(path)
            part.add(Finding(Kind.UNREADABLE, str(path), str(error)))
    now = max((each.serial for each in found if each.path == own), default=0)
    for copy in noted:
        path = Path(copy.path)
        if copy.serial < now and path not in unreadable and not path.exists():  # its disk may not answer
            part.kept.append(f"{copy.path}: is not there: a copy of the keys from before some of them were lost")
    return found


@contextmanager
def _undisturbed(own: Path, path: Path) -> Iterator[Path]:
    """Keep other processes from writing the key file ``own``, or its copy ``path``, while the block lasts.

    Yields where the file is: something may lie beside it, and not beside a link to it. Raises KeyFileError if the disk
    of the copy does not answer.
    """
    is_own = path == own
    if not is_own:
        copying.head(path)  # before anything waits for that disk
        path = Path(os.path.realpath(path))
    if not own.exists() or not path.parent.exists():
        yield path
    else:
        with locks.hold_file(beside(own, LOCK), _wait) if is_own else copying.none_written(own, path):
            yield path


def _compare(part: ProofPart, backup: Path, keyed: Numbers, alive: Numbers, opened: Sequence[Inspection]) -> None:
    """Tell which messages of a backup can be read, and find those that are erased today."""
    blocks: dict[bytes, list[tuple[Inspection, int]]] = defaultdict(list)
    for each in opened:
        for group_id, block in each.blocks():
            blocks[group_id].append((each, block))
    for group_id, some in keyed.items():
        can = ranges.joined(found for each, block in blocks.get(group_id, ()) for found in each.ranges(group_id, block))
        readable, today = ranges.both(some, can), alive.get(group_id, ())
        part.count("messages under keys", ranges.count(some))
        part.count("of these erased today", ranges.count(ranges.without(some, today)))
        part.count("of these readable", ranges.count(readable))
        if dead := ranges.without(readable, today):
            told = f"{ranges.count(dead):,} messages of group {group_id.hex()} that are erased today can be read"
            part.add(Finding(Kind.KEYS, str(backup), told))


def _of_backup(backup: Path) -> Numbers:
    """Return the messages of a backup that are under keys: all or none. Raises sqlite3.Error or UnreadableError."""
    database, folder = backup / "database.db", backup / "archive"
    with closing(sqlite.connect(database, readonly=True, frozen=True)) as connection:
        if not message_keys.has_keys(connection):
            return {}
        return {each: some for (each, some), _ in message_keys.living(connection, _archived(connection, folder))}
