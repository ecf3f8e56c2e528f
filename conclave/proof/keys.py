"""Verifies that no erased message can be decrypted with the key file, its copies and backups.

Erased messages have no rows and no keys; only ciphertext may remain. So the proof examines keys: all nodes of the key
file and its copies must lead only to keys of existing messages. For backups it reports which messages are erased today
but can be decrypted with any key file.

Messages that are due but not erased yet count as existing; a dry run counts these. Findings contain paths and offsets,
never bodies or keys. The experiment then shows that erasing destroys keys.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from conclave.actions.replay import NUMBERS
from conclave.archive import numbers
from conclave.archive.faults import UnreadableArchiveError
from conclave.archive.files import LOG
from conclave.config.settings import Config
from conclave.keys import tree
from conclave.keys.file import KeyFileError
from conclave.keys.inspection import Inspection
from conclave.keys.replacing import FORMER, NEW
from conclave.keys.tree import HEIGHT, Range
from conclave.proof import key_files
from conclave.proof.findings import FindingKind, ProofFinding, ProofPart
from conclave.store import message_keys
from conclave.store.archive import moves
from conclave.store.engine import schema, sqlite
from conclave.store.engine.faults import StoreError
from conclave.store.message_keys import OTHERS
from conclave.system import locks
from conclave.system.locks import DatabaseLock

Numbers = Mapping[bytes, Sequence[Range]]
"""The numbers of messages by group id, and of other bodies under OTHERS."""


class BackupFolder(NamedTuple):
    """A folder with backups. ``backups``: returns them, and raises if there are none."""

    folder: Path
    backups: Callable[[], Sequence[Path]]


class ProofError(Exception):
    """The keys cannot be examined. The message is one line for the operator."""


class Examined(NamedTuple):
    """All readable key files, the server's first, and the numbers of all existing bodies."""

    opened: Sequence[Inspection]
    alive: Numbers


def verify(config: Config, wait: locks.Wait, copies: BackupFolder | None = None) -> list[ProofPart]:
    """Examine the keys, and return the results. Raises ProofError.

    ``copies``: backups to examine too. ``wait``: called before waiting for an active run.
    """
    found = [ProofPart("key file")]
    try:
        schema.require_current(config.database, writing=True)
        with closing(DatabaseLock(config.database, locks.CLEANUP)) as lock, lock.hold(wait):
            examined = examine(found[0], config)
            if copies:
                found.append(part := ProofPart("copies"))
                examine_copies(part, copies, examined)
    except (UnreadableArchiveError, StoreError, sqlite3.Error) as error:
        raise ProofError(str(error)) from error
    except OSError as error:
        raise ProofError(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error
    return found


def examine(part: ProofPart, config: Config) -> Examined:
    """Examine the key file and its copies. Call it with the run lock.

    Raises StoreError, sqlite3.Error, UnreadableArchiveError or OSError.
    """
    with closing(sqlite.connect(config.database, readonly=True)) as connection:
        state = message_keys.state(connection)
    opened = _opened(part, config, is_begun=state is not None)
    # Read the database after the keys: the numbers of new messages count as unused in the key files.
    with closing(sqlite.connect(config.database, readonly=True)) as connection:
        connection.execute("BEGIN")
        mine = next((each for each in opened if each.path == config.keys_path), None)
        archived = _archived(connection, config.archive_path, mine)
        if state and state.is_settled and mine:
            _account_archived(part, connection, archived, mine)
        alive, unused = _existing(connection, archived), defaultdict[bytes, list[Range]](list)
        for group_id, some in message_keys.never_used(connection):
            unused[group_id].append(some)
    if state is None:
        part.notes.append("this database has not been used by a server yet: there are no messages")
    elif not state.is_settled:
        part.notes.append("the keys of messages that a restore removed are erased when the server starts")
    else:
        for each in opened:
            _account(part, each, mine.serial if mine else 0, alive, unused)
    return Examined(opened, alive)


def _account(part: ProofPart, found: Inspection, own: int, alive: Numbers, unused: Numbers) -> None:
    """Compare the numbers that a file has keys for with existing ones. ``own``: the last change of the key file."""
    late = 0
    for group_id, block in found.blocks():
        part.count("covers")
        first = block << HEIGHT
        # The first number, in a new group and after each restore, is a multiple of NUMBERS plus one.
        never = [Range(first, first)] if first % NUMBERS == 0 else []
        allowed = tree.union([*alive.get(group_id, ()), *unused.get(group_id, ()), *never])
        dead = tree.count(tree.difference(found.ranges(group_id, block), allowed))
        if dead and found.serial < own:
            late += dead
        elif dead:
            told = f"the keys of {dead:,} numbers of {_named(group_id)} that do not exist"
            part.add(ProofFinding(FindingKind.KEYS, str(found.path), told, found.offset(group_id, block)))
    if late:
        part.kept.append(f"{found.path}: is an older copy, with the keys of {late:,} numbers that were erased since")


def _named(group_id: bytes) -> str:
    return "bodies other than messages" if group_id == OTHERS else f"group {group_id.hex()}"


def _opened(part: ProofPart, config: Config, *, is_begun: bool) -> list[Inspection]:
    """Inspect all key files, and add findings for unreadable files and leftovers."""
    found = []
    for path in key_files.known(config):
        try:
            with key_files.locked_files(config.keys_path, path) as (real, files):
                for each in files:
                    if each.name in (real.name + NEW, real.name + FORMER):
                        told = "was left by a process that died: the next writer of the key file removes it"
                        part.add(ProofFinding(FindingKind.KEYS, str(each), told))
                        with suppress(KeyFileError):  # already a finding
                            found.append(Inspection(each))
                if real in files or (path == config.keys_path and is_begun):
                    found.append(_inspect(part, real))
                elif path != config.keys_path:
                    part.kept.append(f"{path}: does not exist: it may be elsewhere, with keys that were erased since")
        except KeyFileError as error:
            part.add(ProofFinding(FindingKind.UNREADABLE, str(path), str(error)))
    return found


def _inspect(part: ProofPart, path: Path) -> Inspection:
    found = Inspection(path)
    part.count("files of keys")
    part.count("bytes", found.size)
    for flaw in found.flaws:
        part.add(ProofFinding(FindingKind.KEYS, str(path), flaw.description, flaw.offset))
    return found


def _existing(connection: sqlite3.Connection, archived: Mapping[int, Sequence[Range]]) -> dict[bytes, Sequence[Range]]:
    """Return the numbers of existing bodies, and of those whose keys the next run erases."""
    found = {group_id: list(some) for (group_id, some), _ in message_keys.living(connection, archived)}
    for group_id, some in message_keys.pending_ranges(connection):
        found.setdefault(group_id, []).append(some)
    return {group_id: tree.union(some) for group_id, some in found.items()}


def _archived(connection: sqlite3.Connection, folder: Path, keys: Inspection | None) -> dict[int, list[Range]]:
    """Return the numbers of archived messages in indexed parts, by group key.

    ``keys``: excludes messages without a key, which are erased. None: includes erased messages until reclaimed.
    """
    parts = defaultdict[int, list[Range]](list)
    for part in moves.each_part(connection):
        parts[part.group_key].append(Range(part.first_seq, part.last_seq))
    if not (parts and (folder / LOG).is_dir()):
        return {}
    table, ids = numbers.in_table(folder), message_keys.group_ids(connection)
    found = {key: tree.intersection(table.get(key, []), tree.union(some)) for key, some in parts.items()}
    if keys is None:
        return found
    return {key: tree.intersection(some, _spanned([keys], ids[key], some)) for key, some in found.items()}


def _account_archived(
    part: ProofPart, connection: sqlite3.Connection, archived: Mapping[int, Sequence[Range]], found: Inspection
) -> None:
    """Compare how many archived messages have keys with the counts of the index."""
    ids, waiting = message_keys.group_ids(connection), message_keys.pending_by_group(connection)
    counts: Counter[int] = Counter()
    for each in moves.each_part(connection):
        counts[each.group_key] += each.message_count
    for key, some in archived.items():
        left = tree.count(tree.difference(some, waiting.get(ids[key], []))) - counts[key]
        if left > 0:
            told = f"the keys of {left:,} archived messages of {_named(ids[key])} that are erased"
            part.add(ProofFinding(FindingKind.KEYS, str(found.path), told))


def examine_copies(part: ProofPart, copies: BackupFolder, examined: Examined) -> None:
    """Examine backups with all key files. Call it with the run lock.

    Skips backups that are removed meanwhile, for example by ``backup --keep``.
    """
    for backup in copies.backups():
        try:
            there = _of_backup(backup)
        except (StoreError, sqlite3.Error, UnreadableArchiveError) as error:
            if backup in copies.backups():
                part.count("backups")
                part.add(ProofFinding(FindingKind.UNREADABLE, str(backup), f"cannot be examined: {error}"))
            continue
        part.count("backups")
        for group_id, some in there.items():
            erased = tree.difference(some, examined.alive.get(group_id, ()))
            part.count("bodies", tree.count(some))
            part.count("of these erased today", tree.count(erased))
            if readable := tree.count(tree.intersection(erased, _spanned(examined.opened, group_id, erased))):
                told = f"{readable:,} of {_named(group_id)} that are erased today can be read"
                part.add(ProofFinding(FindingKind.KEYS, str(backup), told))


def _spanned(opened: Sequence[Inspection], group_id: bytes, some: Sequence[Range]) -> list[Range]:
    """Return the numbers that any file has keys for, in the blocks of ``some``."""
    blocks = {block for first, last in some for block in range(first >> HEIGHT, (last >> HEIGHT) + 1)}
    return tree.union(span for each in opened for block in blocks for span in each.ranges(group_id, block))


def _of_backup(backup: Path) -> Numbers:
    """Return the numbers of the bodies in a backup. Raises sqlite3.Error or UnreadableArchiveError."""
    database, folder = backup / "database.db", backup / "archive"
    with closing(sqlite.connect(database, readonly=True, frozen=True)) as connection:
        return {each: some for (each, some), _ in message_keys.living(connection, _archived(connection, folder, None))}
