"""Can anything that was erased still be decrypted, with all that lies here and in the copies?

What was erased has a row nowhere, and no key: what remains of it is ciphertext. So the proof looks at keys alone. Every
byte of the key file and of its copies is accounted for: their nodes lead to keys of what there is, and to no others.
And of backups it tells what is erased today and can be read, with all files of keys that there are.

What is due but not erased yet is not dead here: a dry run counts it. No body and no key is ever told, only where it is.
Then an experiment shows that erasing destroys keys.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from conclave.actions.replay import NUMBERS
from conclave.archive import numbers
from conclave.archive.files import LOG
from conclave.config.settings import Config
from conclave.keys import tree
from conclave.keys.file import KeyFileError
from conclave.keys.inspection import Inspection
from conclave.keys.replacing import FORMER, NEW
from conclave.keys.tree import HEIGHT, Range
from conclave.proof import key_files
from conclave.proof.findings import Finding, Kind, ProofPart
from conclave.store import message_keys
from conclave.store.archive import moves
from conclave.store.engine import schema, sqlite
from conclave.store.engine.faults import StoreError
from conclave.store.message_keys import OTHERS
from conclave.system import locks
from conclave.system.locks import DatabaseLock

Numbers = Mapping[bytes, Sequence[Range]]
"""Numbers of messages, by ids of groups; and of other bodies, under OTHERS."""


class Copies(NamedTuple):
    """The backups that are kept in a folder. ``backups``: lists them, and raises if there are none."""

    folder: Path
    backups: Callable[[], Sequence[Path]]


class ProofError(Exception):
    """The keys cannot be examined. The message is one line for the operator."""


class Examined(NamedTuple):
    """What was found: all files of keys that can be read, the key file first, and the numbers that there are today."""

    opened: Sequence[Inspection]
    alive: Numbers


def verify(config: Config, wait: locks.Wait, copies: Copies | None = None) -> list[ProofPart]:
    """Examine the keys, and return what was looked at and found.

    ``copies``: backups that are examined too. ``wait`` is called before a wait for a run that is under way. Raises
    ProofError.
    """
    found = [ProofPart("key file")]
    try:
        schema.require_current(config.database, writing=True)
        with closing(DatabaseLock(config.database, locks.CLEANUP)) as lock, lock.hold(wait):
            examined = examine(found[0], config)
            if copies:
                found.append(part := ProofPart("copies"))
                examine_copies(part, copies, examined)
    except (numbers.UnreadableError, StoreError, sqlite3.Error) as error:
        raise ProofError(str(error)) from error
    except OSError as error:
        raise ProofError(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error
    return found


def examine(part: ProofPart, config: Config) -> Examined:
    """Look at the key file, and at each copy of it.

    The run lock is held. Raises StoreError, sqlite3.Error, UnreadableError or OSError.
    """
    with closing(sqlite.connect(config.database, readonly=True)) as connection:
        state = message_keys.state(connection)
    opened = _opened(part, config, is_begun=state is not None)
    # The database after the keys: what came meanwhile has numbers that count as not given yet.
    with closing(sqlite.connect(config.database, readonly=True)) as connection:
        connection.execute("BEGIN")
        mine = next((each for each in opened if each.path == config.keys_path), None)
        archived = _archived(connection, config.archive_path, mine)
        if state and state.is_settled and mine:
            _account_archived(part, connection, archived, mine)
        alive, unused = _today(connection, archived), defaultdict[bytes, list[Range]](list)
        for group_id, some in message_keys.never_used(connection):
            unused[group_id].append(some)
    if state is None:
        part.notes.append("no server has run on this database: there are no messages")
    elif not state.is_settled:
        part.notes.append("the keys of what a restore took back are lost with the next start of the server")
    else:
        for each in opened:
            _account(part, each, mine.serial if mine else 0, alive, unused)
    return Examined(opened, alive)


def _account(part: ProofPart, found: Inspection, own: int, alive: Numbers, unused: Numbers) -> None:
    """Compare what the nodes of a file span with what there is. ``own``: the last change of the key file."""
    late = 0
    for group_id, block in found.blocks():
        part.count("covers")
        first = block << HEIGHT
        # Numbers begin one above a multiple of this, in a new group and after each restore.
        never = [Range(first, first)] if first % NUMBERS == 0 else []
        allowed = tree.union([*alive.get(group_id, ()), *unused.get(group_id, ()), *never])
        dead = tree.count(tree.difference(found.ranges(group_id, block), allowed))
        if dead and found.serial < own:
            late += dead
        elif dead:
            told = f"the keys of {dead:,} numbers of {_named(group_id)} that nothing has"
            part.add(Finding(Kind.KEYS, str(found.path), told, found.offset(group_id, block)))
    if late:
        part.kept.append(f"{found.path}: is an older copy, with the keys of {late:,} numbers that are erased since")


def _named(group_id: bytes) -> str:
    return "bodies other than messages" if group_id == OTHERS else f"group {group_id.hex()}"


def _opened(part: ProofPart, config: Config, *, is_begun: bool) -> list[Inspection]:
    """Look at every file of keys that is known, as it lies there. One that cannot be read proves nothing."""
    found = []
    for path in key_files.known(config):
        try:
            with key_files.undisturbed(config.keys_path, path) as (real, files):
                for each in files:
                    if each.name in (real.name + NEW, real.name + FORMER):
                        told = "was left by a process that died: who writes the file removes it"
                        part.add(Finding(Kind.KEYS, str(each), told))
                        with suppress(KeyFileError):  # found as what it is, whatever it has
                            found.append(Inspection(each))
                if real in files or (path == config.keys_path and is_begun):
                    found.append(_looked_at(part, real))
                elif path != config.keys_path:
                    part.kept.append(f"{path}: is not there: it may be elsewhere, with keys that were destroyed since")
        except KeyFileError as error:
            part.add(Finding(Kind.UNREADABLE, str(path), str(error)))
    return found


def _looked_at(part: ProofPart, path: Path) -> Inspection:
    found = Inspection(path)
    part.count("files of keys")
    part.count("bytes", found.size)
    for flaw in found.flaws:
        part.add(Finding(Kind.KEYS, str(path), flaw.description, flaw.offset))
    return found


def _today(connection: sqlite3.Connection, archived: Mapping[int, Sequence[Range]]) -> dict[bytes, Sequence[Range]]:
    """Return the numbers of the bodies that there are, or whose keys the next run loses."""
    found = {group_id: list(some) for (group_id, some), _ in message_keys.living(connection, archived)}
    for group_id, some in message_keys.pending_ranges(connection):
        found.setdefault(group_id, []).append(some)
    return {group_id: tree.union(some) for group_id, some in found.items()}


def _archived(connection: sqlite3.Connection, folder: Path, keys: Inspection | None) -> dict[int, list[Range]]:
    """Return the numbers that the archive has in the parts that it serves, by keys of groups.

    ``keys``: of the database: what has none is erased. None: what is erased and not reclaimed is among them.
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
    """Compare how many messages of the archive have keys with how many its index counts: those of others are left."""
    ids, waiting = message_keys.group_ids(connection), message_keys.pending_by_group(connection)
    counts: Counter[int] = Counter()
    for each in moves.each_part(connection):
        counts[each.group_key] += each.message_count
    for key, some in archived.items():
        left = tree.count(tree.difference(some, waiting.get(ids[key], []))) - counts[key]
        if left > 0:
            told = f"the keys of {left:,} archived messages of {_named(ids[key])} that are erased"
            part.add(Finding(Kind.KEYS, str(found.path), told))


def examine_copies(part: ProofPart, copies: Copies, examined: Examined) -> None:
    """Look at the backups that are kept, with all files of keys. The run lock is held.

    One that is removed meanwhile, as ``backup --keep`` does, is left out.
    """
    for backup in copies.backups():
        try:
            there = _of_backup(backup)
        except (StoreError, sqlite3.Error, numbers.UnreadableError) as error:
            if backup in copies.backups():
                part.count("backups")
                part.add(Finding(Kind.UNREADABLE, str(backup), f"cannot be looked at: {error}"))
            continue
        part.count("backups")
        for group_id, some in there.items():
            erased = tree.difference(some, examined.alive.get(group_id, ()))
            part.count("bodies", tree.count(some))
            part.count("of these erased today", tree.count(erased))
            if readable := tree.count(tree.intersection(erased, _spanned(examined.opened, group_id, erased))):
                told = f"{readable:,} of {_named(group_id)} that are erased today can be read"
                part.add(Finding(Kind.KEYS, str(backup), told))


def _spanned(opened: Sequence[Inspection], group_id: bytes, some: Sequence[Range]) -> list[Range]:
    """Return the numbers whose keys follow from some file, in the blocks in which ``some`` are."""
    blocks = {block for first, last in some for block in range(first >> HEIGHT, (last >> HEIGHT) + 1)}
    return tree.union(span for each in opened for block in blocks for span in each.ranges(group_id, block))


def _of_backup(backup: Path) -> Numbers:
    """Return the bodies of a backup. Raises sqlite3.Error or UnreadableError."""
    database, folder = backup / "database.db", backup / "archive"
    with closing(sqlite.connect(database, readonly=True, frozen=True)) as connection:
        return {each: some for (each, some), _ in message_keys.living(connection, _archived(connection, folder, None))}
