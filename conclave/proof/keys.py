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
from conclave.archive import queries
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

    inspections: Sequence[Inspection]
    existing: Numbers


def verify(config: Config, wait: locks.Wait, copies: BackupFolder | None = None) -> list[ProofPart]:
    """Examine the keys, and return the results. Raises ProofError.

    ``copies``: backups to examine too. ``wait``: called before waiting for an active run.
    """
    parts = [ProofPart("key file")]
    try:
        schema.require_current(config.database, writing=True)
        with closing(DatabaseLock(config.database, locks.CLEANUP)) as lock, lock.hold(wait):
            examined = examine(parts[0], config)
            if copies:
                parts.append(part := ProofPart("copies"))
                examine_copies(part, copies, examined)
    except (UnreadableArchiveError, StoreError, sqlite3.Error) as error:
        raise ProofError(str(error)) from error
    except OSError as error:
        raise ProofError(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error
    return parts


def examine(part: ProofPart, config: Config) -> Examined:
    """Examine the key file and its copies. The caller must hold the run lock.

    Raises StoreError, sqlite3.Error, UnreadableArchiveError or OSError.
    """
    with closing(sqlite.connect(config.database, readonly=True)) as connection:
        state = message_keys.state(connection)
    inspections = _inspect_all(part, config, is_in_use=state is not None)
    # Read the database after the keys: the numbers of new messages count as unused in the key files.
    with closing(sqlite.connect(config.database, readonly=True)) as connection:
        connection.execute("BEGIN")
        own_file = next((each for each in inspections if each.path == config.keys_path), None)
        archived = _archived(connection, config.archive_path, own_file)
        if state and state.is_settled and own_file:
            _compare_archived(part, connection, archived, own_file)
        existing, unused = _existing(connection, archived), defaultdict[bytes, list[Range]](list)
        for group_id, unused_range in message_keys.never_used(connection):
            unused[group_id].append(unused_range)
    if state is None:
        part.notes.append("this database has not been used by a server yet: there are no messages")
    elif not state.is_settled:
        part.notes.append("the keys of messages that a restore removed are erased when the server starts")
    else:
        for each in inspections:
            _compare(part, each, own_file.serial if own_file else 0, existing, unused)
    return Examined(inspections, existing)


def _compare(part: ProofPart, file: Inspection, own_serial: int, existing: Numbers, unused: Numbers) -> None:
    """Compare the numbers that have keys in a file with existing ones. ``own_serial``: the key file's last change."""
    erased_since = 0
    for group_id, block in file.blocks():
        part.count("covers")
        first = block << HEIGHT
        # The first number, in a new group and after each restore, is a multiple of NUMBERS plus one.
        unused_first = [Range(first, first)] if first % NUMBERS == 0 else []
        expected = tree.union([*existing.get(group_id, ()), *unused.get(group_id, ()), *unused_first])
        surplus = tree.count(tree.difference(file.ranges(group_id, block), expected))
        if surplus and file.serial < own_serial:
            erased_since += surplus
        elif surplus:
            description = f"the keys of {surplus:,} numbers of {_group_text(group_id)} that do not exist"
            part.add(ProofFinding(FindingKind.KEYS, str(file.path), description, file.offset(group_id, block)))
    if erased_since:
        part.kept.append(
            f"{file.path}: is an older copy, with the keys of {erased_since:,} numbers that were erased since"
        )


def _group_text(group_id: bytes) -> str:
    return "bodies other than messages" if group_id == OTHERS else f"group {group_id.hex()}"


def _inspect_all(part: ProofPart, config: Config, *, is_in_use: bool) -> list[Inspection]:
    """Inspect all key files, and add findings for unreadable files and leftovers."""
    inspections = []
    for path in key_files.known(config):
        try:
            with key_files.locked_files(config.keys_path, path) as (real, files):
                for each in files:
                    if each.name in (real.name + NEW, real.name + FORMER):
                        description = "was left by a process that died: the next writer of the key file removes it"
                        part.add(ProofFinding(FindingKind.KEYS, str(each), description))
                        with suppress(KeyFileError):  # already a finding
                            inspections.append(Inspection(each))
                if real in files or (path == config.keys_path and is_in_use):
                    inspections.append(_inspect(part, real))
                elif path != config.keys_path:
                    part.kept.append(f"{path}: does not exist: it may be elsewhere, with keys that were erased since")
        except KeyFileError as error:
            part.add(ProofFinding(FindingKind.UNREADABLE, str(path), str(error)))
    return inspections


def _inspect(part: ProofPart, path: Path) -> Inspection:
    file = Inspection(path)
    part.count("files of keys")
    part.count("bytes", file.size)
    for flaw in file.flaws:
        part.add(ProofFinding(FindingKind.KEYS, str(path), flaw.description, flaw.offset))
    return file


def _existing(connection: sqlite3.Connection, archived: Mapping[int, Sequence[Range]]) -> dict[bytes, Sequence[Range]]:
    """Return the numbers of existing bodies, and of those whose keys the next run erases."""
    found = {group_id: list(ranges) for (group_id, ranges), _ in message_keys.living(connection, archived)}
    for group_id, range_ in message_keys.pending_ranges(connection):
        found.setdefault(group_id, []).append(range_)
    return {group_id: tree.union(ranges) for group_id, ranges in found.items()}


def _archived(connection: sqlite3.Connection, folder: Path, keys: Inspection | None) -> dict[int, list[Range]]:
    """Return the numbers of archived messages in indexed parts, by group key.

    ``keys``: excludes messages without a key, which are erased. None: includes erased messages until reclaimed.
    """
    parts = defaultdict[int, list[Range]](list)
    for part in moves.each_part(connection):
        parts[part.group_key].append(Range(part.first_seq, part.last_seq))
    if not (parts and (folder / LOG).is_dir()):
        return {}
    table, ids = queries.numbers_in(folder), message_keys.group_ids(connection)
    archived = {key: tree.intersection(table.get(key, []), tree.union(ranges)) for key, ranges in parts.items()}
    if keys is None:
        return archived
    return {
        key: tree.intersection(ranges, _ranges_with_keys([keys], ids[key], ranges)) for key, ranges in archived.items()
    }


def _compare_archived(
    part: ProofPart, connection: sqlite3.Connection, archived: Mapping[int, Sequence[Range]], file: Inspection
) -> None:
    """Compare how many archived messages have keys with the counts of the index."""
    ids, pending = message_keys.group_ids(connection), message_keys.pending_by_group(connection)
    counts: Counter[int] = Counter()
    for each in moves.each_part(connection):
        counts[each.group_key] += each.message_count
    for key, ranges in archived.items():
        surplus = tree.count(tree.difference(ranges, pending.get(ids[key], []))) - counts[key]
        if surplus > 0:
            description = f"the keys of {surplus:,} archived messages of {_group_text(ids[key])} that are erased"
            part.add(ProofFinding(FindingKind.KEYS, str(file.path), description))


def examine_copies(part: ProofPart, copies: BackupFolder, examined: Examined) -> None:
    """Examine backups with all key files. The caller must hold the run lock.

    Skips backups that are removed during the examination, for example by ``backup --keep``.
    """
    for backup in copies.backups():
        try:
            in_backup = _numbers_in_backup(backup)
        except (StoreError, sqlite3.Error, UnreadableArchiveError) as error:
            if backup in copies.backups():
                part.count("backups")
                part.add(ProofFinding(FindingKind.UNREADABLE, str(backup), f"cannot be examined: {error}"))
            continue
        part.count("backups")
        for group_id, ranges in in_backup.items():
            erased = tree.difference(ranges, examined.existing.get(group_id, ()))
            part.count("bodies", tree.count(ranges))
            part.count("of these erased today", tree.count(erased))
            if readable := tree.count(
                tree.intersection(erased, _ranges_with_keys(examined.inspections, group_id, erased))
            ):
                description = f"{readable:,} of {_group_text(group_id)} that are erased today can be read"
                part.add(ProofFinding(FindingKind.KEYS, str(backup), description))


def _ranges_with_keys(inspections: Sequence[Inspection], group_id: bytes, ranges: Sequence[Range]) -> list[Range]:
    """Return the numbers in the blocks of ``ranges`` that have keys in any of the files."""
    blocks = {block for first, last in ranges for block in range(first >> HEIGHT, (last >> HEIGHT) + 1)}
    return tree.union(span for each in inspections for block in blocks for span in each.ranges(group_id, block))


def _numbers_in_backup(backup: Path) -> Numbers:
    """Return the numbers of the bodies in a backup. Raises sqlite3.Error or UnreadableArchiveError."""
    database, folder = backup / "database.db", backup / "archive"
    with closing(sqlite.connect(database, readonly=True, frozen=True)) as connection:
        return {
            each: ranges for (each, ranges), _ in message_keys.living(connection, _archived(connection, folder, None))
        }
